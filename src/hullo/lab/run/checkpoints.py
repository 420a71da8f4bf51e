"""Checkpoints of populations that are being trained: files that are whole or not there."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from hullo.lab.files import atomic_write, check_regular, locked
from hullo.lab.run.loaders import Loader
from hullo.lab.run.training import Training
from hullo.lab.spec.run_spec import Spec, identify
from hullo.lab.spec.schema import List, Text, read_json

VERSION = "4"
REMEDY = "delete it to train its runs anew"


@dataclass(frozen=True)
class Checkpoints:
    """A folder of checkpoints, one per population that was begun and is not yet recorded."""

    folder: Path

    def begun(self) -> list[tuple[Spec, ...]]:
        """Return the members of each population that was begun; refuse a file that is no checkpoint."""
        found, flaws = self.scan()
        if flaws:
            raise ValueError(flaws[0])
        return found

    def scan(self) -> tuple[list[tuple[Spec, ...]], list[str]]:
        """Return the members of each population that was begun, and what is wrong with other files."""
        found, flaws = [], []
        for path in sorted(self.folder.glob("*.safetensors")):
            try:
                found.append(_read_members(path))
            except FileNotFoundError:  # another process has just recorded it
                continue
            except ValueError as error:
                flaws.append(str(error))
        return found, flaws

    def save(self, training: Training) -> None:
        """Keep a training's state; the one before it is replaced in one go, or stays."""
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in training.state_dict().items()}
        specs = json.dumps([str(spec) for spec in training.specs])
        about = {"version": VERSION, "specs": specs, "data": _describe(training.loader)}
        path = self._path(training.specs)
        # one process at a time trains a population, so the part that a killed one left is overwritten
        with atomic_write(path, path.with_name(f".{path.name}.part")) as file:
            file.write(save(tensors, about))

    def restore(self, training: Training) -> None:
        """Take a training to where its checkpoint was made, if there is one; a bad one changes nothing."""
        path = self._path(training.specs)
        if not path.exists():
            return
        _read_members(path)
        before, state = _read(path)
        if before.get("data") != (now := _describe(training.loader)):
            raise ValueError(
                f"{path} was made with {before.get('data')}, and now there are {now}; bring back the data that it was "
                f"made with, or {REMEDY}"
            )
        try:
            training.load_state_dict(state)
        except ValueError as error:
            raise ValueError(f"{path} is no checkpoint of its runs: {error}; {REMEDY}") from error

    def drop(self, specs: tuple[Spec, ...]) -> None:
        self._path(specs).unlink(missing_ok=True)

    @contextmanager
    def alone(self, specs: tuple[Spec, ...], on_wait: Callable[[int], None]) -> Iterator[None]:
        """Wait until no other process trains the same population, and keep others from it; see `locked`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder / f".{identify(specs)}.lock", on_wait):
            yield

    def _path(self, specs: tuple[Spec, ...]) -> Path:
        return self.folder / f"{identify(specs)}.safetensors"


def _read_members(path: Path) -> tuple[Spec, ...]:
    """Read whose checkpoint a file is, from its metadata; a ValueError says what is wrong with it."""
    about, _ = _read(path, tensors=False)
    if (version := about.get("version")) != VERSION:
        raise ValueError(
            f"{path} is a checkpoint of version {version or 'none'}, this hullo reads version {VERSION}; finish with "
            f"the hullo that wrote it, or {REMEDY}"
        )
    try:
        spelled = read_json(about.get("specs", "").encode())
        List(Text()).check(spelled, "specs")
        members = tuple(map(Spec.parse, spelled))
        if (name := identify(members)) != path.stem:
            raise ValueError(f"specs: those of {name}.safetensors")
        if len({spec.population_key for spec in members}) > 1 or len(set(members)) < len(members):
            raise ValueError("specs: not those of one population")
    except ValueError as error:
        raise ValueError(f"{path} is no checkpoint: {error}; {REMEDY}") from None
    return members


def _read(path: Path, *, tensors: bool = True) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Read the metadata of a file, and its tensors if wanted."""
    try:
        check_regular(os.stat(path), path)
        with safe_open(path, "pt") as file:
            about: dict[str, str] = file.metadata() or {}
            return about, {name: file.get_tensor(name) for name in file.keys()} if tensors else {}  # noqa: SIM118
    except FileNotFoundError:
        raise
    except SafetensorError as error:
        raise ValueError(f"{path} is no checkpoint: {error}; {REMEDY}") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror or error}); make it readable, or {REMEDY}") from None


def _describe(loader: Loader) -> str:
    counts = [f"{count:,} {name}" for name, count in {"training": loader.count, **loader.eval_sizes}.items()]
    return f"{', '.join(counts)} images of {loader.task.num_classes:,} classes"
