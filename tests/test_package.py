"""The package that is built holds all that an installation needs, and says how to cite it."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
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
    """A directory with the wheel that is built from the sdist, and the sdist."""
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


def test_an_installed_wheel_works_without_the_repository(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", USE], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    place, value, count = done.stdout.split()
    assert Path(place).is_relative_to(tmp_path)
    assert float(value) == 1
    assert int(count) > 0


def test_a_wheel_holds_every_file_of_the_package(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("hullo/")}
    tracked = subprocess.run(["git", "ls-files", "src/hullo"], cwd=ROOT, capture_output=True, text=True, check=False)
    if tracked.returncode:
        pytest.skip("not a git checkout")
    assert packed >= {name.removeprefix("src/") for name in tracked.stdout.split()}


def test_the_citation_names_this_version() -> None:
    assert f"\nversion: {hullo.__version__}\n" in (ROOT / "CITATION.cff").read_text()
