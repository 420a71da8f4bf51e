"""Measure how fast ILSVRC-2012 is read: from JPEG by decoding processes, and from its pack by reading threads.

    python benchmarks/ilsvrc_reading.py --source DATA/ilsvrc2012 [--workers 2] [--folder SCRATCH]

Re-encodes training images of the source at 500 x 375 pixels and about 90 KB, the average of the released ones. Prints
images per second. The pack is in the page cache when it is read: for a slower disk, divide its bandwidth by 196,608
bytes.
"""

from __future__ import annotations

import argparse
import io
import tempfile
import time
from functools import partial
from pathlib import Path

import torch
from PIL import Image
from rich.console import Console

from hullo.lab.bench.clocks import clock_for
from hullo.lab.data.ilsvrc2012 import Pack, read_ahead, split_steps
from hullo.lab.data.ilsvrc2012.decoding import decode
from hullo.lab.data.ilsvrc2012.packing import pack
from hullo.lab.data.ilsvrc2012.source import Bytes, EncodedImage, Source
from hullo.lab.data.ilsvrc2012.workers import available_cores, worker_processes
from hullo.lab.progress import Progress
from hullo.lab.spec.environment import environment

COUNT, BATCH, SECONDS, CHUNK = 1024, 256, 5.0, 32
SIZE, BYTES = (500, 375), 115_000


def enlarge(released: EncodedImage, folder: Path) -> EncodedImage:
    """Write an image of the size of the released ones to a file."""
    with Image.open(io.BytesIO(released.encoded.read())) as image:
        large = image.convert("RGB").resize(SIZE)
    for quality in range(100, 70, -2):
        stream = io.BytesIO()
        large.save(stream, "JPEG", quality=quality)
        if stream.tell() <= BYTES:
            break
    path = folder / released.name
    path.write_bytes(stream.getvalue())
    return released._replace(encoded=Bytes(str(path)))


def decode_all(images: list[EncodedImage]) -> int:
    return sum(decode(image.encoded.read()).shape[0] > 0 for image in images)


def from_jpeg(images: list[EncodedImage], workers: int) -> float:
    """Return the images per second that processes decode."""
    chunks = [images[start : start + CHUNK] for start in range(0, len(images), CHUNK)]
    with worker_processes(workers) as pool:
        list(pool.map(decode_all, chunks[: 2 * workers]))
        start = time.perf_counter()
        count = sum(pool.map(decode_all, chunks))
        return count / (time.perf_counter() - start)


def from_pack(folder: Path, workers: int) -> float:
    """Return the images per second that threads read in a random order, batch after batch."""
    dataset = Pack.open(folder).images("train")
    order = torch.cat([torch.randperm(len(dataset)) for _ in range(500)])
    count, start = 0, 0.0
    for step, images in enumerate(read_ahead(dataset, split_steps(order, BATCH), workers=workers)):
        if step == 10:
            count, start = 0, time.perf_counter()
        count += len(images)
        if step > 10 and time.perf_counter() - start > SECONDS:
            break
    return count / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=available_cores())
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    source = Source(options.source)
    chosen = {split: source.images(split)[:COUNT] for split in ("train", "val")}
    print(f"{environment(clock_for('cpu').device_name)}; images per second:")
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch, Progress(Console(), quiet=True) as progress:
        folder = Path(scratch)
        large = [enlarge(image, folder) for image in chosen["train"]]
        mean_size = sum(Path(image.encoded.path).stat().st_size for image in large) / len(large)
        what = f"{SIZE[0]} x {SIZE[1]}, {mean_size / 1e3:.0f} KB"
        print(f"JPEG of {what}, decoded by {options.workers} processes: {from_jpeg(large, options.workers):,.0f}")
        print(
            f"JPEG as given, decoded by {options.workers} processes: {from_jpeg(chosen['train'], options.workers):,.0f}"
        )
        pool = partial(worker_processes, options.workers)
        pack(source, chosen, folder / "packed", pool, progress, partial=True)
        for workers in sorted({1, options.workers, 2 * options.workers}):
            print(f"packed, read by {workers} threads: {from_pack(folder / 'packed', workers):,.0f}")


if __name__ == "__main__":
    main()
