"""The catalogue of base functions, each written as one formula.

An entry has the formulas of the value and the slope (see :class:`hullo.bases.Formula`), PyTorch's own function if there
is one, and properties such as the bounds of the slope. To add one, write its entry here, run the tests (they check
every property and every backend), and add it to the list in the documentation.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from hullo.bases.base import Base, Formula, check_parameter, family, get_base, spell
from hullo.bases.formulas import FUNCTIONS
from hullo.bases.least_squares import Function


def make_base(
    name: str,
    value: str,
    slope: str,
    native: Function | None = None,
    *,
    at_zero: tuple[float, float, float] = (0.0, 1.0, 1.0),
    bounds: tuple[float, float] = (0.0, 1.0),
    kinks: tuple[float, ...] = (),
    turns: tuple[float, ...] = (),
    is_wave: bool = False,
) -> Base:
    """Return a base from its formula; `at_zero` is the value and the slopes at 0- and 0+."""
    formula = Formula(value, slope)
    written, slope_function = formula.functions(FUNCTIONS)
    return Base(
        name, native or written, slope_function, at_zero[0], at_zero[1:], bounds, kinks, turns, is_wave, formula
    )


def add(*formula: Any, **facts: Any) -> None:
    """Add a base without parameters; the arguments are those of `make_base`."""
    _register(make_base(*formula, **facts))


def add_unit(name: str) -> None:
    """Add the unit form of a base without parameters."""
    _register(_unit(get_base(name)))


def _unit(raw: Base, **changes: Any) -> Base:
    """Return (f(x) - f(0)) / f'(0), with the slope from the right where the two sides differ."""
    text = raw.formula or Formula("", "")  # every entry of the catalogue has one
    offset, (left, right) = raw.value_at_zero, raw.slopes_at_zero
    low, high = raw.slope_bounds
    shifted = f"({text.value} - {offset!r})" if offset else f"({text.value})"
    facts: dict[str, Any] = {
        "value": f"{shifted} * {1 / right!r}",
        "slope": f"({text.slope}) * {1 / right!r}",
        "native": lambda x: (raw.function(x) - offset) / right if offset else raw.function(x) / right,
        "at_zero": (0.0, left / right, 1.0),
        "bounds": (low / right, high / right),
        "kinks": raw.kinks,
        "turns": raw.turns,
        "is_wave": raw.is_wave,
    }
    return make_base(f"unit_{raw.name}", **(facts | changes))


def _register(item: Base) -> None:
    def make() -> Base:
        return item

    make.__name__ = item.name
    family(make)


add("identity", "x", "1.0", lambda x: x, bounds=(1.0, 1.0))
add("relu", "positive_part(x)", "step(x)", torch.relu, at_zero=(0.0, 0.0, 1.0), kinks=(0.0,))
add("tanh", "tanh(x)", "1 - y * y", torch.tanh, turns=(0.0,))


@family
def leaky_relu(negative_slope: float = 0.01) -> Base:
    check_parameter("leaky_relu", "negative_slope", negative_slope)
    return make_base(
        spell("leaky_relu", {"negative_slope": negative_slope}),
        f"where(x < 0, {negative_slope} * x, x)",
        f"where(x > 0, step(x), {negative_slope})",
        lambda x: F.leaky_relu(x, negative_slope),
        at_zero=(0.0, negative_slope, 1.0),
        bounds=(min(negative_slope, 1.0), max(negative_slope, 1.0)),
        kinks=() if negative_slope == 1 else (0.0,),
    )


@family
def elu(alpha: float = 1.0) -> Base:
    check_parameter("elu", "alpha", alpha)
    return make_base(
        spell("elu", {"alpha": alpha}),
        f"where(x > 0, x, {alpha} * expm1(minimum(x, 0.0)))",
        f"where(x > 0, 1.0, {alpha} * exp(minimum(x, 0.0)))",
        lambda x: F.elu(x, alpha),
        at_zero=(0.0, alpha, 1.0),
        bounds=(min(alpha, 0.0), max(alpha, 1.0)),
        kinks=() if alpha == 1 else (0.0,),
    )


@family
def celu(alpha: float = 1.0) -> Base:
    check_parameter("celu", "alpha", alpha, positive=True)
    return make_base(
        spell("celu", {"alpha": alpha}),
        f"where(x > 0, x, {alpha} * expm1(minimum(x, 0.0) / {alpha}))",
        f"where(x > 0, 1.0, exp(minimum(x, 0.0) / {alpha}))",
        lambda x: F.celu(x, alpha),
    )


add("softsign", "x / (1 + abs(x))", "square(1 / (1 + abs(x)))", F.softsign, turns=(0.0,))
add("arctan", "atan(x)", "1 / (1 + x * x)", torch.atan, turns=(0.0,))
add("asinh", "asinh(x)", "1 / sqrt(1 + x * x)", torch.asinh, turns=(0.0,))


@family
def sin(frequency: float = 1.0) -> Base:
    """sin(frequency * x), as in SIREN with 30; slope one at the origin for the default frequency alone."""
    check_parameter("sin", "frequency", frequency, positive=True)
    return make_base(
        spell("sin", {"frequency": frequency}),
        "sin(x)" if frequency == 1 else f"sin({frequency} * x)",
        "cos(x)" if frequency == 1 else f"{frequency} * cos({frequency} * x)",
        lambda x: torch.sin(x if frequency == 1 else frequency * x),
        at_zero=(0.0, frequency, frequency),
        bounds=(-frequency, frequency),
        is_wave=True,
    )


add("hardtanh", "clamp(x, -1.0, 1.0)", "step(1 - abs(x))", F.hardtanh, kinks=(-1.0, 1.0))
add("relu6", "clamp(x, 0.0, 6.0)", "step(x) * step(6 - x)", F.relu6, at_zero=(0.0, 0.0, 1.0), kinks=(0.0, 6.0))

# Functions without value zero and slope one at the origin: each as it is, and normalized as unit_...

_GELU_SLOPES = (-0.1289041451851548, 1.1289041451851548)
_SILU_SLOPES, _SILU_TURN = (-0.09983932012886333, 1.0998393201288632), 2.3993572805154677
add(
    "gelu",
    "positive_part(x) - minimum(abs(x), 40.0) * normal_tail(x)",
    "where(x < 0, normal_tail(x), 1 - normal_tail(x)) + x * normal_pdf(x)",
    F.gelu,
    at_zero=(0.0, 0.5, 0.5),
    bounds=_GELU_SLOPES,
    turns=(-math.sqrt(2), math.sqrt(2)),
)
add_unit("gelu")

# GELU's approximation by tanh, as in GPT-2.
_GELU_TANH = f"tanh({math.sqrt(2 / math.pi)!r} * x * (1 + 0.044715 * x * x))"
add(
    "gelu_tanh",
    f"0.5 * x * (1 + {_GELU_TANH})",
    f"0.5 * (1 + {_GELU_TANH}) + {0.5 * math.sqrt(2 / math.pi)!r} * x * (1 - square({_GELU_TANH})) "
    "* (1 + 0.134145 * x * x)",
    lambda x: F.gelu(x, approximate="tanh"),
    at_zero=(0.0, 0.5, 0.5),
    bounds=(-0.12899306865877172, 1.1289930686587717),
    turns=(-1.4185040087908284, 1.4185040087908284),
)

# GELU's approximation by the sigmoid, x * sigmoid(1.702 x), as in CLIP.
add(
    "quick_gelu",
    "x * sigmoid(1.702 * x)",
    "sigmoid(1.702 * x) * (1 + 1.702 * x * (1 - sigmoid(1.702 * x)))",
    at_zero=(0.0, 0.5, 0.5),
    bounds=_SILU_SLOPES,
    turns=(-_SILU_TURN / 1.702, _SILU_TURN / 1.702),
)
add(
    "silu",
    "x * sigmoid(x)",
    "sigmoid(x) * (1 + x * (1 - sigmoid(x)))",
    F.silu,
    at_zero=(0.0, 0.5, 0.5),
    bounds=_SILU_SLOPES,
    turns=(-_SILU_TURN, _SILU_TURN),
)
add_unit("silu")

# tanh(softplus(x)) = s / (s + 2) with s = e^x (e^x + 2), which has no abs, and rounds to 1 from 20 on.
_EXP = "exp(minimum(x, 20.0))"
_MISH_S = f"{_EXP} * ({_EXP} + 2)"
_MISH_GATE = f"({_MISH_S} / ({_MISH_S} + 2))"
add(
    "mish",
    f"x * {_MISH_GATE}",
    f"{_MISH_GATE} + minimum(x, 20.0) * (4 * {_EXP} * ({_EXP} + 1) / square({_MISH_S} + 2))",
    F.mish,
    at_zero=(0.0, 0.6, 0.6),
    bounds=(-0.11252612238945403, 1.0884981612517242),
    turns=(-2.256376396360793, 1.4905711794854284),
)
add_unit("mish")


@family
def softplus(beta: float = 1.0) -> Base:
    check_parameter("softplus", "beta", beta, positive=True)
    return make_base(
        spell("softplus", {"beta": beta}),
        f"positive_part(x) + log1p(exp(-{beta} * abs(x))) * {1 / beta!r}",
        f"sigmoid({beta} * x)",
        lambda x: F.softplus(x, beta=beta),
        at_zero=(math.log(2) / beta, 0.5, 0.5),
    )


@family
def unit_softplus(beta: float = 1.0) -> Base:
    check_parameter("unit_softplus", "beta", beta, positive=True)
    # exact near 0, where the difference of softplus and its value at 0 is not; smooth at 0, as abs is not
    size = f"where(x < 0, {beta} * x, -{beta} * x)"
    text = f"2 * (where(x < 0, 0.0, x) + log1p(0.5 * expm1({size})) * {1 / beta!r})"
    return _unit(softplus(beta), value=text, native=None)


add("sigmoid", "sigmoid(x)", "y * (1 - y)", torch.sigmoid, at_zero=(0.5, 0.25, 0.25), bounds=(0.0, 0.25), turns=(0.0,))
add("unit_sigmoid", "2 * tanh(0.5 * x)", "1 - 0.25 * y * y", turns=(0.0,))

_SELU_SCALE = 1.0507009873554805
_SELU_SLOPE = 1.6732632423543772 * _SELU_SCALE  # at 0-
add(
    "selu",
    f"where(x > 0, {_SELU_SCALE} * x, {_SELU_SLOPE!r} * expm1(minimum(x, 0.0)))",
    f"where(x > 0, {_SELU_SCALE}, {_SELU_SLOPE!r} * exp(minimum(x, 0.0)))",
    F.selu,
    at_zero=(0.0, _SELU_SLOPE, _SELU_SCALE),
    bounds=(0.0, _SELU_SLOPE),
    kinks=(0.0,),
)
add_unit("selu")

_ERF_SLOPE = 2 / math.sqrt(math.pi)
add(
    "erf",
    "erf(x)",
    f"{_ERF_SLOPE!r} * exp(-x * x)",
    torch.erf,
    at_zero=(0.0, _ERF_SLOPE, _ERF_SLOPE),
    bounds=(0.0, _ERF_SLOPE),
    turns=(0.0,),
)
add_unit("erf")
add(  # the clamp in the slope is 1, but NaN for NaN
    "hardswish",
    "x * clamp(x + 3, 0.0, 6.0) * 0.16666666666666666",
    "where(x < 3, step(x + 3) * (x * 0.3333333333333333 + 0.5), clamp(x, 1.0, 1.0))",
    F.hardswish,
    at_zero=(0.0, 0.5, 0.5),
    bounds=(-0.5, 1.5),
    kinks=(-3.0, 3.0),
)
add_unit("hardswish")
add(
    "hardsigmoid",
    "clamp(x * 0.16666666666666666 + 0.5, 0.0, 1.0)",
    "step(3 - abs(x)) * 0.16666666666666666",
    None,  # F.hardsigmoid has no second derivative
    at_zero=(0.5, 1 / 6, 1 / 6),
    bounds=(0.0, 1 / 6),
    kinks=(-3.0, 3.0),
)

# The parts of activations that recent models learn (`hullo.presets` combines them): powers of ReLU, the negative
# branch of xIELU, and Snake. Powers have unbounded slopes.

# 1 everywhere: the learned offset of StarReLU and PolyReLU.
add("constant", "1.0 + minimum(abs(x), 0.0)", "0.0", at_zero=(1.0, 0.0, 0.0), bounds=(0.0, 0.0))
# ReLU squared, as in Primer and nanochat.
add("relu2", "square(positive_part(x))", "2 * positive_part(x)", at_zero=(0.0, 0.0, 0.0), bounds=(0.0, math.inf))
# ReLU cubed, the highest power of PolyReLU.
add(
    "relu3",
    "square(positive_part(x)) * positive_part(x)",
    "3 * square(positive_part(x))",
    at_zero=(0.0, 0.0, 0.0),
    bounds=(0.0, math.inf),
)
# xIELU's negative branch, exp(x) - 1 - x for x < 0, and 0 for x > 0.
add(
    "xielu_negative",
    "expm1(minimum(x, 0.0)) - minimum(x, 0.0)",
    "expm1(minimum(x, 0.0))",
    at_zero=(0.0, 0.0, 0.0),
    bounds=(-1.0, 0.0),
)


@family
def snake(frequency: float = 1.0) -> Base:
    """x + sin(frequency * x)^2 / frequency, as in neural vocoders and audio codecs."""
    check_parameter("snake", "frequency", frequency, positive=True)
    return make_base(
        spell("snake", {"frequency": frequency}),
        f"x + square(sin({frequency} * x)) * {1 / frequency!r}",
        f"1 + sin({2 * frequency} * x)",
        bounds=(0.0, 2.0),
        is_wave=True,
    )
