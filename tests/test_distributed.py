"""DistributedDataParallel, with two real processes: the same coefficients as one process that sees all the data."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

import hullo

STEPS = 3


def model(keep: str) -> nn.Sequential:
    torch.manual_seed(0)
    hull = hullo.ConvexHull if keep in hullo.Simplex.ways else hullo.AffineHull
    return nn.Sequential(nn.Linear(4, 6), hull("identity", "relu", "tanh", groups=2, keep=keep), nn.Linear(6, 1))


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(8, 4, generator=generator), torch.randn(8, 1, generator=generator)


def train(network: nn.Module, x: Tensor, y: Tensor) -> None:
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    for _ in range(STEPS):
        optimiser.zero_grad()
        (network(x) - y).square().mean().backward()
        optimiser.step()


def worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    x, y = (part.chunk(2)[rank] for part in data())
    for keep in ("projection", "softmax", "recentred", "free"):
        network = nn.parallel.DistributedDataParallel(model(keep))
        train(network, x, y)
        torch.save(network.module.state_dict(), f"{folder}/{keep}{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()
    # A thread of gloo that asks for the interpreter's lock while the interpreter shuts down aborts the process.
    os._exit(0)


@pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="needs gloo")
def test_two_processes_learn_what_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *sys.path]))
    mp.spawn(worker, args=(str(tmp_path),), nprocs=2)
    for keep in ("projection", "softmax", "recentred", "free"):
        alone = model(keep)
        train(alone, *data())
        first, second = (torch.load(tmp_path / f"{keep}{rank}.pt", weights_only=True) for rank in (0, 1))
        for name, tensor in alone.state_dict().items():
            assert torch.equal(first[name], second[name])
            torch.testing.assert_close(first[name], tensor, rtol=1e-4, atol=1e-5)
        assert not torch.equal(first["1.raw"], model(keep)[1].raw)
