"""Fused cells of recurrent layers compute what PyTorch's do; on the CPU they run in Triton's interpreter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")
from hullo.population.kernels.recurrence import GATES, Weights, run_direction

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALF = torch.bfloat16 if DEVICE == "cuda" else torch.float16  # the interpreter has no products in bfloat16
MEMBERS, TIME = 2, 3


RNNS = {"lstm": torch.lstm, "gru": torch.gru}


def run_alone(kind: str, x: Tensor, states: list[Tensor], weights: Weights, is_reversed: bool) -> list[Tensor]:
    """Return the results of a direction by PyTorch, in float32, of one member after the other."""
    each: list[list[Tensor]] = []
    for k in range(len(x)):
        own = [item[k].float() for item in weights if item is not None]
        begin = [state[k].float().unsqueeze(0) for state in states[: 2 if kind == "lstm" else 1]]
        steps = x[k].float().flip(0) if is_reversed else x[k].float()
        y, *last = RNNS[kind](
            steps, begin if len(begin) > 1 else begin[0], own, len(own) > 2, 1, 0.0, True, False, False
        )
        each.append([y.flip(0) if is_reversed else y, *(item.squeeze(0) for item in last)])
    return [torch.stack(items).to(x.dtype) for items in zip(*each, strict=True)]


def run(compute: Any, kind: str, tensors: list[Tensor], has_bias: bool, is_reversed: bool) -> list[Tensor]:
    """Return the results of a direction, and the gradients of all tensors."""
    leaves = [item.clone().requires_grad_() for item in tensors]
    x, state, memory, *parameters = leaves
    weights = Weights(*parameters[: 4 if has_bias else 2])
    results = compute(kind, x, [state, memory], weights, is_reversed)
    total = sum(
        (item * torch.linspace(-1, 1, item.numel(), device=item.device).view_as(item)).sum() for item in results
    )
    gradients = torch.autograd.grad(total, leaves, allow_unused=True)
    return [*results, *(item for item in gradients if item is not None)]


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
@pytest.mark.parametrize("is_reversed", [False, True])
@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("sizes", [(2, 3, 5), (17, 2, 40)])
def test_fused_time_steps_equal_those_of_pytorch(
    kind: str, has_bias: bool, is_reversed: bool, dtype: torch.dtype, sizes: tuple[int, int, int]
) -> None:
    batch, inputs, width = sizes
    gates = GATES[kind] * width
    parameters = [(gates, inputs), (gates, width), (gates,), (gates,)]
    shapes = [(TIME, batch, inputs), (batch, width), (batch, width), *parameters]
    tensors = [torch.randn(MEMBERS, *shape, device=DEVICE).div(shape[-1] ** 0.5).to(dtype) for shape in shapes]
    expected = run(run_alone, kind, [item.double() for item in tensors], has_bias, is_reversed)
    found = run(run_direction, kind, tensors, has_bias, is_reversed)
    # gates and states are rounded in each step
    tolerance = 1e-5 if dtype == torch.float32 else 3 * torch.finfo(dtype).eps
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == dtype
        assert (one.double() - other).norm() <= tolerance * other.norm()


def test_gradients_may_be_in_any_order() -> None:
    """Those of outputs with the batch first have rows that are apart."""
    shapes = [(TIME, 2, 3), (2, 5), (2, 5), (20, 3), (20, 5), (20,), (20,)]
    tensors = [torch.randn(MEMBERS, *shape, device=DEVICE) for shape in shapes]
    x, state, memory, *parameters = (item.requires_grad_() for item in tensors)
    y, *_ = run_direction("lstm", x, [state, memory], Weights(*parameters), False)
    dy = torch.randn(MEMBERS, 2, TIME, 5, device=DEVICE)
    apart = torch.autograd.grad(y, parameters, dy.transpose(1, 2), retain_graph=True)
    assert all(map(torch.equal, apart, torch.autograd.grad(y, parameters, dy.transpose(1, 2).contiguous())))


def test_the_memory_and_its_gradient_are_added_up_in_float32() -> None:
    """Each of 32 steps adds less than 16 bits can add to one."""
    time, step = 32, 1.5 * 2.0**-12
    bias = torch.tensor([[20.0, 20.0, step, 20.0]] * MEMBERS)  # all gates are open
    x, state, memory = torch.zeros(MEMBERS, time, 1, 1), torch.zeros(MEMBERS, 1, 1), torch.ones(MEMBERS, 1, 1)
    x, state, memory, bias = (item.to(DEVICE, HALF) for item in (x, state, memory, bias))
    zeros = torch.zeros(MEMBERS, 4, 1, dtype=HALF, device=DEVICE)
    memory.requires_grad_()
    y, _, last = run_direction("lstm", x, [state, memory], Weights(zeros, zeros, bias, torch.zeros_like(bias)), False)
    (found,) = torch.autograd.grad([y, last], memory, [torch.full_like(y, 2.0**-10), torch.ones_like(last)])
    levels = 1 + step * torch.arange(1, time + 1, dtype=torch.float64)
    expected = 1 + 2.0**-10 * (1 - levels.tanh().square()).sum()
    eps = torch.finfo(HALF).eps
    assert float((last.detach().double().cpu() - levels[-1]).abs().max()) <= eps
    assert float((found.double().cpu() - expected).abs().max()) <= eps
