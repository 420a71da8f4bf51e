"""A page and windows of a browser for it: every visit checks that nothing went wrong or was asked of the network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from report_records import RECORDS, write_report

Visit = Callable[..., Any]


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the page that most tests visit."""
    return write_report(tmp_path_factory.mktemp("report"), RECORDS)


class Window:
    """A page of the browser that notes what goes wrong on it, and every address that it asks for."""

    def __init__(self, browser: Any, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(5000)
        self.noted: list[str] = []
        self.asked: set[str] = set()
        self.page.on("console", lambda message: self.noted.append(f"console: {message.text}"))
        self.page.on("pageerror", lambda error: self.noted.append(f"error: {error}"))
        self.page.on("request", lambda request: self.asked.add(request.url.partition("#")[0]))

    def open(self, path: Path, fragment: str, width: int) -> Any:
        """Open a file anew, and forget what was on the page before."""
        self.page.goto("about:blank")
        self.page.set_viewport_size({"width": width, "height": 900})
        self.noted.clear()
        self.asked.clear()
        self.page.goto(f"{path.as_uri()}{fragment}")
        return self.page


@pytest.fixture(scope="session")
def shared_window(browser: Any) -> Window:
    """Return the window that tests use one after the other: a new one takes longer than most tests."""
    return Window(browser)


@pytest.fixture
def visit(browser: Any, shared_window: Window) -> Iterator[Visit]:
    """Open a page at a fragment: in the shared window, or in one of its own if that is taken or has other options."""
    visits: dict[Window, Path] = {}

    def open_page(path: Path, fragment: str = "", width: int = 1280, **options: Any) -> Any:
        window = Window(browser, **options) if options or shared_window in visits else shared_window
        visits[window] = path
        return window.open(path, fragment, width)

    yield open_page
    for window, path in visits.items():
        if window is not shared_window:
            window.context.close()
        assert window.noted == []
        assert window.asked <= {path.as_uri()}
