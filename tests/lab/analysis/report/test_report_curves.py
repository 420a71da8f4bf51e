"""Curves in a real browser, of functions, coefficients and training: each is what the records say, at any epoch."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from browsing import column, commit, go_through_views, set_range, wait_until
from report_records import RECORDS, make_records, write_report

import hullo
from hullo.lab.analysis.experiments import experiments
from hullo.lab.spec.paper import COLUMNS, ROWS


def drawn_curve(page: Any, run: str, layer: int) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Return a path's points in the units of its axes, and what a pixel is worth on the second."""
    plot = page.locator("#curves .plot").nth(layer)
    path = plot.locator(f"path[data-run='{run}']:not(.faint)").get_attribute("d")
    points = torch.tensor(
        [[float(n) for n in pair.split()] for pair in re.split("[ML]", path)[1:]], dtype=torch.float64
    )
    (x0, x1), (y0, y1) = (map(float, plot.get_attribute(f"data-{axis}").split(",")) for axis in "xy")
    width, height = (float(plot.get_attribute(name)) for name in ("width", "height"))
    pixel = (y1 - y0) / height
    return x0 + points[:, 0] / width * (x1 - x0), y1 - points[:, 1] * pixel, pixel


def test_the_slider_moves_curves_to_what_the_library_computes(visit: Any, report: Path) -> None:
    page = visit(report, "#curves")
    record = next(r for r in RECORDS if r.spec.activation == "affine(identity,relu,tanh)")
    seen = []
    for epoch in (12, 0, 5):
        set_range(page, "#epoch", epoch)
        commit(page)
        for layer, coefficients in enumerate(record.coefficients[epoch]):
            x, y, pixel = drawn_curve(page, record.spec.id, layer)
            expected = hullo.combine(x, torch.tensor(coefficients, dtype=torch.float64), record.bases)
            torch.testing.assert_close(y, expected, rtol=0, atol=0.03 * pixel + 1e-4)
            assert len(x) > 100
        seen.append(y)
    assert (seen[0] - seen[1]).abs().max() > 0.05


def test_channels_are_faint_lines_after_the_last_epoch_alone(visit: Any, tmp_path: Path) -> None:
    (record,) = make_records([COLUMNS[0]], ["affine(identity,relu,per=channel)"], seeds=1, epochs=3)
    channels = [[[slope, 1 - slope] for slope in (0.1, 0.5, 0.9)] for _ in record.channels]
    page = visit(write_report(tmp_path, [replace(record, channels=channels)]), "#curves")
    commit(page)
    lines = page.locator("#curves .plot").first.locator("path.faint").all()
    assert len({line.get_attribute("d") for line in lines}) == len(lines) == 3
    set_range(page, "#epoch", 2)
    commit(page)
    assert page.locator("#curves path.faint").count() == 0
    assert page.locator("#curves .plot path").count() == len(channels)


def test_while_playing_curves_are_between_epochs(visit: Any, report: Path) -> None:
    page = visit(report, "#curves?epoch=12")
    page.evaluate("motion.shown = 4.25; updateCurves()")
    record = next(r for r in RECORDS if r.spec.activation == "affine(identity,relu,tanh)")
    before, after = (torch.tensor(record.coefficients[epoch][0], dtype=torch.float64) for epoch in (4, 5))
    x, y, pixel = drawn_curve(page, record.spec.id, layer=0)
    expected = hullo.combine(x, 0.75 * before + 0.25 * after, record.bases)
    torch.testing.assert_close(y, expected, rtol=0, atol=0.03 * pixel + 1e-4)


def test_playing_goes_through_the_epochs_and_stops_at_the_end(visit: Any, report: Path) -> None:
    page = visit(report, "#curves?epoch=10")
    said = "['play', 'epoch-text'].map((id) => document.getElementById(id).textContent)"
    page.evaluate(f"window.steps = []; const before = update; update = () => {{ before(); steps.push({said}); }}; null")
    page.locator("#play").focus()
    page.keyboard.press("Enter")
    wait_until(page, "steps.length > 0")
    commit(page)
    steps = page.evaluate("steps")
    assert steps[0][0] == "Pause"
    assert ["Pause", "11 of 12"] in steps
    assert steps[-1] == ["Play", "12 of 12"]


def test_a_deep_network_offers_stretches_of_its_layers(visit: Any, report: Path) -> None:
    page = visit(report, "#curves?column=resnet56/cifar10")
    titles = "#curves figcaption > span:first-child"
    names = ["conv 1, 16 channels", "block 14, conv 1, 32 channels", "block 27, conv 2, 64 channels"]
    assert column(page, titles)[::4] == names
    page.select_option("#layers", label="19 to 27")
    assert column(page, titles) == page.evaluate("currentColumn().layers.slice(18, 27)")


def test_learning_curves_show_chosen_rows_and_seeds(visit: Any, report: Path) -> None:
    page = visit(report, "#training")
    cells = next(iter(experiments(RECORDS))).cells
    ranked = sorted(cells, key=lambda row: -cells[row].accuracy.mean)
    best = [next(row for row in ranked if ("(" in row) == is_hull) for is_hull in (True, False)]
    few = dict.fromkeys([*best, "relu", *ranked])
    assert set(page.evaluate("chosenRows().map(({name}) => name)")) == {*list(few)[:4]}
    assert page.locator("#training .plot path:not(.faint)").count() == 4
    page.get_by_role("group", name="Activations").get_by_role("button", name="all").click()
    assert page.locator("#training .plot path:not(.faint)").count() == len(ROWS)
    page.get_by_role("group", name="Activations").get_by_role("button", name="none").click()
    assert page.locator("#training .plot path").count() == 0
    page.get_by_role("checkbox", name="leaky_relu").check()
    assert page.locator("#training .plot path.faint").count() == 3
    page.get_by_role("group", name="Seeds").get_by_role("checkbox", name="1").uncheck()
    assert page.locator("#training .plot path.faint").count() == 2
    chosen = [
        r for r in RECORDS if (r.spec.activation, r.spec.network) == ("leaky_relu", "lenet5") and r.spec.seed != 1
    ]
    page.locator("#epoch").focus()
    page.keyboard.press("ArrowLeft")
    mean = sum(r.test_accuracy[10] for r in chosen) / 2
    assert float(column(page, "#training .readings td")[0]) == pytest.approx(mean, abs=0.006)


def test_pressing_in_learning_curves_chooses_the_epoch_and_hovering_the_nearest_curve(visit: Any, report: Path) -> None:
    page = visit(report, "#training?row=identity&row=tanh&metric=train_loss")
    commit(page)
    chart, box = (page.locator(f"#training {part}").bounding_box() for part in (".chart > svg", ".plot"))
    for share, epoch in ((0.0, 1), (0.5, 6), (1.0, 12)):  # of 12 epochs; 6.5 is rounded by the pixel
        page.mouse.move(
            box["x"] + share * (box["width"] - 2) + 1 - 4 * (share == 0.5), chart["y"] + chart["height"] / 2
        )
        page.mouse.down()
        page.mouse.up()
        wait_until(page, f"currentEpoch() === {epoch}")
    losses = [float(text) for text in column(page, "#training .readings td")]
    assert losses == sorted(losses)  # the best first
    page.select_option("#metric", "test_accuracy")
    for row in ("identity", "tanh"):
        ends = page.locator(f"#training .plot path[data-line={row}]:not(.faint)").evaluate(
            "path => { const {x, y} = path.getPointAtLength(path.getTotalLength()); const at = path.getScreenCTM();"
            " return [x * at.a + at.e, y * at.d + at.f]; }"
        )
        page.mouse.move(*ends)
        assert page.locator("#tip .nearest span").first.inner_text() == row


def test_paths_are_in_the_plane_for_three_bases_and_over_epochs_for_two(visit: Any, report: Path) -> None:
    page = visit(report, "#paths?row=convex(identity,relu,tanh)&row=affine(relu,tanh)&epoch=7")
    plane, over_epochs = page.locator("#paths figure").all()
    assert column(plane, "text.corner") == ["identity", "relu", "tanh"]
    assert plane.locator("circle").count() == over_epochs.locator("circle").count() == 3
    record = next(r for r in RECORDS if r.spec.activation == "convex(identity,relu,tanh)")
    corners = [tuple(map(float, pair.split(","))) for pair in plane.locator("polygon").get_attribute("points").split()]
    for layer, circle in zip(record.coefficients[7], plane.locator("circle").all(), strict=True):
        expected = [sum(c * corner[axis] for c, corner in zip(layer, corners, strict=True)) for axis in (0, 1)]
        assert [float(circle.get_attribute(name)) for name in ("cx", "cy")] == pytest.approx(expected, abs=0.01)


def test_a_run_that_diverged_is_drawn_as_far_as_it_went(visit: Any, tmp_path: Path) -> None:
    record = make_records([COLUMNS[0]], ["affine(identity,relu,tanh)"], seeds=1, epochs=4)[0]
    lost: list[list[float | None]] = [[None] * 3] * 3
    broken = replace(
        record,
        ended="diverged in epoch 3",
        coefficients=[*record.coefficients[:3], lost, lost],
        train_loss=[1.0, 2.0, None, None],
        test_loss=[1.0, 1e30, None, None],
    )
    page = visit(write_report(tmp_path, [broken]))
    assert "1 diverged" in page.locator("tbody td").first.inner_text()
    for epoch, drawn in ((2, True), (3, False)):
        for _ in go_through_views(page, f"?epoch={epoch}&metric=test_loss"):
            commit(page)
            assert "NaN" not in page.locator("main").inner_html()
        page.evaluate(f"location.hash = '#curves?epoch={epoch}'")
        commit(page)
        assert page.locator("#curves .plot path[d^=M]").count() == (3 if drawn else 0)
        assert ("diverged in epoch 3" in page.locator("#curves [data-part=remark]").inner_text()) == (not drawn)
        page.evaluate(f"location.hash = '#paths?epoch={epoch}'")
        commit(page)
        assert page.locator("#paths circle").count() == (3 if drawn else 0)
        assert ("diverged in epoch 3" in page.locator("#paths [data-part=remark]").inner_text()) == (not drawn)


def test_an_accuracy_that_falls_late_stays_in_view(visit: Any, tmp_path: Path) -> None:
    made = make_records([COLUMNS[0]], ["relu", "tanh"], seeds=1, epochs=40)
    falls = [10.0, 11.0, *[80.0] * 35, 60.0, 40.0, 20.0]
    page = visit(write_report(tmp_path, [replace(made[0], test_accuracy=falls), made[1]]), "#training")
    low, _ = map(float, page.locator("#training svg.plot").get_attribute("data-y").split(","))
    assert 11 < low <= 20


def test_a_run_that_diverged_ends_with_a_cross_and_is_in_no_mean(visit: Any, tmp_path: Path) -> None:
    runs = make_records([COLUMNS[0]], ["relu", "tanh"], seeds=2, epochs=4)
    broken = [replace(runs[0], ended="diverged in epoch 3"), replace(runs[3], ended="diverged in epoch 2")]
    page = visit(write_report(tmp_path, [broken[0], runs[1], broken[1]]), "#training?epoch=4")
    commit(page)
    crosses = page.locator("#training .lost").evaluate_all("all => all.map((one) => one.dataset.run)")
    assert crosses == [record.spec.id for record in broken]
    read = dict(zip(column(page, "#training .readings th"), column(page, "#training .readings td"), strict=True))
    assert read == {"relu": f"{runs[1].test_accuracy[3]:.2f}", "tanh": "diverged"}
    mean = page.locator("#training .plot .curve[data-line=relu]:not(.faint)").get_attribute("d")
    assert mean == page.locator("#training .faint").nth(1).get_attribute("d")
    first = page.locator("#training .faint").first.get_attribute("d")  # ends where its cross is
    last = [float(number) for number in re.split("[ML]", first)[-1].split()]
    cross = re.match(r"M(\S+) (\S+)l", page.locator("#training .lost").first.get_attribute("d"))
    assert [float(number) + 4 for number in cross.groups()] == pytest.approx(last, abs=0.1)
