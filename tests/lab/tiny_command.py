"""The command line with a few images of the packaged sample as every data set: python tiny_command.py train ..."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hullo.lab import data
from hullo.lab.data import Dataset

TRAIN, TEST = 70, 30
real_load = data.load

COLUMN = "lenet5/fashion-mnist-sample"
ROWS = ("relu", "convex(identity,relu)", "affine(identity,relu,tanh)")
REPRODUCE = ("reproduce", COLUMN, *(word for row in ROWS for word in ("--activation", row)), "--seeds", "1")
REPRODUCE = (*REPRODUCE, "--lr", "0.001", "--epochs")


PRELOADED = ["hullo.lab.cli", "hullo.lab.run.local", "hullo.lab.analysis.figures", "torch.export._trace"]
PRELOADED += ["matplotlib.backends.backend_pdf", "matplotlib.backends.backend_agg", "fontTools.subset"]
_forks = multiprocessing.get_context("forkserver")  # children are forks of a process that has imported what they need
_forks.set_forkserver_preload([__name__, *PRELOADED])


class Command:
    """The command in a process of its own, which writes to files."""

    def __init__(self, *arguments: object, **environment: str) -> None:
        self._files = [Path(tempfile.mkdtemp(), name) for name in ("stdout", "stderr")]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
        words = [str(argument) for argument in arguments]
        self._process = _forks.Process(target=_run, args=(words, environment, Path.cwd(), self._files), daemon=True)
        with patch.dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path)), OMP_NUM_THREADS="1"):
            self._process.start()
        self.pid = self._process.pid or 0
        while not self.read()[0] and self.poll() is None:  # until it has a session of its own
            time.sleep(0.001)

    def read(self) -> list[str]:
        """Return what it wrote so far to standard output and standard error."""
        return [path.read_text() if path.exists() else "" for path in self._files]

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs; the negative number of the signal that ended it."""
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def wait(self, timeout: float = 60) -> tuple[int, str, str]:
        """Return the exit code and what was written, once the process has ended."""
        self._process.join(timeout)
        code = self.poll()
        assert code is not None, self.read()
        message, errors = self.read()
        return code, message.removeprefix("ready\n"), errors

    def finish(self) -> tuple[str, str]:
        """Return what was written, once the process has succeeded."""
        code, *message = self.wait(120)
        assert code == 0, message
        return message[0], message[1]


def _run(arguments: list[str], environment: dict[str, str], folder: Path, files: list[Path]) -> None:
    """Run the command in this process, which ends with it."""
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for stream, path in zip((sys.stdout, sys.stderr), files, strict=True):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream.fileno())
    sys.argv = ["hullo", *arguments]
    run()


def results(output: Path) -> list[dict[str, Any]]:
    """Return the records of a directory, without the time that training took."""
    lines = [json.loads(line) for line in (output / "records.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


def load(name: str, data_dir: object = None, device: object = "cpu") -> Dataset:
    """Return the first images of the sample as the data set of that name; four of each in one for CIFAR-10, so that
    they are large enough for AlexNet."""
    if name in data.OWN:
        return real_load(name)
    sample = real_load("fashion-mnist-sample")
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


def run() -> None:
    from hullo.__main__ import main

    shrink()
    print("ready", flush=True)
    main()


if __name__ == "__main__":
    run()
