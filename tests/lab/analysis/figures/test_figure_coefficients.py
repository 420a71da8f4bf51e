"""Every layer's path is where its coefficients were, from the start to the end, with time as color or as an axis."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.text import Text
from runs_to_draw import experiment, learned, run

from hullo.lab.analysis.figures.coefficients import draw_coefficients
from hullo.lab.analysis.figures.ternary import CORNERS, project
from hullo.lab.analysis.names import layer_names

THREE = ["convex(identity,relu,tanh)", "affine(identity,relu,tanh)"]
ACCURACIES = [50.0] * 6


def paths(panel: Axes) -> list[np.ndarray]:
    """Return the points of each colored path, joined again."""
    found = []
    for collection in panel.collections:
        if isinstance(collection, LineCollection):
            segments = np.array(collection.get_segments())
            np.testing.assert_array_equal(segments[1:, 0], segments[:-1, 1])
            assert (np.diff(collection.get_array()) > 0).all()
            found.append(np.concatenate([segments[:1, 0], segments[:, 1]]))
    return found


def marks(panel: Axes, *, start: bool) -> np.ndarray:
    dots = [
        line for line in panel.lines if line.get_marker() == "o" and (line.get_markerfacecolor() == "white") == start
    ]
    return np.array([[line.get_xdata()[0], line.get_ydata()[0]] for line in dots])


def bold(panel: Axes) -> list[Text]:
    return [text for text in panel.texts if text.get_fontweight() == "bold"]


@pytest.mark.parametrize("layers", [3, 5, 55])
def test_three_bases_are_paths_in_the_plane_seen_whole_and_close_up(layers: int) -> None:
    runs = [learned(row, layers=layers, accuracies=ACCURACIES) for row in THREE]
    (figure,) = draw_coefficients(experiment(*runs)).values()
    panels = figure.axes[:4]
    for panel, record in zip(panels, [runs[0]] * 2 + [runs[1]] * 2, strict=True):
        expected = project(np.array(record.coefficients))
        np.testing.assert_allclose(paths(panel), expected.swapaxes(0, 1), atol=1e-12)
        np.testing.assert_allclose(marks(panel, start=True), expected[0], atol=1e-12)
        np.testing.assert_allclose(marks(panel, start=False), expected[-1], atol=1e-12)
        (left, right), (bottom, top) = panel.get_xlim(), panel.get_ylim()
        x, y = expected.reshape(-1, 2).T
        assert left < x.min() <= x.max() < right
        assert bottom < y.min() <= y.max() < top
    for whole in panels[::2]:
        (left, right), (bottom, top) = whole.get_xlim(), whole.get_ylim()
        low, high = CORNERS.min(0), CORNERS.max(0)
        assert left < low[0] < high[0] < right
        assert bottom < low[1] < high[1] < top
    key = [text.get_text() for text in figure.legends[0].get_texts()]
    assert {"start", "equal coefficient of relu, values above"} <= set(key)
    assert (f"end: {layer_names('lenet5', layers)[-1]}" in key) == (layers != 55)
    assert ("layer" in [axes.get_ylabel() for axes in figure.axes]) == (layers == 55)


def test_ends_in_the_same_place_are_rings_in_the_colors_of_their_key() -> None:
    start, ends = np.full((5, 3), 1 / 3), np.eye(3)[[1, 2, 1, 0, 1]]
    time = np.linspace(0, 1, 7)[:, None, None]
    record = run(THREE[0], paths=(1 - time) * start + time * ends, accuracies=ACCURACIES)
    (figure,) = draw_coefficients(experiment(record)).values()
    drawn = [
        line for line in figure.axes[1].lines if line.get_marker() == "o" and line.get_markerfacecolor() != "white"
    ]
    sizes = [line.get_markersize() for line in drawn]
    assert sizes == sorted(sizes, reverse=True)  # each is seen around the next
    assert len(set(sizes)) == len({line.get_markerfacecolor() for line in drawn}) == 5
    keys = [key for key in figure.legends[0].legend_handles if key.get_label().startswith("end: ")]
    assert [key.get_markerfacecolor() for key in keys] == [line.get_markerfacecolor() for line in drawn]
    assert [text.get_text() for text in bold(figure.axes[1])] == ["identity", "relu", "tanh"]


def test_a_deep_networks_ends_are_colored_by_depth() -> None:
    record = learned(THREE[1], layers=55, accuracies=ACCURACIES)
    (figure,) = draw_coefficients(experiment(record)).values()
    ends = [line for line in figure.axes[0].lines if line.get_marker() == "o" and line.get_markerfacecolor() != "white"]
    greens = [line.get_markerfacecolor()[1] for line in ends]
    assert len(set(greens)) == 55
    assert greens == sorted(greens)


def test_of_two_bases_the_first_is_shown_over_epochs_and_the_view_is_that_of_the_paths() -> None:
    record = run("affine(identity,relu)", paths=[[[0.5, 0.5]] * 2, [[0.51, 0.49]] * 2, [[0.53, 0.47], [0.5, 0.5]]])
    (figure,) = draw_coefficients(experiment(record)).values()
    (panel,) = figure.axes
    drawn = [line.get_ydata() for line in panel.lines if len(line.get_ydata()) > 2]
    np.testing.assert_array_equal(drawn, np.array(record.coefficients)[:, :, 0].T)
    assert panel.get_title() == "affine"
    assert panel.get_ylabel() == "coefficient of identity\n(relu: 1 minus it)"
    low, high = panel.get_ylim()
    assert 0.4 < low < high < 0.6


def test_prelu_is_called_prelu_and_a_mean_over_channels() -> None:
    (figure,) = draw_coefficients(experiment(learned("prelu"))).values()
    (panel,) = figure.axes
    assert panel.get_title() == "prelu"
    assert panel.get_ylabel() == "coefficient of identity, mean over channels\n(relu: 1 minus it)"


def test_paths_without_the_ends_of_channels_are_said_to_be_means() -> None:
    channels = np.full((2, 4, 3), 1 / 3)
    record = learned("affine(identity,relu,tanh,per=channel)", layers=2, channels=channels)
    (figure,) = draw_coefficients(experiment(record, epoch=1)).values()
    assert "paths: mean over channels" in [text.get_text() for text in figure.legends[0].get_texts()]


def test_the_title_names_the_epochs_that_paths_cover() -> None:
    record = learned("affine(relu,tanh)", accuracies=[50.0, 60.0, 70.0])
    record = replace(record, spec=replace(record.spec, val_size=9), val_accuracy=[1.0, 3.0, 2.0], val_loss=[1.0] * 3)
    (figure,) = draw_coefficients(experiment(record)).values()
    title = figure.get_suptitle().replace("\n", " ")
    assert title.endswith("coefficients of relu,tanh up to the chosen epoch of 3 epochs, seed 0")


def test_more_bases_have_a_panel_each() -> None:
    rows = ["convex(identity,relu,tanh,sin)", "affine(identity,relu,tanh,sin)"]
    runs = [learned(row, layers=2) for row in rows]
    (figure,) = draw_coefficients(experiment(*runs)).values()
    grid = np.array(figure.axes).reshape(2, 4)
    for line, record in zip(grid, runs, strict=True):
        for i, panel in enumerate(line):
            drawn = [curve.get_ydata() for curve in panel.lines if len(curve.get_ydata()) > 2]
            np.testing.assert_array_equal(drawn, np.array(record.coefficients)[:, :, i].T)
            assert panel.get_title().endswith(record.bases[i])


def test_there_is_a_figure_a_set_of_bases_and_none_without_learning() -> None:
    rows = [*THREE, "affine(relu,tanh)"]
    found = draw_coefficients(experiment(run("relu"), *map(learned, rows)))
    assert list(found) == ["identity,relu,tanh", "relu,tanh"]
    assert draw_coefficients(experiment(run("relu"))) == {}


def test_the_ends_of_channels_are_dots() -> None:
    channels = [np.array([[0.2, 0.3, 0.5], [1.0, 1.0, -1.0]]), np.array([[0.0, 0.0, 1.0]])]
    record = learned("affine(identity,relu,tanh,per=channel)", layers=2, channels=channels)
    (figure,) = draw_coefficients(experiment(record)).values()
    for panel in figure.axes[:2]:
        (dots,) = (line for line in panel.lines if line.get_marker() == ".")
        np.testing.assert_allclose(np.array(dots.get_data()).T, project(np.concatenate(channels)), atol=1e-12)


@pytest.mark.parametrize("bases", ["identity,tanh", "identity,relu,tanh"])
def test_coefficients_that_need_not_sum_to_one_are_drawn_over_epochs_one_by_one(bases: str) -> None:
    n = bases.count(",") + 1
    paths = np.linspace(1 / n, 2, 3 * 2 * n).reshape(3, 2, n)
    runs = [run(f"{kind}({bases})", paths=paths) for kind in ("convex", "conic", "linear")]
    figures = draw_coefficients(experiment(*runs))
    drawn = figures[bases if n == 2 else f"{bases} conic linear"]
    titles = [panel.get_title() for panel in drawn.axes if panel.lines]
    assert {f"{kind}: {name}" for kind in ("conic", "linear") for name in bases.split(",")} <= set(titles)
    panel = drawn.axes[titles.index("linear: tanh")]
    drawn_paths = [line.get_ydata() for line in panel.lines if str(line.get_label()).startswith("layer")]
    np.testing.assert_allclose(drawn_paths, paths[:, :, -1].T)
