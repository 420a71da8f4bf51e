"""The page in a real browser can be read on a phone and in either theme, and worked by keyboard and by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from browsing import go_through_views
from report_records import make_records, write_report

from hullo.lab.spec.paper import COLUMNS


def test_a_phone_needs_no_sideways_scrolling(visit: Any, report: Path) -> None:
    page = visit(report, width=375)
    for view in go_through_views(page, "?column=resnet56/cifar10"):
        assert page.evaluate("document.documentElement.scrollWidth") <= 375, view
        if view == "table":
            assert page.evaluate("(box => box.scrollWidth - box.clientWidth)(document.querySelector('.scroll'))") <= 0


def test_long_names_do_not_widen_the_page(visit: Any, tmp_path: Path) -> None:
    rows = ["relu", "affine(identity,relu,tanh,parametrization=free,init=relu,per=channel)"]
    short = make_records(COLUMNS[:1], rows, seeds=1, epochs=2)
    held_out = [replace(r, val_loss=r.test_loss, val_accuracy=r.test_accuracy) for r in short]
    long = [replace(r, spec=replace(r.spec, val_size=5000, coefficient_lr_scale=10.0)) for r in held_out]
    page = visit(write_report(tmp_path, [*short, *long]), width=375)
    name = page.evaluate("DOCUMENT.columns[1].name")
    assert name == "lenet5/fashion-mnist coefficient_lr_scale=10.0 val_size=5000"
    for view in go_through_views(page, f"?column={name}&studies=all"):
        assert page.evaluate("document.documentElement.scrollWidth") <= 375, view


CONTRAST = """() => {
  const channels = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
  const light = (text) => {
    const [r, g, b] = channels(text).map((c) => (c / 255 <= 0.03928 ? c / 3294.6 : ((c / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const {backgroundColor} = getComputedStyle(at);
      if (channels(backgroundColor)[3] !== 0) return backgroundColor;
    }
  };
  const poor = [];
  for (const element of document.body.querySelectorAll("*")) {
    const own = [...element.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
    if (!own || !element.getClientRects().length || element.closest("script, noscript, .skip")) continue;
    const style = getComputedStyle(element);
    const [a, b] = [light(element.namespaceURI.endsWith("svg") ? style.fill : style.color), light(ground(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) poor.push(`${element.tagName} ${element.textContent.slice(0, 30)} ${ratio.toFixed(2)}`);
  }
  return poor;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(visit: Any, report: Path, scheme: str) -> None:
    page = visit(report, color_scheme=scheme)
    ground = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
    for view in go_through_views(page):
        assert page.evaluate(CONTRAST) == [], view


def test_the_theme_can_be_switched(visit: Any, report: Path) -> None:
    page = visit(report, color_scheme="dark")
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    dark = page.evaluate(ground)
    page.locator("#theme").click()
    assert page.evaluate(ground) == "rgb(255, 255, 255)"
    page.locator("#theme").click()
    assert page.evaluate(ground) == dark


UNNAMED = """() => [...document.querySelectorAll("input, select, button, [role=img], [role=group]")]
  .filter((one) => !(one.labels?.length || one.ariaLabel || one.textContent.trim())).map((one) => one.outerHTML)"""


def test_every_control_and_chart_has_a_name_and_focus_shows(visit: Any, report: Path) -> None:
    page = visit(report)
    for view in go_through_views(page):
        assert page.evaluate(UNNAMED) == [], view
        page.locator("#theme").focus()
        for _ in range(9):  # past the views, into what this one has
            page.keyboard.press("Tab")
            assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
