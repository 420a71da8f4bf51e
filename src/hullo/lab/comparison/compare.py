"""Compare activations for a user's network."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hullo.lab.comparison.budget import Clock, Plan
from hullo.lab.comparison.candidates import DEFAULT, Inputs, prepare, seeded
from hullo.lab.comparison.data import Arrays, Stream, read_data
from hullo.lab.comparison.decision import ORIGINAL, Trial
from hullo.lab.comparison.engine import Engine
from hullo.lab.comparison.result import Result
from hullo.lab.comparison.store import Store
from hullo.lab.comparison.task import Loss, Task, make_task
from hullo.lab.comparison.trial import OPTIMIZERS, Setup, SingleNetwork, Step, call_step
from hullo.lab.comparison.work import CPU_MEMBERS, GPU_MEMBERS, Here, RayWorkers
from hullo.lab.files import checksum, locked, make_directory
from hullo.lab.progress import PipeConsole, Progress
from hullo.lab.run.cluster import check_engine, choose_gpus, connect
from hullo.lab.run.training import PROBABILITIES, are_probabilities
from hullo.lab.signals import stop_request
from hullo.lab.spec.environment import choose_device
from hullo.population import Population

RATES = {"sgd": (0.01, 0.03, 0.1)}
ADAM_RATES = (1e-3, 3e-3, 1e-2)
IRRELEVANT = ("Attempting to run cuBLAS, but there was no current CUDA context", "TensorFloat32 tensor cores")
"""Warnings of PyTorch about its first steps on a GPU."""
OBSERVED = 64
"""The largest number of samples on which the loss and the metric are observed."""


def compare(
    network: Callable[[], nn.Module],
    train: Any,
    test: Any = None,
    val: Any = None,
    *,
    minutes: float = 10.0,
    worth: float | None = None,
    candidates: Sequence[Any] = DEFAULT,
    loss: str | Loss | None = None,
    metric: str | Callable[[Tensor, Tensor], Any] | None = None,
    higher_is_better: bool = True,
    optimizer: str = "adamw",
    weight_decay: float = 0.01,
    lr: float | Sequence[float] | None = None,
    epochs: int | None = None,
    batch_size: int = 64,
    seeds: int | None = None,
    step: Step | None = None,
    device: str | None = None,
    precision: str = "float32",
    engine: str = "local",
    output: str | Path = "runs",
    name: str | None = None,
    quiet: bool = False,
) -> Result:
    """Find out which activation to use in a network, and how sure that is.

    Candidates compete on validation data, each at its own learning rate. The best of them, the challenger, is then
    compared with the original, on fresh seeds and the test data, by one paired test. The same call resumes an
    interrupted comparison; with more minutes it looks again, with more seeds.

    Args:
        network: a class, or a function without arguments, that returns a plain module.
        train: a pair (inputs, targets) of tensors or arrays, or a DataLoader, whose batches all networks share.
        test: the same; a fifth of `train` is split off if there is none.
        val: validation data; 15 % of `train` are split off if there are none.
        minutes: the budget, of all calls together.
        worth: the smallest gain that would make you change the activation, in units of the metric; by default 0.3
            points of accuracy, or 1 % of what the original scores best on validation data.
        candidates: what to compare with the original: names such as "gelu", spellings such as
            "convex(identity,relu)", "hull" for a learned affine hull that starts as what it replaces, or functions as
            `hull` of :func:`hullo.replace_activations`.
        loss: "cross_entropy", "bce", "mse", "mae", or a function of outputs and targets with a number per sample. By
            default cross-entropy for whole numbers, else the squared error.
        metric: "accuracy", "loss", "rmse", "mae", or a function of all outputs and targets, on the CPU.
        higher_is_better: whether higher values of a metric function are better.
        optimizer: "adamw", "adam", "sgd" (momentum 0.9) or "rmsprop"; the learning rate falls along a cosine.
        weight_decay: of weights; biases, norms and coefficients have none.
        lr: a grid of learning rates, from which each candidate gets its own.
        epochs: of every run; by default as many as fit, at most 20.
        batch_size: samples per batch; a DataLoader has its own.
        seeds: the largest number of fresh seeds for the confirmation; by default as many as fit.
        step: for everything else: a function of a population and a batch of the DataLoader that returns a loss for
            each member, without reading tensors on the host. The metric is then the loss.
        device: "cpu", "cuda" or "cuda:N"; by default a GPU if there is one.
        precision: "float32", or "bfloat16" for mixed precision.
        engine: "local", or "ray" to train populations at the same time on a Ray cluster, each as a task with a GPU if
            there are any. The environment variable RAY_ADDRESS names the cluster; else one is started on this machine.
        output: directory for records and weights.
        name: of the data, in tables.
        quiet: show no progress.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from hullo.lab import compare
        >>> x = torch.randn(400, 4)
        >>> result = compare(
        ...     lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)), (x, x[:, :1].sin()), minutes=5,
        ...     candidates=["tanh"], lr=1e-2, epochs=2, seeds=3, quiet=True)
        >>> result.rows[0].test_seeds
        3
    """
    optimizer = str(optimizer).lower()  # "AdamW", as PyTorch spells it
    for what, value, valid in (("optimizer", optimizer, OPTIMIZERS), ("precision", precision, ("float32", "bfloat16"))):
        if value not in valid:
            raise ValueError(f"unknown {what} {value!r}; available: {', '.join(valid)}")
    least = {
        "epochs": (epochs, 1),
        "batch_size": (batch_size, 1),
        "seeds": (seeds, 2),
        "weight_decay": (weight_decay, 0),
    }
    for what, (number, smallest) in least.items():
        if number is not None and number < smallest:
            raise ValueError(f"{what}={number}: must be at least {smallest}")
    for what, number in (("minutes", minutes), ("worth", worth)):
        if number is not None and not 0 < number < math.inf:
            raise ValueError(f"{what}={number}: must be above 0")
    if step is not None and (loss is not None or metric is not None):
        raise ValueError("loss and metric are not used with a step, whose loss is the metric; leave them out")
    check_engine(engine, device)
    with (
        connect() if engine == "ray" else nullcontext(),
        Progress(PipeConsole(stderr=True), quiet=quiet) as progress,
        stop_request() as stop,
        warnings.catch_warnings(),
    ):
        for text in IRRELEVANT:
            warnings.filterwarnings("ignore", text)
        workers = RayWorkers(choose_gpus()) if engine == "ray" else Here(choose_device(device))
        clock, rates = Clock(60 * minutes), _read_rates(lr, optimizer)
        progress.describe("preparing data and networks")
        data = train if isinstance(train, Arrays) else read_data(train, val, test, _spell_name(name or "data"))
        inputs, targets = (None, None) if step is not None else data.first
        options: dict[str, Any] = {"higher_is_better": higher_is_better, "scale": data.scale, "target": data.target}
        task = make_task(targets, loss, metric if step is None else "loss", **options)
        make = seeded(network, None if inputs is None else (inputs,))
        network_checksum = _check_factory(make)
        seen = _observe(make(0), data, task, step)
        fingerprint = data.fingerprint()
        data.to(workers.device if engine == "local" else torch.device("cpu"))
        listed = [candidates] if isinstance(candidates, str) else candidates
        found, notes = prepare(
            make, listed, seen.inputs, lambda population: _probe(population, data, seen.inputs, step)
        )
        if task.has_classes and isinstance(seen.outputs, Tensor) and are_probabilities(seen.outputs):
            notes.append(f"the network returns {PROBABILITIES}")
        if workers.device.type == "cpu":
            progress.note("on a CPU, fewer networks are trained than on a GPU in the same time")
        for note in notes:
            progress.note(note)
        setup = Setup(
            _spell_name(getattr(network, "__name__", type(network).__name__)),
            data,
            data.notes + notes,
            {item.name: item for item in found},
            task,
            seen.inputs,
            step,
            data.batch_size or batch_size,
            optimizer,
            weight_decay,
            precision,
        )
        structures = [(item.name, item.structure) for item in found]
        given = (task.name, task.higher, epochs, rates, batch_size, optimizer, weight_decay, precision)
        text = repr([setup.network, data.name, fingerprint, network_checksum, seen.values, structures, given])
        folder = Path(output) / f"{setup.network}-{data.name}-{sha256(text.encode()).hexdigest()[:8]}"
        make_directory(folder)

        def wait(attempt: int) -> None:
            if not attempt:
                progress.note(f"another process writes to {folder}; waiting for it")

        ready = clock.used
        with locked(folder / ".lock", wait):
            store = Store(folder, task.sign)
            clock = Clock(60 * minutes, spent=store.state.get("seconds", 0.0) + ready)
            plan = Plan(rates, CPU_MEMBERS if workers.device.type == "cpu" else GPU_MEMBERS, workers=workers.count)
            return Engine(setup, store, workers, progress, clock, stop, plan, epochs, seeds, worth).run()


def _check_factory(make: Callable[[int], nn.Module]) -> str:
    """Return a checksum of the initial weights; raise unless every call makes a new network, by its seed alone."""
    one, two = make(0), make(0)
    if one is two:
        raise TypeError("the network function returned the same module twice; return a new one in every call")
    if (found := _checksum(one)) != _checksum(two):
        raise ValueError("initial weights differ for the same seed; draw them from the random numbers of torch")
    if not any(parameter.requires_grad for parameter in one.parameters()):
        raise ValueError("the network has no parameters to train")
    return found


def _checksum(network: nn.Module) -> str:
    """Return a checksum of the initial weights of a network."""
    state = network.state_dict().items()
    return checksum({name: value.contiguous() for name, value in state if isinstance(value, Tensor)})


class _Seen(NamedTuple):
    """Hold the inputs, outputs, losses and gradients of a network on a batch of training data."""

    inputs: Inputs | None  # some of them; None if not all of them are tensors
    outputs: Any
    values: str  # outputs, losses, the metric and gradients in words, which tell networks and tasks from others


def _observe(network: nn.Module, data: Arrays | Stream, task: Task, step: Step | None) -> _Seen:
    """Run a network on a batch, by the task or by a step of the user's, in evaluation and in training mode."""
    batch = data.load_eval(*next(data.eval_batches("train")))
    calls: list[tuple[Any, Any]] = []
    network.register_forward_hook(lambda _, args, outputs: calls.append((args, outputs)))
    values: list[Tensor] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for is_training in (False, True):
            network.train(is_training)
            if step is not None:
                losses = call_step(step, SingleNetwork(network, Trial(ORIGINAL, 0.0, 0)), batch)
            else:
                inputs, targets = (tensor[:OBSERVED] for tensor in batch)
                outputs = network(inputs)
                task.check(outputs, targets, data.targets)
                losses = task.losses(outputs, targets)
                values.append(outputs)
                if task.whole is not None:
                    with suppress(Exception):  # few samples may not have a metric
                        values.append(torch.as_tensor(task.whole(outputs.detach(), targets)))
            values.append(losses)
    losses.sum().backward()  # type: ignore[no-untyped-call]
    gradients = (parameter.grad for parameter in network.parameters())
    values.append(torch.cat([gradient.flatten() for gradient in gradients if gradient is not None]))
    args, outputs = calls[0] if calls else ((), None)
    inputs = None
    if args and all(isinstance(arg, Tensor) for arg in args):
        inputs = tuple(arg[:8] for arg in args) if len({arg.shape[:1] for arg in args}) == 1 else args
    return _Seen(inputs, outputs, " ".join(f"{value.detach().double().abs().sum().item():.4g}" for value in values))


def _probe(population: Population, data: Arrays | Stream, inputs: Inputs | None, step: Step | None) -> None:
    """Run a population, and compare it with its members alone; with a step of the user's, also run that."""
    population.to(data.device)
    if inputs is not None:
        population.check(*(value.to(data.device) for value in inputs), in_dims=None)
    if step is not None:
        losses = call_step(step, population, data.load_eval(*next(data.eval_batches("val"))))
        losses.sum().backward()  # type: ignore[no-untyped-call]


def _read_rates(lr: float | Sequence[float] | None, optimizer: str) -> tuple[float, ...]:
    rates = RATES.get(optimizer, ADAM_RATES) if lr is None else (lr,) if isinstance(lr, (int, float)) else tuple(lr)
    if not rates or not all(isinstance(rate, (int, float)) and rate > 0 for rate in rates):
        raise ValueError(f"lr={lr!r}: give a positive number, or several")
    return tuple(sorted({float(f"{rate:g}") for rate in rates}))


def _spell_name(name: str) -> str:
    return re.sub(r"[^\w.-]", "", name)[:60] or "network"
