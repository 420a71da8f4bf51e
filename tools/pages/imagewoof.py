"""AlexNet on Imagewoof, a table of its own: ten classes of ILSVRC-2012 are not the paper's column."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from hullo.lab.analysis.experiments import Experiment
from hullo.lab.analysis.inference import Comparison, compare
from hullo.lab.analysis.tables.markdown import escape, overview_table
from pages.verdicts import FIXED, HULLS

ABOUT = "**AlexNet on Imagewoof**, ten classes of ILSVRC-2012: the paper's network on real images, not its column."


def imagewoof_part(experiments: Sequence[Experiment]) -> str:
    """Return an introduction, the table, and the gain of the best hull over the best fixed activation."""
    compared = ((e, compare(e.accuracies, HULLS, FIXED)) for e in experiments)
    gains = [_describe(experiment, found) for experiment, found in compared if found]
    return "\n\n".join([" ".join([ABOUT, *gains]), overview_table(experiments)])


def _describe(experiment: Experiment, found: Comparison) -> str:
    """Return the gain, and how far both activations were trained."""
    chosen, gain = ", ".join(map(str, found.chosen_on)), found.interval.spell("+.2f")
    losses = (f"{_last_loss(experiment, row):.3f} with {row}" for row in (found.other, found.row))
    return escape(
        f"{found.row} exceeds {found.other} by {gain} points on {len(found.seeds)} seeds; seed {chosen} chose them as "
        "the best hull and the best fixed activation. There is no control of the learning rate or of the length of "
        f"training, and the training loss ends at {' and at '.join(losses)}: part of the gain may be faster training."
    )


def _last_loss(experiment: Experiment, row: str) -> float:
    """Return the training loss of the last epoch, averaged over runs."""
    losses = (r.train_loss[experiment.epoch - 1] for r in experiment.records if r.spec.activation == row)
    return mean(loss for loss in losses if loss is not None)
