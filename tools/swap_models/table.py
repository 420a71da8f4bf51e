"""Read lists of models: a name, ``=`` an expression for the model or its configuration, ``<`` one for its inputs."""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch


def read_table(file: str) -> Iterator[tuple[str, str, str]]:
    """Yield the name of each model of a file in this folder, and both expressions, which may be several lines."""
    records: list[tuple[str, dict[str, str]]] = []
    for line in (Path(__file__).parent / file).read_text().splitlines():
        sign, text = line[:4].strip(), line[4:].strip()
        if sign in ("=", "<"):
            parts = records[-1][1]
            parts[sign] = f"{parts.get(sign, '')} {text}".strip()
        else:
            records.append((line, {}))
    for name, parts in records:
        yield name, parts["="], parts["<"]


def evaluate(expression: str, names: Mapping[str, Any]) -> Any:
    """Return the value of an expression, which may begin with the path of what it calls."""
    module = expression.partition("(")[0].rpartition(".")[0]
    if module and module.replace(".", "").replace("_", "").isalnum() and module not in names:
        importlib.import_module(module)
        root = module.partition(".")[0]
        names = {**names, root: sys.modules[root]}
    return eval(expression, dict(names))  # noqa: S307  (of a list in this repository)


_evaluated: set[str] = set()


def make(expression: str, names: Mapping[str, Any]) -> Any:
    """Evaluate an expression; what it imports the first time draws no random numbers."""
    if expression not in _evaluated:
        _evaluated.add(expression)
        states = random.getstate(), np.random.get_state(), torch.get_rng_state()
        evaluate(expression, names)
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
    return evaluate(expression, names)
