"""README's comparison runs as it is written there, on small data, and prints what README shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from hullo.lab.cli import app

TEXT = (Path(__file__).parents[1] / "README.md").read_text()
COLUMNS = "longitude,latitude,total_rooms,median_income,median_house_value,ocean_proximity"
SMALL = ["--epochs", "1", "--seeds", "2", "--lr", "0.01", "--candidate", "gelu", "--device", "cpu", "--quiet"]


def mask(text: str) -> str:
    """Replace numbers, and every run of spaces by one."""
    return re.sub(r"[+-]?\d[\d.,]*\d|\d", "#", " ".join(text.split()))


def test_comparison_runs_and_prints_what_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (command,) = re.findall(r"^hullo (compare .*)$", TEXT, re.MULTILINE)
    (network,) = re.findall(r"^```python\n(from torch import nn\n.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    (table, finding) = re.findall(r"^```text\n(confirmation.*?)^power.*?^> (.*?)$", TEXT, re.MULTILINE | re.DOTALL)[0]
    numbers = torch.rand(300, 5, generator=torch.Generator().manual_seed(0)).tolist()
    rows = [",".join([*map(str, row), "INLAND" if row[0] < 0.5 else "NEAR BAY"]) for row in numbers]
    (tmp_path / "housing.csv").write_text("\n".join([COLUMNS, *rows]))
    (tmp_path / "mlp.py").write_text(network)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, [*shlex.split(command), *SMALL])
    assert result.exit_code == 0, result.output
    printed = [mask(line) for line in result.stdout.splitlines()]
    shown = [mask(line) for line in table.splitlines()]
    assert len(shown) == 4
    start = printed.index(shown[0])
    assert printed[start : start + 4] == shown
    (change,) = re.findall(r"rmse \S+ ± .*?\)", mask(finding))
    assert change in printed[-1]
