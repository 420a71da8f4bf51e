"""The work of a comparison: to train and to measure populations, in this process or as tasks on a Ray cluster.

Work changes nothing: whatever it returns is written by the process of the comparison alone.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Event
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hullo.lab.comparison.decision import FRESH, Trial
from hullo.lab.comparison.store import score_of
from hullo.lab.comparison.trial import Setup, TrialLoop
from hullo.lab.errors import RunError
from hullo.lab.run.cluster import import_ray, run_tasks
from hullo.lab.run.local import build_record
from hullo.lab.run.weights import MORE, ChosenEpochs
from hullo.lab.spec.environment import Environment, choose_device, device_name, environment
from hullo.lab.spec.records import ACCURACY, Record, round_number
from hullo.lab.spec.run_spec import Spec

CPU_MEMBERS, GPU_MEMBERS = 16, 512
"""The largest number of networks in a population. On a CPU, more save time only where networks are small."""
MEMORY_SHARE = 0.8
"""The share of a GPU's memory that is planned for."""
MEASURED, ENDLESS = 10, 10**6
"""The steps that are measured for the plan, and the epochs of a training that is not finished."""


class Here:
    """Do the work in this process, one after the other."""

    count = 1  # populations that are trained at the same time

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def map(self, function: Callable[..., Any], setup: Setup, calls: Sequence[Any], **here: Any) -> Iterator[Any]:
        """Yield the results of a function of the setup and each of some arguments."""
        return (function(setup, call, **here) for call in calls)


class RayWorkers:
    """Do the work as tasks on the Ray cluster that this process is connected to, each with its share of GPUs."""

    def __init__(self, gpus: float) -> None:
        self.ray, self.device = import_ray(), torch.device("cuda" if gpus else "cpu")
        resources = self.ray.cluster_resources()
        self.count = max(1, int(resources.get("GPU", 0.0) / gpus if gpus else resources["CPU"]))
        self.gpus = gpus
        self._given: Any = None

    def map(self, function: Callable[..., Any], setup: Setup, calls: Sequence[Any], **_: Any) -> Iterator[Any]:
        """Yield the same, in any order; keyword arguments are for work in this process."""
        self._given = self._given or self.ray.put(setup)  # once, since it has the data
        tasks = {number: (self._given, self.device.type, function, call) for number, call in enumerate(calls)}
        for _number, result in run_tasks(_work, tasks, self.gpus, force=True):
            if isinstance(result, ValueError):
                raise RunError(f"on the cluster: {str(result).splitlines()[0]}")
            if isinstance(result, Exception):
                raise result
            yield result


Workers = Here | RayWorkers


def _work(setup: Setup, device: str, function: Callable[..., Any], call: Any) -> Any:
    """Do a task on a machine of the cluster."""
    setup.data.to(choose_device(device))
    return function(setup, call)


@dataclass(frozen=True)
class Trained:
    """Hold the results of some trials."""

    records: Mapping[Trial, Record]
    examples: Mapping[Trial, Tensor]  # the score of each test sample, of trials of the confirmation
    weights: Mapping[Trial, Mapping[str, Tensor]]  # of the best trial of each candidate


def train(
    setup: Setup,
    call: tuple[Sequence[Trial], int],
    show: Callable[[TrialLoop], object] = lambda loop: None,
    stop: Event | None = None,
) -> Trained:
    """Train a population of some trials for a number of epochs."""
    trials, epochs = call
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(trials[0].seed)
        loop, chosen = _make_loop(setup, trials, epochs), ChosenEpochs({})
        for _ in loop.run(stop or Event(), save=lambda: None, every=math.inf):
            if loop.step == 0:
                chosen.update(loop, **({} if loop.examples is None else {"examples": loop.examples}))
            show(loop)
        chosen.load_into(loop.population)
    machine = environment(device_name(setup.data.device))
    records = {trial: _to_record(setup, loop, k, machine) for k, trial in enumerate(trials)}
    scores = {trial: score_of(record, setup.task.sign).val for trial, record in records.items()}
    best = {t.candidate: t for t in sorted(trials, key=lambda t: scores[t]) if math.isfinite(scores[t])}
    examples = chosen.state.get(f"{MORE}examples")
    fresh = [k for k, trial in enumerate(trials) if trial.seed >= FRESH]
    return Trained(
        records,
        {} if examples is None else {trials[k]: examples[k].cpu() for k in fresh},
        {trial: _state(loop, k) for k, trial in enumerate(trials) if trial in best.values()},
    )


def _make_loop(setup: Setup, trials: Sequence[Trial], epochs: int) -> TrialLoop:
    if setup.data.device.type == "cuda":
        gc.collect()  # earlier trainings and their CUDA graphs
        torch.cuda.empty_cache()
    return TrialLoop(trials, setup, epochs)


def _state(loop: TrialLoop, k: int) -> dict[str, Tensor]:
    """Return the state of a network, as its hulls can be restored from."""
    state = loop.population[k].state_dict()
    return {name: value.detach().cpu() for name, value in state.items() if isinstance(value, Tensor)}


def _to_record(setup: Setup, loop: TrialLoop, k: int, machine: Environment) -> Record:
    trial, task = loop.trials[k], setup.task
    kind = "accuracy" if task.name == ACCURACY else "metric"
    compared: dict[str, Any] = {"test_accuracy": []}
    for name in ("test", "val"):
        compared[f"{name}_{kind}"] = [*map(round_number, loop.curves[f"{name}_metric"][:, k].tolist())]
    if task.name != ACCURACY:
        compared |= {"metric": task.name, "lower_is_better": not task.higher}
    words = f"batch_size={setup.batch_size} lr={trial.lr:g} optimizer={setup.optimizer}"
    spec = Spec(setup.network, setup.data.name, trial.candidate, seed=trial.seed, epochs=loop.epochs, settings=words)
    return build_record(loop, k, spec, loop.learned(k, setup.candidates[trial.candidate]), machine, **compared)


def measure(setup: Setup, trials: Sequence[Trial]) -> dict[str, Any]:
    """Return what a plan needs: the seconds of a population, and the number of networks that it has room for.

    Measured are a population of all these trials, and one of the first.
    """
    size, device = len(trials), setup.data.device
    (_, one), (ready, many) = (_measure_epoch(setup, part) for part in (trials[:1], trials))
    each, members = many, 1
    if size > 1:
        each, members = max((many - one) / (size - 1), many / size / 10), GPU_MEMBERS
    if size > 1 and device.type == "cuda":
        free, taken = torch.cuda.mem_get_info(device)[0], torch.cuda.memory_reserved(device)
        members = max(1, int(MEMORY_SHARE * (free + taken) * size / taken))
    return {"setup": ready, "fixed": max(0.0, many - size * each), "each": each, "members": members}


def _measure_epoch(setup: Setup, trials: Sequence[Trial]) -> tuple[float, float]:
    """Return the seconds to set up a population, and those of an epoch: of some steps, and of its evaluation."""
    device = setup.data.device
    started = _now(device)
    loop = _make_loop(setup, trials, ENDLESS)
    steps = loop.advance()
    next(steps)
    ready = _now(device)
    taken = max(1, min(MEASURED, loop.steps - 2))  # the last step of an epoch evaluates
    for _ in range(taken):
        next(steps)
    stepped = _now(device)
    loop.evaluate()
    return ready - started, (stepped - ready) * loop.steps / taken + _now(device) - stepped


class StepCost(NamedTuple):
    """The seconds of a training step, and the bytes that it holds: parameters, and tensors for the backward pass."""

    seconds: float
    memory: int


def measure_costs(setup: Setup, names: Sequence[str], seconds: float = 1.0) -> list[StepCost]:
    """Return what a training step of some candidates costs, each as a single network; nothing if it is the user's.

    Steps are measured in turns for some seconds, since machines are busy, and the shortest counts.
    """
    if setup.step is not None or setup.example is None:
        return []
    inputs, targets = setup.data.load_eval(*next(setup.data.eval_batches("val")))
    chosen = torch.arange(setup.batch_size, device=setup.data.device) % len(targets)
    inputs, targets = inputs[chosen], targets[chosen]

    def step(network: nn.Module) -> float:
        started = _now(inputs.device)
        network.zero_grad()
        setup.task.losses(network(inputs), targets).mean().backward()  # type: ignore[no-untyped-call]
        return _now(inputs.device) - started

    candidates = [setup.candidates[name] for name in names]
    networks = [item.plain(item.build(0, setup.example)).to(inputs.device).train() for item in candidates]
    memory = [_measure_memory(network, step) for network in networks]
    deadline = time.monotonic() + seconds
    rounds: list[list[float]] = []
    while len(rounds) < MEASURED or time.monotonic() < deadline:
        rounds.append([step(network) for network in networks])
    return [StepCost(min(own), held) for own, held in zip(zip(*rounds, strict=True), memory, strict=True)]


def _measure_memory(network: nn.Module, step: Callable[[nn.Module], object]) -> int:
    """Return the bytes of the parameters and of what the backward pass needs."""
    held: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        held[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        step(network)
    for parameter in network.parameters():
        keep(parameter.detach())
    return sum(held.values())


def _now(device: torch.device) -> float:
    """Return the time, once a GPU has done its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
