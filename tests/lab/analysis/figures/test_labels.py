"""Labels stand beside their spots, in the panel, and cover nothing where there is room."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hullo.lab.analysis.figures.labels import SAME, Label, merge, place_labels

INSIDE = st.tuples(st.floats(0.1, 0.9), st.floats(0.1, 0.9)).map(np.array)
NOTHING = np.empty((0, 2))


def make_panel() -> Axes:
    figure = Figure(figsize=(4, 4))
    panel = figure.subplots()
    panel.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    figure.draw_without_rendering()
    return panel


@given(st.lists(INSIDE, min_size=1, max_size=6), st.floats(0, 6.3))
@example([np.array((0.125, 0.5))] * 5, 0.0)
@settings(max_examples=25, deadline=None)
def test_texts_never_overlap_leave_the_panel_or_cover_their_own_spots(spots: list[np.ndarray], angle: float) -> None:
    panel = make_panel()
    side = np.array([np.cos(angle), np.sin(angle)])
    place_labels(panel, [Label("12, 34", spot, side, 7.0) for spot in spots], [], np.array(spots))
    boxes = [text.get_window_extent() for text in panel.texts]
    frame = panel.get_window_extent().padded(1.0)
    for box, spot in zip(boxes, spots, strict=True):
        assert not box.contains(*panel.transData.transform(spot))
        assert all(frame.contains(*corner) for corner in box.corners())
    for one, two in combinations(boxes, 2):
        assert min(one.x1, two.x1) - max(one.x0, two.x0) < 0.5 or min(one.y1, two.y1) - max(one.y0, two.y0) < 0.5


@pytest.mark.parametrize("side", [(1, 0), (0, 1), (-1, 0), (0, -1)])
@pytest.mark.parametrize("in_the_way", [False, True])
def test_a_text_stands_on_its_side_unless_a_line_is_there(side: tuple[int, int], in_the_way: bool) -> None:
    panel, middle, away = make_panel(), np.array([0.5, 0.5]), np.array(side, dtype=float)
    line = middle + np.linspace(0, 0.4)[:, None] * away
    place_labels(panel, [Label("relu", middle, away, 7.0)], [line] if in_the_way else [], NOTHING)
    (text,) = panel.texts
    covered = [text.get_window_extent().contains(*point) for point in panel.transData.transform(line)]
    assert any(covered) != in_the_way


def test_labels_of_one_place_are_one_label() -> None:
    panel = make_panel()
    near = SAME / 72 / 4  # inches of a panel that is less than four wide
    spots = [(0.5, 0.5), (0.8, 0.8), (0.5 + 0.9 * near, 0.5), (0.5, 0.5 + 3 * near), (0.8, 0.8)]
    labels = [Label(str(i), np.array(spot), np.array([1.0, 0.0]), 7.0) for i, spot in enumerate(spots)]
    assert [label.text for label in merge(panel, labels)] == ["0, 2", "1, 4", "3"]
