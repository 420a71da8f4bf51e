"""The layers of a population do what Keras's layers do, for each member apart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from hullo.lab import kernels
from hullo.lab.networks.layers import (
    BatchNorm,
    Convolution,
    Linear,
    average,
    by_member,
    flatten,
    local_response_norm,
)

RECORDED = Path(__file__).parents[1] / "fixtures" / "keras2.json"


@given(size=st.integers(1, 12), kernel=st.integers(1, 5), stride=st.integers(1, 3))
def test_padding_to_the_same_size_puts_the_odd_pixel_at_the_end(size: int, kernel: int, stride: int) -> None:
    layer = Convolution(1, 1, 1, kernel, stride=stride, same=True)
    weight, bias = torch.rand(kernel, kernel), torch.rand(1)
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)
    picture = torch.rand(size, size)
    y = layer(picture.view(1, 1, size, size))[0, 0]
    outputs = -(-size // stride)
    before = max(0, (outputs - 1) * stride + kernel - size) // 2
    expected = torch.full((outputs, outputs), bias.item())
    for i in range(outputs):
        for j in range(outputs):
            for a in range(kernel):
                for b in range(kernel):
                    row, column = i * stride + a - before, j * stride + b - before
                    if 0 <= row < size and 0 <= column < size:
                        expected[i, j] += weight[a, b] * picture[row, column]
    torch.testing.assert_close(y, expected)


def test_a_convolution_is_each_members_own() -> None:
    layer = Convolution(3, 2, 4, 3)
    torch.nn.init.normal_(layer.weight)
    torch.nn.init.normal_(layer.bias)
    x = torch.randn(5, 6, 7, 7)
    parts = zip(x.chunk(3, 1), layer.weight.chunk(3), layer.bias.chunk(3), strict=True)
    torch.testing.assert_close(layer(x), torch.cat([F.conv2d(*own) for own in parts], 1), rtol=1e-5, atol=1e-5)
    shared = x[:, :2]
    parts = zip([shared] * 3, layer.weight.chunk(3), layer.bias.chunk(3), strict=True)
    torch.testing.assert_close(layer(shared), torch.cat([F.conv2d(*own) for own in parts], 1), rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")  # by Triton's interpreter
@pytest.mark.parametrize(("inputs", "outputs", "stride", "biased"), [(4, 20, 1, True), (20, 24, 2, False)])
def test_a_convolution_by_our_own_kernel_is_the_same(
    inputs: int, outputs: int, stride: int, biased: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = pytest.importorskip("hullo.lab.kernels.convolution")
    called = []
    monkeypatch.setattr(own, "_slide_over", lambda *args, f=own._slide_over, **kw: called.append(1) or f(*args, **kw))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    layer = Convolution(2, inputs, outputs, 3, stride=stride, same=True).to(device)
    torch.nn.init.normal_(layer.weight)
    torch.nn.init.normal_(layer.bias)
    x = torch.randn(3, 2 * inputs, 6, 6, device=device)
    plain = layer(x, biased=biased)
    monkeypatch.setattr(kernels, "serve", lambda x: True)
    torch.testing.assert_close(layer(x, biased=biased), plain)
    assert not called  # float32 is cuDNN's
    torch.testing.assert_close(layer(x.half(), biased=biased).float(), plain, rtol=2e-2, atol=5e-2)
    assert called


def test_a_members_convolution_may_be_in_groups_of_its_own() -> None:
    layer = Convolution(3, 4, 6, 3, stride=2, padding=1, groups=2)
    torch.nn.init.normal_(layer.weight)
    torch.nn.init.normal_(layer.bias)
    x = torch.randn(5, 12, 7, 7)
    parts = zip(x.chunk(6, 1), layer.weight.chunk(6), layer.bias.chunk(6), strict=True)
    expected = torch.cat([F.conv2d(*own, stride=2, padding=1) for own in parts], 1)
    torch.testing.assert_close(layer(x), expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(RuntimeError, match="channels"):  # rather than other members' filters
        layer(x[:, :4])


def test_a_linear_layer_is_each_members_own() -> None:
    layer = Linear(3, 4, 2)
    torch.nn.init.normal_(layer.weight)
    torch.nn.init.normal_(layer.bias)
    x = torch.randn(3, 5, 4)
    expected = torch.stack([x[k] @ layer.weight[k] + layer.bias[k] for k in range(3)])
    torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize("members", [1, 3])
def test_batch_norm_keeps_the_statistics_that_keras_2_recorded(members: int) -> None:
    recorded = {key: torch.tensor(value) for key, value in json.loads(RECORDED.read_text())["batch_norm"].items()}
    layer = BatchNorm(members, 3)
    for batch in recorded["batches"]:
        y = layer.normalise(batch.permute(0, 3, 1, 2).repeat(1, members, 1, 1), torch.zeros(3 * members))
    for k in range(members):
        own = by_member(y, members, dim=1)[:, k]
        torch.testing.assert_close(own, recorded["output"].permute(0, 3, 1, 2), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(by_member(layer.running_mean, members)[k], recorded["mean"])
        torch.testing.assert_close(by_member(layer.running_variance, members)[k], recorded["variance"])


def test_a_bias_before_batch_norm_cancels_while_training_and_counts_in_use() -> None:
    x, bias = torch.randn(4, 6, 3, 3, dtype=torch.float64), torch.randn(6, dtype=torch.float64, requires_grad=True)
    layer, added = BatchNorm(2, 3).double(), BatchNorm(2, 3).double()
    for norm in (layer, added):
        torch.nn.init.normal_(norm.scale, generator=torch.Generator().manual_seed(0))
    nothing = torch.zeros(6, dtype=torch.float64)
    biased = x + bias[:, None, None]
    for training in (True, False):
        layer.train(training)
        added.train(training)
        y, expected = layer.normalise(x, bias), added.normalise(biased, nothing)
        torch.testing.assert_close(y, expected)
        torch.testing.assert_close(layer.running_mean, added.running_mean)
        weights = torch.randn_like(y)
        gradients = [torch.autograd.grad((out * weights).sum(), bias, retain_graph=True)[0] for out in (y, expected)]
        torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-9)
        assert gradients[0].any() != training  # nothing at all, not even rounding


def test_flattening_orders_features_by_row_column_channel_whatever_the_memory_order() -> None:
    x = torch.arange(2.0 * 6 * 2 * 2).view(2, 6, 2, 2)
    features = flatten(x, 3)
    assert features.shape == (3, 2, 8)
    assert features[1, 0].tolist() == [x[0, c, i, j].item() for i in range(2) for j in range(2) for c in (2, 3)]
    assert torch.equal(features, flatten(x.to(memory_format=torch.channels_last), 3))


def test_averages_are_over_each_members_height_and_width() -> None:
    x = torch.rand(2, 6, 3, 3)
    torch.testing.assert_close(average(x, 3)[1, 0], x[0, 2:4].flatten(1).mean(1))


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_local_response_norm_is_the_formula_within_each_member(members: int, layout: torch.memory_format) -> None:
    x = torch.randn(2, 7 * members, 3, 2, dtype=torch.float64).to(memory_format=layout)
    expected = torch.empty_like(x)
    for k in range(members):
        for c in range(7):
            window = [7 * k + d for d in range(c - 2, c + 3) if 0 <= d < 7]
            s = 1 + 0.8 / 5 * x[:, window].square().sum(1)
            expected[:, 7 * k + c] = x[:, 7 * k + c] / s**0.75
    torch.testing.assert_close(local_response_norm(x, members, alpha=0.8), expected)


def test_local_response_norm_has_the_gradient_of_its_formula() -> None:
    x = torch.randn(1, 12, 2, 1, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: local_response_norm(x, 2, size=3, alpha=2.0, beta=0.6), x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_local_response_norm_rounds_16_bits_once(dtype: torch.dtype) -> None:
    x = (10 * torch.randn(2, 12, 3, 3)).to(dtype)
    with torch.autocast("cpu", torch.bfloat16):
        y = local_response_norm(x, 2, alpha=1.0)
    assert y.dtype == dtype
    assert torch.equal(y, local_response_norm(x.float(), 2, alpha=1.0).to(dtype))


def test_a_window_has_a_middle() -> None:
    with pytest.raises(ValueError, match=r"size=4: give an odd number"):
        local_response_norm(torch.ones(1, 8, 1, 1), 1, size=4)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_local_response_norm_is_the_same_on_a_gpu(dtype: torch.dtype) -> None:
    x = (10 * torch.randn(2, 48, 5, 5)).to(dtype)
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-2}[dtype]
    found = local_response_norm(x.cuda().requires_grad_(), 3, alpha=1.0)
    assert ("LocalResponseNorm" in type(found.grad_fn).__name__) == (dtype != torch.float64)  # the fused kernel's
    torch.testing.assert_close(
        found.detach().cpu(), local_response_norm(x, 3, alpha=1.0), rtol=tolerance, atol=tolerance
    )
