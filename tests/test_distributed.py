"""DistributedDataParallel and fully_shard, with two real processes: the same coefficients as in one process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import hullo

STEPS = 3
KEEPS = ("projection", "softmax", "recentred", "free")
Job = Callable[[int, str], None]


def model(parametrization: str) -> nn.Sequential:
    torch.manual_seed(0)
    hull = hullo.ConvexHull if parametrization in hullo.coefficients.SIMPLEX.choices else hullo.AffineHull
    start = (
        [[0.0, 1.0, 0.0], [0.5, 0.5, 0.0]] if parametrization == "projection" else None
    )  # on the boundary of the simplex
    options = {"groups": 2, "parametrization": parametrization, "init": start}
    act = hull("identity", "relu", "tanh", inner_scale="base" if parametrization == "free" else None, **options)
    return nn.Sequential(nn.Linear(4, 6), act, nn.Linear(6, 1))


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(8, 4, generator=generator), torch.randn(8, 1, generator=generator)


def train(network: nn.Module, x: Tensor, y: Tensor) -> None:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    for _ in range(STEPS):
        optimizer.zero_grad()
        (network(x) - y).square().mean().backward()
        optimizer.step()


def worker(rank: int, folder: str, job: Job) -> None:
    torch.set_num_threads(1)
    rendezvous = f"file://{folder}/rendezvous"
    dist.init_process_group("gloo", rendezvous, timeout=timedelta(minutes=1), rank=rank, world_size=2)
    job(rank, folder)
    dist.barrier()
    dist.destroy_process_group()
    # A thread of gloo that asks for the interpreter's lock while the interpreter shuts down aborts the process.
    os._exit(0)


def learn_together(rank: int, folder: str) -> None:
    x, y = (part.chunk(2)[rank] for part in data())
    for parametrization in KEEPS:
        network = nn.parallel.DistributedDataParallel(model(parametrization))
        train(network, x, y)
        torch.save(network.module.state_dict(), f"{folder}/{parametrization}{rank}.pt")
    network = nn.parallel.DistributedDataParallel(plain())
    train(network, x, y)
    with pytest.raises(TypeError, match="DistributedDataParallel"):
        hullo.replace_activations(network, example_inputs=x)
    network = nn.parallel.DistributedDataParallel(hullo.replace_activations(network.module, example_inputs=x))
    train(network, x, y)
    torch.save(network.module.state_dict(), f"{folder}/swapped{rank}.pt")


def plain() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.PReLU(), nn.Linear(6, 1))


def keep_parts(rank: int, folder: str) -> None:
    mesh = init_device_mesh("cpu", (2,))
    for parametrization in KEEPS:
        network, alone = fully_shard(model(parametrization), mesh=mesh), model(parametrization)
        hull = network[1]
        assert len(hull.raw.to_local()) == 1  # of two rows
        if rank == 0:  # the other process takes no part: what asked it for its rows would wait in vain
            assert "Hull(identity, relu, tanh, groups=2" in repr(network)
            assert "no values" in str(hullo.summary(network))
        assert torch.equal(hull.coefficients, alone[1].coefficients)
        train(network, *data())
        train(alone, *data())
        torch.testing.assert_close(hull.coefficients, alone[1].coefficients, rtol=1e-4, atol=1e-5)
        hull.reset_parameters()
        assert torch.equal(hull.coefficients, model(parametrization)[1].coefficients)
    assert torch.equal(hull.inner_scale.full_tensor(), torch.ones(2, 3))
    hull.inner_scale = None  # which `identify` does not support
    hull.coefficients = [[0.25, 0.75, 0.0], [0.0, 1.0, 0.0]]
    assert hullo.identify(hull) == [hullo.get_base("leaky_relu(0.25)"), hullo.get_base("relu")]


@pytest.fixture
def in_two_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Job], None]:
    if not dist.is_available() or not dist.is_gloo_available():
        pytest.skip("needs gloo")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *sys.path]))
    return lambda job: mp.spawn(worker, args=(str(tmp_path), job), nprocs=2)


def test_two_processes_train_like_one(in_two_processes: Callable[[Job], None], tmp_path: Path) -> None:
    in_two_processes(learn_together)
    swapped = plain()
    train(swapped, *data())
    train(hullo.replace_activations(swapped), *data())
    for rank in (0, 1):
        loaded = torch.load(tmp_path / f"swapped{rank}.pt", weights_only=True)
        torch.testing.assert_close(loaded, dict(swapped.state_dict()), rtol=1e-4, atol=1e-5)
    for parametrization in KEEPS:
        alone = model(parametrization)
        train(alone, *data())
        first, second = (torch.load(tmp_path / f"{parametrization}{rank}.pt", weights_only=True) for rank in (0, 1))
        for name, tensor in alone.state_dict().items():
            assert torch.equal(first[name], second[name])
            torch.testing.assert_close(first[name], tensor, rtol=1e-4, atol=1e-5)
        assert not torch.equal(first[f"1.{alone[1].raw_name}"], model(parametrization)[1].raw)


def test_sharded_hull_is_printed_trained_read_and_set(in_two_processes: Callable[[Job], None]) -> None:
    in_two_processes(keep_parts)  # raises what a process raised
