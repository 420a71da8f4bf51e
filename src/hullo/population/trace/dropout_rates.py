"""Dropout rates that differ between members: of modules, or numbers in attributes and configurations.

Networks are traced once per combination of rates. Their graphs must be equal but for the rates, and for numbers in
elementwise operations, such as the division by `1 - rate` of a dropout that a network computes itself.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

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
    for kind, graph in graphs.items():
        different = first_difference(first, graph)
        if different is not None:
            what = (kind or differences[0])[0]
            raise ValueError(
                f"members 0 and {differences.index(kind)} differ in {what}, which changes more than the rate of a "
                f"dropout or a factor{at_source(different)}; give networks of one architecture (a rate of zero may "
                "skip operations: give a small one instead)"
            )
    rates: dict[fx.Node, dict[int, Tensor]] = {}
    for i, node in enumerate(first.nodes):
        members = [graphs[kind].nodes[i] for kind in differences]
        for position in _positions(node):
            own = [list(arguments(member).values())[position] for member in members]
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


def _positions(node: fx.Node) -> list[int]:
    """Return the positions of the arguments of a node in which members may differ: rates and factors."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return []
    if node.target in RATES:
        return [RATES[node.target]]
    if torch.Tag.pointwise not in node.target.tags:
        return []
    types = [str(argument.type) for argument in node.target._schema.arguments]
    given = arguments(node).values()
    return [i for i, item in enumerate(given) if type(item) in (int, float) and types[i] == "Tensor"]


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


def first_difference(graph: Graph, other: Graph) -> fx.Node | None:
    """Return the first node at which two graphs differ in more than a rate or a factor; None if there is none."""
    nodes, others = graph.nodes, other.nodes
    indices = [{node: i for i, node in enumerate(items)} for items in (nodes, others)]
    for one, two in zip(nodes, others, strict=False):
        described = [_describe(node, index) for node, index in zip((one, two), indices, strict=True)]
        if described[0] != described[1] or not _equal_inputs(graph.inputs.get(one.name), other.inputs.get(two.name)):
            return one
    longer = nodes if len(nodes) > len(others) else others
    return longer[min(len(nodes), len(others))] if len(nodes) != len(others) else None


def _describe(node: fx.Node, index: Mapping[fx.Node, int]) -> Any:
    """Return what a node computes, without rates and factors, so that nodes of two graphs can be compared."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        given: Iterable[Any] = (*node.args, *node.kwargs.values())
    else:
        free = _positions(node)
        given = [item for position, item in enumerate(arguments(node).values()) if position not in free]
    return (
        node.op,
        "" if node.op == "placeholder" else str(node.target),
        repr(fx.node.map_arg(list(given), lambda item: f"node {index.get(item)}")),
        getattr(node.meta.get("val"), "dtype", None),
    )


def _equal_inputs(one: tuple[str, Any] | None, two: tuple[str, Any] | None) -> bool:
    if one is None or two is None or one[0] != two[0]:
        return one is two
    is_constant = isinstance(one[1], Tensor) and isinstance(two[1], Tensor)
    return bool(one[1].shape == two[1].shape and one[1].equal(two[1])) if is_constant else one[1] == two[1]
