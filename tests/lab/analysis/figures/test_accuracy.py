"""Means, intervals and the paper's values stand where they are, and runs that diverged are counted."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean, stdev

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from runs_to_draw import experiment, run

from hullo.lab.analysis.experiments import experiments
from hullo.lab.analysis.figures import draw_activations, drawing
from hullo.lab.analysis.figures.accuracy import arrange, draw_final, draw_learning
from hullo.lab.spec import paper
from hullo.lab.spec.records import Record

T_3 = 4.302652729696142  # of two degrees of freedom
REACHED = {"relu": [[40, 70], [44, 72], [42, 77]], "convex(identity,relu)": [[50, 75], [51, 76], [52, 80]]}


def runs() -> list[Record]:
    return [
        run(row, seed, accuracies=list(map(float, a))) for row, all_ in REACHED.items() for seed, a in enumerate(all_)
    ]


def lines(panel: Axes) -> dict[str, Line2D]:
    return {line.get_label(): line for line in panel.lines if not line.get_label().startswith("_")}


def dots(figure: Figure, label: str) -> dict[str, float]:
    """Return the positions of the dots of a name, by row."""
    (panel,) = figure.axes
    rows = [text.get_text() for text in panel.get_yticklabels()]
    own = [line for line in panel.lines if line.get_marker() == label]
    return {rows[int(line.get_ydata()[0])]: float(line.get_xdata()[0]) for line in own}


def test_curves_are_means_over_seeds_and_bands_their_intervals_by_students_t() -> None:
    (panel,) = draw_learning(experiment(*runs())).axes
    assert set(lines(panel)) == set(REACHED)
    assert panel.get_title() == "identity,relu"
    for band, (row, reached) in zip(panel.collections, reversed(REACHED.items()), strict=True):
        by_epoch = list(zip(*reached, strict=True))
        np.testing.assert_allclose(lines(panel)[row].get_data(), [[1, 2], list(map(fmean, by_epoch))])
        corners = band.get_paths()[0].vertices
        for epoch, values in enumerate(by_epoch, 1):
            ends = np.unique(corners[corners[:, 0] == epoch, 1].round(9))
            half = T_3 * stdev(values) / np.sqrt(3)
            np.testing.assert_allclose(ends, [fmean(values) - half, fmean(values) + half], atol=1e-6)


def test_a_network_that_keeps_its_activations_is_named_as_in_tables() -> None:
    made = run("relu", 0, accuracies=[60.0])
    own = replace(made, spec=replace(made.spec, network="net", data="data", activation="own", settings="lr=tuned"))
    assert [text.get_text() for text in draw_final(experiment(own)).axes[0].get_yticklabels()] == ["original"]
    (legend,) = draw_learning(experiment(own)).legends
    assert [text.get_text() for text in legend.get_texts()] == ["original"]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_one_epoch_is_a_dot(count: int) -> None:
    some = [run("relu", seed, accuracies=[60.0 + seed]) for seed in range(count)]
    (panel,) = draw_learning(experiment(*some)).axes
    dots = [line.get_ydata().tolist() for line in panel.lines if line.get_marker() == "o"]
    assert dots == [[59.5 + count / 2], *([[60.0], [61.0]] if count == 2 else [])]
    assert len(panel.collections) == (count == 3)
    (panel,) = draw_learning(experiment(run("relu"))).axes
    assert not [line for line in panel.lines if line.get_marker() == "o"]


LOST = run("relu", 3, accuracies=[40.0, 10.0], ended="diverged in epoch 2")


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_runs_that_diverged_are_counted_and_left_out_of_means() -> None:
    for found, mean in ((experiment(*runs(), LOST), [42, 73]), (experiment(LOST), [])):
        (panel,) = draw_learning(found).axes
        assert panel.get_title().endswith(f"\nrelu: 1 of {len(found.accuracies['relu'])} diverged")
        np.testing.assert_allclose(lines(panel)["relu"].get_ydata(), mean)


def test_what_a_run_reached_before_it_diverged_counts_as_long() -> None:
    figure = draw_learning(experiment(*runs(), LOST, epoch=1))
    (panel,) = figure.axes
    np.testing.assert_allclose(lines(panel)["relu"].get_ydata(), fmean([40, 44, 42, 40]))
    assert "diverged" not in panel.get_title()


def test_all_but_the_first_tenth_of_the_epochs_is_in_view() -> None:
    low = run("identity", accuracies=[1.0, 1.0, *[30.0] * 17, 41.0])
    high = run("affine(identity,relu)", accuracies=[2.0, 2.0, *[60.0] * 17, 90.0])
    for panel in draw_learning(experiment(low, high)).axes:
        bottom, top = panel.get_ylim()
        assert 2.0 < bottom < 30.0 < 90.0 < top <= 100.0


def test_one_legend_beneath_the_panels_names_every_line_once() -> None:
    rows = ("identity", "tanh", "convex(identity,relu)", "affine(identity,relu)", "convex(identity,tanh)")
    figure = draw_learning(experiment(*map(run, rows)))
    assert legend(figure) == ["convex", "affine", "identity", "tanh"]
    assert all(panel.get_legend() is None for panel in figure.axes)
    assert legend(draw_learning(experiment(*runs()))) == ["convex", "relu", "95 % interval"]


def test_fixed_activations_stand_with_the_hulls_that_contain_them() -> None:
    panels = arrange([*paper.ROWS, "gelu", "affine(identity,tanh,parametrization=free)"])
    assert {about: [row for row in rows if "(" not in row] for about, rows in panels.items()} == {
        "identity,relu": ["identity", "relu", "leaky_relu"],
        "identity,tanh": ["identity", "tanh"],
        "relu,tanh": ["relu", "tanh"],
        "identity,relu,tanh": ["identity", "relu", "tanh", "leaky_relu"],
        "identity,tanh,parametrization=free": ["identity", "tanh"],
        "fixed": ["gelu"],
    }
    assert all(f"{kind}({about})" in panels[about] for about in list(panels)[:4] for kind in ("convex", "affine"))


def test_a_row_looks_alike_in_all_panels() -> None:
    rows = ("convex(identity,relu)", "convex(relu,tanh)", "identity", "relu", "tanh")
    first, second = draw_learning(experiment(*map(run, rows))).axes
    assert lines(first)["relu"].get_color() == lines(second)["relu"].get_color()
    styles = [(line.get_color(), line.get_linestyle()) for line in lines(first).values()]
    assert len(set(styles)) == len(styles)


def test_dots_are_the_tables_means_beside_the_papers_values() -> None:
    found = experiment(*runs(), LOST, run("gelu"))
    figure = draw_final(found)
    names = {"relu": "relu\n(1 of 4 diverged)"}
    means = {names.get(row, row): cell.accuracy.mean for row, cell in found.cells.items()}
    assert dots(figure, "o") == pytest.approx(means)
    column = paper.Column("lenet5", "cifar10")
    assert dots(figure, "D") == {names.get(row, row): paper.accuracy(row, column) for row in REACHED}
    low, high = figure.axes[0].get_xlim()
    assert all(low < value < high for value in (*means.values(), *dots(figure, "D").values()))
    bottom, top = figure.axes[0].get_ylim()
    assert bottom == pytest.approx(len(found.cells) - 0.5)
    assert top == pytest.approx(-0.5)


def test_where_all_runs_diverged_a_cross_stands_in_place_of_the_dot() -> None:
    figure = draw_final(experiment(LOST, run("tanh")))
    assert dots(figure, "x") == {"relu\n(1 of 1 diverged)": 10.0}
    assert dots(figure, "o") == {"tanh": 60.0}
    assert "diverged" in legend(figure)


def test_non_default_settings_are_stated_beside_the_papers_values() -> None:
    default, unusual = run("relu"), run("relu")
    unusual = replace(unusual, spec=replace(unusual.spec, batch_size=7))
    titles = [draw_final(experiment(record)).axes[0].get_title() for record in (default, unusual)]
    assert "batch_size" not in titles[0]
    assert "batch_size=7" in titles[1]


def test_epochs_in_a_name_are_not_repeated_in_the_title() -> None:
    found = replace(experiment(run("relu", accuracies=[70.0, 90.0])), name="Net on images, 2 epochs")
    assert draw_final(found).get_suptitle().count("2 epochs") == 1


def test_the_reading_is_drawn_and_named() -> None:
    record = run("relu", accuracies=[70.0, 90.0, 80.0])
    record = replace(record, spec=replace(record.spec, val_size=9), val_accuracy=[3.0, 1.0, 2.0], val_loss=[1.0] * 3)
    for reading, value, short in (("chosen", 70.0, "chosen epoch"), ("best", 90.0, "not a result")):
        (found,) = experiments([record], reading=reading)
        figure = draw_final(found)
        assert dots(figure, "o") == {"relu": value}
        assert short in figure.get_suptitle()
        assert f"Reading {reading}" in figure.axes[0].get_title()


@pytest.mark.parametrize(("data", "said"), [("fashion-mnist", ["the paper"]), ("fashion-mnist-sample", [])])
def test_a_sample_is_not_compared_with_the_paper(data: str, said: list[str]) -> None:
    figure = draw_final(experiment(run("relu", column=("lenet5", data))))
    assert legend(figure) == ["the run", *said]


def test_two_seeds_are_drawn_as_runs_without_an_interval_that_would_fill_the_panel() -> None:
    found = experiment(*(record for record in runs() if record.spec.seed < 2))
    (panel,) = draw_learning(found).axes
    assert not panel.collections
    thin = sorted(line.get_ydata().tolist() for line in panel.lines if line.get_linewidth() < 1)
    assert thin == sorted(map(list, (REACHED[row][seed] for row in REACHED for seed in (0, 1))))
    figure = draw_final(found)
    assert legend(figure) == ["mean", "the paper", "a run"]
    assert not figure.axes[0].collections


def test_intervals_are_in_view_and_accuracies_end_at_a_hundred_percent() -> None:
    wide = [run("relu", seed, accuracies=[60.0, value]) for seed, value in enumerate((60.0, 60.0, 90.0))]
    narrow = [run("tanh", seed, accuracies=[60.0, value]) for seed, value in enumerate((69.0, 70.0, 71.0))]
    low = 70.0 - T_3 * stdev([60.0, 60.0, 90.0]) / np.sqrt(3)
    (panel,) = draw_learning(experiment(*wide, *narrow)).axes
    assert panel.get_ylim()[0] < low
    assert panel.get_ylim()[1] == 100.0
    (panel,) = draw_final(experiment(*wide, *narrow)).axes
    assert panel.get_xlim()[0] < low
    assert panel.get_xlim()[1] == 100.0


def test_another_metric_has_its_name_and_its_range() -> None:
    spec = {"network": "net", "data": "table", "settings": "lr=0.1"}
    some = [
        replace(r, spec=replace(r.spec, **spec), test_accuracy=[], metric="rmse", lower_is_better=True)
        for r in (run("relu", seed, accuracies=[60.0, 50.0]) for seed in range(2))
    ]
    found = experiment(*(replace(r, test_metric=[53_000.0, 52_000.0 + r.spec.seed]) for r in some))
    for figure, axis in ((draw_learning(found), "y"), (draw_final(found), "x")):
        (panel,) = figure.axes
        assert getattr(panel, f"get_{axis}label")() == "test rmse"
        low, high = getattr(panel, f"get_{axis}lim")()
        assert low < 52_000 < 52_001 < high


def test_long_titles_are_broken_and_not_cut() -> None:
    long = "affine(identity,relu,tanh,parametrization=free,init=relu,per=channel)"
    record = replace(run(long, channels=[[[0.2, 0.3, 0.5]]], paths=[[[0.2, 0.3, 0.5]]] * 3), ended="finished")
    found = replace(experiment(record), name="A network of a very long name on a data set, with many settings " * 3)
    with drawing():
        for figure in (draw_learning(found), draw_final(found), draw_activations(found)):
            figure.draw_without_rendering()
            (panel, *_), title = figure.axes, figure._suptitle
            for text in (title, panel.title, *panel.get_yticklabels()):
                box = text.get_window_extent()
                assert (box.x0 >= 0, box.x1 <= figure.bbox.x1, box.y1 <= figure.bbox.y1) == (True, True, True), text
