"""Test that figures show the functions and the inputs of hulls."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

import hullo

pytest.importorskip("matplotlib")


def test_lines_are_the_current_and_initial_function() -> None:
    act = hullo.AffineHull("identity", "relu", "tanh", init="relu")
    act.coefficients = [0.5, 1.0, -0.5]
    (axes,) = hullo.plot(act, limits=(-2, 3)).axes
    started, learned = axes.lines
    x = torch.as_tensor(learned.get_xdata())
    torch.testing.assert_close(torch.as_tensor(learned.get_ydata()).float(), act(x.float()).detach(), rtol=0, atol=1e-6)
    torch.testing.assert_close(torch.as_tensor(started.get_ydata()), x.relu())
    assert axes.get_xlim() == (-2, 3)
    assert axes.get_title() == "affine(identity,relu,tanh)"


def test_band_covers_all_groups() -> None:
    act = hullo.LinearHull("identity", groups=3, init=[[-1.0], [0.5], [2.0]])
    (axes,) = hullo.plot(act).axes
    ((band,),) = ([collection.get_paths()[0].get_extents() for collection in axes.collections],)
    assert (band.y0, band.y1) == (-8, 8)
    torch.testing.assert_close(torch.as_tensor(axes.lines[1].get_ydata()[-1]).double(), torch.tensor(2.0).double())


def test_histogram_counts_inputs_without_side_effects() -> None:
    model = nn.Sequential(nn.BatchNorm1d(1), hullo.AffineHull("identity", "relu"), nn.Dropout(), nn.Linear(1, 1))
    model.append(hullo.AffineHull("identity", "tanh"))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    x = torch.linspace(-3, 3, 90)[:, None]
    random = torch.get_rng_state()
    figure = hullo.plot(model, example_inputs=x)
    assert torch.equal(random, torch.get_rng_state())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training
    bars = [axes.patches for axes in figure.axes if axes.patches]
    assert [sum(bar.get_height() for bar in panel) for panel in bars] == [90, 90]
    taken = [bar.get_x() for bar in bars[0] if bar.get_height()]
    assert min(taken) == pytest.approx(-3, abs=0.15)
    assert not model[1]._forward_pre_hooks


def test_inputs_outside_the_limits_are_counted_not_piled_up() -> None:
    act = hullo.AffineHull("identity", "relu")
    figure = hullo.plot(act, example_inputs=torch.tensor([-9.0, 0.0, 1.0, 9.0]))
    (bars,) = (axes.patches for axes in figure.axes if axes.patches)
    assert sum(bar.get_height() for bar in bars) == 2
    assert "50.0%" in figure.axes[0].texts[0].get_text()
    assert {text.get_text() for text in figure.legends[0].get_texts()} == {"learned", "start", "inputs"}


def test_each_hull_has_a_panel() -> None:
    model = nn.Sequential(*(hullo.AffineHull("identity", "relu") for _ in range(5)))
    assert [axes.get_title() for axes in hullo.plot(model).axes] == [f"{n}: affine(identity,relu)" for n in range(5)]


def test_invalid_plot_is_rejected() -> None:
    with pytest.raises(ValueError, match="no hulls"):
        hullo.plot(nn.Linear(1, 1))
    with pytest.raises(ValueError, match=r"limits=\(3, 1\)"):
        hullo.plot(hullo.AffineHull("relu"), limits=(3, 1))
    with pytest.raises(ValueError, match="meta device"):
        hullo.plot(nn.Sequential(hullo.AffineHull("relu", device="meta")))


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        hullo.plot(hullo.ConvexHull("identity", "relu"))


def test_the_start_has_no_learned_scale() -> None:
    act = hullo.LinearHull("sin", init=[1.0], inner_scale="hull")
    act.inner_scale.data.fill_(3.0)
    start, learned = (torch.as_tensor(line.get_ydata()).double() for line in hullo.plot(act).axes[0].lines)
    x = torch.linspace(-4, 4, len(start), dtype=torch.float64)
    torch.testing.assert_close(start, x.sin())
    torch.testing.assert_close(learned, (3 * x).sin())
