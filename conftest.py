"""What has to be set before PyTorch, Triton and Keras are first imported, and before processes are started."""

import ctypes.util
import importlib.util
import os
import signal
from collections.abc import Iterator

import pytest

os.environ.setdefault("KERAS_BACKEND", "torch")  # Keras would look for TensorFlow
if ctypes.util.find_library("cuda") is None:
    os.environ.setdefault("TRITON_INTERPRET", "1")  # without a GPU its kernels run on the CPU

# What a shell starts in the background ignores Ctrl-C, and so would the processes that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# All are modules of the same name, so no two could be read for doctests in one run.
collect_ignore_glob = ["*conftest.py"]
collect_ignore = [] if importlib.util.find_spec("keras") else ["src/hullo/keras"]
if not importlib.util.find_spec("triton"):
    collect_ignore += [f"src/hullo/kernels/{name}.py" for name in ("device_math", "slope_table", "triton")]
    collect_ignore += ["src/hullo/population/kernels"]


@pytest.fixture(autouse=True)
def _catalogue_as_it_was() -> Iterator[None]:
    """Base functions that a test or a doctest adds are gone afterwards."""
    from hullo.bases import base as bases

    kept = [(table, dict(table)) for table in (bases._families, bases._cache)]
    yield
    for table, before in kept:
        table.clear()
        table.update(before)


@pytest.fixture(autouse=True)
def _examples_write_elsewhere(request: pytest.FixtureRequest) -> None:
    """Examples may write files, such as the records in `runs`, as they would for a reader."""
    if isinstance(request.node, pytest.DoctestItem):
        request.getfixturevalue("monkeypatch").chdir(request.getfixturevalue("tmp_path"))
