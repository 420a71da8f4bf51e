"""Test hullo with given versions of Python and PyTorch, each pair in an environment of its own.

    python tools/versions.py 3.11:2.10.0 3.13:2.15.0 --environments /tmp/environments

The wheel is built from this checkout and installed with the extras lab and keras; the tests run against that
installation. The interpreters must be on the PATH as python3.11 and so on. Environments are several gigabytes each;
those that exist are used again. Prints a line of a Markdown table per pair, and exits with 1 if a test failed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = (
    *(f"tests/test_{name}.py" for name in ("bases", "functional", "modules", "modules_checkpoints", "keras")),
    "tests/surgery/test_replace.py",
    "tests/population/test_population.py",
    "tests/lab/test_recorder.py",
)
ABOUT = "import hullo, platform, torch; print(platform.python_version(), torch.__version__, hullo.__version__)"


def run(*command: str | Path) -> str:
    """Run a command in the checkout; print its output and exit if it fails."""
    done = subprocess.run([*map(str, command)], cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def install(python: str, torch: str, folder: Path) -> Path:
    """Return the interpreter of an environment with hullo as it is now."""
    if (found := shutil.which(f"python{python}")) is None:
        sys.exit(f"python{python} is not on the PATH; install it, or give another version")
    interpreter = folder / f"{python}-{torch}" / "bin" / "python"
    if not interpreter.exists():
        run(found, "-m", "venv", interpreter.parents[1])
    shutil.rmtree(folder / "wheel", ignore_errors=True)
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder / "wheel", ROOT)
    (wheel,) = (folder / "wheel").glob("hullo-*.whl")
    requirements = (
        f"torch=={torch}",
        f"{wheel}[lab,keras]",
        "pytest",
        "hypothesis",
        "onnx",
        "onnxruntime",
        "onnxscript",
    )
    run(interpreter, "-m", "pip", "install", "--quiet", *requirements)
    run(interpreter, "-m", "pip", "install", "--quiet", "--force-reinstall", "--no-deps", wheel)
    return interpreter


def run_tests(interpreter: Path, paths: list[str]) -> tuple[bool, str]:
    """Run tests; return whether they passed, and the last line that pytest prints."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    options = ["-v", "--tb=short", "-p", "no:cacheprovider"]  # -v undoes the -q of the project's options
    command = [str(interpreter), "-m", "pytest", *options, *paths]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        print(done.stdout, done.stderr, file=sys.stderr)
    return not done.returncode, done.stdout.splitlines()[-1].strip("= ").rpartition(" in ")[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pairs", nargs="+", metavar="PYTHON:TORCH", help="versions, as in 3.13:2.15.0")
    parser.add_argument(
        "--environments", type=Path, default=ROOT / ".environments", help="directory of the environments"
    )
    parser.add_argument("--tests", nargs="+", default=list(TESTS), help="paths of tests to run")
    arguments = parser.parse_args()
    passed = True
    print("| Python | PyTorch | hullo | tests |\n| --- | --- | --- | --- |")
    for pair in arguments.pairs:
        python, colon, torch = pair.partition(":")
        if not colon:
            parser.error(f"{pair!r}: give a version of Python and one of PyTorch, as in 3.13:2.15.0")
        interpreter = install(python, torch, arguments.environments.resolve())
        fine, counts = run_tests(interpreter, arguments.tests)
        print(f"| {' | '.join([*run(interpreter, '-c', ABOUT).split(), counts])} |", flush=True)
        passed = passed and fine
    sys.exit(not passed)


if __name__ == "__main__":
    main()
