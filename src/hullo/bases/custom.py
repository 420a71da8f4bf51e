"""Add base functions: Python functions, or formulas that every backend compiles."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from hullo._compat import real_tensors
from hullo.bases.base import Base, Formula, Slope, add_family, derivative_of, real_line, spell
from hullo.bases.formulas import FUNCTIONS, differentiate, fill_in
from hullo.bases.least_squares import Function

_NEAR_ZERO = 2.0**-40  # one side of 0, so near that curvature is negligible
_STEP = 1e-6  # of differences: small for functions that oscillate, large for those with rounding errors
_UNBOUNDED = 2.0**40  # slopes as large as this, up to 2^40 from the origin, have no bound


def add_base(
    name: str,
    function: Callable[..., Tensor] | str,
    derivative: Callable[..., Tensor] | None = None,
    parameters: Mapping[str, float] | None = None,
) -> Base:
    """Add your own base function to the catalogue; check it, and measure its properties in float64.

    Args:
        name: a new name, which hulls accept.
        function: ``f(x, **parameters)``, elementwise, with PyTorch operations; or a formula such as
            ``"x * exp(-square(x / width))"``, which the fused kernels and Keras use, too. A formula has x, numbers,
            the names of parameters, + - * /, and functions of x: abs, asinh, atan, clamp, cos, erf, exp, expm1, log1p,
            minimum, normal_pdf, positive_part, sigmoid, sin, sqrt, square, step, tanh and where, as in
            ``where(x < 0, a * x, x)``. It is differentiated symbolically.
        derivative: ``f'(x, **parameters)`` of a function; by default computed by automatic differentiation.
        parameters: names and default values; ``name(0.5)`` is then the function with another value.

    Example:
        >>> import torch, hullo
        >>> hullo.add_base("bump", lambda x, width: x * torch.exp(-(x / width).square()), parameters={"width": 1.0})
        Base(bump)
        >>> hullo.AffineHull("relu", "bump(2)")
        AffineHull(relu=0.5, bump(2)=0.5)
        >>> hullo.add_base("slow_tanh", "tanh(x * rate) / rate", parameters={"rate": 0.5}).formula.slope
        '(1 - square(tanh(x * 0.5))) * 0.5 / 0.5'
    """
    given = {} if parameters is None else parameters
    if not (isinstance(given, Mapping) and all(isinstance(value, (int, float)) for value in given.values())):
        raise TypeError(f"parameters={parameters!r}: give names and default values, as in {{'width': 1.0}}")
    if not (callable(function) or isinstance(function, str)):
        raise TypeError(f"function={function!r}: give a function of a tensor, or a formula such as 'tanh(x)'")
    if derivative is not None and (isinstance(function, str) or not callable(derivative)):
        raise TypeError(f"derivative={derivative!r}: give a function of a tensor, or omit it, as for a formula")

    @real_tensors()
    def make(**values: float) -> Base:
        spelled = spell(name, values)
        if isinstance(function, str):
            return _from_formula(spelled, fill_in(function, values))
        fixed = functools.partial(function, **values)
        if derivative is None:
            return _measure(spelled, fixed, _autograd_slope(fixed))
        slope = functools.partial(derivative, **values)
        return _measure(spelled, fixed, lambda x, y: slope(x))

    return add_family(name, make, {key: float(value) for key, value in given.items()})


def _from_formula(name: str, value: str) -> Base:
    formula = Formula(value, differentiate(value))
    function, slope = formula.functions(FUNCTIONS)
    measured = _measure(name, function, slope)
    x = torch.cat([real_line(), torch.arange(-16.0, 17.0, dtype=torch.float64)])  # poles are often at integers
    if bool(_autograd_slope(function)(x, x).isnan().any()):  # PyTorch also differentiates the branch not chosen
        raise ValueError(
            f"base function {name!r} has an infinite slope in a branch of where that is not chosen; limit the branch, "
            "as in where(x > 0, x, expm1(minimum(x, 0.0)))"
        )
    return dataclasses.replace(measured, formula=formula)


def _autograd_slope(function: Function) -> Slope:
    def slope(x: Tensor, y: Tensor) -> Tensor:
        vjp = torch.func.vjp(function, x)[1]
        result: Tensor = vjp(torch.ones_like(y))[0]
        return result

    return slope


def _measure(name: str, function: Function, slope: Slope) -> Base:
    origin = torch.tensor([0.0, -_NEAR_ZERO, _NEAR_ZERO], dtype=torch.float64)
    x = torch.cat([origin, real_line()])
    argument = x.clone()
    y = function(argument)
    if not isinstance(y, Tensor) or y.shape != x.shape or y.dtype != x.dtype:
        raise ValueError(f"base function {name!r} must return a tensor like its input, of the same shape and dtype")
    invalid = y.isnan() | (y.isinf() & (x.abs() < 1e-6))
    if bool(invalid.any()):
        raise ValueError(
            f"base function {name!r} must have a value everywhere, and a finite one at the origin, but "
            f"f({x[invalid][0]:.4g}) = {y[invalid][0]}"
        )
    part = (x > 0.5) & (x < 8)  # asymmetric, with another mean and sum than all of x
    again = function(x[part].flip(0)).flip(0)
    if not torch.equal(x, argument) or not torch.allclose(again, y[part], rtol=1e-9, atol=1e-12):
        raise ValueError(f"base function {name!r} must act on each entry alone, and must not change its input")
    slopes = derivative_of(function, slope, x)
    if slopes.shape != x.shape:
        raise ValueError(f"the derivative of base function {name!r} must return a tensor like its input, or a number")
    near = (x.abs() > 1e-3) & (x.abs() < 8)
    differences = (function(x + _STEP) - function(x - _STEP)) / (2 * _STEP)
    wrong = near & ~((slopes - differences).abs() <= 1e-5 * differences.abs().clamp_min(1))
    if int(wrong.sum()) <= 0.01 * int(near.sum()):  # there may be kinks between the points
        wrong = slopes.isnan()
    if bool(wrong.any()):
        raise ValueError(
            f"the derivative of base function {name!r} disagrees with its values: it is {slopes[wrong][0]:.4g} at "
            f"x = {x[wrong][0]:.4g}; give another derivative, or use functions that do not overflow, such as sigmoid"
        )
    slopes = torch.where(slopes.abs() > _UNBOUNDED, torch.inf * slopes, slopes)
    jumps = y[1:3] - y[0]  # at a jump, the slope is the quotient of differences
    left, right = torch.where(jumps.abs() > 1e-6, jumps / origin[1:], slopes[1:3]).tolist()
    return Base(
        name,
        function,
        slope,
        value_at_zero=y[0].item(),
        slopes_at_zero=(round(left, 9) + 0.0, round(right, 9) + 0.0),
        slope_bounds=(slopes.min().item(), slopes.max().item()),
        is_built_in=False,
    )
