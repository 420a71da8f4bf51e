"""Test that inconsistent records are rejected by the name of the field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hullo.lab.spec.records import Record
from made_records import make_record

RECORD = make_record("affine(identity,relu)", [50.0, 60.0], coefficients=[[0.25, 0.75], [0.5, 0.5]])


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"train_loss": [1.0]}, "train_loss"),
        ({"test_accuracy": [50.0]}, "test_accuracy"),
        ({"test_accuracy": []}, "test_accuracy"),
        ({"bases": ["relu", "identity"]}, "bases"),
        ({"coefficients": []}, "coefficients"),
        ({"coefficients": [[[0.5, 0.5]]] * 2}, "coefficients"),
        ({"id": "abc"}, "id"),
        ({"environment": {}}, "device"),
        ({"spec": "relu"}, "mapping"),
        ({"mood": "good"}, "mood"),
    ],
)
def test_inconsistent_field_is_rejected_by_name(change: dict[str, Any], field: str) -> None:
    line = json.dumps(json.loads(RECORD.line()) | change).encode()
    with pytest.raises(ValueError, match=rf"\b{field}\b"):
        Record.parse(line)


@pytest.mark.parametrize(
    "line", [b"[" * 100_000, RECORD.line().replace(b'"id"', b'"\\u001b[2J' + b"x" * 999 + b'": 1, "id"', 1)]
)
def test_what_a_line_says_is_short_and_printable(line: bytes) -> None:
    with pytest.raises(ValueError, match="Error") as caught:
        Record.parse(line)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) <= 300
