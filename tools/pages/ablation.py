"""The study of defaults: hulls that differ in how they learn are compared with the default on the same seeds.

Settings are chosen on held-out training images; those chosen are then run with the test images, once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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
"""Number of settings that are shown besides the default."""
ABOUT = "Means and 95 % intervals over seeds; differences on the same seeds; runs that diverged count as they ended."
CHOSEN = "As the first setting is the best of many, its lead is too large: what it reaches on the test images counts."


class Choice(NamedTuple):
    """A hull's parametrization, initial coefficients, learning rate of these, and how many rows of them there are.

    >>> from hullo.lab.spec.run_spec import Spec
    >>> from pages.ablation import Choice
    >>> Choice.of(Spec("lenet5", "cifar10", "affine(identity,relu,init=relu)", coefficient_lr_scale=10))
    Choice(parametrization='recentred', init='relu', scale='10', per='layer')
    """

    parametrization: str
    init: str
    scale: str
    per: str

    @classmethod
    def of(cls, spec: Spec) -> Choice:
        row = ActivationSpec.parse(spec.activation)
        init = row.init.name if row.init else "uniform"
        return cls(row.parametrization, init, f"{spec.coefficient_lr_scale:g}", row.per)


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

    def difference(self, *pairs: tuple[Choice, Choice]) -> Interval:
        """Return by how much the first of each pair exceeds the second, on the seeds that all have.

        Runs of one seed are no independent witnesses, so a seed counts once, with its mean over all pairs.
        """
        both = [(self.reached[one], self.reached[other]) for one, other in pairs]
        seeds = set.intersection(*(set(one) & set(other) for one, other in both))
        return Interval.of(mean(one[seed] - other[seed] for one, other in both) for seed in sorted(seeds))

    @property
    def effects(self) -> Iterator[tuple[str, str, int, Interval]]:
        """Yield each setting that is not the default, its level, the pairs alike in all else, and their difference."""
        for name, default in self.default._asdict().items():
            for level in sorted({getattr(choice, name) for choice in self.reached} - {default}):
                alike = ((c, c._replace(**{name: default})) for c in self.reached if getattr(c, name) == level)
                if pairs := [pair for pair in alike if pair[1] in self.reached]:
                    yield name, level, len(pairs), self.difference(*pairs)


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
    """Return the results on held-out images: the effect of each setting, and the best choices."""
    found = families(r for r in records if r.spec.val_size)
    return _render(found, [[_head(family), _effects(family), _ranking(family)] for family in found], CHOSEN)


def study_test_tables(records: Iterable[Record]) -> str:
    """Return the results on test images for the choices; omit hulls that ran only with defaults."""
    found = families(r for r in records if not r.spec.val_size)
    found = [family for family in found if set(family.reached) != {family.default}]
    return _render(found, [[_head(family), _ranking(family)] for family in found])


def _render(found: Sequence[Family], parts: Sequence[Sequence[str]], *remarks: str) -> str:
    """Return the parts of all families; nothing if there are no families."""
    made = escape(provenance(record for family in found for record in family.records))
    made = f"<sub>{' '.join([ABOUT, *remarks, made])}</sub>"
    return "\n\n".join([*(text for texts in parts for text in texts), made]) if parts else ""


def _head(family: Family) -> str:
    plain = family.plain
    shared = Experiment(f"{plain.activation}, {plain.column}", plain, plain.epochs, family.records, LAST, family.split)
    return "\n\n".join([f"### {escape(title(shared))}", *map(escape, shared.remarks)])


def _effects(family: Family) -> str:
    head = ("level", "against", "difference", "pairs of settings", "seeds")
    defaults = family.default._asdict()
    return grid(
        head,
        (
            [f"{name}={level}", f"{name}={defaults[name]}", gain.spell("+.2f"), str(pairs), str(gain.count)]
            for name, level, pairs, gain in family.effects
        ),
    )


def _ranking(family: Family) -> str:
    """Return the best choices, and the default with its rank."""
    head = ("", *Choice._fields, "accuracy", "vs default", "seeds")
    shown = {*list(family.reached)[:TOP], family.default}
    return grid(head, (_line(family, rank, c) for rank, c in enumerate(family.reached, 1) if c in shown))


def _line(family: Family, rank: int, choice: Choice) -> list[str]:
    accuracy = Interval.of(family.reached[choice].values())
    over = "default" if choice == family.default else family.difference((choice, family.default)).spell("+.2f")
    return [str(rank), *choice, accuracy.spell(), over, str(accuracy.count)]
