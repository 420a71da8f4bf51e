"""A page and a real browser for it: every visit checks that nothing went wrong or was asked of the network."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from report_records import RECORDS, write_report

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]

Visit = Callable[..., Any]


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here: install one, on Debian with apt-get install chromium")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the page that most tests visit."""
    return write_report(tmp_path_factory.mktemp("report"), RECORDS)


@pytest.fixture
def visit(browser: Any) -> Iterator[Visit]:
    """Open a page at a fragment, in a window of its own."""
    wrong: list[str] = []
    windows = []

    def open_page(path: Path, fragment: str = "", width: int = 1280, **options: Any) -> Any:
        window = browser.new_context(viewport={"width": width, "height": 900}, **options)
        windows.append(window)
        page = window.new_page()
        page.set_default_timeout(5000)
        page.on("console", lambda message: wrong.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
        page.on("request", lambda request: None if request.url.startswith(path.as_uri()) else wrong.append(request.url))
        page.goto(f"{path.as_uri()}{fragment}")
        return page

    yield open_page
    for window in windows:
        window.close()
    assert wrong == []
