"""The table in a real browser: it sorts, shows differences, marks the best, and leads to the runs behind a cell."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from browsing import MINUS, NOTHING, column, wait_until
from report_records import RECORDS, make_records, write_report

from hullo.lab.analysis.experiments import experiments
from hullo.lab.spec.paper import COLUMNS, ROWS


def test_sorting_sorts_and_says_so(visit: Any, report: Path) -> None:
    page = visit(report)
    head = page.locator("th:has(> button.sort)")
    assert column(page, "tbody th") == list(ROWS)
    for header, cell in ((1, "td:nth-child(2)"), (2, "td:nth-child(3)")):
        button = head.nth(header).locator("button")
        button.focus()
        for key, order in (("Enter", "descending"), ("Space", "ascending")):
            page.keyboard.press(key)
            wait_until(page, f"document.querySelector('th[aria-sort={order}] :focus') !== null")
            numbers = [float(text.split()[0]) for text in column(page, f"tbody {cell}")]
            assert numbers == sorted(numbers, reverse=order == "descending")
            assert len(set(numbers)) > 3
    head.nth(0).locator("button").click()
    assert column(page, "tbody th") == list(ROWS)
    assert head.evaluate_all("all => all.filter((th) => th.ariaSort !== 'none').length") == 1


def test_a_column_sorts_those_without_a_value_to_the_end(visit: Any, report: Path) -> None:
    page = visit(report)
    page.locator("button.sort").nth(3).click()
    assert column(page, "tbody td:nth-child(4)")[-7:] == [NOTHING] * 7


def test_any_two_activations_are_compared_in_a_sentence(visit: Any, report: Path) -> None:
    page = visit(report)
    page.select_option("#pair-one", "tanh")
    page.select_option("#pair-two", "affine(identity,relu)")
    said = page.locator("[data-part=pair]").inner_text()
    gap = next(iter(experiments(RECORDS))).difference("affine(identity,relu)", "tanh")
    assert gap is not None
    assert f" by {abs(gap.mean):.2f} ± {gap.half:.2f} points on 3 common seeds (LeNet-5 on Fashion-MNIST, " in said
    assert said.startswith(
        "tanh and affine(identity,relu) differ" if gap.covers(0) else "affine(identity,relu) beats tanh"
    )
    page.select_option("#pair-two", "tanh")
    assert page.locator("#pair-one").input_value() == "affine(identity,relu)"
    page.select_option("#column", "resnet56/cifar10")
    assert "2 common seeds (ResNet-56 on CIFAR-10" in page.locator("[data-part=pair]").inner_text()


def test_the_better_of_two_is_the_one_with_the_smaller_loss(visit: Any, tmp_path: Path) -> None:
    reached = {("relu", 0): 0.5, ("relu", 1): 0.6, ("tanh", 0): 0.7, ("tanh", 1): 0.81}
    rows = [
        replace(
            record,
            spec=replace(record.spec, network="net", data="data", settings="lr=0.1"),
            metric="rmse",
            lower_is_better=True,
            test_accuracy=[],
            test_metric=[reached[record.spec.activation, record.spec.seed]],
        )
        for record in make_records([COLUMNS[0]], ["relu", "tanh"], seeds=2, epochs=1)
    ]
    page = visit(write_report(tmp_path, rows))
    assert page.locator("[data-part=pair]").inner_text().startswith("relu beats tanh by 0.205 ± 0.064 on 2")
    assert page.locator("#pair-one").input_value() == "relu"  # the best
    assert [page.locator(f"tr[data-line={row}] td strong").count() for row in ("relu", "tanh")] == [1, 0]
    page.evaluate("location.hash = '#training'")
    wait_until(page, "state.view === 'training'")
    assert column(page, "#training .readings th") == ["relu", "tanh"]


def test_three_seeds_have_an_interval_and_two_have_none(visit: Any, report: Path) -> None:
    assert visit(report).locator("g.dots line.interval[x1]").count() == len(ROWS)  # those of the first experiment


def test_a_comparison_is_shown_by_its_challenger_and_with_the_digits_that_matter(visit: Any, tmp_path: Path) -> None:
    seeds = {"own": 6, "gelu": 6, "silu": 1, "tanh": 2}
    start = {"own": 2.5561, "gelu": 2.5552, "silu": 2.5, "tanh": 52000.0}
    made = make_records([COLUMNS[0]], ["relu"], seeds=1, epochs=10)[0]
    rows = [
        replace(
            made,
            spec=replace(made.spec, network="net", data="data", activation=row, seed=seed, settings="lr=tuned"),
            metric="loss",
            lower_is_better=True,
            test_accuracy=[],
            test_metric=[9.0, *[start[row] + 0.0003 * seed ** (2 if row == "own" else 2.02)] * 9],
        )
        for row, count in seeds.items()
        for seed in range(count)
    ]
    page = visit(write_report(tmp_path, rows))
    (one,) = experiments(rows)
    gap = one.difference("own", "gelu")
    assert gap is not None
    assert page.locator("[data-part=pair]").inner_text().startswith(f"gelu beats original by {one.spell(gap)} on 6 ")
    shown = dict(zip(column(page, "tbody th"), column(page, "tbody td:nth-child(2)"), strict=True))
    for row, label in (("own", "original"), ("gelu", "gelu")):
        assert shown[label] == one.spell(one.cells[row].accuracy)
    assert shown["silu"] == f"{one.spell(one.cells['silu'].accuracy)}1 seed"
    assert shown["tanh"].endswith("2 seeds")
    assert page.locator("g.dots line.interval[x1]").count() == 2  # that of two seeds is not drawn
    assert page.locator("#table .dots .fine", has_text="hulls").count() == 0
    page.evaluate("location.hash = '#training'")
    wait_until(page, "state.view === 'training'")
    assert page.locator("#metric option:checked").inner_text() == "test loss"
    values = [float(text) for text in column(page, "#training .readings td")]
    assert len(values) == 4
    assert values == sorted(values)


def test_the_table_shows_differences_from_relu(visit: Any, report: Path) -> None:
    page = visit(report, "#table?show=difference")
    cells = dict(zip(ROWS, column(page, "tbody td:nth-child(2)"), strict=True))
    assert cells["relu"] == NOTHING
    assert re.fullmatch(rf"[+{MINUS}]\d\.\d\d ± \d\.\d\d", cells["tanh"])
    assert column(page, "tbody td:nth-child(3)")[2] == "+1.27"


def test_bold_is_the_best_and_nothing_below_the_reference(visit: Any, tmp_path: Path) -> None:
    runs = make_records([COLUMNS[0]], ["relu", "affine(identity,relu)"], seeds=1, epochs=2)
    worse = [replace(record, test_accuracy=[20.0, 20.0]) for record in runs[1:]]
    page = visit(write_report(tmp_path, [runs[0], *worse]))
    assert column(page, "tbody strong") == [f"{runs[0].accuracy:.2f}"]  # the paper's best is not among these rows
    page.select_option("#show", "difference")
    assert column(page, "tbody td:nth-child(3)") == ["", "+1.77"]
    assert column(page, "tbody strong") == []


def test_activation_of_which_all_runs_diverged_is_not_bold(visit: Any, tmp_path: Path) -> None:
    runs = make_records([COLUMNS[0]], ["relu", "tanh"], seeds=1, epochs=2)
    lost = replace(runs[1], test_accuracy=[99.0, 99.0], ended="diverged in epoch 1")
    page = visit(write_report(tmp_path, [runs[0], lost]))
    assert column(page, "tbody strong") == [f"{runs[0].accuracy:.2f}"]
    page.select_option("#show", "difference")
    assert column(page, "tbody strong") == []


def test_columns_with_other_rows_have_a_table_of_their_own(visit: Any, tmp_path: Path) -> None:
    own = ["affine(identity,relu,tanh)", "affine(identity,relu,tanh,parametrization=free)"]
    few, all_rows = make_records(COLUMNS[:1], ROWS[3:5], 1, 2), make_records(COLUMNS[2:3], ROWS, 1, 2)
    page = visit(write_report(tmp_path, [*few, *make_records(COLUMNS[1:2], own, 1, 2), *all_rows]))
    tables = page.locator("table.results")
    assert [column(table, "thead a") for table in tables.all()] == [
        ["LeNet-5 on Fashion-MNIST", "LeNet-5 on CIFAR-10"],
        ["KerasNet on Fashion-MNIST"],
    ]
    assert [column(table, "tbody th") for table in tables.all()] == [list(ROWS), own]
    assert NOTHING not in column(tables.nth(1), "tbody td:nth-child(2)")
    tables.nth(1).locator("button.sort").nth(0).click()  # names the other way round, in both
    wait_until(page, "state.sort === '-activation'")
    assert [column(table, "tbody th") for table in tables.all()] == [list(ROWS)[::-1], own[::-1]]
    tables.nth(1).locator("button.sort").nth(1).click()  # by a column that one of them has
    wait_until(page, "state.sort.startsWith('-ours')")
    assert column(tables.nth(0), "tbody th") == list(ROWS)
    assert page.locator(":focus").inner_text() == "hullo"
    assert tables.nth(1).locator("th[aria-sort=descending] :focus").count() == 1
    assert (
        len(set(page.evaluate("[...document.querySelectorAll('[id]')].map(({id}) => id)")))
        == page.locator("[id]").count()
    )


def test_a_remark_on_several_columns_is_made_once(visit: Any, tmp_path: Path) -> None:
    alike = [replace(r, spec=replace(r.spec, batch_size=64)) for r in make_records(COLUMNS[:3], ["relu"], 1, 2)]
    assert column(visit(write_report(tmp_path / "all", alike)), ".remarks li") == [
        "Non-default settings: batch_size=64."
    ]
    other = [*alike[:2], *make_records(COLUMNS[2:3], ["relu"], 1, 2)]
    names = "LeNet-5 on Fashion-MNIST; KerasNet on Fashion-MNIST"
    page = visit(write_report(tmp_path / "some", other))
    assert column(page, ".remarks li") == [f"{names}: Non-default settings: batch_size=64."]


def test_a_cell_leads_to_its_runs_and_these_to_all_that_is_known(visit: Any, report: Path) -> None:
    page = visit(report)
    page.locator("tbody tr", has_text="convex(relu,tanh)").locator("td a").first.click()
    runs = [r for r in RECORDS if r.spec.activation == "convex(relu,tanh)" and r.spec.network == "lenet5"]
    page.locator("#runs [data-run]").first.wait_for()
    assert page.locator("#runs [data-run]").count() == len(runs)
    page.locator("#runs [data-run] summary").nth(1).click()
    facts = page.locator("#runs [data-run][open] dl").inner_text()
    for text in ("finished", "NVIDIA H200", "2.13.0", "0123456789ab", "4,321 s for 60 networks", runs[1].spec.id):
        assert text in facts
    for link in page.locator("#runs [data-run][open] a.more").all():
        assert f"&row=convex%28relu%2Ctanh%29&seed={runs[1].spec.seed}&" in link.get_attribute("href")
    page.go_back()
    page.locator("#table").wait_for()


def test_a_reading_is_chosen_named_and_never_mixed_with_another(visit: Any, tmp_path: Path) -> None:
    first, second = make_records([COLUMNS[3], COLUMNS[0]], ["relu"], seeds=1, epochs=2)
    curves = {"test_accuracy": [81.25, 60.5], "val_accuracy": [9.0, 1.0], "val_loss": [1.0, 1.0]}
    chosen = replace(first, spec=replace(first.spec, val_size=500), **curves)
    page = visit(write_report(tmp_path, [chosen, second]))
    last = f"{second.test_accuracy[-1]:.2f}"
    cells = "tbody td:not(.paper)"
    assert column(page, cells) == ["81.25", last]
    assert [text.rpartition(", ")[2] for text in column(page, "thead small")] == ["chosen epoch", "last epoch"]
    page.select_option("#reading", "chosen")
    assert column(page, cells) == ["81.25", NOTHING]
    page.select_option("#reading", "last")
    assert column(page, cells) == ["60.50", last]
    page.select_option("#reading", "best")
    assert all("not a result" in text for text in column(page, "thead small"))
    assert "explains the paper" in page.locator("#table .lead").last.inner_text()
    page.locator("tbody td a").first.click()
    page.locator("#runs .group > summary").first.wait_for()
    assert [text.endswith("81.25 %") for text in column(page, "#runs .group > summary")] == [True]
    assert "81.25 %" in page.locator("#runs [data-run] summary").inner_text()
    assert "explains the paper" in page.locator("#runs .lead").inner_text()
    page.locator("#runs [data-run] summary").click()
    assert "81.25 %, epoch 1" in page.locator("#runs dl").inner_text()
