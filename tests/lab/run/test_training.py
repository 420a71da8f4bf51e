"""Test that members train as they would alone, whatever happens to others, and resume exactly."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from threading import Event
from typing import Any

import pytest
import tiny_command
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hullo
from hullo.lab import networks
from hullo.lab.data import Dataset
from hullo.lab.data.augment import draw_moves, draw_order
from hullo.lab.run import loop
from hullo.lab.run.loaders import InMemoryLoader
from hullo.lab.run.training import Training, make_optimizer
from hullo.lab.spec.recipes import OPTIMIZERS
from hullo.lab.spec.run_spec import Spec
from hullo.population import SGD, Population
from hullo.population.images import move, scale

DATA = tiny_command.load("fashion-mnist-sample")
FEED = InMemoryLoader(DATA)
ROWS = ("relu", "convex(identity,relu,tanh)", "affine(identity,tanh)")


def members(network: str = "lenet5", **values: object) -> list[Spec]:
    spec = Spec(network, "fashion-mnist-sample", "relu", epochs=2, lr=1e-3, coefficient_lr_scale=10.0)
    specs = [replace(spec, activation=row, seed=seed) for seed, row in enumerate(ROWS, 5)]
    schedules = ("inverse:1e-12", "inverse:0.1", "inverse:1e-06")
    return [replace(spec, **{"schedule": text} | values) for spec, text in zip(specs, schedules, strict=True)]


def finish(training: Training) -> Training:
    for _ in training.advance():
        pass
    return training


@pytest.mark.parametrize("network", ["lenet5", "kerasnet"])
def test_member_trains_as_it_does_alone(network: str) -> None:
    specs = members(network)
    together = finish(Training(specs, FEED))
    for k, spec in enumerate(specs):
        alone = finish(Training([spec], FEED))
        for curve in ("train_loss", "test_loss"):
            torch.testing.assert_close(
                together.curves[curve][:, k], alone.curves[curve][:, 0], rtol=1e-3, atol=1e-4, msg=f"{spec} {curve}"
            )
        # an image between two classes may fall to either
        assert (together.curves["test_accuracy"][:, k] - alone.curves["test_accuracy"][:, 0]).abs().max() < 100 / 30 + 1
        own, other = (hullo.summary(t.population[i]).hulls for t, i in ((together, k), (alone, 0)))
        for name, hull in own.items():
            torch.testing.assert_close(hull.coefficients, other[name].coefficients, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("network", ["lenet5", "kerasnet"])
def test_per_channel_member_does_not_change_the_others(network: str) -> None:
    specs = members(network)
    without = finish(Training(specs, FEED))
    together = finish(Training([*specs, replace(specs[0], activation="prelu")], FEED))
    for name in ("train_loss", "test_loss"):
        torch.testing.assert_close(together.curves[name][:, :3], without.curves[name], rtol=1e-3, atol=1e-4)
    for k in range(3):
        before, after = (training.population[k].state_dict() for training in (without, together))
        for name in before:  # as a whole: where a maximum of pooling changes hands by rounding, single weights differ
            assert (after[name] - before[name]).norm() <= 1e-3 * before[name].norm() + 1e-4, f"{specs[k]} {name}"
    slopes = together.population[3].act1.coefficients[:, 0]
    assert len(slopes) == (20 if network == "lenet5" else 32)
    assert len(set(slopes.tolist())) > 1


@pytest.mark.parametrize("topk", [(1,), (1, 5)])
def test_image_without_finite_logits_is_wrong(topk: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InMemoryLoader, "topk", topk)
    training = Training([replace(spec, epochs=1) for spec in members()], FEED)
    with torch.no_grad():
        biases = training.population.get_parameter("stacked.linear2.bias")
        biases[1], biases[2, 0] = torch.nan, torch.inf
    training._end_epoch()
    assert training.curves["test_accuracy"][0, 1:].tolist() == [[0.0] * len(topk)] * 2
    assert training.curves["test_accuracy"][0, 0].min() > 0
    assert training.curves["finite"].tolist() == [[True, False, False]]


def test_prelu_learns_as_in_pytorch() -> None:
    sizes = {"in_channels": 1, "image_size": 28}
    ours = networks.build("lenet5", activation="prelu", seed=1, **sizes).double()
    theirs = networks.build("lenet5", activation="relu", seed=1, **sizes).double()
    for name, count in (("act1", 20), ("act2", 50), ("act3", 1)):
        setattr(theirs, name, nn.PReLU(count, init=0.0).double())
    optimizers = [torch.optim.RMSprop(network.parameters(), lr=1e-2, eps=1e-7) for network in (ours, theirs)]
    images, labels = DATA.train_images[:20].double() / 255, DATA.train_labels[:20]
    for _ in range(4):
        for network, optimizer in zip((ours, theirs), optimizers, strict=True):
            optimizer.zero_grad()
            F.cross_entropy(network(images), labels).backward()
            optimizer.step()
    for name in ("act1", "act2", "act3"):
        own = getattr(ours, name).coefficients.reshape(-1, 2)[:, 0]
        torch.testing.assert_close(own, getattr(theirs, name).weight, rtol=1e-6, atol=1e-8)
        assert own.abs().min() > 0
    torch.testing.assert_close(ours(images), theirs(images), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("network", "steps", "used"), [("lenet5", 3, 70), ("alexnet", 2, 64)])
def test_every_image_is_used_once_except_dropped_last_batch(
    network: str, steps: int, used: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(networks.NETWORKS, "alexnet", networks.NETWORKS["lenet5"])
    training = finish(Training(members(network, epochs=2, lr=0.0), FEED))
    assert training.steps == steps
    assert training.population.steps.tolist() == [2 * steps] * 3
    seeds = training.population.seeds
    for epoch in range(2):
        order = draw_order(seeds, epoch, 70)
        inputs = scale(move(DATA.train_images, order, draw_moves(seeds, epoch, order, (28, 28))))
        for k in range(3):
            logits = training.population[k](inputs[k])[:used]
            expected = F.cross_entropy(logits, DATA.train_labels[order[k]][:used]).item()
            assert training.curves["train_loss"][epoch, k].item() == pytest.approx(expected, rel=1e-5)


def test_test_and_val_curves_match_direct_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InMemoryLoader, "topk", (1, 3))
    data = DATA.split_validation(20, seed=0)
    training = finish(Training(members("kerasnet", epochs=1), InMemoryLoader(data)))
    assert data.eval_sets.keys() == {"test", "val"}
    for k in range(3):
        alone = training.population[k]
        assert not alone.training
        for name, (images, labels) in data.eval_sets.items():
            logits = alone(scale(images))
            better = (logits > logits.gather(1, labels[:, None])).sum(1)  # classes ranked above the right one
            accuracies = [100 * (better < top).double().mean().item() for top in (1, 3)]
            loss = F.cross_entropy(logits, labels).item()
            assert training.curves[f"{name}_loss"][0, k].item() == pytest.approx(loss, rel=1e-5)
            assert training.curves[f"{name}_accuracy"][0, k].tolist() == pytest.approx(accuracies)
    assert "val_loss" not in finish(Training(members(epochs=1), FEED)).curves


@pytest.mark.parametrize("lr", [1e30, float("3e38")])
def test_diverging_member_does_not_change_the_others(lr: float) -> None:
    specs = members()
    calm = finish(Training(specs, FEED))
    wild = finish(Training([specs[0], replace(specs[1], lr=lr), specs[2]], FEED))
    assert calm.curves["finite"].all()
    assert wild.curves["finite"].tolist() == [[True, False, True]] * 2
    for name, curve in calm.curves.items():
        assert torch.equal(curve[:, [0, 2]], wild.curves[name][:, [0, 2]]), name
    before, after = (t.population[2].state_dict() for t in (calm, wild))
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.fixture(scope="module")
def whole() -> dict[str, Tensor]:
    return finish(Training(members("kerasnet"), FEED)).state_dict()


@pytest.mark.parametrize("pause", [0, 2, 3, 4, 8])
def test_training_resumes_at_any_point_bit_for_bit(pause: int, whole: dict[str, Tensor]) -> None:
    first = Training(members("kerasnet"), FEED)
    moments = first.advance()
    for _ in range(pause):
        next(moments)
    state = {name: tensor.clone() for name, tensor in first.state_dict().items()}
    second = Training(members("kerasnet"), FEED)
    second.load_state_dict(state)
    again = finish(second).state_dict()
    assert whole.keys() == again.keys()
    assert all(torch.equal(whole[name], again[name]) for name in whole)


def test_bfloat16_computes_as_autocast_does() -> None:
    training = finish(Training(members(precision="bfloat16"), FEED))
    for k in range(3):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            logits = training.population[k](scale(DATA.test_images)).float()
        full = F.cross_entropy(training.population[k](scale(DATA.test_images)), DATA.test_labels)
        short, evaluated = F.cross_entropy(logits, DATA.test_labels), training.curves["test_loss"][-1, k]
        assert (evaluated - short).abs() < 0.1 * (full - short).abs()


def test_autocast_caches_no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    training, caches = Training(members(precision="bfloat16"), FEED), []
    compute = training._losses
    monkeypatch.setattr(
        training, "_losses", lambda *batch: (caches.append(torch.is_autocast_cache_enabled()), compute(*batch))[1]
    )
    next(training.advance())
    assert caches == [False]


def test_a_member_whose_weights_are_not_finite_has_diverged_even_if_its_losses_are() -> None:
    training = Training(members(), FEED)
    finish(training)
    hidden = next(p for p in training.population.parameters() if p.shape == (3, 500))
    with torch.no_grad():
        hidden[0, 0] = -torch.inf  # which ReLU, the first member's activation, makes 0
        training.population.eval()
        point = training._evaluate_members()
    assert point["test_loss"].isfinite().all()
    assert point["finite"].tolist() == [False, True, True]


def test_time_is_that_of_training_and_the_state_is_saved_as_often_as_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    training, ticks, saved = Training(members(), FEED), itertools.count(), []
    monkeypatch.setattr(loop.time, "monotonic", lambda: float(next(ticks)))
    moments = len([*training.run(Event(), lambda: saved.append(training.seconds), every=3)])
    assert moments > 6
    assert training.seconds == moments  # a second each, without those of saving
    assert saved == [*range(3, moments + 1, 3)]


@pytest.mark.parametrize("network", ["lenet5", "kerasnet"])
def test_memory_is_linear_in_members(network: str) -> None:
    def held(count: int) -> int:
        """Return the bytes of the state, and of what a step holds between its two passes."""
        specs = [replace(members(network)[k % 3], seed=k) for k in range(count)]
        training, known = Training(specs, FEED), {}

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            known[storage.data_ptr()] = (storage.nbytes(), tensor)  # which keeps its address from being used again
            return tensor

        batch = next(FEED.batches(training.population.seeds, 0, 4, 0))
        training._losses(*FEED.load_batch(*batch))  # which reads the networks' graph
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            losses, _ = training._losses(*FEED.load_batch(*batch))
        assert losses.requires_grad
        state = sum(tensor.nbytes for name, tensor in training.state_dict().items() if name != "position")
        return state + sum(size for size, _ in known.values())

    three, six, nine = held(3), held(6), held(9)
    assert 0 < three < six
    # the optimizer's count of updates and the like are there once
    assert abs((nine - six) - (six - three)) < 1e-3 * three


def test_gradients_are_those_of_the_mean_loss_also_of_a_smaller_last_batch() -> None:
    spec = replace(members()[0], batch_size=FEED.count - 3)
    training = Training([spec], FEED)
    _, last = FEED.batches(training.population.seeds, 0, spec.batch_size, 0)
    steps = training.advance()
    next(steps)
    losses, _ = training._losses(*FEED.load_batch(*last))
    assert losses.shape == (1, 3)
    parameters = list(training.population.parameters())
    expected = torch.autograd.grad(losses.mean(), parameters)
    next(steps)
    for parameter, gradient in zip(parameters, expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def test_alexnet_trains_by_sgd_with_step_schedule() -> None:
    images = DATA.train_images.expand(-1, 3, -1, -1).repeat(1, 1, 2, 2)  # 56 pixels on a side
    parts = images[:8], DATA.train_labels[:8], images[8:16], DATA.train_labels[8:16]
    loader = InMemoryLoader(Dataset("wide", DATA.classes, *parts))
    spec = Spec.default(
        "alexnet", "fashion-mnist-sample", "affine(identity,relu)", epochs=1, batch_size=4, schedule="step:1"
    )
    training = finish(Training([spec], loader))
    assert isinstance(training.optimizer, SGD)

    def rate(training: Training, updates: int) -> float:
        return float(training.optimizer.lr * training.optimizer.schedule(torch.tensor(updates).double()))

    assert rate(training, int(training.optimizer.updates)) == pytest.approx(0.001)
    for batch, updates in ((4, 3), (2, 7)):  # one update before 1 / decay = 2 epochs of 8 images are over
        slower = Training([replace(spec, schedule="step:2", batch_size=batch)], loader)
        assert rate(slower, updates) == pytest.approx(0.01)
        assert rate(slower, updates + 1) == pytest.approx(0.001)
    assert rate(Training([replace(spec, schedule="constant")], loader), 10**9) == pytest.approx(0.01)


class Centered(nn.Module):
    """Change a buffer in training."""

    def __init__(self, activation: Any, *, in_channels: int, image_size: int, num_classes: int) -> None:
        super().__init__()
        self.linear, self.act = nn.Linear(in_channels * image_size**2, num_classes), activation(num_classes)
        self.register_buffer("center", torch.zeros(num_classes))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x.flatten(1))
        if self.training:
            with torch.no_grad():
                self.center.mul_(0.9).add_(y.mean(0), alpha=0.1)
        return self.act(y - self.center)


def test_states_before_and_after_the_first_step_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(networks.NETWORKS, "lenet5", networks.Entry(Centered))
    specs = [Spec("lenet5", "fashion-mnist-sample", "relu", seed=k, epochs=1, batch_size=50) for k in range(2)]
    one, other = Training(specs, FEED), Training(specs, FEED)
    before = {name: tensor.clone() for name, tensor in one.state_dict().items()}
    next(one.advance())
    after = {name: tensor.clone() for name, tensor in one.state_dict().items()}
    other.load_state_dict(after)
    assert torch.equal(other.population[1].center, one.population[1].center)
    one.load_state_dict(before)
    assert not one.population[1].center.any()
    assert one.step == 0


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_only_weights_decay_and_biases_have_a_rate_of_their_own(name: str) -> None:
    def build() -> nn.Module:
        hull = hullo.AffineHull("identity", "relu", groups=3)
        return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), hull, nn.LayerNorm([3, 2, 2]), nn.Conv2d(3, 2, 2))

    def step(gradient: float, decay: float) -> dict[str, float]:
        """Return by how much a member's parameters change at most; the other has neither gradients nor decay."""
        population = Population([build(), build()], seeds=[0, 1])
        settings = {"lr": [1e-3] * 2, "weight_decay": [0.0, decay], "coefficient_lr_scale": [1.0] * 2}
        optimizer = make_optimizer(population, name, **settings, bias_lr_scale=2.0)
        before = {key: p.detach().clone() for key, p in population.named_parameters()}
        for p in population.parameters():
            p.grad = torch.zeros_like(p)
            p.grad[1] = gradient
        optimizer.step()
        changes = {key: (p.detach() - before[key]).abs() for key, p in population.named_parameters()}
        assert not any(change[0].any() for change in changes.values())
        return {key: change[1].max().item() for key, change in changes.items()}

    decayed = {key for key, change in step(gradient=0.0, decay=0.5).items() if change > 0}
    assert decayed == {"stacked.0.weight", "stacked.4.weight"}
    moved = step(gradient=1.0, decay=0.0)
    assert moved["stacked.4.bias"] == pytest.approx(2 * moved["stacked.4.weight"], rel=1e-3) != 0


@pytest.mark.parametrize(
    ("schedule", "factor"),
    [
        ("constant", lambda updates, steps, epochs: 1.0),
        ("cosine", lambda updates, steps, epochs: (1 + math.cos(math.pi * updates / (steps * epochs))) / 2),
        ("inverse:0.1", lambda updates, steps, epochs: 1 / (1 + 0.1 * updates)),
        ("step:1", lambda updates, steps, epochs: 0.1 ** (updates // steps)),
    ],
)
def test_rates_follow_the_schedule_from_the_first_update_on(schedule: str, factor: Callable[..., float]) -> None:
    training = Training(members(schedule=schedule)[:1], FEED)
    steps, epochs = training.steps, training.epochs
    counts = range(steps * epochs + 1)
    factors = torch.stack([training.optimizer.schedule(torch.tensor(u).double()) for u in counts]).flatten()
    expected = torch.tensor([factor(u, steps, epochs) for u in counts], dtype=torch.float64)
    torch.testing.assert_close(factors, expected, rtol=0, atol=1e-12)
    weight = training.population[0].linear2.weight.clone()
    training.optimizer.zero_grad()
    for parameter in training.population.parameters():
        parameter.grad = torch.ones_like(parameter)
    training.optimizer.step()  # RMSprop divides by the root of 0.1 times the square
    moved = (weight - training.population[0].linear2.weight).mean().item()
    assert moved == pytest.approx(1e-3 / 0.1**0.5, rel=1e-3)


def test_sgd_has_momentum_and_coefficients_a_rate_of_their_own() -> None:
    spec = Spec("lenet5", "fashion-mnist-sample", "affine(identity,tanh)", optimizer="sgd", lr=1.0, schedule="constant")
    training = Training([spec, replace(spec, coefficient_lr_scale=10.0)], FEED)
    next(training.advance())
    slow, fast = training.population.activations.coefficients.detach() - training.start
    assert slow.abs().max() > 1e-4
    torch.testing.assert_close(fast, 10 * slow, rtol=1e-2, atol=1e-6)
    training = Training([spec], FEED)
    before = training.population[0].linear2.weight.clone()
    for parameter in training.population.parameters():
        parameter.grad = torch.ones_like(parameter)
    for _ in range(2):
        training.optimizer.step()
    moved = (before - training.population[0].linear2.weight).mean().item()
    assert moved == pytest.approx(1 + 1.9, rel=1e-3)
