"""Shared set-up: GPU tests are skipped without a GPU, random numbers are the same in every run."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
import torch

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
OTHER_BACKEND = os.environ.get("KERAS_BACKEND", "torch") != "torch"  # whose tests are those of PyTorch, run again
PLAIN = str | int | float
hypothesis.settings.register_profile(
    "hullo", deadline=None, max_examples=5 if OTHER_BACKEND else 20, derandomize="CI" in os.environ
)
hypothesis.settings.load_profile("hullo")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Return a real browser, one for all tests of a process: a second one cannot be started beside it."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here: install one, on Debian with apt-get install chromium")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


def pytest_configure(config: pytest.Config) -> None:
    # Raised by PyTorch's own use of both, inside torch.func's forward mode and torch.compile.
    config.addinivalue_line("filterwarnings", "ignore:`torch.jit:DeprecationWarning")
    config.addinivalue_line("filterwarnings", "ignore:`torch.jit:FutureWarning")  # the same since PyTorch 2.15
    config.addinivalue_line("filterwarnings", "ignore:.*torch.autograd.function.Function:DeprecationWarning")
    # Raised by Triton's interpreter: inf - inf and the like, and how it reads a number.
    config.addinivalue_line("filterwarnings", "ignore::RuntimeWarning:(triton|numpy)")
    config.addinivalue_line("filterwarnings", "ignore:Conversion of an array:DeprecationWarning")


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Show values in the names of tests: `float32` instead of `dtype0`, `2x3` instead of `shape0`.

    Names are the same in every process: only of values whose text is.
    """
    if isinstance(val, torch.dtype):
        return str(val).removeprefix("torch.")
    if isinstance(val, torch.nn.Module):
        return type(val).__name__
    if getattr(val, "__name__", "") == "<lambda>":
        return argname
    if isinstance(val, dict) and all(isinstance(item, PLAIN) for item in val.values()):
        parts, joint = [f"{key}={item}" for key, item in val.items()], " "
    elif isinstance(val, list | tuple) and all(isinstance(item, PLAIN) for item in val):
        parts, joint = [str(item) for item in val], "x" if all(type(item) is int for item in val) else " "
    else:
        return None
    text = joint.join(parts)
    return text if text.isprintable() and 0 < len(text) <= 60 else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(autouse=True, scope="session")
def _interpret_quickly() -> None:
    """Let Triton's interpreter prepare its language once per kernel, not for each function that a kernel calls."""
    if "triton.runtime.interpreter" not in sys.modules:
        return
    import triton.language as tl
    from triton.runtime import interpreter

    prepare = interpreter._patch_lang

    def prepare_once(function: Any) -> Any:
        visible = [item for item in function.__globals__.values() if item is tl or item is tl.core]
        is_prepared = not any(tl.core.is_builtin(item.load) for item in visible)
        return interpreter._LangPatchScope() if is_prepared else prepare(function)

    interpreter._patch_lang = prepare_once


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _forget_compiled_code() -> Iterator[None]:
    """Let each test compile afresh: torch.compile gives up on a function after eight times in a process."""
    yield
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
