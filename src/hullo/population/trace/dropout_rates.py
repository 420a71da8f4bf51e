"""Dropout rates that differ between members: of modules, or numbers in attributes and configurations.

Networks are traced once per combination of rates. Their graphs must be equal apart from the rates, and from numbers in
elementwise operations, such as the division by `1 - rate` of a dropout that a network computes itself.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from hullo.population.rules import arguments
from hullo.population.rules.recurrent import OPERATORS
from hullo.population.trace.export import at_source
from hullo.population.trace.graph import Graph
from hullo.population.values import Value

aten = torch.ops.aten
RATES: dict[Any, int] = {
    aten.dropout.default: 1,
    aten.feature_dropout.default: 1,
    aten.alpha_dropout.default: 1,
    aten.feature_alpha_dropout.default: 1,
    aten.bernoulli.p: 1,
    aten.scaled_dot_product_attention.default: 4,
    **dict.fromkeys(OPERATORS, 5),
}
"""The positions of the rate in the arguments of operators."""


class _Operation(NamedTuple):
    """Hold a node, a description that must be the same in all graphs, and the numbers that may differ, by position."""

    node: fx.Node
    description: Any
    numbers: dict[int, float]


def merge_rates(
    graphs: Mapping[tuple[str, ...], Graph], differences: Sequence[tuple[str, ...]], device: torch.device
) -> Graph:
    """Return the first member's graph, with one number per member where the other graphs have other rates or factors.

    Args:
        graphs: the graph of each kind of member, by the attributes in which it differs from the first.
        differences: these attributes of each member.
        device: the device of the rates.
    """
    first = graphs[differences[0]]
    if len(graphs) == 1:
        return first
    operations = {kind: list(_describe(graph)) for kind, graph in graphs.items()}
    for kind in graphs:
        for one, two in itertools.zip_longest(operations[differences[0]], operations[kind]):
            if one is None or two is None or one.description != two.description:
                what = (kind or differences[0])[0]
                raise ValueError(
                    f"members 0 and {differences.index(kind)} differ in {what}, which changes more than the rate of a "
                    f"dropout or a factor{at_source((one or two).node)}; give networks of one architecture (a rate of "
                    "zero may skip operations: give a small one instead)"
                )
    rates: dict[fx.Node, dict[int, Tensor]] = {}
    for each in zip(*(operations[kind] for kind in differences), strict=True):
        node = each[0].node
        for position in each[0].numbers:
            own = [operation.numbers[position] for operation in each]
            if len({*own}) > 1:
                rates.setdefault(node, {})[position] = torch.tensor(own, dtype=_dtype(node, own), device=device)
    for node, positions in rates.items():
        _blank(node, positions)
    return replace(first, rates=rates)


def with_rates(node: fx.Node, args: Sequence[Any], rates: Mapping[int, Tensor]) -> Sequence[Any]:
    """Return the arguments of a node with a number per member at some positions."""
    given = list(args)
    for position, numbers in rates.items():
        given[position] = numbers if node.target in RATES else Value(numbers, 0)
    return given


def _describe(graph: Graph) -> Iterator[_Operation]:
    index = {node: i for i, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        given: dict[Any, Any] = dict(enumerate(node.args))
        numbers = {}
        if isinstance(node.target, torch._ops.OpOverload):
            given = dict(enumerate(arguments(node).values()))
            numbers = {position: given.pop(position) for position in _positions(node, given)}
        source = graph.inputs.get(node.name)
        if source is not None and source[0] == "constant":
            source = ("constant", source[1].tolist())
        name = "" if node.op == "placeholder" else str(node.target)
        described = fx.node.map_arg(given, lambda item: f"node {index[item]}")
        dtype = getattr(node.meta.get("val"), "dtype", None)
        yield _Operation(node, (node.op, name, repr(described), source, dtype), numbers)


def _positions(node: fx.Node, given: Mapping[int, Any]) -> list[int]:
    """Return the positions of the arguments of a node in which members may differ: rates and factors."""
    target: Any = node.target
    if target in RATES:
        return [RATES[target]]
    if torch.Tag.pointwise not in target.tags:
        return []
    types = [str(argument.type) for argument in target._schema.arguments]
    return [i for i, item in given.items() if type(item) in (int, float) and types[i] == "Tensor"]


def _dtype(node: fx.Node, numbers: Sequence[Any]) -> torch.dtype:
    """Return the type in which an elementwise operation computes with numbers; float64 for rates."""
    if node.target in RATES:
        return torch.float64
    inputs = [item.meta["val"].dtype for item in node.all_input_nodes]
    if any(dtype.is_floating_point or dtype.is_complex for dtype in inputs):
        least = torch.float32
    else:
        is_integer = all(type(number) is int for number in numbers)
        least = torch.int64 if is_integer else torch.get_default_dtype()
    return functools.reduce(torch.promote_types, inputs, least)


def _blank(node: fx.Node, positions: Iterable[int]) -> None:
    """Make some arguments of a node positional, and numbers that no fusion accepts."""
    given = arguments(node)
    args = list(node.args) + list(given.values())[len(node.args) : max(positions) + 1]
    names = list(given)[: len(args)]
    for position in positions:
        args[position] = torch.nan
    node.args, node.kwargs = tuple(args), {name: item for name, item in node.kwargs.items() if name not in names}
