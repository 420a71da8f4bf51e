"""Compare activations in any training loop: a learning rate for each, fresh seeds, paired intervals.

A study is a function that trains some runs and returns their scores. This file chooses the learning rate of every
candidate on validation scores, trains all candidates on fresh seeds, and prints test scores and gains over the best
fixed activation, which validation scores choose, too. Every run is a line of a file, written as it ends: the same
command resumes an interrupted study.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from statistics import mean

import torch
from torch import Tensor, nn

from hullo import AffineHull, ConvexHull, Hull, LinearHull
from hullo.lab.analysis.statistics import Interval, holm, p_value
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
        is_learned: whether it is compared with the best of the others.
    """

    make: Make
    coefficient_lr_scale: float = 1.0
    is_learned: bool = False


@dataclass(frozen=True)
class Run:
    """A network to train."""

    candidate: str
    lr: float
    seed: int


def settings(replaced: str, width_dim: int) -> dict[str, Candidate]:
    """Return hulls that differ from one in a single setting: rate of coefficients, start, kind, per channel.

    Args:
        replaced: the fixed activation that they start as.
        width_dim: the dimension of the channels.
    """
    bases = dict.fromkeys(["identity", "tanh", replaced])

    def hull(kind: type[Hull] = AffineHull, init: str | None = replaced, *, per_channel: bool = False) -> Make:
        options = {"channel_dim": width_dim, "init": init, "strict": False}
        return lambda width: kind(*bases, groups=width if per_channel else 1, **options)

    chosen: dict[str, tuple[Make, float]] = {
        "hull": (hull(), 1.0),
        **{f"hull, rate x{scale}": (hull(), float(scale)) for scale in (3, 10, 30)},
        "hull, uniform start": (hull(init=None), 1.0),
        "hull, linear": (hull(LinearHull), 1.0),
        "hull, convex": (hull(ConvexHull), 1.0),
        "hull, per channel": (hull(per_channel=True), 1.0),
    }
    return {name: Candidate(make, scale, is_learned=True) for name, (make, scale) in chosen.items()}


Train = Callable[[Sequence[Run]], Sequence[Mapping[str, float]]]
"""Trains runs and returns for each "val", "test" and "seconds"; lower scores are better, NaN if it diverged."""


class Study:
    """Train runs that the file does not hold yet.

    Args:
        path: the file of runs, JSON lines.
        train: trains runs.
        device: the name of the device, for the records.
        at_once: the largest number of runs to train together.
    """

    def __init__(self, path: Path, train: Train, device: str, at_once: int) -> None:
        self.path, self.train, self.about, self.at_once = path, train, asdict(environment(device)), at_once
        path.parent.mkdir(parents=True, exist_ok=True)
        self.done: dict[Run, Mapping[str, float]] = {}
        for line in path.read_text().splitlines() if path.exists() else ():
            record = json.loads(line)
            self.done[Run(**record["run"])] = record["scores"]

    def scores(self, runs: Sequence[Run]) -> list[Mapping[str, float]]:
        """Return the scores of runs."""
        missing = [run for run in runs if run not in self.done]
        for start in range(0, len(missing), self.at_once):
            part = missing[start : start + self.at_once]
            found = self.train(part)
            new = dict(zip(part, found, strict=True))
            self._write(new)
            self.done |= new
        return [self.done[run] for run in runs]

    def _write(self, new: Mapping[Run, Mapping[str, float]]) -> None:
        """Add runs to the file: all or none if the process is killed, none lost if another one writes."""
        lines = [json.dumps({"run": asdict(run), "scores": new[run], "environment": self.about}) + "\n" for run in new]
        with locked(self.path.with_suffix(".lock")):
            before = self.path.read_bytes() if self.path.exists() else b""
            with atomic_write(self.path) as file:
                file.write(before + "".join(lines).encode())

    def values(self, name: str, candidate: str, lr: float, seeds: Sequence[int]) -> list[float]:
        """Return a score by seed; a run that diverged counts as infinitely bad."""
        found = [scores[name] for scores in self.scores([Run(candidate, lr, seed) for seed in seeds])]
        return [value if math.isfinite(value) else math.inf for value in found]

    def compare(
        self, candidates: Mapping[str, Candidate], rates: Sequence[float], choosing: Sequence[int], fresh: Sequence[int]
    ) -> str:
        """Choose rates and the reference on some seeds, confirm on others, and return a table in Markdown."""
        self.scores([Run(name, lr, seed) for name, lr, seed in product(candidates, rates, choosing)])
        chosen = {name: min(rates, key=lambda lr: mean(self.values("val", name, lr, choosing))) for name in candidates}
        vals = {name: mean(self.values("val", name, lr, choosing)) for name, lr in chosen.items()}
        reference = min((name for name in candidates if not candidates[name].is_learned), key=vals.__getitem__)
        self.scores([Run(name, chosen[name], seed) for seed in fresh for name in candidates])
        base = self.values("test", reference, chosen[reference], fresh)
        tests = {name: self.values("test", name, lr, fresh) for name, lr in chosen.items()}
        changes = {
            name: [own - other for own, other in zip(values, base, strict=True)]
            for name, values in tests.items()
            if name != reference and all(map(math.isfinite, values))
        }
        p_values = dict(zip(changes, holm([p_value(values) for values in changes.values()]), strict=True))
        lines = [
            "| activation | lr | validation | test | change | p (Holm) | seconds |",
            "|---|---|---|---|---|---|---|",
        ]
        for name in sorted(candidates, key=vals.__getitem__):
            mark = " (reference)" if name == reference else ""
            edge = " (end of the grid)" if len(rates) > 1 and chosen[name] in (min(rates), max(rates)) else ""
            change = Interval.of(changes[name]).spell("+.4f") if name in changes else ""
            p = f"{p_values[name]:.2g}" if name in changes else ""
            seconds = mean(self.values("seconds", name, chosen[name], fresh))
            test = Interval.of(tests[name]).spell(".4f")
            cells = [f"{name}{mark}", f"{chosen[name]:g}{edge}", f"{vals[name]:.4g}", test, change, p, f"{seconds:.3g}"]
            lines.append(f"| {' | '.join(cells)} |")
        return "\n".join(lines)


def populate(
    runs: Sequence[Run],
    candidates: Mapping[str, Candidate],
    network: Callable[[Make], nn.Module],
    trained: Mapping[int, Mapping[str, Tensor]] | None = None,
) -> tuple[Population, dict[str, list[float]]]:
    """Return a population of the networks of some runs, and the settings of its optimizer.

    Args:
        runs: the runs.
        candidates: the activations of all runs.
        network: makes a network of an activation.
        trained: weights to start with, by seed; by default networks start as they are made.
    """

    def make(run: Run) -> nn.Module:
        torch.manual_seed(run.seed)
        made = network(candidates[run.candidate].make)
        if trained is not None:
            made.load_state_dict(trained[run.seed], strict=False)  # activations have parameters besides
        return made

    scales = [candidates[run.candidate].coefficient_lr_scale for run in runs]
    settings = {"lr": [run.lr for run in runs], "coefficient_lr_scale": scales}
    return Population([make(run) for run in runs], seeds=[run.seed for run in runs]), settings


def main(
    parser: argparse.ArgumentParser,
    candidates: Mapping[str, Candidate],
    rates: Sequence[float],
    open_train: Callable[[argparse.Namespace, torch.device], Train],
) -> None:
    """Run the command of a study: `open_train` takes its arguments and the device."""
    parser.add_argument("--seeds", type=int, default=5, help="fresh seeds")
    parser.add_argument("--first-seed", type=int, default=FRESH, help="the first of them")
    parser.add_argument("--choosing", type=int, default=1, help="seeds that choose learning rates, from 0 on")
    parser.add_argument("--rates", type=float, nargs="+", default=list(rates), help="learning rates to choose from")
    parser.add_argument("--at-once", type=int, default=64, help="networks side by side")
    parser.add_argument("--only", nargs="+", default=list(candidates), choices=list(candidates), help="candidates")
    parser.add_argument("--output", type=Path, required=True, help="file of runs; the same command goes on with it")
    given = parser.parse_args()
    device = choose_device(None)
    study = Study(given.output, open_train(given, device), device_name(device), given.at_once)
    chosen = {name: candidates[name] for name in given.only}
    fresh = range(given.first_seed, given.first_seed + given.seeds)
    print(study.compare(chosen, given.rates, choosing=range(given.choosing), fresh=fresh))
