"""On a Ray cluster, a comparison trains the same runs, and only its own process writes."""

from __future__ import annotations

import importlib.util
import os
import pickle
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import nn

from hullo.lab import compare
from hullo.lab.comparison.budget import Plan
from hullo.lab.comparison.work import RayWorkers
from hullo.lab.errors import RunError
from hullo.lab.networks import OwnNetwork
from hullo.lab.run import cluster
from hullo.lab.run.cluster import connect
from hullo.lab.signals import stop_request

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray")
X = torch.randn(240, 4, generator=torch.Generator().manual_seed(0))
LABELS = (X[:, 0] * X[:, 1] > 0).long()


@pytest.fixture(autouse=True, scope="module")
def environment() -> Iterator[None]:
    """Hide a cluster that the machine may have, and undo what is set for Ray, which keeps one token per process."""
    with patch.dict(os.environ):
        os.environ.pop("RAY_ADDRESS", None)
        yield


class Anything:
    """A setup whose data can be moved to a device."""

    def __init__(self) -> None:
        self.data, self.to = self, lambda device: None


def double(setup: Any, number: int) -> int:
    return 2 * number


def fill_memory(setup: Any, number: int) -> None:
    raise torch.OutOfMemoryError(f"no memory for {number}")


def refuse(setup: Any, number: int) -> None:
    raise ValueError(f"{number} is refused")


def be_killed_once(setup: Any, path: Path) -> str:
    if not path.exists():
        path.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "done"


def sleep(setup: Any, seconds: float) -> None:
    time.sleep(seconds)


@needs_ray
def test_tasks_return_raise_restart_and_stop(tmp_path: Path) -> None:
    setup: Any = Anything()
    with connect():
        workers = RayWorkers(0.0)
        assert sorted(workers.map(double, setup, [1, 2, 3], show=print)) == [2, 4, 6]
        with pytest.raises(torch.OutOfMemoryError, match="for 7"):
            list(workers.map(fill_memory, setup, [7]))
        with pytest.raises(RunError, match="on the cluster: 8 is refused"):
            list(workers.map(refuse, setup, [8]))
        assert list(workers.map(be_killed_once, setup, [tmp_path / "killed"])) == ["done"]
        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt), stop_request() as stop:  # noqa: PT012
            stop.set()
            list(workers.map(sleep, setup, [600.0]))
        assert time.monotonic() - started < 300


def save_when_stopped(started: Path, saved: Path) -> None:
    started.touch()
    try:
        while True:
            time.sleep(0.1)
    except KeyboardInterrupt:
        time.sleep(1)
        saved.touch()


@needs_ray
def test_tasks_that_are_stopped_save_their_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started, saved = tmp_path / "started", tmp_path / "saved"

    def stop() -> None:
        if started.exists():
            raise KeyboardInterrupt

    monkeypatch.setattr(cluster, "check_stop", stop)
    with pytest.raises(KeyboardInterrupt), connect():
        list(cluster.run_tasks(save_when_stopped, {"task": (started, saved)}, 0.0))
    assert saved.exists()


@needs_ray
def test_a_comparison_on_a_cluster_is_the_one_that_is_made_here(tmp_path: Path) -> None:
    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))

    options: dict[str, Any] = {"minutes": 10.0, "epochs": 2, "lr": 1e-2, "seeds": 3, "quiet": True}
    options |= {"candidates": ["tanh", "hull"]}
    here = compare(network, (X, LABELS), output=tmp_path / "here", **options)
    there = compare(network, (X, LABELS), output=tmp_path / "there", engine="ray", **options | {"minutes": 20.0})
    assert there.folder.name == here.folder.name
    shared = here.store.records.keys() & there.store.records.keys()
    assert {trial.candidate for trial in shared} == set(here.setup.candidates)
    assert set(there.choice.confirmation(3)) <= there.store.records.keys()
    for trial in shared:
        one, two = (result.store.records[trial] for result in (here, there))
        assert one.train_loss == pytest.approx(two.train_loss, rel=1e-4)
        assert one.val_accuracy == pytest.approx(two.val_accuracy)
    for trial in there.choice.confirmation(3):
        scores = there.store.load_examples(trial)
        assert scores is not None
        assert scores.mean() == pytest.approx(there.store.score(trial).test, abs=0.01)
    for row in there.rows:
        assert there.network_of(row.candidate)(X).isfinite().all()


def test_a_network_in_a_file_is_read_again_by_other_processes_and_has_to_be_the_same(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("from torch import nn\ndef net():\n    return nn.Linear(2, 3)\n")
    network = OwnNetwork.open(f"{tmp_path / 'net.py'}:net")
    sent = pickle.dumps(network)
    assert pickle.loads(sent).factory()().out_features == 3
    (tmp_path / "net.py").write_text("from torch import nn\ndef net():\n    return nn.Linear(2, 4)\n")
    with pytest.raises(ValueError, match="differs here"):
        pickle.loads(sent)


def test_work_is_shared_by_the_workers() -> None:
    plan = Plan((0.1,), members=8, epochs=2, setup=3.0, fixed=1.0, each=0.5)
    both = Plan((0.1,), members=8, epochs=2, setup=3.0, fixed=1.0, each=0.5, workers=2)
    assert plan.seconds(16) == 2 * both.seconds(16) == 2 * (3.0 + 2 * 1.0) + 2 * 0.5 * 16
    assert both.seconds(1) == plan.seconds(1)


def test_an_engine_that_is_not_there_is_named() -> None:
    for changes, words in (
        ({"engine": "dask"}, "available: local, ray"),
        ({"engine": "ray", "device": "cpu"}, "needs engine=local"),
    ):
        with pytest.raises(ValueError, match=words):
            compare(nn.Identity, (X, LABELS), **changes)  # type: ignore[arg-type]
