"""Captures of steps survive what goes on in the process around them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hullo.population import SGD, AugmentedImages, Population, capture, graphs
from hullo.population.graphs import pause_collection


class Node:
    def __init__(self) -> None:
        self.own: Any = self  # only a collection of garbage deletes it


@pytest.fixture
def eager_collection() -> Iterator[None]:
    """Collect garbage at every chance."""
    before = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    yield
    gc.set_threshold(*before)


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
def test_garbage_is_collected_before_a_capture_and_a_collector_that_was_off_stays_off() -> None:
    old = weakref.ref(Node())
    with pause_collection():
        assert old() is None
    assert not gc.isenabled()


@pytest.mark.usefixtures("eager_collection")
def test_garbage_is_not_collected_during_a_capture() -> None:
    with pause_collection():
        new = weakref.ref(Node())
        made = [Node() for _ in range(100)]
        assert new() is not None
    made += [Node() for _ in range(100)]
    assert new() is None


@pytest.mark.gpu
@pytest.mark.usefixtures("eager_collection")
def test_another_graph_may_become_garbage_during_a_capture() -> None:
    x = torch.ones(3, device="cuda")
    other: Any = capture(lambda x: x + 1)
    other(x)
    other.own = other
    kept = [other]
    del other

    def step(x: Tensor) -> Tensor:
        if torch.cuda.is_current_stream_capturing():
            kept.clear()
            assert len([Node() for _ in range(100)]) == 100  # objects enough for a collection
        return x * 2

    assert capture(step)(x).tolist() == [2, 2, 2]


class FakeGraph:
    """Replay a step by taking it again, on the tensors of the capture, and write what it returned there."""

    made: list[FakeGraph]

    def __init__(self, step: Callable[[], Any]) -> None:
        for _ in range(graphs.WARM_UP):
            step()
        self.step, self.returned = step, step()
        self.made.append(self)

    def replay(self) -> None:
        again = self.step()
        if isinstance(again, Tensor):
            self.returned.copy_(again)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeGraph]:
    """Capture on a CPU."""

    def record(step: Callable[[], Any], device: torch.device, pool: Any) -> tuple[FakeGraph, Any]:
        graph = FakeGraph(step)
        return graph, graph.returned

    monkeypatch.setattr(graphs, "_record", record)
    monkeypatch.setattr(graphs, "_has_graphs", lambda device: True)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
    FakeGraph.made = []
    return FakeGraph


def regression(shared: bool = False) -> tuple[Population, SGD, Callable[..., Tensor]]:
    population = Population(lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), seeds=range(3))
    optimizer = SGD(population, lr=[0.1, 0.2, 0.3], momentum=0.9)

    def step(x: Tensor, y: Tensor) -> Tensor:
        losses = (population(x, in_dims=None if shared else 0) - y).square().flatten(1).mean(1)
        optimizer.zero_grad()
        losses.sum().backward()
        optimizer.step()
        return losses.detach()

    return population, optimizer, step


def test_inputs_of_another_shape_have_a_graph_of_their_own(fake: type[FakeGraph]) -> None:
    batches = [(torch.randn(3, size, 4), torch.randn(3, size, 3)) for size in (8, 8, 5, 8, 5)]
    losses = []
    for captured in (False, True):
        population, optimizer, step = regression()
        taken = capture(step, population, optimizer) if captured else step
        losses.append([taken(*batch).clone() for batch in batches])
        losses[-1].append(population.state_dict()["stacked.0.weight"])
    for plain, own in zip(*losses, strict=True):
        torch.testing.assert_close(own, plain, rtol=0, atol=0)
    assert len(fake.made) == 2


def test_a_step_without_arguments_is_captured(fake: type[FakeGraph]) -> None:
    population, optimizer, step = regression(shared=True)
    x, y = torch.randn(8, 4), torch.randn(8, 3)
    taken = capture(lambda: step(x, y), population, optimizer)
    losses = [float(taken().sum()) for _ in range(3)]
    assert len(fake.made) == 1
    assert losses[2] < losses[0]
    assert optimizer.updates == 3


def test_nested_and_named_arguments_and_modes_are_captured(fake: type[FakeGraph]) -> None:
    population = Population(lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), seeds=range(3))
    taken = capture(lambda batch, scale=1.0: scale * population(batch["x"], in_dims=None), population)
    x = torch.randn(2, 4)
    for _ in range(2):
        population.train()
        assert (taken({"x": x}) == 0).any()
        population.eval()
        torch.testing.assert_close(taken({"x": x}), population(x, in_dims=None))
        torch.testing.assert_close(taken({"x": x}, scale=2.0), 2 * population(x, in_dims=None))
    assert len(fake.made) == 3


def test_an_input_that_requires_a_gradient_is_a_leaf_of_every_step(fake: type[FakeGraph]) -> None:
    population = Population(lambda: nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1)), seeds=range(3))

    def slope(x: Tensor) -> Tensor:
        assert x.is_leaf
        (by_grad,) = torch.autograd.grad(population(x).sum(), x, create_graph=True)
        population(x).sum().backward()
        torch.testing.assert_close(x.grad, by_grad.detach())  # not a sum over steps
        return by_grad.detach()

    taken, points = capture(slope, population), [torch.randn(3, 5, 1, requires_grad=True) for _ in range(3)]
    for x in points:
        x.grad = None
        expected = torch.autograd.grad(population(x).sum(), x)[0]
        torch.testing.assert_close(taken(x), expected)
        assert x.grad is None
        assert x.grad_fn is None
    assert len(fake.made) == 1
    assert all(tensor.grad_fn is None for graph in taken.graphs.values() for tensor in graph.inputs)  # type: ignore[attr-defined]


def test_too_many_kinds_of_inputs_are_said_and_run_without_a_graph(
    fake: type[FakeGraph], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "MAX_GRAPHS", 2)
    taken = capture(lambda x: x + 1)
    for size in (1, 2):
        taken(torch.zeros(size))
    with pytest.warns(UserWarning, match="Pad"):
        assert taken(torch.zeros(3)).tolist() == [1, 1, 1]
    assert len(fake.made) == 2


def test_numbers_of_other_types_and_modes_of_autocast_have_graphs_of_their_own(fake: type[FakeGraph]) -> None:
    taken = capture(lambda x, number: x @ x if number is True else x @ x + number)
    x = torch.eye(3)
    assert taken(x, True).equal(x)
    assert taken(x, 1).equal(x + 1)
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype):
            assert taken(x, True).dtype == dtype
    assert len(fake.made) == 4


def test_steps_with_and_without_gradients_have_graphs_of_their_own(fake: type[FakeGraph]) -> None:
    population = Population([nn.Linear(3, 3)])
    needed = []
    taken = capture(lambda x: needed.append(population(x).requires_grad), population, check=False)
    for enabled in (True, False):
        with torch.set_grad_enabled(enabled):
            taken(torch.ones(1, 2, 3))
            assert needed[-1] is enabled
    assert len(fake.made) == 2


def test_inputs_that_require_gradients_have_graphs_of_their_own(fake: type[FakeGraph]) -> None:
    taken = capture(lambda x: torch.tensor(x.requires_grad))
    assert [bool(taken(torch.ones(2, requires_grad=needed))) for needed in (True, False)] == [True, False]


def test_a_graph_reads_inputs_on_its_device(fake: type[FakeGraph], monkeypatch: pytest.MonkeyPatch) -> None:
    """What it reads from the host would stay as it was in the capture."""
    seen = []
    taken = capture(lambda x: seen.append(x.device.type))
    monkeypatch.setattr(type(taken), "_device", torch.device("meta"))
    monkeypatch.setattr(type(taken), "_modes", lambda self, device: ())
    taken(torch.tensor(0.1))
    assert {*seen} == {"meta"}


def test_a_step_is_captured_again_after_the_population_was_moved(fake: type[FakeGraph]) -> None:
    population, optimizer, step = regression()
    taken = capture(step, population, optimizer)
    for _ in range(2):
        taken(torch.randn(3, 8, 4), torch.randn(3, 8, 3))
        population.to("cpu")
    assert len(fake.made) == 2


def test_what_is_neither_tensor_nor_number_is_rejected(fake: type[FakeGraph]) -> None:
    images = AugmentedImages(torch.zeros(1, 1, 2, 2).byte(), torch.zeros(1, 1).long(), torch.zeros(1, 1, 3))
    with pytest.raises(TypeError, match="AugmentedImages"):
        capture(lambda batch: batch.tensor())(images)
    assert not fake.made


def test_a_step_is_captured_again_after_members_were_dropped(fake: type[FakeGraph]) -> None:
    x, y = torch.randn(8, 4), torch.randn(8, 3)
    results = []
    for captured in (False, True):
        population, optimizer, step = regression(shared=True)
        taken = capture(step, population, optimizer) if captured else step
        taken(x, y)
        population.keep([2, 0])
        results.append([taken(x, y).clone(), taken(x, y).clone(), population.state_dict()["stacked.0.weight"]])
        assert len(results[-1][0]) == 2
    for plain, own in zip(*results, strict=True):
        torch.testing.assert_close(own, plain, rtol=0, atol=0)
    assert len(fake.made) == 2


class Averaging(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        if self.training:
            self.mean.add_(y.detach().mean(0))
        return y - self.mean


@pytest.mark.parametrize("reason", ["training", "loading", "writing"])
def test_a_step_is_captured_again_after_buffers_came_to_differ(fake: type[FakeGraph], reason: str) -> None:
    population, x = Population(Averaging, seeds=range(2)).eval(), torch.randn(5, 4)
    taken = capture(lambda x: population(x, in_dims=None).detach(), population, check=False)
    taken(x)  # the buffers are equal, and computed with once
    if reason == "training":
        population.train()
        taken(x)
        taken(x)
        population.eval()
    elif reason == "loading":
        population.load_state_dict(population.state_dict() | {"stacked.mean": torch.arange(6.0).view(2, 3)})
    else:
        population.stacked.get_buffer("mean")[1] = 3
    expected = torch.stack([population[k](x) for k in range(2)])
    torch.testing.assert_close(taken(x), expected)
    assert len(fake.made) == (3 if reason == "training" else 2)


def test_a_failed_capture_leaves_the_state_as_it_was(fake: type[FakeGraph]) -> None:
    population, optimizer, step = regression()
    before = {name: tensor.clone() for name, tensor in (population.state_dict() | optimizer.state_dict()).items()}

    def broken(x: Tensor, y: Tensor) -> Tensor:
        step(x, y)
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        capture(broken, population, optimizer)(torch.randn(3, 8, 4), torch.randn(3, 8, 3))
    for name, tensor in (population.state_dict() | optimizer.state_dict()).items():
        assert tensor.equal(before[name]), name


@pytest.mark.gpu
def test_graphs_of_two_shapes_share_memory_and_train_as_without_graphs() -> None:
    batches = [(torch.randn(3, size, 4).cuda(), torch.randn(3, size, 3).cuda()) for size in (8, 8, 5, 8, 5, 8)]
    results = []
    for captured in (False, True):
        torch.manual_seed(0)
        population = Population(lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh()), seeds=range(3)).cuda()
        optimizer = SGD(population, lr=0.1, momentum=0.9)

        def step(x: Tensor, y: Tensor, population: Any = population, optimizer: Any = optimizer) -> Tensor:
            losses: Tensor = (population(x) - y).square().flatten(1).mean(1)
            optimizer.zero_grad()
            losses.sum().backward()
            optimizer.step()
            return losses.detach()

        taken = capture(step, population, optimizer) if captured else step
        results.append([taken(*batch).clone() for batch in batches])
    for plain, own in zip(*results, strict=True):
        torch.testing.assert_close(own, plain)


def test_a_step_under_autocast_reads_the_weights_of_its_time(fake: type[FakeGraph]) -> None:
    """Autocast keeps its copies of weights until it ends."""
    weight, seen = torch.zeros(1, 1, requires_grad=True), []

    def step(x: Tensor) -> Tensor:
        y = x @ weight
        seen.append(float(y.detach()))
        with torch.no_grad():
            weight.add_(1)
        return y.detach()

    with torch.autocast("cpu", torch.bfloat16):
        capture(step)(torch.ones(1, 1))
    assert seen[: graphs.WARM_UP + 1] == [*range(graphs.WARM_UP + 1)]
