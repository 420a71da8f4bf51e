"""Recurrent layers: a direction of a layer, and its time steps, for all members.

The products with the inputs of all time steps are one batched product, and so are the gradients of all weights. The
tensors of a direction are (members, time, batch, features). A time step is one kernel: the product with the last states
and the cell.

A program has some columns of all gates of one member, and so everything that these columns of the cell need. Backward
it first computes the gradient of the new states from the gradients of the gates one step later, then those of its own
gates; so a time step is one kernel in both directions, which is launched while the one before still runs: until that
ends it loads what other kernels made. Tensors are (members, batch, features): one time step of a
longer one, so members and rows are apart by strides of their own, and numbers of a row are neighbors.
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


GATES = {"lstm": 4, "gru": 3, "tanh": 1, "relu": 1}
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
        kind: "lstm", "gru", "tanh" or "relu".
        x: the inputs, (members, time, batch, features).
        states: the state, and the memory of an LSTM, at the beginning, (members, batch, features).
        weights: the parameters.
        is_reversed: whether time runs backward.
    """
    memory = states[1] if kind == "lstm" else None
    results: tuple[Tensor, ...] = _Direction.apply(kind, is_reversed, x, states[0], memory, *weights)
    return results if kind == "lstm" else results[:2]


class _Direction(torch.autograd.Function):
    """Compute a direction by a fused cell."""

    @staticmethod
    def forward(
        ctx: Any, kind: str, is_reversed: bool, x: Tensor, state: Tensor, memory: Tensor | None, *given: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        weights = Weights(*given)  # type: ignore[arg-type]
        members, time, batch, _ = x.shape
        gates, width = GATES[kind], weights.hidden.shape[2]
        biases = [item for item in (weights.input_bias, weights.hidden_bias) if item is not None]
        products = torch.bmm(x.flatten(1, 2), weights.input.mT).view(members, time, batch, -1)
        # one more entry than there are time steps, that of the beginning, which is the last if time runs backward
        states = x.new_empty(members, time + 1, batch, width)
        memories = x.new_empty(members, time + 1, batch, width if kind == "lstm" else 0, dtype=compute_dtype(x))
        begin, past, new = (time, 1, 0) if is_reversed else (0, 0, 1)
        states[:, begin] = state
        if memory is not None:
            memories[:, begin] = memory
        saved = x.new_empty(members, time, batch, 4 * width if gates > 1 else 0)
        for i, t in enumerate(reversed(range(time)) if is_reversed else range(time)):
            before = states[:, t + past], memories[:, t + past]
            after = saved[:, t], states[:, t + new], memories[:, t + new]
            forward(kind, products[:, t], weights.hidden, biases, before, after, follows=i > 0)
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
        for i, t in enumerate(range(time) if ctx.is_reversed else reversed(range(time))):
            kept = (saved[:, t], states[:, t + past], states[:, t + new], memories[:, t + past], memories[:, t + new])
            found = of_input[:, t], of_hidden[:, t]
            backward(kind, of_output[:, t], following, weights.hidden, carry, kept, found, follows=i > 0)
            following = found[1]
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


def forward(
    kind: str,
    x: Tensor,
    weight: Tensor,
    biases: Sequence[Tensor],
    past: Sequence[Tensor],
    new: Sequence[Tensor],
    *,
    follows: bool,
) -> None:
    """Compute a time step.

    Args:
        kind: of the cell: "lstm", "gru", "tanh" or "relu".
        x: the products with the inputs, (members, batch, gates * width).
        weight: for the last state, (members, gates * width, width).
        biases: of both products, or none.
        past: the last state and memory.
        new: where to write the gates, the new state and the new memory.
        follows: whether this directly follows another time step.
    """
    saved, state, _ = new
    _launch(
        _forward, state, x, weight, *(biases or (x, x)), *past, *new, state.shape[1], x.stride(0), x.stride(1),
        past[0].stride(0), past[1].stride(0), saved.stride(0), state.stride(0),
        BIAS=bool(biases), KIND=kind, follows=follows,
    )  # fmt: skip


def backward(
    kind: str,
    gradient: Tensor,
    following: Tensor,
    weight: Tensor,
    carry: Tensor,
    saved: Sequence[Tensor],
    new: Sequence[Tensor],
    *,
    follows: bool,
) -> None:
    """Compute the gradients of a time step.

    Args:
        kind: of the cell.
        gradient: of the state, from the outputs.
        following: the gradient of the product with this state, which the next step made; of the last step, the
            gradient of the final state.
        weight: as in `forward`.
        carry: the gradient of an LSTM's memory, or a part of that of the last state; it is updated.
        saved: the gates, the last state, the new one, the last memory and the new one.
        new: where to write the gradients of both products.
        follows: whether this directly follows another time step; if not, it is the last one.
    """
    gates, past, _, past_memory, _ = saved
    _launch(
        _backward, carry, gradient, following, weight, carry, *saved, *new, carry.shape[1], gradient.stride(0),
        gradient.stride(1), following.stride(0), gates.stride(0), past.stride(0), past_memory.stride(0),
        new[0].stride(0), LAST=not follows, KIND=kind, follows=follows,
    )  # fmt: skip


def _launch(kernel: Any, state: Tensor, x: Tensor, *arguments: Any, KIND: str, follows: bool, **constants: Any) -> None:
    """Launch a kernel on tiles of a state."""
    members, batch, width = state.shape
    rows = min(ROWS, block(batch))
    strips = members * triton.cdiv(batch, rows)
    fitting = [size for size in COLUMNS if strips * triton.cdiv(width, size) >= processors(x)]
    columns = fitting[0] if fitting else COLUMNS[-1]
    gates = {"lstm": 4, "gru": 3}.get(KIND, 1)
    each = STAGES * (rows + gates * columns) * x.itemsize  # bytes per number of the inner axis
    inner = next(size for size in (128, 64, 32, 16) if size * each <= SHARED)
    launch(
        kernel, strips * triton.cdiv(width, columns), x, *arguments, members, follows=follows, KIND=KIND, GATES=gates,
        WIDTH=width, ROWS=rows, COLUMNS=columns, INNER=min(block(width), inner), STAGES=STAGES,
        num_warps=WARPS[columns], **constants,
    )  # fmt: skip


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
    b = tl.zeros([ROWS, COLUMNS], tl.float32)
    c = tl.zeros([ROWS, COLUMNS], tl.float32)
    d = tl.zeros([ROWS, COLUMNS], tl.float32)
    given = tl.zeros([ROWS, COLUMNS], tl.float32)  # to the new state of a GRU, besides the last one
    if GATES > 1:
        b += _load(x_ptr, at + WIDTH, inside)
        given += _load(x_ptr, at + 2 * WIDTH, inside)
    if GATES > 3:
        d += _load(x_ptr, at + 3 * WIDTH, inside)
    if BIAS:
        exists = column < WIDTH
        a += _load(bias_ptr, column, exists) + _load(x_bias_ptr, column, exists)
        if GATES > 1:
            b += _load(bias_ptr, column + WIDTH, exists) + _load(x_bias_ptr, column + WIDTH, exists)
            c += _load(bias_ptr, column + 2 * WIDTH, exists)
            given += _load(x_bias_ptr, column + 2 * WIDTH, exists)
        if GATES > 3:
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
        if GATES > 1:
            b = _multiply(b, past, weight_ptr + WIDTH * WIDTH, k, column, 1, WIDTH, known)
            c = _multiply(c, past, weight_ptr + 2 * WIDTH * WIDTH, k, column, 1, WIDTH, known)
        if GATES > 3:
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
    elif KIND == "gru":
        r, z = sigmoid(a), sigmoid(b)
        n = tanh(given + r * c)
        _store(state_ptr, entry, n + z * (_load(past_ptr, entry, inside) - n), inside)
        _store(saved_ptr, to, r, inside)
        _store(saved_ptr, to + WIDTH, z, inside)
        _store(saved_ptr, to + 2 * WIDTH, n, inside)
        _store(saved_ptr, to + 3 * WIDTH, c, inside)
    else:
        a = tanh(a) if KIND == "tanh" else tl.where(a < 0, 0.0, a)
        _store(state_ptr, entry, a, inside)


@triton.jit
def _backward(
    own_ptr, following_ptr, weight_ptr, carry_ptr, saved_ptr, past_ptr, state_ptr, past_memory_ptr, memory_ptr, dx_ptr,
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
    if GATES > 1:
        first_gate, second = _load(saved_ptr, to, inside), _load(saved_ptr, to + WIDTH, inside)
        third, fourth = _load(saved_ptr, to + 2 * WIDTH, inside), _load(saved_ptr, to + 3 * WIDTH, inside)
    if KIND == "lstm":
        t, past = tanh(_load(memory_ptr, entry, inside)), _load(past_memory_ptr, entry, inside)
    elif KIND == "gru":
        past = _load(past_ptr + member * state_stride, entry, inside)
    else:
        y = _load(state_ptr + member * state_stride, entry, inside)
    wait_for_previous(EARLY)
    carry_ptr += member * batch * WIDTH
    dx_ptr += member * dx_stride
    dhidden_ptr += member * dx_stride
    following_ptr += member * following_stride
    weight_ptr += member * (GATES * WIDTH * WIDTH)
    if KIND == "lstm" or KIND == "gru":
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
    elif KIND == "gru":
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
    else:
        slope = 1 - y * y if KIND == "tanh" else tl.where(y > 0, 1.0, 0.0)
        _store(dx_ptr, at, dy * slope, inside)
