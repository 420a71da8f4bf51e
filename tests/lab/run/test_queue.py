"""Test that the queue contains each missing run exactly once."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_command

from hullo.lab.run.loaders import InMemoryLoader
from hullo.lab.run.local import build_records
from hullo.lab.run.queue import Members, RunQueue
from hullo.lab.run.training import Training
from hullo.lab.spec.environment import environment
from hullo.lab.spec.run_spec import Spec

DATA = InMemoryLoader(tiny_command.load("fashion-mnist-sample"))
SPECS = [
    Spec("lenet5", "fashion-mnist-sample", row, seed=seed, epochs=1, batch_size=batch)
    for batch in (32, 64)
    for row in ("relu", "affine(identity,tanh)")
    for seed in (0, 1, 2)
]


def sizes(queue: RunQueue) -> list[int]:
    return [len(population) for population in queue.populations()]


def begin(queue: RunQueue, *population: Spec) -> Training:
    """Train a population and leave its checkpoint."""
    training = Training(population, DATA)
    for _ in training.advance():
        pass
    queue.checkpoints.folder.mkdir(parents=True, exist_ok=True)
    queue.checkpoints.save(training)
    return training


def commit(queue: RunQueue, training: Training) -> None:
    queue.commit(training.specs, build_records(training, environment("here")))


def test_every_run_is_in_one_population_of_its_key(tmp_path: Path) -> None:
    populations = RunQueue([*SPECS, SPECS[0]], tmp_path).populations()
    assert [spec for population in populations for spec in population] == SPECS
    assert [len({spec.population_key for spec in population}) for population in populations] == [1, 1]


@pytest.mark.parametrize(("members", "expected"), [(None, [6, 6]), (4, [4, 2, 4, 2]), (1, [1] * 12), (9, [6, 6])])
def test_number_of_members_is_limited(members: int | None, expected: list[int], tmp_path: Path) -> None:
    assert sizes(RunQueue(SPECS, tmp_path, members)) == expected


def test_populations_too_large_for_memory_are_halved(tmp_path: Path) -> None:
    queue = RunQueue(SPECS, tmp_path)
    begin(queue, *queue.populations()[0])  # its checkpoint is of the whole population
    assert queue.split_in_half(queue.populations()[0]) == "6 networks do not fit into memory; trying 3 at a time"
    assert sizes(queue) == [3, 3, 6]
    assert queue.split_in_half(queue.populations()[0]) == "3 networks do not fit into memory; trying 2 at a time"
    assert sizes(queue) == [2, 2, 2, 6]
    alone: Members = (SPECS[0],)
    with pytest.raises(ValueError, match=r"^lenet5/fashion-mnist-sample relu .*--batch-size"):
        queue.split_in_half(alone)


def test_started_populations_come_first_unchanged(tmp_path: Path) -> None:
    queue = RunQueue(SPECS, tmp_path, members=2)
    begin(queue, SPECS[8], SPECS[6], SPECS[7])
    first, *others = queue.populations()
    assert first == (SPECS[8], SPECS[6], SPECS[7])
    assert [spec for population in others for spec in population] == [*SPECS[:6], *SPECS[9:]]


def test_recorded_and_excluded_runs_are_skipped(tmp_path: Path) -> None:
    queue = RunQueue(SPECS[:6], tmp_path)
    training = begin(queue, *SPECS[:2])
    assert queue.populations(exclude=set(SPECS[:2])) == [tuple(SPECS[2:6])]
    commit(queue, training)
    assert queue.populations() == [tuple(SPECS[2:6])]
    assert queue.populations(exclude=set(SPECS)) == []
    assert not queue.checkpoints.started()


def test_results_have_the_order_of_the_runs_and_each_once(tmp_path: Path) -> None:
    queue = RunQueue([SPECS[1], SPECS[0], SPECS[1]], tmp_path)
    commit(queue, begin(queue, *SPECS[:3]))
    assert [record.spec for record in queue.results()] == [SPECS[1], SPECS[0]]
