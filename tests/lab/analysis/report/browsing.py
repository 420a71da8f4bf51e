"""Getting about the page in a browser, and reading what it shows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

VIEWS = ("table", "curves", "paths", "training", "playground", "runs")
NOTHING, MINUS = "\N{EN DASH}", "\N{MINUS SIGN}"


def go_through_views(page: Any, query: str = "") -> Iterator[str]:
    for view in VIEWS:
        page.evaluate(f"location.hash = '#{view}{query}'")
        wait_until(page, f"state.view === '{view}'")
        yield view


def column(page: Any, selector: str) -> list[str]:
    return [text.strip() for text in page.locator(selector).all_text_contents()]


def set_range(page: Any, selector: str, value: float) -> None:
    page.locator(selector).evaluate(
        "(slider, value) => { slider.value = value; slider.dispatchEvent(new Event('input', {bubbles: true})); }", value
    )


def commit(page: Any) -> None:
    """Wait until curves are those of the epoch and the address names the view."""
    wait_until(page, "motion.shown === currentEpoch() && !motion.playing && location.hash === address({})")


def wait_until(page: Any, condition: str) -> None:
    """Wait for a condition; Playwright's own function is forbidden by the page's policy."""
    end = time.monotonic() + 10
    while not page.evaluate(condition):
        assert time.monotonic() < end, f"still not so: {condition}"
        page.wait_for_timeout(20)
