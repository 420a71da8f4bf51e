"""Test that faults of users' networks are found before training, and named with their line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from own_files import NETWORK, invoke, line_of

from hullo.lab import load_network

pytestmark = pytest.mark.usefixtures("place")


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ("net.py:Nothing", "'Nothing'.*Modules, Functional.*given"),
        ("net.py", "needs a class: net.py:Net.*Modules"),
        ("net.py:number", "'number'"),
        ("nowhere.py:Net", "'nowhere.py' is not a file"),
        ("net.py:Needy", "needs width"),
        ("net.py:Shape", rf"net.py, line {line_of('return self.head(x.flatten(1))')}: RuntimeError"),
        ("net.py:Branch", "net.py:.*x.sum"),
        ("net.py:Wide", r"\(2, 4\).*\(2, 3\)"),
        ("net.py:frozen", "frozen of net.py has no parameters"),
        ("broken.py:Net", "broken.py, line 2"),
        ("raises.py:Net", "raises.py, line 1: ZeroDivisionError"),
        ("exits.py:Net", "exits.py, line 2: SystemExit: 3"),
        ("imports.py:Net", "broken.py, line 2"),
        ("net.py:Abstract", "Abstract of .*net.py: TypeError"),
        ("more.py:made", "no class or function 'made'"),
        ("relative.py:Net", "relative.py, line 1: ImportError"),
    ],
)
def test_error_in_a_network_names_its_line(network: str, message: str) -> None:
    Path("broken.py").write_text("import torch\nclass Net(:\n")
    Path("raises.py").write_text("1 / 0\n")
    Path("exits.py").write_text("import sys\nsys.exit(3)\n")
    Path("imports.py").write_text("import broken\n")
    Path("relative.py").write_text("from . import blocks\n")
    result = invoke("train", network, "images.npz", "--epochs", 1)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert not Path("runs/records.jsonl").exists()
    assert re.search(message, line), line


def test_activation_is_a_function_of_channels() -> None:
    result = invoke("train", "more.py:Uncalled", "features.npz", "--epochs", 1, "--activation", "relu")
    assert result.exit_code == 2
    assert re.search(r"more.py, line \d+: TypeError.*channels", result.stderr), result.stderr


def test_image_size_is_refused_where_there_are_no_images() -> None:
    code = "from torch import nn\ndef net(image_size, num_classes):\n    return nn.Linear(image_size, num_classes)\n"
    Path("sized.py").write_text(code)
    Path("default.py").write_text(code.replace("net(image_size, num_classes)", "net(num_classes, image_size=5)"))
    result = invoke("train", "sized.py:net", "features.npz", "--epochs", 1)
    assert result.exit_code == 2
    assert "net of sized.py needs image_size" in result.stderr
    assert invoke("train", "default.py:net", "features.npz", "--epochs", 1).exit_code == 0


REWRITTEN = """
import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.one, self.two = nn.Linear(5, 4), nn.Linear(4, num_classes)

    def forward(self, x):
        x = F.relu(self.one(x))
        CODE
        return self.two(x)
"""


@pytest.mark.parametrize(
    "code",
    ["x = x[torch.randperm(len(x))]", "x = -x if x.sum() > 0 else x", "x = x.view(-1, 7) if self.training else x"],
)
@pytest.mark.parametrize("activation", ["own", "tanh"])
def test_error_names_the_file_also_where_activations_are_replaced(code: str, activation: str) -> None:
    Path("rewritten.py").write_text(f"{REWRITTEN.replace('CODE', code)}# {activation}\n")  # a file of its own
    result = invoke("train", "rewritten.py:Net", "features.npz", "--activation", activation, "--epochs", 1)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert str(Path("rewritten.py").absolute()) in line
    assert "line 14" in line or "py:14" in line or code in line, line


def test_network_with_activation_argument_needs_one_or_a_default() -> None:
    result = invoke("train", "net.py:given", "images.npz")
    assert result.exit_code == 2
    assert "--activation" in result.stderr
    Path("net.py").write_text(NETWORK.replace("activation, num_classes", "num_classes, activation=lambda c: nn.SiLU()"))
    assert invoke("train", "net.py:given", "images.npz", "--epochs", 1).exit_code == 0


def test_state_without_tensors_is_refused_before_training() -> None:
    command = ("train", "more.py:Stateful", "features.npz", "--epochs", 1)
    refused = invoke(*command)
    assert refused.exit_code == 2
    assert re.search(r"_extra_state of more:Stateful.*dict.*--no-weights", refused.stderr)
    assert invoke(*command, "--no-weights").exit_code == 0


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ("Pair", "returned tuple.*in training mode"),
        ("Narrow", r"returned shape \(18, 2\).*in training mode"),
        ("Viewed", r"more.py, line \d+: RuntimeError"),
        ("Branched", r"control flow.*more.py"),
    ],
)
def test_error_in_training_mode_is_one_line(network: str, message: str) -> None:
    result = invoke("train", f"more.py:{network}", "features.npz", "--epochs", 1)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert re.search(message, line), line


def test_last_batch_of_one_sample_is_checked_before_training() -> None:
    command = ("train", "more.py:Batch", "features.npz", "--epochs", 1, "--batch-size")
    refused = invoke(*command, 17)
    assert refused.exit_code == 2
    assert re.search("more than 1 value per channel", refused.stderr)
    assert invoke(*command, 16).exit_code == 0
    assert invoke("train", "net.py:Mlp", "features.npz", "--epochs", 1, "--batch-size", 17).exit_code == 0


def test_checking_a_network_does_not_change_it() -> None:
    assert invoke("train", "more.py:Batch", "features.npz", "--lr", 0, "--epochs", 1, "--batch-size", 18).exit_code == 0
    (weights,) = Path("runs/weights").iterdir()
    assert int(load_network(weights, network="more.py:Batch").norm.num_batches_tracked) == 1


def test_network_is_checked_with_batches_of_the_run() -> None:
    command = ("train", "more.py:Ghost", "features.npz", "--epochs", 1, "--batch-size")
    assert invoke(*command, 12).exit_code == 0  # 18 samples: 12 and 6, both multiples of 6
    assert invoke(*command, 15).exit_code == 2


HUGE = """
from torch import nn


class Huge(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.head = nn.Linear(5, num_classes)

    def forward(self, x):
        return self.head(x).relu() + x.repeat(2**45, 1).sum()
"""


@pytest.mark.parametrize("activation", ["own", "relu"])
def test_network_too_large_for_the_memory_of_a_cpu_is_a_clear_error(place: Path, activation: str) -> None:
    Path("huge.py").write_text(HUGE)
    result = invoke("train", "huge.py:Huge", "features.npz", "--activation", activation, "--output", "runs")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "--batch-size" in result.stderr.splitlines()[-1]
    assert not Path("runs/records.jsonl").exists()
