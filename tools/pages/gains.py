"""The gains of hulls in brief: a line per column of the paper's table, as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from hullo.lab.analysis.experiments import Experiment
from hullo.lab.analysis.inference import compare
from hullo.lab.analysis.tables.format import origin
from hullo.lab.analysis.tables.markdown import escape, grid
from pages.verdicts import FIXED, HULLS, RIVALS

HEAD = ("network", "data", "best fixed activation", "best hull", "gain", f"gain over {' and '.join(RIVALS)}", "runs")
NOTE = (
    "Test accuracy in %, mean ± 95 % interval over seeds; gains in points. Fixed activations: those of "
    f"{', '.join(FIXED)} that were run. "
    "For the gains, the first seed chooses the best of either side and the others confirm, so a gain is not exactly "
    "the difference of the two columns beside it."
)


def gains_table(experiments: Sequence[Experiment]) -> str:
    """Return the best fixed activation, the best hull and the gain of hulls in each experiment that has both."""
    shown = [e for e in experiments if compare(e.accuracies, HULLS, FIXED)]
    if not shown:
        return ""
    lines = (
        [
            escape(e.setting.network),
            escape(e.setting.data) + (f",<br>{e.part[0]:,} images" if e.part else ""),
            *(_best(e, rows) for rows in (FIXED, HULLS)),
            *(_gain(e, others) for others in (FIXED, RIVALS)),
            f"{e.time},<br>{e.seeds},<br>{e.reading.short}",
        ]
        for e in shown
    )
    readings = dict.fromkeys(e.reading.sentence for e in shown)
    made = origin(record for e in shown for record in e.records)
    about = " ".join([NOTE, *readings, made])
    return f"{grid([escape(title) for title in HEAD], lines)}\n\n<sub>{escape(about)}</sub>"


def _best(experiment: Experiment, rows: Sequence[str]) -> str:
    """Return the name and the accuracy of the activation with the largest mean."""
    best = max((experiment.cells[row] for row in rows if row in experiment.cells), key=lambda cell: cell.accuracy.mean)
    return f"{escape(best.row)}<br>{_unbroken(best.accuracy.spell('.1f'))}"


def _gain(experiment: Experiment, others: Sequence[str]) -> str:
    """Return by how much the best hull exceeds the best of other activations; nothing if none of these was run."""
    found = compare(experiment.accuracies, HULLS, others)
    return _unbroken(found.interval.spell("+.1f")) if found else ""


def _unbroken(text: str) -> str:
    """Return a number and its interval with spaces at which no line ends."""
    return text.replace(" ", "\N{NO-BREAK SPACE}")
