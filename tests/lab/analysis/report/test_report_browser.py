"""The page in a real browser: every view opens, an address reopens what was chosen, and no text does harm."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from browsing import column, commit, go_through_views, set_range, wait_until
from report_records import make_records, write_report

from hullo.lab.analysis.report import write_page
from hullo.lab.spec.paper import COLUMNS

HOSTILE = "<img src=x onerror=alert(1)></script><script>alert(2)</script>"


def test_every_view_opens(visit: Any, report: Path) -> None:
    page = visit(report)
    for view in go_through_views(page):
        assert page.locator("main > section:visible").count() == 1
        assert page.locator(f"#{view} h2").is_visible()
        assert page.locator("#views [aria-current=page]").get_attribute("data-view") == view


@pytest.mark.parametrize(
    "fragment",
    [
        "#table?show=difference&sort=-paper+lenet5%2Ffashion-mnist",
        "#curves?column=resnet56%2Fcifar10&row=affine%28identity%2Crelu%29&seed=1&epoch=5&layers=10",
        "#paths?row=convex%28identity%2Crelu%2Ctanh%29&epoch=3",
        "#training?row=relu&seed=0&seed=2&epoch=4&metric=train_loss",
        "#playground?base=tanh%3A-0.5&base=asinh%3A1.5",
    ],
)
def test_an_address_reopens_its_view(visit: Any, report: Path, fragment: str) -> None:
    page = visit(report, fragment)
    commit(page)
    assert page.evaluate("location.hash") == fragment
    assert page.evaluate("address({})") == fragment


def test_what_a_person_chose_is_in_the_address(visit: Any, report: Path) -> None:
    page = visit(report)
    page.get_by_role("link", name="Curves", exact=True).click()
    wait_until(page, "state.view === 'curves'")
    page.select_option("#column", "resnet56/cifar10")
    page.get_by_role("checkbox", name="convex(identity,relu,tanh)").uncheck()
    page.get_by_role("group", name="Seeds").get_by_role("checkbox", name="1").check()
    page.select_option("#layers", "46")
    set_range(page, "#epoch", 8)
    commit(page)
    drawn = "[...document.querySelectorAll('#curves .plot path')].map((path) => path.getAttribute('d'))"
    again = visit(report, page.evaluate("location.hash"))
    commit(again)
    assert again.evaluate(drawn) == page.evaluate(drawn)
    assert len(page.evaluate(drawn)) == 9 * 2 * 3


def test_an_address_with_nonsense_shows_what_it_can(visit: Any, report: Path) -> None:
    for fragment in (
        "#nowhere",
        "#curves?column=x&row=y&seed=z&epoch=w&layers=v",
        "#playground?base=nope:1&base=relu:x",
    ):
        page = visit(report, fragment)
        assert page.locator("main > section:visible").count() == 1


def test_hostile_text_is_text(visit: Any, tmp_path: Path) -> None:
    record = make_records([COLUMNS[0]], ["affine(identity,tanh)"], seeds=1, epochs=2)[0]
    environment = replace(record.environment, device=HOSTILE, commit=HOSTILE)
    page = visit(write_report(tmp_path, [replace(record, environment=environment)]))
    dialogs: list[Any] = []
    page.on("dialog", lambda dialog: dialogs.append(dialog.message))
    for view in go_through_views(page):
        assert page.locator("img").count() == 0
        if view == "runs":
            page.locator("[data-run] summary").click()
            assert page.locator("dd", has_text=HOSTILE).count() > 0
    assert dialogs == []


def test_runs_under_way_are_noted_and_without_a_finished_one_there_is_the_playground(
    visit: Any, tmp_path: Path
) -> None:
    document = {"hullo": "0", "scale": 1, "waiting": [("lenet5/cifar10", 7)], "settings": [], "rows": [], "columns": []}
    write_page(document, tmp_path / "page.html")
    page = visit(tmp_path / "page.html")
    assert "lenet5/cifar10: 7 runs in progress" in page.locator(".note").inner_text()
    assert column(page, "#views a") == ["Playground"]
    assert page.locator("#playground .plot").count() == 2
