"""Populations on their way, kept in files: each is whole or is not there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from hullo.lab.feeds import Feed
from hullo.lab.files import locked, whole
from hullo.lab.specs import Spec, identify
from hullo.lab.training import Training

VERSION = "3"


@dataclass(frozen=True)
class Checkpoints:
    """A folder of checkpoints, one a population that was begun and is not yet recorded."""

    folder: Path

    def begun(self) -> list[tuple[Spec, ...]]:
        """The members of each population that was begun."""
        found = []
        for path in sorted(self.folder.glob("*.safetensors")):
            with suppress(FileNotFoundError):  # another process has just recorded it
                found.append(self._members(path))
        return found

    def save(self, training: Training) -> None:
        """Keep a training's state; the one before it is replaced in one go, or stays."""
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in training.state_dict().items()}
        specs = json.dumps([str(spec) for spec in training.specs])
        about = {"version": VERSION, "specs": specs, "data": _describe(training.feed)}
        with whole(self._path(training.specs)) as file:
            file.write(save(tensors, about))

    def restore(self, training: Training) -> None:
        """Take a training to where its checkpoint was made, if there is one."""
        path = self._path(training.specs)
        if path.exists():
            self._members(path)
            with safe_open(path, "pt") as file:
                if (before := file.metadata()["data"]) != (now := _describe(training.feed)):
                    raise ValueError(
                        f"{path} was made with {before}, and now there are {now}; bring back the data that it was made "
                        "with, or delete it to train its runs anew"
                    )
                training.load_state_dict({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118

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

    @staticmethod
    def _members(path: Path) -> tuple[Spec, ...]:
        try:
            with safe_open(path, "pt") as file:
                about = file.metadata() or {}
        except SafetensorError as error:
            raise ValueError(f"{path} is no checkpoint ({error}); delete it to train its runs anew") from None
        if about.get("version") != VERSION:
            found = about.get("version", "none")
            raise ValueError(
                f"{path} is a checkpoint of version {found}, this hullo reads version {VERSION}; "
                "finish with the hullo that wrote it, or delete it to train its runs anew"
            )
        return tuple(map(Spec.parse, json.loads(about["specs"])))


def _describe(feed: Feed) -> str:
    counts = [f"{count:,} {name}" for name, count in {"training": feed.count, **feed.eval_sizes}.items()]
    return f"{', '.join(counts)} images of {feed.task.num_classes:,} classes"
