"""The first screen in a real browser: the finding, a dot plot of the table, studies on request; downloads."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path
from statistics import stdev
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from browsing import MINUS, column, wait_until
from report_records import RECORDS, make_records, write_report

import hullo
from hullo.lab.analysis.experiments import experiments
from hullo.lab.analysis.power import seeds_needed
from hullo.lab.analysis.statistics import t_quantile
from hullo.lab.spec.paper import COLUMNS, ROWS

HULL = "affine(identity,relu,tanh)"


def test_the_first_screen_has_the_finding_and_a_dot_plot_of_the_records(visit: Any, report: Path) -> None:
    page = visit(report)
    assert column(page, "#table-title") == [page.evaluate("DOCUMENT.finding")]
    assert page.locator("#table [data-part=dots] svg").bounding_box()["y"] < 400
    first, *_ = experiments(RECORDS)
    panel = page.locator("g.dots").first
    drawn = {
        group.get_attribute("data-line"): float(group.locator("circle.mean").get_attribute("cx"))
        for group in panel.locator("g[data-line]").all()
    }
    reached = {row: cell.accuracy.mean for row, cell in first.cells.items()}
    assert drawn.keys() == reached.keys() == {*ROWS}
    start, least = min(drawn.values()), min(reached.values())
    scale = (max(drawn.values()) - start) / (max(reached.values()) - least)
    assert scale > 10
    for row, x in drawn.items():
        assert x - start == pytest.approx((reached[row] - least) * scale, abs=0.1)
    ends = {
        row: [float(panel.locator(f"g[data-line='{row}'] line.interval").get_attribute(x)) for x in ("x1", "x2")]
        for row in reached
    }
    left, right = min(low for low, _ in ends.values()), max(high for _, high in ends.values())
    for row, (low, high) in ends.items():  # perhaps clipped by the panel
        half = scale * first.cells[row].accuracy.half
        assert low == pytest.approx(max(left, drawn[row] - half), abs=0.1)
        assert high == pytest.approx(min(right, drawn[row] + half), abs=0.1)


def test_above_each_plot_is_what_the_best_hull_gains_and_whether_that_is_decided(visit: Any, tmp_path: Path) -> None:
    reached = {"relu": [80.0, 80.0, 80.0, 80.0], "affine(identity,relu)": [82.0, 82.1, 82.2, 82.1]}
    unsure = {"relu": [80.0, 80.0, 80.0, 80.0], "affine(identity,relu)": [80.5, 79.0, 79.5, 80.0]}
    records = [
        replace(record, test_accuracy=[scores[record.spec.activation][record.spec.seed]])
        for column, scores in ((COLUMNS[0], reached), (COLUMNS[1], unsure))
        for record in make_records([column], [*scores], seeds=4, epochs=1)
    ]
    page = visit(write_report(tmp_path, records))
    needed = seeds_needed(-0.25, stdev([0.5, -1.0, -0.5, 0.0]))
    half = t_quantile(3) * stdev([0.5, -1.0, -0.5, 0.0]) / 2
    assert column_texts(page) == [
        f"hulls +2.10 ± {t_quantile(3) * stdev([2.0, 2.1, 2.2, 2.1]) / 2:.2f}",
        f"hulls {MINUS}0.25 ± {half:.2f}",
        f"undecided: {needed} seeds",
    ]


def column_texts(page: Any) -> list[str]:
    return [text for text in column(page, "#table .dots .fine") if text.startswith(("hulls", "undecided"))]


def test_all_runs_of_two_similar_activations_are_in_the_dot_plot(visit: Any, tmp_path: Path) -> None:
    accuracy = {"relu": (64.0, 78.0, 82.0), "tanh": (69.0, 73.0, 81.0)}
    records = [
        replace(record, test_accuracy=[accuracy[record.spec.activation][record.spec.seed]] * 3)
        for record in make_records(COLUMNS[:1], tuple(accuracy), seeds=3, epochs=3)
    ]
    page = visit(write_report(tmp_path, records))
    drawn = [float(run.get_attribute("cx")) for run in page.locator("g.dots circle.run[cx]").all()]
    values = [value for row in accuracy.values() for value in row]
    scale = (drawn[2] - drawn[0]) / (values[2] - values[0])
    assert drawn == pytest.approx([drawn[0] + (value - values[0]) * scale for value in values], abs=0.1)


def test_an_activation_far_below_the_others_does_not_stretch_the_axis(visit: Any, tmp_path: Path) -> None:
    below = {"identity": 41.0, "tanh": 75.2, "convex(identity,tanh)": 79.0, "affine(identity,tanh)": 80.1}
    accuracy = dict.fromkeys(ROWS, 84.5) | below
    records = [
        replace(record, test_accuracy=[accuracy[record.spec.activation] + 0.1 * record.spec.seed] * 3)
        for record in make_records(COLUMNS[4:5], tuple(accuracy), seeds=3, epochs=3)
    ]
    page = visit(write_report(tmp_path, records))
    assert page.locator("g.dots g[data-line='identity'] circle").count() == 0
    assert "41.10, paper 42.60" in page.locator("g.dots g[data-line='identity']").text_content()
    assert page.locator("g.dots g[data-line='relu'] circle.run").count() == 3


def test_hover_gives_values_and_makes_a_row_stand_out(visit: Any, report: Path) -> None:
    page = visit(report)
    page.locator(f"g.dots g[data-line='{HULL}'] circle.mean").first.hover()
    cell = next(iter(experiments(RECORDS))).cells[HULL]
    tip = page.locator("#tip").inner_text()
    assert tip.startswith(HULL)
    assert f"{cell.accuracy.mean:.2f} ± {cell.accuracy.half:.2f}" in tip
    assert f"{cell.published:.2f}" in tip
    lit = "[...document.querySelectorAll('.plot .lit')].map((one) => one.dataset.line)"
    assert set(page.evaluate(lit)) == {HULL}
    page.mouse.move(1, 1)
    assert page.evaluate(lit) == []
    assert page.locator("#tip").is_hidden()
    page.evaluate("location.hash = '#training'")
    wait_until(page, "state.view === 'training'")
    page.locator("#training .chart > svg").hover(position={"x": 200, "y": 200})
    assert "epoch" in page.locator("#tip strong").inner_text()
    assert page.locator("#tip div").count() == 4


def test_studies_are_behind_a_switch(visit: Any, tmp_path: Path) -> None:
    main = make_records([COLUMNS[3]], ["relu", HULL], seeds=2, epochs=2)
    other = [replace(r, spec=replace(r.spec, batch_size=128)) for r in main[:2]]
    page = visit(write_report(tmp_path, [*main, *other]))
    assert column(page, "thead a") == ["KerasNet on CIFAR-10"]
    page.get_by_role("switch", name="1 study").check()
    wait_until(page, "state.studies === 'all'")
    assert column(page, "thead a") == ["KerasNet on CIFAR-10"] * 2
    assert column(page, "thead .setting") == ["batch size 128"]
    assert page.evaluate("location.hash") == "#table?studies=all"


def test_a_users_own_two_runs_make_a_page_without_the_paper(visit: Any, tmp_path: Path) -> None:
    made = make_records([COLUMNS[0]], ["relu", HULL], seeds=1, epochs=2)
    own = {"network": "my_network:Net@0123abcd", "data": "images@0123abcd"}
    page = visit(write_report(tmp_path, [replace(r, spec=replace(r.spec, **own)) for r in made]))
    assert column(page, "thead a") == ["Net on images"]
    assert "paper" not in page.locator("#table table").inner_text()
    assert page.locator("#table path.paper").count() == page.locator("#studies").count() == 0
    assert "one seed" in page.locator("#table-title").inner_text()


def test_files_and_code_hold_what_is_shown(visit: Any, report: Path) -> None:
    page = visit(report, permissions=["clipboard-read", "clipboard-write"])

    def download(name: str) -> str:
        with page.expect_download() as found:
            page.get_by_role("button", name=name).click()
        return Path(found.value.path()).read_text("utf-8")

    rows = list(csv.DictReader(io.StringIO(download("Download results as CSV"))))
    cells = {(e.name, row): cell for e in experiments(RECORDS) for row, cell in e.cells.items()}
    assert {(row["experiment"], row["activation"]) for row in rows} == cells.keys()
    for row in rows:
        cell = cells[row["experiment"], row["activation"]]
        assert [float(row["accuracy"]), float(row["half_interval"])] == pytest.approx(
            [cell.accuracy.mean, cell.accuracy.half], rel=1e-4
        )
    odd = ['a"b', "c,d", "e\nf", '"', "plain"]
    assert list(csv.reader(io.StringIO(page.evaluate("csvText", [odd])))) == [odd]
    assert page.evaluate("csvText", [['a"b', None]]) == '"a""b",\n'
    drawn = ElementTree.fromstring(download("Download dot plot as SVG"))
    assert {circle.get("fill") for circle in drawn.iter("{http://www.w3.org/2000/svg}circle")} > {"rgb(0, 114, 178)"}
    looks = ("font-weight", "font-size", "font-family")
    shown = page.locator("#table [data-part=dots] svg text").evaluate_all(
        "(texts, looks) => texts.map((text) => looks.map((name) => getComputedStyle(text).getPropertyValue(name)))",
        looks,
    )
    assert len({weight for weight, *_ in shown}) > 1
    assert [[text.get(name) for name in looks] for text in drawn.iter("{http://www.w3.org/2000/svg}text")] == shown
    page.evaluate(f"location.hash = '#curves?row={HULL}&epoch=5'")
    page.get_by_role("button", name="Copy the code of conv 2, 50 channels").click()
    page.get_by_text("Copied").wait_for()
    hull = eval(page.evaluate("navigator.clipboard.readText()"), {"hullo": hullo})
    record = next(r for r in RECORDS if r.spec.activation == HULL)
    assert isinstance(hull, hullo.AffineHull)
    torch.testing.assert_close(
        hull.coefficients.detach().flatten(), torch.tensor(record.coefficients[5][1]), rtol=0, atol=3e-5
    )
    third = "{kind: 'affine', text: '', coefficients: [0.33333, 0.33333, 0.33333], bases: ['identity', 'relu', 'tanh']}"
    assert "init=[0.33334, 0.33333, 0.33333]" in page.evaluate(f"codeLine({third})")  # they sum to one


def test_nothing_shows_through_the_names_when_a_table_scrolls_sideways(visit: Any, tmp_path: Path) -> None:
    page = visit(write_report(tmp_path, make_records(COLUMNS[:5], ROWS, seeds=2, epochs=1)), width=800)
    box = page.locator(".scroll").first
    box.evaluate("box => { box.scrollIntoView({block: 'center'}); box.scrollLeft = 70; }")
    assert box.evaluate("box => box.scrollLeft") == 70
    covered = """box => [...box.querySelectorAll("tr > :first-child")].filter((cell) => {
      const {left, top, height} = cell.getBoundingClientRect();
      const stays = Math.abs(left - box.getBoundingClientRect().left) < 1;
      return !stays || !cell.contains(document.elementFromPoint(left + 40, top + height / 2));
    }).length"""
    assert box.evaluate(covered) == 0
    ground = (
        "box => new Set([...box.querySelectorAll('tr > :first-child')].map((c) => getComputedStyle(c).backgroundColor))"
    )
    assert box.evaluate(f"box => [...({ground})(box)]") == ["rgb(255, 255, 255)"]


def test_rows_that_differ_in_settings_have_colors_of_their_own(visit: Any, tmp_path: Path) -> None:
    options = ["", "init=relu", "per=channel", "parametrization=free", "init=relu,per=channel"]
    bases = ("identity,relu", "identity,relu,tanh", "relu,tanh")
    rows = [
        f"{kind}({','.join(filter(None, (b, o)))})" for kind in ("convex", "affine") for b in bases for o in options
    ]
    rows = [*ROWS[:4], *(row for row in rows if "free" not in row or row.startswith("affine"))]
    page = visit(write_report(tmp_path, make_records(COLUMNS[:1], rows, seeds=1, epochs=1)), "#training")
    looks = page.evaluate(
        "currentColumn().rows.map((row) => { const look = lookOf(row); return `${look.style.stroke} ${row.kind}`; })"
    )
    assert len(set(looks)) == len(looks) == len(rows)


def test_a_base_added_in_the_playground_starts_with_the_number_0(visit: Any, report: Path) -> None:
    page = visit(report, "#playground?base=identity:1")
    page.select_option("#add", "tanh")
    assert page.get_by_label("coefficient of tanh, as a number").input_value() == "0"
