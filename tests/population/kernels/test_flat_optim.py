"""One launch updates all parameters by a rule; on the CPU it runs in Triton's interpreter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

from hullo.population.kernels.flat_optim import Layout, Rule, adam, rmsprop, sgd, update  # noqa: E402

MEMBERS = 3
RULES: dict[str, tuple[Any, tuple[Any, ...], int]] = {
    "sgd": (sgd, (0.9, 0.0), 1),
    "nesterov": (sgd, (0.9, 1.0), 1),
    "rmsprop": (rmsprop, (0.75, 0.25, 0.125), 1),
    "adam": (adam, (0.1, 0.99, 0.01, 0.0, 0.125), 2),
    "adamw": (adam, (0.1, 0.99, 0.01, 1.0, 0.125), 2),
}
every_rule = pytest.mark.parametrize("name", RULES)


def make_rule(name: str, updates: int) -> Rule:
    function, settings, _ = RULES[name]
    if function is adam:
        corrections = torch.tensor([1 - 0.9**updates, (1 - 0.99**updates) ** 0.5], device=DEVICE)
        settings = (corrections, *settings)
    return Rule(function, settings)


def oracle(name: str, updates: int, w: Tensor, u: Tensor, v: Tensor, g: Tensor, rate: Tensor, decay: Tensor) -> Any:
    """Return a step of the formula in float64."""
    if name in ("sgd", "nesterov"):
        g = g + decay * w
        u = 0.9 * u + g
        return w - rate * (g + 0.9 * u if name == "nesterov" else u), u, v
    if name == "rmsprop":
        g = g + decay * w
        u = 0.75 * u + 0.25 * g**2
        return w - rate * g / (u.sqrt() + 0.125), u, v
    w, g = (w * (1 - rate * decay), g) if name == "adamw" else (w, g + decay * w)
    u, v = 0.9 * u + 0.1 * g, 0.99 * v + 0.01 * g**2
    root = (v / (1 - 0.99**updates)).sqrt() + 0.125
    return w - rate * u / (1 - 0.9**updates) / root, u, v


class Case:
    """Parameters of different orders in memory, with their buffers."""

    def __init__(self, name: str, copies: torch.dtype | None = None) -> None:
        images = (
            torch.randn(2 * MEMBERS, 5, 3, 3).contiguous(memory_format=torch.channels_last).view(MEMBERS, 2, 5, 3, 3)
        )
        start = [images, torch.randn(MEMBERS, 7, 400).mT, torch.randn(MEMBERS, 3)]
        self.start = [tensor.to(DEVICE) for tensor in start]
        self.layout = Layout(self.start)
        self.values = self.layout.buffer(torch.float32)
        for view, tensor in zip(self.layout.views(self.values), self.start, strict=True):
            view.copy_(tensor)
        self.state = [self.layout.buffer(torch.float32) for _ in range(RULES[name][2])]
        self.copies = None if copies is None else self.layout.buffer(copies)
        self.rates, self.decays = (torch.rand(len(self.start), MEMBERS, device=DEVICE) for _ in range(2))
        self.scale = torch.tensor([0.5, 2.0, 1.0], device=DEVICE)

    def step(self, name: str, updates: int, gradients: list[Tensor]) -> None:
        update(
            self.layout, self.values, self.state, gradients, rates=self.rates, decays=self.decays,
            rule=make_rule(name, updates), scale=self.scale, copies=self.copies,
        )  # fmt: skip


def beside(numbers: Tensor, tensor: Tensor) -> Tensor:
    return numbers.double().view(-1, *[1] * (tensor.dim() - 1))


@every_rule
def test_it_takes_the_steps_of_the_formula(name: str) -> None:
    case = Case(name)
    w = [tensor.double() for tensor in case.start]
    u, v = ([torch.zeros_like(tensor) for tensor in w] for _ in range(2))
    for updates in range(1, 4):
        gradients = [torch.randn_like(tensor) for tensor in case.start]
        case.step(name, updates, gradients)
        for i, gradient in enumerate(gradients):
            scaled = gradient.double() * beside(case.scale, gradient)
            settings = (beside(numbers[i], gradient) for numbers in (case.rates, case.decays))
            w[i], u[i], v[i] = oracle(name, updates, w[i], u[i], v[i], scaled, *settings)
        for found, expected in zip(case.layout.views(case.values), w, strict=True):
            torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    for buffer, expected_all in zip(case.state, (u, v), strict=False):
        for found, expected in zip(case.layout.views(buffer), expected_all, strict=True):
            torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


@every_rule
def test_a_gradient_in_another_order_or_at_an_odd_address_serves(name: str) -> None:
    one, other = Case(name), Case(name)
    other.values.copy_(one.values)
    other.rates, other.decays = one.rates, one.decays
    gradients = [torch.randn_like(tensor) for tensor in one.start]
    odd = [torch.empty(g.numel() + 1, device=DEVICE)[1:].view(g.shape).copy_(g) for g in gradients]
    one.step(name, 1, gradients)
    other.step(name, 1, odd)
    assert one.values.equal(other.values)


@every_rule
def test_a_member_that_is_not_finite_leaves_the_others_as_they_are(name: str) -> None:
    one, other = Case(name, torch.bfloat16), Case(name, torch.bfloat16)
    other.values.copy_(one.values)
    other.rates, other.decays = one.rates, one.decays
    gradients = [torch.randn_like(tensor) for tensor in one.start]
    one.step(name, 1, gradients)
    for gradient in gradients:
        gradient[1] = torch.nan
    other.step(name, 1, gradients)
    for buffer, sick in ((one.values, other.values), (one.copies, other.copies)):
        for sound, beside_it in zip(one.layout.views(buffer), other.layout.views(sick), strict=True):
            assert sound[0].equal(beside_it[0])
            assert sound[2].equal(beside_it[2])
            assert bool(beside_it[1].isnan().all())


def test_copies_are_the_new_values_rounded() -> None:
    case = Case("sgd", torch.bfloat16)
    case.step("sgd", 1, [torch.randn_like(tensor) for tensor in case.start])
    for copy, value in zip(case.layout.views(case.copies), case.layout.views(case.values), strict=True):
        if DEVICE == "cuda":
            assert copy.equal(value.bfloat16())
        else:  # the interpreter cuts off
            assert bool(((copy.float() - value).abs() <= value.abs() * 2.0**-7).all())


def test_what_does_not_fit_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"parameter 1 of shape \(2, 3\) .* call \.contiguous\(\)"):
        Layout([torch.zeros(2, 3), torch.zeros(3, 2).t()])
    case = Case("sgd")
    with pytest.raises(ValueError, match="3 parameters need as many gradients, got 1"):
        case.step("sgd", 1, case.start[:1])
    with pytest.raises(ValueError, match=r"float32 or bfloat16 of that shape, got torch\.float64"):
        case.step("sgd", 1, [tensor.double() for tensor in case.start])


@pytest.mark.gpu
@every_rule
def test_a_cuda_graph_replays_the_step(name: str) -> None:
    eager, graphed = Case(name, torch.bfloat16), Case(name, torch.bfloat16)
    graphed.values.copy_(eager.values)
    graphed.rates, graphed.decays = eager.rates, eager.decays
    gradients = [torch.randn_like(tensor) for tensor in eager.start]
    for case in (eager, graphed):
        case.step(name, 1, gradients)
    rule = make_rule(name, 1)  # its tensors are made outside of the graph
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        update(
            graphed.layout, graphed.values, graphed.state, gradients, rates=graphed.rates, decays=graphed.decays,
            rule=rule, scale=graphed.scale, copies=graphed.copies,
        )  # fmt: skip
    for _ in range(4):
        graph.replay()
        eager.step(name, 1, gradients)
    assert eager.values.equal(graphed.values)
    assert eager.copies.equal(graphed.copies)
