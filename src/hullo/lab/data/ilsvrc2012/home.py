"""ILSVRC-2012 in a data directory: what is there, and what to do next."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from hullo.lab.data.ilsvrc2012.pack import IMAGE_BYTES, MANIFEST, Pack
from hullo.lab.data.ilsvrc2012.source import DEVKIT, NUM_RELEASED, TARS, Source
from hullo.lab.data.release import data_root
from hullo.lab.progress import Progress

NAME = "ilsvrc2012"
FILES = ", ".join(f"{file.name} ({file.size / 1e9:.1f} GB, md5 {file.digest})" for file in (*TARS.values(), DEVKIT))


@dataclass(frozen=True)
class Home:
    """The pack in a data directory, and the released files there or elsewhere; `name` may be that of a part."""

    root: Path
    elsewhere: Path | None = None
    name: str = NAME

    @cached_property
    def source(self) -> Source:
        return Source(self.elsewhere or self.root / self.name)

    @property
    def packed(self) -> Path:
        return self.root / self.name / "packed"

    @property
    def command(self) -> str:
        """The command that makes the pack."""
        data = [] if self.root == data_root() else ["--data", str(self.root)]
        source = [] if self.elsewhere is None else ["--source", str(self.elsewhere)]
        part = [] if self.name == NAME else ["--partial"]
        return shlex.join(["hullo", "data", "pack", self.name, *data, *source, *part])

    def explain_fetch(self) -> str:
        """Return instructions for getting the data set."""
        if self.name != NAME:
            return f"put the folders train and val of {self.name} into {self.source.folder}, then run: {self.command}"
        return (
            f"{self.name} can only be downloaded with an account at https://image-net.org; download {FILES} to "
            f"{self.source.folder}, then run: {self.command}"
        )

    def overview(self) -> tuple[str, str, str, str, str]:
        """Return the name, the content, the size, the state and the location, for the list of data sets."""
        size = f"{sum(NUM_RELEASED.values()) * IMAGE_BYTES / 1e6:,.1f} MB"
        if (self.packed / MANIFEST).exists():
            state = "packed" if Pack.open(self.packed).is_complete else "packed in part"
        else:
            state = "not packed" if self.source.folder.is_dir() else "not fetched"
        return self.name, "1,281,167 + 50,000 color images of things, 256 x 256", size, state, str(self.packed.parent)

    def check(self, progress: Progress) -> tuple[bool, list[str]]:
        """Return whether the pack is complete and intact, and lines that describe what was found."""
        if not (self.packed / MANIFEST).exists():
            return False, [f"{self.name} is not packed in {self.packed}", self.explain_fetch()]
        pack = Pack.open(self.packed)
        progress.start_step(f"verifying {self.packed}", 0, 1)
        if flaws := pack.find_flaws(progress.update):
            return False, [*flaws, f"delete the altered files, then run: {self.command}"]
        counts = (f"{split.num_images:,} of {split.num_released:,} {name}" for name, split in pack.splits.items())
        state = "ready" if pack.is_complete else "incomplete, but usable"
        return pack.is_complete, [f"{self.name} is {state} in {self.packed}: {' and '.join(counts)} images"]
