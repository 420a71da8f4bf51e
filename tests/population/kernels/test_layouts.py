"""Both memory layouts of a population's images give the same networks; on the CPU kernels run in the interpreter."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

pytest.importorskip("triton")
GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
HALF = torch.bfloat16 if GPU else torch.float16  # the interpreter multiplies no bfloat16

from hullo.population import AugmentedImages, Population, kernels  # noqa: E402
from hullo.population.kernels import (  # noqa: E402
    act_pool_drop,
    bn_act,
    channel_stats,
    convolution,
    input_conv,
    row_conv,
    square_gradient,
)
from hullo.population.kernels.dropout import Dropout  # noqa: E402
from hullo.population.kernels.layouts import all_channels, channels_last, empty_images  # noqa: E402
from hullo.population.rules import RULES, Context  # noqa: E402
from hullo.population.values import Value  # noqa: E402


@given(
    shape=st.lists(st.integers(1, 5), min_size=4, max_size=5),
    order=st.permutations(range(5)),
    repeated=st.booleans(),
    is_part=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_images_in_any_order_in_memory_have_their_channels_last(
    shape: list[int], order: list[int], repeated: bool, is_part: bool, dtype: torch.dtype
) -> None:
    order = [i for i in order if i < len(shape)]
    memory = torch.randn([shape[i] + 3 * is_part for i in order]).to(dtype)
    stored = memory.permute([order.index(i) for i in range(len(shape))])[tuple(map(slice, shape))]
    x = stored[..., :1, :1].expand(shape) if repeated else stored
    found = channels_last(x)
    assert torch.equal(found, x)
    assert found.movedim(-3, -1).is_contiguous()
    other = empty_images(x, members=shape[0] if len(shape) == 5 else 1, channels=3, size=(2, 4))
    assert other.movedim(-3, -1).is_contiguous()
    assert (other.dim(), other.shape[-4], other.shape[-2:]) == (len(shape), shape[-4], (2, 4))
    assert all_channels(other) == 3 * (shape[0] if len(shape) == 5 else 1)


def test_a_pixel_for_all_of_an_image_may_be_at_any_address() -> None:
    pixels = torch.randn(2 * 4 + 1).to(torch.bfloat16)[1:].view(2, 4)
    images = pixels[..., None, None].expand(2, 4, 3, 3)
    found = channels_last(images)
    assert torch.equal(found, images)
    assert found.movedim(1, -1).is_contiguous()


def test_a_pixel_for_all_of_an_image_may_have_any_stride_where_there_is_one() -> None:
    x = torch.randn(1, 7).bfloat16()[:, :4, None, None].expand(1, 4, 3, 3)
    assert torch.equal(channels_last(x), x)


class Network(nn.Module):
    """Residual blocks, before and after a change of size, and what follows images elsewhere."""

    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        self.same = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.down = nn.Conv2d(channels, 2 * channels, 3, stride=2)
        self.shortcut = nn.Conv2d(channels, 2 * channels, 1, stride=2)
        self.wide = nn.Conv2d(2 * channels, 65, 1, dilation=2)  # which our kernels do not take
        self.norms = nn.ModuleList(
            nn.BatchNorm2d(width) for width in (channels, channels, 2 * channels, 65, 2 * channels)
        )
        self.pool, self.linear = nn.MaxPool2d(3, 1, 1), nn.Linear(65 + channels, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norms[0](self.first(x)).relu()
        x = (self.norms[1](self.same(x)) + x).relu()
        pooled = nn.functional.max_pool2d(self.same(x).tanh(), 2)
        shortcut = self.norms[4](self.shortcut(x.contiguous()))  # which no activation follows
        y = (self.norms[2](self.down(nn.functional.pad(x, (0, 1, 0, 1)))) + shortcut).relu()
        y = self.norms[3](self.wide(self.pool(y) + y.tanh())).relu()
        return self.linear(torch.cat([y, pooled], 1).mean((2, 3)))


class OneChannel(nn.Module):
    """Images of one channel, for which both layouts are one; two convolutions leave their gradients to a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 1, 3, padding=1), nn.Linear(32, 10)
        self.down, self.shortcut = nn.Conv2d(1, 32, 3, stride=2, padding=1), nn.Conv2d(1, 32, 1, stride=2)
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for width in (1, 32))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norms[0](self.first(x)).relu()
        y: Tensor = (self.norms[1](self.down(x)) + self.shortcut(x)).relu()
        return self.last(y.mean((2, 3)))


@pytest.mark.parametrize(
    ("network", "layouts", "training"),
    [
        (Network, [4, 4, 4, 4, 5, 5, 5, 5, 4], True),  # convolutions of libraries return images side by side
        (Network, [4, 4, 4, 4, 5, 5, 5, 5, 4], False),
        (OneChannel, [4, 4, 5, 4], True),
    ],
)
def test_networks_whose_images_are_stacked_have_the_results_and_gradients_of_others(
    network: type[nn.Module], layouts: list[int], training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    dims: list[int] = []
    normalize = bn_act.normalize_combine

    def record(x: Tensor, *others: Any, **settings: Any) -> Any:
        dims.append(x.dim())
        return normalize(x, *others, **settings)

    monkeypatch.setattr(kernels, "support", lambda x: x.dtype != torch.float64)
    monkeypatch.setattr(bn_act, "normalize_combine", record)
    images = torch.randint(256, (4, 3, 8, 8), dtype=torch.uint8, device=DEVICE)
    index, moves = torch.arange(4).view(2, 2), torch.zeros(2, 2, 3, dtype=torch.int64)
    x = AugmentedImages(images, index.to(DEVICE), moves.to(DEVICE))
    found = []
    for most in (0, input_conv.MOST_STACKED):
        monkeypatch.setattr(input_conv, "MOST_STACKED", most)
        monkeypatch.setattr(input_conv, "LEAST_STACKED", 1)
        population = Population(network, seeds=range(2)).to(DEVICE).train(training)
        with torch.autocast(DEVICE, HALF):
            y = population(x).float()
        gradients = torch.autograd.grad(y.square().sum(), list(population.parameters()))
        names = [name for name, _ in population.named_parameters()]
        running = {name: buffer.clone() for name, buffer in population.named_buffers() if "running" in name}
        found.append({"y": y} | dict(zip(names, gradients, strict=True)) | running)
    for name, one in found[0].items():
        if not (training and re.search(r"(first|down|wide|shortcut)\.bias", name)):  # whose gradients are zero
            assert (one - found[1][name]).norm() <= 2e-2 * one.norm(), name
    assert dims == layouts


def test_what_kernels_do_not_normalize_is_left_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "support", lambda x: True)
    context = Context(2, torch.zeros(2), torch.zeros(2))
    one = [Value(torch.ones(2, 3, device=DEVICE), 0) for _ in range(4)]
    normalize = RULES[torch.ops.aten.batch_norm.default]
    with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
        normalize(context, Value(torch.randn(2, 1, 3, 1, 1, device=DEVICE), 0), *one, True, 0.1, 1e-5)
    assert normalize(context, Value(torch.randn(2, 0, 3, 4, 4, device=DEVICE), 0), *one, False, 0.1, 1e-5).shape[0] == 0


@pytest.mark.parametrize("stacked", [False, True])
def test_images_keep_their_order_when_they_are_enlarged_and_concatenated(stacked: bool) -> None:
    """And so do their gradients; autocast would make enlarged ones wider, which they gain nothing from."""

    def draw(channels: int, size: int) -> Value:
        shape = (2, 3, size, size, channels) if stacked else (3, size, size, 2, channels)
        x = torch.randn(shape, device=DEVICE).to(HALF).requires_grad_()
        leaves.append(x)
        return Value(x.movedim(-1, 2), 0) if stacked else Value(x.permute(0, 3, 4, 1, 2), 1)

    def is_in_order(x: Tensor) -> bool:
        return x.movedim(2, -1).is_contiguous() if stacked else x.permute(0, 3, 4, 1, 2).is_contiguous()

    context, leaves = Context(2, torch.zeros(2), torch.zeros(2)), []
    one, other = draw(4, 6), draw(5, 3)
    with torch.autocast(DEVICE, HALF):
        large = RULES[torch.ops.aten.upsample_nearest2d.vec](context, other, None, [2.0, 2.0])
        both = RULES[torch.ops.aten.cat.default](context, [one, large], 1)
    assert both.dtype == HALF
    assert is_in_order(large.tensor)
    assert is_in_order(both.tensor)
    found = torch.autograd.grad(both.tensor, [one.tensor, large.tensor], torch.randn_like(both.tensor))
    assert all(map(is_in_order, found))


@pytest.mark.parametrize("images", [2**17 - 1, 2**17])
def test_offsets_have_64_bits_where_32_do_not_hold_them(images: int, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = []
    for module in (convolution, row_conv, square_gradient):
        monkeypatch.setattr(module, "launch", lambda *_, **constants: flags.append(constants.get("BIG")))
    x, dy = (torch.empty(images, 16, side, side, device="meta") for side in (32, 16))
    weight = torch.empty(16, 8, 3, 3, device="meta")
    shape = convolution.Shape.of(2, weight, (32, 32), 1, (1, 1))
    halved = convolution.Shape.of(2, weight, (32, 32), 2, (1, 1))
    convolution._convolve_windows(x, weight, None, shape)
    convolution._weight_gradient_by_windows(x, x, weight, shape, biased=False)
    row_conv.convolve_rows(x, weight, shape, row_conv.TILES[3, 16, 16])
    row_conv.weight_gradient(x, x, shape, row_conv.WEIGHT_TILES[3, 16, 16])
    square_gradient.input_gradient(dy, weight, halved, square_gradient.TILES[3, 16, 32])
    numbers = torch.empty(2, dtype=torch.int64, device="meta")
    call = act_pool_drop._Call((), False, Dropout(numbers, numbers, 0, 0.0), None)
    flags.append(call.constants(x, torch.empty(3, device="meta"), None)["BIG"])
    flags.append(channel_stats.Tiling.of(x, channel_stats.TILES["apply"]).constants["BIG"])
    found = [flag for flag in flags if flag is not None]  # sums over parts of weights have none
    assert found == [x.numel() >= 2**31] * 7
