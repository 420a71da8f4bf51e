"""Recurrent layers: on a GPU all members at once, one layer and direction after the other; else one member at a time.

The products with the inputs of all time steps are one batched product, and so are the gradients of all weights; a time
step is one product with the members' states and one pass for the cell. Tensors of a direction are (members, time,
batch, features).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hullo._compat import is_eager
from hullo.kernels.spec import compute_dtype
from hullo.population import kernels, rng
from hullo.population.kernels.first_order import once_differentiable
from hullo.population.rules import Context, rule
from hullo.population.rules.layers import drop_entries
from hullo.population.values import Value, values_in

aten = torch.ops.aten
OPERATORS = {
    aten.lstm.input: "lstm",
    aten.gru.input: "gru",
    aten.rnn_tanh.input: "tanh",
    aten.rnn_relu.input: "relu",
}
"""The kind of cell of each operator."""


GATES = {"lstm": 4, "gru": 3, "tanh": 1, "relu": 1}
"""The gates of each kind of cell."""


class Weights(NamedTuple):
    """Hold the parameters of one direction of a layer, the members first."""

    input: Tensor
    hidden: Tensor
    input_bias: Tensor | None = None
    hidden_bias: Tensor | None = None


def _run_layers(
    operator: Any,
    context: Context,
    x: Value,
    states: Value | Sequence[Value],
    weights: Sequence[Value],
    biases: bool,
    layers: int,
    rate: float | Tensor,
    training: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    """Return the outputs of the last layer and the final states of all layers; an LSTM has two states."""
    members, has_dropout = context.members, training and layers > 1 and not rng.is_zero(rate)
    y, *tensors = (item.at(0, members) for item in (x, *weights))
    given = [state.at(0, members).chunk(layers, 1) for state in values_in(states)]
    count, final = len(weights) // layers, []
    projects = count // (1 + bidirectional) > (4 if biases else 2)
    run_layer = _batch_layer if kernels.support(y) and is_eager() and not projects else _loop_layer
    for layer in range(layers):
        own = [state[layer] for state in given]
        part = tensors[layer * count : (layer + 1) * count]
        y, *last = run_layer(operator, y, own, part, biases, training, bidirectional, batch_first)
        final.append(last)
        if has_dropout and layer < layers - 1:
            y = drop_entries(context, Value(y, 0), rate, chunk=(layer, layers - 1)).tensor
    return Value(y, 0), *(Value(torch.cat(items, 1), 0) for items in zip(*final, strict=True))


def _loop_layer(
    operator: Any, x: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor], biases: bool, *options: bool
) -> list[Tensor]:
    """Return the outputs of a layer and its final states, of one member after the other.

    On a CPU, the weights of a member then stay in the cache.
    """
    # unbound at once: the gradient of a selected part has the size of the whole
    each = zip(*(item.unbind() for item in (x, *states, *weights)), strict=True)
    members = []
    for own, *rest in each:
        begin, matrices = rest[: len(states)], rest[len(states) :]
        members.append(operator(own, begin if len(begin) > 1 else begin[0], matrices, biases, 1, 0.0, *options))
    return [torch.stack(items) for items in zip(*members, strict=True)]


def _batch_layer(
    operator: Any,
    x: Tensor,
    states: Sequence[Tensor],
    weights: Sequence[Tensor],
    biases: bool,
    training: bool,
    bidirectional: bool,
    batch_first: bool,
) -> list[Tensor]:
    """Return the outputs of a layer and its final states, of all members at once."""
    dtype, directions = kernels.working_dtype(x), 1 + bidirectional
    count, outputs, final = len(weights) // directions, [], []
    y = (x.transpose(1, 2) if batch_first else x).to(dtype)
    y = y.flatten(1, 2).view(y.shape)  # a member's time steps in one piece
    for i in range(directions):
        own = Weights(*(item.to(dtype) for item in weights[i * count : (i + 1) * count]))
        output, *last = run_direction(OPERATORS[operator], y, [state[:, i].to(dtype) for state in states], own, i == 1)
        outputs.append(output)
        final.append(last)
    y = outputs[0] if directions == 1 else torch.cat(outputs, -1)
    return [y.transpose(1, 2) if batch_first else y, *(torch.stack(items, 1) for items in zip(*final, strict=True))]


for _operator in OPERATORS:
    rule(_operator)(functools.partial(_run_layers, _operator))


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
    results: tuple[Tensor, ...] = _Direction.apply(kind, is_reversed, x, states[0], memory, *weights)  # type: ignore[no-untyped-call]
    return results if kind == "lstm" else results[:2]


class _Direction(torch.autograd.Function):
    """Compute a direction by a fused cell."""

    @staticmethod
    def forward(
        ctx: Any, kind: str, is_reversed: bool, x: Tensor, state: Tensor, memory: Tensor | None, *given: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        from hullo.population.kernels import recurrence

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
            recurrence.forward(kind, products[:, t], weights.hidden, biases, before, after, follows=i > 0)
        end = 0 if is_reversed else time
        ctx.kind, ctx.is_reversed = kind, is_reversed
        ctx.save_for_backward(x, memory, states, memories, saved, *weights)
        last = memories[:, end].to(x.dtype) if memory is not None else None
        return states[:, new : time + new], states[:, end].clone(), last

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, memory, states, memories, saved, *given = ctx.saved_tensors
        from hullo.population.kernels import recurrence

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
            recurrence.backward(kind, of_output[:, t], following, weights.hidden, carry, kept, found, follows=i > 0)
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
    from hullo.population.kernels.linear import column_sums

    return column_sums(x.unsqueeze(2), x.dtype)[0]
