"""Train a queue of runs as tasks on a Ray cluster, one task per population.

Tasks save checkpoints in the output directory, which all machines share, and return their records to the driver, the
only process that writes records. If a worker, a machine or the driver dies, training continues from the checkpoints,
with any engine.
"""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from secrets import token_hex
from typing import Any

from rich.console import Console

from hullo._compat import is_out_of_memory
from hullo.lab.errors import RunError
from hullo.lab.progress import Progress
from hullo.lab.run.loaders import loader_key, open_loader
from hullo.lab.run.local import LocalRunner, describe_accuracies
from hullo.lab.run.queue import Members, RunQueue, describe_population, out_of_memory_error
from hullo.lab.run.sources import Source
from hullo.lab.signals import check_stop, reinstall, stop_request, unwinding
from hullo.lab.spec.environment import choose_device, device_name, environment
from hullo.lab.spec.records import Record

TIMEOUT = 5.0
"""Seconds to wait for a connection to a cluster."""

RETRIES = 20
"""Number of times that a task is restarted after its worker or its machine died."""

WAIT = 1.0
"""Seconds to wait for tasks before a look at whether to stop."""

QUIET_ENV = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS_SKIP_REGEX": "."}
"""Environment variables that turn off Ray's usage reports and its output."""


@contextmanager
def connect(address: str | None = None) -> Iterator[None]:
    """Connect to the Ray cluster at an address or at `RAY_ADDRESS`, else start one on this machine for the block."""
    address = address or os.environ.get("RAY_ADDRESS")
    options: dict[str, Any] = {"address": address or "local", "log_to_driver": False, "logging_level": "ERROR"}
    if address:
        _check(address)
        os.environ.update(QUIET_ENV)
    else:
        options |= {"include_dashboard": False, "object_store_memory": 2**27}
        os.environ.update(QUIET_ENV | {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"})  # listen on localhost only
        if os.environ.setdefault("RAY_AUTH_MODE", "token") == "token":
            os.environ.setdefault("RAY_AUTH_TOKEN", token_hex())  # else Ray writes one to the home directory
    ray = import_ray()
    with unwinding():
        try:
            ray.init(**options)
        except (OSError, RuntimeError) as error:
            reason = "none runs on this machine" if address == "auto" else str(error).splitlines()[0]
            raise ValueError(f"cannot join a Ray cluster at {options['address']}: {reason}") from error
        reinstall()
        try:
            yield
        finally:
            ray.shutdown()


def import_ray() -> Any:
    """Return the module; raise a ValueError if it is not installed."""
    try:
        return import_module("ray")
    except ModuleNotFoundError as error:
        raise ValueError("Ray is not installed; run pip install '.[ray]' in a clone of hullo") from error


def _check(address: str) -> None:
    """Raise a ValueError unless a server answers at an address; Ray itself would retry for minutes."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), TIMEOUT).close()
    except (OSError, OverflowError, ValueError) as error:
        raise ValueError(
            f"no Ray cluster answers at {address}: {error}; give host:port, as `ray start --head` prints it, or auto"
        ) from error


def check_engine(
    engine: str, device: str | None, ray_address: str | None = None, gpus_per_task: float | None = None
) -> None:
    """Raise a ValueError if an engine is unknown, or other options contradict it."""
    if engine not in ("local", "ray"):
        raise ValueError(f"unknown engine {engine!r}; available: local, ray")
    if engine == "ray" and device:
        raise ValueError(f"device={device} needs engine=local; with ray, gpus_per_task=0 means CPUs")
    if engine == "local" and (ray_address or gpus_per_task is not None):
        raise ValueError("ray_address and gpus_per_task need engine=ray")


def choose_gpus(requested: float | None = None) -> float:
    """Return the number of GPUs per task: as many as requested, else one if the cluster has GPUs, else none."""
    most: float = max(node["Resources"].get("GPU", 0.0) for node in import_ray().nodes() if node["Alive"])
    if requested is None:
        return min(most, 1.0)
    if requested > most:
        raise ValueError(f"gpus_per_task={requested:g}: no machine of the cluster has a GPU; give 0 to train on CPUs")
    return requested


def run_tasks(
    function: Callable[..., Any], calls: Mapping[Any, Sequence[Any]], gpus: float, *, force: bool = False
) -> Generator[tuple[Any, Any], None, None]:
    """Run a task for each call, given its arguments; yield its key, and what it returned or raised, once it ends.

    Tasks that run when the iterator is closed are cancelled: with `force` at once, else they may save their state.
    """
    ray = import_ray()
    task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=RETRIES)(function)
    running = {task.remote(*arguments): key for key, arguments in calls.items()}
    try:
        while running:
            finished, _ = ray.wait(list(running), timeout=WAIT)
            check_stop()
            for reference in finished:
                key = running.pop(reference)
                try:
                    result = ray.get(reference)
                except ray.exceptions.RayError as error:
                    result = getattr(error, "cause", None) or RunError(str(error).splitlines()[0])
                yield key, result
    finally:
        for reference in running:
            ray.cancel(reference, force=force)
        if running and not force:
            ray.wait(list(running), num_returns=len(running))


@dataclass(frozen=True)
class RayRunner:
    """Train the runs of a queue on the Ray cluster that this process is connected to.

    Args:
        queue: the runs and their output directory, which all machines share.
        gpus: GPUs per task, from 0 to 1; with 0, tasks train on CPUs.
        data_dir: the data directory on each machine.
        sources: the user's networks and data sets, by paths that are valid on each machine.
        checkpoint_every: seconds between checkpoints.
    """

    queue: RunQueue
    gpus: float = 0.0
    data_dir: Path | None = None
    sources: Sequence[Source] = ()
    checkpoint_every: float = 30.0

    def run(self, progress: Progress) -> list[Record]:
        """Train the runs without a record and return all records; Ctrl-C saves, then raises KeyboardInterrupt.

        If a population fails, the others are finished first; then a RunError is raised.
        """
        failed: dict[Members, str] = {}
        while populations := self.queue.populations({spec for population in failed for spec in population}):
            calls = {population: (self, population) for population in populations}
            with closing(run_tasks(_train, calls, self.gpus)) as results:
                for done, (population, result) in enumerate(results, 1):
                    if not isinstance(result, Exception):
                        ended = f"{describe_population(population)} finished on {self._commit(population, *result)}"
                        progress.log(ended, done, len(calls))
                    elif is_out_of_memory(result) and len(population) > 1:
                        progress.note(self.queue.split_in_half(population))
                    else:
                        failed[population] = _explain(population, result)
                        if done < len(calls):
                            progress.note(f"{failed[population]}; the other populations continue")
        if failed:
            raise RunError("; ".join(dict.fromkeys(failed.values())))
        return self.queue.results()

    def _commit(self, population: Members, node: str, records: list[Record]) -> str:
        """Write a task's records and return a summary; there are none if another process trained the population."""
        if not records:
            return f"{node}, trained by another process"
        with self.queue.checkpoints.lock(population, lambda _: None):
            self.queue.commit(population, records)
        duration = timedelta(seconds=round(records[0].seconds))
        return f"{node}, {describe_accuracies([record.accuracy for record in records])}, {duration}"


def _explain(population: Members, error: Exception) -> str:
    """Return why a population failed; raise an error that is not the user's."""
    if is_out_of_memory(error):
        return str(out_of_memory_error(population))
    if not isinstance(error, ValueError):
        raise error
    return str(error)


def _train(runner: RayRunner, population: Members) -> tuple[str, list[Record]]:
    """Train a population as a Ray task; return the node's name and the records."""
    node, spec = platform.node(), population[0]
    try:
        if runner.sources and spec.column not in (named := [source.open() for source in runner.sources]):
            raise ValueError(
                f"the files of {spec.column} differ here: {', '.join(map(str, named))}; share them between all machines"
            )
        device = choose_device("cuda" if runner.gpus else "cpu")
        loaders = {loader_key(spec): open_loader(spec, runner.data_dir, device)}
        with Progress(Console(), quiet=True) as progress, stop_request() as stop:
            queue = RunQueue(population, runner.queue.output, weights=runner.queue.weights)
            local = LocalRunner(queue, loaders, environment(device_name(device)), runner.checkpoint_every)
            with local.lock(population, progress) as is_missing:
                return node, local.train(population, progress, stop) if is_missing else []
    except (ValueError, OSError) as error:
        raise ValueError(f"on {node}: {error}") from error
