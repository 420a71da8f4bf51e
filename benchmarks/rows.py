"""Rows of measurements in CSV files, each with its environment."""

from __future__ import annotations

import csv
import math
from dataclasses import fields
from pathlib import Path
from typing import TypeVar

from hullo.lab.spec.environment import Environment

R = TypeVar("R", bound=Environment)
_KINDS = {"str": str, "int": int, "float": float, "bool": "1".__eq__}


def read_rows(path: Path, kind: type[R]) -> list[R]:
    """Return the rows of a file; empty cells of optional columns are None."""
    with path.open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    if missing := [item.name for item in fields(kind) if lines and item.name not in lines[0]]:
        raise ValueError(f"{path} lacks the columns {', '.join(missing)}; measure again")
    return [kind(**{item.name: _parse(line[item.name], str(item.type)) for item in fields(kind)}) for line in lines]


def _parse(text: str, kind: str) -> object:
    name, _, optional = kind.partition(" | ")
    return None if optional and not text else _KINDS[name](text)


def number(value: float) -> str:
    """Return a number with three digits, "-" for NaN."""
    if math.isnan(value):
        return "-"
    digits = 2 - math.floor(math.log10(value)) if value > 0 else 2
    return f"{value:.{max(0, digits)}f}"
