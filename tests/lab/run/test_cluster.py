"""Test training on a real Ray cluster: after any kill, the records are those of a run without a cluster."""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import own_network
import pytest
import tiny_command
from safetensors.torch import load
from tiny_command import COLUMN, ROWS, Command, results
from typer.testing import CliRunner

from hullo.lab.cli import app
from hullo.lab.run.cluster import RayRunner, _train, choose_gpus, connect
from hullo.lab.run.queue import RunQueue
from hullo.lab.run.training import Training
from hullo.lab.spec.records import Record, Records
from hullo.lab.spec.run_spec import Spec

REPRODUCE = (*tiny_command.REPRODUCE, "8")
CPU, RAY = ("--device", "cpu"), ("--engine", "ray", "--checkpoint-every", "0")
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray")

ENVIRONMENT = {
    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "GIT_DIR": os.devnull,  # a commit that is made meanwhile is no difference
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(),
}
WORKERS = {"runtime_env": {"worker_process_setup_hook": "tiny_worker.set_up"}, "metadata": {}}

HEAD = """
import ray
print(ray.init("local", num_cpus=1, include_dashboard=False, object_store_memory=2**27).address_info["address"])
input()
"""


def start(*arguments: object) -> Command:
    """Start the command; on a cluster, its workers are those of tiny_worker."""
    return Command(*arguments, **ENVIRONMENT, RAY_JOB_CONFIG_JSON_ENV_VAR=json.dumps(WORKERS))


def reached(output: Path) -> list[tuple[float, ...]]:
    """Return the epoch and the step of each checkpoint."""
    positions = []
    for path in (output / "checkpoints").glob("*.safetensors"):
        with suppress(FileNotFoundError):
            tensors = load(path.read_bytes())  # at once, as the file may be replaced at any time
            positions.append(tuple(tensors["position"][:2].tolist()))
    return positions


def watch(epoch: int, output: Path, process: Command) -> list[tuple[float, ...]]:
    """Return the positions of the checkpoint until it has reached an epoch or the process has ended."""
    positions = reached(output)
    while process.poll() is None and max(positions, default=(0, 0)) < (epoch, 0):
        time.sleep(0.01)
        positions += reached(output)
    return positions


def descendants(process: int) -> Iterator[int]:
    for thread in Path(f"/proc/{process}/task").glob("*/children"):
        for child in map(int, thread.read_text().split()):
            yield child
            yield from descendants(child)


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """Hide a cluster that the machine may have, and undo what a command sets for Ray."""
    with patch.dict(os.environ):
        os.environ.pop("RAY_ADDRESS", None)
        yield


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return the output of a run without a cluster, and what it said."""
    output = tmp_path_factory.mktemp("here")
    message, _ = start(*REPRODUCE, *CPU, "--output", output, "--quiet").finish()
    return output, message


@pytest.fixture(scope="module")
def head() -> Iterator[tuple[int, str]]:
    """Yield a cluster: the process that holds it, and its address."""
    process = subprocess.Popen(
        [sys.executable, "-c", HEAD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | ENVIRONMENT,
    )
    assert process.stdout is not None
    yield process.pid, process.stdout.readline().strip()
    process.communicate("\n", timeout=60)


@needs_ray
def test_local_cluster_gives_the_same_records(here: tuple[Path, str], tmp_path: Path) -> None:
    output, errors = start(*REPRODUCE, *RAY, "--output", tmp_path).finish()
    progress = errors.splitlines()
    assert results(tmp_path) == results(here[0])
    assert output.replace(str(tmp_path), str(here[0])) == here[1]
    name = f"{COLUMN}: 3 networks"
    assert progress[0].startswith(f"{name} finished on {socket.gethostname()}, test accuracy ")
    assert len(progress) == 1  # Ray itself says nothing
    assert not reached(tmp_path)


@needs_ray
def test_killed_task_killed_command_and_stopped_command_are_resumed(
    here: tuple[Path, str], head: tuple[int, str], tmp_path: Path
) -> None:
    command = (*REPRODUCE, *RAY, "--ray-address", head[1], "--output", tmp_path)
    process = start(*command)
    *_, killed_at = watch(1, tmp_path, process)
    (worker,) = (
        child for child in descendants(head[0]) if b"ray::_train" in Path(f"/proc/{child}/cmdline").read_bytes()
    )
    os.kill(worker, signal.SIGKILL)
    positions = watch(int(killed_at[0]) + 1, tmp_path, process)
    assert (1, 0) <= killed_at <= min(positions) < max(positions)
    process.kill()
    (killed_at,) = reached(tmp_path)

    process = start(*command)
    positions = watch(int(killed_at[0]) + 1, tmp_path, process)
    assert (2, 0) <= killed_at <= min(positions) < max(positions)
    os.killpg(process.pid, signal.SIGINT)
    code, _, errors = process.wait()
    assert code == 130
    assert errors.startswith(f"hullo: stopped; progress is saved in {tmp_path}; resume with: hullo reproduce")
    (stopped_at,) = reached(tmp_path)

    output, errors = start(*REPRODUCE, *CPU, "--output", tmp_path).finish()  # without a cluster, too
    assert errors.startswith(f"[{stopped_at[0] + 1:.0f}/8] {COLUMN}: 3 networks")
    assert results(tmp_path) == results(here[0])
    assert output.replace(str(tmp_path), str(here[0])) == here[1]


@needs_ray
def test_failed_population_does_not_stop_the_others(head: tuple[int, str], tmp_path: Path) -> None:
    missing, large = "lenet5/cifar10", "kerasnet/fashion-mnist-sample"
    process = start(
        *(*REPRODUCE, missing, large, *RAY, "--ray-address", head[1]),
        *("--data", tmp_path / "data", "--output", tmp_path),
    )
    code, message, errors = process.wait(120)
    assert (code, message) == (1, "")
    assert "trying 2 at a time" in errors
    assert errors.splitlines()[-1].startswith(f"hullo: on {socket.gethostname()}: ")
    assert "hullo data fetch cifar10" in errors.splitlines()[-1]
    assert "Traceback" not in errors
    result = sorted((line["spec"]["network"], line["members"]) for line in results(tmp_path))
    assert result == [("kerasnet", 1), ("kerasnet", 2), ("kerasnet", 2), *3 * [("lenet5", 3)]]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RayRunner:
    """Return two runs of which tests make tasks in this process."""
    monkeypatch.setattr("hullo.lab.data.load", tiny_command.load)
    specs = [Spec("lenet5", "fashion-mnist-sample", row, epochs=1, batch_size=32) for row in ROWS[:2]]
    return RayRunner(RunQueue(specs, tmp_path))


def work(cluster: RayRunner) -> list[Record]:
    (population,) = cluster.queue.populations()
    node, records = _train(cluster, population)
    assert node == socket.gethostname()
    return records


def test_finished_but_unrecorded_population_is_not_trained_again(
    cluster: RayRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = work(cluster)
    monkeypatch.setattr(Training, "_take_step", None)
    assert work(cluster) == records


def test_task_finished_by_another_process_returns_no_records(cluster: RayRunner) -> None:
    (population,) = cluster.queue.populations()
    records = work(cluster)
    assert records
    cluster.queue.commit(population, records)
    assert _train(cluster, population)[1] == []


def test_the_cluster_is_that_of_the_environment_unless_an_address_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    for given, used in ((None, "127.0.0.1:1"), ("127.0.0.1:2", "127.0.0.1:2")):
        with pytest.raises(ValueError, match=f"no Ray cluster answers at {used}: "), connect(given):
            pass


def test_missing_ray_is_one_line_with_install_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    result = CliRunner().invoke(app, [*REPRODUCE, *RAY, "--output", str(tmp_path / "new")])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("hullo: Ray is not installed")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("expected", "actual", "chosen"),
    [(None, (0, 4), 1), (None, (0, 0), 0), (0, (8, 8), 0), (0.25, (1, 0), 0.25), (1, (2,), 1)],
)
def test_task_gets_a_gpu_if_available(
    expected: float | None, actual: tuple[int, ...], chosen: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines(monkeypatch, *actual)
    assert choose_gpus(expected) == chosen


def test_unavailable_gpus_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    machines(monkeypatch, 0, 0)
    with pytest.raises(ValueError, match=r"^gpus_per_task=0.5: .*give 0"):
        choose_gpus(0.5)


def machines(monkeypatch: pytest.MonkeyPatch, *gpus: int) -> None:
    """Patch the cluster: machines with these numbers of GPUs, and a dead one with many."""
    alive = [{"Alive": True, "Resources": {"CPU": 2.0} | ({"GPU": float(count)} if count else {})} for count in gpus]
    nodes = [*alive, {"Alive": False, "Resources": {"GPU": 8.0}}]
    monkeypatch.setattr("hullo.lab.run.cluster.import_ray", lambda: SimpleNamespace(nodes=lambda: nodes))


@needs_ray
def test_user_networks_and_data_give_the_same_records(head: tuple[int, str], tmp_path: Path) -> None:
    command = ("reproduce", own_network.make(tmp_path), "--activation", "affine(identity,tanh)", "--seeds", "2")
    command = (*command, "--epochs", "2", "--weights")
    start(*command, *RAY, "--ray-address", head[1], "--output", tmp_path / "cluster").finish()
    alone = CliRunner().invoke(app, [*command, *CPU, "--quiet", "--output", str(tmp_path / "alone")])
    assert alone.exit_code == 0, alone.output
    cluster, here = (Records(tmp_path / name / "records.jsonl").read() for name in ("cluster", "alone"))
    losses = [{record.spec: record.train_loss for record in records} for records in (cluster, here)]
    assert losses[0].keys() == losses[1].keys()
    for spec, loss in losses[0].items():
        assert loss == pytest.approx(losses[1][spec], rel=1e-5)
    assert len(list((tmp_path / "cluster" / "weights").iterdir())) == 2
