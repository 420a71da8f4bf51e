"""Coefficients over epochs: every layer's are those of the records, from the start to the end."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.axes import Axes
from runs_to_draw import experiment, learned, run

from hullo.lab.analysis.figures.coefficients import draw_coefficients
from hullo.lab.analysis.names import layer_names

THREE = ["convex(identity,relu,tanh)", "affine(identity,relu,tanh)"]


def paths(panel: Axes) -> list[np.ndarray]:
    """Return the coefficients over epochs that a panel shows, without the lines at 0 and 1."""
    return [np.asarray(line.get_ydata()) for line in panel.lines if len(line.get_ydata()) > 2]


@pytest.mark.parametrize("layers", [3, 55])
@pytest.mark.parametrize("bases", ["identity,relu", "identity,relu,tanh", "identity,relu,tanh,sin"])
def test_hulls_have_a_row_of_panels_with_one_for_each_base(bases: str, layers: int) -> None:
    kinds = ("convex", "affine", "conic", "linear")
    runs = {kind: learned(f"{kind}({bases})", layers=layers) for kind in kinds}
    (figure,) = draw_coefficients(experiment(*runs.values())).values()
    drawn = {panel.get_title(): panel for panel in figure.axes if panel.lines}
    assert list(drawn) == [f"{kind}: {name}" for kind in kinds for name in bases.split(",")]
    for kind, record in runs.items():
        for i, name in enumerate(bases.split(",")):
            found, expected = paths(drawn[f"{kind}: {name}"]), np.array(record.coefficients)[:, :, i].T
            np.testing.assert_array_equal(found, expected)
    key = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    assert key == ([] if layers == 55 else layer_names("lenet5", layers))
    assert ("layer" in [axes.get_ylabel() for axes in figure.axes]) == (layers == 55)


def test_the_view_is_that_of_the_paths() -> None:
    record = run("affine(identity,relu)", paths=[[[0.5, 0.5]] * 2, [[0.51, 0.49]] * 2, [[0.53, 0.47], [0.5, 0.5]]])
    (figure,) = draw_coefficients(experiment(record)).values()
    low, high = figure.axes[0].get_ylim()
    assert 0.4 < low < high < 0.6


def test_a_deep_networks_layers_are_colored_by_depth() -> None:
    (figure,) = draw_coefficients(experiment(learned(THREE[1], layers=55))).values()
    greens = [line.get_color()[1] for line in figure.axes[0].lines if len(line.get_ydata()) > 2]
    assert len(set(greens)) == 55
    assert greens == sorted(greens)


def test_prelu_is_called_prelu_and_a_mean_over_channels() -> None:
    (figure,) = draw_coefficients(experiment(learned("prelu"))).values()
    assert [panel.get_title() for panel in figure.axes] == ["prelu: identity", "prelu: relu"]
    assert figure.axes[0].get_ylabel() == "coefficient, mean over channels"


def test_the_title_names_the_epochs_that_paths_cover() -> None:
    record = learned("affine(relu,tanh)", accuracies=[50.0, 60.0, 70.0])
    record = replace(record, spec=replace(record.spec, val_size=9), val_accuracy=[1.0, 3.0, 2.0], val_loss=[1.0] * 3)
    (figure,) = draw_coefficients(experiment(record)).values()
    title = figure.get_suptitle().replace("\n", " ")
    assert title.endswith("coefficients of relu,tanh over 3 epochs (chosen epoch), seed 0")


def test_there_is_a_figure_for_each_set_of_bases_and_none_without_learning() -> None:
    rows = [*THREE, "affine(relu,tanh)"]
    found = draw_coefficients(experiment(run("relu"), *map(learned, rows)))
    assert list(found) == ["identity,relu,tanh", "relu,tanh"]
    assert draw_coefficients(experiment(run("relu"))) == {}
