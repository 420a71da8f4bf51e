"""Statistics of columns agree with float64, far from zero too; on the CPU they run in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

from hullo.population.kernels.channel_stats import PartialSums, Tile, Tiling, compute_statistics  # noqa: E402


def measured(x: Tensor, moments: Tensor | None = None) -> tuple[Tensor, Tensor]:
    zeros, ones = (torch.full((x.shape[1],), value, device=DEVICE) for value in (0.0, 1.0))
    x = x.to(DEVICE, memory_format=torch.channels_last)
    mean, variance = compute_statistics(x, zeros, ones, 0.1, None, moments)
    return mean.cpu(), variance.cpu()


def check(x: Tensor, rtol: float, moments: Tensor | None = None) -> None:
    mean, variance = measured(x, moments)
    exact_variance, exact_mean = torch.var_mean(x.double(), (0, 2, 3), correction=0)
    deviation = exact_variance.sqrt()
    assert ((mean - exact_mean).abs() <= rtol * deviation + 2.0**-24 * exact_mean.abs()).all()
    torch.testing.assert_close(variance.double(), exact_variance, rtol=rtol, atol=0)


@pytest.mark.parametrize("mean", [0.0, 1e3, -1e5])
def test_nothing_cancels_however_far_the_mean_is_from_zero(mean: float) -> None:
    check(torch.randn(8, 40, 17, 17) + mean, rtol=1e-5)  # more tiles than programs, the last one incomplete


@pytest.mark.parametrize("mean", [0.0, 30.0])
def test_moments_of_parts_give_the_statistics_of_16_bit_numbers(mean: float) -> None:
    x = (torch.randn(8, 40, 16, 16) + mean).bfloat16()
    parts = x.float().view(4, 2, 40, -1)
    check(x, rtol=1e-3, moments=torch.stack([parts.sum((1, 3)), parts.square().sum((1, 3))]).to(DEVICE))


@pytest.mark.parametrize("outlier", [1e2, 1e4])
def test_a_first_value_far_from_all_others_does_no_harm(outlier: float) -> None:
    x = torch.randn(8, 40, 16, 16)
    x[0, :, 0, 0] = outlier
    check(x, rtol=1e-4)


def test_values_that_are_all_the_same_have_no_variance() -> None:
    mean, variance = measured(torch.full((3, 5, 4, 4), 0.1))
    assert (mean == 0.1).all()
    assert (variance == 0).all()


@pytest.mark.parametrize("bias", [False, True])
def test_running_statistics_move_as_those_of_batch_norm(bias: bool) -> None:
    x, mean, variance, added = torch.randn(3, 7, 5, 2), torch.randn(7), torch.rand(7), torch.randn(7)
    running = mean.to(DEVICE, copy=True), variance.to(DEVICE, copy=True)
    before = running[0]._version
    F.batch_norm(x + added.view(-1, 1, 1) if bias else x, mean, variance, training=True, momentum=0.3)
    x = x.to(DEVICE, memory_format=torch.channels_last)
    compute_statistics(x, *running, 0.3, added.to(DEVICE) if bias else None)
    torch.testing.assert_close([t.cpu() for t in running], [mean, variance])
    assert running[0]._version > before  # automatic differentiation knows of the move


@settings(max_examples=25)
@given(
    batch=st.integers(1, 5), channels=st.integers(1, 140), height=st.integers(1, 9), width=st.integers(2, 9),
    dtype=st.sampled_from([torch.float32, torch.float16]),
)  # fmt: skip
def test_every_shape_agrees_with_float64(
    batch: int, channels: int, height: int, width: int, dtype: torch.dtype
) -> None:
    check((3 * torch.randn(batch, channels, height, width) + 1).to(dtype), rtol=1e-5)


@given(
    stack=st.integers(1, 5), pixels=st.integers(1, 3000), channels=st.integers(1, 300),
    loads=st.sampled_from([1, 2, 4]), programs=st.sampled_from([1, 4, 8]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)  # fmt: skip
def test_programs_share_all_tiles_and_none_has_two_more_than_another(
    stack: int, pixels: int, channels: int, loads: int, programs: int, dtype: torch.dtype
) -> None:
    x = torch.empty(stack, pixels, channels, 1, 1, dtype=dtype, device=DEVICE)
    tiling = Tiling.of(x.squeeze(0), Tile(loads, 4, programs))
    shares = [len(range(split, tiling.tiles, tiling.splits)) for split in range(tiling.splits)]
    constants = tiling.constants
    assert sum(shares) * constants["ROWS"] >= pixels > (tiling.tiles - 1) * constants["ROWS"]
    assert 1 <= min(shares) >= max(shares) - 1
    assert constants["ACROSS"] * constants["COLUMNS"] >= channels > (constants["ACROSS"] - 1) * constants["COLUMNS"]
    assert tiling.programs == stack * constants["ACROSS"] * tiling.splits
    assert constants["ROWS"] == loads * constants["HELD"]


def test_partial_sums_are_added_up() -> None:
    splits, channels, bases, each, groups = 130, 48, 3, 4, 6
    moments, products = torch.randn(2, splits, channels), torch.randn(bases, splits, channels // each)
    for parts in (moments, products):  # which nearly cancel
        parts[:, 0] += 2**25
        parts[:, -1] -= 2**25
    data = torch.cat([moments.flatten(), products.flatten()]).to(DEVICE)
    drows, zeros = torch.full((groups, bases), torch.nan).to(DEVICE), torch.full((channels,), torch.nan).to(DEVICE)
    partial = PartialSums(data, splits, channels, 2, bases, each)
    sums = partial.add_up(drows, zeros=zeros)
    expected = moments.double().sum(1)
    torch.testing.assert_close(sums.cpu().double(), expected, rtol=1e-5, atol=1e-5)
    by_group = products.double().sum(1).view(bases, groups, -1).sum(2).mT
    torch.testing.assert_close(drows.cpu().double(), by_group, rtol=1e-5, atol=1e-5)
    assert (zeros == 0).all()
