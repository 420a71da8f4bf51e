"""Generate the statements of a Triton kernel for parametrizations, on named numbers: scalars, or rows of columns."""

from __future__ import annotations

# Map raw parameters (raw) to coefficients (c).


def _sum(names: list[str]) -> str:
    return f"({' + '.join(names)})"


def _given(raw: list[str], c: list[str]) -> list[str]:
    return [f"{ci} = {ri}" for ci, ri in zip(c, raw, strict=True)]


def _recentred(raw: list[str], c: list[str]) -> list[str]:
    return [
        f"shift = ({_sum(raw)} - 1.0) / {len(c)}.0",
        *(f"{ci} = {ri} - shift" for ci, ri in zip(c, raw, strict=True)),
    ]


def _free(raw: list[str], c: list[str]) -> list[str]:
    return [*_given(raw, c[:-1]), f"{c[-1]} = 1.0 - {_sum(raw) if raw else '0.0'}"]


def _softmax(raw: list[str], c: list[str]) -> list[str]:
    lines = [f"largest = {raw[0]}", *(f"largest = tl.maximum(largest, {r})" for r in raw[1:])]
    lines += [f"{ci} = tl.exp({ri} - largest)" for ci, ri in zip(c, raw, strict=True)]
    return [*lines, f"whole = {_sum(c)}", *(f"{ci} = {ci} / whole" for ci in c)]


def _projection(raw: list[str], c: list[str]) -> list[str]:
    """The threshold is the maximum over i of (sum of the raw parameters from r_i up - 1) / how many they are."""
    lines = [f"largest = {raw[0]}", *(f"largest = tl.maximum(largest, {r})" for r in raw[1:])]
    lines += [f"{r} -= tl.floor(largest)" for r in raw]  # without that, large numbers swallow the 1
    for i, r in enumerate(raw):
        above = [f"tl.where({other} >= {r}, {other}, 0.0)" for other in raw]
        count = [f"tl.where({other} >= {r}, 1.0, 0.0)" for other in raw]
        candidate = f"({_sum(above)} - 1.0) / {_sum(count)}"
        lines.append(f"threshold = {candidate}" if i == 0 else f"threshold = tl.maximum(threshold, {candidate})")
    return lines + [f"{ci} = tl.maximum({ri} - threshold, 0.0)" for ci, ri in zip(c, raw, strict=True)]


def _clamped(raw: list[str], c: list[str]) -> list[str]:
    return [f"{ci} = tl.maximum({ri}, 0.0, propagate_nan=tl.PropagateNan.ALL)" for ci, ri in zip(c, raw, strict=True)]


def _softplus(raw: list[str], c: list[str]) -> list[str]:
    return [
        f"{ci} = tl.maximum({ri}, 0.0, propagate_nan=tl.PropagateNan.ALL) + log1p(tl.exp(-tl.abs({ri})))"
        for ci, ri in zip(c, raw, strict=True)
    ]


TRANSFORMS = {
    "given": _given,
    "recentred": _recentred,
    "free": _free,
    "softmax": _softmax,
    "projection": _projection,
    "clamped": _clamped,
    "softplus": _softplus,
}


# Map gradients of coefficients (g) to gradients of raw parameters (d).


def _keep(c: list[str], g: list[str], d: list[str]) -> list[str]:
    return [f"{di} = {gi}" for di, gi in zip(d, g, strict=True)]


def _centre(c: list[str], g: list[str], d: list[str]) -> list[str]:
    return [f"mean = {_sum(g)} / {len(g)}.0", *(f"{di} = {gi} - mean" for di, gi in zip(d, g, strict=True))]


def _against_last(c: list[str], g: list[str], d: list[str]) -> list[str]:
    return [f"{di} = {gi} - {g[-1]}" for di, gi in zip(d[:-1], g, strict=False)]


def _softmax_pullback(c: list[str], g: list[str], d: list[str]) -> list[str]:
    mean = _sum([f"{ci} * {gi}" for ci, gi in zip(c, g, strict=True)])
    return [f"mean = {mean}", *(f"{di} = {ci} * ({gi} - mean)" for di, ci, gi in zip(d, c, g, strict=True))]


def _softplus_pullback(c: list[str], g: list[str], d: list[str]) -> list[str]:
    return [f"{di} = {gi} * -expm1(-{ci})" for di, ci, gi in zip(d, c, g, strict=True)]


PULLBACKS = {
    "given": _keep,
    "recentred": _centre,
    "free": _against_last,
    "softmax": _softmax_pullback,
    "projection": _centre,
    "clamped": _keep,
    "softplus": _softplus_pullback,
}
