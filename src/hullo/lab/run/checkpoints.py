"""Save and restore trainings of populations."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from hullo.lab.files import locked, read_tensors, write_tensors
from hullo.lab.run.loaders import Loader
from hullo.lab.run.training import Training
from hullo.lab.spec.checkpoint_files import REMEDY, VERSION, read_members, scan_checkpoints
from hullo.lab.spec.run_spec import Spec, identify
from hullo.population.kernels import choice

CHOSEN = "chosen."
"""Prefix of the tensors of the epochs that are best on validation data."""


@dataclass(frozen=True)
class Checkpoints:
    """A folder of checkpoints, one per population."""

    folder: Path

    def started(self) -> list[tuple[Spec, ...]]:
        """Return the members of each population with a checkpoint; raise a ValueError for a file that is not one."""
        populations, flaws = scan_checkpoints(self.folder)
        if flaws:
            raise ValueError(flaws[0])
        return populations

    def save(self, training: Training, chosen: Mapping[str, Tensor] | None = None) -> None:
        """Save a training's state and that of its chosen epochs, replacing the previous checkpoint atomically."""
        state = training.state_dict() | {f"{CHOSEN}{name}": tensor for name, tensor in (chosen or {}).items()}
        specs = json.dumps([str(spec) for spec in training.specs])
        metadata = {"version": VERSION, "specs": specs, "data": _describe(training.loader)}
        write_tensors(self._path(training.specs), state, metadata | {"choices": json.dumps(choice.choices())})

    def restore(self, training: Training) -> dict[str, Tensor]:
        """Load the checkpoint of a training, if there is one; return the state of its chosen epochs.

        Raises a ValueError if the checkpoint does not fit; the training cannot be used then.
        """
        path = self._path(training.specs)
        if not path.exists():
            return {}
        read_members(path)
        try:
            state, metadata = read_tensors(path)
            if metadata["data"] != (now := _describe(training.loader)):
                raise ValueError(f"{path} was saved with {metadata['data']}, but the data set has {now}")
            chosen = {name.removeprefix(CHOSEN): state.pop(name) for name in list(state) if name.startswith(CHOSEN)}
            choice.take(json.loads(metadata["choices"]))
            training.load_state_dict(state)
        except (KeyError, ValueError, RuntimeError) as error:
            raise ValueError(f"{path} does not fit its runs: {' '.join(str(error).split())}; {REMEDY}") from error
        return chosen

    def delete(self, specs: tuple[Spec, ...]) -> None:
        self._path(specs).unlink(missing_ok=True)

    @contextmanager
    def lock(self, specs: tuple[Spec, ...], on_wait: Callable[[int], None]) -> Iterator[None]:
        """Hold the lock of a population against other processes; see `locked`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder / f".{identify(specs)}.lock", on_wait):
            yield

    def _path(self, specs: tuple[Spec, ...]) -> Path:
        return self.folder / f"{identify(specs)}.safetensors"


def _describe(loader: Loader) -> str:
    counts = [f"{count:,} {name}" for name, count in {"training": loader.count, **loader.eval_sizes}.items()]
    return f"{', '.join(counts)} images of {loader.task.num_classes:,} classes"
