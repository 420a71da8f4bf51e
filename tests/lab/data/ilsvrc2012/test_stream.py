import itertools
import subprocess
import sys
import threading

import pytest
import torch
from made_ilsvrc import read_images

from hullo.lab.data.ilsvrc2012 import stream
from hullo.lab.data.ilsvrc2012.stream import read_ahead, to_device
from hullo.lab.data.release import DataError


@pytest.fixture
def dataset(packed):
    return packed.images("train")


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    yield
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("read_ahead")]


@pytest.mark.parametrize("piece", [1, 2, 16])
def test_batches_have_the_given_order_(dataset, piece, monkeypatch):
    monkeypatch.setattr(stream, "CHUNK", piece)
    order = torch.cat([torch.randperm(12) for _ in range(6)])
    batches = list(read_ahead(dataset, torch.split(order, 5)))
    assert [len(images) for images in batches] == [5] * 14 + [2]
    # all are still there: none was overwritten by a later one
    assert torch.equal(torch.cat(batches), read_images(dataset, order.tolist()))


def test_only_a_few_batches_are_read_ahead(dataset):
    taken = itertools.count()
    steps = (torch.tensor([next(taken) % 12]) for _ in range(100))
    batches = read_ahead(dataset, steps)
    next(batches)
    assert next(taken) == stream.PREFETCH + 1
    batches.close()


def test_process_with_an_empty_shard_gets_an_empty_batch(dataset):
    (images,) = read_ahead(dataset, [torch.empty(0, dtype=torch.int64)])
    assert images.shape == (0, 256, 256, 3)
    assert list(read_ahead(dataset, [])) == []


def test_error_in_a_thread_is_raised_and_stops_all_threads(packed, dataset):
    with (packed.folder / "train-002.npy").open("r+b") as file:
        file.truncate(5000)
    batches = read_ahead(dataset, torch.split(torch.arange(12), 2))
    with pytest.raises(DataError, match=r"train-002.npy is truncated"):
        list(batches)


@pytest.mark.parametrize("how", ["close", "forget", "raise"])
def test_abandoned_stream_leaves_no_threads(dataset, how):
    def use():
        for _ in (batches := read_ahead(dataset, torch.split(torch.arange(12), 1))):
            if how == "close":
                batches.close()
            if how == "raise":
                raise KeyboardInterrupt
            return

    if how == "raise":
        with pytest.raises(KeyboardInterrupt):
            use()
    else:
        use()


PROCESS = """
import sys, torch
from pathlib import Path
from hullo.lab.data.ilsvrc2012.pack import Pack
from hullo.lab.data.ilsvrc2012.stream import read_ahead
batches = read_ahead(Pack(Path(sys.argv[1])).images("train"), torch.split(torch.arange(12), 1))
print(len(next(batches)))
raise KeyboardInterrupt
"""


def test_interrupted_process_ends_with_its_threads(packed):
    command = [sys.executable, "-c", PROCESS, str(packed.folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("1\n", -2)
    assert done.stderr.endswith("KeyboardInterrupt\n")


def test_batches_are_unchanged_on_cpu(dataset):
    batches = list(read_ahead(dataset, torch.split(torch.arange(12), 5)))
    for one, other in zip(to_device(batches, torch.device("cpu")), batches, strict=True):
        assert torch.equal(one, other)


@pytest.mark.gpu
def test_batches_are_copied_from_pinned_memory_on_gpu(dataset):
    order = torch.cat([torch.randperm(12) for _ in range(20)])
    steps = list(torch.split(order, 7))
    sums = []
    for images in to_device(read_ahead(dataset, steps), torch.device("cuda")):
        torch.cuda._sleep(2_000_000)  # what is done with a batch takes longer than to copy the next
        sums.append(images.long().sum((1, 2, 3)))
    assert next(read_ahead(dataset, steps)).is_pinned()
    expected = torch.stack([dataset[number][0].long().sum() for number in order.tolist()])
    assert torch.equal(torch.cat(sums).cpu(), expected)


@pytest.mark.gpu
def test_only_a_few_batches_are_queued_on_gpu(dataset):
    order = torch.cat([torch.randperm(12) for _ in range(20)])
    uses = []
    for _ in to_device(read_ahead(dataset, torch.split(order, 7)), torch.device("cuda")):
        torch.cuda._sleep(20_000_000)  # some ten milliseconds: reading is far faster
        uses.append(torch.cuda.current_stream().record_event())
        assert sum(not use.query() for use in uses) <= stream.MAX_QUEUED + 1
    assert len(uses) > 10 * stream.MAX_QUEUED
