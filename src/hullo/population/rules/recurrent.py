"""Recurrent layers: on a GPU all members at once, one layer and direction after the other; else one by one."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hullo._compat import is_eager
from hullo.population import kernels, rng
from hullo.population.rules import Context, rule
from hullo.population.rules.layers import drop_entries
from hullo.population.values import Value, values_in

aten = torch.ops.aten
FUSED = {aten.lstm.input: "lstm", aten.gru.input: "gru"}
"""The kinds of cells that have kernels."""
OPERATORS = (*FUSED, aten.rnn_tanh.input, aten.rnn_relu.input)


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
    is_fused = operator in FUSED and count // (1 + bidirectional) <= (
        4 if biases else 2
    )  # more where states are projected
    run_layer = _batch_layer if is_fused and kernels.support(y) and is_eager() else _loop_layer
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
    from hullo.population.kernels.recurrence import Weights, run_direction

    dtype, directions = kernels.working_dtype(x), 1 + bidirectional
    count, outputs, final = len(weights) // directions, [], []
    y = (x.transpose(1, 2) if batch_first else x).to(dtype)
    y = y.flatten(1, 2).view(y.shape)  # a member's time steps in one piece
    for i in range(directions):
        own = Weights(*(item.to(dtype) for item in weights[i * count : (i + 1) * count]))
        output, *last = run_direction(FUSED[operator], y, [state[:, i].to(dtype) for state in states], own, i == 1)
        outputs.append(output)
        final.append(last)
    y = outputs[0] if directions == 1 else torch.cat(outputs, -1)
    return [y.transpose(1, 2) if batch_first else y, *(torch.stack(items, 1) for items in zip(*final, strict=True))]


for _operator in OPERATORS:
    rule(_operator)(functools.partial(_run_layers, _operator))
