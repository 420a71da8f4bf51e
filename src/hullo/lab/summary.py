"""The accuracies of a column at a glance, beside those that the paper reports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import mean

from rich.table import Table

from hullo.lab import paper
from hullo.lab.records import Record
from hullo.lab.specs import Spec

SAMPLE = "-sample"


def summarise(records: Sequence[Record]) -> Table:
    """The test accuracies of one column's records after their last epoch, in percent, a line an activation.

    Over several seeds it is their mean, with the lowest and the highest. Runs that diverged count as they ended.
    """
    spec = records[0].spec
    epochs = f"{spec.epochs} epoch{'s' * (spec.epochs > 1)}"
    table = Table(title=f"{spec.column}: test accuracy after {epochs}, in %", title_justify="left", box=None)
    table.add_column("activation")
    for name in ("hullo", "range", "seeds", "diverged", "paper"):
        table.add_column(name, justify="right")
    for row in dict.fromkeys(record.spec.activation for record in records):
        own = [record for record in records if record.spec.activation == row]
        accuracies = [record.accuracy for record in own]
        low_high = f"{min(accuracies):.2f} to {max(accuracies):.2f}" if len(own) > 1 else ""
        diverged = sum(record.diverged for record in own)
        published = _published(row, spec.column)
        table.add_row(
            row,
            f"{mean(accuracies):.2f}",
            low_high,
            str(len(own)),
            str(diverged or ""),
            "" if published is None else f"{published:.2f}",
        )
    table.caption, table.caption_justify = " ".join(_remarks(spec)), "left"
    return table


def _remarks(spec: Spec) -> Iterator[str]:
    """What must be known to read the accuracies beside the paper's."""
    if spec.data.endswith(SAMPLE):
        yield f"A short run on a sample: the paper's networks saw all of {spec.data.removesuffix(SAMPLE)}, for longer."
    if spec.coefficient_lr_scale != 1:
        yield f"Coefficients learned at {spec.coefficient_lr_scale:g} times the learning rate of the weights."


def _published(row: str, column: paper.Column) -> float | None:
    """What the paper reports, for a sample what it reports for the whole data set."""
    column = column._replace(data=column.data.removesuffix(SAMPLE))
    return paper.accuracy(row, column) if row in paper.ROWS and column in paper.COLUMNS else None
