"""Recurrent layers: a direction of a layer, and its time steps, for all members.

The products with the inputs of all time steps are one batched product, and so are the gradients of all weights. The
tensors of a direction are (members, time, batch, features). A time step is one kernel: the product with the last states
and the cell.

A program has some columns of all gates of one member, and so everything that these columns of the cell need. Backward
it first computes the gradient of the new states from the gradients of the gates one step later, then those of its own
gates; so a time step is one kernel in both directions, which is launched while the one before still runs: until that
ends it loads what other kernels made.
"""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,untyped-decorator"
# ruff: noqa: N803, N806 (constants are in capitals, in Triton)
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from hullo.kernels.device_math import sigmoid, tanh
from hullo.kernels.spec import compute_dtype
from hullo.population.kernels import processors
from hullo.population.kernels.launch import launch, once_differentiable, wait_for_previous
from hullo.population.kernels.layouts import block
from hullo.population.kernels.linear import column_sums

ROWS, COLUMNS, WARPS, STAGES = 64, (32, 16), {32: 8, 16: 4}, 3
"""Rows of a program; columns of each gate, the most that leave no multiprocessor without a program, or the fewest;
warps for so many columns."""
SHARED = 96 * 2**10
"""Bytes of shared memory that a program may use."""
GATES = {"lstm": 4, "gru": 3}
"""The gates of each kind of cell."""


class Weights(NamedTuple):
    """Hold the parameters of one direction of a layer, the members first."""

    input: Tensor
    hidden: Tensor
    input_bias: Tensor | None = None
    hidden_bias: Tensor | None = None


def run_direction(
    kind: str, x: Tensor, states: Sequence[Tensor], weights: Weights, is_reversed: bool
) -> tuple[Tensor, ...]:
    """Return the outputs, (members, time, batch, features), and the final state; an LSTM's memory, too.

    Args:
        kind: "lstm" or "gru".
        x: the inputs, (members, time, batch, features).
        states: the state, and the memory of an LSTM, at the beginning, (members, batch, features).
        weights: the parameters.
        is_reversed: whether time runs backward.
    """
    memory = states[1] if kind == "lstm" else None
    results: tuple[Tensor, ...] = _Direction.apply(kind, is_reversed, x, states[0], memory, *weights)
    return results if kind == "lstm" else results[:2]


class _Direction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, kind: str, is_reversed: bool, x: Tensor, state: Tensor, memory: Tensor | None, *given: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        weights = Weights(*given)  # type: ignore[arg-type]
        members, time, batch, _ = x.shape
        width = weights.hidden.shape[2]
        biases = [item for item in (weights.input_bias, weights.hidden_bias) if item is not None]
        products = torch.bmm(x.flatten(1, 2), weights.input.mT).view(members, time, batch, -1)
        # one more entry than there are time steps, that of the beginning, which is the last if time runs backward
        states = x.new_empty(members, time + 1, batch, width)
        memories = x.new_empty(members, time + 1, batch, width if kind == "lstm" else 0, dtype=compute_dtype(x))
        begin, past, new = (time, 1, 0) if is_reversed else (0, 0, 1)
        states[:, begin] = state
        if memory is not None:
            memories[:, begin] = memory
        saved = x.new_empty(members, time, batch, 4 * width)
        strides = (
            products.stride(0),
            products.stride(2),
            *(item.stride(0) for item in (states, memories, saved, states)),
        )
        programs, constants = _choose(kind, x, width)
        for i, t in enumerate(reversed(range(time)) if is_reversed else range(time)):
            launch(
                _forward, programs, products[:, t], weights.hidden, *(biases or (products, products)),
                states[:, t + past], memories[:, t + past], saved[:, t], states[:, t + new], memories[:, t + new],
                batch, *strides, members, BIAS=bool(biases), follows=i > 0, **constants,
            )  # fmt: skip
        end = 0 if is_reversed else time
        ctx.kind, ctx.is_reversed = kind, is_reversed
        ctx.save_for_backward(x, memory, states, memories, saved, *weights)
        last = memories[:, end].to(x.dtype) if memory is not None else None
        return states[:, new : time + new], states[:, end].clone(), last

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, memory, states, memories, saved, *given = ctx.saved_tensors
        kind, weights = ctx.kind, Weights(*given)
        members, time, batch, _ = x.shape
        past, new = (1, 0) if ctx.is_reversed else (0, 1)
        of_output, of_state, of_memory = gradients
        of_input = x.new_empty(members, time, batch, weights.hidden.shape[1])
        of_hidden = torch.empty_like(of_input) if kind == "gru" else of_input
        carry = x.new_zeros(members, batch, weights.hidden.shape[2], dtype=compute_dtype(x))
        if of_memory is not None and memory is not None:
            carry += of_memory
        of_output = of_output if of_output.stride(3) == 1 else of_output.contiguous()
        following = of_state.contiguous()
        strides = [item.stride(0) for item in (saved, states, memories, of_input)]
        programs, constants = _choose(kind, x, weights.hidden.shape[2])
        for i, t in enumerate(range(time) if ctx.is_reversed else reversed(range(time))):
            launch(
                _backward, programs, of_output[:, t], following, weights.hidden, carry, saved[:, t],
                states[:, t + past], memories[:, t + past], memories[:, t + new], of_input[:, t], of_hidden[:, t],
                batch, of_output.stride(0), of_output.stride(2), following.stride(0), *strides, members,
                LAST=i == 0, follows=i > 0, **constants,
            )  # fmt: skip
            following = of_hidden[:, t]
        of_beginning = torch.bmm(following, weights.hidden)
        if kind == "gru":
            of_beginning = of_beginning + carry.to(of_beginning.dtype)
        rows, hidden_rows = of_input.flatten(1, 2), of_hidden.flatten(1, 2)
        before = states[:, past : time + past].flatten(1, 2)
        of_bias = of_hidden_bias = None
        if weights.input_bias is not None:
            of_bias = of_hidden_bias = _sum_rows(rows)
            of_hidden_bias = _sum_rows(hidden_rows) if kind == "gru" else of_bias
        return (
            None,
            None,
            torch.bmm(rows, weights.input).view(x.shape) if ctx.needs_input_grad[2] else None,
            of_beginning,
            None if memory is None else carry.to(memory.dtype),
            torch.bmm(rows.mT, x.flatten(1, 2)),
            torch.bmm(hidden_rows.mT, before),
            of_bias,
            of_hidden_bias,
        )


def _sum_rows(x: Tensor) -> Tensor:
    """Return the sums over rows of (members, rows, columns)."""
    return column_sums(x.unsqueeze(2), x.dtype)[0]


def _choose(kind: str, x: Tensor, width: int) -> tuple[int, dict[str, Any]]:
    """Return how many programs compute a time step, and the constants of their kernel."""
    members, _, batch, _ = x.shape
    rows = min(ROWS, block(batch))
    strips = members * triton.cdiv(batch, rows)
    fitting = [size for size in COLUMNS if strips * triton.cdiv(width, size) >= processors(x)]
    columns = fitting[0] if fitting else COLUMNS[-1]
    each = STAGES * (rows + GATES[kind] * columns) * x.itemsize  # bytes per number of the inner axis
    inner = next(size for size in (128, 64, 32, 16) if size * each <= SHARED)
    return strips * triton.cdiv(width, columns), {
        "KIND": kind,
        "GATES": GATES[kind],
        "WIDTH": width,
        "ROWS": rows,
        "COLUMNS": columns,
        "INNER": min(block(width), inner),
        "STAGES": STAGES,
        "num_warps": WARPS[columns],
    }


@triton.jit
def _load(pointer, at, inside):
    return tl.load(pointer + at, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _store(pointer, at, value, inside):
    tl.store(pointer + at, value.to(pointer.dtype.element_ty), mask=inside)


@triton.jit
def _tile(batch, members, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return the member, the rows and the columns of a program, and which entries exist."""
    ACROSS: tl.constexpr = (WIDTH + COLUMNS - 1) // COLUMNS
    strip = tl.program_id(0) // ACROSS
    row = strip // members * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(0) % ACROSS * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    return (strip % members).to(tl.int64), row, column, (row < batch) & (column < WIDTH)


@triton.jit
def _multiply(product, x, weight_ptr, k, column, k_stride, column_stride, inside):
    """Add x times columns of a weight to a product."""
    weight = tl.load(weight_ptr + k * k_stride + column * column_stride, mask=inside, other=0.0)
    return tl.dot(x, weight, product, input_precision="ieee")


@triton.jit
def _forward(
    x_ptr, weight_ptr, x_bias_ptr, bias_ptr, past_ptr, past_memory_ptr, saved_ptr, state_ptr, memory_ptr, batch,
    x_stride, x_row, past_stride, memory_stride, saved_stride, state_stride, members,
    BIAS: tl.constexpr, KIND: tl.constexpr, GATES: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, INNER: tl.constexpr, STAGES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    member, row, column, inside = _tile(batch, members, WIDTH, ROWS, COLUMNS)
    x_ptr += member * x_stride
    bias_ptr += member * (GATES * WIDTH)
    x_bias_ptr += member * (GATES * WIDTH)
    weight_ptr += member * (GATES * WIDTH * WIDTH)
    at, to, entry = row * x_row + column, row * (4 * WIDTH) + column, row * WIDTH + column
    a = _load(x_ptr, at, inside)
    b = tl.zeros([ROWS, COLUMNS], tl.float32) + _load(x_ptr, at + WIDTH, inside)
    c = tl.zeros([ROWS, COLUMNS], tl.float32)
    d = tl.zeros([ROWS, COLUMNS], tl.float32)
    given = tl.zeros([ROWS, COLUMNS], tl.float32)  # to the new state of a GRU, besides the last one
    given += _load(x_ptr, at + 2 * WIDTH, inside)
    if KIND == "lstm":
        d += _load(x_ptr, at + 3 * WIDTH, inside)
    if BIAS:
        exists = column < WIDTH
        a += _load(bias_ptr, column, exists) + _load(x_bias_ptr, column, exists)
        b += _load(bias_ptr, column + WIDTH, exists) + _load(x_bias_ptr, column + WIDTH, exists)
        c += _load(bias_ptr, column + 2 * WIDTH, exists)
        given += _load(x_bias_ptr, column + 2 * WIDTH, exists)
        if KIND == "lstm":
            d += _load(bias_ptr, column + 3 * WIDTH, exists) + _load(x_bias_ptr, column + 3 * WIDTH, exists)
    wait_for_previous(EARLY)
    past_ptr += member * past_stride
    past_memory = tl.zeros([ROWS, COLUMNS], tl.float32)
    if KIND == "lstm":
        past_memory += _load(past_memory_ptr + member * memory_stride, entry, inside)
    for first in tl.range(0, WIDTH, INNER, num_stages=STAGES):
        k = first + tl.arange(0, INNER)
        known = (row < batch) & (k[None, :] < WIDTH)
        past = tl.load(past_ptr + row * WIDTH + k[None, :], mask=known, other=0.0)
        k = k[:, None]
        known = (k < WIDTH) & (column < WIDTH)
        a = _multiply(a, past, weight_ptr, k, column, 1, WIDTH, known)
        b = _multiply(b, past, weight_ptr + WIDTH * WIDTH, k, column, 1, WIDTH, known)
        c = _multiply(c, past, weight_ptr + 2 * WIDTH * WIDTH, k, column, 1, WIDTH, known)
        if KIND == "lstm":
            d = _multiply(d, past, weight_ptr + 3 * WIDTH * WIDTH, k, column, 1, WIDTH, known)
    saved_ptr += member * saved_stride
    state_ptr += member * state_stride
    if KIND == "lstm":
        i, f, g, o = sigmoid(a), sigmoid(b), tanh(given + c), sigmoid(d)
        memory = f * past_memory + i * g
        _store(memory_ptr + member * memory_stride, entry, memory, inside)
        _store(state_ptr, entry, o * tanh(memory), inside)
        _store(saved_ptr, to, i, inside)
        _store(saved_ptr, to + WIDTH, f, inside)
        _store(saved_ptr, to + 2 * WIDTH, g, inside)
        _store(saved_ptr, to + 3 * WIDTH, o, inside)
    else:
        r, z = sigmoid(a), sigmoid(b)
        n = tanh(given + r * c)
        _store(state_ptr, entry, n + z * (_load(past_ptr, entry, inside) - n), inside)
        _store(saved_ptr, to, r, inside)
        _store(saved_ptr, to + WIDTH, z, inside)
        _store(saved_ptr, to + 2 * WIDTH, n, inside)
        _store(saved_ptr, to + 3 * WIDTH, c, inside)


@triton.jit
def _backward(
    own_ptr, following_ptr, weight_ptr, carry_ptr, saved_ptr, past_ptr, past_memory_ptr, memory_ptr, dx_ptr,
    dhidden_ptr, batch, own_stride, own_row, following_stride, saved_stride, state_stride, memory_stride, dx_stride,
    members,
    LAST: tl.constexpr, KIND: tl.constexpr, GATES: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, INNER: tl.constexpr, STAGES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    member, row, column, inside = _tile(batch, members, WIDTH, ROWS, COLUMNS)
    at, to, entry = row * (GATES * WIDTH) + column, row * (4 * WIDTH) + column, row * WIDTH + column
    saved_ptr += member * saved_stride
    past_memory_ptr += member * memory_stride
    memory_ptr += member * memory_stride
    dy = _load(own_ptr + member * own_stride, row * own_row + column, inside)
    first_gate, second = _load(saved_ptr, to, inside), _load(saved_ptr, to + WIDTH, inside)
    third, fourth = _load(saved_ptr, to + 2 * WIDTH, inside), _load(saved_ptr, to + 3 * WIDTH, inside)
    if KIND == "lstm":
        t, past = tanh(_load(memory_ptr, entry, inside)), _load(past_memory_ptr, entry, inside)
    else:
        past = _load(past_ptr + member * state_stride, entry, inside)
    wait_for_previous(EARLY)
    carry_ptr += member * batch * WIDTH
    dx_ptr += member * dx_stride
    dhidden_ptr += member * dx_stride
    following_ptr += member * following_stride
    weight_ptr += member * (GATES * WIDTH * WIDTH)
    carry = _load(carry_ptr, entry, inside)
    if LAST:
        dy += _load(following_ptr, entry, inside)
    else:
        for first in tl.range(0, GATES * WIDTH, INNER, num_stages=STAGES):
            k = first + tl.arange(0, INNER)
            known = (row < batch) & (k[None, :] < GATES * WIDTH)
            dnext = tl.load(following_ptr + row * (GATES * WIDTH) + k[None, :], mask=known, other=0.0)
            k = k[:, None]
            dy = _multiply(dy, dnext, weight_ptr, k, column, WIDTH, 1, (k < GATES * WIDTH) & (column < WIDTH))
    if KIND == "lstm":
        i, f, g, o = first_gate, second, third, fourth
        dc = carry + dy * o * (1 - t * t)
        _store(carry_ptr, entry, dc * f, inside)
        _store(dx_ptr, at, dc * g * i * (1 - i), inside)
        _store(dx_ptr, at + WIDTH, dc * past * f * (1 - f), inside)
        _store(dx_ptr, at + 2 * WIDTH, dc * i * (1 - g * g), inside)
        _store(dx_ptr, at + 3 * WIDTH, dy * t * o * (1 - o), inside)
    else:
        r, z, n, last = first_gate, second, third, fourth
        dy += carry
        dn = dy * (1 - z) * (1 - n * n)
        dr = dn * last * r * (1 - r)
        dz = dy * (past - n) * z * (1 - z)
        _store(carry_ptr, entry, dy * z, inside)
        _store(dx_ptr, at, dr, inside)
        _store(dx_ptr, at + WIDTH, dz, inside)
        _store(dx_ptr, at + 2 * WIDTH, dn, inside)
        _store(dhidden_ptr, at, dr, inside)
        _store(dhidden_ptr, at + WIDTH, dz, inside)
        _store(dhidden_ptr, at + 2 * WIDTH, dn * r, inside)
