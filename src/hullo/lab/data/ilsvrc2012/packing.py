"""The one-time preparation of ILSVRC-2012: all images decoded and resized, in a few large files.

A pack is a folder of shards, the mean training image, and a manifest, which is written last. Killed at any moment, it
goes on with the shards that are not there yet.
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
from hullo.lab.files import atomic_write, locked, make_directory
from hullo.lab.progress import Progress

SHARD = 4096
"""Images a shard: 805 MB of them."""

Pool = Callable[[], AbstractContextManager[Executor]]
Plan = dict[Path, list[EncodedImage]]
"""Which images each shard shall hold."""


def choose(source: Source, progress: Progress, *, partial: bool) -> dict[str, list[EncodedImage]]:
    """The images of each split to be packed: all that were released, or those there are if a part will do."""
    chosen, lacking = {}, []
    for done, split in enumerate(SPLITS):
        progress.start_step(f"looking through {source.place(split)}", done, len(SPLITS))
        chosen[split] = source.images(split, progress.update)
        found, wanted = len(chosen[split]), source.num_released(split)
        if not found:
            raise DataError(f"{source.place(split)} holds no images; their names end in .JPEG")
        if found != wanted:
            lacking.append(f"{found:,} of {wanted:,} {split} images{source.shortfall(split)}")
    state = f"{source.folder} has {' and '.join(lacking)}"
    if lacking and not partial:
        raise DataError(
            f"{state}; hullo data check ilsvrc2012 says which are missing; to pack those that are there, add --partial"
        )
    if lacking:
        progress.note(f"{state}; they alone are packed")
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
    """Make the pack of the chosen images, or what is lacking of it, in a folder; `pool` gives those who do the work.

    An image that cannot be decoded is named and stops nothing. At the end the pack is made without such images, and
    counts them, if a part will do. Else no manifest is written, and the shards are kept. An image that is damaged, but
    can be decoded, is named and packed. The next run makes those shards anew whose broken or damaged images were
    mended.
    """

    def refuse(_: int) -> None:
        raise DataError(f"another process is packing into {folder}; wait for it, or stop it")

    make_directory(folder)
    plans = {split: _plan(folder, split, images) for split, images in chosen.items()}
    whole = {path: images for plan in plans.values() for path, images in plan.items()}
    try:
        with locked(folder / ".lock", refuse):
            missing = {path: images for path, images in whole.items() if not _is_done(path, images)}
            for path in sorted(whole.keys() - missing.keys()):
                _note_flaws(path, progress)
            _clear(folder.glob("*.part"))  # of a process that was killed
            _check_space(folder, missing)
            if missing:
                (folder / MANIFEST).unlink(missing_ok=True)
            try:
                _write_shards(missing, len(whole), pool, progress)
                made = _finish(source, folder, plans, partial=partial)
            finally:
                _clear(folder.glob("*.part"))  # of workers that were stopped
            _clear(path for path in folder.glob("*-*.safetensors") if path not in whole)  # of an earlier plan
            return made
    except BrokenProcessPool as error:
        raise DataError(
            "a worker was killed, perhaps for want of memory; finished shards are kept; use fewer --workers"
        ) from error
    except OSError as error:
        raise DataError(
            f"cannot write {error.filename or folder}: {error.strerror}; finished shards are kept; make room there, or "
            "choose another directory with --data"
        ) from error


def _plan(folder: Path, split: str, images: list[EncodedImage]) -> Plan:
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


def _clear(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _check_space(folder: Path, missing: Plan) -> None:
    count = sum(map(len, missing.values()))
    wanted, free = 1.01 * IMAGE_BYTES * count, shutil.disk_usage(folder).free
    if free < wanted:
        raise DataError(
            f"{folder} has {free / 1e9:.1f} GB free, but {count:,} images of 256 x 256 pixels want "
            f"{wanted / 1e9:.1f} GB; make room there, or choose another directory with --data"
        )


def _write_shards(missing: Plan, total: int, pool: Pool, progress: Progress) -> None:
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


def _finish(source: Source, folder: Path, plans: dict[str, Plan], *, partial: bool) -> Pack:
    shards = {split: [Shard.open(path) for path in plan] for split, plan in plans.items()}
    broken = {split: [flaw for shard in found for flaw in shard.broken] for split, found in shards.items()}
    count = sum(map(len, broken.values()))
    if count and not partial:
        raise DataError(
            f"{count:,} images are broken; all others are packed and kept in {folder}; mend the broken ones in "
            f"{source.folder} and pack again, or leave them out with --partial"
        )
    total = np.sum([shard.sum() for shard in shards["train"]], axis=0)
    mean = save({"mean": (total / sum(len(shard.labels) for shard in shards["train"])).astype(np.float32)})
    with atomic_write(folder / MEAN) as file:
        file.write(mean)
    words = {item.wnid: item.words for item in source.devkit.classes} if source.devkit else {}
    made = Pack(
        folder,
        tuple((wnid, words.get(wnid, "")) for wnid in source.wnids),
        {
            split: Part(
                tuple(ShardEntry(shard.path.name, len(shard.labels), shard.digest) for shard in shards[split]),
                tuple(broken[split]),
                tuple(flaw for shard in shards[split] for flaw in shard.damaged),
                source.num_released(split),
            )
            for split in plans
        },
        hashlib.sha256(mean).hexdigest(),
    )
    with atomic_write(folder / MANIFEST) as file:
        file.write(made.manifest())
    return made
