"""Dropout rates that differ between members: of modules, or numbers in attributes and configurations.

Networks are traced once per combination of rates. Their graphs must be equal but for the rates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx

from hullo.population.inplace import all_nodes
from hullo.population.rules import arguments
from hullo.population.tracing import Graph, source_of

aten = torch.ops.aten
RATES: dict[Any, int] = {
    aten.dropout.default: 1,
    aten.feature_dropout.default: 1,
    aten.scaled_dot_product_attention.default: 4,
}
"""The positions of the rate in the arguments of operators."""


def merge_rates(
    graphs: Mapping[tuple[str, ...], Graph], differences: Sequence[tuple[str, ...]], device: torch.device
) -> Graph:
    """Return the first member's graph, with one dropout rate per member where the other graphs have other rates.

    Args:
        graphs: the graph of each kind of member, by the attributes in which it differs from the first.
        differences: these attributes of each member, none for the first.
        device: the device of the rates.
    """
    first = graphs[differences[0]]
    if len(graphs) == 1:
        return first
    nodes = {kind: list(all_nodes(graph.module)) for kind, graph in graphs.items()}
    for kind, graph in graphs.items():
        different = _first_difference(first, nodes[differences[0]], graph, nodes[kind])
        if different is not None:
            raise ValueError(
                f"members 0 and {differences.index(kind)} differ in {kind[0]}, which changes more than the rate of a "
                f"dropout{_source(different)}; give networks of one architecture"
            )
    rates: dict[fx.Node, Tensor] = {}
    for i, node in enumerate(nodes[differences[0]]):
        if node.target in RATES:
            own = [_rate(nodes[kind][i]) for kind in differences]
            if len({*own}) > 1:
                rates[node] = torch.tensor(own, dtype=torch.float64, device=device)
    for node in rates:
        _blank(node)
    return replace(first, rates=rates)


def with_rates(node: fx.Node, args: Sequence[Any], rates: Tensor) -> Sequence[Any]:
    """Return the arguments of a node with a rate per member."""
    position = RATES[node.target]
    return [*args[:position], rates, *args[position + 1 :]]


def _rate(node: fx.Node) -> float:
    return float(list(arguments(node).values())[RATES[node.target]])


def _blank(node: fx.Node) -> None:
    """Make the rate of a node positional, and a number that no fusion accepts."""
    given, position = arguments(node), RATES[node.target]
    args = list(node.args) + list(given.values())[len(node.args) : position + 1]
    names = list(given)[: len(args)]
    args[position] = torch.nan
    node.args, node.kwargs = tuple(args), {name: item for name, item in node.kwargs.items() if name not in names}


def _first_difference(graph: Graph, nodes: Sequence[fx.Node], other: Graph, others: Sequence[fx.Node]) -> Any:
    """Return the first node at which two graphs differ in more than a dropout rate; None if there is none."""
    indices = [{node: i for i, node in enumerate(items)} for items in (nodes, others)]
    for one, two in zip(nodes, others, strict=False):
        described = [_describe(node, index) for node, index in zip((one, two), indices, strict=True)]
        if described[0] != described[1] or not _equal_inputs(graph.inputs.get(one.name), other.inputs.get(two.name)):
            return one
    longer = nodes if len(nodes) > len(others) else others
    return longer[min(len(nodes), len(others))] if len(nodes) != len(others) else None


def _describe(node: fx.Node, index: Mapping[fx.Node, int]) -> Any:
    """Return what a node computes, without a dropout rate, so that nodes of two graphs can be compared."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        given: Iterable[Any] = (*node.args, *node.kwargs.values())
    else:
        given = list(arguments(node).values())
        if node.target in RATES:
            given = [item for position, item in enumerate(given) if position != RATES[node.target]]
    return (
        node.op,
        "" if node.op == "placeholder" else str(node.target),
        repr(fx.node.map_arg(list(given), lambda item: f"node {index.get(item)}")),
    )


def _equal_inputs(one: tuple[str, Any] | None, two: tuple[str, Any] | None) -> bool:
    if one is None or two is None or one[0] != two[0]:
        return one is two
    is_constant = isinstance(one[1], Tensor) and isinstance(two[1], Tensor)
    return bool(one[1].shape == two[1].shape and one[1].equal(two[1])) if is_constant else one[1] == two[1]


def _source(node: fx.Node) -> str:
    source = source_of(node)
    return f" at {source}" if source else ""
