"""The finding of the records in one sentence: what the best hull gains over the best other activation."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean

from hullo.lab.analysis.experiments import Experiment
from hullo.lab.analysis.inference import Comparison, choosing_seeds, compare
from hullo.lab.analysis.names import is_hull, setting_label
from hullo.lab.analysis.sources import stated_findings
from hullo.lab.analysis.statistics import ALPHA, Interval, are_alike, holm


@dataclass(frozen=True)
class Best:
    """The best hull against the best other activation of a column, each at its best setting.

    Args:
        hulls, others: the activations that were compared, without those of which all runs diverged. PReLU is no hull.
        settings: the experiment of each activation's best setting.
        varied: names of the settings that were varied.
        found: the comparison; None if too few seeds could choose and confirm.
    """

    hulls: list[str]
    others: list[str]
    settings: Mapping[str, Experiment]
    varied: list[str]
    found: Comparison | None

    def setting(self, row: str) -> str:
        """Return the optimizer, the learning rate and all varied settings of an activation."""
        known = self.settings[row].setting.conditions
        shown = dict.fromkeys(["optimizer", "lr", *self.varied])
        return ", ".join(setting_label(name, known[name]) for name in shown if name in known)

    def names(self, found: Comparison) -> list[str]:
        """Return the two activations, each with its setting if these differ."""
        rows = [found.row, found.other]
        differ = self.setting(found.row) != self.setting(found.other)
        return [f"{row} ({self.setting(row)})" for row in rows] if differ else rows

    def shared_setting(self, found: Comparison) -> str:
        """Return the setting of both activations; an empty string if these differ, or no setting is known."""
        one, other = self.setting(found.row), self.setting(found.other)
        return one if one == other else ""


def _size(interval: Interval, experiment: Experiment) -> str:
    """Return the size of a difference, with the unit if it is one of accuracies."""
    return experiment.spell(replace(interval, mean=abs(interval.mean))) + " points" * bool(experiment.unit)


def compare_best(experiments: Sequence[Experiment]) -> Best:
    """Compare the best hull with the best other activation of experiments that differ in tunable settings alone.

    The seeds that choose activations choose the setting of each activation before, by accuracy on validation data if
    the runs have it.
    """
    tried: dict[str, list[Experiment]] = {}
    for experiment in experiments:
        for row, cell in experiment.cells.items():
            if not cell.is_lost:
                tried.setdefault(row, []).append(experiment)
    hulls = [row for row in tried if is_hull(row)]
    others = [row for row in tried if row not in hulls]
    seeds: tuple[int, ...] | None = None
    if any(len(settings) > 1 for settings in tried.values()):
        runs = {f"{row} {e.name}": e.scores[row] for row, settings in tried.items() for e in settings}
        seeds = choosing_seeds(runs, [*runs], [*runs])

    def rank(row: str, experiment: Experiment) -> tuple[bool, float]:
        scores = experiment.validation_scores.get(row) or experiment.scores[row]
        known = [scores[seed] for seed in seeds or scores if seed in scores]
        return experiment.scores[row].keys() > set(seeds or ()), mean(known) if known else -math.inf

    best = {row: max(settings, key=partial(rank, row)) for row, settings in tried.items()}
    found = compare({row: e.scores[row] for row, e in best.items()}, hulls, others, seeds)
    conditions = [e.setting.conditions for e in experiments]
    varied = [name for name in conditions[0] if len({c.get(name) for c in conditions}) > 1]
    return Best(hulls, others, best, varied, found)


def headline(main: Mapping[str, Experiment], experiments: Sequence[Experiment], paths: Sequence[Path]) -> str:
    """Return what the main experiments, by title, show: what `hullo compare` found, and a sentence for all others."""
    stated = stated_findings(paths)
    texts = {title: stated[e.setting.column] for title, e in main.items() if e.setting.column in stated}
    others = {title: e for title, e in main.items() if title not in texts}
    said = [text if len(main) == 1 else f"{title}: {text}" for title, text in texts.items()]
    return "\n".join([*([finding(others, experiments)] if others else []), *said])


def finding(main: Mapping[str, Experiment], experiments: Sequence[Experiment] = ()) -> str:
    """Return the finding for experiments by title: one sentence. Several are corrected for their number (Holm).

    Args:
        main: the experiment that represents each column, by title.
        experiments: all of them; those that differ from a main one in tunable settings alone compete with it.
    """
    best = {title: compare_best([e, *(o for o in experiments if _is_rival(o, e))]) for title, e in main.items()}
    tested = {title: found for title, b in best.items() if (found := b.found) and len(found.seeds) > 1}
    if len(tested) < 2:
        title = next(iter([*tested, *best]))
        return f"{title}: {_of_one(best[title])}"
    shared = {best[title].shared_setting(found) for title, found in tested.items()}
    wins: list[str] = []
    losses: list[str] = []
    for (title, found), p in zip(tested.items(), holm([found.p for found in tested.values()]), strict=True):
        if p <= ALPHA:
            own = best[title].shared_setting(found) if len(shared) > 1 else ""
            about = [f"by {_size(found.interval, main[title])}", " against ".join(best[title].names(found)), own]
            text = f"{title} ({', '.join(filter(None, about))})"
            (wins if found.interval.mean > 0 else losses).append(text)
    even = len(tested) - len(wins) - len(losses)
    said = [f"The best hull beats the best other activation in {len(wins)} of {len(tested)} experiments{_listed(wins)}"]
    said += [f"it loses in {len(losses)}{_listed(losses)}"] if losses else []
    said += [f"{even} {'is' if even == 1 else 'are'} undecided after Holm's correction"] if even else []
    return f"{'; '.join(said)}.{_sentence(shared)}"


def _is_rival(experiment: Experiment, main: Experiment) -> bool:
    """Return whether an experiment differs from the main one in settings, but not in data, length and reading."""

    def kind(e: Experiment) -> tuple[object, ...]:
        data = e.setting.val_size, e.part, e.split, e.metric
        return e.setting.column, e.setting.settings is None, e.epoch, e.reading, data

    return experiment is not main and kind(experiment) == kind(main)


def _of_one(best: Best) -> str:
    found = best.found
    known = [*best.hulls, *best.others]
    if not known:
        return "all runs diverged."
    if not best.hulls or not best.others:
        return f"nothing to compare, without both a hull and another activation{_listed(known)}."
    if not found:
        return f"too few seeds to choose the best of {len(known)} activations on some and confirm it on others."
    hull, other = best.names(found)
    experiment = best.settings[found.row]
    size, confirming = _size(found.interval, experiment), f"on {_name_seeds(found.seeds)}"
    if len(found.seeds) == 1:
        said = f"{hull} and {other} differ by {size} {confirming}; one seed gives no interval"
    elif are_alike([*found.differences.values()]):  # as with few test images
        size = _size(replace(found.interval, half=None), experiment)
        gap = "are equal" if abs(found.interval.mean) < 1e-6 else f"differ by {size}"
        said = f"{hull} and {other} {gap} on each of {_name_seeds(found.seeds)}, which gives no interval"
    elif found.p > ALPHA:
        needed = found.seeds_needed()
        plan = f"; about {needed} such seeds would decide" if needed else ""
        said = f"{hull} and {other} differ by {size} {confirming}: undecided{plan}"
    else:
        verb, word = ("gains", "over") if found.interval.mean > 0 else ("loses", "to")
        said = f"{hull} {verb} {size} {word} {other} {confirming}"
    chosen = f"; {_name_seeds(found.chosen_on)} chose the hull and the other activation" if found.chosen_on else ""
    lacking = f" Not compared, with too few seeds{_listed(found.left_out)}." if found.left_out else ""
    return f"{said}{chosen}.{_sentence({best.shared_setting(found)})}{lacking}"


def _sentence(settings: Collection[str]) -> str:
    """Return the setting of all comparisons as a sentence, if it is one."""
    return f" Setting: {', '.join(settings)}." if len(settings) == 1 and all(settings) else ""


def _name_seeds(seeds: Sequence[int]) -> str:
    """Return seeds as text.

    >>> _name_seeds([0]), _name_seeds([1, 2, 3]), _name_seeds([1, 3])
    ('seed 0', 'seeds 1 to 3', 'seeds 1 and 3')
    """
    if len(seeds) > 2 and seeds[-1] - seeds[0] == len(seeds) - 1:
        return f"seeds {seeds[0]} to {seeds[-1]}"
    return f"seed{'s' * (len(seeds) > 1)} {_listed([*map(str, seeds)])[2:]}"


def _listed(texts: Sequence[str]) -> str:
    """Return texts as the end of a clause: ``: a, b and c``."""
    return f": {', '.join(texts[:-1])}{' and ' * (len(texts) > 1)}{texts[-1]}" if texts else ""
