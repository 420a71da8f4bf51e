"""Compare activations in any training loop: a learning rate for each, fresh seeds, paired intervals.

A study is a function that trains some runs and returns their scores. This file chooses the learning rate of every
candidate on validation scores, trains all candidates on fresh seeds, and prints test scores and gains over the best
fixed activation, which validation scores choose, too. Every run is a line of a file, written as it ends: the same
command resumes an interrupted study.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from statistics import mean

from torch import nn

from hullo.lab.analysis.statistics import Interval, p_value
from hullo.lab.spec.environment import environment


@dataclass(frozen=True)
class Candidate:
    """An activation: a function that makes one, and the learning rate of its coefficients as a multiple of `lr`."""

    make: Callable[[], nn.Module]
    coefficient_lr_scale: float = 1.0
    is_learned: bool = False


@dataclass(frozen=True)
class Run:
    """A network to train."""

    candidate: str
    lr: float
    seed: int


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
            with self.path.open("a") as file:
                for run, scores in zip(part, found, strict=True):
                    file.write(json.dumps({"run": asdict(run), "scores": scores, "environment": self.about}) + "\n")
                    self.done[run] = scores
        return [self.done[run] for run in runs]

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
        lines = ["| activation | lr | validation | test | change | p | seconds |", "|---|---|---|---|---|---|---|"]
        for name in sorted(candidates, key=vals.__getitem__):
            tests = self.values("test", name, chosen[name], fresh)
            changes = [own - other for own, other in zip(tests, base, strict=True)]
            is_sound = name != reference and all(map(math.isfinite, changes))
            gain, p = (Interval.of(changes).spell("+.4f"), f"{p_value(changes):.2g}") if is_sound else ("", "")
            edge = " (end of the grid)" if chosen[name] in (min(rates), max(rates)) and len(rates) > 1 else ""
            seconds = mean(self.values("seconds", name, chosen[name], fresh))
            lines.append(
                f"| {name}{' (reference)' if name == reference else ''} | {chosen[name]:g}{edge} | {vals[name]:.4g} | "
                f"{Interval.of(tests).spell('.4f')} | {gain} | {p} | {seconds:.3g} |"
            )
        return "\n".join(lines)
