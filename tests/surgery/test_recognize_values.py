"""Test that functions that differ from an activation in values, gradients or dtype are not recognized as it.

Each kind of difference is generated: for any activation, at any place, by any amount.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from recognition import PLAIN, Function, assert_is_no_activation, assert_recognized, assert_refused, magnitudes, plain
from torch import Tensor


@pytest.mark.parametrize(("name", "function"), PLAIN.items())
def test_plain_functions_are_recognized(name: str, function: Function) -> None:
    assert_recognized(function, name)


MIXES: dict[str, Callable[[Tensor, float], Tensor]] = {
    "mean": lambda y, amount: y + amount * y.clamp(-9, 9).mean(),
    "mean of the batch": lambda y, amount: y + amount * y.clamp(-9, 9).mean(0),
    "mean of a row": lambda y, amount: y + amount * y.clamp(-9, 9).mean(-1, keepdim=True),
    "largest": lambda y, amount: y / (1 + amount * y.abs().max().clamp(max=9)),
    "norm": lambda y, amount: y / (1 + amount * y.clamp(-9, 9).norm(dim=-1, keepdim=True)),
    "neighbor": lambda y, amount: y + amount * y.clamp(-9, 9).roll(1, -1),
    "first row": lambda y, amount: y + amount * y[:1].clamp(-9, 9),
    "sum so far": lambda y, amount: y + amount * y.clamp(-9, 9).cumsum(0),
}


@given(plain, st.sampled_from(list(MIXES)), st.floats(-9, 0).map(lambda exponent: 10**exponent))
def test_mixing_entries_is_not_an_activation(item: tuple[str, Function], mix: str, amount: float) -> None:
    assert_is_no_activation(lambda x: MIXES[mix](item[1](x), amount))


SHAPES: dict[str, Function] = {
    "flatten": torch.flatten,
    "flatten from 1": lambda y: y.flatten(1),
    "rows": lambda y: y.reshape(len(y), -1),
    "transpose": lambda y: y.transpose(0, -1),
    "flip": lambda y: y.flip(0),
    "flip columns": lambda y: y.flip(-1),
    "sort": lambda y: y.sort(-1).values,
    "unsqueeze": lambda y: y.unsqueeze(0),
    "squeeze": lambda y: y[None].squeeze(),
    "flip large batches": lambda y: y.flip(0) if len(y) > 32 else y,
    "average images": lambda y: y.mean((2, 3), keepdim=True).expand_as(y) if y.dim() == 4 else y,
    "channels last": lambda y: y.movedim(1, -1) if y.dim() == 4 else y,
    "volumes": lambda y: y.flip(1) if y.dim() == 5 else y,
    "tuple": lambda y: (y,),  # type: ignore[dict-item, return-value]
    "integers": lambda y: y.long(),
}


@given(plain, st.sampled_from(list(SHAPES)), st.booleans())
def test_moving_entries_is_not_an_activation(item: tuple[str, Function], shape: str, first: bool) -> None:
    if first and shape not in ("tuple", "integers"):
        assert_is_no_activation(lambda x: item[1](SHAPES[shape](x)))
    else:
        assert_is_no_activation(lambda x: SHAPES[shape](item[1](x)))


CONDITIONS: dict[str, Callable[[Tensor], Any]] = {
    "none is negative": lambda x: x.min() >= 0,
    "none is positive": lambda x: x.max() <= 0,
    "all are small": lambda x: x.abs().max() < 1,
    "all are large": lambda x: x.abs().min() > 100,
    "all are zero": lambda x: not x.any(),
    "few": lambda x: x.numel() < 40,
    "many": lambda x: x.numel() > 100,
    "one dimension": lambda x: x.dim() == 1,
    "three dimensions": lambda x: x.dim() == 3,
}


@given(plain, st.sampled_from(list(CONDITIONS)))
def test_dependence_on_the_whole_input_is_not_an_activation(item: tuple[str, Function], condition: str) -> None:
    assert_is_no_activation(lambda x: item[1](x) * 2 + 1 if CONDITIONS[condition](x) else item[1](x))


@given(plain.filter(lambda item: item[0] not in ("tanh", "softsign")), magnitudes, st.booleans())
def test_distant_clamps_are_detected(item: tuple[str, Function], bound: float, of_input: bool) -> None:
    if of_input:
        assert_refused(lambda x: item[1](x.clamp(-bound, bound)), "catalogue")
    else:
        assert_refused(lambda x: item[1](x).clamp(-bound, bound), "catalogue")


@given(plain, st.floats(-60, 60), st.floats(-5, 0).map(lambda exponent: 10**exponent), st.floats(1e-5, 0.1))
def test_narrow_windows_are_detected_anywhere(
    item: tuple[str, Function], start: float, width: float, change: float
) -> None:
    end = start + width
    assert_refused(lambda x: torch.where((x > start) & (x < end), item[1](x) + change, item[1](x)))


@given(plain, st.floats(-60, 60), st.floats(0.05, 1), st.floats(1e-5, 0.1))
def test_wide_windows_are_detected_without_constants_in_the_code(
    item: tuple[str, Function], start: float, width: float, change: float
) -> None:
    hidden = {"init": torch.tensor([start, 0.0])}  # a tensor of two is no number that the code mentions
    assert_refused(
        lambda x: torch.where(
            (x - hidden["start"][0].to(x) - width / 2).abs() < width / 2, item[1](x) + change, item[1](x)
        )
    )


@given(plain, st.floats(-11, -1).map(lambda exponent: 10**exponent), st.sampled_from([-1, 1]), st.booleans())
def test_offsets_are_detected(item: tuple[str, Function], offset: float, sign: int, of_input: bool) -> None:
    if of_input:
        assert_refused(lambda x: item[1](x + sign * offset), "catalogue")
    else:
        assert_refused(lambda x: item[1](x) + sign * offset, "catalogue")


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("offset", [1e-7, -1e-6])
def test_internal_float32_offsets_are_detected(name: str, offset: float) -> None:
    assert_refused(lambda x: (PLAIN[name](x.float()) + offset).to(x.dtype), "catalogue")


@given(plain, st.floats(-5.5, -1).map(lambda exponent: 10**exponent))
def test_scales_are_detected(item: tuple[str, Function], amount: float) -> None:
    assert_refused(lambda x: item[1](x) * (1 + amount), "catalogue")


class Backward(torch.autograd.Function):
    """A function with a backward pass that somebody wrote."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, function: Function, change: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.save_for_backward(x)
        ctx.function, ctx.change = function, change
        return function(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            return ctx.change(torch.autograd.grad(ctx.function(x), x, gradient)[0]), None, None


BACKWARDS: dict[str, Callable[[Tensor], Tensor]] = {
    "reversed": torch.neg,
    "halved": lambda g: 0.5 * g,
    "scaled a little": lambda g: 1.0001 * g,
    "clipped": lambda g: g.clamp(-1, 1),
    "signs": torch.sign,
    "normalized": lambda g: g / g.norm().clamp_min(1e-6),
    "zero": torch.zeros_like,
    "noisy": lambda g: g + 1e-3,
}


@given(plain, st.sampled_from(list(BACKWARDS)), st.sampled_from([torch.float32, torch.float64, None]))
def test_different_gradients_are_detected(item: tuple[str, Function], change: str, only: torch.dtype | None) -> None:
    def function(x: Tensor) -> Tensor:
        changed = only in (None, x.dtype) and not (change == "scaled a little" and x.dtype == torch.float32)
        result: Tensor = Backward.apply(x, item[1], BACKWARDS[change] if changed else torch.clone)
        return result

    if (change, only) != ("scaled a little", torch.float32):  # which is rounding
        assert_refused(function, "gradient")


DETACHED: dict[str, Callable[[Function, Tensor], Tensor]] = {
    "straight through": lambda f, x: x + (f(x) - x).detach(),
    "detached": lambda f, x: f(x).detach(),
    "half detached": lambda f, x: 0.5 * f(x) + 0.5 * f(x).detach(),
    "without gradients": lambda f, x: torch.no_grad()(f)(x),
    "for some": lambda f, x: torch.where(x > 2, f(x).detach(), f(x)),
}


@given(plain, st.sampled_from(list(DETACHED)))
def test_detached_parts_are_detected(item: tuple[str, Function], kind: str) -> None:
    assert_refused(lambda x: DETACHED[kind](item[1], x))


@pytest.mark.parametrize(("name", "function"), PLAIN.items())
def test_correct_custom_backward_is_accepted(name: str, function: Function) -> None:
    assert_recognized(lambda x: Backward.apply(x, function, torch.clone), name)


SETTINGS: dict[str, Callable[[Tensor], Any]] = {
    "requires_grad": lambda x: x.requires_grad,
    "grad mode": lambda x: torch.is_grad_enabled(),
    "autocast": lambda x: torch.is_autocast_enabled("cpu"),
    "float64": lambda x: x.dtype == torch.float64,
    "float32": lambda x: x.dtype == torch.float32,
    "float16": lambda x: x.dtype == torch.float16,
    "bfloat16": lambda x: x.dtype == torch.bfloat16,
}


@given(plain, st.sampled_from(list(SETTINGS)))
def test_dependence_on_global_settings_is_rejected(item: tuple[str, Function], setting: str) -> None:
    assert_refused(lambda x: item[1](x) + 1 if SETTINGS[setting](x) else item[1](x))


@given(plain, st.sampled_from([torch.float64, torch.float32, torch.float16]))
def test_different_output_dtype_is_rejected(item: tuple[str, Function], dtype: torch.dtype) -> None:
    assert_refused(lambda x: item[1](x).to(dtype))
