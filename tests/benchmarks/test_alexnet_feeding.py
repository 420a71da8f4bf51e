"""Test the benchmark of data loading: it runs from pack to rows, and its variants train on the same batches."""

import csv
import importlib.util
from pathlib import Path

import pytest
import torch

from hullo.lab.distributed import SINGLE_PROCESS

SPEC = importlib.util.spec_from_file_location(
    "alexnet_feeding", Path(__file__).parents[2] / "benchmarks" / "alexnet_feeding.py"
)
feeding = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(feeding)

SEEDS = torch.tensor([0])


@pytest.fixture
def made(tmp_path, monkeypatch):
    monkeypatch.setattr(feeding, "IMAGES", 6)
    return feeding.make_pack(tmp_path)


def test_epoch_reads_every_packed_image(made):
    loader = feeding.StreamingLoader(made, torch.device("cpu"))
    labels = torch.cat([labels for _, (_, labels, _) in loader.batches(SEEDS, 0, 5, 0, SINGLE_PROCESS)])
    assert labels.bincount().tolist() == 6 * [feeding.TIMES]


def test_resident_batch_equals_first_streamed_batch(made):
    loader, still = (kind(made, torch.device("cpu")) for kind in (feeding.StreamingLoader, feeding.RepeatingLoader))
    whole, first = next(loader.batches(SEEDS, 0, 4, 0, SINGLE_PROCESS))
    again = list(still.batches(SEEDS, 0, 4, 0, SINGLE_PROCESS))
    assert len(again) == loader.count // 4
    assert all(count == whole and all(map(torch.equal, batch, first)) for count, batch in again)


def test_every_case_is_measured_and_saved(tmp_path, monkeypatch):
    sizes = {"IMAGES": 4, "BATCH": 2, "STEPS": 1, "WARM_UP": 0, "ROUNDS": 1, "ACTIVATIONS": feeding.ACTIVATIONS[1:]}
    for name, value in sizes.items():
        monkeypatch.setattr(feeding, name, value)
    feeding.main(["--csv", str(tmp_path / "rows.csv"), "--device", "cpu"])
    with (tmp_path / "rows.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {(row["kind"], row["activation"]) for row in rows} == {("read", ""), ("fed", "")} | {
        (kind, row) for kind in ("resident", "streamed") for row in feeding.ACTIVATIONS
    }
    assert all(float(row["images_per_second"]) > 0 and row["torch"] == torch.__version__ for row in rows)
