"""The table as LaTeX: a `tabular` with the rules of booktabs, to be put into a float of one's own."""

from __future__ import annotations

from collections.abc import Sequence

from hullo.lab.table.experiments import Experiment, rows_of
from hullo.lab.table.lines import glance, note

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
    """A line an activation and two columns an experiment: ours, and the paper's in brackets."""
    heads = [(e.name for e in experiments), (f"{e.pictures}, {e.time}, {e.seeds}" for e in experiments)]
    return "\n".join(
        [
            rf"% Needs \usepackage{{booktabs}}. {note(experiments)}",
            rf"\begin{{tabular}}{{l{'r@{ }l' * len(experiments)}}}",
            r"\toprule",
            *(_line(["", *(rf"\multicolumn{{2}}{{c}}{{{escape(text)}}}" for text in head)]) for head in heads),
            r"\midrule",
            *(
                _line([escape(row), *(_mark(*part) for e in experiments for part in glance(e, row))])
                for row in rows_of(experiments)
            ),
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def escape(text: str) -> str:
    r"""A text that means itself, on one line.

    >>> print(escape("leaky_relu: 50 %"))
    leaky\_relu: 50 \%
    """
    return " ".join(text.split()).translate(SPECIAL)


def _mark(text: str, best: bool) -> str:
    return rf"\textbf{{{escape(text)}}}" if best and text else escape(text)


def _line(texts: Sequence[str]) -> str:
    return rf"{' & '.join(texts)} \\"
