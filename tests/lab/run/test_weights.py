"""Test that a trained network is saved, and loads as a plain network."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import tiny_command
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner

import hullo
from hullo.lab import networks
from hullo.lab.analysis.readings import CHOSEN, read_epoch
from hullo.lab.cli import app
from hullo.lab.cli.train import _show_network
from hullo.lab.files import read_tensors, write_tensors
from hullo.lab.networks import DataShape
from hullo.lab.run.loop import Loop
from hullo.lab.run.queue import weights_path
from hullo.lab.run.training import Training
from hullo.lab.run.weights import ChosenEpochs, load_network, save_weights
from hullo.lab.spec.records import Records
from hullo.lab.spec.run_spec import Spec
from made_records import make_record


@pytest.mark.parametrize("activation", ["relu", "prelu", "elu", "convex(identity,relu,parametrization=softmax)"])
def test_loaded_network_equals_the_saved_one(activation: str, tmp_path: Path) -> None:
    spec, task = Spec("kerasnet", "cifar10", activation, seed=3), DataShape(1, 12, 4)
    network = networks.build("kerasnet", activation=activation, in_channels=1, image_size=12, num_classes=4)
    for parameter in network.parameters():
        if parameter.requires_grad:
            parameter.data.add_(0.1 * torch.rand_like(parameter))
    save_weights(tmp_path / "it.safetensors", spec, task, network)
    loaded = load_network(tmp_path / "it.safetensors")
    x = torch.rand(2, 1, 12, 12)
    assert loaded(x).equal(network.eval()(x))
    if activation != "relu":
        assert hullo.fold(loaded)(x).shape == (2, 4)


def test_file_without_a_network_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(b"nonsense")
    with pytest.raises(ValueError, match=r"x\.safetensors"):
        load_network(path)
    save_file({"x": torch.zeros(1)}, path)
    with pytest.raises(ValueError, match="no trained network"):
        load_network(path)
    save_weights(path, Spec("lenet5", "cifar10", "relu"), DataShape(3, 32, 10), nn.Linear(2, 2))
    with pytest.raises(ValueError, match="cannot load"):
        load_network(path)


def test_damaged_weights_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    network = networks.build("lenet5", activation="relu", in_channels=1, image_size=16)
    save_weights(path, Spec("lenet5", "cifar10", "relu"), DataShape(1, 16, 10), network)
    content = path.read_bytes()
    for place in (len(content) - 1, len(content) // 2, content.index(b"seed=0") + len("seed=")):
        damaged = bytearray(content)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"x\.safetensors is damaged"):
            load_network(path)
    path.write_bytes(content)
    tensors, metadata = read_tensors(path)
    save_file(tensors, path, metadata)  # as older files, without a checksum
    assert isinstance(load_network(path), nn.Module)


def test_printed_call_is_valid_python(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = make_record("relu", [80.0], column="net:Net@01234567/cifar10")
    path = weights_path(tmp_path / 'it\'s "new"', record.spec)
    path.parent.mkdir(parents=True)
    path.touch()
    _show_network([record], path.parents[1], "it's.py:Net", wanted=True)
    call = ast.parse(capsys.readouterr().out.removeprefix("saved network: "), mode="eval").body
    assert isinstance(call, ast.Call)
    assert [ast.literal_eval(argument) for argument in call.args] == [str(path)]
    assert {word.arg: ast.literal_eval(word.value) for word in call.keywords} == {"network": "it's.py:Net"}


@pytest.mark.parametrize("kept", [True, False])
def test_saved_network_has_the_recorded_loss(kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("--activation", "affine(identity,relu)", "--epochs", "1", "--device", "cpu", "--quiet")
    command = ["train", "lenet5", "fashion-mnist-sample", *options, "--output", str(tmp_path)]
    monkeypatch.setattr("hullo.lab.data.load", tiny_command.load)
    done = CliRunner().invoke(app, [*command, *([] if kept else ["--no-weights"])])
    (record,) = Records(tmp_path / "records.jsonl").read()
    path = tmp_path / "weights" / f"{record.spec.id}.safetensors"
    assert path.exists() == kept
    assert (str(path) in done.stdout) == kept
    if kept:
        data = tiny_command.load("fashion-mnist-sample")
        loss = F.cross_entropy(load_network(path)(data.test_images / 255), data.test_labels)
        assert loss.item() == pytest.approx(record.test_loss[-1], rel=1e-4)


def test_saved_networks_are_those_of_the_chosen_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the training is stopped and resumed after each of its epochs."""
    monkeypatch.setattr("hullo.lab.data.load", tiny_command.load)
    rates = ("--lr", "0.01", "--lr", "0.003", "--lr", "0.001", "--val-size", "0.4", "--epochs", "6")
    shared = ("train", "lenet5", "fashion-mnist-sample", *rates, "--device", "cpu", "--quiet")
    output = tmp_path / "whole"
    assert CliRunner().invoke(app, [*shared, "--output", str(output)]).exit_code == 0
    resumed = tmp_path / "resumed"
    advance = Training.advance

    def stop_after_an_epoch(self: Training) -> Iterator[None]:
        begun = self.epoch
        for moment in advance(self):
            yield moment
            if self.epoch > begun and self.epoch < 6:
                raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Training, "advance", stop_after_an_epoch)
        for _ in range(5):
            stopped = CliRunner().invoke(app, [*shared, "--output", str(resumed), "--checkpoint-every", "0"])
            assert stopped.exit_code == 130
    assert CliRunner().invoke(app, [*shared, "--output", str(resumed)]).exit_code == 0
    data = tiny_command.load("fashion-mnist-sample")
    epochs = []
    for record in Records(output / "records.jsonl").read():
        epochs.append(epoch := read_epoch(record, CHOSEN, 6))
        for folder in (output, resumed):
            path = weights_path(folder, record.spec)
            loss = F.cross_entropy(load_network(path)(data.test_images / 255), data.test_labels)
            assert loss.item() == pytest.approx(record.test_loss[epoch - 1], rel=1e-4)
            assert read_tensors(path)[1]["epoch"] == str(epoch)
    assert min(epochs) < 6


@pytest.mark.parametrize(
    ("scores", "finite", "expected"),
    [
        ([0.5, 0.7, 0.7, 0.6], [True] * 4, 2),  # of several the first
        ([0.5, 0.7, 0.9, 0.95], [True, True, False, True], 2),  # none from the divergence on
        ([0.5, 0.4, 0.6, 0.3], [True] * 4, 3),
        (None, [True] * 4, 4),
    ],
)
def test_state_of_the_best_sound_epoch_is_kept(
    scores: list[float] | None, finite: list[bool], expected: int, tmp_path: Path
) -> None:
    """The other member always improves; both resume from a file after each epoch."""
    chosen = ChosenEpochs({})
    for epoch in range(1, 5):
        population = nn.ParameterList([torch.full((2, 3), float(epoch))])
        rates = None if scores is None else torch.tensor([scores[:epoch], [0.1 * k for k in range(epoch)]]).T
        curves = {"finite": torch.tensor([finite[:epoch], [True] * epoch]).T}
        loop = SimpleNamespace(population=Members(population), val_scores=rates, epoch=epoch, curves=curves)
        chosen.update(cast("Loop", loop), more=torch.tensor([epoch, epoch]))
        write_tensors(tmp_path / "state.safetensors", chosen.state)
        chosen = ChosenEpochs(read_tensors(tmp_path / "state.safetensors")[0])
    loaded = Members(nn.ParameterList([torch.zeros(2, 3)]))
    assert chosen.load_into(loaded) == [expected, 4]
    assert loaded.inner[0].tolist() == [[expected] * 3, [4.0] * 3]
    assert chosen.state["more.more"].tolist() == [expected, 4]


class Members(nn.Module):
    """As many members as the parameters have rows."""

    def __init__(self, inner: nn.ParameterList) -> None:
        super().__init__()
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner[0])
