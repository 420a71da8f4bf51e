"""Tables of studies say what their records say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pages import studies
from pages.studies import changes_part, study_part


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """Return a study of tables: ReLU is best on validation data, GELU on the test, and a hull is ahead of both."""
    about = {"device": "chip", "threads": 1, "python": "3", "torch": "2", "triton": "", "hullo": "0", "commit": "abc"}
    tests, lines = {"relu": 3.0, "gelu": 2.0, "hull": 1.0}, []
    for number, (name, test) in enumerate(tests.items()):
        for lr, worse in ((0.1, 0.0), (0.2, 0.5), (0.4, 0.7)):
            for seed in (0, 1):
                lines.append(({"candidate": name, "lr": lr, "seed": seed}, (number + worse, 50.0)))
        for seed in (100, 101, 102):
            lines.append(
                ({"candidate": name, "lr": 0.1, "seed": seed}, (0.0, test + seed + (name == "hull") * seed / 10))
            )
    made = [
        {
            "run": run,
            "scores": {"val": val, "test": test, "seconds": 1.0},
            "arguments": {"epochs": 3},
            "environment": about,
        }
        for run, (val, test) in lines
    ]
    path = tmp_path / "tables-made.jsonl"
    path.write_text("".join(json.dumps(item) + "\n" for item in made))
    return path


def test_choosing_seeds_choose_and_fresh_seeds_are_shown(records: Path) -> None:
    text = study_part(records)
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    assert [row[:3] for row in rows[1:]] == [
        ["relu (reference)", "0.1 (end of the grid)", "0"],
        ["gelu", "0.1 (end of the grid)", "1"],
        ["hull", "0.1 (end of the grid)", "2"],
    ]
    assert rows[2][3:5] == ["103.0000 ± 2.4841", "-1.0000 ± 0.0000"]
    assert rows[3][4] == "+8.1000 ± 0.2484"
    for told in ("3 fresh seeds", "Epochs 3.", "chip", "abc"):
        assert told in text


def test_changes_are_against_each_fixed_function_on_fresh_seeds(records: Path) -> None:
    rows = [line.strip("| ").split(" | ") for line in changes_part(records).splitlines() if line.startswith("| ")]
    table = {row[0]: row[1:] for row in rows}
    assert table["activation"] == ["against relu", "against gelu", "against hull"]
    assert table["gelu"] == ["-1.0000 ± 0.0000", "", "-9.1000 ± 0.2484"]
    assert table["hull"] == ["+8.1000 ± 0.2484", "+9.1000 ± 0.2484"]


def test_answers_are_of_what_validation_data_chose_and_of_the_best_in_hindsight(
    records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(studies, "TASKS", {records.stem: "a task"})
    (row,) = [line.strip("| ").split(" | ") for line in studies.answers_part(records.parent).splitlines()[2:3]]
    assert row == ["a task", "relu<br>104.0000 ± 2.4841", "hull", "+8.1000 ± 0.2484<br>against gelu: +9.1000 ± 0.2484"]
