"""The table as LaTeX: `tabular`s with the rules of booktabs, without floats."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hullo.lab.analysis.experiments import Experiment, rows_of
from hullo.lab.analysis.names import activation_label
from hullo.lab.analysis.tables.format import caption, details, heads, note, overview, provenance, title

SPECIAL = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        "[": "{[}",  # after the end of a line these two would belong to it
        "*": "{*}",
        "±": r"$\pm$",
        "†": r"\dag{}",
    }
)


def latex_table(experiments: Sequence[Experiment]) -> str:
    """Return all experiments at a glance, then each in detail: as many tabulars, which stand alone."""
    made = provenance(record for experiment in experiments for record in experiment.records)
    parts = [_comment(rf"Needs \usepackage{{booktabs}}. {made}"), _overview(experiments), *map(_details, experiments)]
    return "\n\n".join(parts) + "\n"


def _overview(experiments: Sequence[Experiment]) -> str:
    """Return a row per activation and two columns per experiment: ours, and the paper's in brackets."""
    about = zip(*map(heads, experiments), strict=True)
    spanning = [["", *(rf"\multicolumn{{2}}{{c}}{{{escape(text)}}}" for text in head)] for head in about]
    lines = [
        [escape(activation_label(row)), *(_mark(*part) for e in experiments for part in overview(e, row))]
        for row in rows_of(experiments)
    ]
    return _tabular(note(experiments), "l" + "r@{ }l" * len(experiments), spanning, lines)


def _details(experiment: Experiment) -> str:
    """Return a row per activation with all its figures; the best is bold."""
    head, lines = details(experiment)
    cells = experiment.cells.values()
    marked = [[_mark(text, cell.best) for text in texts] for texts, cell in zip(lines, cells, strict=True)]
    about = f"{title(experiment)}. {caption(experiment)}"
    places = "l" + "".join("r" if text else "l" for text in head[1:])
    return _tabular(about, places, [list(map(escape, head))], marked)


def _tabular(about: str, places: str, heads: Sequence[Sequence[str]], lines: Sequence[Sequence[str]]) -> str:
    body = [r"\toprule", *map(_line, heads), r"\midrule", *map(_line, lines), r"\bottomrule"]
    return "\n".join([_comment(about), rf"\begin{{tabular}}{{{places}}}", *body, r"\end{tabular}"])


def escape(text: str) -> str:
    r"""Escape a text for LaTeX, on one line.

    >>> print(escape("leaky_relu: 50 %"))
    leaky\_relu: 50 \%
    """
    return " ".join(text.split()).translate(SPECIAL)


def _mark(text: str, best: bool) -> str:
    spelled = re.sub(r"^-(?=\d)", "$-$", escape(text))  # a minus, not a hyphen
    return rf"\textbf{{{spelled}}}" if best and text else spelled


def _comment(text: str) -> str:
    return f"% {' '.join(text.split())}"


def _line(texts: Sequence[str]) -> str:
    return rf"{' & '.join(texts)} \\"
