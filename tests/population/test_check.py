"""`check` agrees with networks that keep the contract, and names the module and the size of what differs."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import plain_networks
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from trained_alone import ACTIVATIONS, inputs_of, make

import hullo
from hullo.population import SGD, ContractError, Population, capture


@pytest.mark.parametrize("kind", [plain_networks.MLP, plain_networks.GPT, plain_networks.ResNet, plain_networks.UNet])
def test_networks_that_keep_the_contract_agree_to_rounding(kind: type[nn.Module]) -> None:
    population = Population(make(kind, ACTIVATIONS))
    report = population.check(inputs_of(kind, len(population))[0])
    assert report.members[-1] == len(population) - 1
    assert report.outputs < 1e-12
    assert report.gradients < 1e-8
    assert report.buffers < 1e-12


def test_rounding_at_kinks_is_no_difference() -> None:
    x = torch.randn(2, 3, 3, 3, generator=torch.Generator().manual_seed(0))

    def build() -> nn.Module:
        net = nn.Sequential(nn.Conv2d(3, 256, 3, padding=1), nn.BatchNorm2d(256), nn.ReLU(), nn.Flatten())
        with torch.no_grad():  # one input of each ReLU is zero, to rounding
            net[1].bias.copy_(-net[:2](x)[0, :, 1, 1])
        return net

    assert Population(build, seeds=range(2)).check(x, in_dims=None).gradients < 1e-4


class Noisy(nn.Module):
    """Draw random numbers by many functions of PyTorch, in several regions."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 4, 2, dropout=0.5, batch_first=True)
        self.block = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.3, batch_first=True)
        self.drops = nn.Sequential(nn.Dropout(0.3), nn.Dropout1d(0.2))

    def forward(self, x: Tensor) -> Tensor:
        y = self.drops(self.block(self.lstm(x)[0]))
        y = y + torch.randn_like(y) + torch.rand(4) + torch.rand(5, 1) * torch.empty_like(y).bernoulli_(0.5)
        with torch.no_grad():
            z = F.gumbel_softmax(y) * torch.empty(4).normal_()
        scale = torch.distributions.Normal(y, 1.0).rsample()
        return F.dropout(y + z, 0.3, self.training, inplace=True) * scale


def test_random_numbers_alone_are_those_of_the_population() -> None:
    report = Population(Noisy, seeds=range(3)).check(torch.randn(3, 2, 5, 4))
    assert report.outputs < 1e-5
    assert report.gradients < 1e-4


class Attention(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        mask = torch.ones(x.shape[-2], x.shape[-2], dtype=torch.bool).tril()
        return F.scaled_dot_product_attention(x, x, x, attn_mask=mask, dropout_p=0.3 if self.training else 0.0)


def test_what_checkpoints_compute_again_has_the_same_random_numbers() -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.3), nn.GELU()) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            for part in self.parts:
                x = F.dropout(checkpoint(part, F.dropout(x, 0.2), use_reentrant=False), 0.4)
            return x

    report = Population(Checkpointed, seeds=range(2)).check(torch.randn(2, 5, 4))
    assert report.outputs < 1e-5
    assert report.gradients < 1e-5


def test_attention_takes_its_dropout_by_name() -> None:
    assert Population([Attention(), Attention()]).check(torch.randn(2, 3, 2, 5, 4)).outputs < 1e-6


class Inner(nn.Module):
    """Apply a function to a layer's output."""

    def __init__(self, function: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.function, self.calls, self.items = nn.Linear(4, 4), function, 0, list[Tensor]()

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, self.layer(x))


def network(function: Callable[[Any, Tensor], Tensor]) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), Inner(function), nn.Linear(4, 4))


def test_state_modes_and_generators_stay_as_they_are() -> None:
    population = Population(lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)), seeds=range(2))
    population(torch.randn(2, 5, 4))
    population.copies = {"0.weight": population.stacked.get_parameter("0.weight").detach().bfloat16()}
    x, copies, state = torch.randn(5, 4).bfloat16(), population.copies, copy.deepcopy(population.state_dict())
    generator = torch.get_rng_state()
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        population.check(x, in_dims=None)
    assert all(torch.equal(tensor, state[name]) for name, tensor in population.state_dict().items())
    assert torch.equal(torch.get_rng_state(), generator)
    assert population.copies is copies
    assert population.training


class Summing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.act = nn.Linear(3, 3), hullo.AffineHull("relu", "tanh")
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: Tensor, weights: dict[str, Tensor], *, scale: Tensor) -> dict[str, Any]:
        y = self.act(self.first(x)) * weights["w"]
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * y.detach().mean(0)
        return {"y": y * scale - self.mean, "index": y.argmax(-1), "size": len(x)}


def test_nested_arguments_and_assigned_buffers_are_compared() -> None:
    population = Population([Summing() for _ in range(3)])
    x, weights = torch.randn(3, 5, 3), {"w": torch.randn(3)}
    assert population.check(x, weights, in_dims=(0, None), scale=torch.ones(3)).buffers < 1e-5


@pytest.mark.parametrize("seed", [1, 2, 5])
def test_inputs_of_relu_that_round_to_the_other_side_of_zero_are_no_difference(seed: int) -> None:
    def make() -> nn.Module:
        blocks = [nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()]
        return nn.Sequential(nn.Conv2d(3, 8, 1), *(copy.deepcopy(blocks[n % 3]) for n in range(9)), nn.Flatten())

    torch.manual_seed(seed)
    Population(make, seeds=range(3)).check(torch.randn(256, 3, 8, 8), in_dims=None)


def test_capture_checks_the_first_step_alone() -> None:
    shared: list[int] = []

    def count(inner: Any, x: Tensor) -> Tensor:
        shared.append(1)
        return x * len(shared)

    def take_step(x: Tensor) -> Tensor:
        loss = population(x).square().sum()
        loss.backward()
        return loss.detach()

    population = Population([network(count), network(count)])
    optimizer, x = SGD(population, lr=0.1), torch.randn(2, 5, 4)
    with pytest.raises(ContractError):
        capture(take_step, population, optimizer)(x)
    assert capture(take_step, population, optimizer, check=False)(x).isfinite()
    kept = Population([nn.Linear(4, 4), nn.Linear(4, 4)])
    step = capture(lambda x: kept(x), kept)
    step(x)
    used = len(kept._programs)
    step(x)
    assert len(kept._programs) == used == 2


def count(inner: Any, x: Tensor) -> Tensor:
    inner.calls += 1
    return x * inner.calls


def grow(inner: Any, x: Tensor) -> Tensor:
    inner.items.append(x.detach().mean(0))
    return x + sum(inner.items)


def draw(inner: Any, x: Tensor) -> Tensor:
    return x + float(np.random.rand())


def toss(inner: Any, x: Tensor) -> Tensor:
    return x + random.random()


SHARED = {"calls": 0}


def share(inner: Any, x: Tensor) -> Tensor:
    SHARED["calls"] += 1
    return x * SHARED["calls"]


@pytest.mark.parametrize("function", [count, grow, draw, toss, share])
def test_what_breaks_the_contract_is_found_and_its_module_named(function: Callable[[Any, Tensor], Tensor]) -> None:
    with pytest.raises(ContractError, match=r"call \d in training mode.*'1' \(Inner\), which differs by [\d.]+"):
        Population([network(function), network(function)]).check(torch.randn(2, 5, 4))


def lose(inner: Any, x: Tensor) -> Any:
    inner.calls += 1
    return x * (torch.nan if inner.calls > 1 else 1.0)


def collect(inner: Any, x: Tensor) -> Any:
    inner.items.append(x.detach())
    return list(inner.items)


def widen(inner: Any, x: Tensor) -> Any:
    inner.calls += 1
    return x.repeat(1, inner.calls)


def note(inner: Any, x: Tensor) -> Any:
    inner.calls += 1
    with torch.no_grad():
        inner.total += inner.calls
    return x


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lose, "output 0 differs by inf"),
        (collect, "it has 2 outputs alone, 1 in the population"),
        (widen, r"output 0 has shape \(5, 8\) alone, \(5, 4\) in the population"),
        (note, "buffer total differs by 1 at most"),
    ],
)
def test_the_kind_of_a_difference_is_named(function: Callable[[Any, Tensor], Any], words: str) -> None:
    inner = Inner(function)
    inner.register_buffer("total", torch.zeros(3))
    with pytest.raises(ContractError, match=f"member 0 alone.*call 2 in training mode: {words}"):
        Population([inner]).check(torch.randn(1, 5, 4))


def test_numbers_that_are_not_finite_alone_and_in_the_population_are_no_difference() -> None:
    Population([Inner(lambda inner, x: x / (x - x)) for _ in range(2)]).check(torch.randn(5, 4), in_dims=None)


def test_gradients_of_probabilities_are_compared() -> None:
    """The gradient of their sum would be zero."""
    with pytest.raises(ContractError, match=r"gradient of 0\.1\.layer\.bias differs by"):
        Population([nn.Sequential(network(hook), nn.Softmax(-1))]).check(torch.randn(1, 5, 4))


def test_state_that_matters_in_evaluation_alone_is_found() -> None:
    def remember(inner: Any, x: Tensor) -> Tensor:
        if inner.training:
            return x
        inner.calls += 1
        return x * inner.calls

    with pytest.raises(ContractError, match=r"call 2 in evaluation mode.*'1' \(Inner\)"):
        Population([network(remember)]).check(torch.randn(1, 5, 4))


class Sign(torch.autograd.Function):
    """A sign with the gradient of the identity."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sign()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def hook(inner: Any, x: Tensor) -> Tensor:
    x.register_hook(lambda gradient: 2 * gradient)  # type: ignore[no-untyped-call]
    return x


def infer(inner: Any, x: Tensor) -> Tensor:
    with torch.inference_mode():
        y = inner.layer(x)
    return x + y.clone()


@pytest.mark.parametrize("function", [lambda inner, x: Sign.apply(x), hook, infer])
def test_derivatives_that_are_not_those_of_the_operations_are_found(function: Callable[[Any, Tensor], Tensor]) -> None:
    with pytest.raises(ContractError, match=r"gradient of 1\.layer\.bias differs by"):
        Population([network(function)]).check(torch.randn(1, 5, 4))


def test_gradients_that_are_small_beside_others_are_compared() -> None:
    def shrink(inner: Any, x: Tensor) -> Tensor:
        x.register_hook(lambda gradient: 0.9 * gradient)  # type: ignore[no-untyped-call]
        return x

    def make() -> nn.Module:
        first, last = nn.Linear(4, 4), nn.Linear(4, 4)
        nn.init.constant_(last.weight, 1e-3)  # the gradient of the first layer is a thousandth of that of the last
        return nn.Sequential(first, network(shrink)[1], last)

    with pytest.raises(ContractError, match=r"gradient of 1\.layer\.bias differs by"):
        Population([make()]).check(torch.randn(1, 64, 4))


class Asking(nn.Module):
    """Compute other operations for another class or another setting of an activation."""

    def __init__(self, act: nn.Module, question: Callable[[Any], bool]) -> None:
        super().__init__()
        self.layer, self.act, self.question = nn.Linear(4, 4), act, question

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        z = self.act(y)
        return y + z if self.question(self.act) else z


@pytest.mark.parametrize(
    ("acts", "question"),
    [
        ((nn.ReLU(), nn.Tanh(), nn.ReLU()), lambda act: isinstance(act, nn.ReLU)),
        ((nn.Tanh(), nn.ReLU(), nn.Tanh()), lambda act: type(act) is nn.ReLU),
        ((nn.LeakyReLU(0.1), nn.LeakyReLU(0.5)), lambda act: act.negative_slope > 0.3),
    ],
)
def test_members_whose_code_depends_on_their_activation_are_found(
    acts: tuple[nn.Module, ...], question: Callable[[Any], bool]
) -> None:
    population = Population([Asking(act, question) for act in acts])
    with pytest.raises(ContractError, match="member 1 alone differs"):
        population.check(torch.randn(5, 4), in_dims=None)


def test_networks_may_ask_for_what_all_activations_have_in_common() -> None:
    networks = [Asking(nn.ReLU(), lambda act: isinstance(act, nn.ReLU)) for _ in range(2)]
    assert Population(networks).check(torch.randn(5, 4), in_dims=None).outputs < 1e-5
