"""The ablation of how hulls learn: runs with other settings, compared with the defaults.

Settings are chosen on held-out training images; those chosen are then run with the test images, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from statistics import mean
from typing import NamedTuple

from hullo.lab.analysis.experiments import Experiment, place
from hullo.lab.analysis.readings import LAST
from hullo.lab.analysis.statistics import Interval
from hullo.lab.analysis.tables.format import provenance, title
from hullo.lab.analysis.tables.markdown import escape, grid
from hullo.lab.spec.activation import ActivationSpec
from hullo.lab.spec.records import Record
from hullo.lab.spec.run_spec import Spec

TOP = 10
"""The number of settings that are shown besides the default."""


class Choice(NamedTuple):
    """A hull's parametrization, initial coefficients, learning rate of these, and how many rows of them there are.

    >>> from hullo.lab.spec.run_spec import Spec
    >>> from pages.ablation import Choice
    >>> str(Choice.of(Spec("lenet5", "cifar10", "affine(identity,relu,init=relu)", coefficient_lr_scale=10)))
    'parametrization=recentred init=relu scale=10 per=layer'
    """

    parametrization: str
    init: str
    scale: float
    per: str

    @classmethod
    def of(cls, spec: Spec) -> Choice:
        row = ActivationSpec.parse(spec.activation)
        return cls(row.parametrization, row.init.name if row.init else "uniform", spec.coefficient_lr_scale, row.per)

    def __str__(self) -> str:
        return " ".join(f"{name}={_spell(level)}" for name, level in self._asdict().items())


class Effect(NamedTuple):
    """The effect of a level of a factor against the default level; in each pair all else is equal."""

    factor: str
    level: str | float
    default: str | float
    pairs: int
    difference: Interval


@dataclass(frozen=True)
class Family:
    """Runs of one hull that differ only in their choice of settings and seed.

    Args:
        plain: what they share; its activation and its rate of coefficients are the defaults, its seed means nothing.
        records: one per run.
    """

    plain: Spec
    records: tuple[Record, ...]

    @property
    def default(self) -> Choice:
        return Choice.of(self.plain)

    @property
    def split(self) -> str:
        """Return the images that choices are compared on: held-out ones if there are any."""
        return "val" if self.plain.val_size else "test"

    @cached_property
    def reached(self) -> dict[Choice, dict[int, float]]:
        """Return the accuracy after the last epoch by choice, the best mean first, and seed."""
        found: dict[Choice, dict[int, float]] = {}
        for record in self.records:
            curve = record.test_accuracy if self.split == "test" else record.val_accuracy
            found.setdefault(Choice.of(record.spec), {})[record.spec.seed] = curve[-1]
        return dict(sorted(found.items(), key=lambda item: (-mean(item[1].values()), item[0] != self.default, item[0])))

    @property
    def best(self) -> Choice:
        return next(iter(self.reached))

    def difference(self, *pairs: tuple[Choice, Choice]) -> Interval:
        """Return by how much the first of each pair exceeds the second, on the seeds that all have.

        Runs of one seed are no independent witnesses, so a seed counts once, with its mean over all pairs.
        """
        both = [(self.reached[one], self.reached[other]) for one, other in pairs]
        seeds = set.intersection(*(set(one) & set(other) for one, other in both))
        return Interval.of(mean(one[seed] - other[seed] for one, other in both) for seed in sorted(seeds))

    @property
    def effects(self) -> Iterator[Effect]:
        """Yield the effect of each level that is not the default, factor by factor."""
        for factor, default in self.default._asdict().items():
            for level in sorted({getattr(choice, factor) for choice in self.reached} - {default}):
                alike = ((c, c._replace(**{factor: default})) for c in self.reached if getattr(c, factor) == level)
                if pairs := [pair for pair in alike if pair[1] in self.reached]:
                    yield Effect(factor, level, default, len(pairs), self.difference(*pairs))


def families(records: Iterable[Record]) -> list[Family]:
    """Group the records of hulls into families; runs that differ in anything else are never in one family."""
    found: dict[Spec, list[Record]] = {}
    for record in records:
        row = ActivationSpec.parse(record.spec.activation)
        if row.learns:
            hull = f"{row.kind}({','.join(item.name for item in row.bases)})"
            plain = replace(record.spec, activation=hull, coefficient_lr_scale=Spec.coefficient_lr_scale, seed=0)
            found.setdefault(plain, []).append(record)
    ordered = sorted(found, key=lambda plain: (place(plain.column), astuple(plain)))
    return [Family(plain, tuple(found[plain])) for plain in ordered]


def study_tables(records: Iterable[Record]) -> str:
    """Return the results on held-out images: the best choice, the effect of each factor, all choices."""
    return _render(families(r for r in records if r.spec.val_size), _winner, _effects, _ranking)


def study_test_tables(records: Iterable[Record]) -> str:
    """Return the results on test images for the choices; omit hulls that ran only with defaults."""
    found = families(r for r in records if not r.spec.val_size)
    return _render([family for family in found if set(family.reached) != {family.default}], _outcome, _ranking)


def _render(found: Sequence[Family], *parts: Callable[[Family], str]) -> str:
    """Return the parts of each family under a heading; nothing if there are no families."""
    texts = [text for family in found for part in (_head, *parts) if (text := part(family))]
    read = "Means and 95 % intervals over seeds; differences on the same seeds; runs that diverged count as they ended."
    made = f"<sub>{read} {escape(provenance(record for family in found for record in family.records))}</sub>"
    return "\n\n".join([*texts, made]) if texts else ""


def _head(family: Family) -> str:
    plain = family.plain
    shared = Experiment(f"{plain.activation}, {plain.column}", plain, plain.epochs, family.records, LAST, family.split)
    return "\n\n".join([f"### {escape(title(shared))}", *map(escape, shared.remarks)])


def _winner(family: Family) -> str:
    """Return the best choice and its lead, which the choice itself makes too large."""
    number, lead = len(family.reached), family.difference((family.best, family.default)).spell("+.2f")
    return escape(
        f"{family.best} is the best of {number} settings: {lead} against the default. As the best of {number} its lead "
        "is too large: what it reaches on the test images counts."
    )


def _outcome(family: Family) -> str:
    """Return the difference of each choice from the default, and whether it is significant."""
    said = []
    for choice in family.reached:
        if choice != family.default:
            lead = family.difference((choice, family.default))
            clear = f"clearly {'better' if lead.mean > 0 else 'worse'}"
            verdict = "no clear difference" if lead.covers(0) else clear
            said.append(f"{choice}: {lead.spell('+.2f')} against the default, {verdict}.")
    return escape(" ".join(said))


def _effects(family: Family) -> str:
    lines = []
    for factor, level, default, pairs, difference in family.effects:
        sides = (escape(f"{factor}={_spell(side)}") for side in (level, default))
        lines.append([*sides, difference.spell("+.2f"), str(pairs), str(difference.count)])
    return grid(("level", "against", "difference", "pairs of settings", "seeds"), lines)


def _ranking(family: Family) -> str:
    """Return the best choices and the default; the others are folded away."""
    head = ("", *Choice._fields, "accuracy", "vs default", "seeds", "")
    lines = {choice: _line(family, rank, choice) for rank, choice in enumerate(family.reached, 1)}
    shown = {*list(lines)[:TOP], family.default}
    hidden = [line for choice, line in lines.items() if choice not in shown]
    folded = f"\n\n<details><summary>The other {len(hidden)}</summary>\n\n{grid(head, hidden)}\n\n</details>"
    return grid(head, (line for choice, line in lines.items() if choice in shown)) + folded * bool(hidden)


def _line(family: Family, rank: int, choice: Choice) -> list[str]:
    accuracy, is_default = Interval.of(family.reached[choice].values()), choice == family.default
    over = "" if is_default else family.difference((choice, family.default)).spell("+.2f")
    notes = ["best"] * (rank == 1) + ["default"] * is_default
    figures = [accuracy.spell(), over, str(accuracy.count), ", ".join(notes)]
    texts = [str(rank), *(escape(_spell(level)) for level in choice), *figures]
    return [f"**{text}**" if text and rank == 1 else text for text in texts]


def _spell(level: str | float) -> str:
    return level if isinstance(level, str) else f"{level:g}"
