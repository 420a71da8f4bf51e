"""`hullo table` needs records alone, and says in one line what is wrong with what it was given."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from hullo.lab.cli import app
from hullo.lab.spec.records import Records
from made_records import make_record, make_records

REACHED = {"relu": [79.0, 80.0, 81.0], "affine(identity,tanh)": [84.5, 85.5, 86.5]}
BEGINNINGS = {
    "terminal": "kerasnet/cifar10, 1 epoch: test accuracy in %, last epoch",
    "markdown": "|  | kerasnet/<br>cifar10<br>1 epoch<br>3 seeds<br>last epoch |",
    "csv": "network,data,",
}


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["table", *map(str, arguments)])


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory to work in, with records in runs."""
    monkeypatch.chdir(tmp_path)
    Records(tmp_path / "runs" / "records.jsonl").add(make_records(REACHED))
    return tmp_path / "runs"


@pytest.mark.parametrize("form", BEGINNINGS)
@pytest.mark.parametrize("given", ["", "runs", "runs/records.jsonl"])
@pytest.mark.usefixtures("runs")
def test_records_are_shown_in_every_format(form: str, given: str) -> None:
    result = invoke(*filter(None, [given]), "--format", form)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith(BEGINNINGS[form])
    assert "85.5" in result.stdout


@pytest.mark.parametrize("form", BEGINNINGS)
@pytest.mark.usefixtures("runs")
def test_table_is_written_in_what_the_stream_can_encode(form: str) -> None:
    lost = make_record("tanh", [10.0], ended="diverged in epoch 1")
    Records(Path("runs/records.jsonl")).add([lost])
    result = CliRunner(charset="ascii").invoke(app, ["table", "runs", "--format", form])
    assert (result.exit_code, result.exception) == (0, None)
    assert ("85.50 ? 2.48" in result.stdout) == (form in ("terminal", "markdown"))


def test_results_are_shown_where_there_are_no_runs(runs: Path) -> None:
    runs.rename(runs.with_name("results"))
    assert "85.50 ± 2.48" in invoke().stdout


@pytest.mark.usefixtures("runs")
def test_several_directories_make_one_table() -> None:
    Records(Path("more/records.jsonl")).add(make_records(REACHED, column="lenet5/cifar10"))
    result = invoke("runs", "more", "--format", "markdown")
    assert result.stdout.startswith("|  | kerasnet/<br>cifar10<br>1 epoch<br>3 seeds<br>last epoch | lenet5/<br>")
    assert "kerasnet" not in invoke("runs", "more", "--experiment", "lenet5/cifar10").stdout


@pytest.mark.usefixtures("runs")
def test_what_ended_before_the_epoch_is_named_and_left_out() -> None:
    Records(Path("long/records.jsonl")).add([make_record("relu", [80.0, 81.0, 82.0], column="lenet5/cifar10")])
    result = invoke("runs", "long", "--epoch", "2", "--format", "csv")
    assert result.stderr.startswith("note: ")
    assert result.stderr.endswith(": kerasnet/cifar10\n")
    assert "lenet5,cifar10" in result.stdout
    assert "kerasnet" not in result.stdout


@pytest.mark.parametrize("form", BEGINNINGS)
@pytest.mark.usefixtures("runs")
def test_a_reading_can_be_asked_for_and_is_named(form: str) -> None:
    held_out = make_record("relu", [70.0, 81.25, 60.0], held_out=[50.0, 60.0, 40.0], column="lenet5/cifar10")
    Records(Path("more/records.jsonl")).add([held_out])
    result = invoke("runs", "more", "--format", form, "--reading", "chosen")
    assert result.stderr == "note: left out, without this epoch or reading: kerasnet/cifar10\n"
    assert "81.2" in result.stdout
    assert "chosen" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "nowhere does not exist"),
        (["empty"], "no records in empty"),
        (["runs", "--epoch", "2"], "no epoch 2: kerasnet/cifar10 has epochs 1 to 1"),
        (["runs", "--reading", "chosen"], "no runs with the reading 'chosen': kerasnet/cifar10 has last, best"),
        (["runs", "--format", "html"], "unknown format 'html'; available: terminal, markdown, csv"),
        (["runs", "--experiment", "lenet5/cifar10"], "no records of 'lenet5/cifar10'; available: kerasnet"),
    ],
)
@pytest.mark.usefixtures("runs")
def test_an_error_is_one_line_and_exit_code_2(arguments: list[str], said: str) -> None:
    Path("empty").mkdir()
    result = invoke(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"hullo: {said}")
    assert result.stderr.count("\n") == 1


def test_without_any_records_one_line_says_where_they_were_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke()
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert result.stderr.startswith("hullo: runs does not exist")
