"""The gains of hulls in brief: a line per column of the paper's table, as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from hullo.lab.analysis.experiments import Experiment
from hullo.lab.analysis.inference import Comparison, compare
from hullo.lab.analysis.report.finding import compare_best
from hullo.lab.analysis.tables.format import provenance
from hullo.lab.analysis.tables.markdown import escape, grid
from pages.verdicts import FIXED

HEAD = ("network", "data", "other activation", "hull", "gain", "gain over the paper's fixed activations", "runs")
NOTE = (
    "Test accuracy in %, mean ± 95 % interval over seeds; gains in points, on the same seeds. The first seed chooses "
    "the best hull and the best of all other activations that were run, PReLU among them, and the others confirm: "
    f"gains are over these seeds alone. The paper's fixed activations are {', '.join(FIXED)}."
)


def gains_table(experiments: Sequence[Experiment], *, brief: bool = False) -> str:
    """Return the chosen other activation, the chosen hull and the gain of the hull in each experiment that has both.

    Args:
        experiments: columns of the paper's table.
        brief: leave out how accuracies were read and which machines made the runs.
    """
    best = ((e, compare_best([e])) for e in experiments)
    shown = [(e, b.found, compare(e.scores, b.hulls, FIXED)) for e, b in best if b.found]
    if not shown:
        return ""
    lines = (
        [
            escape(e.setting.network),
            escape(e.setting.data) + (f",<br>{e.part[0]:,} images" if e.part else ""),
            *(f"{escape(row)}<br>{_unbroken(e.cells[row].accuracy.spell('.1f'))}" for row in (found.other, found.row)),
            *map(_gain, (found, over_fixed)),
            f"{e.time},<br>{e.seeds},<br>{e.reading.short}",
        ]
        for e, found, over_fixed in shown
    )
    readings = dict.fromkeys(e.reading.sentence for e, *_ in shown)
    made = provenance(record for e, *_ in shown for record in e.records)
    about = NOTE if brief else " ".join([NOTE, *readings, made])
    return f"{grid([escape(title) for title in HEAD], lines)}\n\n<sub>{escape(about)}</sub>"


def _gain(found: Comparison | None) -> str:
    return _unbroken(found.interval.spell("+.1f")) if found else ""


def _unbroken(text: str) -> str:
    """Return a number and its interval with spaces at which no line ends."""
    return text.replace(" ", "\N{NO-BREAK SPACE}")
