"""The finding of the records in one sentence: what the best hull gains over the best other activation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hullo.lab.analysis.comparisons import Comparison, leave_one_seed_out, with_common_seeds
from hullo.lab.analysis.experiments import Experiment
from hullo.lab.analysis.statistics import ALPHA, Interval, are_alike, holm
from hullo.lab.spec.activation import PRELU, ActivationSpec


def gain(experiment: Experiment) -> Interval | None:
    """Return how much the best hull gains over the best other activation, in points; None if there are not both.

    The best of either side is chosen on the other seeds. Fixed activations and PReLU are the others. Activations of
    which all runs diverged do not count.
    """
    found = _compare(experiment)
    return found.difference if found else None


def _compare(experiment: Experiment) -> Comparison | None:
    """Return the comparison of the best hull and the best other activation; None without common seeds of both."""
    sides = _sides(experiment)
    hulls, others, _ = with_common_seeds(experiment.accuracies, *sides)
    folds = tuple(leave_one_seed_out(experiment.accuracies, *sides))
    return Comparison(experiment.name, "", folds, choice=len(hulls + others) > 2) if folds else None


def finding(experiments: Mapping[str, Experiment]) -> str:
    """Return the finding for experiments by title: one sentence. Several are corrected for their number (Holm)."""
    compared = {title: _compare(experiment) for title, experiment in experiments.items()}
    tested = {title: found for title, found in compared.items() if found and len(found.folds) > 1}
    if len(tested) < 2:
        title = next(iter([*tested, *experiments]))
        return f"{title}: {_of_one(experiments[title])}"
    adjusted = holm([1.0 if are_alike(found.differences) else found.p for found in tested.values()])
    gains = {t: tested[t].difference for t, p in zip(tested, adjusted, strict=True) if p <= ALPHA}
    wins, losses = (
        [f"{title} (by {_size(found)} points)" for title, found in gains.items() if (found.mean > 0) == won]
        for won in (True, False)
    )
    even = len(tested) - len(wins) - len(losses)
    said = [f"The best hull beats the best other activation in {len(wins)} of {len(tested)} experiments{_listed(wins)}"]
    said += [f"it loses in {len(losses)}{_listed(losses)}"] if losses else []
    said += [f"{even} {'is' if even == 1 else 'are'} undecided after Holm's correction"] if even else []
    return f"{'; '.join(said)}."


def _of_one(experiment: Experiment) -> str:
    sides, comparison = _sides(experiment), _compare(experiment)
    known = [row for side in sides for row in side]
    if not known:
        return "all runs diverged."
    if not comparison:
        return f"the best activation of {len(known)} is {_best(experiment, known)}."
    hulls, others, seeds = with_common_seeds(experiment.accuracies, *sides)
    best, other = _best(experiment, hulls), _best(experiment, others)
    found = comparison.difference
    pair = f"the best hull, {best}, and the best other activation, {other}"
    if len(seeds) == 1:
        said = f"{pair}, were run with one common seed, which decides nothing."
    elif are_alike(comparison.differences):  # as with few test images
        gap = f"differ by {abs(found.mean):.2f} points" if round(found.mean, 2) else "are equal"
        said = f"{pair}, {gap} with each of {len(seeds)} seeds, which gives no interval."
    elif found.covers(0.0):
        said = f"{pair}, differ by {_size(found)} points, which {len(seeds)} seeds cannot tell from 0."
    else:
        verb, word = ("gains", "over") if found.mean > 0 else ("loses", "to")
        said = f"the best hull, {best}, {verb} {_size(found)} points {word} the best other activation, {other}."
    left_out = [row for row in known if row not in hulls + others]
    why = f"they lack some of the {len(seeds)} seeds"
    return said + f" Not compared, as {why}{_listed(left_out)}." * bool(left_out)


def _sides(experiment: Experiment) -> tuple[list[str], list[str]]:
    """Return the hulls of an experiment, and its other activations, without those of which all runs diverged."""
    rows = [row for row, cell in experiment.cells.items() if not cell.is_lost]
    hulls = [row for row in rows if ActivationSpec.parse(row).learns and row != str(PRELU)]
    return hulls, [row for row in rows if row not in hulls]


def _best(experiment: Experiment, rows: Sequence[str]) -> str:
    best = max((experiment.cells[row] for row in rows), key=lambda cell: cell.accuracy.mean)
    return f"{best.row} ({best.accuracy.spell()} %)"


def _size(interval: Interval) -> str:
    return Interval(abs(interval.mean), interval.half, interval.count).spell()


def _listed(texts: Sequence[str]) -> str:
    """Return texts as the end of a clause: ``: a, b and c``."""
    return f": {', '.join(texts[:-1])}{' and ' * (len(texts) > 1)}{texts[-1]}" if texts else ""
