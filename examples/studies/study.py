"""Compare activations in any training loop: a learning rate for each, fresh seeds, paired intervals.

A study is a function that trains some runs and returns their scores. This file chooses the learning rate of every
candidate on validation scores, trains all candidates on fresh seeds, and prints test scores and gains over the best
fixed activation, which validation scores choose, too. Every run is a line of a file, written as it ends: the same
command resumes an interrupted study, and with --minutes it stops before a part that would take longer.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn

from hullo import AffineHull, ConvexHull, Hull, LinearHull
from hullo.lab.analysis.statistics import Interval, holm, p_value
from hullo.lab.data import DataError
from hullo.lab.files import atomic_write, locked
from hullo.lab.spec.environment import choose_device, device_name, environment
from hullo.population import Population

FRESH = 100
"""Seeds from this one on are fresh; those below choose."""
Make = Callable[[int], nn.Module]
"""Makes an activation for a number of channels."""


@dataclass(frozen=True)
class Candidate:
    """An activation.

    Args:
        make: makes one for a number of channels.
        coefficient_lr_scale: the learning rate of its coefficients, as a multiple of that of the weights.
        coefficient_decay: the weight decay of its coefficients.
        is_fixed: whether it is one of those of which the best is the reference.
        form: the form of the network around it, where a study has several.
        networks: the number of networks whose predictions are averaged, where a study does that.
    """

    make: Make
    coefficient_lr_scale: float = 1.0
    coefficient_decay: float = 0.0
    is_fixed: bool = False
    form: str = ""
    networks: int = 1


@dataclass(frozen=True)
class Run:
    """A network to train."""

    candidate: str
    lr: float
    seed: int


MODULES = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU, "tanh": nn.Tanh, "elu": nn.ELU, "mish": nn.Mish}


def fixed(*names: str, form: str = "") -> dict[str, Candidate]:
    """Return fixed activations: modules of torch, or base functions."""

    def make(name: str) -> nn.Module:
        return MODULES[name]() if name in MODULES else LinearHull(name, init=name, strict=False).requires_grad_(False)

    return {
        f"{form} {name}".strip(): Candidate(lambda width, name=name: make(name), is_fixed=True, form=form)
        for name in names
    }


def at_rates(name: str, make: Make, *scales: float, form: str = "") -> dict[str, Candidate]:
    """Return an activation, and the same with other multiples of the learning rate for its coefficients."""
    others = {f"{name}, rate x{scale:g}": Candidate(make, scale, form=form) for scale in scales}
    return {name: Candidate(make, form=form)} | others


def settings(replaced: str, width_dim: int, other: str = "tanh") -> dict[str, Candidate]:
    """Return hulls that differ from one in a single setting: rate and decay of coefficients, start, kind, per channel.

    The controls have as many free numbers as the hull, whose three coefficients have sum one, or as the hull per
    channel, and compute the replaced function alone: they learn its scale and offset, which the next layer does, too.

    Args:
        replaced: the fixed activation that they start as.
        width_dim: the dimension of the channels.
        other: the base beside it and the identity.
    """
    bases = ["identity", other, replaced]

    def hull(kind: type[Hull] = AffineHull, init: str | None = replaced, *, per_channel: bool = False) -> Make:
        options = {"channel_dim": width_dim, "init": init, "strict": False}
        return lambda width: kind(*bases, groups=width if per_channel else 1, **options)

    def control(*, per_channel: bool = False) -> Make:
        return lambda width: LinearHull(
            "constant", replaced, init=replaced, groups=width if per_channel else 1, channel_dim=width_dim
        )

    return {
        **at_rates("hull", hull(), 3, 10, 30),
        "hull, uniform start": Candidate(hull(init=None)),
        "hull, linear": Candidate(hull(LinearHull)),
        "hull, convex": Candidate(hull(ConvexHull)),
        "hull, per channel": Candidate(hull(per_channel=True)),
        "control": Candidate(control()),
        "control, per channel": Candidate(control(per_channel=True)),
        "hull, decay 0.01": Candidate(hull(), coefficient_decay=0.01),
    }


Scores = Mapping[str, Any]
"""Scores of a run: "val" and "test" (lower is better, NaN if it diverged), and "seconds"."""
Train = Callable[[Sequence[Run]], Sequence[Scores]]
"""Trains runs and returns the scores of each."""


class OutOfTime(Exception):  # noqa: N818  (it is no error)
    """There is no time left for the next part of a study."""


class UserError(ValueError):
    """A study cannot be made of what was given."""


@dataclass(frozen=True)
class Choice:
    """The learning rate of a candidate, and its mean validation score."""

    lr: float
    val: float


class Study:
    """Train runs that the file does not hold yet.

    Args:
        path: the file of runs, JSON lines.
        train: trains runs.
        about: what else a record tells: the machine, the versions, and the arguments of the study.
        at_once: the largest number of runs to train together: a part, whose records are written together.
        end: do not start a part that would end later, in time.monotonic(), if its runs take as long as the slowest of
            the same candidate so far, or of all if it has none.
    """

    def __init__(
        self, path: Path, train: Train | None, about: Mapping[str, Any], at_once: int, end: float = math.inf
    ) -> None:
        self.path, self.train, self.about, self.at_once, self.end = path, train, about, at_once, end
        path.parent.mkdir(parents=True, exist_ok=True)
        self.done: dict[Run, Scores] = {}
        for line in path.read_text().splitlines() if path.exists() else ():
            record = json.loads(line)
            if train and record["arguments"] != about["arguments"]:
                raise UserError(
                    f"{path} has runs with {record['arguments']}, not {about['arguments']}: give another --output"
                )
            self.done[Run(**record["run"])] = record["scores"]

    def scores(self, runs: Sequence[Run]) -> list[Scores]:
        """Return the scores of runs, in parts of as many as are trained together."""
        missing = [run for run in runs if run not in self.done]
        for start in range(0, len(missing), self.at_once):
            part = missing[start : start + self.at_once]
            took: dict[str, float] = {}
            for run, scores in self.done.items():
                took[run.candidate] = max(took.get(run.candidate, 0.0), scores["seconds"])
            seconds = sum(took.get(run.candidate, max(took.values(), default=0.0)) for run in part)
            if time.monotonic() + seconds > self.end:
                raise OutOfTime(
                    f"{len(missing) - start} of {len(runs)} runs are left here, and the next {len(part)} would take "
                    f"{seconds / 60:.1f} minutes; the same command goes on"
                )
            new = dict(zip(part, self.train(part), strict=True))
            self._write(new)
            self.done |= new
        return [self.done[run] for run in runs]

    def _write(self, new: Mapping[Run, Scores]) -> None:
        """Add runs to the file: all or none if the process is killed, none lost if another one writes."""
        lines = [json.dumps({"run": asdict(run), "scores": new[run], **self.about}) + "\n" for run in new]
        with locked(self.path.with_suffix(".lock")):
            before = self.path.read_bytes() if self.path.exists() else b""
            with atomic_write(self.path) as file:
                file.write(before + "".join(lines).encode())

    def values(self, name: str, candidate: str, lr: float, seeds: Sequence[int]) -> list[float]:
        """Return a score by seed; a run that diverged counts as infinitely bad."""
        found = [scores[name] for scores in self.scores([Run(candidate, lr, seed) for seed in seeds])]
        return [value if math.isfinite(value) else math.inf for value in found]

    def choose(self, names: Sequence[str], rates: Sequence[float], seeds: Sequence[int]) -> dict[str, Choice]:
        """Return the learning rate with the lowest mean validation score of each candidate."""
        self.scores([Run(name, lr, seed) for name, lr, seed in product(names, rates, seeds)])
        vals = {name: {lr: mean(self.values("val", name, lr, seeds)) for lr in rates} for name in names}
        return {name: Choice(lr := min(own, key=own.__getitem__), own[lr]) for name, own in vals.items()}

    def compare(
        self, candidates: Mapping[str, Candidate], rates: Sequence[float], choosing: Sequence[int], fresh: Sequence[int]
    ) -> str:
        """Choose rates and the reference on some seeds, confirm on others, and return a table in Markdown."""
        others = [name for name in candidates if candidates[name].is_fixed]
        if not others:
            raise UserError(f"{list(candidates)}: give a fixed activation, too; the best of them is the reference")
        chosen = self.choose(list(candidates), rates, choosing)
        return self.confirm(chosen, others, rates, fresh)

    def confirm(
        self, chosen: Mapping[str, Choice], others: Iterable[str], rates: Sequence[float], fresh: Sequence[int]
    ) -> str:
        """Train candidates on fresh seeds, and return a table in Markdown, best validation score first.

        Changes are against the best of `others` on validation data, the reference, and paired by seed. A candidate that
        diverged on any seed has no mean and no change: it says how often.
        """
        reference = min(others, key=lambda name: chosen[name].val)
        self.scores([Run(name, choice.lr, seed) for seed in fresh for name, choice in chosen.items()])
        tests = {name: self.values("test", name, choice.lr, fresh) for name, choice in chosen.items()}
        lost = {name: sum(map(math.isinf, values)) for name, values in tests.items()}
        changes = {
            name: [own - other for own, other in zip(values, tests[reference], strict=True)]
            for name, values in tests.items()
            if name != reference and not lost[name] and not lost[reference]
        }
        p_values = dict(zip(changes, holm([p_value(values) for values in changes.values()]), strict=True))
        lines = [
            "| activation | lr | validation | test | change | p (Holm) | seconds |",
            "|---|---|---|---|---|---|---|",
        ]
        for name, choice in sorted(chosen.items(), key=lambda item: item[1].val):
            mark = " (reference)" if name == reference else ""
            edge = " (end of the grid)" if len(rates) > 1 and choice.lr in (min(rates), max(rates)) else ""
            test = f"diverged: {lost[name]} of {len(fresh)}" if lost[name] else Interval.of(tests[name]).spell(".4f")
            change = Interval.of(changes[name]).spell("+.4f") if name in changes else ""
            p = f"{p_values[name]:.2g}" if name in changes else ""
            seconds = mean(self.values("seconds", name, choice.lr, fresh))
            cells = [f"{name}{mark}", f"{choice.lr:g}{edge}", f"{choice.val:.4g}", test, change, p, f"{seconds:.3g}"]
            lines.append(f"| {' | '.join(cells)} |")
        return "\n".join(lines)


def in_groups(
    runs: Sequence[Run],
    kind: Callable[[Run], Hashable],
    train: Train,
) -> list[Scores]:
    """Train runs of each kind together, and return the scores in the order of the runs."""
    scores: dict[Run, Scores] = {}
    for own in dict.fromkeys(map(kind, runs)):
        group = [run for run in runs if kind(run) == own]
        scores |= zip(group, train(group), strict=True)
    return [scores[run] for run in runs]


def populate(
    runs: Sequence[Run],
    candidates: Mapping[str, Candidate],
    network: Callable[[Make], nn.Module],
    device: torch.device,
    trained: Mapping[int, Mapping[str, Tensor]] | None = None,
) -> tuple[Population, dict[str, Any]]:
    """Return a population of the networks of some runs, and the settings of its optimizer.

    Args:
        runs: the runs.
        candidates: the activations of all runs.
        network: makes a network of an activation.
        device: where they train.
        trained: weights to start with, by seed; by default networks start as they are made.
    """

    def make(run: Run) -> nn.Module:
        torch.manual_seed(run.seed)
        made = network(candidates[run.candidate].make)
        if trained is not None:
            made.load_state_dict(trained[run.seed], strict=False)  # activations have parameters besides
        return made

    population = Population([make(run) for run in runs], seeds=[run.seed for run in runs]).to(device)
    chosen = [candidates[run.candidate] for run in runs]
    own = [p for name, p in population.named_parameters() if name.startswith("activations.")]  # slopes of PReLU, too
    decay = {"params": own, "weight_decay": [item.coefficient_decay for item in chosen]}
    scales = [item.coefficient_lr_scale for item in chosen]
    return population, {"lr": [run.lr for run in runs], "coefficient_lr_scale": scales, "groups": [decay]}


def results(population: Population, scores: Tensor, start: float, counts: Sequence[int] | None = None) -> list[Scores]:
    """Return the scores of runs, with seconds and what their hulls have learned.

    Args:
        population: the networks.
        scores: the validation and the test score of each run, a row.
        start: when training started, in time.perf_counter().
        counts: the number of networks of each run, one by default; what the first of them has learned is kept.
    """
    counts = counts or [1] * len(scores)
    seconds, found, first = (time.perf_counter() - start) / len(population), [], 0
    for (val, test), count in zip(scores.tolist(), counts, strict=True):
        found.append({"val": val, "test": test, "seconds": seconds * count, "learned": learned(population[first])})
        first += count
    return found


def learned(network: nn.Module) -> dict[str, list[float]]:
    """Return the coefficients of the hulls that learn, by name, then their inner scales; means over channels."""
    found = {}
    for name, hull in network.named_modules():
        if isinstance(hull, Hull) and hull.raw.requires_grad:
            scales = [] if hull.inner_scale is None else [hull.inner_scale]
            rows = [torch.atleast_2d(numbers.detach()).mean(0) for numbers in (hull.coefficients, *scales)]
            found[name] = [round(number, 4) for number in torch.cat(rows).tolist()]
    return found


def at_least(least: int) -> Callable[[str], int]:
    """Return a type of arguments: integers of at least so much."""

    def integer(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"{text}: give {least} or more")
        return int(text)

    return integer


def add_arguments(parser: argparse.ArgumentParser, rates: Sequence[float]) -> None:
    """Add the arguments that all studies have."""
    parser.add_argument("--seeds", type=at_least(2), default=5, help="fresh seeds")
    parser.add_argument("--first-seed", type=at_least(FRESH), default=FRESH, help="the first of them")
    parser.add_argument("--choosing", type=at_least(1), default=1, help="seeds that choose learning rates, from 0 on")
    parser.add_argument("--rates", type=float, nargs="+", default=list(rates), help="learning rates to choose from")
    parser.add_argument("--at-once", type=at_least(1), default=64, help="networks side by side")
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop before a part that would end later")
    parser.add_argument("--commit", help="the commit to record, where this is no checkout")
    parser.add_argument("--output", type=Path, required=True, help="file of runs; the same command goes on with it")


def open_study(given: argparse.Namespace, path: Path, train: Train, device: torch.device, **changes: Any) -> Study:
    """Return a study of some arguments, whose records tell those that change what a run gives.

    Args:
        given: the arguments.
        path: the file of runs.
        train: trains runs.
        device: where it does.
        changes: arguments to record that differ from those given; None leaves one out.
    """
    common = argparse.ArgumentParser()
    add_arguments(common, ())
    left_out = {"only", "end", *vars(common.parse_args(["--output", ""]))}
    arguments = {
        name: value.name if isinstance(value, Path) else value
        for name, value in (vars(given) | changes).items()
        if name not in left_out and value is not None
    }
    about = {"arguments": arguments, "environment": asdict(environment(device_name(device), given.commit))}
    return Study(path, train, about, given.at_once, given.end)


def print_report(given: argparse.Namespace, make_report: Callable[[torch.device], str]) -> None:
    """Print the report of a study, what is left of it if the time is over, or what is wrong with what was given."""
    given.end = time.monotonic() + 60 * given.minutes
    try:
        print(make_report(choose_device(None)))
    except OutOfTime as left:
        print(left)
    except (UserError, DataError, OSError) as wrong:
        raise SystemExit(f"error: {wrong}") from None


def main(
    parser: argparse.ArgumentParser,
    candidates: Mapping[str, Candidate],
    rates: Sequence[float],
    open_train: Callable[[argparse.Namespace, torch.device], Train],
) -> None:
    """Run the command of a study: `open_train` takes its arguments and the device."""
    add_arguments(parser, rates)
    parser.add_argument("--only", nargs="+", default=list(candidates), choices=list(candidates), help="candidates")
    given = parser.parse_args()

    def make_report(device: torch.device) -> str:
        study = open_study(given, given.output, open_train(given, device), device)
        chosen = {name: candidates[name] for name in given.only}
        fresh = range(given.first_seed, given.first_seed + given.seeds)
        return study.compare(chosen, given.rates, range(given.choosing), fresh)

    print_report(given, make_report)
