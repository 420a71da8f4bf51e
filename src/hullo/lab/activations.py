"""Activations by their spelling, and the activation layers of a population, each member with its own.

A *row* says what a network's activations are: a base function such as ``relu`` or ``leaky_relu(0.2)``, which stays as
it is, or a hull such as ``convex(identity,relu)`` or ``affine(identity,relu,tanh)``, or ``prelu``, which are learned.
Every row is a point or a set in the space of coefficients over the bases of all rows, so members with different rows
are one call of `combine`: a fixed activation is a row of coefficients that never moves.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from hullo.bases import Base, base, names, resolve
from hullo.coefficients import Hyperplane, Orthant, Simplex, Space, way
from hullo.functional import apply
from hullo.kernels import Plan
from hullo.lab import kernels

HULLS: dict[str, type[Simplex | Hyperplane | Orthant | Space]] = {
    "convex": Simplex,
    "affine": Hyperplane,
    "conic": Orthant,
    "linear": Space,
}
KEEP = {"fixed": "fixed", "convex": "projection", "affine": "recentred", "conic": "clamped", "linear": "given"}
"""How coefficients are kept where a spelling does not say; a record means the same for ever."""
_OPTION = re.compile(r"\s*\w+\s*=")
OPTIONS = {"keep": "", "start": "uniform", "per": "layer"}


@dataclass(frozen=True)
class Row:
    """What the activations of a network are: one base function, or the hull of several, in the catalogue's order.

    A hull's spelling may say how coefficients are kept, that it starts as one of its bases rather than at 1/N each, and
    that there is one activation per channel: ``convex(identity,relu,start=relu,per=channel)``. Fully connected layers,
    which have no channels, have one activation each all the same.

    ``prelu`` is ``affine(identity,relu,keep=free,start=relu,per=channel)``, which is a * identity + (1 - a) * relu: one
    learned slope per channel after a convolution and one after a fully connected layer, each starting at 0.

    >>> from hullo.lab.activations import Row
    >>> str(Row.parse("affine(tanh, identity)"))
    'affine(identity,tanh)'
    >>> str(Row.parse("convex(identity,relu,start=relu,keep=projection)"))
    'convex(identity,relu,start=relu)'
    >>> str(Row.parse("leaky_relu(0.01)"))
    'leaky_relu'
    >>> str(Row.parse("affine(identity,relu,keep=free,start=relu,per=channel)"))
    'prelu'
    """

    kind: str
    bases: tuple[Base, ...]
    keep: str = "fixed"
    begin: Base | None = None
    per: str = "layer"

    @classmethod
    def parse(cls, text: str | Row) -> Row:
        """Read the row of a spelling."""
        if isinstance(text, Row):
            return text
        if not isinstance(text, str):
            raise TypeError(f"an activation is spelled in text, as in 'relu'; got {text!r} of {type(text).__name__}")
        if text.strip() == "prelu":
            return PRELU
        hull = re.fullmatch(rf"\s*({'|'.join(HULLS)})\s*\((.*)\)\s*", text)
        kind, inner = (hull[1], hull[2]) if hull else ("fixed", text)
        # commas between bases, not those between the parameters of one
        parts = re.split(r",(?![^(]*\))", inner) if hull else [inner]
        options = dict(re.split(r"\s*=\s*", part.strip(), maxsplit=1) for part in parts if _OPTION.match(part))
        spelled = [part for part in parts if not _OPTION.match(part)]
        try:
            found = in_order(resolve(spelled, strict=False))
            return cls(kind, found, *_read_options(options, kind, found))
        except ValueError as error:
            wanted = "a base function, prelu, or convex(...) or affine(...) of several, as in convex(identity,relu)"
            raise ValueError(f"{text!r} is no activation: {error}. An activation is {wanted}") from None

    def __str__(self) -> str:
        if not self.learns:
            return self.bases[0].name
        if self == PRELU:
            return "prelu"
        options = {"keep": self.keep, "start": self.begin.name if self.begin else "uniform", "per": self.per}
        usual = OPTIONS | {"keep": KEEP[self.kind]}
        said = [f"{name}={value}" for name, value in options.items() if value != usual[name]]
        return f"{self.kind}({','.join([item.name for item in self.bases] + said)})"

    @property
    def learns(self) -> bool:
        return self.kind in HULLS

    @property
    def start(self) -> dict[Base, float]:
        """Return the first coefficients: 1/N each in a hull, unless it starts as one of its bases.

        A fixed leaky_relu(a) is a * identity + (1 - a) * relu, and so needs no base of its own beside these, unless a
        is so large that the sum would be rounded.
        """
        slope = self.bases[0].slopes_at_zero[0]
        if not self.learns and self.bases[0].name.startswith("leaky_relu") and abs(slope) <= 1:
            return {base("identity"): slope, base("relu"): 1 - slope}
        if self.begin:
            return {item: float(item == self.begin) for item in self.bases}
        return dict.fromkeys(self.bases, 1 / len(self.bases))


PRELU = Row("affine", (base("identity"), base("relu")), keep="free", begin=base("relu"), per="channel")
"""PReLU, whose slopes Keras starts at 0."""


def _read_options(options: dict[str, str], kind: str, bases: tuple[Base, ...]) -> tuple[str, Base | None, str]:
    """keep, begin and per, as they are spelled or as they are by default."""
    if options and kind not in HULLS:
        raise ValueError("only a hull takes options")
    if unknown := options.keys() - OPTIONS.keys():
        raise ValueError(f"unknown option {min(unknown)!r}; there are {', '.join(OPTIONS)}")
    chosen = OPTIONS | {"keep": KEEP[kind]} | options
    begin = None if chosen["start"] == "uniform" else base(chosen["start"])
    if begin and begin not in bases:
        raise ValueError(f"cannot start as {begin.name!r}, which is not one of its bases")
    if chosen["per"] not in ("layer", "channel"):
        raise ValueError(f"per={chosen['per']!r}: one activation is per=layer or per=channel")
    if kind in HULLS:
        numbers = [1 / len(bases) if begin is None else float(item == begin) for item in bases]
        ok, reason = HULLS[kind](chosen["keep"]).check(torch.tensor(numbers, dtype=torch.float64))
        if not ok:
            raise ValueError(reason)
    return chosen["keep"], begin, chosen["per"]


def in_order(bases: Iterable[Base]) -> tuple[Base, ...]:
    """Bases once each, in the catalogue's order."""
    position = {name: i for i, name in enumerate(names())}
    return tuple(sorted(set(bases), key=lambda item: (position[item.name.partition("(")[0]], item.name)))


class Activations(nn.Module):
    """All activation layers of a population: K members with a row each, and coefficients for each of their layers.

    The raw numbers of all members and layers are one parameter of shape (K, L, N), so that keeping them in their hulls
    takes one pass a step, however deep the network is. If any member has one activation per channel, L counts the
    channels of all layers, and members with one per layer are *tied*: the rows of a layer start alike and all get the
    sum of their gradients, so that any optimiser that treats entries alike keeps them alike. A buffer holds the raw
    numbers where no row learns.

    Args:
        rows: what each member's activations are.
        widths: the channels of each layer, 1 for features.

    Example:
        >>> import torch
        >>> from hullo.lab.activations import Activations, Row
        >>> layers = Activations([Row.parse("relu"), Row.parse("convex(identity,tanh)")], widths=[1, 1])
        >>> [item.name for item in layers.bases]
        ['identity', 'relu', 'tanh']
        >>> layers.coefficients[1, 0]
        tensor([0.5000, 0.0000, 0.5000], grad_fn=<SelectBackward0>)
        >>> first, second = layers()
        >>> first(torch.tensor([[[-1.0]], [[-1.0]]])).flatten()
        tensor([ 0.0000, -0.8808], grad_fn=<ViewBackward0>)
    """

    raw: Tensor
    unused: Tensor
    codes: Tensor
    order: Tensor
    tied: Tensor | None
    spans: Tensor | None

    def __init__(self, rows: Sequence[Row], widths: Sequence[int]) -> None:
        super().__init__()
        self.rows = tuple(rows)
        self.widths = list(widths) if any(row.per == "channel" for row in rows) else [1] * len(widths)
        self.bases = in_order(item for row in rows for item in row.start)
        start = torch.tensor([[row.start.get(item, 0.0) for item in self.bases] for row in rows]).unsqueeze(1)
        unused = torch.tensor([[item not in row.start for item in self.bases] for row in rows]).unsqueeze(1)
        codes = torch.tensor([CODES[row.keep] for row in rows], dtype=torch.int32).view(-1, 1, 1)
        layers = sum(self.widths)
        numbers = torch.arange(len(rows) * layers, dtype=torch.int32).view(-1, layers)
        order = torch.cat([own.flatten() for own in torch.split(numbers, self.widths, 1)])  # of rows, layer by layer
        self.register_buffer("unused", unused, persistent=False)
        self.register_buffer("codes", codes, persistent=False)
        self.register_buffer("order", order, persistent=False)
        self._tie([row.learns and row.per == "layer" for row in rows])
        self.ways = tuple(sorted({row.keep for row in rows}))
        raw = start
        for name in self.ways:
            raw = torch.where(codes == CODES[name], WAYS[name].raw(start, unused), raw)
        raw = raw.repeat(1, layers, 1)
        if any(row.learns for row in rows):
            self.raw = nn.Parameter(raw)
        else:
            self.register_buffer("raw", raw)

    def _tie(self, tied: Sequence[bool]) -> None:
        """Register which members' rows are tied, and where the rows of each of their layers are in the order of all."""
        wanted = max(self.widths) > 1 and any(tied)
        spans = [
            ((end - width) * len(tied) + k * width, width)
            for end, width in zip(itertools.accumulate(self.widths), self.widths, strict=True)
            for k, own in enumerate(tied)
            if own and width > 1
        ]
        self.register_buffer("tied", torch.tensor(tied).view(-1, 1, 1) if wanted else None, persistent=False)
        self.register_buffer("spans", torch.tensor(spans, dtype=torch.int32) if wanted else None, persistent=False)

    def split_member(self, k: int, numbers: Tensor) -> list[Tensor]:
        """Split member k's part of `raw` or `coefficients`, (L, N), by layer: a row per channel, or one per layer."""
        layers = torch.split(numbers, self.widths)
        return [layer[:1] for layer in layers] if self.rows[k].per == "layer" else list(layers)

    @property
    def coefficients(self) -> Tensor:
        """Return the coefficients of every member and layer, (K, L, N), over `bases`; each row is in its hull."""
        return torch.cat([rows.view(len(self.rows), -1, len(self.bases)) for rows in self._by_layer()], 1)

    def forward(self) -> Iterator[Activation]:
        """The activation functions, layer by layer."""
        for rows in self._by_layer():
            yield Activation(rows.squeeze(0), self.bases)  # one row for all channels is faster

    def _by_layer(self) -> Sequence[Tensor]:
        """The coefficients of each layer, (K * width, N), all kept in one pass."""
        if kernels.serve(self.raw):
            from hullo.lab.kernels.keep import keep

            return keep(self.raw, self.unused, self.codes, self.order, self.widths, self.spans)
        kept: Tensor = _Kept.apply(self.raw, self.unused, self.codes, self.ways)  # type: ignore[no-untyped-call]
        if self.tied is not None:
            kept = _Tied.apply(kept, self.tied, self.widths)  # type: ignore[no-untyped-call]
        layers = torch.split(kept.transpose(0, 1).contiguous(), self.widths)
        return [rows.transpose(0, 1).flatten(0, 1) for rows in layers]

    def feasible_gradient(self, gradient: Tensor) -> Tensor:
        """Restrict a gradient of the raw numbers to directions in which convex and conic coefficients can move.

        Optimizers call this just before a step, on the gradient of the whole batch; see :mod:`hullo.boundary`.
        """
        if not {"projection", "clamped"} & set(self.ways):
            return gradient
        if kernels.serve(self.raw):
            from hullo.lab.kernels.keep import restrict

            return restrict(self.raw, gradient, self.unused, self.codes, self.order)
        # a base that is not used has the raw number -inf and the gradient inf, against which no coefficient can move
        raw, against = self.raw.masked_fill(self.unused, -torch.inf), gradient.masked_fill(self.unused, torch.inf)
        for name in self.ways:
            feasible = None if name == "fixed" else way(name).restrict
            if feasible:
                gradient = torch.where(self.codes == CODES[name], feasible(raw, against), gradient)
        return gradient

    def extra_repr(self) -> str:
        return f"{', '.join(dict.fromkeys(map(str, self.rows)))}; layers={len(self.widths)}"


@dataclass(frozen=True)
class Activation:
    """One activation layer of a population, a function of (B, K*C, H, W) or (K, B, features).

    `rows` are the coefficients of `bases`: one row for all channels, or one for each of equally many of them.
    """

    rows: Tensor
    bases: tuple[Base, ...]

    def __call__(self, x: Tensor) -> Tensor:
        # Not `hullo.combine`, which asks for independent bases: members do not share coefficients, so what one row
        # uses may well be a combination of what others use.
        return apply(x, self.rows, Plan(self.bases, way("given"), channel_dim=1 if x.dim() == 4 else 0))


@dataclass(frozen=True)
class _Way:
    """A way of keeping coefficients, over the bases that each row uses; to the others it gives 0.

    Args:
        raw: (coefficients, unused) to raw numbers.
        coefficients: (raw, unused) to coefficients.
        pullback: (raw, coefficients, gradient for coefficients, unused) to the gradient for raw numbers.
    """

    raw: Callable[[Tensor, Tensor], Tensor]
    coefficients: Callable[[Tensor, Tensor], Tensor]
    pullback: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def _recentre(numbers: Tensor, unused: Tensor, total: float) -> Tensor:
    """Numbers, used ones shifted alike so that they sum to `total`."""
    numbers = numbers.masked_fill(unused, 0.0)
    missing = total - numbers.sum(-1, keepdim=True)
    return (numbers + missing / (~unused).sum(-1, keepdim=True)).masked_fill(unused, 0.0)


def _last(unused: Tensor) -> Tensor:
    """Which base is the last one that a row uses."""
    position = torch.arange(unused.shape[-1], device=unused.device)
    return position == torch.where(unused, -1, position).amax(-1, keepdim=True)


def _complete(raw: Tensor, unused: Tensor) -> Tensor:
    others = raw.masked_fill(unused | _last(unused), 0.0)
    return torch.where(_last(unused), 1 - others.sum(-1, keepdim=True), others)


def _free_pullback(raw: Tensor, coefficients: Tensor, gradient: Tensor, unused: Tensor) -> Tensor:
    last = gradient.masked_fill(~_last(unused), 0.0).sum(-1, keepdim=True)
    return (gradient - last).masked_fill(unused | _last(unused), 0.0)


def _softmax_pullback(raw: Tensor, coefficients: Tensor, gradient: Tensor, unused: Tensor) -> Tensor:
    return way("softmax").pullback(raw, coefficients, gradient.masked_fill(unused, 0.0))


def _used(name: str) -> _Way:
    """Return one of the library's ways that treats each coefficient alone, for the bases that a row uses."""
    own = way(name)
    return _Way(
        lambda c, unused: own.raw(c).masked_fill(unused, 0.0),
        lambda r, unused: own.coefficients(r).masked_fill(unused, 0.0),
        lambda r, c, g, unused: own.pullback(r, c, g).masked_fill(unused, 0.0),
    )


WAYS = {
    "fixed": _Way(lambda c, unused: c, lambda r, unused: r, lambda r, c, g, unused: torch.zeros_like(g)),
    # a base that is not used has the raw number -inf
    "projection": _Way(
        lambda c, unused: c,
        lambda r, unused: way("projection").coefficients(r.masked_fill(unused, -torch.inf)),
        lambda r, c, g, unused: _recentre(g, unused, 0.0),
    ),
    "softmax": _Way(
        lambda c, unused: _recentre(c.log(), unused, 0.0),
        lambda r, unused: r.masked_fill(unused, -torch.inf).softmax(-1),
        _softmax_pullback,
    ),
    "recentred": _Way(
        lambda c, unused: c,
        lambda r, unused: _recentre(r, unused, 1.0),
        lambda r, c, g, unused: _recentre(g, unused, 0.0),
    ),
    "free": _Way(lambda c, unused: c.masked_fill(_last(unused), 0.0), _complete, _free_pullback),
    "given": _used("given"),
    "clamped": _used("clamped"),
    "softplus": _used("softplus"),
}
"""The library's ways, for rows side by side that use different bases."""

CODES = {name: code for code, name in enumerate(WAYS)}


class _Kept(torch.autograd.Function):
    """Raw numbers to coefficients, each row by its own way and over the bases it uses."""

    @staticmethod
    def forward(ctx: Any, raw: Tensor, unused: Tensor, codes: Tensor, ways: Sequence[str]) -> Tensor:
        kept = raw
        for name in ways:
            kept = torch.where(codes == CODES[name], WAYS[name].coefficients(raw, unused), kept)
        ctx.ways = ways
        ctx.save_for_backward(raw, kept, unused, codes)
        return kept

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        raw, kept, unused, codes = ctx.saved_tensors
        pulled = gradient
        for name in ctx.ways:
            pulled = torch.where(codes == CODES[name], WAYS[name].pullback(raw, kept, gradient, unused), pulled)
        return pulled, None, None, None


class _Tied(torch.autograd.Function):
    """The identity, which gives each row of a tied member the sum of the gradients of all rows of its layer."""

    @staticmethod
    def forward(ctx: Any, kept: Tensor, tied: Tensor, widths: Sequence[int]) -> Tensor:
        ctx.save_for_backward(tied)
        ctx.widths = widths
        return kept.view_as(kept)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (tied,) = ctx.saved_tensors
        sums = [layer.sum(1, keepdim=True).expand_as(layer) for layer in torch.split(gradient, ctx.widths, 1)]
        return torch.where(tied, torch.cat(sums, 1), gradient), None, None
