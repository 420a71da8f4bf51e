"""The result of a comparison: a table, the finding in one sentence, and the networks."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from statistics import mean

import torch
from torch import nn

from hullo.lab.analysis.statistics import t_quantile
from hullo.lab.comparison.budget import Plan, StepCost
from hullo.lab.comparison.candidates import AS_IT_IS, HULL, Candidate
from hullo.lab.comparison.decision import FRESH, KEEP, ORIGINAL, WINS, Choice, Verdict, fill, worst_of
from hullo.lab.comparison.store import Store
from hullo.lab.comparison.task import Metric
from hullo.lab.comparison.trial import Setup

CONFIRMED, EXPLORED = "confirmed", "exploratory"


@dataclass(frozen=True)
class Row:
    """A line of the table: the means of a candidate's runs at its learning rate.

    Means over unlike numbers of seeds do not compare; `change` is the mean difference from the network as it is, on
    validation data and the same seeds.
    """

    candidate: str
    lr: float
    role: str
    validation: float
    change: float
    validation_seeds: int
    test: float
    test_seeds: int
    diverged: int


@dataclass
class Result:
    """The result of :func:`hullo.lab.compare`; printing it shows a table and the finding.

    Attributes:
        finding: what was found, in one sentence.
        best: the network to use, trained, as a plain module: the challenger's if it wins, else the original's.
        rows: the lines of the table.
        verdict: the numbers of the confirmation; None if the time ran out before.
        choice: the runs on validation data, and the challenger.
        worth: the smallest gain that is worth a change; None if it is not known yet.
        costs: of a training step of the original and of the challenger, each as a single network.
        folder: the records, the weights and the plan.
    """

    network: str
    data: str
    split: str
    setup: Setup
    plan: Plan
    choice: Choice
    verdict: Verdict | None
    store: Store
    worth: float | None = None
    worth_rule: str = ""
    power: float | None = None
    costs: list[StepCost] = field(default_factory=list)
    needed: float | None = None  # minutes, in all, that would decide
    notes: list[str] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return self.store.folder

    @property
    def metric(self) -> Metric:
        return self.setup.task.metric

    @property
    def candidates(self) -> list[Candidate]:
        return list(self.setup.candidates.values())

    @property
    def best(self) -> nn.Module:
        """Return the network to use, trained, as a plain module: the challenger's if it wins, else the original's."""
        wins = self.verdict is not None and self.verdict.kind == WINS
        return self.network_of(self.choice.challenger if wins else ORIGINAL)

    def network_of(self, candidate: str) -> nn.Module:
        """Return the network of a candidate, by its label or its spelling, that was best on validation data."""
        for item in self.candidates:
            if candidate in (item.name, item.label):
                return item.plain(self.store.load_weights(item.label, item.build(0, self.setup.example)))
        labels = ", ".join(item.label for item in self.candidates)
        raise ValueError(f"unknown candidate {candidate!r}; available: {labels}")

    @property
    def rows(self) -> list[Row]:
        """Return the network as it is, then the others: those that stayed longest first, then by their change."""
        rows = [self._row(item) for item in self.candidates if item.name in self.choice.rates]
        return sorted(rows, key=lambda r: (r.candidate != AS_IT_IS, -r.validation_seeds, -self.metric.sign * r.change))

    def _row(self, item: Candidate) -> Row:
        sign, lr = self.metric.sign, self.choice.rates[item.name]
        is_confirmed = self.verdict is not None and item.name in (ORIGINAL, self.choice.challenger)
        scores = self.store.scores()
        own, worst = [arm for arm in scores if arm[:2] == (item.name, lr)], worst_of(s.test for s in scores.values())
        tested = [fill(scores[arm].test, worst) for arm in own if (arm.seed >= FRESH) == is_confirmed]
        validation, original = self.choice.values(item.name), self.choice.values(ORIGINAL)
        return Row(
            item.label,
            lr,
            CONFIRMED if is_confirmed else EXPLORED,
            sign * mean(validation.values()),
            sign * mean(value - original[seed] for seed, value in validation.items()),
            len(validation),
            sign * mean(tested) if tested else math.nan,
            len(tested),
            sum(self.store.records[arm].diverged for arm in own),
        )

    @property
    def challenger(self) -> str:
        """Return the label of the challenger; an empty string if there is none yet."""
        name = self.choice.challenger
        return self.setup.candidates[name].label if name else ""

    @property
    def finding(self) -> str:
        """Return what was found, in one sentence."""
        found = self.verdict
        if found is None:
            who = self.challenger or "a challenger"
            return f"Undecided: the time ran out before {who} was confirmed; {self._would_decide()}."
        change = f"{self.metric.name} {self._signed(found.gain)} ± {self._spell(found.half)}"
        both = self._half_over_examples()
        level = f"{100 * (1 - found.alpha):.4g} % interval over {found.pairs} fresh seeds"
        level += f"; ± {self._spell(both)} over seeds and test examples" if both is not None else ""
        worth = self._spell(found.worth)
        if found.kind == WINS:
            gain = (
                f"more than the {worth} that are worth a change"
                if found.gain - found.half > found.worth
                else f"less than the {worth} that are worth a change"
                if found.excluded < found.worth
                else f"whether that is more than the {worth} that are worth a change is open"
            )
            return f"{self.challenger} beats the network as it is: {change} ({level}); {gain}{self._spell_costs()}."
        if found.kind == KEEP:
            above = f"gains above {self._spell(max(0.0, found.excluded))} are excluded"
            why = f"{above}, and a change is worth {worth}"
            return f"Keep what you have: {why}; challenger {self.challenger}: {change} ({level})."
        tried = f"challenger {self.challenger}: {change} ({level})"
        return f"Undecided: {tried}; gains above {worth} are not excluded; {self._would_decide()}."

    def _spell(self, value: float) -> str:
        return f"{spell_number(value)} {self.metric.unit}".rstrip()

    def _signed(self, gain: float) -> str:
        """Return a gain as a change of the metric: a gain of a lower metric is a negative change."""
        return f"{'+' if self.metric.sign * gain >= 0 else '-'}{spell_number(abs(gain))}"

    def _would_decide(self) -> str:
        if self.needed is None:
            return "more seeds than are allowed would be needed to decide"
        more = self.needed - self.store.state["seconds"] / 60
        count = max(1, math.ceil(more))
        return f"about {count} more minute{'s' * (count > 1)} would decide: {math.ceil(self.needed)} in all"

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
        found = self.verdict
        arms = [] if found is None else self.choice.confirmation(found.pairs)
        parts = [self.store.load_examples(arm) for arm in arms]
        known = [self.metric.slope(float(part.mean())) * part for part in parts if part is not None]
        is_sound = not any(self.store.records[arm].diverged for arm in arms)
        if found is None or len(known) < len(parts) or not is_sound or len(known[0]) < 2:
            return None
        difference = torch.stack(known[::2]).mean(0) - torch.stack(known[1::2]).mean(0)
        variance = found.deviation**2 / found.pairs + float(difference.var()) / len(difference)
        return t_quantile(found.pairs - 1, 1 - found.alpha) * math.sqrt(variance)

    def to_csv(self, path: str | Path) -> None:
        """Write the rows as a table."""
        with Path(path).open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, [item.name for item in fields(Row)])
            writer.writeheader()
            writer.writerows(map(asdict, self.rows))

    def __str__(self) -> str:
        better = "higher" if self.metric.higher else "lower"
        rates = ", ".join(f"{lr:g}" for lr in self.choice.grid or self.plan.rates)
        lines = [
            f"{self.network} on {self.data}: {f'{self.metric.name} {self.metric.scale}'.rstrip()}, {better} is better",
            *(f"data: {part}" for part in self.split.split("; ")),
            f"each run: {self.plan.epochs} epochs, at the best learning rate of {rates}",
            *([] if self.worth is None else [f"worth a change: a gain of {self._spell(self.worth)}{self.worth_rule}"]),
            *(f"{HULL}: {item.name}" for item in self.candidates if item.label == HULL),
            *self.notes,
        ]
        if rows := self.rows:
            at_edge = [item.label for item in self.candidates if self.choice.is_at_edge(item.name)]
            marks = {row.candidate: "*" * (row.candidate in at_edge) for row in rows}
            lines += ["", "exploratory, on validation data; changes are those on the same seeds"]
            lines += _align(
                ("candidate", "learning rate", "mean", "change", "seeds"),
                *(
                    (
                        row.candidate,
                        f"{row.lr:g}{marks[row.candidate]}",
                        spell_number(row.validation),
                        "" if row.candidate == AS_IT_IS else self._signed(self.metric.sign * row.change),
                        str(row.validation_seeds),
                    )
                    for row in rows
                ),
            )
            lines += ["* at the end of the learning rates that were tried"] if at_edge else []
            if diverged := [f"{row.candidate} {row.diverged}" for row in rows if row.diverged]:
                lines.append(f"runs that diverged, and count as the worst: {', '.join(diverged)}")
        if self.verdict is not None:
            lines += ["", f"confirmation, on test data and {self.verdict.pairs} fresh seeds"]
            confirmed = [row for row in rows if row.role == CONFIRMED]
            lines += _align(("candidate", "mean"), *((row.candidate, spell_number(row.test)) for row in confirmed))
        if self.power is not None:
            lines.append(f"power: a gain of {self._spell(self.power)} is found with a probability of 80 %")
        return "\n".join([*lines, "", self.finding])


def _align(*lines: Sequence[str]) -> Iterable[str]:
    """Return lines of a table: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for first, *others in lines:
        cells = (cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))
        yield "  ".join([first.ljust(widths[0]), *cells]).rstrip()


def spell_number(value: float) -> str:
    """Return a number with the digits that matter: two decimals from 1 to 1000, three digits below.

    >>> [spell_number(v) for v in (91.234, 0.97654, 0.0123456, 49213.7)]
    ['91.23', '0.977', '0.0123', '49214']
    """
    if not math.isfinite(value):
        return "-"
    size = abs(value)
    return f"{value:.0f}" if size >= 1000 else f"{value:.2f}" if size >= 1 else f"{value:.3g}"
