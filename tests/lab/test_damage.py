"""Test that damaged records are valid or rejected with one line that says why."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from hullo.lab.cli import app
from hullo.lab.spec.records import Record, Records
from made_records import make_record

HULL = make_record(
    "affine(identity,relu,per=channel)",
    [50.0, 60.0],
    ended="diverged in epoch 2",
    coefficients=[[0.25, 0.75], [0.5, 0.5]],
    val_size=10,
)
RECORDS = (
    make_record("relu", [50.0, 60.0]),
    make_record("affine(identity,relu)", [50.0, 60.0], coefficients=[[0.25, 0.75], [0.5, 0.5]]),
    replace(HULL, test_loss=[1.0, None], test_accuracy=[40.0, 10.0], test_top5=[70.0, 75.0], images=[1200, 50]),
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 4),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
    st.sampled_from(
        [
            10**400,
            2**63,
            1e308,
            1e-320,
            "finished",
            "diverged in epoch 1",
            "diverged in epoch 3",
            "relu",
            "\ud800",
            "a\nb",
        ]
    ),
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner))
TOKENS = ["NaN", "-Infinity", "1e999", "[" * 5000 + "]" * 5000, "1" * 5000, "01", "'x'", '{"a": 1, "a": 2}', ""]


def choose_place(data: st.DataObject, value: Any) -> tuple[list[Any], Any]:
    """Draw a place within a value: the lists and objects on the way to it, and the last key."""
    parametrization, key = [value], data.draw(st.sampled_from(sorted(value)))
    while isinstance(inner := parametrization[-1][key], dict | list) and inner and data.draw(st.booleans()):
        parametrization.append(inner)
        key = data.draw(st.sampled_from(sorted(inner) if isinstance(inner, dict) else range(len(inner))))
    return parametrization, key


def damage(data: st.DataObject, record: Record) -> bytes:
    """Return the line of a record with something else somewhere in it."""
    values = json.loads(record.line())
    parametrization, key = choose_place(data, values)
    kind = data.draw(st.sampled_from(["replace", "delete", "token", "repeat", "wrap", "add", "exchange"]))
    if kind == "delete":
        del parametrization[-1][key]
    elif kind == "repeat" and isinstance(parametrization[-1], list):
        parametrization[-1].append(parametrization[-1][key])
    elif kind == "wrap":
        parametrization[-1][key] = [parametrization[-1][key]]
    elif kind == "add" and isinstance(parametrization[-1], dict):
        parametrization[-1][data.draw(st.text(max_size=3))] = data.draw(VALUES)
    elif kind == "exchange":
        other = data.draw(st.sampled_from(sorted(values)))
        values[other], parametrization[-1][key] = parametrization[-1][key], values[other]
    else:
        parametrization[-1][key] = "TOKEN" if kind == "token" else data.draw(VALUES)
    line = json.dumps(values)
    if kind == "token":
        line = line.replace('"TOKEN"', data.draw(st.sampled_from(TOKENS)))
    return line.encode("utf-8", "surrogatepass") + b"\n"


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(RECORDS), st.data())
def test_damaged_record_is_valid_or_reported_with_line_and_field(
    tmp_path: Path, record: Record, data: st.DataObject
) -> None:
    path = tmp_path / "records.jsonl"
    good, line = make_record("relu", [70.0], column="lenet5/cifar10"), damage(data, record)
    path.write_bytes(good.line() + line)
    actual, flaws = Records(path).scan()
    assert actual[0] == good
    if flaws:
        assert len(actual) == len(flaws) == 1
        assert flaws[0].startswith(f"{path}, line 2: ")
        assert flaws[0].isprintable()
        assert len(flaws[0]) < len(str(path)) + 400
        return
    if actual[-1] in (good, record):
        return  # shown often enough
    for command in (["table"], ["table", "--format", "markdown"], ["report", "--output", tmp_path / "page.html"]):
        result = CliRunner().invoke(app, [*map(str, command), str(path)])
        assert (result.exit_code, result.stderr) == (0, ""), (line, result.output)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"ended": "diverged in epoch x"}, "ended"),
        ({"ended": "diverged in epoch 3"}, "ended"),
        ({"train_loss": [1.0]}, "train_loss"),
        ({"test_accuracy": [50.0, None]}, "test_accuracy"),
        ({"test_accuracy": []}, "test_accuracy"),
        ({"bases": ["relu", "identity"]}, "bases"),
        ({"coefficients": []}, "coefficients"),
        ({"coefficients": [[]] * 3}, "coefficients"),
        ({"coefficients": [[[0.5, 0.5]], [[0.5, 0.5]] * 2, [[0.5, 0.5]]]}, "lists"),
        ({"coefficients": [[[0.5, 0.5]], [[0.5]], [[0.5, 0.5]]]}, "lists"),
        ({"channels": [[[0.5, 0.5]]]}, "channels"),
        ({"images": [1200]}, "images"),
        ({"members": True}, "members"),
        ({"seconds": "1"}, "seconds"),
        ({"id": "abc"}, "id"),
        ({"environment": {}}, "device"),
        ({"spec": "relu"}, "mapping"),
        ({"mood": "good"}, "mood"),
    ],
)
def test_inconsistent_field_is_rejected_by_name(change: dict[str, Any], field: str) -> None:
    line = json.dumps(json.loads(RECORDS[1].line()) | change).encode()
    with pytest.raises(ValueError, match=rf"\b{field}\b"):
        Record.parse(line)
