"""Check formulas, substitute their parameters, and differentiate them.

A formula is an expression in x with + - * /, comparisons, numbers, the names of parameters and calls of the functions
in :data:`FUNCTIONS`, which every backend defines.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_ROOT_HALF = math.sqrt(0.5)
_NORMAL_AT_0 = 1 / math.sqrt(2 * math.pi)


def _step(x: Tensor) -> Tensor:
    return torch.relu(x).sign()  # several times faster than a comparison and a conversion


def _normal_tail(x: Tensor) -> Tensor:
    return 0.5 * torch.erfc(_ROOT_HALF * torch.where(x < 0, -x, x))  # differentiated from the right at 0


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": torch.abs,
    "asinh": torch.asinh,
    "atan": torch.atan,
    "clamp": F.hardtanh,  # whose slope is 0 at the bounds, as in `_SPECIAL`
    "cos": torch.cos,
    "erf": torch.erf,
    "exp": torch.exp,
    "expm1": torch.expm1,
    "log1p": torch.log1p,
    "minimum": lambda x, most: torch.where(x >= most, most, x),  # slope 0 at the bound, likewise
    "normal_pdf": lambda x: _NORMAL_AT_0 * torch.exp(-0.5 * x * x),
    "normal_tail": _normal_tail,
    "positive_part": torch.relu,
    "sigmoid": torch.sigmoid,
    "sin": torch.sin,
    "sqrt": torch.sqrt,
    "square": torch.square,
    "step": _step,
    "tanh": torch.tanh,
    "where": torch.where,
}
"""The functions that a formula may call, in PyTorch. `step(x)` is 1 for x > 0 and 0 elsewhere. `normal_pdf(x)` is the
density of the standard normal distribution, `normal_tail(x)` the probability beyond |x|."""

_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div)

# The derivative of each function with respect to its first argument, as a formula in that argument, x.
_SLOPES = {
    "abs": "where(x < 0, -1.0, step(x))",
    "asinh": "1 / sqrt(1 + x * x)",
    "atan": "1 / (1 + x * x)",
    "clamp": "step(x - low) * step(high - x)",
    "cos": "-1 * sin(x)",
    "erf": "1.1283791670955126 * exp(-1 * x * x)",
    "exp": "exp(x)",
    "expm1": "exp(x)",
    "log1p": "1 / (1 + x)",
    "minimum": "step(most - x)",
    "normal_pdf": "-1 * x * normal_pdf(x)",
    "normal_tail": "where(x < 0, normal_pdf(x), -1 * normal_pdf(x))",
    "positive_part": "step(x)",
    "sigmoid": "sigmoid(x) * (1 - sigmoid(x))",
    "sin": "cos(x)",
    "sqrt": "0.5 / sqrt(x)",
    "square": "2 * x",
    "step": "0.0",
    "tanh": "1 - square(tanh(x))",
}
_ARITIES = dict.fromkeys(_SLOPES.keys() - {"normal_tail"}, 1) | {"clamp": 3, "minimum": 2}


def fill_in(text: str, parameters: Mapping[str, float]) -> str:
    """Return a formula with numbers in place of its parameters.

    Raises:
        ValueError: the text is not a formula, or contains something that not every backend supports.
    """
    try:
        tree = _parse(text)
    except SyntaxError as error:
        raise ValueError(f"invalid formula {text!r}: {error.msg}") from None
    _check(tree, {"x", *parameters}, text)
    numbers: dict[str, ast.expr] = {name: ast.Constant(float(value)) for name, value in parameters.items()}
    return ast.unparse(_Substitute(numbers).visit(tree))


def differentiate(text: str) -> str:
    """Return the formula of a formula's derivative."""
    return ast.unparse(_or_zero(_slope(_parse(text))))


def replace_y(slope: str, value: str) -> str:
    """Return the formula of a slope in terms of x alone, with the formula of the value in place of y."""
    return ast.unparse(_substitute(slope, _parse(value), "y"))


class _Substitute(ast.NodeTransformer):
    def __init__(self, values: Mapping[str, ast.expr]) -> None:
        self._values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._values.get(node.id, node)


def _check(node: ast.expr, names: set[str], text: str) -> None:
    match node:
        case ast.Name(id=name) if name in names:
            parts: list[ast.expr] = []
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            parts = []
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            parts = [operand]
        case ast.BinOp(left=left, op=op, right=right) if isinstance(op, _OPERATORS):
            parts = [left, right]
        case ast.Call(
            func=ast.Name(id="where"),
            args=[ast.Compare(left=left, ops=[ast.Lt() | ast.Gt()], comparators=[right]), yes, no],
        ) if _has_x(left) and not _has_x(right) and (_has_x(yes) or _has_x(no)):
            parts = [left, right, yes, no]
        case ast.Call(func=ast.Name(id=function), args=[first, *bounds], keywords=[]) if (
            _ARITIES.get(function) == 1 + len(bounds) and _has_x(first) and not any(map(_has_x, bounds))
        ):
            parts = [first, *bounds]
        case _:
            functions = ", ".join(sorted(_ARITIES))
            raise ValueError(
                f"the formula {text!r} contains {ast.unparse(node)!r}; valid are {', '.join(sorted(names))}, numbers, "
                f"+ - * /, functions of x whose bounds are numbers ({functions}), and where(x < number, ...) or "
                "where(x > number, ...) with x in a branch"
            )
    for part in parts:
        _check(part, names, text)


def _slope(node: ast.expr) -> ast.expr | None:
    """Return the derivative of an expression; None where it is zero."""
    match node:
        case ast.Name():
            return ast.Constant(1.0)
        case ast.Constant():
            return None
        case ast.UnaryOp(operand=operand):
            return _times(ast.Constant(-1.0), _slope(operand))
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _plus(_times(_slope(left), right), _times(left, _slope(right)))
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            bottom, quotient = _slope(right), _over(_slope(left), right)
            return _plus(quotient, _times(ast.Constant(-1.0), _times(_over(node, right), bottom)))
        case ast.BinOp(left=left, op=op, right=right):
            minus = isinstance(op, ast.Sub)
            return _plus(_slope(left), _times(ast.Constant(-1.0), _slope(right)) if minus else _slope(right))
        case ast.Call(func=ast.Name(id=function), args=args):
            if function == "where":
                return _slope_of_where(args)
            names = dict(zip(("x", "low", "high") if function == "clamp" else ("x", "most"), args, strict=False))
            return _times(_Substitute(names).visit(_parse(_SLOPES[function])), _slope(args[0]))
    raise TypeError(ast.unparse(node))  # `_check` lets nothing else through


def _has_x(node: ast.expr | None) -> bool:
    return node is not None and any(isinstance(part, ast.Name) and part.id == "x" for part in ast.walk(node))


def _slope_of_where(args: list[ast.expr]) -> ast.expr | None:
    yes, no, condition = _slope(args[1]), _slope(args[2]), args[0]
    if _has_x(yes) or _has_x(no):
        return _call("where", condition, _or_zero(yes), _or_zero(no))
    assert isinstance(condition, ast.Compare)  # noqa: S101  (`_check` lets nothing else through)
    low, high = condition.left, condition.comparators[0]
    if isinstance(condition.ops[0], ast.Gt):
        low, high = high, low
    holds = _call("step", ast.BinOp(high, ast.Sub(), low))
    return _plus(no, _times(ast.BinOp(_or_zero(yes), ast.Sub(), _or_zero(no)), holds))


def _substitute(text: str, argument: ast.expr, name: str = "x") -> ast.expr:
    """Return a formula with an expression in the place of x, or of another name."""
    substituted: ast.expr = _Substitute({name: argument}).visit(_parse(text))
    return substituted


def _parse(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _call(function: str, *args: ast.expr) -> ast.expr:
    return ast.Call(ast.Name(function), list(args), [])


def _times(a: ast.expr | None, b: ast.expr | None) -> ast.expr | None:
    if a is None or b is None:
        return None
    for one, other in ((a, b), (b, a)):
        if isinstance(one, ast.Constant) and one.value == 1:
            return other
    return ast.BinOp(a, ast.Mult(), b)


def _over(a: ast.expr | None, b: ast.expr) -> ast.expr | None:
    return None if a is None else ast.BinOp(a, ast.Div(), b)


def _plus(a: ast.expr | None, b: ast.expr | None) -> ast.expr | None:
    return ast.BinOp(a, ast.Add(), b) if a and b else a or b


def _or_zero(node: ast.expr | None) -> ast.expr:
    return ast.Constant(0.0) if node is None else node
