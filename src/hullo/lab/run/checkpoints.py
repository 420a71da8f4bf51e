"""Save and restore the training of populations."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from safetensors.torch import save

from hullo.lab.files import atomic_write, locked
from hullo.lab.run.loaders import Loader
from hullo.lab.run.training import Training
from hullo.lab.spec.checkpoint_files import REMEDY, VERSION, read_checkpoint, read_members, scan_checkpoints
from hullo.lab.spec.run_spec import Spec, identify


@dataclass(frozen=True)
class Checkpoints:
    """A folder of checkpoints, one per population that was begun and is not yet recorded."""

    folder: Path

    def begun(self) -> list[tuple[Spec, ...]]:
        """Return the members of each population that was begun; refuse a file that is no checkpoint."""
        found, flaws = scan_checkpoints(self.folder)
        if flaws:
            raise ValueError(flaws[0])
        return found

    def save(self, training: Training) -> None:
        """Save a training's state; the one before it is replaced in one go, or stays."""
        self.folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in training.state_dict().items()}
        specs = json.dumps([str(spec) for spec in training.specs])
        about = {"version": VERSION, "specs": specs, "data": _describe(training.loader)}
        path = self._path(training.specs)
        # one process at a time trains a population, so the part that a killed one left is overwritten
        with atomic_write(path, path.with_name(f".{path.name}.part")) as file:
            file.write(save(tensors, about))

    def find_shorter(self, specs: tuple[Spec, ...]) -> tuple[Spec, ...] | None:
        """Return the longest of the populations that are these but for fewer epochs; None if there is none.

        Where the learning rate depends on the number of epochs, as with a cosine, there is none.
        """
        if specs[0].schedule == "cosine":
            return None
        wanted, found = specs[0].epochs, []
        for members in scan_checkpoints(self.folder)[0]:
            if members[0].epochs < wanted and tuple(replace(spec, epochs=wanted) for spec in members) == specs:
                found.append(members)
        return max(found, key=lambda members: members[0].epochs, default=None)

    def restore(self, training: Training, specs: tuple[Spec, ...] | None = None) -> None:
        """Take a training to where its checkpoint, or that of other specs, was made, if there is one.

        A bad checkpoint changes nothing.
        """
        path = self._path(specs or training.specs)
        if not path.exists():
            return
        read_members(path)
        before, state = read_checkpoint(path)
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


def _describe(loader: Loader) -> str:
    counts = [f"{count:,} {name}" for name, count in {"training": loader.count, **loader.eval_sizes}.items()]
    return f"{', '.join(counts)} images of {loader.task.num_classes:,} classes"
