"""README's code and its comparison run as they are written there, and print what README shows."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from hullo.lab.cli import app

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()
CODE = "".join(re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL))
COLUMNS = "longitude,latitude,total_rooms,median_income,median_house_value,ocean_proximity"
SMALL = ["--epochs", "2", "--seeds", "2", "--lr", "0.01", "--candidate", "gelu", "--device", "cpu", "--quiet"]


def mask(text: str) -> str:
    """Replace numbers, and every run of spaces by one."""
    return re.sub(r"[+-]?\d[\d.,]*\d|\d", "#", " ".join(text.split()))


def test_code_runs_and_prints_what_its_comments_show(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    exec(CODE, {"__name__": "readme"})
    printed = capsys.readouterr().out.splitlines()
    shown = re.findall(r"^print\(.*\) +# ([A-Z]\w+\(.*?\))", CODE, re.MULTILINE)
    assert len(shown) == 2
    assert set(shown) <= set(printed)


def test_versions_and_license_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert re.findall(r"^Python (\S+)\+ · PyTorch (\S+)\+ · (\S+) license", TEXT, re.MULTILINE) == [
        (project["requires-python"].strip(">="), project["dependencies"][0].strip("torch>="), project["license"])
    ]


def test_comparison_runs_and_prints_what_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (command,) = re.findall(r"^hullo (compare .*)$", TEXT, re.MULTILINE)
    (network,) = re.findall(r"^```python\n(from torch import nn\n.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    (finding,) = re.findall(r"^> (.*)$", TEXT, re.MULTILINE)
    numbers = torch.rand(300, 5, generator=torch.Generator().manual_seed(0)).tolist()
    rows = [",".join([*map(str, row), "INLAND" if row[0] < 0.5 else "NEAR BAY"]) for row in numbers]
    (tmp_path / "housing.csv").write_text("\n".join([COLUMNS, *rows]))
    (tmp_path / "mlp.py").write_text(network)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, [*shlex.split(command), *SMALL])
    assert result.exit_code == 0, result.output
    (change,) = re.findall(r"rmse \S+ ± .*?\)", mask(finding))
    assert change in mask(result.stdout.splitlines()[-1])
