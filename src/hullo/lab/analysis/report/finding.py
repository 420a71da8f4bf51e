"""The finding of the records in one sentence: what the best hull gains over the best other activation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hullo.lab.analysis.comparisons import leave_one_seed_out, with_most_seeds
from hullo.lab.analysis.experiments import Experiment
from hullo.lab.analysis.statistics import ALPHA, Interval, are_alike, holm, p_value
from hullo.lab.spec.activation import PRELU, ActivationSpec


def gain(experiment: Experiment) -> Interval | None:
    """Return how much the best hull gains over the best other activation, in points; None if there are not both.

    The best of either side is chosen on the other seeds. Fixed activations and PReLU are the others.
    """
    differences = _differences(experiment)
    return Interval.of(differences, "folds") if differences else None


def _differences(experiment: Experiment) -> list[float]:
    """Return the gain on each seed."""
    return [fold.difference for fold in leave_one_seed_out(experiment.accuracies, *_sides(experiment))]


def finding(experiments: Mapping[str, Experiment]) -> str:
    """Return the finding for experiments by title: one sentence. Several are corrected for their number (Holm)."""
    tested = {title: found for title, e in experiments.items() if len(found := _differences(e)) > 1}
    if len(tested) < 2:
        title, experiment = next(((t, experiments[t]) for t in tested), next(iter(experiments.items())))
        return f"{title}: {_of_one(experiment)}"
    adjusted = holm([1.0 if are_alike(d) else p_value(d, 0.0, "folds") for d in tested.values()])
    gains = {t: Interval.of(tested[t], "folds") for t, p in zip(tested, adjusted, strict=True) if p <= ALPHA}
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
    differences = _differences(experiment)
    if not differences:
        return f"the best activation of {len(experiment.cells)} is {_best(experiment, [*experiment.cells])}."
    sides = _sides(experiment)
    compared = [with_most_seeds(experiment.accuracies, side) for side in sides]
    best, other = (_best(experiment, side) for side in compared)
    found, seeds = Interval.of(differences, "folds"), len(differences)
    pair = f"the best hull, {best}, and the best other activation, {other}"
    if seeds == 1:
        said = f"{pair}, were run with one common seed, which decides nothing."
    elif are_alike(differences):  # as with few test images
        gap = f"differ by {abs(found.mean):.2f} points" if round(found.mean, 2) else "are equal"
        said = f"{pair}, {gap} with each of {seeds} seeds, which gives no interval."
    elif found.covers(0.0):
        said = f"{pair}, differ by {_size(found)} points, which {seeds} seeds cannot tell from 0."
    else:
        verb, word = ("gains", "over") if found.mean > 0 else ("loses", "to")
        said = f"the best hull, {best}, {verb} {_size(found)} points {word} the best other activation, {other}."
    fewer = sum(map(len, sides)) > sum(map(len, compared))
    return said + " Activations with fewer seeds are not compared." * fewer


def _sides(experiment: Experiment) -> tuple[list[str], list[str]]:
    """Return the hulls of an experiment, and its other activations."""
    hulls = [row for row in experiment.cells if ActivationSpec.parse(row).learns and row != str(PRELU)]
    return hulls, [row for row in experiment.cells if row not in hulls]


def _best(experiment: Experiment, rows: Sequence[str]) -> str:
    best = max((experiment.cells[row] for row in rows), key=lambda cell: cell.accuracy.mean)
    return f"{best.row} ({best.accuracy.spell()} %)"


def _size(interval: Interval) -> str:
    return Interval(abs(interval.mean), interval.half, interval.count).spell()


def _listed(texts: Sequence[str]) -> str:
    """Return texts as the end of a clause: ``: a, b and c``."""
    return f": {', '.join(texts[:-1])}{' and ' * (len(texts) > 1)}{texts[-1]}" if texts else ""
