"""Measure whether reading ILSVRC-2012 keeps up with AlexNet on a GPU: images per second that are read, fed, trained on.

    python benchmarks/alexnet_feeding.py [--csv rows.csv]

Packs synthetic images of a thousand classes into the temporary directory (8 GB; set `TMPDIR` for another), then
measures in interleaved rounds

    read       batches of the pack into pinned memory, with a few more threads than cores
    fed        the same, copied to the device, cropped, flipped, and the mean image subtracted
    resident   the laboratory's training on one batch that stays on the device: nothing is read
    streamed   the laboratory's training on batches that are fed

in bfloat16, batches of 256. The cost of feeding is streamed compared with resident. A row has the median and the 10th
and 90th percentile over rounds. Without a GPU it takes one step of each with a tiny batch, as a test.

Limits: the pack has just been written and is in the page cache, which could not hold the real one of 252 GB. A disk
needs 196,608 bytes of bandwidth per image, 4.5 GB/s for 23,000 images per second. Each file is used eight times per
epoch, which is never finished: evaluation, checkpoints and the first batches of an epoch are not measured.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from torch import Tensor

from hullo.lab.bench.harness import Harness
from hullo.lab.data.ilsvrc2012 import Pack, PackedImages, read_ahead, split_steps
from hullo.lab.data.ilsvrc2012.pack import pack
from hullo.lab.data.ilsvrc2012.source import NUM_CLASSES, Source
from hullo.lab.distributed import SINGLE_PROCESS, World
from hullo.lab.progress import Progress
from hullo.lab.run.loaders import Batch, StreamingLoader
from hullo.lab.run.training import Training
from hullo.lab.spec.run_spec import Spec

IMAGES, BATCH, STEPS, WARM_UP, ROUNDS = (40_960, 256, 120, 10, 3) if torch.cuda.is_available() else (4, 2, 1, 0, 1)
TIMES = 8
"""Number of times that an epoch contains each image."""

ACTIVATIONS = ("relu", "affine(identity,relu,tanh)")


class RepeatedPack(Pack):
    """A pack whose training images come several times per epoch."""

    def images(self, split: str) -> PackedImages:
        return PackedImages(self.shards(split) * (TIMES if split == "train" else 1))


def make_pack(folder: Path) -> Pack:
    """Pack synthetic images of a thousand classes, or fewer if there are fewer images."""
    classes = [f"n{label:08}" for label in range(NUM_CLASSES)]
    colors = np.random.default_rng(0).integers(0, 256, (NUM_CLASSES, 16, 16, 3), np.uint8)
    for number in range(max(IMAGES, NUM_CLASSES)):
        wnid = classes[number % NUM_CLASSES]
        image = Image.fromarray(colors[number % NUM_CLASSES]).resize((256, 256))
        for split in ("train", "val") if number < NUM_CLASSES else ("train",):
            (folder / split / wnid).mkdir(parents=True, exist_ok=True)
            if split == "val" or number < IMAGES:
                image.save(folder / split / wnid / f"{split}_{number}.JPEG", "JPEG")
    with Progress(Console(), quiet=True) as progress:
        packed = pack(Source(folder), folder / "packed", progress, partial=True)
    return RepeatedPack(packed.folder, packed.classes, packed.splits)


class RepeatingLoader(StreamingLoader):
    """Repeat the first batch."""

    def batches(self, seeds: Tensor, epoch: int, size: int, start: int, world: World) -> Iterator[Batch]:
        first = next(super().batches(seeds, epoch, size, 0, world))
        for _ in range(start, self.count // size):
            yield first


def read(loader: StreamingLoader) -> Iterator[None]:
    for _ in read_ahead(loader.train, split_steps(torch.randperm(loader.count), BATCH)):
        yield


def load_batch(loader: StreamingLoader) -> Iterator[None]:
    for _, batch in loader.batches(
        torch.zeros(1, dtype=torch.int64, device=loader.device), 0, BATCH, 0, SINGLE_PROCESS
    ):
        loader.load_batch(*batch)
        yield


def train(loader: StreamingLoader, activation: str) -> Iterator[None]:
    spec = Spec.default("alexnet", "ilsvrc2012", activation, batch_size=BATCH, precision="bfloat16")
    return Training([spec], loader).advance()


def take(steps: Iterator[None], count: int) -> None:
    for _ in range(count):
        next(steps)


def main(arguments: list[str] | None = None) -> None:
    harness = Harness(__doc__, rounds=ROUNDS)
    harness.start(arguments)
    with tempfile.TemporaryDirectory() as folder:
        packed = make_pack(Path(folder))
        loader, repeating = (kind(packed, harness.device) for kind in (StreamingLoader, RepeatingLoader))
        cases = {("read", ""): read(loader), ("fed", ""): load_batch(loader)}
        for row in ACTIVATIONS:
            cases |= {("resident", row): train(repeating, row), ("streamed", row): train(loader, row)}
        for steps in cases.values():
            take(steps, WARM_UP)
        times = harness.compare({case: partial(take, steps, STEPS) for case, steps in cases.items()}, warm_up=0)
        for steps in cases.values():
            steps.close()  # and the threads that read ahead, before the folder is deleted
    for (kind, row), timing in times.items():
        speed, high, low = (STEPS * BATCH / seconds for seconds in timing)
        settings = {"kind": kind, "activation": row, "readers": min(32, (os.cpu_count() or 1) + 4), "batch": BATCH}
        harness.add(**settings, images_per_second=speed, lowest=low, highest=high)


if __name__ == "__main__":
    main()
