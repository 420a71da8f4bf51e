"""One launch updates all parameters by a rule; on the CPU it runs in Triton's interpreter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

from hullo.population.kernels.flat_optim import Layout, Rule, _placed, adam, rmsprop, sgd, update  # noqa: E402

MEMBERS = 3
RULES: dict[str, tuple[Any, tuple[Any, ...], int]] = {
    "sgd": (sgd, (0.9, 0.0), 1),
    "nesterov": (sgd, (0.9, 1.0), 1),
    "rmsprop": (rmsprop, (0.75, 0.25, 0.125), 1),
    "adam": (adam, (math.log(0.9), math.log(0.99), 0.1, 0.99, 0.01, 0.0, 0.125), 2),
    "adamw": (adam, (math.log(0.9), math.log(0.99), 0.1, 0.99, 0.01, 1.0, 0.125), 2),
}
every_rule = pytest.mark.parametrize("name", RULES)


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
        self.own = [torch.rand(len(self.start), MEMBERS, device=DEVICE, dtype=torch.float64) for _ in range(2)]
        self.own[0][1], self.own[1][2, 1] = torch.nan, torch.nan
        self.rates, self.decays = (torch.rand(MEMBERS, device=DEVICE, dtype=torch.float64) for _ in range(2))
        self.factor = torch.tensor([2.0, 0.5, 1.5], device=DEVICE)
        self.scale = torch.tensor([0.5, 2.0, 1.0], device=DEVICE)

    def copy(self, other: Case) -> None:
        """Take the values and settings of another case."""
        self.values.copy_(other.values)
        self.rates, self.decays, self.own = other.rates, other.decays, other.own

    def settings(self, i: int) -> list[Tensor]:
        """Return the learning rates and weight decays of a parameter, one per member."""
        own = [numbers[i] for numbers in self.own]
        rate, decay = (torch.where(o.isnan(), n, o) for o, n in zip(own, (self.rates, self.decays), strict=True))
        return [rate * self.factor, decay]

    def step(self, name: str, counts: Tensor, gradients: Sequence[Tensor | None]) -> None:
        update(
            self.layout, self.values, self.state, gradients, rates=self.rates, decays=self.decays, own=self.own,
            counts=counts, rule=Rule(*RULES[name][:2]), factor=self.factor, scale=self.scale, copies=self.copies,
        )  # fmt: skip


def counts(updates: float) -> Tensor:
    return torch.full((3,), updates, dtype=torch.float64, device=DEVICE)


def beside(numbers: Tensor, tensor: Tensor) -> Tensor:
    return numbers.double().view(-1, *[1] * (tensor.dim() - 1))


@every_rule
def test_it_takes_the_steps_of_the_formula(name: str) -> None:
    """The second parameter has no gradient at first: it stays as it is, and its updates count from the next step."""
    case = Case(name)
    w = [tensor.double() for tensor in case.start]
    u, v = ([torch.zeros_like(tensor) for tensor in w] for _ in range(2))
    count = counts(0)
    for updates in range(1, 4):
        gradients: list[Tensor | None] = [torch.randn_like(tensor) for tensor in case.start]
        gradients[1] = None if updates == 1 else gradients[1]
        count += torch.tensor([gradient is not None for gradient in gradients], device=DEVICE)
        case.step(name, count, gradients)
        for i, gradient in enumerate(gradients):
            if gradient is not None:
                scaled = gradient.double() * beside(case.scale, gradient)
                settings = (beside(numbers, gradient) for numbers in case.settings(i))
                w[i], u[i], v[i] = oracle(name, int(count[i]), w[i], u[i], v[i], scaled, *settings)
        for found, expected in zip(case.layout.views(case.values), w, strict=True):
            torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    for buffer, expected_all in zip(case.state, (u, v), strict=False):
        for found, expected in zip(case.layout.views(buffer), expected_all, strict=True):
            torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


@every_rule
def test_a_gradient_in_another_order_or_at_an_odd_address_serves(name: str) -> None:
    one, other = Case(name), Case(name)
    other.copy(one)
    gradients = [torch.randn_like(tensor) for tensor in one.start]
    odd = [torch.empty(g.numel() + 1, device=DEVICE)[1:].view(g.shape).copy_(g) for g in gradients]
    placed = [_placed(g, *shape) for g, shape in zip(odd, one.layout.shapes, strict=True)]
    assert all(g.data_ptr() % 16 == 0 for g in placed)  # a GPU reads 16 bytes at a time
    one.step(name, counts(1), gradients)
    other.step(name, counts(1), odd)
    assert one.values.equal(other.values)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_of_some_parameters_may_be_in_halves(dtype: torch.dtype) -> None:
    one, other = Case("sgd"), Case("sgd")
    other.copy(one)
    gradients = [torch.randn_like(tensor).to(dtype) for tensor in one.start]
    one.step("sgd", counts(1), [gradients[0].float(), gradients[1], gradients[2].float()])
    other.step("sgd", counts(1), [gradient.float() for gradient in gradients])
    assert one.values.equal(other.values)


@every_rule
def test_a_member_that_is_not_finite_leaves_the_others_as_they_are(name: str) -> None:
    one, other = Case(name, torch.bfloat16), Case(name, torch.bfloat16)
    other.copy(one)
    gradients = [torch.randn_like(tensor) for tensor in one.start]
    one.step(name, counts(1), gradients)
    for gradient in gradients:
        gradient[1] = torch.nan
    other.step(name, counts(1), gradients)
    for buffer, sick in ((one.values, other.values), (one.copies, other.copies)):
        for sound, beside_it in zip(one.layout.views(buffer), other.layout.views(sick), strict=True):
            assert sound[0].equal(beside_it[0])
            assert sound[2].equal(beside_it[2])
            assert bool(beside_it[1].isnan().all())


def test_copies_are_the_new_values_rounded() -> None:
    case = Case("sgd", torch.bfloat16)
    case.step("sgd", counts(1), [torch.randn_like(tensor) for tensor in case.start])
    for copy, value in zip(case.layout.views(case.copies), case.layout.views(case.values), strict=True):
        if DEVICE == "cuda":
            assert copy.equal(value.bfloat16())
        else:  # the interpreter cuts off
            assert bool(((copy.float() - value).abs() <= value.abs() * 2.0**-7).all())


@pytest.mark.gpu
@every_rule
def test_a_cuda_graph_replays_the_step(name: str) -> None:
    eager, graphed = Case(name, torch.bfloat16), Case(name, torch.bfloat16)
    graphed.copy(eager)
    gradients = [torch.randn_like(tensor) for tensor in eager.start]
    for case in (eager, graphed):
        case.step(name, counts(1), gradients)
    one, graph = counts(1), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        graphed.step(name, one, gradients)
    for _ in range(4):
        graph.replay()
        eager.step(name, one, gradients)
    assert eager.values.equal(graphed.values)
    assert eager.copies.equal(graphed.copies)
