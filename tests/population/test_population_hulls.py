"""Hulls of a population: per layer and per channel, frozen, scaled, gated and shared."""

from __future__ import annotations

from collections.abc import Callable

import plain_networks
import pytest
import torch
from torch import Tensor, nn
from trained_alone import assert_equal_states, inputs_of, train, train_alone

import hullo
from hullo.population import SGD, Adam, LoweringError, Population


def test_per_channel_per_layer_and_fixed_activations_mix() -> None:
    def network(act: nn.Module) -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 4, 3), act, nn.Flatten(), nn.Linear(144, 2)).double()

    bases = ("identity", "relu", "tanh")
    members = [
        network(act)
        for act in (
            hullo.ConvexHull(*bases, groups=4),
            hullo.AffineHull(*bases, groups=2),
            hullo.AffineHull(*bases, parametrization="free"),
            nn.PReLU(4),
            nn.LeakyReLU(0.2),
            hullo.LinearHull("tanh", groups=4),
        )
    ]
    batches = inputs_of(plain_networks.ResNet, len(members))
    population = Population(members)
    options = {"lr": 0.01, "weight_decay": 0.1}
    train(population, Adam(population, max_norm=0.1, **options), batches)
    for k, member in enumerate(members):
        optimizer = torch.optim.Adam(hullo.parameter_groups(member, lr=0.01), **options)
        for x in batches[:, k]:
            optimizer.zero_grad()
            member(x).square().mean().backward()
            nn.utils.clip_grad_norm_(member.parameters(), 0.1)
            optimizer.step()
        assert_equal_states(population[k], member)


def test_every_activation_of_pytorch_is_computed_beside_others() -> None:
    acts = [nn.Tanhshrink(), nn.LogSigmoid(), nn.Softshrink(0.3), nn.Hardshrink(0.3), nn.Threshold(0.1, 2.0, True)]
    acts += [nn.Hardtanh(-0.2, 0.3), nn.Softmax(-1), nn.Mish(), hullo.ConvexHull("relu", "tanh")]
    members = [nn.Sequential(nn.Linear(3, 4), act).double() for act in acts]
    x = torch.randn(len(members), 5, 3, dtype=torch.float64)
    population = Population(members)
    torch.testing.assert_close(population(x), torch.stack([member(x[k]) for k, member in enumerate(members)]))
    assert "one member after the other" in population.explain(x)
    for odd in (nn.GLU(), nn.RReLU(), nn.Linear(4, 4)):
        with pytest.raises(ValueError, match=f"members 0 and 1 differ in module '1': ReLU and {type(odd).__name__}"):
            Population([nn.Sequential(nn.Linear(3, 4), act) for act in (nn.ReLU(), odd, nn.Tanh())])


class Sine(nn.Module):
    """An activation of one's own."""

    def __init__(self, frequency: float = 30.0) -> None:
        super().__init__()
        self.frequency = frequency

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(self.frequency * x)


class Gauss(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.exp(-x.square())


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


def in_last_dim() -> nn.Module:
    return hullo.AffineHull("identity", "tanh", groups=2, channel_dim=-1)


@pytest.mark.parametrize(
    "acts",
    [
        [Sine, lambda: hullo.AffineHull("identity", "relu")],
        [Sine, Gauss],
        [lambda: Sine(30.0), lambda: Sine(10.0), lambda: Sine(0.5)],
        [Gauss, nn.Tanh, lambda: nn.PReLU(5), nn.Mish, lambda: nn.Threshold(0.1, 2.0, inplace=True)],
        [lambda: nn.PReLU(5), in_last_dim, nn.ReLU, Sine, lambda: hullo.ConicHull("relu", "relu3", groups=5)],
        [nn.PReLU, in_last_dim],
    ],
)
def test_modules_of_ones_own_and_channels_in_other_dimensions_train_beside_hulls(
    acts: list[Callable[[], nn.Module]],
) -> None:
    members = [nn.Sequential(nn.Linear(3, 4), act(), nn.Linear(4, 2)).double() for act in acts]
    batches = torch.randn(4, len(members), 2, 5, 3, dtype=torch.float64)  # channels: 5 in the second, 4 in the last
    population = Population(members)
    train(population, SGD(population, lr=0.1, momentum=0.9), batches)
    for k, member in enumerate(members):
        train_alone(member, torch.optim.SGD(member.parameters(), lr=0.1, momentum=0.9), batches[:, k])
        assert_equal_states(population[k], member)
        assert type(population[k][1]) is type(member[1])


def test_unlike_modules_with_parameters_or_of_another_shape_are_refused() -> None:
    class Half(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x[..., ::2]

    def network(act: nn.Module) -> nn.Module:
        return nn.Sequential(nn.Linear(3, 4), act)

    with pytest.raises(ValueError, match="members 0 and 1 differ in module '1': ReLU and Norm"):
        Population([network(nn.ReLU()), network(Norm())])
    with pytest.raises(ValueError, match="Norm and Gauss"):
        Population([network(Norm()), network(Gauss())])
    with pytest.raises(LoweringError, match=r"member 1, Half.*\(5, 2\)"):
        Population([network(nn.ReLU()), network(Half())])(torch.randn(2, 5, 3))


def test_frozen_parameters_do_not_change() -> None:
    members = [
        nn.Sequential(nn.Linear(6, 6), act, nn.Linear(6, 3)).double()
        for act in (
            hullo.ConvexHull("identity", "relu", parametrization="softmax", init=[0.2, 0.8]).requires_grad_(False),
            nn.PReLU(6, init=0.3).requires_grad_(False),
            hullo.AffineHull("identity", "tanh"),
        )
    ]
    batches = inputs_of(plain_networks.MLP, 3)
    population = Population(members)
    train(population, SGD(population, lr=0.1, weight_decay=0.1), batches)
    for k, member in enumerate(members):
        groups = hullo.parameter_groups(member, lr=0.1)
        train_alone(member, torch.optim.SGD(groups, weight_decay=0.1), batches[:, k])
        assert_equal_states(population[k], member)
        assert [p.requires_grad for p in population[k].parameters()] == [p.requires_grad for p in member.parameters()]


def test_inner_scales_learn_as_they_do_alone() -> None:
    acts: list[Callable[[], nn.Module]] = [
        lambda: hullo.AffineHull("tanh", "relu", inner_scale="base"),
        lambda: hullo.ConvexHull("tanh", "identity", inner_scale="hull", groups=3),
        lambda: hullo.LinearHull("sin", "tanh", groups=3, inner_scale="base"),
        lambda: hullo.ConicHull("relu", "relu3"),
        lambda: hullo.AffineHull("tanh", "relu", inner_scale="hull").requires_grad_(False),
        nn.ReLU,
    ]
    members = []
    for seed, make_act in enumerate(acts):
        torch.manual_seed(seed)
        act = make_act()
        if getattr(act, "inner_scale", None) is not None:
            act.inner_scale.data.uniform_(0.5, 1.5)
        members.append(nn.Sequential(nn.Linear(6, 3), act, nn.Linear(3, 3), act, nn.Linear(3, 2)).double())
    batches = inputs_of(plain_networks.MLP, len(members))
    population = Population(members)
    train(population, Adam(population, lr=0.01, eps=1e-4), batches)
    for k, member in enumerate(members):
        learned = [parameter for parameter in member.parameters() if parameter.requires_grad]
        train_alone(member, torch.optim.Adam(learned, lr=0.01, eps=1e-4), batches[:, k])
        assert_equal_states(population[k], member)
        assert [p.requires_grad for p in population[k].parameters()] == [p.requires_grad for p in member.parameters()]


def test_gated_hulls_are_learned_as_they_are_alone() -> None:
    class Gated(nn.Module):
        def __init__(self, hull: hullo.Hull) -> None:
            super().__init__()
            self.gate, self.up, self.down = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 3)
            self.act = hullo.GatedHull(hull)

        def forward(self, x: Tensor) -> Tensor:
            return self.down(self.act(self.gate(x), self.up(x)))

    hulls = [hullo.ConvexHull("identity", "silu", strict=False), hullo.AffineHull("relu", "tanh", inner_scale="hull")]
    members = [Gated(hull).double() for hull in hulls]
    batches = inputs_of(plain_networks.MLP, 2)
    population = Population(members)
    train(population, SGD(population, lr=0.1), batches)
    for k, member in enumerate(members):
        train_alone(member, torch.optim.SGD(member.parameters(), lr=0.1), batches[:, k])
        assert_equal_states(population[k], member)


@pytest.mark.parametrize("inner_scale", [None, "base"])
def test_hulls_whose_gradients_are_summed_are_shared_by_all_members(inner_scale: str | None) -> None:
    def network(act: nn.Module) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 6), act, nn.Linear(6, 6), nn.PReLU(), nn.Linear(6, 3)).double()

    def hull() -> nn.Module:
        return hullo.ConvexHull("identity", "relu", "tanh", init=[0.1, 0.8, 0.1], inner_scale=inner_scale)

    torch.manual_seed(0)
    members = [network(hull()) for _ in range(3)]
    population, batches = Population(members), inputs_of(plain_networks.MLP, 3)
    for parameter in population.activations.coefficient_parameters():
        parameter.register_hook(lambda gradient: gradient.sum(0, keepdim=True).expand_as(gradient))
    train(population, SGD(population, lr=0.1, momentum=0.9), batches)
    for member in members[1:]:
        member[1] = members[0][1]  # what plain PyTorch calls sharing
    optimizer = torch.optim.SGD(nn.ModuleList(members).parameters(), lr=0.1, momentum=0.9)
    for x in batches:
        optimizer.zero_grad()
        torch.stack([member(x[k]).square().mean() for k, member in enumerate(members)]).sum().backward()
        optimizer.step()
    for k, member in enumerate(members):
        assert_equal_states(population[k], member)
    assert population.activations.coefficients[2, 0].equal(population.activations.coefficients[0, 0])


def test_hulls_with_hooks_or_overridden_forward_are_rejected() -> None:
    class Shifted(hullo.AffineHull):
        def forward(self, input: Tensor) -> Tensor:  # noqa: A002
            return super().forward(input) + 1

    hooked = hullo.AffineHull("relu", "tanh")
    hooked.register_forward_hook(lambda module, given, made: made * 2)
    for hull in (hooked, Shifted("relu", "tanh")):
        with pytest.raises(ValueError, match=r"'0'.*forward"):
            Population([nn.Sequential(hull)])
