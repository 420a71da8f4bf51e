"""Test users' networks and data sets: training by the command, resuming, and loading."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from own_files import SETTINGS, invoke
from tiny_command import Command
from tiny_releases import write_images

import hullo
from hullo.lab import load_network
from hullo.lab.data import open_data
from hullo.lab.networks import OwnNetwork
from hullo.lab.spec.activation import ActivationSpec
from hullo.lab.spec.records import Records

pytestmark = pytest.mark.usefixtures("place")


@pytest.mark.filterwarnings("default")
def test_network_that_returns_probabilities_is_warned_of() -> None:
    Path("soft.py").write_text(
        "from torch import nn\n\n\ndef Net(in_channels, num_classes):\n"
        "    return nn.Sequential(nn.Linear(in_channels, num_classes), nn.Softmax(-1))\n"
    )
    result = invoke("train", "soft.py:Net", "features.npz", "--epochs", 1)
    assert result.exit_code == 0, result.output
    assert [line for line in result.stderr.splitlines() if "remove the softmax" in line]


@pytest.mark.parametrize(
    ("network", "data", "activation", "learned"),
    [
        ("Modules", "images.npz", "affine(identity,relu)", 1),
        ("Modules", "images.npz", "own", 0),
        ("Functional", "images.npz", "convex(identity,tanh)", 1),
        ("Mlp", "features.npz", "prelu", 1),
        ("Tokens", "tokens.npz", "tanh", 0),
        ("given", "images.npz", "affine(relu,tanh,per=channel)", 1),
    ],
)
def test_network_is_trained_recorded_and_loaded(network: str, data: str, activation: str, learned: int) -> None:
    result = invoke("train", f"net.py:{network}", data, "--activation", activation, "--epochs", 2)
    assert result.exit_code == 0, result.output
    (record,) = Records(Path("runs/records.jsonl")).read()
    assert (record.spec.network.partition("@")[0], record.spec.activation) == (f"net:{network}", activation)
    assert [len(point) for point in record.coefficients] == [learned] * (3 if learned else 0)
    assert len(record.layers) == learned
    assert ("original, seed 0" in result.stdout) == (activation == "own")
    (call,) = re.findall(r"hullo\.lab\.(load_network\(.*\))", result.stdout)
    loaded, dataset = eval(call, {"load_network": load_network}), open_data(data)
    samples = dataset.test_images / 255 if dataset.holds_images else dataset.test_images
    accuracy = (loaded(samples).argmax(-1) == dataset.test_labels).double().mean().item()
    assert 100 * accuracy == pytest.approx(record.accuracy, abs=1e-3)
    assert (
        sum(
            isinstance(module, hullo.Hull) and any(p.requires_grad for p in module.parameters())
            for module in loaded.modules()
        )
        == learned
    )


def test_several_activations_and_seeds_form_one_table() -> None:
    chosen = ("--activation", "relu", "--activation", "own", "--activation", "affine(identity,relu)")
    result = invoke("reproduce", "net.py:Functional/images.npz", *chosen, "--seeds", 3, "--epochs", 1, "--weights")
    assert result.exit_code == 0, result.output
    records = Records(Path("runs/records.jsonl")).read()
    assert sorted((r.spec.activation, r.members) for r in records) == sorted(
        [("own", 3)] * 3 + [("relu", 6), ("affine(identity,relu)", 6)] * 3
    )
    assert len(list(Path("runs/weights").iterdir())) == 9
    assert "affine(identity,relu)" in result.stdout
    (call,) = re.findall(r"saved network .*: hullo\.lab\.(load_network\(.*\))", result.stdout)
    eval(call, {"load_network": load_network})


def test_the_laboratorys_networks_train_on_a_folder_of_images(place: Path) -> None:
    folder = write_images(place / "animals", (20, 24), "RGB")
    refused = invoke("train", "kerasnet", folder, "--activation", "relu")
    assert refused.exit_code == 1
    assert re.search("differ in size.*--image-size", refused.stderr)
    result = invoke("train", "kerasnet", folder, "--image-size", 16, "--epochs", 1, "--activation", "relu")
    assert result.exit_code == 0, result.output


def test_changed_file_is_another_network() -> None:
    command = ("train", "net.py:Mlp", "features.npz", "--epochs", 1)
    assert invoke(*command).exit_code == 0
    before = Path("net.py").stat()
    Path("net.py").write_text(Path("net.py").read_text().replace("F.relu(self.one(x))", "F.selu(self.one(x))"))
    os.utime("net.py", (before.st_atime, before.st_mtime))  # a cache of bytecode would not notice
    assert invoke(*command).exit_code == 0
    first, second = Records(Path("runs/records.jsonl")).read()
    assert first.spec.network != second.spec.network
    assert first.train_loss != second.train_loss
    weights = Path("runs/weights") / f"{first.spec.id}.safetensors"
    with pytest.raises(ValueError, match="has changed"):
        load_network(weights, network="net.py:Mlp")
    with pytest.raises(ValueError, match=r"net:Tokens.*give the network"):
        load_network(weights, network="net.py:Tokens")
    with pytest.raises(ValueError, match=r'net:Mlp@.*network="my_network\.py:Net"'):
        load_network(weights)


def test_killed_run_resumes() -> None:
    command = ("train", "net.py:Mlp", "features.npz", "--epochs", "40")
    process = Command(*command, "--checkpoint-every", "0", *SETTINGS)
    while process.poll() is None and not list(Path("runs/checkpoints").glob("*.safetensors")):
        time.sleep(0.01)
    process.kill()
    (checkpoint,) = Path("runs/checkpoints").glob("*.safetensors")
    for output in ("runs", "straight"):
        assert invoke(*command, "--output", output).exit_code == 0
    (resumed,), (straight,) = (Records(Path(output, "records.jsonl")).read() for output in ("runs", "straight"))
    assert resumed.train_loss == straight.train_loss
    assert not checkpoint.exists()


@pytest.mark.parametrize(("network", "seed"), [("Tied", 0), ("Drawn", 3)])
def test_loaded_network_computes_what_was_trained(network: str, seed: int) -> None:
    source = f"more.py:{network}"
    result = invoke("train", source, "features.npz", "--seed", seed, "--epochs", 2)
    assert result.exit_code == 0, result.output
    (record,) = Records(Path("runs/records.jsonl")).read()
    (weights,) = Path("runs/weights").iterdir()
    data = open_data("features.npz")
    loss = F.cross_entropy(load_network(weights, network=source)(data.test_images), data.test_labels)
    assert loss.item() == pytest.approx(record.test_loss[-1], rel=1e-4)


@pytest.mark.filterwarnings("default")
def test_activations_that_are_not_replaced_are_reported() -> None:
    command = ("train", "more.py:Partly", "features.npz", "--epochs", 1, "--activation")
    assert "3 (sigmoid)" in invoke(*command, "affine(identity,tanh)").stderr
    assert "sigmoid" not in invoke(*command, "own").stderr


def test_validation_set_of_its_own_is_recorded() -> None:
    arrays = dict(np.load("features.npz"))
    np.savez("three.npz", **arrays, x_val=arrays["x_test"][:3], y_val=arrays["y_test"][:3])
    assert invoke("train", "net.py:Mlp", "three.npz", "--epochs", 2).exit_code == 0
    (record,) = Records(Path("runs/records.jsonl")).read()
    assert (len(record.test_accuracy), len(record.val_accuracy)) == (2, 2)
    assert 3 * record.val_accuracy[-1] / 100 == pytest.approx(round(3 * record.val_accuracy[-1] / 100), abs=1e-3)
    refused = invoke("train", "net.py:Mlp", "three.npz", "--epochs", 2, "--val-size", 2)
    assert refused.exit_code == 2
    assert "val_size must be 0" in refused.stderr


def test_earlier_run_without_weights_says_so() -> None:
    command = ("train", "net.py:Mlp", "features.npz", "--epochs", 1)
    assert "weights" not in invoke(*command, "--no-weights").stdout
    again = invoke(*command).stdout
    assert "already recorded" in again
    assert "not saved" in again


def test_norms_of_images_do_not_decay() -> None:
    settings = ("--optimizer", "sgd", "--lr", "1e-9", "--weight-decay", "1e8", "--epochs", 1)
    assert invoke("train", "more.py:Normed", "images.npz", *settings).exit_code == 0
    (weights,) = Path("runs/weights").iterdir()
    loaded = load_network(weights, network="more.py:Normed")
    np.testing.assert_allclose(loaded.norm.weight.detach(), 1.0, atol=1e-6)
    assert loaded.head.weight.abs().max().item() < 0.124  # of at most 1 / sqrt(64), decayed by a tenth per step


def test_building_a_network_leaves_the_random_state_and_returns_it_in_training_mode() -> None:
    before = torch.random.get_rng_state()
    sizes = {"in_channels": 5, "image_size": 0, "num_classes": 3}
    network = OwnNetwork.open("net.py:Mlp").build(ActivationSpec.parse("own"), torch.zeros(2, 5), 1, sizes)
    assert torch.random.get_rng_state().equal(before)
    assert all(module.training for module in network.modules())


def test_lazy_layers_have_the_weights_of_their_seed() -> None:
    for output in ("one", "two"):
        assert invoke("train", "more.py:Lazy", "features.npz", "--epochs", 1, "--output", output).exit_code == 0
    one, two = (Records(Path(output, "records.jsonl")).read()[0] for output in ("one", "two"))
    assert one.train_loss == two.train_loss
