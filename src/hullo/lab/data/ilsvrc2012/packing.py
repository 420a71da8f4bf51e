"""Pack ILSVRC-2012 once: decode and resize all images into a few large files.

A pack is a folder of shards, the mean training image, and a manifest, which is written last. If packing is killed, the
next call writes only the missing shards.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from hullo.lab.data.ilsvrc2012.packed import MANIFEST, MEAN, Pack, Part, ShardEntry
from hullo.lab.data.ilsvrc2012.shards import IMAGE_BYTES, Shard, write_shard
from hullo.lab.data.ilsvrc2012.source import SPLITS, EncodedImage, Source
from hullo.lab.data.release import DataError
from hullo.lab.files import atomic_write, locked, make_directory, what_to_do
from hullo.lab.progress import Progress

SHARD = 4096
"""Images per shard, 805 MB."""

Pool = Callable[[], AbstractContextManager[Executor]]
ShardLayout = dict[Path, list[EncodedImage]]
"""The images of each shard."""


def choose(source: Source, progress: Progress, *, partial: bool) -> dict[str, list[EncodedImage]]:
    """Return the images of each split to pack: all released ones, or, if `partial`, those available."""
    chosen, incomplete = {}, []
    for done, split in enumerate(SPLITS):
        progress.start_step(f"looking through {source.path_of(split)}", done, len(SPLITS))
        chosen[split] = source.images(split, progress.update)
        available, released = len(chosen[split]), source.num_released(split)
        if not available:
            raise DataError(f"{source.path_of(split)} contains no images, files named *.JPEG")
        if available != released:
            incomplete.append(f"{available:,} of {released:,} {split} images{source.shortfall(split)}")
    state = f"{source.folder} has {' and '.join(incomplete)}"
    if incomplete and not partial:
        raise DataError(
            f"{state}; hullo data check ilsvrc2012 lists missing ones; to pack the available ones, add --partial"
        )
    if incomplete:
        progress.note(f"{state}; only these are packed")
    return chosen


def pack(
    source: Source,
    chosen: dict[str, list[EncodedImage]],
    folder: Path,
    pool: Pool,
    progress: Progress,
    *,
    partial: bool,
) -> Pack:
    """Write the missing shards of a pack, then its manifest; the processes of `pool` decode the images.

    Broken images, which cannot be decoded, are reported. With `partial` the pack is finished without them; otherwise
    the shards are kept, but no manifest is written. Damaged images, which can be decoded, are reported and packed. The
    next call rewrites the shards whose broken or damaged images were replaced.
    """

    def refuse(_: int) -> None:
        raise DataError(f"another process is packing into {folder}; wait until it has finished, or stop it")

    make_directory(folder)
    layouts = {split: _layout(folder, split, images) for split, images in chosen.items()}
    layout = {path: images for part in layouts.values() for path, images in part.items()}
    try:
        with locked(folder / ".lock", refuse):
            missing = {path: images for path, images in layout.items() if not _is_done(path, images)}
            for path in sorted(layout.keys() - missing.keys()):
                _note_flaws(path, progress)
            _delete(folder.glob("*.part"))  # left by a killed process
            _check_space(folder, missing)
            if missing:
                (folder / MANIFEST).unlink(missing_ok=True)
            try:
                _write_shards(missing, len(layout), pool, progress)
                finished = _finish(source, folder, layouts, partial=partial)
            finally:
                _delete(folder.glob("*.part"))  # left by stopped workers
            _delete(path for path in folder.glob("*-*.safetensors") if path not in layout)  # of an earlier layout
            return finished
    except BrokenProcessPool as error:
        raise DataError(
            "a worker was killed, perhaps because memory ran out; finished shards are kept; use fewer --workers"
        ) from error
    except OSError as error:
        raise DataError(
            f"cannot write {error.filename or folder}: {error.strerror}; finished shards are kept; "
            f"{what_to_do(error, 'choose another directory with --data')}"
        ) from error


def _layout(folder: Path, split: str, images: list[EncodedImage]) -> ShardLayout:
    starts = range(0, len(images), SHARD)
    return {folder / f"{split}-{n:03}.safetensors": images[start : start + SHARD] for n, start in enumerate(starts)}


def _is_done(path: Path, images: list[EncodedImage]) -> bool:
    try:
        return Shard.open(path).holds(images)
    except DataError:
        return False


def _note_flaws(path: Path, progress: Progress) -> None:
    shard = Shard.open(path)
    for name, reason in shard.broken:
        progress.note(f"{name} is broken: {reason}")
    for name, reason in shard.damaged:
        progress.note(f"{name} is damaged, but can be decoded: {reason}")


def _delete(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _check_space(folder: Path, missing: ShardLayout) -> None:
    count = sum(map(len, missing.values()))
    needed, free = 1.01 * IMAGE_BYTES * count, shutil.disk_usage(folder).free
    if free < needed:
        raise DataError(
            f"{folder} has {free / 1e9:.1f} GB free, but {count:,} images of 256 x 256 pixels need "
            f"{needed / 1e9:.1f} GB; free disk space, or choose another directory with --data"
        )


def _write_shards(missing: ShardLayout, total: int, pool: Pool, progress: Progress) -> None:
    with pool() as executor:
        futures = {executor.submit(write_shard, path, images): path for path, images in missing.items()}
        try:
            for done, future in enumerate(as_completed(futures), total - len(missing)):
                future.result()
                progress.start_step(futures[future].name, done, total)
                _note_flaws(futures[future], progress)
        except BaseException:
            for future in futures:
                future.cancel()
            raise


def _finish(source: Source, folder: Path, layouts: dict[str, ShardLayout], *, partial: bool) -> Pack:
    shards = {split: [Shard.open(path) for path in part] for split, part in layouts.items()}
    broken = {split: [flaw for shard in opened for flaw in shard.broken] for split, opened in shards.items()}
    count = sum(map(len, broken.values()))
    if count and not partial:
        raise DataError(
            f"{count:,} images are broken; the others are packed in {folder}; replace the broken ones in "
            f"{source.folder} and pack again, or leave them out with --partial"
        )
    total = np.sum([shard.sum() for shard in shards["train"]], axis=0)
    mean = save({"mean": (total / sum(len(shard.labels) for shard in shards["train"])).astype(np.float32)})
    with atomic_write(folder / MEAN) as file:
        file.write(mean)
    words = {item.wnid: item.words for item in source.devkit.classes} if source.devkit else {}
    finished = Pack(
        folder,
        tuple((wnid, words.get(wnid, "")) for wnid in source.wnids),
        {
            split: Part(
                tuple(ShardEntry(shard.path.name, len(shard.labels), shard.digest) for shard in shards[split]),
                tuple(broken[split]),
                tuple(flaw for shard in shards[split] for flaw in shard.damaged),
                source.num_released(split),
            )
            for split in layouts
        },
        hashlib.sha256(mean).hexdigest(),
    )
    with atomic_write(folder / MANIFEST) as file:
        file.write(finished.manifest())
    return finished
