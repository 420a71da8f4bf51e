"""A member of a population is an ordinary network: it starts, computes, learns and is taken out as one."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hullo.lab import networks
from hullo.lab.activations import Row
from hullo.lab.networks import Network, Task, initialise, stack
from hullo.lab.networks.layers import Convolution, Linear, by_member
from hullo.lab.networks.resnet56 import ResNet
from hullo.lab.recipes import RMSprop

ROWS = ("relu", "leaky_relu", "convex(identity,relu,tanh)", "affine(identity,tanh)")
SEEDS = (5, 6, 7, 5)
KINDS = ("lenet5", "kerasnet", "resnet8")
STEPS, BATCH, SIDE = 8, 8, 16

every_kind = pytest.mark.parametrize("kind", KINDS)


def build(kind: str, rows: tuple[str, ...] = ROWS, seeds: tuple[int, ...] = SEEDS) -> Network:
    if kind != "resnet8":
        return networks.build(kind, activation=rows, members=len(rows), seeds=seeds, image_size=SIDE)
    network = ResNet([Row.parse(row) for row in rows], Task(3, SIDE, 10), n=1)  # ResNet-56 with fewer blocks
    initialise(network, seeds)
    return network


def batches(dtype: torch.dtype = torch.float32) -> list[tuple[Tensor, Tensor]]:
    """Pictures and classes, each member's own."""
    members = len(ROWS)
    return [
        (torch.rand(BATCH, 3 * members, SIDE, SIDE, dtype=dtype), torch.randint(0, 10, (members, BATCH)))
        for _ in range(STEPS)
    ]


def of_member(k: int, shown: list[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    return [(pictures[:, 3 * k : 3 * k + 3], classes[k : k + 1]) for pictures, classes in shown]


def train(network: Network, shown: list[tuple[Tensor, Tensor]]) -> Tensor:
    """The members' losses at every step, (STEPS, K)."""
    optimiser = RMSprop(network, coefficient_lr_scale=10.0)
    losses = []
    for pictures, classes in shown:
        network.zero_grad()
        loss = F.cross_entropy(network(pictures).flatten(0, 1), classes.flatten(), reduction="none")
        losses.append(by_member(loss, network.members).mean(1))
        losses[-1].sum().backward()
        optimiser.step()
    return torch.stack(losses).detach()


class TestStart:
    @every_kind
    def test_a_member_starts_alike_alone_and_in_a_population(self, kind: str) -> None:
        population = build(kind)
        for k, (row, seed) in enumerate(zip(ROWS, SEEDS, strict=True)):
            alone, taken = build(kind, (row,), (seed,)).state_dict(), population.member(k).state_dict()
            assert alone.keys() == taken.keys()
            assert all(torch.equal(alone[key], taken[key]) for key in alone)

    @every_kind
    def test_weights_fill_glorots_interval_and_biases_are_zero(self, kind: str) -> None:
        population = build(kind)
        layers = [layer for layer in population.modules() if isinstance(layer, Convolution | Linear)]
        for layer in layers:
            size = 1 if isinstance(layer, Linear) else layer.weight[0, 0].numel()
            inputs, outputs = layer.weight.shape[1], layer.bias.numel() // len(ROWS)
            limit = (6 / (size * (inputs + outputs))) ** 0.5
            own = layer.weight.detach().view(len(ROWS), -1)
            assert own.abs().max() <= limit
            # of n uniform numbers the largest falls short of the limit by a share of about 1 / n
            assert (own.abs().amax(1) > limit * (1 - 20 / own.shape[1])).all()
            deviations = (own.mean(1) / limit * (3 * own.shape[1]) ** 0.5).abs()
            assert deviations.max() < 5
            assert not layer.bias.any()
        assert len(layers) == {"lenet5": 4, "kerasnet": 6, "resnet8": 10}[kind]

    def test_members_of_one_seed_start_with_the_same_weights_and_others_do_not(self) -> None:
        weights = build("lenet5").linear1.weight
        assert torch.equal(weights[0], weights[3])
        assert not torch.isclose(weights[0], weights[1], rtol=1e-3).float().mean() > 0.01

    def test_seeds_must_be_as_many_as_members(self) -> None:
        with pytest.raises(ValueError, match=r"4 members need as many seeds, got 1: \[5\]"):
            build("lenet5", seeds=(5,))


class TestPopulation:
    @every_kind
    @pytest.mark.parametrize("training", [True, False])
    def test_a_member_taken_out_computes_the_same(self, kind: str, training: bool) -> None:
        population = build(kind)
        train(population, batches()[:2])
        pictures = torch.rand(BATCH, 3 * len(ROWS), SIDE, SIDE)
        population.train(training)
        alone = [population.member(k) for k in range(len(ROWS))]
        together = population(pictures)
        assert together.shape == (len(ROWS), BATCH, 10)
        for k, network in enumerate(alone):
            own = network(pictures[:, 3 * k : 3 * k + 3])
            torch.testing.assert_close(together[k : k + 1], own, rtol=1e-5, atol=1e-5)

    @every_kind
    def test_stacking_members_gives_the_population_back_to_the_bit(self, kind: str) -> None:
        population = build(kind)
        train(population, batches()[:2])
        again = stack([population.member(k) for k in range(len(ROWS))])
        assert again.rows == population.rows
        before, after = population.state_dict(), again.state_dict()
        assert before.keys() == after.keys()
        assert all(torch.equal(before[key], after[key]) for key in before)

    @every_kind
    def test_members_per_layer_and_per_channel_come_apart_and_together(self, kind: str) -> None:
        rows = ("affine(identity,relu)", "prelu", "tanh")
        population = build(kind, rows, (1, 2, 3))
        per_layer, per_channel, fixed = population.parameter_counts()
        widths = population.activations.widths
        assert (per_layer - fixed, per_channel - fixed) == (2 * len(widths), sum(widths))
        alone = [population.member(k) for k in range(3)]
        assert [network.parameter_counts() for network in alone] == [[per_layer], [per_channel], [fixed]]
        pictures = torch.rand(BATCH, 3, SIDE, SIDE)
        expected = torch.cat([network.eval()(pictures) for network in alone])
        torch.testing.assert_close(population.eval()(pictures), expected, rtol=1e-5, atol=1e-5)
        for parts in (alone, [stack(alone[:2]), alone[2]], [alone[0], stack(alone[1:])]):
            again = stack(parts).state_dict()
            assert all(torch.equal(again[key], tensor) for key, tensor in population.state_dict().items())

    def test_populations_stack_too(self) -> None:
        population = build("resnet8")
        pairs = [stack([population.member(k) for k in pair]) for pair in ((0, 1), (2, 3))]
        whole = stack(pairs).state_dict()
        assert all(torch.equal(whole[key], tensor) for key, tensor in population.state_dict().items())

    @every_kind
    def test_pictures_shown_to_all_are_as_good_as_copies_of_them(self, kind: str) -> None:
        population = build(kind).eval()
        pictures = torch.rand(BATCH, 3, SIDE, SIDE)
        torch.testing.assert_close(
            population(pictures), population(pictures.repeat(1, len(ROWS), 1, 1)), rtol=1e-5, atol=1e-5
        )

    @every_kind
    def test_memory_with_channels_last_changes_nothing(self, kind: str) -> None:
        population = build(kind)
        other = copy.deepcopy(population).to(memory_format=torch.channels_last)
        pictures = torch.rand(BATCH, 3 * len(ROWS), SIDE, SIDE)
        expected = population(pictures)
        torch.testing.assert_close(
            other(pictures.to(memory_format=torch.channels_last)), expected, rtol=1e-5, atol=1e-5
        )
        shown = batches()[:2]
        torch.testing.assert_close(train(other, shown), train(population, shown), rtol=1e-4, atol=1e-5)

    @every_kind
    def test_autocast_computes_nearly_the_same(self, kind: str) -> None:
        population = build(kind).eval()
        pictures = torch.rand(BATCH, 3 * len(ROWS), SIDE, SIDE)
        with torch.autocast("cpu", torch.bfloat16):
            rough = population(pictures)
        assert rough.dtype == torch.bfloat16
        torch.testing.assert_close(rough.float(), population(pictures), rtol=0.05, atol=0.05)

    def test_networks_of_two_kinds_do_not_stack(self) -> None:
        with pytest.raises(ValueError, match=r"one architecture stack, got LeNet5 for .* and KerasNet for "):
            stack([build("lenet5"), build("kerasnet")])

    @pytest.mark.parametrize("k", [-1, 4])
    def test_a_member_that_is_not_there_is_refused(self, k: int) -> None:
        with pytest.raises(IndexError, match=rf"member {k} of a population of 4: members are 0 to 3"):
            build("lenet5").member(k)

    @pytest.mark.parametrize("shape", [(8, 6, 16, 16), (8, 12, 16, 15), (12, 16, 16)])
    def test_pictures_of_another_shape_are_refused(self, shape: tuple[int, ...]) -> None:
        with pytest.raises(ValueError, match=r"\(B, \*\(12, 16, 16\)\), or \(B, \*\(3, 16, 16\)\)") as error:
            build("lenet5")(torch.zeros(shape))
        assert str(shape) in str(error.value)


class TestPaths:
    @every_kind
    def test_a_member_takes_the_same_path_alone_and_in_a_population(self, kind: str) -> None:
        """In float64, to 1e-11 in all weights, statistics and coefficients after eight steps of 3e-4 at first."""
        shown = batches(torch.float64)
        population = build(kind).double()
        losses = train(population, shown)
        for k, (row, seed) in enumerate(zip(ROWS, SEEDS, strict=True)):
            alone = build(kind, (row,), (seed,)).double()
            own = train(alone, of_member(k, shown))
            torch.testing.assert_close(losses[:, k : k + 1], own, rtol=0, atol=1e-12)
            state, taken = alone.state_dict(), population.member(k).state_dict()
            for key in state:
                torch.testing.assert_close(state[key], taken[key], rtol=0, atol=1e-11)

    @every_kind
    def test_so_it_does_in_float32(self, kind: str) -> None:
        """To 1e-5 in losses and, over eight steps of 3e-4 at first, to 1e-4 in all weights; a ResNet is deeper."""
        tolerance, weights = (1e-4, 3e-4) if kind == "resnet8" else (1e-5, 1e-4)
        shown = batches()
        population = build(kind)
        losses = train(population, shown)
        for k, (row, seed) in enumerate(zip(ROWS, SEEDS, strict=True)):
            alone = build(kind, (row,), (seed,))
            torch.testing.assert_close(losses[:, k : k + 1], train(alone, of_member(k, shown)), rtol=tolerance, atol=0)
            state, taken = alone.state_dict(), population.member(k).state_dict()
            for key in state:
                torch.testing.assert_close(state[key], taken[key], rtol=0, atol=weights)

    @every_kind
    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_a_member_that_diverges_leaves_the_others_unchanged_to_the_bit(self, kind: str, value: float) -> None:
        shown = batches()[:3]
        results = []
        for diverges in (False, True):
            population = build(kind)
            if diverges:
                with torch.no_grad():
                    next(p for p in population.parameters() if p.dim() == 4)[-1] = value  # the last filter: member 3's
            losses = train(population, shown)
            assert losses[-1].isfinite().tolist() == [True, True, True, not diverges]
            results.append([population.member(k).state_dict() for k in range(3)])
        for healthy, beside_it in zip(*results, strict=True):
            assert all(torch.equal(healthy[key], beside_it[key]) for key in healthy)

    def test_dropouts_differ_between_seeds_layers_and_steps_and_end_with_training(self) -> None:
        population = build("kerasnet")
        ones = torch.ones(2, 4 * 64, 8, 8)
        population.steps += 1
        first = by_member(population.drop(ones, 0.25, number=1), 4, dim=1)
        torch.testing.assert_close(first.unique(), torch.tensor([0.0, 4 / 3]))
        assert torch.equal(first[:, 0], first[:, 3])  # the same seed
        assert not torch.equal(first[:, 0], first[:, 1])
        assert not torch.equal(first, by_member(population.drop(ones, 0.25, number=2), 4, dim=1))
        population.steps += 1
        assert not torch.equal(first, by_member(population.drop(ones, 0.25, number=1), 4, dim=1))
        assert population.eval().drop(ones, 0.25, number=1) is ones

    def test_only_training_counts_as_a_step(self) -> None:
        population = build("lenet5")
        pictures = torch.rand(2, 3, SIDE, SIDE)
        population(pictures)
        population.eval()(pictures)
        assert population.steps.tolist() == [1, 1, 1, 1]
