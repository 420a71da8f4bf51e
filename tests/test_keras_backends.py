"""Test the error without Keras, and that the Keras tests pass on its other backends."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from keras_layers import BACKEND

pytestmark = pytest.mark.skipif(BACKEND != "torch", reason="does not depend on the backend")

TESTS = [Path(__file__).with_name(f"test_keras{name}.py") for name in ("", "_models", "_tools")]
INDEPENDENT = "papers_parameters"  # of the backend, as are the tests of arguments
FASTER = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}  # to compile: the arrays are small


def run(*arguments, **environment):
    return subprocess.run(
        [sys.executable, *arguments], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


def test_missing_keras_error_says_what_to_install():
    done = run("-c", "import sys; sys.modules['keras'] = None; import hullo.keras")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: hullo.keras needs Keras 3")
    assert "pip install '.[keras]'" in last


@pytest.mark.parametrize("backend", ["jax", "tensorflow"])
def test_keras_tests_pass_on_other_backends(backend):
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    options = ("-p", "no:cacheprovider", "-k", f"not {INDEPENDENT}")
    done = run("-m", "pytest", *options, *TESTS, KERAS_BACKEND=backend, **FASTER)
    assert done.returncode == 0, done.stdout[-4000:]
