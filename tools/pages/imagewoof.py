"""AlexNet on Imagewoof, a table of its own: ten classes of ILSVRC-2012 are not the paper's column."""

from __future__ import annotations

from collections.abc import Sequence

from hullo.lab.analysis.comparisons import leave_one_seed_out
from hullo.lab.analysis.experiments import Experiment
from hullo.lab.analysis.statistics import Interval
from hullo.lab.analysis.tables.markdown import glance_table
from pages.verdicts import FIXED, HULLS


def imagewoof_part(experiments: Sequence[Experiment]) -> str:
    """Return an introduction, the table, and the gain of the best hull over the best fixed activation."""
    about = "**AlexNet on Imagewoof**, ten classes of ILSVRC-2012: the paper's network on real images, not its column."
    gains = []
    for experiment in experiments:
        if folds := leave_one_seed_out(experiment.accuracies, HULLS, FIXED):
            gain = Interval.of((fold.difference for fold in folds), "folds").spell("+.2f")
            chosen = "each chosen on the other seeds" if len(folds) > 1 else "one seed, which decides nothing"
            gains.append(f"The best hull exceeds the best fixed activation by {gain} points ({chosen}).")
    return "\n\n".join([" ".join([about, *gains]), glance_table(experiments)])
