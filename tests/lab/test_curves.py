"""The picture shows what was learned: a panel a layer, the curve that the last coefficients make."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure
from test_records import RECORD

from hullo.lab import curves
from hullo.lab.curves import draw_curves
from hullo.lab.records import Record

OTHER = "affine(identity,relu)"


def learned(row: str, seed: int, *coefficients: list[float], ended: str = "finished") -> Record:
    bases = row.partition("(")[2].removesuffix(")").split(",")
    spec = replace(RECORD.spec, activation=row, seed=seed)
    return replace(RECORD, spec=spec, bases=bases, coefficients=[[[0.5, 0.5]] * 2, list(coefficients)], ended=ended)


RUNS = [
    replace(RECORD, spec=replace(RECORD.spec, activation="relu"), bases=[], coefficients=[]),
    learned("convex(identity,tanh)", 0, [1.0, 0.0], [0.0, 1.0]),
    learned("convex(identity,tanh)", 1, [0.5, 0.5], [0.5, 0.5]),
    learned(OTHER, 0, [3.0, -2.0], [-1.0, 2.0]),
    learned("affine(relu,tanh)", 0, [1.0, 0.0], [1.0, 0.0], ended="diverged in epoch 1"),
]


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    made: list[Figure] = []

    def keep(**options: object) -> Figure:
        made.append(Figure(**options))
        return made[-1]

    monkeypatch.setattr(curves, "Figure", keep)
    return made


def test_each_panel_holds_the_curves_of_the_first_seeds_that_ended_well(figures: list[Figure], tmp_path: Path) -> None:
    assert draw_curves(RUNS, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    first, second = figures[0].axes
    for panel, functions in (
        (first, {"convex(identity,tanh)": lambda x: x, OTHER: lambda x: 3 * x - 2 * x.relu()}),
        (second, {"convex(identity,tanh)": torch.tanh, OTHER: lambda x: 2 * x.relu() - x}),
    ):
        lines = {line.get_label(): line for line in panel.lines if not line.get_label().startswith("_")}
        assert lines.keys() == functions.keys()
        for row, function in functions.items():
            x, y = (torch.tensor(list(values)) for values in lines[row].get_data())
            torch.testing.assert_close(y, function(x), rtol=1e-6, atol=1e-6)
        assert [lines[row].get_linestyle() for row in functions] == ["--", "-"]
        assert len({lines[row].get_color() for row in functions}) == 2


def test_without_a_learned_activation_there_is_no_picture(tmp_path: Path) -> None:
    assert not draw_curves([RUNS[0], RUNS[-1]], tmp_path / "curves.png")
    assert not list(tmp_path.iterdir())
