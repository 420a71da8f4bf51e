"""The result of a comparison: a table, the finding in one sentence, and the networks."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean

import torch
from torch import Tensor, nn

from hullo.lab.analysis.statistics import t_quantile
from hullo.lab.comparison.candidates import ORIGINAL, Candidate
from hullo.lab.comparison.cost import StepCost
from hullo.lab.comparison.decision import FRESH, KEEP, WINS, Arm, Choice, Verdict, fill, worst_of
from hullo.lab.comparison.plan import Plan
from hullo.lab.comparison.store import Store
from hullo.lab.comparison.task import Metric

COLUMNS = (
    "candidate",
    "lr",
    "role",
    "validation",
    "change",
    "validation_seeds",
    "test",
    "test_seeds",
    "diverged",
    "trained",
)
CONFIRMED, EXPLORED = "confirmed", "exploratory"


@dataclass(frozen=True)
class Row:
    """A line of the table: the means of a candidate's runs at its learning rate.

    Means over unlike numbers of seeds do not compare; `change` is the mean difference from the network as it is, on
    validation data and the same seeds.
    """

    candidate: str
    label: str
    lr: float
    role: str
    validation: float
    change: float
    validation_seeds: int
    test: float
    test_seeds: int
    diverged: int
    trained: str


@dataclass
class Result:
    """The result of :func:`hullo.lab.compare`; printing it shows a table and the finding.

    Attributes:
        finding: what was found, in one sentence.
        best: the network to use, trained, as a plain module: the challenger's if it wins, else the original's.
        rows: the lines of the table.
        verdict: the numbers of the confirmation; None if the time ran out before.
        choice: the runs on validation data, and the challenger.
        costs: of a training step of the original and of the challenger, each as a single network.
        folder: the records, the weights and the plan.
    """

    network: str
    data: str
    split: str
    metric: Metric
    plan: Plan
    candidates: Sequence[Candidate]
    choice: Choice
    verdict: Verdict | None
    store: Store
    example: Tensor | None
    power: float | None = None
    costs: list[StepCost] = field(default_factory=list)
    needed: float | None = None  # seconds that would decide
    notes: list[str] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return self.store.folder

    @property
    def best(self) -> nn.Module:
        """Return the network to use, trained, as a plain module: the challenger's if it wins, else the original's."""
        wins = self.verdict is not None and self.verdict.kind == WINS
        return self.network_of(self.choice.challenger if wins else ORIGINAL)

    def network_of(self, candidate: str) -> nn.Module:
        """Return the candidate's network that was best on validation data, after its best epoch."""
        names = {item.name: item for item in self.candidates}
        if candidate not in names:
            raise ValueError(f"unknown candidate {candidate!r}; available: {', '.join(names)}")
        item = names[candidate]
        return item.plain(self.store.load_weights(candidate, item.build(0, self.example)))

    @property
    def rows(self) -> list[Row]:
        """Return the lines of the table, those that stayed longest first, then the best on validation data."""
        rows = [self._row(item) for item in self.candidates if item.name in self.choice.rates]
        return sorted(rows, key=lambda row: (-row.validation_seeds, -self.metric.sign * row.change))

    def _row(self, item: Candidate) -> Row:
        sign, lr = self.metric.sign, self.choice.rates[item.name]
        is_confirmed = self.verdict is not None and item.name in (ORIGINAL, self.choice.challenger)
        own = {arm: record for arm, record in self.store.records.items() if (arm.candidate, arm.lr) == (item.name, lr)}
        scores = {arm: score for arm in own if (score := self.store.score(arm)) is not None}
        worst = worst_of(score.test for arm in self.store.records if (score := self.store.score(arm)))
        tested = [fill(s.test, worst) for arm, s in scores.items() if (arm.seed >= FRESH) == is_confirmed]
        validation, original = self.choice.values(item.name), self.choice.values(ORIGINAL)
        return Row(
            item.name,
            item.label,
            lr,
            CONFIRMED if is_confirmed else EXPLORED,
            sign * mean(validation.values()),
            sign * mean(value - original[seed] for seed, value in validation.items()),
            len(validation),
            sign * mean(tested) if tested else math.nan,
            len(tested),
            sum(record.diverged for record in own.values()),
            "one by one" if item.alone else "in a population",
        )

    @property
    def finding(self) -> str:
        """Return what was found, in one sentence."""
        challenger = self.choice.challenger
        if self.verdict is None:
            who = challenger or "a challenger"
            return f"Undecided: the time ran out before {who} was confirmed; {self._would_decide()}."
        found, unit = self.verdict, f" {self.metric.unit}" * bool(self.metric.unit)
        seeds = f"{found.pairs} fresh seeds"
        change = f"{self.metric.name} {self._signed(found.gain)} ± {_digits(found.half)}{unit}"
        both = self._half_over_examples()
        level = f"{100 * (1 - found.alpha):.4g} % interval over {seeds}"
        level += f"; ± {_digits(both)} over seeds and test examples" if both is not None else ""
        if found.kind == WINS:
            return f"{challenger} beats the network as it is: {change} ({level}){self._spell_costs()}."
        if found.kind == KEEP:
            above = f"gains above {_digits(max(0.0, found.excluded))}{unit} are excluded"
            return f"Keep what you have: {above}; challenger {challenger}: {change} ({level})."
        return f"Undecided: challenger {challenger}: {change} ({level}); {self._would_decide()}."

    def _signed(self, gain: float) -> str:
        """Return a gain as a change of the metric: a gain of a lower metric is a negative change."""
        return f"{'+' if self.metric.sign * gain >= 0 else '-'}{_digits(abs(gain))}"

    def _would_decide(self) -> str:
        if self.needed is None:
            return "more seeds than are practical would be needed to decide"
        return f"about {max(1, math.ceil(self.needed / 60))} more minutes would decide"

    def _spell_costs(self) -> str:
        if len(self.costs) != 2 or not self.costs[0].seconds:
            return ""
        own, other = self.costs
        return (
            f"; as a single network, its training step takes {other.seconds / own.seconds:.2f} times the time and "
            f"{other.memory / own.memory:.2f} times the memory"
        )

    def _half_over_examples(self) -> float | None:
        """Return half of the interval's width over seeds and test examples; None without scores of examples.

        The variances of both means are added: s^2 / n over seeds and s^2 / N over examples.
        """
        found, names = self.verdict, (self.choice.challenger, ORIGINAL)
        if found is None or found.pairs < 2:
            return None
        sides = []
        for name in names:
            arms = [Arm(name, self.choice.rates[name], FRESH + i) for i in range(found.pairs)]
            if any(self.store.records[arm].diverged for arm in arms):
                return None
            parts = [self.store.load_examples(arm) for arm in arms]
            known = [part for part in parts if part is not None]
            if len(known) < len(parts) or not known:
                return None
            sides.append(torch.stack([self.metric.slope(float(part.mean())) * part for part in known]).mean(0))
        difference = sides[0] - sides[1]
        if len(difference) < 2:
            return None
        variance = found.deviation**2 / found.pairs + float(difference.var()) / len(difference)
        return t_quantile(found.pairs - 1, 1 - found.alpha) * math.sqrt(variance)

    def __str__(self) -> str:
        better = "higher" if self.metric.higher else "lower"
        rates = ", ".join(f"{lr:g}" for lr in self.choice.grid or self.plan.rates)
        head = [
            f"{self.network} on {self.data}: {self.metric.name}, {better} is better",
            f"data: {self.split}",
            f"every run: {self.plan.epochs} epochs, at the best of the learning rates {rates} for each candidate",
        ]
        lines = [("candidate", "lr", "validation", "change", "test", "seeds", "")]
        for row in self.rows:
            notes = [row.role, *([f"{row.diverged} diverged"] if row.diverged else [])]
            notes += ["best rate at the end of the grid"] if row.candidate in self.choice.at_edge else []
            notes += ["trained one by one"] if row.trained == "one by one" else []
            seeds = f"{row.validation_seeds} + {row.test_seeds}" if row.role == CONFIRMED else f"{row.validation_seeds}"
            lines.append(
                (
                    row.label,
                    f"{row.lr:g}",
                    _digits(row.validation),
                    "" if row.candidate == ORIGINAL else f"{'-' if row.change < 0 else '+'}{_digits(abs(row.change))}",
                    _digits(row.test),
                    seeds,
                    ", ".join(notes),
                )
            )
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        table = [
            "  ".join(
                [
                    line[0].ljust(widths[0]),
                    *(c.rjust(w) for c, w in zip(line[1:-1], widths[1:-1], strict=True)),
                    line[-1],
                ]
            ).rstrip()
            for line in lines
        ]
        power = (
            []
            if self.power is None
            else [f"power: a gain of {_digits(self.power)} is found with a probability of 80 %"]
        )
        return "\n".join([*head, *self.notes, "", *table, "", *power, self.finding])

    def to_csv(self, path: str | Path) -> None:
        """Write the table as CSV."""
        with Path(path).open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(COLUMNS)
            for row in self.rows:
                writer.writerow([getattr(row, name) for name in COLUMNS])


def _digits(value: float) -> str:
    """Return a number with the digits that matter: three, and at least two decimals from 0.1 to 1000.

    >>> [_digits(v) for v in (91.234, 0.0123456, 49213.7)]
    ['91.23', '0.0123', '49214']
    """
    if not math.isfinite(value):
        return "-"
    size = abs(value)
    return f"{value:.0f}" if size >= 1000 else f"{value:.2f}" if size >= 0.1 else f"{value:.3g}"
