"""Generate the source of a Triton kernel for given bases and a parametrization.

A tensor is viewed as (outer, groups, inner) in memory order. A *lane* is the part that one row of programs processes:
`span` adjacent columns of a matrix with groups * inner columns, either all columns of one group or, if groups are
narrow, columns of many groups, each with its own coefficients. A lane is divided into tiles of ROWS x COLUMNS; each of
`splits` programs takes every `splits`-th tile. In the backward pass a program accumulates the gradients of the
coefficients in registers and writes them once; `reduce` adds these partial sums in a fixed order and pulls them back to
the raw parameters. So x, dy and dx are read or written once, there are no atomic additions, and results are bitwise
reproducible. With EARLY, `reduce` is launched while `backward` still runs and waits for its end, which hides most of
the launch latency.
"""

from __future__ import annotations

import ast
import re

from hullo.bases import Base
from hullo.parametrizations import BuiltInParametrization


def kernel_source(bases: tuple[Base, ...], parametrization: BuiltInParametrization, gated: bool = False) -> str:
    """Return the text of the kernels `forward`, `backward` and `reduce`, of hull(x) or, if gated, of hull(x) * up."""
    n = len(bases)
    raw = [f"r{i}" for i in range(n - parametrization.fewer)]
    c, g, d = ([f"{letter}{i}" for i in range(n)] for letter in "cgd")
    values, slopes = formulas(bases)
    load_raw = [f"{r} = tl.load(raw_ptr + row * {len(raw)} + {i}).to(tl.float32)" for i, r in enumerate(raw)]
    tile = _TILE.strip().splitlines()
    coefficients = load_raw + _PARAMETRIZATIONS[parametrization.name](raw, c)
    combined = " + ".join(f"{c[i]} * y{i}" for i in range(n))
    load_up = ["up = tl.load(up_ptr + start + at, mask=inside, other=0.0).to(tl.float32)"] if gated else []
    give_up = [
        f"dup = dy * ({combined})",
        "tl.store(dup_ptr + start + at, dup.to(dup_ptr.dtype.element_ty), mask=inside)",
        "dy = dy * up",
    ]
    parts = {
        "PROLOGUE": _PROLOGUE.strip().splitlines(),
        "COEFFICIENTS": coefficients,
        "FORWARD": [
            *tile,
            "x = tl.load(x_ptr + start + at, mask=inside, other=0.0).to(tl.float32)",
            *load_up,
            *values,
            f"y = ({combined}) * up" if gated else f"y = {combined}",
            "tl.store(y_ptr + start + at, y.to(y_ptr.dtype.element_ty), mask=inside)",
        ],
        "ZERO": [f"sum{i} = tl.zeros([ROWS, COLUMNS], tl.float32)" for i in range(n)],
        "BACKWARD": [
            *tile,
            "x = tl.load(x_ptr + start + at, mask=inside, other=0.0).to(tl.float32)",
            "dy = tl.load(dy_ptr + start + at, mask=inside, other=0.0).to(tl.float32)",
            *load_up,
            *values,
            *(give_up if gated else []),
            *slopes,
            f"dx = dy * ({' + '.join(f'{c[i]} * s{i}' for i in range(n))})",
            "tl.store(dx_ptr + start + at, dx.to(dx_ptr.dtype.element_ty), mask=inside)",
            *(f"sum{i} += dy * y{i}" for i in range(n)),
        ],
        "STORE_SCALARS": [
            f"tl.store(partial_ptr + {i} * stride_n + lane * splits + split, tl.sum(sum{i}))" for i in range(n)
        ],
        "STORE_COLUMNS": [
            "to = split * width + lane * span + columns",
            *(
                f"tl.store(partial_ptr + {i} * stride_n + to, tl.sum(sum{i}, axis=0)[None, :], mask=in_width)"
                for i in range(n)
            ),
        ],
        "ZERO_TOTALS": [f"t{i} = tl.zeros([BLOCK], tl.float64)" for i in range(n)],
        "ADD_TOTALS": [f"t{i} += tl.load(partial_ptr + {i} * stride_n + at, mask=inside, other=0.0)" for i in range(n)],
        "TOTALS": [f"g{i} = tl.sum(t{i}).to(tl.float32)" for i in range(n)],
        "PULL": _PULLBACKS[parametrization.name](c, g, d),
        "STORE_RAW": [f"tl.store(out_ptr + row * {len(raw)} + {i}, {d[i]})" for i in range(len(raw))],
    }
    text = _TEMPLATE
    if gated:
        text = text.replace("x_ptr, raw_ptr,", "x_ptr, up_ptr, raw_ptr,").replace("dx_ptr,", "dx_ptr, dup_ptr,")
    return fill(text, parts)


def fill(template: str, parts: dict[str, list[str]]) -> str:
    """Return the template with each line `$PART` replaced by the lines of that part, indented alike."""
    return re.sub(r"^( *)\$(\w+)$", lambda m: "\n".join(m[1] + line for line in parts[m[2]]), template, flags=re.M)


class _Translator(ast.NodeTransformer):
    """Translate formulas into statements: `divide` for the operator /, the base's value for y, and each distinct call
    only once for all bases, because the compiler does not eliminate common calls."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.known: dict[str, str] = {}
        self.value = ""

    def assign(self, name: str, formula: str) -> None:
        self.lines.append(f"{name} = {ast.unparse(self.visit(ast.parse(formula, mode='eval')))}")

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self.value) if node.id == "y" else node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        if isinstance(node.op, ast.Div):
            return self.visit_Call(ast.Call(ast.Name("divide"), [node.left, node.right], []))
        self.generic_visit(node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.Name:
        node.args = [self.visit(argument) for argument in node.args]
        text = ast.unparse(node)
        if text not in self.known:
            self.known[text] = f"word{len(self.known)}"
            self.lines.append(f"{self.known[text]} = {text}")
        return ast.Name(self.known[text])


def formulas(bases: tuple[Base, ...]) -> tuple[list[str], list[str]]:
    """Return the statements that compute the values y0, y1, ..., and those that compute the slopes s0, s1, ..."""
    translator = _Translator()
    for i, base in enumerate(bases):
        if base.formula is None:
            raise ValueError(f"base function {base.name!r} has no formula, so there is no kernel for it")
        translator.assign(f"y{i}", base.formula.value)
    values, translator.lines = translator.lines, []
    for i, base in enumerate(bases):
        translator.value = f"y{i}"
        translator.assign(f"s{i}", base.formula.slope if base.formula else "")
    return values, translator.lines


# Raw numbers to coefficients: the functions of `coefficients.py` on named numbers (a few scalars, or a row of columns).


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


_PARAMETRIZATIONS = {
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


_PULLBACKS = {
    "given": _keep,
    "recentred": _centre,
    "free": _against_last,
    "softmax": _softmax_pullback,
    "projection": _centre,
    "clamped": _keep,
    "softplus": _softplus_pullback,
}


_TEMPLATE = """
@triton.jit
def forward(
    x_ptr, raw_ptr, y_ptr, outer, inner, width, span, tiles, tiles_across, splits,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, BY_COLUMN: tl.constexpr, EVEN: tl.constexpr, ONE_TILE: tl.constexpr,
    BIG: tl.constexpr,
):
    $PROLOGUE
    $COEFFICIENTS
    if ONE_TILE:
        tile = split
        $FORWARD
    else:
        for tile in range(split, tiles, splits):
            $FORWARD


@triton.jit
def backward(
    dy_ptr, x_ptr, raw_ptr, dx_ptr, partial_ptr, outer, inner, width, span, tiles, tiles_across, splits, stride_n,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, BY_COLUMN: tl.constexpr, EVEN: tl.constexpr, ONE_TILE: tl.constexpr,
    BIG: tl.constexpr, EARLY: tl.constexpr,
):
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    $PROLOGUE
    $COEFFICIENTS
    $ZERO
    if ONE_TILE:
        tile = split
        $BACKWARD
    else:
        for tile in range(split, tiles, splits):
            $BACKWARD
    if BY_COLUMN:
        $STORE_COLUMNS
    else:
        $STORE_SCALARS


@triton.jit
def reduce(
    partial_ptr, raw_ptr, out_ptr, count, splits, inner, width, stride_n,
    BLOCK: tl.constexpr, BY_COLUMN: tl.constexpr, EARLY: tl.constexpr,
):
    if EARLY:
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0)
    $ZERO_TOTALS
    for start in range(0, count, BLOCK):
        index = start + tl.arange(0, BLOCK)
        inside = index < count
        at = (index // inner) * width + row * inner + index % inner if BY_COLUMN else row * splits + index
        $ADD_TOTALS
    $TOTALS
    $COEFFICIENTS
    $PULL
    $STORE_RAW
"""

_PROLOGUE = """
split = tl.program_id(0) % splits
lane = tl.program_id(0) // splits
rows = tl.arange(0, ROWS)[:, None]
columns = tl.arange(0, COLUMNS)[None, :]
if BY_COLUMN:
    in_width = lane * span + columns < width
    row = tl.where(in_width, lane * span + columns, 0) // inner
else:
    in_width = columns >= 0
    row = lane
"""

_TILE = """
down = (tile // tiles_across) * ROWS
across = tile % tiles_across
if BIG:
    down = down.to(tl.int64)
    across = across.to(tl.int64)
across *= COLUMNS
start = down * width + lane * span + across
at = rows * width + columns
if EVEN:
    inside = tl.full([ROWS, COLUMNS], True, tl.int1)
else:
    inside = (down + rows < outer) & (across + columns < span) & in_width
"""
