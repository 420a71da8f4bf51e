"""Test that several processes train like one, and that others can finish their runs."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import own_network
import pytest
import tiny_command
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from tiny_command import Command
from typer.testing import CliRunner

from hullo.lab.cli import app
from hullo.lab.distributed import World

pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="needs gloo")

TRAIN = ("train", "kerasnet", "fashion-mnist-sample", "--activation", "affine(identity,relu,tanh)", "--lr", "0.0003")
TRAIN = (*TRAIN, "--epochs", "3", "--device", "cpu", "--coefficient-lr-scale", "10")


def start_torchrun(*arguments: object) -> subprocess.Popen[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    return subprocess.Popen(
        [*launcher, tiny_command.__file__, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )


def start_two(*arguments: object) -> list[Command]:
    """Start two processes with the environment that torchrun gives to them, without the time that it takes to start."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [Command(*arguments, RANK=str(rank), LOCAL_RANK=str(rank), **shared) for rank in range(2)]


def record(output: Path) -> dict[str, Any]:
    (line,) = (output / "records.jsonl").read_text().splitlines()
    result: dict[str, Any] = json.loads(line)
    return result


def assert_alike(first: dict[str, Any], second: dict[str, Any]) -> None:
    assert first["spec"] == second["spec"]
    for name in ("train_loss", "test_loss", "coefficients"):
        torch.testing.assert_close(torch.tensor(first[name]), torch.tensor(second[name]), rtol=2e-3, atol=2e-4)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("alone")
    Command(*TRAIN, "--output", output).finish()
    return output


def test_two_processes_train_like_one(alone: Path, tmp_path: Path) -> None:
    process = start_torchrun(*TRAIN, "--output", tmp_path)
    message, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert message.count("test accuracy") == 1  # one of them speaks
    assert_alike(record(tmp_path), record(alone))
    assert record(tmp_path)["coefficients"][0] != record(tmp_path)["coefficients"][-1]


def test_two_processes_train_like_one_with_sgd(tmp_path: Path) -> None:
    """RMSprop would not tell a gradient from half of it; SGD does."""
    train = ("train", "lenet5", "fashion-mnist-sample", "--optimizer", "sgd", "--lr", "0.1", *TRAIN[-6:])
    for process in (Command(*train, "--output", tmp_path / "1"), *start_two(*train, "--output", tmp_path / "2")):
        process.finish()
    assert_alike(record(tmp_path / "2"), record(tmp_path / "1"))


def test_one_process_finishes_after_two_were_killed(alone: Path, tmp_path: Path) -> None:
    process = start_torchrun(*TRAIN, "--output", tmp_path, "--checkpoint-every", "0")
    deadline = time.monotonic() + 60
    while not list((tmp_path / "checkpoints").glob("*.safetensors")):
        assert process.poll() is None
        assert time.monotonic() < deadline
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) == 2
    os.kill(int(children[1]), signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode != 0
    assert not (tmp_path / "records.jsonl").exists()
    Command(*TRAIN, "--output", tmp_path).finish()
    assert_alike(record(tmp_path), record(alone))


@given(st.integers(0, 1000), st.integers(1, 20))
def test_shards_partition_items_evenly(count: int, size: int) -> None:
    shares = [World(rank, size).shard(count) for rank in range(size)]
    assert [number for share in shares for number in range(count)[share]] == list(range(count))
    assert {share.stop - share.start for share in shares} <= {count // size, count // size + 1}


def test_two_processes_train_user_networks_like_one(tmp_path: Path) -> None:
    network, _, data = own_network.make(tmp_path).partition(":Net/")
    command = ["train", f"{network}:Net", data, "--activation", "affine(identity,relu)", "--epochs", "3"]
    command += ["--device", "cpu", "--output"]
    for process in start_two(*command, tmp_path / "2"):
        process.finish()
    assert CliRunner().invoke(app, [*command, str(tmp_path / "1"), "--quiet"]).exit_code == 0
    assert_alike(record(tmp_path / "2"), record(tmp_path / "1"))
