"""Test that training with fused kernels takes the same steps as with plain operations."""

from __future__ import annotations

import functools
import re
from dataclasses import replace

import pytest
import tiny_command
import torch

from hullo.lab.data import Dataset
from hullo.lab.networks import NETWORKS, Entry
from hullo.lab.networks.resnet56 import ResNet
from hullo.lab.run.loaders import InMemoryLoader
from hullo.lab.run.training import Training
from hullo.lab.spec.run_spec import Spec
from hullo.population import kernels

pytest.importorskip("triton")

SAMPLE = tiny_command.load("fashion-mnist-sample")
GPU = torch.cuda.is_available()
ROWS = ("convex(identity,tanh)", "affine(identity,relu,tanh)")
RATES = {"rmsprop": 1e-3, "sgd": 0.05}


@pytest.fixture(autouse=True)
def _exact_convolutions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute cuDNN's float32 convolutions in float32: with TF32, RMSprop turns rounding into whole steps."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def data(side: int, train: int = 6, test: int = 4) -> Dataset:
    train_images, test_images = SAMPLE.train_images[:train], SAMPLE.test_images[:test]
    parts = train_images[..., :side, :side], SAMPLE.train_labels[:train], test_images[..., :side, :side]
    return Dataset("corner", SAMPLE.classes, *(part.contiguous() for part in parts), SAMPLE.test_labels[:test])


def train(
    network: str,
    side: int,
    device: str,
    precision: str = "float32",
    rows: tuple[str, ...] = ROWS,
    optimizer: str = "rmsprop",
) -> Training:
    lr = RATES[optimizer]
    spec = Spec(
        network, "fashion-mnist-sample", "relu", epochs=1, batch_size=4, optimizer=optimizer, precision=precision
    )
    specs = [replace(spec, activation=row, seed=seed, lr=lr / (1 + seed)) for seed, row in enumerate(rows)]
    training = Training(specs, InMemoryLoader(data(side).to(device)))
    for _ in training.advance():
        pass
    return training


@pytest.mark.parametrize(
    ("network", "side", "optimizer", "rows"),
    [
        ("kerasnet", 12, "rmsprop", ROWS),  # Triton's interpreter is slow; the others run on a GPU
        pytest.param("lenet5", 18, "rmsprop", ROWS, marks=pytest.mark.gpu),
        pytest.param("lenet5", 18, "sgd", ROWS, marks=pytest.mark.gpu),
        pytest.param("resnet56", 8, "sgd", ROWS, marks=pytest.mark.gpu),
        pytest.param("lenet5", 18, "rmsprop", ("convex(relu,tanh)", "prelu"), marks=pytest.mark.gpu),
        pytest.param("kerasnet", 12, "rmsprop", ("convex(relu,tanh)", "prelu"), marks=pytest.mark.gpu),
        pytest.param("resnet56", 8, "sgd", ("convex(relu,tanh)", "prelu"), marks=pytest.mark.gpu),
    ],
)
def test_fused_steps_equal_plain_steps(
    network: str, side: int, optimizer: str, rows: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    # ResNet-56 takes steps of SGD: where a gradient is next to nothing, RMSprop turns its rounding into a whole step,
    # and batch norms of four images enlarge the difference. On a CPU, one thread and two differ by 0.3 % after RMSprop.
    small = functools.partial(ResNet, n=1)  # eight layers will do
    monkeypatch.setitem(NETWORKS, "resnet56", Entry(small))
    plain = train(network, side, "cpu", rows=rows, optimizer=optimizer)
    monkeypatch.setattr(kernels, "support", lambda x: x.dtype != torch.float64)
    fused = train(network, side, "cuda" if GPU else "cpu", rows=rows, optimizer=optimizer)
    for name in ("train_loss", "test_loss", "coefficients"):
        torch.testing.assert_close(fused.curves[name], plain.curves[name], rtol=2e-3, atol=2e-4, msg=name)
    assert fused.curves["test_accuracy"].shape == plain.curves["test_accuracy"].shape
    ours, theirs = fused.population.state_dict(), plain.population.state_dict()
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        if network == "resnet56" and re.search(r"conv\d?\.bias|shortcut\.bias|running_mean", name):
            continue  # the gradient of a bias before a batch norm is zero in kernels, and rounding in plain operations
        # RMSprop takes a step of full length where a gradient is next to nothing, too
        assert (ours[name].cpu() - tensor).abs().double().mean() < 1e-4, name


@pytest.mark.parametrize("optimizer", RATES)
def test_state_is_portable_between_kernels_and_plain_operations(
    optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = train("lenet5", 18, "cpu", optimizer=optimizer)
    state = {name: tensor.clone() for name, tensor in plain.state_dict().items()}
    there_and_back = dict(state)
    for served in (lambda x: x.dtype != torch.float64, lambda x: False):
        monkeypatch.setattr(kernels, "support", served)
        other = Training(plain.specs, plain.loader)
        other.load_state_dict(there_and_back)
        there_and_back = other.state_dict()
        assert there_and_back.keys() == state.keys()
        assert all(torch.equal(there_and_back[name], tensor) for name, tensor in state.items())


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_copies_exist_only_in_lower_precision(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "support", lambda x: x.dtype != torch.float64)
    spec = Spec("lenet5", "fashion-mnist-sample", "relu", epochs=1, batch_size=4, precision=precision)
    assert bool(Training([spec], InMemoryLoader(data(18))).population.copies) == (precision == "bfloat16")


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="needs a CUDA device")
@pytest.mark.parametrize("network", ["lenet5", "kerasnet", "resnet56"])
def test_gpu_bfloat16_is_close_to_cpu_float32(network: str) -> None:
    on_gpu, on_cpu = train(network, 28, "cuda", "bfloat16"), train(network, 28, "cpu")
    assert on_gpu.population.copies
    torch.testing.assert_close(on_gpu.curves["train_loss"], on_cpu.curves["train_loss"], rtol=0.1, atol=0.1)


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="needs a CUDA device")
@pytest.mark.parametrize(("network", "optimizer"), [("kerasnet", "rmsprop"), ("lenet5", "sgd")])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_gpu_resumes_from_a_state(network: str, optimizer: str, precision: str) -> None:
    whole = train(network, 28, "cuda", precision, optimizer=optimizer)
    first = Training(whole.specs, whole.loader)
    moments = first.advance()
    next(moments)
    state = {name: tensor.clone() for name, tensor in first.state_dict().items()}
    second = Training(whole.specs, whole.loader)
    second.load_state_dict(state)
    for _ in second.advance():
        pass
    torch.testing.assert_close(second.curves["test_loss"], whole.curves["test_loss"], rtol=0.05, atol=0.05)


@pytest.mark.gpu
@pytest.mark.parametrize("network", ["lenet5", "resnet56"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_captured_evaluation_reads_the_current_weights(network: str, precision: str) -> None:
    spec = Spec(network, "fashion-mnist-sample", "relu", epochs=3, batch_size=4, lr=1e-3, precision=precision)
    training = Training([spec, replace(spec, seed=1)], InMemoryLoader(data(28).to("cuda")))
    for _ in training.advance():
        pass
    captured = training.curves["test_loss"]
    training._score_batch = training._score
    with torch.no_grad():
        loss, _ = training._evaluate("test")
    assert (captured[-1] - captured[-2]).abs().min() > 1e-3
    torch.testing.assert_close(captured[-1], loss.cpu(), rtol=1e-5, atol=0)


@pytest.mark.gpu
@pytest.mark.parametrize("network", ["lenet5", "kerasnet", "resnet56"])
def test_diverging_member_does_not_change_others_on_gpu(network: str) -> None:
    spec = Spec(
        network, "fashion-mnist-sample", "affine(identity,relu,tanh)", epochs=1, batch_size=4, precision="bfloat16"
    )
    loader = InMemoryLoader(data(28).to("cuda"))
    calm, wild = (Training([replace(spec, lr=lr), replace(spec, seed=1)], loader) for lr in (1e-3, 1e30))
    for training in (calm, wild):
        for _ in training.advance():
            pass
    assert wild.curves["finite"].tolist() == [[False, True]]
    for name, tensor in wild.population[1].state_dict().items():
        assert torch.equal(tensor, calm.population[1].state_dict()[name]), name
