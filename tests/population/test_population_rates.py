"""Learning rates and weight decay of groups, of coefficients and of what is no coefficient."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from trained_alone import OPTIMIZERS, assert_equal_states

import hullo
from hullo.population import SGD, AdamW, Population, kernels

STEPS = 6
ACTIVATIONS: list[Callable[[], nn.Module]] = [
    nn.ReLU,
    lambda: nn.PReLU(6),
    lambda: hullo.AffineHull("tanh", "relu", "identity", groups=3),
    lambda: hullo.ConvexHull("sin", "relu", inner_scale="base"),
    lambda: nn.PReLU().requires_grad_(False),
    lambda: hullo.ConvexHull("relu", "tanh").requires_grad_(False),
]


def network(act: Callable[[], nn.Module]) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), act(), nn.Linear(6, 6), act(), nn.Linear(6, 2)).double()


def members() -> list[nn.Module]:
    torch.manual_seed(0)
    return [network(act) for act in ACTIVATIONS]


def batches(count: int = STEPS) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, len(ACTIVATIONS), 5, 4, generator=generator, dtype=torch.float64)


def train(population: Population, optimizer: Any, x: Tensor) -> None:
    for batch in x:
        optimizer.zero_grad()
        population(batch).square().flatten(1).mean(1).sum().backward()
        optimizer.step()


def train_alone(
    member: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, rates: list[float] | None = None
) -> None:
    start = [group["lr"] for group in optimizer.param_groups]
    for step, batch in enumerate(x):
        for group, own in zip(optimizer.param_groups, start, strict=True):
            group["lr"] = own * (1.0 if rates is None else rates[step] / rates[0])
        optimizer.zero_grad()
        member(batch).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_coefficients_have_their_own_rate_and_no_decay_and_prelu_has_neither(name: str) -> None:
    make, plain, options = OPTIMIZERS[name]
    networks, x = members(), batches()
    population = Population(networks)
    train(population, make(population, **options, coefficient_lr_scale=5.0), x)
    for k, member in enumerate(networks):
        groups = hullo.parameter_groups(member, lr=options["lr"], coefficient_lr_scale=5.0)
        train_alone(member, plain(groups, **options), x[:, k])
        assert_equal_states(population[k], member)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_assigned_rate_reaches_every_group(name: str) -> None:
    make, plain, options = OPTIMIZERS[name]
    options, rates = (
        {key: value for key, value in options.items() if key != "lr"},
        [0.01, 0.01, 0.002, 0.002, 0.03, 0.03],
    )
    networks, x = members(), batches()
    population = Population(networks)
    biases = [p for key, p in population.named_parameters() if key.endswith("bias")]
    groups = [{"params": biases, "lr": 0.02}, {"params": population.activations.raw, "lr": 0.03}]
    optimizer = make(population, lr=rates[0], groups=groups, **options)
    for rate, batch in zip(rates, x, strict=True):
        optimizer.lr = rate
        train(population, optimizer, batch[None])
    for k, member in enumerate(networks):
        scales = [p for key, p in member.named_parameters() if key.endswith("inner_scale")]
        raws = [p for p in hullo.coefficient_parameters(member) if all(p is not scale for scale in scales)]
        own = [p for key, p in member.named_parameters() if key.endswith("bias")]
        taken = {id(p) for p in (*raws, *scales, *own)}
        others = [p for p in member.parameters() if id(p) not in taken]
        made = [
            {"params": others},
            {"params": own, "lr": 0.02},
            {"params": raws, "lr": 0.03, "weight_decay": 0.0},
            {"params": scales, "weight_decay": 0.0},
        ]
        train_alone(member, plain([g for g in made if g["params"]], lr=0.01, **options), x[:, k], rates)
        assert_equal_states(population[k], member)


def test_groups_of_what_is_not_trained_change_nothing() -> None:
    population = Population([network(nn.ReLU), network(nn.Tanh)])
    frozen = population.stacked.get_parameter("0.bias").requires_grad_(False)
    optimizer = SGD(population, lr=0.1, groups=[{"params": [population.activations.raw, frozen], "lr": 1.0}])
    assert bool((optimizer.lr_scales == 1).all())


class Late(nn.Module):
    """Use a layer if a number says so."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 3).double(), nn.Linear(3, 3).double()

    def forward(self, x: Tensor, both: int) -> Tensor:
        return self.second(self.first(x)) if both else self.first(x)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_updates_of_a_parameter_count_from_its_first_gradient(name: str) -> None:
    make, plain, options = OPTIMIZERS[name]
    networks, x = [Late() for _ in range(2)], torch.randn(5, 4, dtype=torch.float64)
    population = Population(networks)
    optimizers = [make(population, **options), *(plain(network.parameters(), **options) for network in networks)]
    for both in (0, 0, 1, 1, 0, 1):
        for optimizer in optimizers:
            optimizer.zero_grad()
        losses = [population(x, both, in_dims=(None, None)), *(network(x, both) for network in networks)]
        for loss, optimizer in zip(losses, optimizers, strict=True):
            loss.square().sum().backward()
            optimizer.step()
    for k, network in enumerate(networks):
        assert_equal_states(population[k], network)


def test_one_kernel_updates_groups_as_plain_operations_do(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    start, updated = Population([network(act).float() for act in ACTIVATIONS]).to(device), []
    for is_fused in (False, True):
        monkeypatch.setattr(kernels, "support", lambda x, is_fused=is_fused: is_fused)
        population = copy.deepcopy(start)
        biases = [p for key, p in population.named_parameters() if key.endswith("bias")]
        lr = torch.arange(1, 1 + len(population)) / 10
        groups = [{"params": biases, "lr": 2 * lr}]
        optimizer = SGD(population, lr, weight_decay=0.1, coefficient_lr_scale=3.0, groups=groups)
        for parameter in optimizer.parameters.values():
            parameter.grad = torch.ones_like(parameter)
        population.activations.raw.grad *= population.activations.codes > 0  # of numbers that are learned
        optimizer.step()
        updated.append({name: p.detach().clone() for name, p in population.named_parameters()})
        assert (optimizer._flat is not None) is is_fused
    torch.testing.assert_close(*updated)


def test_coefficients_have_the_order_of_the_bases_that_were_given() -> None:
    hull = hullo.AffineHull("tanh", "relu", "identity", init=[0.1, 0.2, 0.7])
    population = Population([network(nn.ReLU), network(nn.GELU), nn.Sequential(*network(lambda: copy.deepcopy(hull)))])
    bases = [base.name for base in population.activations.bases]
    assert bases[:3] == ["tanh", "relu", "identity"]
    coefficients = population.activations.coefficients
    torch.testing.assert_close(coefficients[2, 0, :3], torch.tensor([0.1, 0.2, 0.7], dtype=torch.float64))
    assert not coefficients[2, 0, 3:].any()
    assert coefficients[0, 0].tolist() == [float(name == "relu") for name in bases]
    for k in range(3):
        x = torch.linspace(-3, 3, 50, dtype=torch.float64)
        expected = population[k][1](x)
        values = torch.stack([base.function(x) for base in population.activations.bases])
        torch.testing.assert_close(coefficients[k, 0] @ values, expected)


@settings(max_examples=12, deadline=None)
@given(
    order=st.permutations(range(len(ACTIVATIONS))),
    count=st.integers(1, len(ACTIVATIONS)),
    name=st.sampled_from(sorted(OPTIMIZERS)),
)
def test_kept_members_go_on_as_if_nothing_had_happened(order: list[int], count: int, name: str) -> None:
    make, _, options = OPTIMIZERS[name]
    networks, x, kept = members(), batches(), order[:count]
    lr = [options["lr"] * (1 + k) / 4 for k in range(len(networks))]
    whole, part = (Population(copy.deepcopy(networks), seeds=range(6)) for _ in range(2))
    numbers = [0.1 * (1 + k) for k in range(6)]
    optimizers = []
    for item in (whole, part):
        biases = {"params": [p for key, p in item.named_parameters() if key.endswith("bias")], "weight_decay": numbers}
        settings = options | {"lr": lr, "max_norm": numbers, "coefficient_lr_scale": lr, "groups": [biases]}
        optimizers.append(make(item, **settings))
    train(whole, optimizers[0], x)
    train(part, optimizers[1], x[:3])
    part.keep(kept)
    assert len(part) == count
    assert part.seeds.tolist() == kept
    train(part, optimizers[1], x[3:, kept])
    for position, k in enumerate(kept):
        assert_equal_states(part[position], whole[k])
    again = Population(copy.deepcopy(networks), seeds=range(6))
    again.keep(kept)
    again.load_state_dict(part.state_dict())
    torch.testing.assert_close(again(x[0, kept]), part(x[0, kept]))


def test_a_population_without_activations_has_no_coefficients() -> None:
    assert Population([nn.Linear(4, 2) for _ in range(3)]).activations.coefficients.shape == (3, 0, 0)


def test_frozen_coefficients_stay_frozen_in_what_is_kept() -> None:
    population = Population([network(ACTIVATIONS[2]) for _ in range(3)])
    optimizer = SGD(population, lr=0.1, momentum=0.9)
    population.activations.raw.requires_grad_(False)
    population.keep([1])
    assert not hullo.coefficient_parameters(population)[0].requires_grad
    assert "activations.raw" not in optimizer.parameters


def test_modes_dropout_and_counts_are_kept() -> None:
    def noisy(rate: float) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(rate), nn.Linear(6, 2))

    networks, x = [noisy(rate) for rate in (0.2, 0.5, 0.8)], torch.randn(4, 3, 8, 4)
    populations = [Population(copy.deepcopy(networks)) for _ in range(2)]
    for batch in x[:2]:
        for population in populations:
            population(batch)
    populations[1].keep([2, 0])
    assert populations[1].training
    for batch in x[2:]:
        torch.testing.assert_close(populations[1](batch[[2, 0]]), populations[0](batch)[[2, 0]])
    for population in populations:
        population.eval()
    torch.testing.assert_close(populations[1](x[0, [2, 0]]), populations[0](x[0])[[2, 0]])


@pytest.mark.parametrize("given_members", [[], [0, 0], [0, -3]])
def test_members_are_kept_once(given_members: list[int]) -> None:
    population = Population([network(nn.ReLU) for _ in range(3)])
    with pytest.raises(ValueError, match="each once"):
        population.keep(given_members)
    with pytest.raises(IndexError, match="member 3"):
        population.keep([3])
    assert len(population) == 3


@pytest.mark.parametrize("is_own", [False, True])
def test_parameter_groups_of_a_population_are_those_of_its_members(is_own: bool) -> None:
    options = {"lr": 0.01, "weight_decay": 0.1, "coefficient_lr_scale": 5.0}
    networks, x = members(), batches()
    population = Population(networks)
    groups = hullo.parameter_groups(population, **options)
    optimizer = AdamW(population, lr=0.01, groups=groups) if is_own else torch.optim.AdamW(groups)
    train(population, optimizer, x)
    for k, member in enumerate(networks):
        train_alone(member, torch.optim.AdamW(hullo.parameter_groups(member, **options)), x[:, k])
        assert_equal_states(population[k], member)


def test_a_view_for_each_member_has_the_gradient_of_each() -> None:
    networks = members()
    population, x = Population(networks), batches(1)[0, 0]
    own = x.expand(len(population), *x.shape).requires_grad_()
    population(own).square().sum().backward()
    shared = x.clone().requires_grad_()
    population(shared, in_dims=None).square().sum().backward()
    for k, member in enumerate(networks):
        alone = x.clone().requires_grad_()
        member(alone).square().sum().backward()
        torch.testing.assert_close(own.grad[k], alone.grad)  # type: ignore[index]
    torch.testing.assert_close(own.grad.sum(0), shared.grad)  # type: ignore[union-attr]


def test_gradients_are_set_to_none_or_to_zero_as_in_torch() -> None:
    population = Population(members())
    optimizer, x = SGD(population, lr=0.1), batches(1)[0]
    population(x).sum().backward()
    assert any(p.grad is not None and bool(p.grad.any()) for p in population.parameters())
    optimizer.zero_grad(set_to_none=False)
    found = [p.grad for p in population.parameters() if p.requires_grad]
    assert all(gradient is not None and not gradient.any() for gradient in found)
    optimizer.zero_grad()
    assert all(p.grad is None for p in population.parameters())
