"""Parts of a tensor have the gradients that PyTorch gives them, without a copy where these are parts of one tensor."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from hullo.population.rules import RULES, Context
from hullo.population.values import Value

aten = torch.ops.aten
CALLS: list[tuple[Any, tuple[Any, ...]]] = [
    (aten.unbind.int, (1,)),
    (aten.unbind.int, (-1,)),
    (aten.chunk.default, (2, 1)),
    (aten.split.Tensor, (3, -1)),
    (aten.split_with_sizes.default, ([1, 3], 1)),
]


def take_apart(operator: Any, x: Tensor, arguments: tuple[Any, ...]) -> list[Tensor]:
    numbers = torch.arange(len(x))
    values = RULES[operator](Context(len(x), numbers, numbers), Value(x, 0), *arguments)
    return [value.tensor for value in values]


class Inside(torch.autograd.Function):
    """Take parts, and give gradients that are the same parts of another tensor, in some order, or copies of these."""

    @staticmethod
    def forward(ctx: Any, are_parts: bool, step: int, *parts: Tensor) -> Tensor:
        ctx.are_parts, ctx.step = are_parts, step
        ctx.layout = [(part.shape, part.stride(), part.storage_offset()) for part in parts]
        return torch.stack([part.sum() for part in parts])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        memory = torch.arange(1000.0)
        parts = [memory.as_strided(*layout) for layout in ctx.layout][:: ctx.step]
        return None, None, *(parts if ctx.are_parts else [part.clone() for part in parts])


@pytest.mark.parametrize(("operator", "arguments"), CALLS)
def test_gradients_that_are_parts_of_one_tensor_are_not_copied(operator: Any, arguments: tuple[Any, ...]) -> None:
    x = torch.randn(2, 3, 4, 5).requires_grad_()
    found = []
    for are_parts in (True, False):
        whole = Inside.apply(are_parts, 1, *take_apart(operator, x, arguments)).sum()  # type: ignore[no-untyped-call]
        (slope,) = torch.autograd.grad(whole, x)
        found.append(slope)
        assert (slope.untyped_storage().nbytes() == 4000) is are_parts
    assert found[0].equal(torch.arange(120.0).view_as(x))
    assert found[1].equal(found[0])


@pytest.mark.parametrize(("operator", "arguments"), CALLS[:3])
def test_gradients_in_another_order_are_copied(operator: Any, arguments: tuple[Any, ...]) -> None:
    x = torch.randn(2, 3, 4, 5).requires_grad_()
    wholes = [Inside.apply(kind, -1, *take_apart(operator, x, arguments)).sum() for kind in (True, False)]  # type: ignore[no-untyped-call]
    found, expected = (torch.autograd.grad(whole, x)[0] for whole in wholes)
    assert found.equal(expected)


@pytest.mark.parametrize(("operator", "arguments"), CALLS)
def test_derivatives_of_any_order_are_those_of_pytorch(operator: Any, arguments: tuple[Any, ...]) -> None:
    x = torch.randn(2, 3, 4, 5, dtype=torch.float64).requires_grad_()
    first, second = take_apart(operator, x, arguments)[:2]
    plain = [torch.stack([one, other]) for one, other in zip(*(operator(row, *arguments) for row in x), strict=True)]
    assert first.equal(plain[0])
    assert second.equal(plain[1])
    slopes = [
        torch.autograd.grad((one.sin().sum() + other.sum() ** 2), x, create_graph=True)[0]
        for one, other in ((first, second), plain[:2])
    ]
    seconds = [torch.autograd.grad(slope.square().sum(), x)[0] for slope in slopes]
    torch.testing.assert_close(slopes[0], slopes[1])
    torch.testing.assert_close(seconds[0], seconds[1])
