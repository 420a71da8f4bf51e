"""AlexNet on Imagewoof, a table of its own: ten classes of ILSVRC-2012 are not the paper's column."""

from __future__ import annotations

from collections.abc import Sequence

from hullo.lab.analysis.experiments import Experiment
from hullo.lab.analysis.inference import compare
from hullo.lab.analysis.tables.markdown import escape, glance_table
from pages.verdicts import FIXED, HULLS


def imagewoof_part(experiments: Sequence[Experiment]) -> str:
    """Return an introduction, the table, and the gain of the best hull over the best fixed activation."""
    about = "**AlexNet on Imagewoof**, ten classes of ILSVRC-2012: the paper's network on real images, not its column."
    gains = []
    for experiment in experiments:
        if found := compare(experiment.accuracies, HULLS, FIXED):
            gain, chosen = found.interval.spell("+.2f"), ", ".join(map(str, found.chosen_on))
            pair = f"{found.row} exceeds {found.other} by {gain} points on {len(found.seeds)} seeds"
            gains.append(escape(f"{pair}; seed {chosen} chose them as the best hull and the best fixed activation."))
    return "\n\n".join([" ".join([about, *gains]), glance_table(experiments)])
