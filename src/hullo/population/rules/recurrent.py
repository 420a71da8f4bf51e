"""Recurrent layers, for one member after the other; with dropout between them, one layer after the other."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hullo.population import rng
from hullo.population.rules import Context, rule
from hullo.population.rules.layers import apply_mask
from hullo.population.values import Value, call_looped, values_in

aten = torch.ops.aten
OPERATORS = (aten.lstm.input, aten.gru.input, aten.rnn_tanh.input, aten.rnn_relu.input)


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
    if not training or layers == 1 or rng.is_zero(rate):
        args = (x, states, weights, biases, layers, 0.0, training, bidirectional, batch_first)
        return call_looped(operator, args, {}, context.members)
    is_single = isinstance(states, Value)
    given = [state.at(0, context.members).chunk(layers, 1) for state in values_in(states)]
    count, kept, final = len(weights) // layers, None, []
    for layer in range(layers):
        own = [Value(state[layer], 0) for state in given]
        part = weights[layer * count : (layer + 1) * count]
        args = (x, own[0] if is_single else own, part, biases, 1, 0.0, training, bidirectional, batch_first)
        x, *last = call_looped(operator, args, {}, context.members)
        final.append([state.tensor for state in last])
        if kept is None:
            shape = [*x.shape[:-1], x.shape[-1] * (layers - 1)]
            masks = rng.dropout_mask(
                context.seeds, context.steps, context.number, shape, rate=rate, first=context.first
            )
            kept = masks.chunk(layers - 1, -1)
        if layer < layers - 1:
            x = apply_mask(x.tensor, kept[layer], rate, 0)
    return x, *(Value(torch.cat(items, 1), 0) for items in zip(*final, strict=True))


for _operator in OPERATORS:
    rule(_operator)(functools.partial(_run_layers, _operator))
