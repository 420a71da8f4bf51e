"""The populations of a plan as tasks of a Ray cluster: each trains where there is room; none is lost with a machine.

Tasks leave checkpoints in the plan's output directory, which all machines share, and give their records to the process
that asked for them; it alone writes records. So a task whose process or machine dies begins again from its checkpoint,
and a command that dies, too; and what one engine began, another finishes.
"""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from secrets import token_hex
from typing import Any
from uuid import uuid4

import torch
from rich.console import Console

from hullo._signals import stop_request
from hullo.lab.errors import RunError
from hullo.lab.files import open_regular
from hullo.lab.progress import Progress
from hullo.lab.run.loaders import loader_key, open_loader
from hullo.lab.run.local import LocalRunner, describe_accuracies
from hullo.lab.run.queue import Population, RunQueue, does_not_fit, title
from hullo.lab.run.sources import Source
from hullo.lab.run.tensorboard import TensorBoardLogger
from hullo.lab.spec.environment import choose_device, device_name, environment
from hullo.lab.spec.records import Record

PATIENCE = 5.0
"""Seconds in which a cluster has to answer."""

RETRIES = 20
"""How often a task may be lost with its process or its machine, on its way from checkpoint to checkpoint."""

CALM = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS_SKIP_REGEX": "."}
"""What keeps Ray from reporting home, and from speaking where results are read."""

BRIEF = {
    "RAY_NUM_REDIS_GET_RETRIES": "1",
    "RAY_gcs_rpc_server_connect_timeout_s": "1",
    "RAY_py_gcs_connect_timeout_s": f"{PATIENCE:g}",
}
"""What keeps Ray from knocking at a strange door for a quarter of an hour."""

MARK = ".mark"
"""The file that an output directory is known by on another machine."""


@contextmanager
def connect(address: str | None) -> Iterator[None]:
    """The Ray cluster at an address, or at `RAY_ADDRESS`, else one of this machine alone that ends with the block."""
    address = address or os.environ.get("RAY_ADDRESS")
    options: dict[str, Any] = {"address": address or "local", "log_to_driver": False, "logging_level": "ERROR"}
    if address:
        _check(address)
        os.environ.update(CALM | BRIEF)
    else:
        options |= {"include_dashboard": False, "object_store_memory": 2**27}
        os.environ.update(CALM | {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"})  # off the network, as Ray is there
        if os.environ.setdefault("RAY_AUTH_MODE", "token") == "token":
            os.environ.setdefault("RAY_AUTH_TOKEN", token_hex())  # else Ray leaves one in the home directory
    ray = _ray()
    try:
        with _hushed():
            ray.init(**options)
    except (OSError, RuntimeError) as error:
        reason = "none runs on this machine" if address == "auto" else str(error).splitlines()[0]
        raise ValueError(f"cannot join a Ray cluster at {options['address']}: {reason}") from error
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def _hushed() -> Iterator[None]:
    """With nothing on standard error, where Ray's own code would warn while it tries to connect."""
    with open(os.devnull, "wb") as nowhere:
        default = os.dup(2)
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(default, 2)
        os.close(default)


def _ray() -> Any:
    try:
        return import_module("ray")
    except ModuleNotFoundError as error:
        raise ValueError("Ray is not installed; get it with: pip install 'hullo[ray]'") from error


def _check(address: str) -> None:
    """Ray itself would try for minutes."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ValueError(
            f"{address!r} is no address of a Ray cluster: write host:port, as `ray start --head` prints it, or auto; "
            "and do so on one of its machines"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), PATIENCE).close()
    except OSError as error:
        raise ValueError(f"no Ray cluster answers at {address}: {error.strerror or error}; is it running?") from error


def choose_gpus(wanted: float | None) -> float:
    """The GPUs of a task: as many as wanted, else one where the cluster has any, and none where it has not."""
    most: float = max(node["Resources"].get("GPU", 0.0) for node in _ray().nodes() if node["Alive"])
    if wanted is None:
        return min(most, 1.0)
    if wanted > most:
        raise ValueError(f"--gpus-per-task {wanted:g}: no machine of the cluster has a GPU; write 0 to train on CPUs")
    return wanted


@dataclass(frozen=True)
class RayRunner:
    """Make the runs of a queue on the Ray cluster that this process is connected to.

    Args:
        queue: the runs and their output directory, which all machines see.
        gpus: the GPU that a task has for itself, or the part of one; with 0 tasks train on CPUs.
        data_dir: the data directory on each machine.
        sources: networks and data sets that users brought, by paths that hold on each machine.
        every: seconds between checkpoints.
        board: where epochs are shown as they end, if anywhere.
    """

    queue: RunQueue
    gpus: float = 0.0
    data_dir: Path | None = None
    sources: Sequence[Source] = ()
    every: float = 30.0
    board: Path | None = None

    def run(self, progress: Progress) -> list[Record]:
        """Make the runs that have no record; the records of all. Ctrl-C saves, then raises KeyboardInterrupt.

        A population that fails keeps no other from its end; what was wrong is raised after that.
        """
        work = _Work(self, progress)
        try:
            while work.hand_out():
                work.hear()
        finally:
            work.stop()
        if work.failed:
            raise RunError("; ".join(dict.fromkeys(work.failed.values())))
        return self.queue.outcome()


class _Work:
    """The tasks under way, and what becomes of them."""

    def __init__(self, cluster: RayRunner, progress: Progress) -> None:
        self.ray, self.cluster, self.progress = _ray(), cluster, progress
        self.task = self.ray.remote(num_cpus=1, num_gpus=cluster.gpus, max_retries=RETRIES)(_train)
        self.mark = _mark(cluster.queue.output)
        self.running: dict[Any, Population] = {}
        self.failed: dict[Population, str] = {}
        self.ended = 0

    def hand_out(self) -> bool:
        """Make a task of every population that has none; whether any task is under way."""
        taken = {spec for population in (*self.running.values(), *self.failed) for spec in population}
        for population in self.cluster.queue.populations(taken):
            task = self.task.options(name=title(population))
            self.running[task.remote(self.cluster, population, self.mark)] = population
        return bool(self.running)

    def hear(self) -> None:
        """Wait for the next thing that a task has to say."""
        (task,), _ = self.ray.wait(list(self.running), num_returns=1)
        population = self.running[task]
        try:
            node, records = self.ray.get(next(task))
        except self.ray.exceptions.RayError as error:
            del self.running[task]
            self._fail(population, error)
            return
        news = f"{title(population)} begins on {node}"
        if records is not None:
            news = f"{title(population)} has ended on {node}, {self._settle(population, records)}"
            del self.running[task]
            self.ended += 1
        self.progress.tell(news, self.ended, self.ended + len(self.running))

    def stop(self) -> None:
        """Have the tasks save their state and end."""
        for task in self.running:
            self.ray.cancel(task)
        if self.running:
            self.ray.wait([task.completed() for task in self.running], num_returns=len(self.running))

    def _settle(self, population: Population, records: list[Record]) -> str:
        """Keep a task's records; how its networks did. None were trained if another command was faster."""
        if not records:
            return "trained by another process"
        with self.cluster.queue.checkpoints.alone(population, lambda _: None):
            self.cluster.queue.commit(population, records)
        took = timedelta(seconds=round(records[0].seconds))
        return ", ".join([*describe_accuracies([record.accuracy for record in records]), f"{took}"])

    def _fail(self, population: Population, error: Exception) -> None:
        cause = getattr(error, "cause", None)  # what the task raised
        if isinstance(cause, torch.OutOfMemoryError) and len(population) > 1:
            self.progress.note(self.cluster.queue.split_in_half(population))
            return
        if isinstance(cause, torch.OutOfMemoryError):
            self.failed[population] = str(does_not_fit(population))
        elif isinstance(cause, ValueError):
            self.failed[population] = str(cause)
        elif cause is None:  # Ray gave it up
            self.failed[population] = f"{title(population)}: {str(error).splitlines()[0]}"
        else:
            raise error
        if self.running:
            self.progress.note(f"{self.failed[population]}; the others go on")


def _train(cluster: RayRunner, population: Population, mark: str) -> Iterator[tuple[str, list[Record] | None]]:
    """A task: train a population; say where as it begins, and give its records as it ends."""
    node, spec, output = platform.node(), population[0], cluster.queue.output
    yield node, None
    try:
        if not (output / MARK).is_file() or _read_mark(output) != mark:
            raise ValueError(f"{output} is not the directory of that name elsewhere; share it between all machines")
        if cluster.sources and spec.column not in (found := [source.open() for source in cluster.sources]):
            raise ValueError(
                f"{spec.column} is {', '.join(map(str, found))} there; share its files between all machines"
            )
        device = choose_device("cuda" if cluster.gpus else "cpu")
        loaders = {loader_key(spec): open_loader(spec, cluster.data_dir, device)}
        with (
            Progress(Console(), quiet=True) as progress,
            TensorBoardLogger(cluster.board) if cluster.board else nullcontext() as board,
            stop_request() as stop,
        ):
            queue = RunQueue(population, output, weights=cluster.queue.weights)
            grid = LocalRunner(queue, loaders, environment(device_name(device)), cluster.every, board)
            with grid.alone(population, progress) as wanted:
                records = grid.train(population, progress, stop) if wanted else []
    except (ValueError, OSError) as error:
        raise ValueError(f"on {node}: {error}") from error
    yield node, records


def _mark(output: Path) -> str:
    """What is written in the file that an output directory is known by."""
    with suppress(FileExistsError), (output / MARK).open("x") as file:
        file.write(uuid4().hex)
    return _read_mark(output)


def _read_mark(output: Path) -> str:
    with open_regular(output / MARK) as file:
        return file.read(100).decode(errors="replace")
