"""Generate the C source of the CPU kernels of given bases, from the template combine.c."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

from hullo.bases import Base
from hullo.kernels.codegen import Translator, fill, levels

_SHORTER = {
    r"exp\(minimum\(x, 0\.0\)\)": "exp_below(x)",
    r"expm1\(minimum\(x, 0\.0\)\)": "expm1_below(x)",
    r"tanh\(positive_part\(x\) \+ log1p\(exp\(-1\.0 \* abs\(x\)\)\)\)": "tanh_softplus(x)",
    r"log1p\(0\.5 \* expm1\(-(\S+) \* abs\(x\)\)\)": r"log_mean_exp_minus(\1 * abs(x))",
    r"log1p\(exp\(-(\S+) \* abs\(x\)\)\)": r"log1p_exp_minus(\1 * abs(x))",
    r"exp\(-(\S+) \* (abs|square)\(x\)\)": r"exp_minus(\1 * \2(x))",
    r"minimum\(abs\(x\), ([\d.]\S*)\)": r"cap(abs(x), \1)",
}
"""Parts of formulas, as regular expressions, for which there are C functions. Most are computed from exp(-|x|), which
other functions need as well."""

_LOSE_NAN = {
    *("cap", "erf", "exp_below", "exp_minus", "expm1_below", "log1p_exp_minus", "log_mean_exp_minus", "normal_pdf"),
    *("normal_tail", "positive_part", "sigmoid", "tanh", "tanh_softplus"),
}
"""C functions that return a number for NaN. Formulas have a value everywhere, so that only x can be NaN."""


class _CTranslator(Translator):
    """Translate formulas into statements of C: numbers are floats, and functions have the prefix `f_`."""

    def assign(self, name: str, formula: ast.expr) -> None:
        text = ast.unparse(_Simplifier().visit(formula))
        for long, short in _SHORTER.items():
            text = re.sub(long, short, text)
        super().assign(name, ast.parse(text, mode="eval").body)

    def statement(self, name: str, value: str) -> str:
        return f"const float {name} = {value};"

    def visit_Constant(self, node: ast.Constant) -> ast.Name:  # noqa: N802  (the name that ast asks for)
        return ast.Name(_number(float(ast.unparse(node))))

    def visit_Call(self, node: ast.Call) -> ast.Name:  # noqa: N802
        assert isinstance(node.func, ast.Name)  # noqa: S101  (formulas call functions by name)
        name, careful = node.func.id, ast.Name("careful")
        if name == "asinh":  # of a number that may be large, unless it is x
            node.args.append(careful if isinstance(node.args[0], ast.Name) else ast.Name("1"))
        call = ast.Call(ast.Name(f"f_{name}"), node.args, [])
        word = super().visit_Call(call)
        if name in ("sin", "cos"):
            self.lines.append(f"CHECK({ast.unparse(call.args[0])})")
        if name in _LOSE_NAN:
            return super().visit_Call(ast.Call(ast.Name("keep_nan"), [call.args[0], word], []))
        return word


class _Simplifier(ast.NodeTransformer):
    """Rewrite formulas with fewer operations: the numbers of a product become one, x * x is square(x), and 1 + tanh(x)
    is 2 * sigmoid(2 * x), which has relative precision also where it vanishes."""

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        return _product([ast.Constant(-1.0), node.operand]) if isinstance(node.op, ast.USub) else node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        match node:
            case ast.BinOp(left=ast.Constant(value=1), op=ast.Add(), right=right) if double := _double_of_tanh(right):
                return _product([ast.Constant(2.0), _call("sigmoid", double)])
            case ast.BinOp(
                left=ast.Constant(value=1), op=ast.Sub(), right=ast.Call(func=ast.Name("square"), args=[a])
            ) if double := _double_of_tanh(a):
                sigmoid = _call("sigmoid", double)
                return _product([ast.Constant(4.0), sigmoid, ast.BinOp(ast.Constant(1.0), ast.Sub(), sigmoid)])
            case ast.BinOp(op=ast.Div(), right=ast.Constant(value=float() | int() as divisor)) if (
                1e-30 < abs(divisor) < 1e30
            ):
                return _product([node.left, ast.Constant(1 / divisor)])
            case ast.BinOp(op=ast.Mult()):
                return _product([node])
        return node


def _double_of_tanh(expression: ast.expr) -> ast.expr | None:
    """Return 2a for tanh(a) if a is a product, which has a number as a factor already; else None."""
    match expression:
        case ast.Call(func=ast.Name("tanh"), args=[ast.BinOp(op=ast.Mult()) as argument]):
            return _product([ast.Constant(2.0), argument])
    return None


def _call(name: str, argument: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name), [argument], [])


def _product(factors: list[ast.expr]) -> ast.expr:
    """Return a product with one number at most, which becomes part of the constants of a sum where there is one."""
    number, others, pending = 1.0, list[ast.expr](), factors[::-1]
    while pending:
        match pending.pop():
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                pending += [right, left]
            case ast.Constant(value=float() | int() as value):
                number *= value
            case factor:
                others.append(factor)
    if not 1e-30 < abs(number) < 1e30:
        return functools.reduce(_times, factors)
    xs = [factor for factor in others if isinstance(factor, ast.Name) and factor.id == "x"]
    rest = [factor for factor in others if factor not in xs]
    others = [_call("square", ast.Name("x"))] * (len(xs) // 2) + xs[: len(xs) % 2] + rest
    for i, other in enumerate(others):
        match other:
            case ast.BinOp(
                left=ast.Constant(value=float() | int() as a),
                op=ast.Add(),
                right=ast.BinOp(left=ast.Constant(value=float() | int() as b), op=ast.Mult(), right=term),
            ) if number != 1:
                others[i] = ast.BinOp(ast.Constant(number * a), ast.Add(), _times(ast.Constant(number * b), term))
                number = 1.0
    if number != 1 or not others:
        others.insert(0, ast.Constant(number))
    return functools.reduce(_times, others)


def _times(a: ast.expr, b: ast.expr) -> ast.expr:
    return ast.BinOp(a, ast.Mult(), b)


def c_source(bases: tuple[Base, ...], bfloat16: bool) -> str:
    """Return the source of a library with the function `run`, for tensors in float32 or bfloat16."""
    n = len(bases)
    (values, by_value), (slopes, by_slope) = levels(bases, 0, 2, _CTranslator())
    sums = ", ".join(f"sum{i}" for i in range(n))
    return fill(
        _template(),
        {
            "DEFINITIONS": [f"#define BFLOAT16 {int(bfloat16)}", f"#define BASES {n}"],
            "CHECKS": [*values, *slopes],
            "VALUES": values,
            "SLOPES": slopes,
            "COMBINED": [f"const float y = {_combine('y', by_value)};"],
            "GRADIENT": [f"const float dx = dy * ({_combine('s', by_slope)});"],
            "ZERO": [f"float sum{i} = 0.0f;" for i in range(n)],
            "SIMD": [f"#pragma omp simd reduction(max:largest) reduction(+:{sums})"],
            "ADD": [f"sum{i} += dy * y{i};" for i in range(n)],
            "ADD_BY_COLUMN": [f"sums[{i} * TILE + j] += dy * y{i};" for i in range(n)],
            "STORE": [f"sums[{i}] = sum{i};" for i in range(n)],
            "SCALE_TOTALS": [
                f"for (long g = 0; g < groups; g++) total[g * BASES + {i}] *= {factor!r};"
                for i, factor in enumerate(by_value)
                if factor != 1
            ],
        },
    )


def _combine(letter: str, factors: list[float]) -> str:
    """Return the sum of coefficients times factors times values (y) or slopes (s)."""
    return " + ".join(
        f"c[{i} * width + j * by_column] * {_number(factor)} * {letter}{i}" for i, factor in enumerate(factors)
    )


def _number(value: float) -> str:
    return f"{value!r}f"


@functools.cache
def _template() -> str:
    return Path(__file__).with_name("combine.c").read_text(encoding="utf-8")
