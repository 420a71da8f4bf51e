"""The curves are what the coefficients make, layer by layer: affine ones solid, convex ones dashed."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from runs_to_draw import experiment, learned, run

from hullo.lab.analysis.figures import draw_activations
from hullo.lab.analysis.figures.style import KINDS

FORMULAS = {"identity": lambda x: x, "relu": lambda x: np.maximum(x, 0), "tanh": np.tanh, "sin": np.sin}
ROWS = ["convex(identity,relu)", "affine(identity,relu)", "affine(identity,relu,tanh,sin)"]


def oracle(x: np.ndarray, coefficients: list[float], bases: list[str]) -> np.ndarray:
    return sum(c * FORMULAS[name](x) for c, name in zip(coefficients, bases, strict=True))


def drawn(panel: Axes) -> list[Line2D]:
    """Return all lines but those through the origin."""
    return [line for line in panel.lines if len(line.get_xdata()) > 2]


def dashed(line: Line2D) -> bool:
    return line.get_linestyle() == "--"


@pytest.mark.parametrize("layers", [1, 3, 5, 7])
@pytest.mark.parametrize("epoch", [1, 2])
def test_a_shallow_network_has_a_panel_per_layer_for_each_set_of_bases(layers: int, epoch: int) -> None:
    runs = {row: learned(row, layers=layers) for row in ROWS}
    figure = draw_activations(experiment(*runs.values(), epoch=epoch))
    panels = np.array(figure.axes).reshape(2, layers)
    for line, rows in zip(panels, (ROWS[:2], ROWS[2:]), strict=True):
        for layer, panel in enumerate(line):
            start, *lines = drawn(panel)
            assert len(lines) == len(rows)
            for row, curve in zip(rows, lines, strict=True):
                x, y = curve.get_data()
                record = runs[row]
                np.testing.assert_allclose(y, oracle(x, record.coefficients[epoch][layer], record.bases), atol=1e-6)
                assert dashed(curve) == row.startswith("convex")
                assert curve.get_color() == KINDS[row.partition("(")[0]]["color"]
            first = runs[rows[0]]
            np.testing.assert_allclose(
                start.get_ydata(), oracle(start.get_xdata(), first.coefficients[0][layer], first.bases), atol=1e-6
            )
    assert f"{epoch}{'' if epoch == 2 else ' of 2'} epochs, seed 0" in figure.get_suptitle().replace("\n", " ")


def test_a_deep_network_has_a_panel_a_hull_with_all_layers_in_the_order_of_their_colors() -> None:
    runs = [learned(row, layers=55) for row in ROWS[:2]]
    convex, affine, bar = draw_activations(experiment(*runs)).axes
    for panel, record in ((convex, runs[0]), (affine, runs[1])):
        lines = drawn(panel)
        assert len(lines) == 55
        for coefficients, line in zip(record.coefficients[-1], lines, strict=True):
            x, y = line.get_data()
            np.testing.assert_allclose(y, oracle(x, coefficients, record.bases), atol=1e-6)
            assert dashed(line) == (panel is convex)
        greens = [line.get_color()[1] for line in lines]  # the map goes from dark to light
        assert greens == sorted(greens)
    assert bar.get_ylabel() == "layer"


def test_channels_are_a_band_that_holds_nine_tenths_of_them_around_their_mean() -> None:
    random = np.random.default_rng(0)
    share = random.uniform(-1, 2, 400)
    channels = [np.stack([share, 1 - share], -1), np.array([[0.5, 0.5]])]
    means = np.stack([layer.mean(0) for layer in channels])
    row = "affine(identity,relu,per=channel)"
    record = run(row, paths=[np.full((2, 2), 0.5), (means + 0.5) / 2, means], channels=channels)
    many, one = draw_activations(experiment(record)).axes
    (band,) = many.collections
    corners = band.get_paths()[0].vertices
    at_the_left = corners[np.isclose(corners[:, 0], -3), 1]
    left = -3 * share  # there the ReLU is 0
    within = (left >= at_the_left.min()) & (left <= at_the_left.max())
    assert within.mean() == pytest.approx(0.9, abs=0.01)
    assert drawn(many)[-1].get_ydata()[0] == pytest.approx(left.mean())
    assert not one.collections
    halfway = draw_activations(experiment(record, epoch=1))
    assert not any(panel.collections for panel in halfway.axes)


@pytest.mark.parametrize("layers", [3, 55])
def test_prelu_is_called_prelu_and_a_mean_over_channels(layers: int) -> None:
    figure = draw_activations(experiment(learned("prelu", layers=layers)))
    first, *_ = figure.axes
    assert first.get_ylabel().replace("\n", " ") == "prelu, mean over channels"
    if layers == 3:
        assert [text.get_text() for text in figure.legends[0].get_texts()] == ["prelu", "start"]
    else:
        assert first.get_title() == "prelu"


def test_without_a_learned_activation_there_is_no_figure() -> None:
    lost = learned(ROWS[0], ended="diverged in epoch 1")
    assert draw_activations(experiment(run("relu"), lost)) is None
    assert draw_activations(experiment(learned(ROWS[0], 1)), seed=0) is None
