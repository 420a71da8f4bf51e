"""Sums of terms that several bases share, for compute-bound kernels in 16 bits.

A formula is read as a sum of constants times *terms*: GELU is relu(x) - m * normal_tail(m), where m = |x|. Terms that
several bases have are computed and added up once: in a hull with ReLU, GELU costs m * normal_tail(m) alone. There are
as many terms as bases, so the gradients of the coefficients follow from as many sums.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence

from hullo.bases import Base
from hullo.kernels.codegen import Translator, over_tiles, store, store_sums

Terms = dict[str, float]  # the factor of each term, by its text

_MAGNITUDE = "magnitude(x) * "

# GELU and SiLU as ReLU and a rest that depends on |x| alone, and their slopes. magnitude(x) is |x|, bounded so that the
# rest of an infinity is zero; flip(w) is w where x > 0, and -w elsewhere.
_RESTS = {
    "gelu": ("normal_tail_of_magnitude(m)", "normal_slope(m)"),
    "silu": ("logistic_tail(m)", "logistic_tail(m) - m * (logistic_tail(m) - square(logistic_tail(m)))"),
}


def split(expression: ast.expr) -> Terms:
    """Return an expression as a sum of terms; the term of a number is "1.0"."""
    match expression:
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _sum(split(left), split(right))
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return _sum(split(left), _times(-1.0, split(right)))
        case ast.BinOp(left=ast.Constant(value=int() | float() as factor), op=ast.Mult(), right=rest):
            return _times(factor, split(rest))
        case ast.BinOp(left=rest, op=ast.Mult(), right=ast.Constant(value=int() | float() as factor)):
            return _times(factor, split(rest))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _times(-1.0, split(operand))
        case ast.Constant(value=int() | float() as number):
            return {"1.0": float(number)}
    return {ast.unparse(expression): 1.0}


def _sum(a: Terms, b: Terms) -> Terms:
    return a | {term: a.get(term, 0.0) + factor for term, factor in b.items()}


def _times(number: float, terms: Terms) -> Terms:
    return {term: number * factor for term, factor in terms.items()}


def value_terms(bases: Sequence[Base]) -> list[Terms]:
    """Return the terms of every base: not more different ones than there are bases."""
    sums = [split(_parse(value)) for value, _ in map(_formulas, bases)]
    known = {term for terms in sums if len(terms) == 1 for term in terms}
    found = []
    for item, terms in zip(bases, sums, strict=True):
        if len(terms) > 1 and not (_rest_of(item) and len(terms.keys() - known) == 1):
            terms = {_formulas(item)[0]: 1.0}
        known |= terms.keys()
        found.append(terms)
    return found


def slope_terms(bases: Sequence[Base]) -> list[Terms]:
    """Return the terms of the slope of every base."""
    return [split(_parse(slope)) for _, slope in map(_formulas, bases)]


def _formulas(item: Base) -> tuple[str, str]:
    """Return the formulas of value and slope in terms of x."""
    if item.formula is None:
        raise ValueError(f"base function {item.name!r} has no formula, so there is no kernel for it")
    if not (texts := _rest_of(item)):
        return item.formula.value, item.formula.derivative(1)
    rest, slope = (text.replace("(m)", "(magnitude(x))").replace("m *", "magnitude(x) *") for text in texts)
    factor = 2.0 if item.name.startswith("unit_") else 1.0  # the slope of both at zero is one half
    return f"{factor} * (positive_part(x) - magnitude(x) * {rest})", f"{factor} * (step(x) - flip({slope}))"


def _rest_of(item: Base) -> tuple[str, str] | None:
    return _RESTS.get(item.name.removeprefix("unit_"))


def _parse(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def kernel_parts(bases: Sequence[Base], by_table: bool = False) -> dict[str, list[str]]:
    """Return the parts of :func:`hullo.kernels.codegen.kernel_source` that compute with shared terms. If `by_table`,
    slopes come from a table: see :mod:`hullo.kernels.slope_table`."""
    c = [f"c{i}" for i in range(len(bases))]
    rows, slopes = value_terms(bases), _combine(slope_terms(bases), c)
    values = _combine(rows, c)
    negative, steps = slopes.pop("1.0", "0.0"), slopes.pop("step(x)", "0.0")
    flips = {term: slopes.pop(term) for term in tuple(slopes) if term.startswith("flip(")}
    factors = {f"k{i}": factor for i, factor in enumerate((*values.values(), *flips.values(), *slopes.values()))}
    factors |= {"at_negative": negative, "at_positive": f"at_negative + {steps}"}
    terms, count, middle = list(values), len(values), len(values) + len(flips)
    forward, backward = Translator(), Translator()
    for i, term in enumerate(terms):
        for translator in (forward, backward):
            translator.assign(f"y{i}", _parse(term.removeprefix(_MAGNITUDE)))
    rests = [i for i, term in enumerate(terms) if term.startswith(_MAGNITUDE)]
    others = _weighted_sum(i for i in range(count) if i not in rests)
    forward.assign("y", _parse(f"{others} + {_MAGNITUDE}({_weighted_sum(rests)})" if rests else others))
    if rests:
        backward.assign("dm", _parse(f"{_MAGNITUDE}dy"))
    work, backward.lines = backward.lines, []
    for i, term in enumerate((*flips, *slopes), count):
        slope = re.sub(r"^flip", "", _compare(term))
        if slope == "(normal_slope(magnitude(x)))":  # which takes its coefficient
            backward.assign(f"s{i}", _parse(f"normal_slope(magnitude(x), k{i})"))
        else:
            backward.assign(f"s{i}", _parse(f"k{i} * ({slope})"))
    odd, rest = (
        " + ".join(f"s{i}" for i in indices) or "0.0"
        for indices in (range(count, middle), range(middle, len(factors) - 2))
    )
    by_sign = f"select_by_sign(x, at_positive, at_negative, {odd})" if flips or steps != "0.0" else "at_negative"
    slope, table = f"{by_sign} + {rest}", []
    if by_table:
        slope, table = f"slope_by_table(table, x, {', '.join(c)})", [f"table = make_table({', '.join(c)})"]
    else:
        work += backward.lines
    products = [f"{'dm' if i in rests else 'dy'} * y{i}" for i in range(count)]
    halves = _relu_and_identity(terms) if rests else None
    if halves:  # relu(x) is half of |x| and half of x, whose sums are there
        products[halves[0]] = "dm"
    sums = [f"sum{i} += add_up({product}, PER_SUM)" for i, product in enumerate(products)]
    return {
        "TERMS": [f"{name} = {factor}" for name, factor in factors.items()],
        "FORWARD": over_tiles(["x"], [*forward.lines, store("y")]),
        "ZERO": [f"sum{i} = tl.zeros([ROWS, COLUMNS // PER_SUM], tl.float32)" for i in range(count)],
        "BACKWARD": [*table, *over_tiles(["x", "dy"], [*work, f"dx = dy * ({slope})", store("dx"), *sums])],
        "STORE_SUMS": store_sums([{terms.index(t): f for t, f in row.items()} for row in rows], count, halves),
    }


def _combine(rows: Sequence[Terms], coefficients: Sequence[str]) -> dict[str, str]:
    """Return the coefficient of every term, as text, in a combination of bases."""
    found: dict[str, list[str]] = {}
    for terms, c in zip(rows, coefficients, strict=True):
        for term, factor in terms.items():
            found.setdefault(term, []).append(f"{factor!r} * {c}")
    return {term: " + ".join(parts) for term, parts in found.items()}


def _weighted_sum(indices: Iterable[int]) -> str:
    return " + ".join(f"k{i} * y{i}" for i in indices) or "0.0"


def _compare(term: str) -> str:
    """Return a term with a comparison of the magnitude in the place of the step of a difference."""
    return re.sub(r"\bstep\((\d\d?(?:\.\d+)?) - abs\(x\)\)", r"below(magnitude(x), \1)", term)


def _relu_and_identity(terms: Sequence[str]) -> tuple[int, int] | None:
    """Return the places of relu(x) and of x among terms that have both."""
    return (terms.index("positive_part(x)"), terms.index("x")) if {"positive_part(x)", "x"} <= {*terms} else None
