"""The page is one file, of bounded size, that holds all it needs and admits nothing else."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from report_records import make_records, write_report
from typer.testing import CliRunner

from hullo.lab.cli import app
from hullo.lab.spec.paper import COLUMNS
from hullo.lab.spec.records import Records

RUNS = make_records(COLUMNS[:1], ["relu", "affine(identity,tanh)"], seeds=1, epochs=2)
MOST = 8_000_000


def test_the_whole_table_fits(tmp_path: Path) -> None:
    text = write_report(tmp_path, make_records(seeds=1, epochs=200)).read_text("utf-8")
    data = re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1]
    rest = len(text) - len(data)
    assert rest < 150_000
    assert rest + 5 * len(data) < MOST  # of five seeds


def test_scripts_and_styles_are_named_by_their_hashes_and_nothing_else_is_let_in(tmp_path: Path) -> None:
    text = write_report(tmp_path, RUNS).read_text("utf-8")
    policy = html.unescape(re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1])
    inline = re.findall(r"<script>(.*?)</script>|<style>(.*?)</style>", text, re.DOTALL)
    assert len(inline) > 2
    hashes = [base64.b64encode(hashlib.sha256((a or b).encode()).digest()).decode() for a, b in inline]
    allowed = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert allowed["default-src"] == "'none'"
    assert {f"'sha256-{value}'" for value in hashes} == set(
        (allowed["script-src"] + " " + allowed["style-src"]).split()
    )


def test_there_is_no_outside_address(tmp_path: Path) -> None:
    text = write_report(tmp_path, RUNS).read_text("utf-8")
    assert set(re.findall(r"\w+://[^\"'\s]+", text)) == {"http://www.w3.org/2000/svg"}  # a name, which nothing fetches
    assert not re.search(r"\b(fetch|XMLHttpRequest|import)\s*\(|innerHTML|\beval\b", text)


def test_text_of_records_cannot_end_the_data(tmp_path: Path) -> None:
    environment = replace(RUNS[0].environment, device="</script><script>alert(1)</script><!--")
    text = write_report(tmp_path, [replace(RUNS[0], environment=environment)]).read_text("utf-8")
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1]
    assert json.loads(data)["environments"][0]["device"] == environment.device


def test_the_command_writes_the_page(tmp_path: Path) -> None:
    Records(tmp_path / "records.jsonl").add(RUNS)
    output = tmp_path / "new" / "page.html"
    result = CliRunner().invoke(app, ["report", str(tmp_path), "--output", str(output)])
    assert result.exit_code == 0, result.output
    assert str(output) in result.stdout.replace("\n", "")
    assert output.read_text("utf-8").startswith("<!doctype html>")


def test_a_page_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Records(tmp_path / "records.jsonl").add(RUNS)
    output = tmp_path / "page.html"
    output.write_text("old")

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device", str(output))

    monkeypatch.setattr(os, "replace", refuse)
    result = CliRunner().invoke(app, ["report", str(tmp_path), "--output", str(output)])
    assert result.exit_code == 1
    assert "No space left on device" in result.stderr
    assert output.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir() if "lock" not in path.name) == ["page.html", "records.jsonl"]
