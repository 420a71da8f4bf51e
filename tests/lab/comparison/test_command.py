"""The command: a network in a file and a table; killed, it resumes, and its records feed tables and pages."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from hullo.lab.analysis.report.gather import gather
from hullo.lab.cli import app
from hullo.lab.spec.records import Records

NETWORK = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self, in_channels, num_classes):
        super().__init__(nn.Linear(in_channels, 16), nn.ReLU(), nn.Linear(16, num_classes))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "net.py").write_text(NETWORK)
    x = torch.randn(600, 3, generator=torch.Generator().manual_seed(0))
    y = 7 + 50 * (x[:, 0] * x[:, 1] + 0.1 * x[:, 2])
    rows = [
        ",".join(f"{number:.4f}" for number in (*row, target))
        for row, target in zip(x.tolist(), y.tolist(), strict=True)
    ]
    (tmp_path / "table.csv").write_text("\n".join(["a,b,c,cost", *rows]))
    return tmp_path


def arguments(folder: Path, minutes: float = 10.0) -> list[str]:
    options = ["--minutes", str(minutes), "--epochs", "4", "--lr", "0.01", "--seeds", "3", "--candidate", "tanh"]
    return [
        "compare",
        f"{folder / 'net.py'}:Net",
        str(folder / "table.csv"),
        *options,
        "--output",
        str(folder / "runs"),
    ]


def run(*words: str) -> str:
    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_killed_comparison_resumes_and_ends_as_one_that_was_not(folder: Path) -> None:
    run(*arguments(folder), "--device", "cpu", "--quiet")
    (done,) = (folder / "runs").iterdir()
    expected = {record.spec: record.val_metric for record in Records(done / "trials.jsonl").read()}
    done.rename(folder / "whole")
    command = [sys.executable, "-m", "hullo", *arguments(folder), "--device", "cpu"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ)
    path = done / "trials.jsonl"
    deadline = time.monotonic() + 120
    while not (path.exists() and path.stat().st_size) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = path.read_bytes()
    count = len(Records(path).read())
    printed = run(*arguments(folder), "--device", "cpu", "--quiet")
    trained = {record.spec: record.val_metric for record in Records(path).read()}
    shared = trained.keys() & expected.keys()
    assert 0 < count < len(trained)
    assert path.read_bytes().startswith(before)
    assert len(shared) > count
    assert all(trained[spec] == pytest.approx(expected[spec]) for spec in shared)
    assert "3 fresh seeds" in printed


def test_records_feed_tables_and_the_page_opens_with_the_finding(folder: Path) -> None:
    printed = run(*arguments(folder), "--quiet")
    finding = printed.splitlines()[-1]
    assert max(map(len, printed.splitlines()[3:-1])) <= 80
    table = run("table", str(folder / "runs"))
    assert "rmse" in table
    rows = [line for line in table.splitlines() if line.strip().startswith(("original", "tanh"))]
    assert len(rows) == 2
    assert not any("best" in line for line in rows)  # which only the finding can say
    run("report", str(folder / "runs"), "--output", str(folder / "page.html"))
    page = gather([folder / "runs"])
    assert page["finding"] == finding
    (column,) = page["columns"]
    assert set(page["rows"]) == {row["name"] for row in column["rows"]} == {"original", "tanh"}
    assert {run["spec"]["activation"] for run in column["runs"]} == {"original", "tanh"}
    assert column["compared"]


def test_a_folder_that_is_no_data_is_named(folder: Path) -> None:
    result = CliRunner().invoke(app, ["compare", f"{folder / 'net.py'}:Net", str(folder / "nothing")])
    assert result.exit_code == 1
