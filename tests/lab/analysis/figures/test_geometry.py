"""The sets in the figure are the sets of the paper: the convex hull is where the cone meets the affine hull."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.path import Path

from hullo.coefficients import HYPERPLANE, SIMPLEX
from hullo.lab.analysis.figures.geometry import (
    ACROSS,
    BACK,
    LENGTH,
    MARKED,
    PAGE,
    RADIUS,
    UP,
    affine_hull,
    cone,
    convex_hull,
    describe,
    draw_geometry,
)

COEFFICIENT = st.floats(-2, 2, allow_subnormal=False)


def test_all_points_of_the_affine_hull_sum_to_one_and_lie_around_its_middle() -> None:
    circle = affine_hull()
    np.testing.assert_allclose(circle.sum(1), 1, atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(circle - 1 / 3, axis=1), RADIUS, atol=1e-12)
    np.testing.assert_array_equal(circle[0].round(9), circle[-1].round(9))


def test_the_convex_hull_lies_in_the_affine_hull_and_on_all_faces_of_the_cone() -> None:
    corners = convex_hull()
    assert (corners >= 0).all()
    np.testing.assert_allclose(corners.sum(1), 1)
    assert (np.linalg.norm(corners - 1 / 3, axis=1) < RADIUS).all()
    for face, corner, following in zip(cone(1.0, LENGTH), corners, np.roll(corners, -1, axis=0), strict=True):
        np.testing.assert_array_equal(face[[0, 3]], [corner, following])


def test_no_point_of_the_cone_has_a_negative_coefficient_and_all_lie_on_rays_through_a_function() -> None:
    for face in (*cone(0.0, 1.0), *cone(1.0, LENGTH)):
        assert (face >= 0).all()
        assert all(np.count_nonzero(point) <= 1 for point in face)


def test_the_page_shows_the_affine_hull_undistorted_but_for_its_tilt() -> None:
    frame = np.stack([ACROSS, BACK, UP])
    np.testing.assert_allclose(frame @ frame.T, np.eye(3), atol=1e-12)
    middle, places = np.full(3, 1 / 3) @ PAGE, affine_hull() @ PAGE
    wide, high = np.abs(places - middle).max(0)
    assert wide == pytest.approx(RADIUS)
    np.testing.assert_allclose((((places - middle) / [wide, high]) ** 2).sum(1), 1, atol=1e-3)


@given(st.tuples(COEFFICIENT, COEFFICIENT, COEFFICIENT), st.booleans())
def test_a_point_is_labelled_as_the_library_classifies_it(point: tuple[float, float, float], level: bool) -> None:
    point = (*point[:2], 1 - point[0] - point[1]) if level else point
    coefficients = torch.tensor(point, dtype=torch.float64)
    convex, affine = (not allowed.describe_violation(coefficients) for allowed in (SIMPLEX, HYPERPLANE))
    said = describe(point)
    assert (said == "in the convex hull") == convex
    assert (said in ("in the convex hull", "in the affine hull alone")) == affine
    assert (said in ("in the convex hull", "in the cone alone")) == (min(point) >= 0)


def test_what_is_drawn_are_these_sets_and_the_triangle_lies_in_the_disc() -> None:
    panel = draw_geometry().axes[0]
    polygons = [patch.get_xy() for patch in panel.patches]
    sets = (affine_hull(), convex_hull(), *cone(0.0, 1.0), *cone(1.0, LENGTH))
    assert len(polygons) == len(sets)
    for points in sets:
        places = points @ PAGE
        same = [polygon for polygon in polygons if len(polygon) >= len(places)]
        assert any(np.allclose(polygon[: len(places)], places) for polygon in same)
    assert Path(affine_hull() @ PAGE).contains_points(convex_hull() @ PAGE).all()


def test_marked_functions_are_drawn_as_curves_with_true_captions() -> None:
    panels = draw_geometry().axes[1:]
    places = set()
    for (name, (a, b, c)), panel in zip(MARKED.items(), panels, strict=True):
        x, y = panel.lines[-1].get_data()
        np.testing.assert_allclose(y, a * np.array(x) + b * np.maximum(x, 0) + c * np.tanh(x), atol=1e-12)
        said = panel.get_xlabel()
        assert ("never falls" in said) == bool((np.diff(y) >= 0).all())
        right = np.searchsorted(x, 0.0) + 1
        assert float(said.rpartition(" ")[2]) == pytest.approx(y[right] / x[right], rel=1e-3)
        assert panel.get_title(loc="left").startswith(f"{name}: ")
        places.add(describe((a, b, c)))
    assert places == {"in the convex hull", "in the affine hull alone", "in the cone alone"}
