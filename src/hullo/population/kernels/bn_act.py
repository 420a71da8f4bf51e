"""Batch norm, residual and activation of a population, fused.

    y = combine(scale * xhat + shift + residual, rows, bases),    xhat = (x - mean) / sqrt(variance + eps)

for images with channels last, each channel with its own statistics. In training x is read twice: for the statistics
(:mod:`hullo.population.kernels.channel_stats`), unless the convolution computed them, then by `apply`, which writes y.
The backward pass keeps x, the residual and the statistics, and computes the input of the bases again; ds = dy * (the
slope there). `backward_sums` computes the sums for the gradients of all parameters. It writes ds if there is a
residual, whose gradient ds is. From the sums `backward_input` computes

    dx = scale / sqrt(variance + eps) * (ds - mean of ds - xhat * mean of ds * xhat)

Without a residual it computes ds once more: x and dy are as many bytes as x and ds, and ds is never written. A value
with two users, such as a block and its shortcut, has two gradients: `backward_sums` adds them as it reads them, and
writes ds. The second pass over a tensor goes from the last tile to the first, as the cache holds what was read last.

The kernels also serve :mod:`hullo.population.kernels.gn_act`: each of REPEAT samples is then a matrix with statistics
of its own, and WIDTH neighboring channels share them.
"""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,untyped-decorator"

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hullo.bases import Base
from hullo.kernels.codegen import fill
from hullo.population.kernels.channel_stats import (
    TILES,
    PartialSums,
    Tiling,
    assign_lane,
    center,
    compute_statistics,
    fold,
    locate,
    shared_columns,
    spread,
)
from hullo.population.kernels.kinds import Kind, Kinds, all_alike, build_branches, choose_kernels, hull_parts
from hullo.population.kernels.launch import launch, once_differentiable, wait_for_previous
from hullo.population.kernels.layouts import by_sample, channels_last, is_stacked

STAGES = 4
"""Number of tiles that `backward_sums` loads in advance: it computes more per byte than the other kernels."""


def normalize_combine(
    x: Tensor,
    running_mean: Tensor,
    running_variance: Tensor,
    scale: Tensor,
    shift: Tensor,
    rows: Tensor,
    bases: Iterable[Base],
    training: bool,
    *,
    momentum: float,
    eps: float,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    moments: Tensor | None = None,
    kinds: Kinds | None = None,
) -> tuple[Tensor, Tensor]:
    """Return images after batch norm, the sum with a residual and the activation, as two tensors.

    Both share their memory. A value with two users gets a gradient from each, and this function adds them up.

    Args:
        x: images in one of the layouts of :mod:`hullo.population.kernels.layouts`; others are copied first.
        running_mean, running_variance: of each channel. Training updates them in place, as PyTorch does.
        scale, shift: of each channel.
        rows, bases, kinds: as :func:`hullo.population.kernels.act_pool_drop.combine_pool_drop` takes them.
        training: whether x is normalized by its own statistics, or by the running ones.
        momentum, eps: those of the batch norm.
        bias: of each channel, where the convolution left it out. In training it would be subtracted again with the
            mean, so the running mean alone takes it up, and its gradient is zero.
        residual: images like x.
        moments: sums and sums of squares of x, for the statistics of training; without them x is read once more.
    """
    operands = Operands(running_mean, running_variance, scale, shift, rows, bias, residual)
    both: tuple[Tensor, Tensor] = _NormalizeCombine.apply(
        x, *operands, _Call(tuple(bases), training, momentum, eps, kinds), moments
    )
    return both


class _Call(NamedTuple):
    """Hold the arguments of a call that are not tensors."""

    bases: tuple[Base, ...]
    training: bool
    momentum: float
    eps: float
    kinds: Kinds | None


class Operands(NamedTuple):
    """Hold the tensors besides x. The mean less the bias is subtracted from x."""

    mean: Tensor
    variance: Tensor
    scale: Tensor
    shift: Tensor
    rows: Tensor
    bias: Tensor | None
    residual: Tensor | None

    def constants(self, x: Tensor, *, repeat: int = 1, width: int = 1) -> dict[str, Any]:
        """Return the constants of the kernels, for so many samples with statistics of their own, and groups so wide."""
        present = {"BIAS": self.bias is not None, "RESIDUAL": self.residual is not None}
        return present | {"REPEAT": repeat, "WIDTH": width} | shared_columns(x, self.rows)

    def backward_sums(
        self, call: Any, x: Tensor, gradients: Sequence[Tensor], learned: bool, *, width: int = 0
    ) -> tuple[Tensor, PartialSums, Tiling, dict[str, Any]]:
        """Return the gradient of the sum before the activation, or dy where it is computed again, and the sums for all
        other gradients; with a width, those of each sample."""
        samples = x.shape[-4] if width else 1
        constants = self.constants(x, repeat=samples, width=width or 1)
        constants["STORE_DS"] = len(gradients) > 1 or self.residual is not None
        ds = torch.empty_like(x) if constants["STORE_DS"] else gradients[0]
        tiling = Tiling.of(by_sample(x) if width else x, TILES["backward_sums"])
        bases = len(call.bases) if learned else 0
        partial = PartialSums.empty(x, tiling.splits * samples, 2, bases, constants["EACH"])
        self.launch(
            "backward_sums", call, tiling, [gradients[0], gradients[-1], x], [ds, partial.data], follows=False,
            **constants, TWO_GRADIENTS=len(gradients) > 1, LEARNED=learned, STAGES=STAGES,
        )  # fmt: skip
        return ds, partial, tiling, constants

    def launch(
        self, name: str, call: Any, tiling: Tiling, inputs: Sequence[Tensor], outputs: Sequence[Tensor], *,
        follows: bool, **constants: Any,
    ) -> None:  # fmt: skip
        """Launch a kernel of the bases of a call on inputs, the last of them x, and outputs."""
        constants |= tiling.constants
        x, is_even = inputs[-1], constants["GROUP"] % constants["COLUMNS"] == 0
        kinds = call.kinds if is_stacked(x) or is_even else None  # each program has channels of one member
        kernels, numbers = choose_kernels(make_kernels, call.bases, x.dtype, kinds)
        launch(
            kernels[name], tiling.programs, *numbers, *inputs, *self, *outputs, call.eps, *tiling.sizes,
            follows=follows, **constants,
        )  # fmt: skip


class _NormalizeCombine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *given: Any) -> tuple[Tensor, Tensor]:
        *tensors, call, moments = given
        operands = Operands(*tensors)
        ctx.set_materialize_grads(False)
        ctx.call, ctx.bias = call, operands.bias
        x, residual = channels_last(x), None if operands.residual is None else channels_last(operands.residual)
        operands = operands._replace(rows=operands.rows.contiguous(), residual=residual)
        if call.training:
            mean, variance = compute_statistics(
                x, operands.mean, operands.variance, call.momentum, operands.bias, moments
            )
            operands = operands._replace(mean=mean, variance=variance, bias=None)
        ctx.save_for_backward(x, *operands)
        tiling, y = Tiling.of(x, TILES["apply"]), torch.empty_like(x)
        operands.launch("apply", call, tiling, [x], [y], follows=call.training, **operands.constants(x))
        return y, y.view_as(y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        x, *saved = ctx.saved_tensors
        operands, call = Operands(*saved), ctx.call
        given = [channels_last(gradient) for gradient in gradients if gradient is not None]
        if not given:
            return (None,) * len(ctx.needs_input_grad)
        learned = ctx.needs_input_grad[Operands._fields.index("rows") + 1]
        ds, partial, _, constants = operands.backward_sums(call, x, given, learned)
        drows = torch.empty_like(operands.rows) if learned else None
        dbias = None if ctx.bias is None else torch.empty_like(ctx.bias)
        dshift, dscale = sums = partial.add_up(drows, zeros=dbias)
        tiling, dx = Tiling.of(x, TILES["backward_input"]), torch.empty_like(x)
        operands.launch(
            "backward_input", call, tiling, [ds, x], [sums, dx], follows=True, **constants, TRAINING=call.training,
            GROUPED=False,
        )  # fmt: skip
        if operands.bias is not None:  # in evaluation; in training its gradient is zero
            dbias = (dshift * operands.scale * (operands.variance + call.eps).rsqrt()).to(operands.bias.dtype)
        dresidual = None if operands.residual is None else ds
        scale, shift = operands.scale, operands.shift
        return dx, None, None, dscale.to(scale.dtype), dshift.to(shift.dtype), drows, dbias, dresidual, None, None


@functools.cache
def make_kernels(bases: tuple[Base, ...], dtype: torch.dtype, kinds: tuple[Kind, ...] = ()) -> dict[str, Any]:
    """Return the kernels `apply`, `backward_sums` and `backward_input` of a set of bases."""
    sums = "HELD", "(size // EACH)"
    texts = [fill(_TEMPLATE, _PARTS | hull_parts(bases, kind, *sums)) for kind in kinds or all_alike(bases)]
    label = f"norm({','.join(base.name for base in bases)}) {kinds} on {dtype}"
    helpers = (wait_for_previous, assign_lane, locate, center, fold, spread)
    return build_branches(texts, label, dtype, _MEMBER, *helpers)


_LANE = "tl.program_id(0) % (STACK * ACROSS)"
_MEMBER = f"({_LANE} // ACROSS // REPEAT * CHANNELS + {_LANE} % ACROSS * COLUMNS) // GROUP"
"""The row of coefficients of a program's first channel."""

_CONSTANTS = "STACK CHANNELS ACROSS ROWS HELD COLUMNS EVEN BIG GROUP EACH BIAS RESIDUAL REPEAT WIDTH EARLY"

_TEMPLATE = """
@triton.jit
def apply(
    x_ptr,
    $OTHERS
    y_ptr, eps, pixels, tiles, splits,
    $CONSTANTS
):
    $COLUMNS
    $COEFFICIENTS
    wait_for_previous(EARLY)
    $STATISTICS
    for turn in range(split, tiles, splits):
        start, at, inside = locate(tiles - 1 - turn, matrix, column, pixels, CHANNELS, ROWS, COLUMNS, EVEN, BIG)
        x = tl.load(x_ptr + start + at, mask=inside, other=0.0).to(tl.float32)
        $ARGUMENT
        $VALUES
        $COMBINED
        tl.store(y_ptr + start + at, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def backward_sums(
    dy_ptr, more_ptr, x_ptr,
    $OTHERS
    ds_ptr, partial_ptr, eps, pixels, tiles, splits,
    TWO_GRADIENTS: tl.constexpr, STORE_DS: tl.constexpr, LEARNED: tl.constexpr, STAGES: tl.constexpr,
    $CONSTANTS
):
    $COLUMNS
    $COEFFICIENTS
    $STATISTICS
    wait_for_previous(EARLY)
    sum_ds = tl.zeros([HELD, COLUMNS], tl.float32)
    sum_moment = tl.zeros([HELD, COLUMNS], tl.float32)
    $ZERO
    for tile in tl.range(split, tiles, splits, num_stages=STAGES):
        start, at, inside = locate(tile, matrix, column, pixels, CHANNELS, ROWS, COLUMNS, EVEN, BIG)
        x = widen(tl.load(x_ptr + start + at, mask=inside, other=0.0))
        dy = widen(tl.load(dy_ptr + start + at, mask=inside, other=0.0))
        if TWO_GRADIENTS:
            dy += widen(tl.load(more_ptr + start + at, mask=inside, other=0.0))
        $ARGUMENT
        $VALUES
        $SLOPES
        $SLOPE
        ds = dy * slope
        if STORE_DS:
            tl.store(ds_ptr + start + at, ds.to(ds_ptr.dtype.element_ty), mask=inside)
        sum_ds += fold(ds, HELD)
        sum_moment += fold(ds * centered, HELD)
        if LEARNED:
            $ADD
    size = splits * (STACK * CHANNELS)
    start = (split * REPEAT + sample) * (STACK // REPEAT * CHANNELS)
    to = partial_ptr + start + channel
    tl.store(to, tl.sum(sum_ds, axis=0)[None, :], mask=known)
    tl.store(to + size, tl.sum(sum_moment * inverse, axis=0)[None, :], mask=known)
    if LEARNED:
        to = partial_ptr + 2 * size + (start + owner * CHANNELS + some) // EACH
        $STORE


@triton.jit
def backward_input(
    ds_ptr, x_ptr,
    $OTHERS
    sums_ptr, dx_ptr, eps, pixels, tiles, splits, TRAINING: tl.constexpr, GROUPED: tl.constexpr,
    STORE_DS: tl.constexpr,
    $CONSTANTS
):
    $COLUMNS
    $COEFFICIENTS
    $STATISTICS
    wait_for_previous(EARLY)
    if GROUPED:  # means over a group, weighted by the scales of its channels
        level = inverse * tl.load(sums_ptr + statistic, mask=known, other=0.0)
        to = sums_ptr + STACK * CHANNELS // WIDTH + statistic
        tilt = inverse * inverse * tl.load(to, mask=known, other=0.0)
    elif TRAINING:
        level = factor * tl.load(sums_ptr + channel, mask=known, other=0.0) / pixels
        tilt = factor * inverse * tl.load(sums_ptr + STACK * CHANNELS + channel, mask=known, other=0.0) / pixels
    for turn in range(split, tiles, splits):
        start, at, inside = locate(tiles - 1 - turn, matrix, column, pixels, CHANNELS, ROWS, COLUMNS, EVEN, BIG)
        x = tl.load(x_ptr + start + at, mask=inside, other=0.0).to(tl.float32)
        ds = tl.load(ds_ptr + start + at, mask=inside, other=0.0).to(tl.float32)
        if STORE_DS:
            centered = center(x, mean, inside, EVEN)
        else:
            dy = ds  # ds was not stored, it is computed again
            $ARGUMENT
            $VALUES
            $SLOPES
            $SLOPE
            ds = dy * slope
        dx = factor * ds
        if GROUPED or TRAINING:
            dx -= level + tilt * centered
        tl.store(dx_ptr + start + at, dx.to(dx_ptr.dtype.element_ty), mask=inside)
"""

# Done once per program: its columns and their numbers. Coefficients are read once for EACH of them. None of this was
# written by the kernel before, which may still run.
_COLUMNS = """
matrix, first, split = assign_lane(STACK, ACROSS, COLUMNS)
column = first + tl.arange(0, COLUMNS)[None, :]
known = column < CHANNELS
owner, sample = matrix // REPEAT, matrix % REPEAT
channel = owner * CHANNELS + column
statistic = (sample * (STACK // REPEAT * CHANNELS) + channel) // WIDTH
factor = tl.load(scale_ptr + channel, mask=known, other=0.0).to(tl.float32)
shift = tl.load(shift_ptr + channel, mask=known, other=0.0).to(tl.float32)
some = first + EACH * tl.arange(0, COLUMNS // EACH)[None, :]
group = tl.where(some < CHANNELS, owner * CHANNELS + some, 0) // GROUP
"""

_STATISTICS = """
mean = tl.load(mean_ptr + statistic, mask=known, other=0.0).to(tl.float32)
if BIAS:
    mean -= tl.load(bias_ptr + channel, mask=known, other=0.0).to(tl.float32)
inverse = tl.rsqrt(tl.load(variance_ptr + statistic, mask=known, other=1.0).to(tl.float32) + eps)
factor *= inverse
"""

# The input of the bases.
_ARGUMENT = """
centered = center(x, mean, inside, EVEN)
x = centered * factor + shift
if RESIDUAL:
    x += tl.load(residual_ptr + start + at, mask=inside, other=0.0).to(tl.float32)
"""

_PARTS = {
    "OTHERS": [", ".join(f"{name}_ptr" for name in Operands._fields) + ","],
    "CONSTANTS": [f"{', '.join(f'{name}: tl.constexpr' for name in _CONSTANTS.split())},"],
    "COLUMNS": _COLUMNS.strip().splitlines(),
    "STATISTICS": _STATISTICS.strip().splitlines(),
    "ARGUMENT": _ARGUMENT.strip().splitlines(),
}
