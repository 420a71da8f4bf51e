"""Test that the built package contains all that an installation needs, and the citation."""

from __future__ import annotations

import ast
import os
import re
import site
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest

import hullo

ROOT = Path(__file__).parent.parent

USE = """
import hullo, torch
from hullo.lab import data
from hullo.lab.analysis.report import page
print(hullo.__file__)
print(hullo.AffineHull("identity", "relu")(torch.ones(1)).item())
print(len(data.load("fashion-mnist-sample").train_labels))
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the wheel that is built from the sdist, and the sdist."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)]
    subprocess.run([*build, "--target", "sdist"], cwd=ROOT, check=True, capture_output=True)
    with tarfile.open(next(folder.glob("*.tar.gz"))) as sdist:
        sdist.extractall(folder, filter="data")
    subprocess.run(
        [*build, "--target", "wheel"], cwd=folder / f"hullo-{hullo.__version__}", check=True, capture_output=True
    )
    return folder


def test_wheel_works_in_an_empty_environment(built: Path, tmp_path: Path) -> None:
    """The environment has nothing but the wheel, and then the packages that hullo depends on, but not this checkout."""
    (wheel,) = built.glob("*.whl")
    venv.create(tmp_path / "empty")
    python = next((tmp_path / "empty").glob("[bS]*/python*"))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*command: str) -> str:
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--no-index",
        "--no-deps",
        "--quiet",
        str(wheel),
    )
    packages = Path(run(str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (packages / "dependencies.pth").write_text("\n".join(map(str, site.getsitepackages())))
    place, value, count = run(str(python), "-c", USE).split()
    assert Path(place).is_relative_to(packages)
    assert float(value) == 1
    assert int(count) > 0
    assert run(str(python.with_name("hullo")), "--version") == f"hullo {hullo.__version__}\n"


def test_wheel_contains_every_file_of_the_package(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("hullo/")}
    tracked = subprocess.run(["git", "ls-files", "src/hullo"], cwd=ROOT, capture_output=True, text=True, check=False)
    if tracked.returncode:
        pytest.skip("not a git checkout")
    assert packed >= {name.removeprefix("src/") for name in tracked.stdout.split()}


def imported(files: Iterable[Path]) -> set[str]:
    """Return the packages that files import, outside of the standard library and this package."""
    found: set[str] = set()
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module.partition(".")[0])
    return found - sys.stdlib_module_names - {"hullo", "triton"}  # Triton comes with PyTorch for GPUs


def test_what_is_imported_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needed = {
        extra: {re.split(r"[\[<>=]", text)[0].replace("pillow", "PIL") for text in requirements}
        for extra, requirements in {"core": project["dependencies"], **extras}.items()
    }
    source = ROOT / "src" / "hullo"
    lab, keras = (set((source / room).rglob("*.py")) for room in ("lab", "keras"))
    core = set(source.rglob("*.py")) - lab - keras - {source / "surgery" / "plot.py"}
    assert imported(core) == needed["core"] == {"torch"}
    assert imported(lab) - {"torch"} == needed["lab"] | needed["ilsvrc"] - {"hullo"}
    assert imported(keras) - {"torch", "numpy"} == needed["keras"]  # Keras needs NumPy


def test_citation_has_this_version() -> None:
    assert f"\nversion: {hullo.__version__}\n" in (ROOT / "CITATION.cff").read_text()
