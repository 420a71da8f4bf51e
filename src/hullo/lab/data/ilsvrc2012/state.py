"""Find, check and describe the files of ILSVRC-2012 in a data directory."""

from __future__ import annotations

import hashlib
import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from hullo.lab.data.ilsvrc2012 import devkit as devkits
from hullo.lab.data.ilsvrc2012.packed import MANIFEST, Pack
from hullo.lab.data.ilsvrc2012.shards import IMAGE_BYTES
from hullo.lab.data.ilsvrc2012.source import NUM_IMAGES, SPLITS, TARS, Source, readable
from hullo.lab.data.release import DataError, data_root
from hullo.lab.files import open_regular
from hullo.lab.progress import Progress

NAME = "ilsvrc2012"
SUMMARY = "1,281,167 + 50,000 color images of things, 256 x 256"
FILES = ", ".join(
    [f"{tar.name} ({tar.size / 1e9:.1f} GB, md5 {tar.digest})" for tar in TARS.values()]
    + [f"{devkits.ARCHIVE} (md5 {devkits.ARCHIVE_MD5})"]
)
MAX_LISTED = 3
"""Number of classes listed when images are missing."""


@dataclass(frozen=True)
class Home:
    """The location of ILSVRC-2012: the pack in a data directory, and the released files there or elsewhere."""

    root: Path
    elsewhere: Path | None = None

    @cached_property
    def source(self) -> Source:
        return Source(self.elsewhere or self.root / NAME)

    @property
    def packed(self) -> Path:
        return self.root / NAME / "packed"

    @property
    def holds_anything(self) -> bool:
        """Return whether the data directory contains any of its files."""
        return any(self.packed.parent.glob("*"))

    @property
    def command(self) -> str:
        """Return the command that makes the pack."""
        data = [] if self.root == data_root() else ["--data", str(self.root)]
        source = [] if self.elsewhere is None else ["--source", str(self.elsewhere)]
        return shlex.join(["hullo", "data", "pack", NAME, *data, *source])

    def explain_fetch(self) -> str:
        """Return instructions for getting the data set."""
        return (
            f"{NAME} can only be downloaded with an account at https://image-net.org; download {FILES} to "
            f"{self.source.folder}, then run: {self.command}"
        )

    def overview_row(self) -> tuple[str, str, str, str, str]:
        """Return the row of the table of data sets: name, content, size, state and location."""
        size = f"{sum(NUM_IMAGES.values()) * IMAGE_BYTES / 1e6:,.1f} MB"
        with readable(self.packed):
            if (self.packed / MANIFEST).exists():
                state = "packed" if Pack.open(self.packed).is_complete else "packed in part"
            else:
                state = "not packed" if self.source.folder.is_dir() else "not fetched"
        return NAME, SUMMARY, size, state, str(self.packed.parent)

    def check(self, progress: Progress) -> tuple[bool, list[str]]:
        """Return whether the pack is complete and undamaged, and lines that describe what was found.

        With a complete pack, the released files are not needed.
        """
        with readable(self.packed):
            ready, lines = self._check_pack(progress)
        return ready, lines if ready else [*lines, *self._check_source(progress)]

    def _check_pack(self, progress: Progress) -> tuple[bool, list[str]]:
        if not (self.packed / MANIFEST).exists():
            return False, [f"{NAME} is not packed in {self.packed}"]
        pack = Pack.open(self.packed)
        progress.start_step(f"verifying {self.packed}", 0, 1)
        flaws = pack.flaws(progress.update)
        if flaws:
            return False, [*flaws, f"delete the altered files, then run: {self.command}"]
        parts = pack.parts.values()
        lines = [f"{name} is broken: {reason}" for part in parts for name, reason in part.broken]
        lines += [f"{name} is damaged, but packed: {reason}" for part in parts for name, reason in part.damaged]
        counts = " and ".join(
            f"{part.num_images:,} of {part.num_released:,} {split}" for split, part in pack.parts.items()
        )
        state = "ready" if pack.is_complete else "incomplete, but usable"
        return pack.is_complete, [*lines, f"{NAME} is {state} in {self.packed}: {counts} images"]

    def _check_source(self, progress: Progress) -> Iterator[str]:
        source = self.source
        if self.elsewhere is None and not any(source.paths_of(split) for split in SPLITS):
            yield self.explain_fetch()
            return
        is_complete = True
        try:
            kit = source.devkit
            yield (f"devkit: {kit.path}, {len(kit.classes):,} classes" if kit else f"devkit: none; {devkits.REMEDY}")
        except DataError as error:
            is_complete = False
            yield f"devkit: {error}"
        for done, split in enumerate(SPLITS):
            try:
                path = source.path_of(split)
                progress.start_step(f"listing {path}", done, len(SPLITS))
                with readable(path):
                    complete, line = _check_split(source, split, path, progress)
            except DataError as error:
                complete, line = False, str(error)
            is_complete = is_complete and complete
            yield f"{split}: {line}"
        yield (
            f"pack it with: {self.command}"
            if is_complete
            else (
                f"download the rest ({FILES}) from https://image-net.org, or pack the available images with: "
                f"{self.command} --partial"
            )
        )


def _check_split(source: Source, split: str, path: Path, progress: Progress) -> tuple[bool, str]:
    """Return whether a split is complete, and a line that describes it; verify a tar of the right size by checksum."""
    tar = TARS[split]
    if path.name == tar.name and path.stat().st_size == tar.size:
        with open_regular(path) as file:
            digest = hashlib.file_digest(file, "md5").hexdigest()
        same = digest == tar.digest
        return same, f"{path} is {'as released' if same else 'altered'}: expected md5 {tar.digest}, found {digest}"
    images, released = source.images(split, progress.update), source.num_released(split)
    incomplete = []
    if split == "train" and source.devkit is not None:
        counts = Counter(image.label for image in images)
        incomplete = [
            f"{item.wnid} {counts[label]:,} of {item.num_images:,}"
            for label, item in enumerate(source.devkit.classes)
            if counts[label] != item.num_images
        ]
    more = f", {len(incomplete) - MAX_LISTED:,} more classes lack images" if len(incomplete) > MAX_LISTED else ""
    examples = f" ({', '.join(incomplete[:MAX_LISTED])}{more})" if incomplete else ""
    complete = len(images) == released
    remark = "" if complete else source.shortfall(split)
    return complete, f"{path}: {len(images):,} of {released:,} images{examples}{remark}"
