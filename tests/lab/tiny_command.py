"""The command line where every data set is a few images of the packaged sample: python tiny_command.py train ..."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hullo.lab import data
from hullo.lab.data import Dataset

TRAIN, TEST = 70, 30
_load = data.load

COLUMN = "lenet5/fashion-mnist-sample"
ROWS = ("relu", "convex(identity,relu)", "affine(identity,relu,tanh)")
REPRODUCE = ("reproduce", COLUMN, *(word for row in ROWS for word in ("--activation", row)), "--seeds", "1")
REPRODUCE = (*REPRODUCE, "--lr", "0.001", "--epochs")


def start(*arguments: object, environment: Mapping[str, str] = os.environ) -> subprocess.Popen[str]:
    """Start the command in a process of its own, and wait until it has imported what it needs."""
    process = subprocess.Popen(
        [sys.executable, __file__, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # one thread, as several may round sums in another order
        env={**environment, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def results(output: Path) -> list[dict[str, Any]]:
    """Return the records of a directory, without the time that training took."""
    lines = [json.loads(line) for line in (output / "records.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


def load(name: str, data_dir: object = None, device: object = "cpu") -> Dataset:
    """Return the first images of the sample as the data set of that name; four of each in one for CIFAR-10, so that
    they are large enough for AlexNet."""
    if name in data.OWN:
        return _load(name)
    sample = _load("fashion-mnist-sample")
    times = 2 if name == "cifar10" else 1
    return replace(
        sample,
        name=name,
        train_images=sample.train_images[:TRAIN].repeat(1, 1, times, times),
        train_labels=sample.train_labels[:TRAIN],
        test_images=sample.test_images[:TEST].repeat(1, 1, times, times),
        test_labels=sample.test_labels[:TEST],
    )


def shrink() -> None:
    """Make all data sets tiny in this process."""
    data.load = load


if __name__ == "__main__":
    from hullo.__main__ import main

    shrink()
    print("ready", flush=True)
    main()
