"""The fused activation, pooling and dropout equals the three; on the CPU it runs in Triton's interpreter."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hullo
from hullo.functional import apply
from hullo.kernels import CombineSpec
from hullo.parametrizations import get_parametrization
from hullo.population import Population, kernels, rng
from rounding import assert_rounded_once

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

from hullo.population.kernels import act_pool_drop  # noqa: E402
from hullo.population.kernels.act_pool_drop import combine_pool_drop  # noqa: E402
from hullo.population.kernels.dropout import Dropout  # noqa: E402

TRIO = tuple(hullo.get_base(name) for name in ("identity", "relu", "tanh"))


@dataclass
class Case:
    """A population's layer: members, channels of each, height, width, and how it is called."""

    members: int
    channels: int
    sides: tuple[int, int]
    rate: float = 0.25
    bias: bool = False
    flat: bool = False
    per_channel: bool = False
    first: int = 0

    def draw(self, dtype: torch.dtype = torch.float32) -> list[Tensor]:
        """Return x, coefficients and perhaps a bias."""
        wide = self.members * self.channels
        x = torch.randn(3, wide, *self.sides).to(dtype).contiguous(memory_format=torch.channels_last)
        groups = wide if self.per_channel else self.members
        rows = torch.randn(groups, 3) if groups > 1 else torch.randn(3)
        return [x, rows, *([torch.randn(wide)] if self.bias else [])]

    def streams(self) -> tuple[Tensor, Tensor]:
        """Return the members' seeds and steps."""
        return torch.arange(self.members), torch.full((self.members,), 41)

    def drop(self, x: Tensor) -> Tensor:
        """Drop by masks that are drawn with channels last."""
        split = torch.unflatten(x, 1, (self.members, -1))
        batch, _, channels, height, width = split.shape
        shape = batch, height, width, channels
        kept = rng.dropout_mask(*self.streams(), 1, shape, rate=self.rate, first=self.first)
        return (split * kept.permute(1, 0, 4, 2, 3) * (1 / (1 - self.rate))).flatten(1, 2)

    def plain(self, x: Tensor, rows: Tensor, bias: Tensor | None = None) -> Tensor:
        x = x if bias is None else x + bias.view(-1, 1, 1)
        pooled = F.max_pool2d(
            apply(x, rows, CombineSpec(TRIO, get_parametrization("given"), 1), backend="reference"), 2
        )
        pooled = self.drop(pooled) if self.rate else pooled
        if not self.flat:
            return pooled
        return torch.unflatten(pooled, 1, (self.members, -1)).permute(1, 0, 3, 4, 2).flatten(2)

    def fused(self, x: Tensor, rows: Tensor, bias: Tensor | None = None) -> Tensor:
        seeds, steps = (tensor.to(DEVICE) for tensor in self.streams())
        dropout = Dropout(seeds, steps, 1, self.rate, self.first)
        return combine_pool_drop(x, rows, TRIO, dropout, bias=bias, flat=self.flat)


CASES = {
    "kerasnet": Case(2, 32, (6, 6)),
    "kerasnet, last pool": Case(2, 64, (5, 5), flat=True, bias=True),
    "lenet": Case(3, 20, (4, 4), rate=0.0, bias=True),
    "lenet, last pool": Case(3, 50, (4, 4), rate=0.0, flat=True),
    "odd everything": Case(3, 5, (7, 3), rate=0.0, flat=True, bias=True),
    "one member": Case(1, 8, (4, 6), bias=True),
    "one activation a channel": Case(2, 12, (4, 4), per_channel=True),
    "a part of a batch": Case(2, 12, (3, 4), first=5),
}


def passes(function: object, inputs: list[Tensor], gradient: Tensor | None = None) -> tuple[Tensor, ...]:
    """Return the value of a function and its gradients for all inputs."""
    leaves = [tensor.requires_grad_() for tensor in inputs]
    y: Tensor = function(*leaves)  # type: ignore[operator]
    pulled = torch.ones_like(y) if gradient is None else gradient.to(y)
    return y.detach(), *torch.autograd.grad(y, leaves, pulled)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_values_and_gradients_agree_with_the_three_in_float64(case: Case) -> None:
    inputs = case.draw()
    gradient = torch.randn_like(case.plain(*inputs))
    expected = passes(case.plain, [tensor.double() for tensor in inputs], gradient)
    found = passes(case.fused, [tensor.to(DEVICE) for tensor in inputs], gradient)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.double().cpu(), b, rtol=1e-5, atol=1e-6 * b.abs().max().item())
    assert torch.equal(found[0].cpu() == 0, expected[0] == 0)  # the masks, to the bit
    assert found[1].is_contiguous(memory_format=torch.channels_last)


def test_a_program_of_all_tiles_gives_the_same_results(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(2, 32, (10, 12), bias=True)
    inputs, found = case.draw(), []
    for programs in (act_pool_drop.PROGRAMS, 0):
        monkeypatch.setattr(act_pool_drop, "PROGRAMS", programs)
        found.append(passes(case.fused, [tensor.to(DEVICE) for tensor in inputs]))
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", ["kerasnet", "kerasnet, last pool", "lenet"])
def test_bfloat16_agrees_to_its_rounding(name: str) -> None:
    case = CASES[name]
    inputs = case.draw(torch.bfloat16)
    gradient = torch.randn_like(case.plain(*inputs)).bfloat16()
    expected = passes(case.plain, [tensor.double() for tensor in inputs], gradient)
    found = passes(case.fused, [tensor.to(DEVICE) for tensor in inputs], gradient)
    for a, b in zip(found, expected, strict=True):
        assert_rounded_once(a, b)


@pytest.mark.parametrize(
    "window",
    [
        [1.0, 1.0, 1.0, 1.0],
        [-1.0, 2.0, 2.0, 0.0],
        [0.0, torch.nan, 3.0, 1.0],
        [torch.nan, 0.0, torch.nan, 1.0],
        [-torch.inf, -torch.inf, -torch.inf, -torch.inf],
        [torch.inf, 0.0, torch.inf, torch.nan],
    ],
)
def test_the_maximum_is_where_pytorch_finds_it(window: list[float]) -> None:
    identity = (hullo.get_base("identity"),)
    x = torch.tensor(window).view(1, 1, 2, 2)
    one, none = torch.ones(1, device=DEVICE), torch.zeros(1, dtype=torch.int64, device=DEVICE)
    expected = passes(lambda x: F.max_pool2d(x, 2), [x.clone()])
    found = passes(lambda x: combine_pool_drop(x, one, identity, Dropout(none, none, 0, 0.0)), [x.to(DEVICE)])
    torch.testing.assert_close([t.cpu() for t in found], list(expected), rtol=0, atol=0, equal_nan=True)


def test_a_member_that_is_not_finite_leaves_the_others_as_they_are() -> None:
    case = CASES["kerasnet, last pool"]
    inputs = [tensor.to(DEVICE) for tensor in case.draw()]
    ill = [tensor.detach().clone(memory_format=torch.preserve_format) for tensor in inputs]
    ill[0][:, 64:] = torch.nan
    y, dx, drows, dbias = passes(case.fused, inputs)
    other, *gradients = passes(case.fused, ill)
    assert torch.equal(y[0], other[0])
    assert other[1].isnan().all()
    assert torch.equal(dx[:, :64], gradients[0][:, :64])
    assert torch.equal(drows[0], gradients[1][0])
    assert torch.equal(dbias[:64], gradients[2][:64])


@pytest.mark.gpu  # Triton's interpreter runs one program after the other
def test_every_run_gives_the_same_bits() -> None:
    case = CASES["kerasnet"]
    inputs = [tensor.to(DEVICE) for tensor in case.draw()]
    first = passes(case.fused, inputs)
    assert all(torch.equal(a, b) for a, b in zip(first, passes(case.fused, inputs), strict=True))


def test_images_and_gradients_in_another_order_serve() -> None:
    case = CASES["kerasnet"]
    inputs = [tensor.to(DEVICE) for tensor in case.draw()]
    gradient = torch.randn(3, 64, 3, 3)
    expected = passes(case.fused, inputs, gradient.contiguous(memory_format=torch.channels_last))
    found = passes(case.fused, [inputs[0].detach().contiguous(), inputs[1]], gradient)
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("channels", [8, 6])
def test_a_population_drops_the_same_entries_with_kernels_and_without(
    channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = nn.Sequential(nn.Conv2d(3, channels, 1), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.5)).to(DEVICE)
    x, found = torch.rand(2, 5, 3, 4, 4, device=DEVICE), []
    for fused in (True, False):
        monkeypatch.setattr(kernels, "support", lambda x, fused=fused: fused)
        found.append(Population([copy.deepcopy(network) for _ in range(2)])(x))
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
def test_a_cuda_graph_draws_the_masks_of_its_steps() -> None:
    case = CASES["kerasnet"]
    seeds, steps = (tensor.cuda() for tensor in case.streams())
    x, rows = (tensor.cuda() for tensor in case.draw())

    def call() -> Tensor:
        return combine_pool_drop(x, rows, TRIO, Dropout(seeds, steps, 1, 0.25))

    call()  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = call()
    seen = []
    for _ in range(3):
        steps.add_(1)
        graph.replay()
        assert torch.equal(y, call())
        seen.append(y == 0)
    assert not torch.equal(seen[0], seen[1])
