"""The result of a comparison: a table, the finding in one sentence, and the networks."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import mean

import torch
from torch import nn

from hullo.lab.analysis.statistics import t_quantile
from hullo.lab.comparison.budget import Plan, StepCost, spell_count, spell_minutes
from hullo.lab.comparison.candidates import COEFFICIENT_LR_SCALE, HULL, Candidate
from hullo.lab.comparison.decision import FRESH, KEEP, MAX_PAIRS, ORIGINAL, WINS, Choice, Verdict, fill, worst_of
from hullo.lab.comparison.store import Store
from hullo.lab.comparison.task import spell_number
from hullo.lab.comparison.trial import Setup
from hullo.lab.spec.records import ACCURACY

MEAN = "#.5g"
"""The digits of a mean, which show changes of a thousandth of it."""


@dataclass(frozen=True)
class Row:
    """A line of the table: the means of a candidate's runs at its learning rate.

    Means over unlike numbers of seeds do not compare; `change` is the mean difference from the network as it is, on
    validation data and the same seeds.
    """

    candidate: str
    lr: float
    role: str  # "confirmed" on fresh seeds, or "exploratory"
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
        is_default_worth: whether the user did not give it.
        costs: of a training step of the original and of the challenger, each as a single network.
        most_seeds: the largest number of fresh seeds.
        needed: the minutes, in all, that would decide; None if it takes too many seeds.
        folder: the records, the weights and the plan.
    """

    setup: Setup
    store: Store
    plan: Plan
    choice: Choice
    worth: float | None
    is_default_worth: bool
    most_seeds: int = MAX_PAIRS
    verdict: Verdict | None = None
    needed: float | None = None

    def __post_init__(self) -> None:
        self.task, self.folder = self.setup.task, self.store.folder

    @property
    def costs(self) -> list[StepCost]:
        return [StepCost(*cost) for cost in self.store.state.get("costs", [])]

    @property
    def best(self) -> nn.Module:
        """Return the network to use, trained, as a plain module: the challenger's if it wins, else the original's."""
        wins = self.verdict is not None and self.verdict.kind == WINS
        return self.network_of(self.choice.challenger if wins else ORIGINAL)

    def network_of(self, candidate: str) -> nn.Module:
        """Return the network of a candidate, by its label or its spelling, that was best on validation data."""
        found = self.setup.candidates.values()
        for item in found:
            if candidate in (item.name, item.label):
                return item.plain(self.store.load_weights(item.label, item.build(0, self.setup.example)))
        raise ValueError(f"unknown candidate {candidate!r}; available: {', '.join(item.label for item in found)}")

    @property
    def rows(self) -> list[Row]:
        """Return the network as it is, then the others: those that stayed longest first, then by their change."""
        rows = {item.name: self._row(item) for item in self.setup.candidates.values() if item.name in self.choice.rates}
        first = [rows.pop(ORIGINAL)] if rows else []
        return first + sorted(rows.values(), key=lambda row: (-row.validation_seeds, -self.task.sign * row.change))

    def _row(self, item: Candidate) -> Row:
        sign, lr = self.task.sign, self.choice.rates[item.name]
        is_confirmed = self.verdict is not None and item.name in (ORIGINAL, self.choice.challenger)
        scores = self.store.scores()
        own, worst = [arm for arm in scores if arm[:2] == (item.name, lr)], worst_of(s.test for s in scores.values())
        tested = [fill(scores[arm].test, worst) for arm in own if (arm.seed >= FRESH) == is_confirmed]
        validation, original = self.choice.values(item.name), self.choice.values(ORIGINAL)
        return Row(
            candidate=item.label,
            lr=lr,
            role="confirmed" if is_confirmed else "exploratory",
            validation=sign * mean(validation.values()),
            change=sign * mean(value - original[seed] for seed, value in validation.items()),
            validation_seeds=len(validation),
            test=sign * mean(tested) if tested else math.nan,
            test_seeds=len(tested),
            diverged=sum(self.store.records[arm].diverged for arm in own),
        )

    @property
    def finding(self) -> str:
        """Return what was found, in one sentence."""
        found, name = self.verdict, self.choice.challenger
        challenger = self.setup.candidates[name].label if name else "a challenger"
        decide = "more than 1000 fresh seeds would be needed to decide"
        if self.needed is not None:
            decide = f"about {spell_minutes(self.needed)} in all would decide"
        elif found is not None and found.needed is not None:
            decide = f"{found.needed} fresh seeds would decide, more than the {self.most_seeds} that are allowed"
        if found is None:
            return f"Undecided: the time ran out before {challenger} was confirmed; {decide}."
        spell = self.task.spell
        if not found.deviation:
            change = f"{self.task.name} {self._signed(found.gain)} with every one of {found.pairs} fresh seeds"
            advice = "which gives no interval; more test data, or a finer metric such as the loss, would tell more"
            return f"Undecided: challenger {challenger}: {change}, {advice}."
        change = f"{self.task.name} {self._signed(found.gain)} ± {spell(found.half)}"
        both = self._half_over_examples()
        level = f"{100 * found.level:.4g} % interval over {found.pairs} fresh seeds"
        level += f"; ± {spell(both)} over seeds and test examples" if both is not None else ""
        worth = f"the {spell(found.worth)} that are worth a change"
        if found.kind == WINS:
            if found.gain - found.half > found.worth:
                gain = f"more than {worth}"
            elif found.excluded < found.worth:
                gain = f"less than {worth}"
            else:
                gain = f"whether that is more than {worth} is open"
            costs = ""
            if self.costs:
                time, memory = (f"{other / own:.2f} times" for own, other in zip(*self.costs, strict=True))
                costs = f"; as a single network, its training step takes {time} the time and {memory} the memory"
            return f"{challenger} beats the network as it is: {change} ({level}); {gain}{costs}."
        tried = f"challenger {challenger}: {change} ({level})"
        excluded = f"gains above {spell(max(0.0, found.excluded))} are excluded"
        if found.kind == KEEP:
            return f"Keep what you have: {excluded}, less than {worth}; {tried}."
        return f"Undecided: {tried}; {excluded}, more than {worth}; {decide}."

    def _signed(self, gain: float) -> str:
        """Return a gain as a change of the metric: a gain of a lower metric is a negative change."""
        return f"{'+' if self.task.sign * gain >= 0 else '-'}{spell_number(abs(gain))}"

    def _half_over_examples(self) -> float | None:
        """Return half of the interval's width over seeds and test examples; None without scores of examples.

        The variances of both means are added: s^2 / n over seeds and s^2 / N over examples.
        """
        found = self.verdict
        arms = [] if found is None else self.choice.confirmation(found.pairs)
        parts = [self.store.load_examples(arm) for arm in arms]
        known = [self.task.slope(float(part.mean())) * part for part in parts if part is not None]
        is_sound = not any(self.store.records[arm].diverged for arm in arms)
        if found is None or not found.deviation or len(known) < len(parts) or not is_sound or len(known[0]) < 2:
            return None
        difference = torch.stack(known[::2]).mean(0) - torch.stack(known[1::2]).mean(0)
        variance = found.deviation**2 / found.pairs + float(difference.var()) / len(difference)
        return t_quantile(found.pairs - 1, found.level) * math.sqrt(variance)

    def to_csv(self, path: str | Path) -> None:
        """Write the rows as a table."""
        with Path(path).open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, [item.name for item in fields(Row)])
            writer.writeheader()
            writer.writerows(map(asdict, self.rows))

    def __str__(self) -> str:
        lines = [*self._describe(), *self._explored()]
        if self.verdict is not None:
            rows = [(row.candidate, spell_number(row.test, MEAN)) for row in self.rows if row.role == "confirmed"]
            lines += ["", f"confirmation, on test data and {self.verdict.pairs} fresh seeds"]
            lines += _align([("candidate", "mean"), *rows])
        lines += [f"power: {words}" for words in self.store.state.get("power", [])]
        return "\n".join([*lines, "", self.finding])

    def _describe(self) -> list[str]:
        """Return lines on the data, the candidates and the runs."""
        setup, task, epochs = self.setup, self.task, self.plan.epochs
        better, rates = "higher" if task.higher else "lower", ", ".join(f"{lr:g}" for lr in self.choice.grid)
        rule = "by default" if task.name == ACCURACY else "by default 1 % of what it scores as it is"
        given = f" ({rule})" if self.is_default_worth else ""
        return [
            f"{setup.network} on {setup.data.name}: {task.title}, {better} is better",
            *setup.notes,
            f"each run: {spell_count(epochs, 'epoch')}, at the best learning rate of {rates}",
            *(f"{HULL}: {item.name}" for item in setup.candidates.values() if item.label == HULL),
            f"coefficients of hulls learn at {COEFFICIENT_LR_SCALE:g} times that rate",
            *([] if self.worth is None else [f"worth a change: a gain of {self.task.spell(self.worth)}{given}"]),
        ]

    def _explored(self) -> list[str]:
        """Return the table of the choice."""
        table = [("candidate", "learning rate", "mean", "change", "seeds")]
        edge = [item.label for item in self.setup.candidates.values() if self.choice.is_at_edge(item.name)]
        for number, row in enumerate(self.rows):
            change = self._signed(self.task.sign * row.change) if number else ""
            rate = f"{row.lr:g}{'*' * (row.candidate in edge)}"
            table.append((row.candidate, rate, spell_number(row.validation, MEAN), change, str(row.validation_seeds)))
        if len(table) == 1:
            return []
        diverged = ", ".join(f"{row.candidate} {row.diverged}" for row in self.rows if row.diverged)
        return [
            "",
            "exploratory, on validation data; changes are those on the same seeds",
            *_align(table),
            *(["* at the end of the learning rates that were tried"] if edge else []),
            *([f"runs that diverged, and count as the worst: {diverged}"] if diverged else []),
        ]


def _align(lines: Sequence[Sequence[str]]) -> Iterable[str]:
    """Return lines of a table: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for first, *others in lines:
        cells = (cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))
        yield "  ".join([first.ljust(widths[0]), *cells]).rstrip()
