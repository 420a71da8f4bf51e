"""Coefficients that sum to one have their place in the plane, and can be read off it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from matplotlib.path import Path

from hullo.lab.analysis.figures.ternary import (
    CORNERS,
    draw_plane,
    frame,
    grid_lines,
    name_corners,
    plane_key,
    project,
    unproject,
)

NUMBER = st.floats(-3, 3)
POINT = st.tuples(NUMBER, NUMBER).map(lambda p: np.array([*p, 1 - p[0] - p[1]]))
SQUARE = st.tuples(NUMBER, NUMBER, st.floats(0.05, 3))


def test_bases_are_the_corners_of_a_triangle_with_equal_sides() -> None:
    np.testing.assert_array_equal(project(np.eye(3)), CORNERS)
    sides = np.linalg.norm(CORNERS - np.roll(CORNERS, 1, axis=0), axis=1)
    np.testing.assert_allclose(sides, 1)


@given(POINT, POINT, NUMBER)
def test_the_projection_is_affine_and_loses_nothing(a: np.ndarray, b: np.ndarray, t: float) -> None:
    mixed = t * a + (1 - t) * b
    np.testing.assert_allclose(project(mixed), t * project(a) + (1 - t) * project(b), atol=1e-9)
    np.testing.assert_allclose(unproject(project(mixed)), mixed, atol=1e-9)


@given(POINT)
def test_the_convex_hull_is_the_inside_of_the_triangle(point: np.ndarray) -> None:
    if abs(point.min()) > 1e-6:  # not on the edge
        assert Path(CORNERS).contains_point(project(point)) == bool(point.min() > 0)


@given(SQUARE, st.integers(0, 2), st.sampled_from([0.1, 0.2, 0.5]))
def test_along_a_grid_line_one_coefficient_is_the_value_it_says(
    square: tuple[float, float, float], i: int, step: float
) -> None:
    middle, half = np.array(square[:2]), square[2]
    lines = grid_lines(i, middle, half, step)
    for value, ends in lines:
        np.testing.assert_allclose(unproject(ends)[:, i], value, atol=1e-5)
        assert value / step == pytest.approx(round(value / step), abs=1e-4)
        assert (np.abs(ends - middle) <= half + 1e-9).all()
        np.testing.assert_allclose(np.abs(ends - middle).max(1), half, atol=1e-9)  # from side to side
    reach = unproject(middle + half * np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]))[:, i]
    inside = np.arange(np.ceil(reach.min() / step - 1e-6), np.floor(reach.max() / step + 1e-6) + 1) * step
    clear = [v for v in inside if reach.min() + 1e-6 < v < reach.max() - 1e-6]
    assert {round(v, 4) for v in clear} <= {round(value, 4) for value, _ in lines}


@given(st.lists(POINT, min_size=1, max_size=5))
def test_a_frame_holds_all_places_and_is_never_a_point(points: list[np.ndarray]) -> None:
    places = project(np.stack(points))
    middle, half = frame(places)
    assert (np.abs(places - middle) < half).all()
    assert half >= 0.05


@pytest.mark.parametrize("half", [0.05, 0.7, 40.0])
def test_a_plane_of_any_size_has_a_few_lines_per_base_in_the_colors_of_its_key(half: float) -> None:
    panel = Figure().subplots()
    bases, square = ["relu", "tanh", "elu"], (project([1 / 3] * 3), half)
    draw_plane(panel, *square)
    key = {line.get_color(): line.get_label() for line in plane_key(bases)[1:]}
    assert [("relu" in text, "tanh" in text, "elu" in text) for text in key.values()] == [
        (True, False, True),
        (False, True, False),
        (False, False, True),
    ]
    bottom, top = panel.get_ylim()
    for text in panel.texts:  # values stand where the key says
        side = "below" if text.xy[1] <= bottom + 1e-9 else "above" if text.xy[1] >= top - 1e-9 else "right"
        assert side in key[text.get_color()] or "right" in key[text.get_color()]
    assert 9 <= len(panel.lines) - 1 <= 36
    values = len(panel.texts)
    name_corners(panel, bases, *square)
    assert [text.get_text() for text in panel.texts[values:]] == (bases if half > 0.6 else [])
