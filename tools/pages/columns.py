"""The columns of the paper's table, as Markdown: what hulls gain, and how far our figures are from the paper's."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from statistics import mean

from hullo.lab.analysis.experiments import Experiment
from hullo.lab.analysis.finding import compare_best
from hullo.lab.analysis.inference import Comparison, compare
from hullo.lab.analysis.readings import BEST, CHOSEN, LAST, LAST10
from hullo.lab.analysis.statistics import Interval, paired, pooled_deviation
from hullo.lab.analysis.tables.format import provenance
from hullo.lab.analysis.tables.markdown import escape, grid, overview_table, section
from hullo.lab.spec.records import Record
from pages.verdicts import FIXED, HULLS, mean_scores

GAINS = (
    "Test accuracy in %, mean ± 95 % interval over seeds; gains in points, between runs of the same seed. The first "
    "seed selects the best hull and the best of all other activations that were run, PReLU among them; gains are those "
    "of the other seeds. Undecided gains name the fresh seeds that would show them with a probability of 80 %, if the "
    "gain and the scatter seen are the true ones."
)
IMAGEWOOF = "**AlexNet on Imagewoof**, ten classes of ILSVRC-2012: the paper's network on real images, not its column."
APART = "convex(identity,tanh)"
"""The row that is far from the paper's figure in the first column, and is left out in a second line."""
ROWS: dict[str, Collection[str]] = {"all rows": (), f"without {APART}": (APART,)}
EPOCHS = (50, 100, 150, 200)


def gains_table(experiments: Sequence[Experiment], *, brief: bool = False) -> str:
    """Return the chosen other activation, the chosen hull and the gain of the hull in each experiment that has both.

    Args:
        experiments: columns of the paper's table.
        brief: leave out the gain over the paper's fixed activations, how accuracies were read, and which machines made
            the runs.
    """
    best = ((e, compare_best([e])) for e in experiments)
    shown = [(e, b.found, compare(e.scores, b.hulls, FIXED)) for e, b in best if b.found]
    if not shown:
        return ""
    lines = (
        [
            escape(e.setting.network),
            escape(e.setting.data) + (f",<br>{e.part[0]:,} images" if e.part else ""),
            *(f"{escape(row)}<br>{_unbroken(e.cells[row].accuracy, '.1f')}" for row in (found.other, found.row)),
            _gain(found),
            _name_pair(over_fixed, found.row) if over_fixed else "",
            f"{e.time},<br>{e.seeds},<br>{e.reading.short}",
        ]
        for e, found, over_fixed in shown
    )
    readings = dict.fromkeys(e.reading.sentence for e, *_ in shown)
    made = provenance(record for e, *_ in shown for record in e.records)
    fixed = (
        f"The last gain is over the best of the paper's fixed activations, {', '.join(FIXED)}, of a hull chosen in the "
        "same way; where a chosen pair was run on fresh seeds, these alone count."
    )
    about = GAINS if brief else " ".join([GAINS, fixed, *readings, made])
    head = ("network", "data", "best other", "best hull", "gain", "gain over the paper's fixed activations", "runs")
    shown_columns = 5 if brief else len(head)
    return f"{grid(head[:shown_columns], (line[:shown_columns] for line in lines))}\n\n<sub>{escape(about)}</sub>"


def _name_pair(found: Comparison, hull: str) -> str:
    """Return a gain with the other activation, and with its hull if that is not the one of the line."""
    pair = f"over {found.other}" if found.row == hull else f"{found.row} over {found.other}"
    return f"{escape(pair)}<br>{_gain(found)}"


def _gain(found: Comparison) -> str:
    return "<br>".join(filter(None, [_unbroken(found.interval, "+.1f"), found.undecided]))


def _unbroken(interval: Interval, form: str) -> str:
    """Return a number and its interval with spaces at which no line ends."""
    return interval.spell(form).replace(" ", "\N{NO-BREAK SPACE}")


def imagewoof_part(experiments: Sequence[Experiment]) -> str:
    """Return an introduction, the table, and the gain of the best hull over the best fixed activation."""
    compared = ((e, compare(e.accuracies, HULLS, FIXED)) for e in experiments)
    gains = [_describe_gain(experiment, found) for experiment, found in compared if found]
    return "\n\n".join([" ".join([IMAGEWOOF, *gains]), overview_table(experiments)])


def _describe_gain(experiment: Experiment, found: Comparison) -> str:
    """Return the gain, and how far both activations were trained."""
    chosen, gain = ", ".join(map(str, found.chosen_on)), found.interval.spell("+.2f")
    losses = (
        f"{_last_loss(experiment.runs[row], experiment.epoch):.3f} with {row}" for row in (found.other, found.row)
    )
    return escape(
        f"{found.row} exceeds {found.other} by {gain} points on {len(found.seeds)} seeds; seed {chosen} chose them as "
        "the best hull and the best fixed activation. There is no control of the learning rate or of the length of "
        f"training, and the training loss ends at {' and at '.join(losses)}: part of the gain may be faster training."
    )


def _last_loss(runs: Sequence[Record], epoch: int) -> float:
    return mean(loss for run in runs if (loss := run.train_loss[epoch - 1]) is not None)


def readings_tables(experiments: Sequence[Experiment]) -> str:
    """Return a table per experiment: a row per activation, a column per reading, and the paper's figure."""
    return "\n\n".join(map(_readings, experiments))


def _readings(experiment: Experiment) -> str:
    found, lines = experiment.by_reading, []
    for row, cell in experiment.cells.items():
        cells = [other.cells[row] for other in found.values()]
        figures = (f"**{c.accuracy.spell()}**" if c.best else c.accuracy.spell() for c in cells)
        lines.append([escape(row), *figures, "" if cell.published is None else f"{cell.published:.2f}"])
    head = ["activation", *(reading.short for reading in found), "paper"]
    about = f"{experiment.name}, {experiment.time}, {experiment.seeds}: {experiment.images} accuracy in %"
    return section(about, head, lines)


@dataclass(frozen=True)
class Distance:
    """The distance of an experiment's means from the paper's results.

    Args:
        root_mean_square: of the differences, in points.
        scatter: of one run around the mean of ours, in points: what chance alone would make of single runs; None
            with one seed.
        inside: published figures inside the 95 % prediction intervals of one more run.
        count: figures compared.
    """

    root_mean_square: float
    scatter: float | None
    inside: int
    count: int

    def __str__(self) -> str:
        return f"{self.root_mean_square:.2f}"


def measure_distance(experiment: Experiment, without: Collection[str] = ()) -> Distance | None:
    """Compare all published results of a column, except for some rows; None if there are none."""
    reached = {row: list(runs.values()) for row, runs in experiment.accuracies.items() if row not in without}
    pairs = [(reached[row], value) for row, value in experiment.published.items() if row in reached]
    if not pairs:
        return None
    squares = [(mean(runs) - value) ** 2 for runs, value in pairs]
    deviation = pooled_deviation(runs for runs, _ in pairs)
    seeds = min(len(runs) for runs, _ in pairs)
    scatter = None if deviation is None else deviation * math.sqrt(1 + 1 / seeds)
    inside = sum(Interval.of(runs, "next").covers(value) for runs, value in pairs if len(runs) > 1)
    return Distance(math.sqrt(math.fsum(squares) / len(squares)), scatter, inside, len(pairs))


def distance_table(experiments: Sequence[Experiment]) -> str:
    """Return the root mean square distance from the paper's figures under each reading, and of the best of N epochs."""
    lengths = [number for number in EPOCHS if any(number <= experiment.epoch for experiment in experiments)]
    lines = []
    for experiment in experiments:
        views = [experiment.by_reading.get(reading) for reading in (LAST, LAST10, CHOSEN)]
        if BEST in experiment.by_reading:
            views += [best_of(experiment, length) if length <= experiment.epoch else None for length in lengths]
        for about, without in ROWS.items():
            distances = [measure_distance(view, without) if view else None for view in views]
            if any(distances):
                lines.append([escape(experiment.name), escape(about), *(str(found or "") for found in distances)])
    head = ["column", "rows", *(reading.short for reading in (LAST, LAST10, CHOSEN))]
    return grid([*head, *(f"best of {length} (not a result)" for length in lengths)], lines) if lines else ""


def best_of(experiment: Experiment, epoch: int) -> Experiment:
    """Return the experiment under the paper's probable reading, as if it had ended after an epoch."""
    return replace(experiment, reading=BEST, epoch=epoch)


def prediction_part(experiments: Sequence[Experiment], all_runs: Sequence[Experiment]) -> str:
    """Return how the paper's figures compare with single runs of ours under the paper's probable reading.

    Args:
        experiments: one per column.
        all_runs: these and others, among them runs without held-out images.
    """
    lines, inside, count = [], 0, 0
    for experiment in experiments:
        found = experiment.by_reading.get(BEST)
        if (distance := measure_distance(found) if found else None) and distance.scatter is not None:
            inside, count = inside + distance.inside, count + distance.count
            cost = cost_of_holding_out(experiment, all_runs)
            figures = [str(distance), cost.spell("+.2f") if cost else "", f"{distance.scatter:.2f}"]
            lines.append([escape(experiment.name), *figures, f"{distance.inside} of {distance.count}"])
    heads = ["what all images would add", "scatter of one run", "published figures that one run of ours could give"]
    said = (
        f"In all, {inside} of {count} published figures lie in the 95 % prediction intervals of one more run of ours."
    )
    return f"{grid(['column', 'distance', *heads], lines)}\n\n{said}"


def cost_of_holding_out(experiment: Experiment, all_runs: Sequence[Experiment]) -> Interval | None:
    """Return what training on all images would add to the best test accuracy, from shorter runs that did so.

    Both are read after as many epochs as the shorter runs have; the mean over activations is taken seed by seed.
    """
    alike = replace(experiment.setting, epochs=1, val_size=0)
    plain = [e for e in all_runs if not e.setting.val_size and replace(e.setting, epochs=1) == alike]
    if not plain or not experiment.setting.val_size:
        return None
    other = max(plain, key=lambda e: e.epoch)
    epochs = min(experiment.epoch, other.epoch)
    ours, theirs = (best_of(e, epochs).accuracies for e in (experiment, other))
    rows = [row for row in ours if row in theirs]
    return paired(mean_scores(theirs, rows), mean_scores(ours, rows)) if rows else None
