"""The result of a comparison: a table, the finding in one sentence, and the networks."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import fmean

import torch
from torch import nn

from hullo.lab.comparison.budget import Plan, spell_count
from hullo.lab.comparison.candidates import COEFFICIENT_LR_SCALE, HULL, Candidate
from hullo.lab.comparison.decision import KEEP, ORIGINAL, WINS, Choice, Verdict, fill, half_over_examples, worst_of
from hullo.lab.comparison.store import Store
from hullo.lab.comparison.task import spell_number
from hullo.lab.comparison.trial import Setup
from hullo.lab.comparison.work import StepCost
from hullo.lab.spec.records import ACCURACY

MEAN = "#.5g"
"""The digits of a mean, which show changes of a thousandth of it."""


@dataclass(frozen=True)
class Row:
    """A line of the table: what a candidate scored at its learning rate.

    Means over unlike numbers of seeds do not compare; `change` is the mean difference from the original on validation
    data, of networks of the same seed.
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
        choice: the scores on validation data, and the challenger.
        worth: the smallest gain that is worth a change; None if it is not known yet.
        is_default_worth: whether the user did not give it.
        advice: what would decide.
        costs: of a training step of the original and of the challenger, each as a single network.
        folder: the records, the weights and the plan.
    """

    setup: Setup
    store: Store
    plan: Plan
    choice: Choice
    worth: float | None
    is_default_worth: bool
    verdict: Verdict | None = None
    advice: str = ""

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
        """Return the original, then the others: those that stayed longest first, then by their change."""
        rows = {item.name: self._row(item) for item in self.setup.candidates.values() if item.name in self.choice.rates}
        first = [rows.pop(ORIGINAL)] if rows else []
        return first + sorted(rows.values(), key=lambda row: (-row.validation_seeds, -self.task.sign * row.change))

    def _row(self, item: Candidate) -> Row:
        sign, lr, choice, found = self.task.sign, self.choice.rates[item.name], self.choice, self.verdict
        tried = [trial for trial in choice.scores if trial[:2] == (item.name, lr)]
        confirmed = [] if found is None else choice.confirmation(found.pairs)
        tested = [trial for trial in confirmed if trial.candidate == item.name] or tried
        scores = {trial: self.store.score(trial).test for trial in (*choice.scores, *confirmed)}
        worst = worst_of(scores.values())
        return Row(
            candidate=item.label,
            lr=lr,
            role="exploratory" if tested is tried else "confirmed",
            validation=sign * choice.mean(item.name),
            change=sign * fmean(choice.changes(item.name)),
            validation_seeds=len(tried),
            test=sign * fmean(fill(scores[trial], worst) for trial in tested),
            test_seeds=len(tested),
            diverged=sum(self.store.records[trial].diverged for trial in {*tried, *tested}),
        )

    @property
    def finding(self) -> str:
        """Return what was found, in one sentence."""
        found, spell = self.verdict, self.task.spell
        challenger = self.setup.candidates[self.choice.challenger].label if self.choice.challenger else "any other"
        if found is None:
            return f"Undecided: the time ran out before {challenger} was tested on fresh seeds; {self.advice}."
        change = f"{self.task.name} {self._signed(found.gain)}"
        best = challenger + ", chosen from the others on validation data," * (len(self.setup.candidates) > 2)
        if not found.deviation:
            advice = "give more test data, or a finer metric such as the loss"
            same = f"{change} with every one of {found.pairs} fresh seeds, which gives no interval"
            return f"Undecided: {challenger} against the original: {same}; {advice}."
        epochs = spell_count(self.plan.epochs, "epoch")
        level = f"{100 * found.level:.4g} % interval over {found.pairs} fresh seeds, {epochs} each"
        if (both := self._half_over_examples(found)) is not None:
            level += f"; ± {spell(both)} with other test examples, too"
        trials = self.choice.confirmation(found.pairs)
        if lost := sum(self.store.records[trial].diverged for trial in trials):
            level += f"; {lost} of {len(trials)} networks diverged, and count as the worst"
        change += f" ± {spell(found.half)} ({level})"
        worth, most = f"the {spell(found.worth)} that would be worth a change", spell(found.excluded)
        if found.kind == WINS:
            size = f", but perhaps by less than {worth}"
            if found.gain - found.half > found.worth:
                size = f" by more than {worth}"
            elif found.excluded < found.worth:
                size = f", but by less than {worth}"
            costs = ""
            if self.costs:
                time, memory = (f"{other / own:.2f} times" for own, other in zip(*self.costs, strict=True))
                costs = f"; as a single network, its training step takes {time} the time and {memory} the memory"
            return f"{challenger} beats the original{size}: {change}{costs}."
        if found.kind == KEEP:
            gains = f"gains at most {most}, less than {worth}" if found.excluded > 0 else "is worse"
            return f"Keep the original: {best} {gains}: {change}."
        return f"Undecided: {best} may gain up to {most}, more than {worth}: {change}; {self.advice}."

    def _signed(self, gain: float) -> str:
        """Return a gain as a change of the metric: a gain of a lower metric is a negative change."""
        return f"{'+' if self.task.sign * gain >= 0 else '-'}{spell_number(abs(gain))}"

    def _half_over_examples(self, found: Verdict) -> float | None:
        """Return half of the interval's width over seeds and test examples; None without scores of examples."""
        trials = self.choice.confirmation(found.pairs)
        parts = [self.store.load_examples(trial) for trial in trials]
        known = [self.task.slope(float(part.mean())) * part for part in parts if part is not None]
        if len(known) < len(parts) or len(known[0]) < 2 or any(self.store.records[trial].diverged for trial in trials):
            return None
        differences = torch.stack(known[::2]).mean(0) - torch.stack(known[1::2]).mean(0)
        return half_over_examples(found, differences.tolist())

    def to_csv(self, path: str | Path) -> None:
        """Write the rows as a table."""
        with Path(path).open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, [item.name for item in fields(Row)])
            writer.writeheader()
            writer.writerows(map(asdict, self.rows))

    def __str__(self) -> str:
        return "\n".join([*self._describe(), *self._explored(), *self._tested(), "", self.finding])

    def _describe(self) -> list[str]:
        """Return lines on the data, the candidates and the runs."""
        setup, task, epochs = self.setup, self.task, self.plan.epochs
        better, rates = "higher" if task.higher else "lower", ", ".join(f"{lr:g}" for lr in self.choice.grid)
        lines = [f"{setup.network} on {setup.data.name}: {task.title}, {better} is better", *setup.notes]
        lines += [f"each network: {spell_count(epochs, 'epoch')}; learning rates: {rates}"]
        hulls = [item for item in setup.candidates.values() if item.scale != 1]
        lines += [f"{HULL} is {item.name}, which starts as the original" for item in hulls if item.label == HULL]
        lines += [f"coefficients of hulls learn {COEFFICIENT_LR_SCALE:g} times as fast"] if hulls else []
        if self.worth is not None:
            rule = " (default)" if task.name == ACCURACY else " (default: 1 % of the original's best)"
            lines += [f"worth a change: a gain of {task.spell(self.worth)}{rule * self.is_default_worth}"]
        return lines

    def _explored(self) -> list[str]:
        """Return the table of the choice."""
        table = [("activation", "learning rate", self.task.name, "against original", "seeds")]
        names = {item.label: item.name for item in self.setup.candidates.values()}
        edge = [label for label, name in names.items() if self.choice.is_at_edge(name)]
        for number, row in enumerate(self.rows):
            score, change = spell_number(row.validation, MEAN), self._signed(self.task.sign * row.change)
            rate = f"{row.lr:g}{'*' * (row.candidate in edge)}"
            table.append((row.candidate, rate, score, change if number else "", str(row.validation_seeds)))
        if len(table) == 1:
            return []
        diverged = ", ".join(f"{row.diverged} of {row.candidate}" for row in self.rows if row.diverged)
        return [
            "",
            "exploratory, on validation data: each activation at its best learning rate",
            *_align(table),
            "against original: the mean difference of networks of the same seed",
            *(["* at the end of the learning rates that were tried"] if edge else []),
            *([f"networks that diverged, and count as the worst: {diverged}"] if diverged else []),
        ]

    def _tested(self) -> list[str]:
        """Return the table of the confirmation."""
        if self.verdict is None:
            return []
        rows = [(row.candidate, spell_number(row.test, MEAN)) for row in self.rows if row.role == "confirmed"]
        title = f"confirmation, on test data and {self.verdict.pairs} fresh seeds"
        return ["", title, *_align([("activation", self.task.name), *rows]), *self.store.state.get("power", [])]


def _align(lines: Sequence[Sequence[str]]) -> Iterable[str]:
    """Return lines of a table: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for first, *others in lines:
        cells = (cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))
        yield "  ".join([first.ljust(widths[0]), *cells]).rstrip()
