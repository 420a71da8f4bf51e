"""Trace the members of a population into one graph.

Members of one kind, with equal attributes, have one graph. Those of several kinds, such as other dropout rates, are
traced once per kind: their graphs must be equal apart from rates, and from numbers in elementwise operations, such as
the division by `1 - rate` of a dropout that a network computes itself.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, fx, nn

from hullo._compat import are_transforms_active, without_saved_tensor_hooks
from hullo.population.members import Kind, fork_rng
from hullo.population.rules import arguments
from hullo.population.rules.recurrent import OPERATORS
from hullo.population.sites import ActivationSite
from hullo.population.trace.export import LoweringError, at_source, call_once
from hullo.population.trace.graph import Graph, read_graph
from hullo.population.values import Value

aten = torch.ops.aten
RATES: dict[Any, int] = {
    aten.dropout.default: 1,
    aten.feature_dropout.default: 1,
    aten.bernoulli.p: 1,
    aten.scaled_dot_product_attention.default: 4,
    **dict.fromkeys(OPERATORS, 5),
}
"""The positions of the rate in the arguments of operators."""


def read_members(
    member: Callable[[int], nn.Module],
    sites: Sequence[ActivationSite],
    kinds: Sequence[Kind],
    device: torch.device,
    examples: Sequence[Any],
    spec: Any,
) -> Graph:
    """Return the graph of all members for one member's inputs; raise the networks' own exceptions.

    Args:
        member: returns a copy of member k.
        sites: the activations.
        kinds: the kind of each member.
        device: the device of the members.
        examples, spec: the leaves and the structure of all arguments.
    """
    if are_transforms_active():
        raise LoweringError(
            "networks are traced in the first call for a shape, which cannot be inside of torch.func: call the "
            "population in evaluation mode once before"
        )

    def copy_arguments() -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments anew: a forward may change them."""
        cloned = [item.clone() if isinstance(item, Tensor) else item for item in examples]
        args, kwargs = pytree.tree_unflatten(cloned, spec)
        return args, kwargs

    def read(k: int) -> Graph:
        """Return the graph of member k."""
        autocast = torch.autocast(device.type, enabled=False)
        grad_mode = torch.set_grad_enabled(torch.is_grad_enabled())
        with torch.inference_mode(False), grad_mode, autocast, without_saved_tensor_hooks():
            with fork_rng():
                assigned = call_once(member(k), *copy_arguments())
            return read_graph(member(k), sites, assigned, *copy_arguments())

    graphs = {kind: read(kinds.index(kind)) for kind in dict.fromkeys(kinds)}
    return next(iter(graphs.values())) if len(graphs) == 1 else _merge(graphs, kinds, device)


def _merge(graphs: Mapping[Kind, Graph], kinds: Sequence[Kind], device: torch.device) -> Graph:
    """Return the first member's graph, with one number per member where the other graphs have other ones."""
    first, rates = graphs[kinds[0]], dict[fx.Node, dict[int, Tensor]]()
    places = {node: f"%{i}" for graph in graphs.values() for i, node in enumerate(graph.nodes)}
    for nodes in itertools.zip_longest(*(graph.nodes for graph in graphs.values())):
        described = [
            ("nothing", {}) if node is None else _describe(node, graph, places)
            for node, graph in zip(nodes, graphs.values(), strict=True)
        ]
        for kind, (text, _) in zip(graphs, described, strict=True):
            if text != described[0][0]:
                differ = f"members 0 and {kinds.index(kind)} differ in {kind[0] or kinds[0][0]}"
                if nodes[0] is not None and first.inputs.get(nodes[0].name, ("",))[0] == "constant":
                    raise ValueError(f"{differ}, which is not registered: use nn.ModuleList, parameters and buffers")
                where = at_source(next(node for node in nodes if node is not None))
                raise ValueError(
                    f"{differ}, which changes more than a rate of dropout or a factor{where}; give networks of one "
                    "architecture (a rate of zero may skip operations: give a small one instead)"
                )
        numbers = {kind: own for kind, (_, own) in zip(graphs, described, strict=True)}
        for position in numbers[kinds[0]]:
            own = [numbers[kind][position] for kind in kinds]
            if len({*own}) > 1:
                number = torch.tensor(own, dtype=_dtype(nodes[0], own), device=device)
                rates.setdefault(nodes[0], {})[position] = number
    for node, positions in rates.items():  # positional arguments, and no number that a fusion accepts
        given = arguments(node)
        args = [*node.args, *list(given.values())[len(node.args) : max(positions) + 1]]
        node.kwargs = {name: item for name, item in node.kwargs.items() if name not in list(given)[: len(args)]}
        node.args = tuple(torch.nan if position in positions else item for position, item in enumerate(args))
    return replace(first, rates=rates)


def with_rates(node: fx.Node, args: Sequence[Any], rates: Mapping[int, Tensor]) -> Sequence[Any]:
    """Return the arguments of a node with a number per member at some positions."""
    own = {position: numbers if node.target in RATES else Value(numbers, 0) for position, numbers in rates.items()}
    return [own.get(position, item) for position, item in enumerate(args)]


def _describe(node: fx.Node, graph: Graph, places: Mapping[fx.Node, str]) -> tuple[str, dict[int, float]]:
    """Return a text that must be the same in all graphs, and the numbers that may differ, by position.

    In the text, nodes are their places in the graphs.
    """
    given: dict[int, Any] = dict(enumerate(node.args))
    numbers: dict[int, float] = {}
    if isinstance(node.target, torch._ops.OpOverload):
        given = dict(enumerate(arguments(node).values()))
        numbers = {position: given.pop(position) for position in _positions(node, given)}
    kind, what = graph.inputs.get(node.name, ("", None))
    what = what.tolist() if kind == "constant" else what
    used = fx.node.map_arg([*given.items()], places.__getitem__)
    return repr((node.target, used, kind, what, getattr(node.meta.get("val"), "dtype", None))), numbers


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
        least = torch.int64 if all(type(number) is int for number in numbers) else torch.get_default_dtype()
    return functools.reduce(torch.promote_types, inputs, least)
