"""Generate the C source of the CPU kernels of given bases, from the template combine.c."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

from hullo.bases import Base
from hullo.kernels.codegen import Translator, fill, levels

_SHORTER = {
    "exp(minimum(x, 0.0))": "exp_below(x)",
    "expm1(minimum(x, 0.0))": "expm1_below(x)",
    "tanh(positive_part(x) + log1p(exp(-abs(x))))": "tanh_softplus(x)",
}
"""Parts of formulas that C functions compute from exp(-|x|), which other functions need as well."""


class _CTranslator(Translator):
    """Translate formulas into statements of C: numbers are floats, and functions have the prefix `f_`."""

    def assign(self, name: str, formula: ast.expr) -> None:
        text = ast.unparse(formula)
        for long, short in _SHORTER.items():
            text = text.replace(long, short)
        super().assign(name, ast.parse(text, mode="eval").body)

    def statement(self, name: str, value: str) -> str:
        return f"const float {name} = {value};"

    def visit_Constant(self, node: ast.Constant) -> ast.Name:  # noqa: N802  (the name that ast asks for)
        return ast.Name(_number(float(ast.unparse(node))))

    def visit_Call(self, node: ast.Call) -> ast.Name:  # noqa: N802
        assert isinstance(node.func, ast.Name)  # noqa: S101  (formulas call functions by name)
        return super().visit_Call(ast.Call(ast.Name(f"f_{node.func.id}"), node.args, []))


def c_source(bases: tuple[Base, ...], bfloat16: bool) -> str:
    """Return the source of a library with the function `run`, for tensors in float32 or bfloat16."""
    n = len(bases)
    (values, by_value), (slopes, by_slope) = levels(bases, 0, 2, _CTranslator())
    has_waves = any(f"f_{name}(" in line for name in ("sin", "cos") for line in values + slopes)
    sums = ", ".join(f"sum{i}" for i in range(n))
    return fill(
        _template(),
        {
            "DEFINITIONS": [
                f"#define BFLOAT16 {int(bfloat16)}",
                f"#define HAS_WAVES {int(has_waves)}",
                f"#define BASES {n}",
            ],
            "VALUES": values,
            "SLOPES": slopes,
            "COMBINED": [f"const float y = {_combine('y', by_value)};"],
            "GRADIENT": [f"const float dx = dy * ({_combine('s', by_slope)});"],
            "ZERO": [f"float sum{i} = 0.0f;" for i in range(n)],
            "SIMD": [f"#pragma omp simd reduction(|:has_nan) reduction(+:{sums})"],
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
