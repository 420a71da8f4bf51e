"""The work of a comparison: to train and to measure populations, in this process or as tasks on a Ray cluster.

Work changes nothing: whatever it returns is written by the process of the comparison alone.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Event
from typing import Any, Protocol

import torch
from torch import Tensor

from hullo.lab.comparison.budget import StepCost, measure_costs, now
from hullo.lab.comparison.decision import FRESH, Arm
from hullo.lab.comparison.store import score_of
from hullo.lab.comparison.trial import Setup, Trial
from hullo.lab.errors import RunError
from hullo.lab.run.cluster import RETRIES, import_ray
from hullo.lab.run.local import build_record
from hullo.lab.run.weights import MORE, ChosenEpochs
from hullo.lab.signals import check_stop
from hullo.lab.spec.environment import Environment, choose_device, device_name, environment
from hullo.lab.spec.records import ACCURACY, Record, round_number
from hullo.lab.spec.run_spec import Spec

MEMORY_SHARE = 0.8
"""The share of a GPU's memory that is planned for."""
MEASURED, ENDLESS = 10, 10**6
"""The steps and batches that are measured for the plan, and the epochs of a training that is not finished."""
WAIT = 1.0
"""Seconds to wait for a task before a look at whether to stop."""


class Workers(Protocol):
    """Whoever does the work."""

    count: int  # of populations that are trained at the same time
    device: torch.device

    def map(self, function: Callable[..., Any], setup: Setup, calls: Sequence[Any], **here: Any) -> Iterator[Any]:
        """Yield the results of a function of the setup and each of some arguments, in any order.

        Keyword arguments are for work in this process.
        """


class Here:
    """Do the work in this process, one after the other."""

    count = 1

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def map(self, function: Callable[..., Any], setup: Setup, calls: Sequence[Any], **here: Any) -> Iterator[Any]:
        return (function(setup, call, **here) for call in calls)


class RayWorkers:
    """Do the work as tasks on the Ray cluster that this process is connected to, each with its share of GPUs."""

    def __init__(self, gpus: float) -> None:
        self.ray, self.device = import_ray(), torch.device("cuda" if gpus else "cpu")
        resources = self.ray.cluster_resources()
        self.count = max(1, int(resources.get("GPU", 0.0) / gpus if gpus else resources["CPU"]))
        self.task = self.ray.remote(num_cpus=1, num_gpus=gpus, max_retries=RETRIES)(_work)
        self._given: Any = None

    def map(self, function: Callable[..., Any], setup: Setup, calls: Sequence[Any], **_: Any) -> Iterator[Any]:
        self._given = self._given or self.ray.put(setup)  # once, since it has the data
        running = [self.task.remote(self._given, self.device.type, function, call) for call in calls]
        try:
            while running:
                finished, running = self.ray.wait(running, timeout=WAIT)
                check_stop()
                for task in finished:
                    yield self.ray.get(task)
        except self.ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None)  # what the task raised; None if Ray gave up
            if cause is None or isinstance(cause, ValueError):
                raise RunError(f"on the cluster: {str(cause or error).splitlines()[0]}") from None
            raise cause from None
        finally:
            for task in running:
                self.ray.cancel(task, force=True)


def _work(setup: Setup, device: str, function: Callable[..., Any], call: Any) -> Any:
    """Do a task on a machine of the cluster."""
    setup.data.to(choose_device(device))
    return function(setup, call)


@dataclass(frozen=True)
class Trained:
    """What the training of some runs leaves."""

    records: Mapping[Arm, Record]
    examples: Mapping[Arm, Tensor]  # the score of each test sample, of runs of the confirmation
    weights: Mapping[Arm, Mapping[str, Tensor]]  # of the best run of each candidate


def train(
    setup: Setup,
    call: tuple[Sequence[Arm], int],
    show: Callable[[Trial], object] = lambda trial: None,
    stop: Event | None = None,
) -> Trained:
    """Train a population of some runs for a number of epochs."""
    arms, epochs = call
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(arms[0].seed)
        trial, chosen = _make_trial(setup, arms, epochs), ChosenEpochs({})
        for _ in trial.run(stop or Event(), save=lambda: None, every=math.inf):
            if trial.step == 0:
                chosen.update(trial, **({} if trial.examples is None else {"examples": trial.examples}))
            show(trial)
        chosen.load_into(trial.population)
    machine = environment(device_name(setup.data.device))
    records = {arm: _to_record(setup, trial, k, machine) for k, arm in enumerate(arms)}
    scores = {arm: score_of(record, setup.task.sign).val for arm, record in records.items()}
    best = {arm.candidate: arm for arm in sorted(arms, key=lambda arm: scores[arm]) if math.isfinite(scores[arm])}
    fresh = [k for k, arm in enumerate(arms) if arm.seed >= FRESH and trial.examples is not None]
    return Trained(
        records,
        {arms[k]: chosen.state[f"{MORE}examples"][k].cpu() for k in fresh},
        {arm: _state(trial, k) for k, arm in enumerate(arms) if arm in best.values()},
    )


def _make_trial(setup: Setup, arms: Sequence[Arm], epochs: int) -> Trial:
    if setup.data.device.type == "cuda":
        gc.collect()  # earlier trainings and their CUDA graphs
        torch.cuda.empty_cache()
    return Trial(arms, setup, epochs)


def _state(trial: Trial, k: int) -> dict[str, Tensor]:
    """Return the state of a network, as its hulls can be restored from."""
    state = trial.population[k].state_dict()
    return {name: value.detach().cpu() for name, value in state.items() if isinstance(value, Tensor)}


def _to_record(setup: Setup, trial: Trial, k: int, machine: Environment) -> Record:
    arm, task = trial.arms[k], setup.task
    kind = "accuracy" if task.name == ACCURACY else "metric"
    compared: dict[str, Any] = {"test_accuracy": []}
    for name in ("test", "val"):
        compared[f"{name}_{kind}"] = [*map(round_number, trial.curves[f"{name}_metric"][:, k].tolist())]
    if task.name != ACCURACY:
        compared |= {"metric": task.name, "lower_is_better": not task.higher}
    words = f"batch_size={setup.batch_size} lr={arm.lr:g} optimizer={setup.optimizer}"
    spec = Spec(setup.network, setup.data.name, arm.candidate, seed=arm.seed, epochs=trial.epochs, settings=words)
    learned = trial.learned(k, setup.candidates[arm.candidate])
    return build_record(trial, k, spec, learned, machine, **compared)


@dataclass(frozen=True)
class Measured:
    """The seconds of a small and of a large population."""

    one: float  # of an epoch of a single network
    setup: float  # of the large population
    many: float  # of its epoch
    room: int | None  # the number of networks that the memory of a GPU has room for


def measure(setup: Setup, arms: Sequence[Arm]) -> Measured:
    """Measure a population of all these runs, and one of the first."""
    (_, one), (ready, many) = (_measure_epoch(setup, part) for part in (arms[:1], arms))
    room, device = None, setup.data.device
    if device.type == "cuda":
        free, taken = torch.cuda.mem_get_info(device)[0], torch.cuda.memory_reserved(device)
        room = max(1, int(MEMORY_SHARE * (free + taken) * len(arms) / taken))
    return Measured(one, ready, many, room)


def _measure_epoch(setup: Setup, arms: Sequence[Arm]) -> tuple[float, float]:
    """Return the seconds to set up a population, and those of an epoch."""
    data = setup.data
    started = now(data.device)
    trial = _make_trial(setup, arms, ENDLESS)
    steps = trial.advance()
    next(steps)
    ready = now(data.device)
    taken = max(1, min(MEASURED, trial.steps - 2))  # the last step of an epoch evaluates
    for _ in range(taken):
        next(steps)
    stepped = now(data.device)
    batches = data.count_batches("val"), data.count_batches("test")
    trial.evaluate(MEASURED)
    evaluated = (now(data.device) - stepped) * sum(batches) / min(MEASURED, batches[0])
    return ready - started, (stepped - ready) * trial.steps / taken + evaluated


def measure_steps(setup: Setup, names: Sequence[str]) -> list[StepCost]:
    """Return what a training step of some candidates costs, each as a single network; nothing if it is the user's."""
    if setup.step is not None or setup.example is None:
        return []
    inputs, targets = setup.data.load_eval(*next(setup.data.eval_batches("val")))
    chosen = torch.arange(setup.batch_size, device=setup.data.device) % len(targets)
    candidates = [setup.candidates[name] for name in names]
    networks = [item.plain(item.build(0, setup.example)) for item in candidates]
    return measure_costs(networks, inputs[chosen], lambda outputs: setup.task.losses(outputs, targets[chosen]).mean())
