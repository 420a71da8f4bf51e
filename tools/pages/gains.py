"""The gains of hulls in brief: a line per column of the paper's table, as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from hullo.lab.analysis.experiments import Experiment
from hullo.lab.analysis.inference import Comparison, compare
from hullo.lab.analysis.tables.format import origin
from hullo.lab.analysis.tables.markdown import escape, grid
from pages.verdicts import FIXED, HULLS, RIVALS

HEAD = ("network", "data", "fixed activation", "hull", "gain", f"gain over {' and '.join(RIVALS)}", "runs")
NOTE = (
    "Test accuracy in %, mean ± 95 % interval over seeds; gains in points, on the same seeds. Of the hulls and of "
    f"{', '.join(FIXED)}, as far as they were run, the first seed chooses the best, and the others confirm: gains are "
    "over these seeds alone."
)


def gains_table(experiments: Sequence[Experiment], *, brief: bool = False) -> str:
    """Return the chosen fixed activation, the chosen hull and the gain of the hull in each experiment that has both.

    Args:
        experiments: columns of the paper's table.
        brief: leave out how accuracies were read and which machines made the runs.
    """
    shown = [(e, found) for e in experiments if (found := compare(e.accuracies, HULLS, FIXED))]
    if not shown:
        return ""
    lines = (
        [
            escape(e.setting.network),
            escape(e.setting.data) + (f",<br>{e.part[0]:,} images" if e.part else ""),
            *(f"{escape(row)}<br>{_unbroken(e.cells[row].accuracy.spell('.1f'))}" for row in (found.other, found.row)),
            *(_gain(compare(e.accuracies, HULLS, others)) for others in (FIXED, RIVALS)),
            f"{e.time},<br>{e.seeds},<br>{e.reading.short}",
        ]
        for e, found in shown
    )
    readings = dict.fromkeys(e.reading.sentence for e, _ in shown)
    made = origin(record for e, _ in shown for record in e.records)
    about = NOTE if brief else " ".join([NOTE, *readings, made])
    return f"{grid([escape(title) for title in HEAD], lines)}\n\n<sub>{escape(about)}</sub>"


def _gain(found: Comparison | None) -> str:
    return _unbroken(found.interval.spell("+.1f")) if found else ""


def _unbroken(text: str) -> str:
    """Return a number and its interval with spaces at which no line ends."""
    return text.replace(" ", "\N{NO-BREAK SPACE}")
