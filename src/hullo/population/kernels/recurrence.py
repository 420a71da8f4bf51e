"""Cells of recurrent layers at one time step, for all members in one pass; the products are computed outside.

Tensors are (members, batch, features): one time step of a longer one, so members are apart by strides of their own.
"""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,untyped-decorator"
# ruff: noqa: N803 (constants are in capitals, in Triton)
from __future__ import annotations

from collections.abc import Sequence

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from hullo.kernels.device_math import sigmoid, tanh

BLOCK = 512


def forward(
    kind: str, x: Tensor, hidden: Tensor, bias: Tensor | None, past: Sequence[Tensor], new: Sequence[Tensor]
) -> None:
    """Compute a cell.

    It takes the products with the input (with its bias) and with the last state (without), the bias of the latter, the
    last state and memory, and writes what `backward` needs, the new state and the new memory.
    """
    saved, state, memory = new
    members, batch, width = state.shape
    with torch.cuda.device_of(x):
        _forward[(triton.cdiv(batch * width, BLOCK), members)](
            x, hidden, x if bias is None else bias, *past, saved, state, memory, batch * width, width,
            x.stride(0), past[0].stride(0), past[1].stride(0), saved.stride(0), state.stride(0),
            BIAS=bias is not None, KIND=kind, BLOCK=BLOCK,
        )  # fmt: skip


def backward(
    kind: str, gradients: Sequence[Tensor], carry: Tensor, saved: Sequence[Tensor], new: Sequence[Tensor]
) -> None:
    """Compute the gradients of a cell.

    It takes the gradients of the state, from the outputs and from the next step, and a `carry`: of an LSTM's memory, or
    a part of the gradient of the last state. It updates the carry, and writes the gradients of both products.
    """
    gates, past, state, past_memory, memory = saved
    members, batch, width = carry.shape
    own, following = gradients[0], gradients[-1]
    own = own if own.stride()[1:] == (width, 1) else own.contiguous()
    with torch.cuda.device_of(carry):
        _backward[(triton.cdiv(batch * width, BLOCK), members)](
            own, following, carry, gates, past, state, past_memory, memory, *new, batch * width, width,
            own.stride(0), gates.stride(0), past.stride(0), past_memory.stride(0), new[0].stride(0),
            FOLLOWING=len(gradients) > 1, KIND=kind, BLOCK=BLOCK,
        )  # fmt: skip


@triton.jit
def _load(pointer, at, inside):
    return tl.load(pointer + at, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _store(pointer, at, value, inside):
    tl.store(pointer + at, value.to(pointer.dtype.element_ty), mask=inside)


@triton.jit
def _forward(
    x_ptr, hidden_ptr, bias_ptr, past_ptr, past_memory_ptr, saved_ptr, state_ptr, memory_ptr, size, width,
    x_stride, past_stride, memory_stride, saved_stride, state_stride,
    BIAS: tl.constexpr, KIND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(1).to(tl.int64)
    entry = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = entry < size
    column = entry % width
    gates: tl.constexpr = 4 if KIND == "lstm" else 3 if KIND == "gru" else 1
    at = entry // width * (gates * width) + column
    x_ptr += member * x_stride
    hidden_ptr += member * size * gates
    bias_ptr += member * width * gates
    past_ptr += member * past_stride
    past_memory_ptr += member * memory_stride
    saved_ptr += member * saved_stride
    state_ptr += member * state_stride
    memory_ptr += member * memory_stride
    to = entry // width * (4 * width) + column
    if KIND == "lstm":
        i = sigmoid(_product(x_ptr, hidden_ptr, bias_ptr, at, column, inside, BIAS))
        f = sigmoid(_product(x_ptr, hidden_ptr, bias_ptr, at + width, column + width, inside, BIAS))
        g = tanh(_product(x_ptr, hidden_ptr, bias_ptr, at + 2 * width, column + 2 * width, inside, BIAS))
        o = sigmoid(_product(x_ptr, hidden_ptr, bias_ptr, at + 3 * width, column + 3 * width, inside, BIAS))
        memory = f * _load(past_memory_ptr, entry, inside) + i * g
        _store(memory_ptr, entry, memory, inside)
        _store(state_ptr, entry, o * tanh(memory), inside)
        _store(saved_ptr, to, i, inside)
        _store(saved_ptr, to + width, f, inside)
        _store(saved_ptr, to + 2 * width, g, inside)
        _store(saved_ptr, to + 3 * width, o, inside)
    elif KIND == "gru":
        r = sigmoid(_product(x_ptr, hidden_ptr, bias_ptr, at, column, inside, BIAS))
        z = sigmoid(_product(x_ptr, hidden_ptr, bias_ptr, at + width, column + width, inside, BIAS))
        last = _load(hidden_ptr, at + 2 * width, inside)
        if BIAS:
            last += _load(bias_ptr, column + 2 * width, inside)
        n = tanh(_load(x_ptr, at + 2 * width, inside) + r * last)
        _store(state_ptr, entry, n + z * (_load(past_ptr, entry, inside) - n), inside)
        _store(saved_ptr, to, r, inside)
        _store(saved_ptr, to + width, z, inside)
        _store(saved_ptr, to + 2 * width, n, inside)
        _store(saved_ptr, to + 3 * width, last, inside)
    else:
        y = _product(x_ptr, hidden_ptr, bias_ptr, at, column, inside, BIAS)
        y = tanh(y) if KIND == "tanh" else tl.where(y < 0, 0.0, y)
        _store(state_ptr, entry, y, inside)


@triton.jit
def _product(x_ptr, hidden_ptr, bias_ptr, at, column, inside, BIAS: tl.constexpr):
    """Return the sum of both products and the bias."""
    y = _load(x_ptr, at, inside) + _load(hidden_ptr, at, inside)
    if BIAS:
        y += _load(bias_ptr, column, inside)
    return y


@triton.jit
def _backward(
    own_ptr, following_ptr, carry_ptr, saved_ptr, past_ptr, state_ptr, past_memory_ptr, memory_ptr, dx_ptr, dhidden_ptr,
    size, width, own_stride, saved_stride, state_stride, memory_stride, dx_stride,
    FOLLOWING: tl.constexpr, KIND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(1).to(tl.int64)
    entry = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = entry < size
    column = entry % width
    gates: tl.constexpr = 4 if KIND == "lstm" else 3 if KIND == "gru" else 1
    at = entry // width * (gates * width) + column
    to = entry // width * (4 * width) + column
    saved_ptr += member * saved_stride
    dx_ptr += member * dx_stride
    dy = _load(own_ptr + member * own_stride, entry, inside)
    if FOLLOWING:
        dy += _load(following_ptr + member * size, entry, inside)
    if KIND == "lstm":
        i, f = _load(saved_ptr, to, inside), _load(saved_ptr, to + width, inside)
        g, o = _load(saved_ptr, to + 2 * width, inside), _load(saved_ptr, to + 3 * width, inside)
        t = tanh(_load(memory_ptr + member * memory_stride, entry, inside))
        dc = _load(carry_ptr + member * size, entry, inside) + dy * o * (1 - t * t)
        past = _load(past_memory_ptr + member * memory_stride, entry, inside)
        _store(carry_ptr + member * size, entry, dc * f, inside)
        _store(dx_ptr, at, dc * g * i * (1 - i), inside)
        _store(dx_ptr, at + width, dc * past * f * (1 - f), inside)
        _store(dx_ptr, at + 2 * width, dc * i * (1 - g * g), inside)
        _store(dx_ptr, at + 3 * width, dy * t * o * (1 - o), inside)
    elif KIND == "gru":
        r, z = _load(saved_ptr, to, inside), _load(saved_ptr, to + width, inside)
        n, last = _load(saved_ptr, to + 2 * width, inside), _load(saved_ptr, to + 3 * width, inside)
        dy += _load(carry_ptr + member * size, entry, inside)
        dn = dy * (1 - z) * (1 - n * n)
        dr = dn * last * r * (1 - r)
        dz = dy * (_load(past_ptr + member * state_stride, entry, inside) - n) * z * (1 - z)
        dhidden_ptr += member * dx_stride
        _store(carry_ptr + member * size, entry, dy * z, inside)
        _store(dx_ptr, at, dr, inside)
        _store(dx_ptr, at + width, dz, inside)
        _store(dx_ptr, at + 2 * width, dn, inside)
        _store(dhidden_ptr, at, dr, inside)
        _store(dhidden_ptr, at + width, dz, inside)
        _store(dhidden_ptr, at + 2 * width, dn * r, inside)
    else:
        y = _load(state_ptr + member * state_stride, entry, inside)
        slope = 1 - y * y if KIND == "tanh" else tl.where(y > 0, 1.0, 0.0)
        _store(dx_ptr, at, dy * slope, inside)
