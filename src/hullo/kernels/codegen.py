"""Generate the source of a Triton kernel for given bases and a parametrization.

A tensor is viewed as (outer, groups, inner) in memory order. A *lane* is the part that one row of programs processes:
`span` adjacent columns of a matrix with groups * inner columns, either all columns of one group or, if groups are
narrow, columns of many groups, each with its own coefficients. A lane is divided into tiles of ROWS x COLUMNS; each of
`splits` programs takes every `splits`-th tile. In the backward pass a program accumulates the gradients of the
coefficients in registers, one sum for PER_SUM columns, and writes them once; `reduce` adds these partial sums in a
fixed order and pulls them back to the raw parameters. So x, dy and dx are read or written once, there are no atomic
additions, and results are bitwise reproducible. With EARLY, `reduce` is launched while `backward` still runs and waits
for its end, which hides most of the launch latency.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence

from hullo.bases import Base
from hullo.kernels.parametrization_code import PULLBACKS, TRANSFORMS
from hullo.parametrizations import BuiltInParametrization


def kernel_source(
    bases: tuple[Base, ...],
    parametrization: BuiltInParametrization,
    gated: bool = False,
    order: int = 0,
    changes: dict[str, list[str]] | None = None,
) -> str:
    """Return the text of the kernels `forward`, `backward` and `reduce`, of hull(x) or, if gated, of hull(x) * up; with
    an order, of the combined derivatives of the bases. Parts may be changed."""
    n = len(bases)
    raw = [f"r{i}" for i in range(n - parametrization.fewer)]
    c, g, d = ([f"{letter}{i}" for i in range(n)] for letter in "cgd")
    (values, by_value), (slopes, by_slope) = levels(bases, order, 2, Translator())
    load_raw = [f"{r} = tl.load(raw_ptr + row * {len(raw)} + {i}).to(tl.float32)" for i, r in enumerate(raw)]
    coefficients = load_raw + TRANSFORMS[parametrization.name](raw, c)
    scaled: list[str] = []  # coefficients times the constant factors of formulas, once for all elements

    def combine(letter: str, factors: list[float]) -> str:
        terms = []
        for i, factor in enumerate(factors):
            name = c[i] if factor == 1 else f"{c[i]}{letter}"
            if factor != 1:
                scaled.append(f"{name} = {c[i]} * {factor!r}")
            terms.append(f"{name} * {letter}{i}")
        return " + ".join(terms)

    combined, combined_slopes = combine("y", by_value), combine("s", by_slope)
    give_up = [
        f"dup = dy * ({combined})",
        store("dup"),
        "dy = dy * up",
    ]
    parts = {
        "PROLOGUE": _PROLOGUE.strip().splitlines(),
        "COEFFICIENTS": coefficients,
        "SCALED": scaled,
        "TERMS": [],
        "FORWARD": over_tiles(
            ["x", *(["up"] if gated else [])],
            [*values, f"y = ({combined}) * up" if gated else f"y = {combined}", store("y")],
        ),
        "ZERO": [f"sum{i} = tl.zeros([ROWS, COLUMNS // PER_SUM], tl.float32)" for i in range(n)],
        "BACKWARD": over_tiles(
            ["x", "dy", *(["up"] if gated else [])],
            [
                *values,
                *(give_up if gated else []),
                *slopes,
                f"dx = dy * ({combined_slopes})",
                store("dx"),
                *(f"sum{i} += add_up(dy * y{i}, PER_SUM)" for i in range(n)),
            ],
        ),
        "STORE_SUMS": store_sums([{i: factor} for i, factor in enumerate(by_value)], n),
        "ZERO_TOTALS": [f"t{i} = tl.zeros([BLOCK], tl.float64)" for i in range(n)],
        "ADD_TOTALS": [f"t{i} += tl.load(partial_ptr + {i} * stride_n + at, mask=inside, other=0.0)" for i in range(n)],
        "TOTALS": [f"g{i} = tl.sum(t{i}).to(tl.float32)" for i in range(n)],
        "PULL": PULLBACKS[parametrization.name](c, g, d),
        "STORE_RAW": [f"tl.store(out_ptr + row * {len(raw)} + {i}, {d[i]})" for i in range(len(raw))],
    }
    text = _TEMPLATE
    if gated:
        text = text.replace("x_ptr, raw_ptr,", "x_ptr, up_ptr, raw_ptr,").replace("dx_ptr,", "dx_ptr, dup_ptr,")
    return fill(text, parts | (changes or {}))


def over_tiles(inputs: list[str], work: list[str]) -> list[str]:
    """Return the statements that do some work on every tile of a program; with several STAGES, while the inputs of the
    next tiles are loaded."""
    lines = _TILE.strip().splitlines()
    for name in inputs:
        lines += [f"{name} = widen(load({name}_ptr + start + at, inside, whole, SINGLE))"]
    lines += work
    return [
        "if ONE_TILE:",
        "    tile = split",
        *(f"    {line}" for line in lines),
        "else:",
        "    for tile in tl.range(split, tiles, splits, num_stages=STAGES):",
        *(f"        {line}" for line in lines),
    ]


def store(name: str) -> str:
    return f"store({name}_ptr + start + at, {name}.to({name}_ptr.dtype.element_ty), inside, whole, SINGLE)"


def store_sums(rows: Sequence[Mapping[int, float]], count: int, halves: tuple[int, int] | None = None) -> list[str]:
    """Return the statements that store combinations of the `count` sums of a program, one row of factors per base: for
    each column, or one number. Of `halves`, the first sum is replaced by half of both."""
    lines = []
    for condition, total, to, mask in (
        ("if BY_COLUMN:", "tl.sum(sum{}, axis=0)[None, :]", "split * width + lane * span + columns", ", mask=in_width"),
        ("else:", "tl.sum(sum{})", "lane * splits + split", ""),
    ):
        lines += [condition, *(f"    t{i} = {total.format(i)}" for i in range(count))]
        if halves:
            lines += ["    t{0} = 0.5 * (t{0} + t{1})".format(*halves)]
        for i, row in enumerate(rows):
            sums = " + ".join(f"{factor!r} * t{n}" for n, factor in row.items())
            lines.append(f"    tl.store(partial_ptr + {i} * stride_n + {to}, {sums}{mask})")
    return lines


def fill(template: str, parts: dict[str, list[str]]) -> str:
    """Return the template with each line `$PART` replaced by the lines of that part, indented alike."""
    return re.sub(r"^( *)\$(\w+)$", lambda m: "\n".join(m[1] + line for line in parts[m[2]]), template, flags=re.M)


class Translator(ast.NodeTransformer):
    """Translate formulas into statements: `divide` for the operator /, the base's value for y, and each distinct call
    only once for all bases, because the compiler does not eliminate common calls."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.known: dict[str, str] = {}
        self.value = ""

    def assign(self, name: str, formula: ast.expr) -> None:
        self.lines.append(f"{name} = {ast.unparse(self.visit(formula))}")

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self.value) if node.id == "y" and self.value else node

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


def formulas(bases: tuple[Base, ...]) -> list[list[str]]:
    """Return the statements that compute the values y0, y1, ..., and those that compute the slopes s0, s1, ..."""
    return [lines for lines, _ in levels(bases, 0, 2, Translator(), factored=False)]


def levels(
    bases: tuple[Base, ...], order: int, count: int, translator: Translator, factored: bool = True
) -> list[tuple[list[str], list[float]]]:
    """Return the statements that compute derivatives of the bases of `count` orders: y0, y1, ..., then s0, s1, ...,
    then b0, b1, ..., then as `derivative_name` says. Beside them are constant factors that the statements leave out,
    unless `factored` is false."""
    found: list[tuple[list[str], list[float]]] = []
    for level in range(order, order + count):
        factors: list[float] = []
        for i, base in enumerate(bases):
            if base.formula is None:
                raise ValueError(f"base function {base.name!r} has no formula, so there is no kernel for it")
            in_y = order == 0 and level == 1 and found[0][1][i] == 1  # the slope may be written in terms of the value
            text = base.formula.slope if in_y else base.formula.derivative(level)
            whole = ast.parse(text, mode="eval").body
            factor, rest = _factor(whole) if factored else (1.0, whole)
            translator.value = f"y{i}"
            translator.assign(derivative_name(level - order, i), rest)
            factors.append(factor)
        found.append((translator.lines, factors))
        translator.lines = []
    return found


def derivative_name(order: int, base: int) -> str:
    """Return the name of a derivative of a base in the text of kernels."""
    return f"{'ysb'[order] if order < 3 else f'd{order}_'}{base}"


def _factor(expression: ast.expr) -> tuple[float, ast.expr]:
    """Split an expression into a constant factor and the rest."""
    match expression:
        case ast.BinOp(left=rest, op=ast.Mult(), right=ast.Constant(value=float() | int() as factor)):
            pass
        case ast.BinOp(left=ast.Constant(value=float() | int() as factor), op=ast.Mult(), right=rest):
            pass
        case _:
            return 1.0, expression
    inner, rest = _factor(rest)
    return factor * inner, rest


_TEMPLATE = """
@triton.jit
def forward(
    x_ptr, raw_ptr, y_ptr, outer, inner, width, span, tiles, tiles_across, splits,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, BY_COLUMN: tl.constexpr, EVEN: tl.constexpr, ONE_TILE: tl.constexpr,
    FLAT: tl.constexpr, SINGLE: tl.constexpr, BIG: tl.constexpr, STAGES: tl.constexpr,
):
    $PROLOGUE
    $COEFFICIENTS
    $SCALED
    $TERMS
    $FORWARD


@triton.jit
def backward(
    dy_ptr, x_ptr, raw_ptr, dx_ptr, partial_ptr, outer, inner, width, span, tiles, tiles_across, splits, stride_n,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, BY_COLUMN: tl.constexpr, EVEN: tl.constexpr, ONE_TILE: tl.constexpr,
    FLAT: tl.constexpr, SINGLE: tl.constexpr, BIG: tl.constexpr, STAGES: tl.constexpr,
    EARLY: tl.constexpr, PER_SUM: tl.constexpr,
):
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    $PROLOGUE
    $COEFFICIENTS
    $SCALED
    $TERMS
    $ZERO
    $BACKWARD
    $STORE_SUMS


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
if SINGLE:
    split = tl.program_id(0)
    lane = 0
else:
    split = tl.program_id(0) % splits
    lane = tl.program_id(0) // splits
rows = tl.arange(0, ROWS)[:, None]
columns = tl.arange(0, COLUMNS)[None, :]
at = rows * width + columns
if BY_COLUMN:
    in_width = lane * span + columns < width
    row = tl.where(in_width, lane * span + columns, 0) // inner
else:
    in_width = columns >= 0
    row = lane
"""

_TILE = """
if FLAT:
    down = 0
    across = tile
else:
    down = (tile // tiles_across) * ROWS
    across = tile % tiles_across
if BIG:
    down = tl.cast(down, tl.int64)
    across = across.to(tl.int64)
across *= COLUMNS
start = down * width + lane * span + across
whole = across + COLUMNS <= span
if EVEN:
    inside = tl.full([ROWS, COLUMNS], True, tl.int1)
else:
    inside = (down + rows < outer) & (across + columns < span) & in_width
"""
