"""The finding of the records in one sentence: what the best hull gains over the best other activation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hullo.lab.analysis.experiments import Experiment
from hullo.lab.analysis.inference import Comparison, compare
from hullo.lab.analysis.statistics import ALPHA, Interval, are_alike, holm
from hullo.lab.spec.activation import PRELU, ActivationSpec


def gain(experiment: Experiment) -> Interval | None:
    """Return how much the best hull gains over the best other activation, in points; None if that is unknown.

    Fixed activations and PReLU are the others. Activations of which all runs diverged do not count.
    """
    found = compare(experiment.scores, *_sides(experiment))
    return found.interval if found else None


def finding(experiments: Mapping[str, Experiment]) -> str:
    """Return the finding for experiments by title: one sentence. Several are corrected for their number (Holm)."""
    compared = {title: compare(e.scores, *_sides(e)) for title, e in experiments.items()}
    tested = {title: found for title, found in compared.items() if found and len(found.seeds) > 1}
    if len(tested) < 2:
        title = next(iter([*tested, *experiments]))
        return f"{title}: {_of_one(experiments[title], compared[title])}"
    adjusted = holm([found.p for found in tested.values()])
    decided = {title: tested[title] for title, p in zip(tested, adjusted, strict=True) if p <= ALPHA}
    wins, losses = (
        [
            f"{title} (by {_size(found.interval)} points, {found.row} against {found.other})"
            for title, found in decided.items()
            if (found.interval.mean > 0) == won
        ]
        for won in (True, False)
    )
    even = len(tested) - len(wins) - len(losses)
    said = [f"The best hull beats the best other activation in {len(wins)} of {len(tested)} experiments{_listed(wins)}"]
    said += [f"it loses in {len(losses)}{_listed(losses)}"] if losses else []
    said += [f"{even} {'is' if even == 1 else 'are'} undecided after Holm's correction"] if even else []
    return f"{'; '.join(said)}."


def _of_one(experiment: Experiment, found: Comparison | None) -> str:
    known = [row for side in _sides(experiment) for row in side]
    if not known:
        return "all runs diverged."
    if not all(_sides(experiment)):
        return f"nothing to compare, without both a hull and another activation{_listed(known)}."
    if not found:
        return f"too few seeds to choose the best of {len(known)} activations on some and confirm it on others."
    pair, confirming = f"{found.row} and {found.other}", f"on {_name_seeds(found.seeds)}"
    if len(found.seeds) == 1:
        said = f"{pair} differ by {_size(found.interval)} points {confirming}; one seed gives no interval"
    elif are_alike([*found.differences.values()]):  # as with few test images
        size = f"{abs(found.interval.mean):.2f}"
        gap = "are equal" if size == "0.00" else f"differ by {size} points"
        said = f"{pair} {gap} on each of {_name_seeds(found.seeds)}, which gives no interval"
    elif found.p > ALPHA:
        needed = found.seeds_needed()
        plan = f"; about {needed} such seeds would decide" if needed else ""
        said = f"{pair} differ by {_size(found.interval)} points {confirming}: undecided{plan}"
    else:
        verb, word = ("gains", "over") if found.interval.mean > 0 else ("loses", "to")
        said = f"{found.row} {verb} {_size(found.interval)} points {word} {found.other} {confirming}"
    chosen = f"; {_name_seeds(found.chosen_on)} chose the hull and the other activation" if found.chosen_on else ""
    lacking = f" Not compared, for want of seeds{_listed(found.left_out)}." if found.left_out else ""
    return f"{said}{chosen}.{lacking}"


def _sides(experiment: Experiment) -> tuple[list[str], list[str]]:
    """Return the hulls of an experiment, and its other activations, without those of which all runs diverged."""
    rows = [row for row, cell in experiment.cells.items() if not cell.is_lost]
    hulls = [row for row in rows if ActivationSpec.parse(row).learns and row != str(PRELU)]
    return hulls, [row for row in rows if row not in hulls]


def _name_seeds(seeds: Sequence[int]) -> str:
    """Return seeds as text.

    >>> _name_seeds([0]), _name_seeds([1, 2, 3]), _name_seeds([1, 3])
    ('seed 0', 'seeds 1 to 3', 'seeds 1 and 3')
    """
    if len(seeds) > 2 and seeds[-1] - seeds[0] == len(seeds) - 1:
        return f"seeds {seeds[0]} to {seeds[-1]}"
    return f"seed{'s' * (len(seeds) > 1)} {_listed([*map(str, seeds)])[2:]}"


def _size(interval: Interval) -> str:
    return Interval(abs(interval.mean), interval.half, interval.count).spell()


def _listed(texts: Sequence[str]) -> str:
    """Return texts as the end of a clause: ``: a, b and c``."""
    return f": {', '.join(texts[:-1])}{' and ' * (len(texts) > 1)}{texts[-1]}" if texts else ""
