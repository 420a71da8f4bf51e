"""Late losses of accuracy, as Markdown: activations whose training loss rises again."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, median

from hullo.lab.analysis.experiments import Experiment
from hullo.lab.analysis.late_loss import RISE, find_late_loss
from hullo.lab.analysis.tables.markdown import escape, grid


def late_loss_table(experiments: Sequence[Experiment]) -> str:
    """Return a line per activation and column in which the training loss of any run rises again."""
    lines, others = [], 0
    for experiment in experiments:
        for row in experiment.accuracies:
            own = (record for record in experiment.records if record.spec.activation == row)
            found = [late for record in own if (late := find_late_loss(record, experiment.epoch))]
            rising = [late for late in found if late.rises]
            others += bool(found) and not rising
            if rising:
                accuracies = [
                    mean(getattr(late, name) for late in rising) for name in ("accuracy_then", "accuracy_last")
                ]
                figures = [
                    f"{len(rising)} of {len(found)}",
                    f"{median(late.lowest_at for late in rising):.0f}",
                    f"+{100 * mean(late.rise for late in rising):.0f} %",
                    *(f"{value:.2f}" for value in accuracies),
                    f"{accuracies[1] - accuracies[0]:+.2f}",
                ]
                lines.append([escape(experiment.name), escape(row), *figures])
    head = [
        "column",
        "activation",
        "runs",
        "lowest at epoch",
        "rise by the end",
        "accuracy then",
        "at the end",
        "change",
    ]
    table = grid(head, lines) if lines else ""
    text = f"No run's training loss rises by more than {100 * RISE:.0f} % in the other {others} cells of the table."
    return f"{table}\n\n{text}".strip()
