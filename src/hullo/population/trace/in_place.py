"""Rewrite in-place operations of a graph as operations that return new values, wherever that computes the same.

An in-place operation changes every view of the memory that it writes to. Which values of a graph share memory is known
from the trace: their fake tensors share a storage. If only the written value is used afterwards, its users get the new
value instead. Otherwise, and for parameters, buffers and inputs, the operation stays in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, fx, nn

from hullo.population.rules import arguments
from hullo.population.trace.export import LoweringError, at_source

aten = torch.ops.aten


@torch.library.custom_op(
    "hullo::fill_diagonal", mutates_args=(), schema="(Tensor x, Scalar fill_value, bool wrap=False) -> Tensor"
)
def fill_operator(x: Tensor, fill_value: complex, wrap: bool = False) -> Tensor:
    """Represent `fill_diagonal_` as an operation that returns a new value, of which PyTorch has none."""
    return fill_diagonal(x, fill_value, wrap)


def fill_diagonal(x: Tensor, fill_value: complex, wrap: bool = False, members: bool = False) -> Tensor:
    """Return x with another diagonal; where its first dimension is that of members, each of them."""
    diagonal = torch.zeros(x.shape[members:], dtype=torch.bool, device=x.device).fill_diagonal_(True, wrap)
    return torch.where(diagonal, torch.full((), fill_value, dtype=x.dtype, device=x.device), x)


_SAME_IN_EVALUATION = (aten.dropout.default, aten.feature_dropout.default, aten.alpha_dropout.default)


def all_nodes(module: nn.Module) -> Iterator[fx.Node]:
    """Yield the nodes of a graph and of the graphs inside it."""
    for part in module.modules():
        if isinstance(part, fx.GraphModule):
            yield from part.graph.nodes


def rewrite_in_place(module: fx.GraphModule) -> dict[fx.Node, frozenset[int]]:
    """Rewrite in-place operations; return the nodes whose memory is still written to, with the ids of that memory."""
    storages = _storages(module)
    _remove_copies_to_self(module, storages)
    written = {node: _union(storages[target] for target in written_nodes(node)) for node in all_nodes(module)}
    for part in module.modules():
        if isinstance(part, fx.GraphModule):
            inside = _union(ids for node, ids in written.items() if node.graph is part.graph)
            outside = _union(ids for node, ids in written.items() if node.graph is not part.graph)
            nodes = list(part.graph.nodes)
            for storage in dict.fromkeys(item for node in nodes for item in storages[node]):  # in the order of nodes
                if storage in inside - outside:
                    _rewrite(part.graph, storage, storages)
    still_written = _union(storages[target] for node in all_nodes(module) for target in written_nodes(node))
    return {node: storages[node] for node in all_nodes(module) if storages.get(node, frozenset()) & still_written}


def _union(sets: Iterable[frozenset[int]]) -> frozenset[int]:
    return frozenset[int]().union(*sets)


def _remove_copies_to_self(module: fx.GraphModule, storages: Mapping[fx.Node, frozenset[int]]) -> None:
    """Remove the copies that follow `x += 1`, where Python assigns the changed object to its own attribute or item."""
    for node in list(all_nodes(module)):
        if node.target is aten.copy_.default and isinstance(node.args[1], fx.Node):
            target, source = (_layout(item) for item in node.args[:2])
            if storages[node.args[0]] == storages[node.args[1]] and target == source:  # type: ignore[index]
                node.replace_all_uses_with(node.args[1])
                node.graph.erase_node(node)


def _layout(node: Any) -> tuple[Any, ...]:
    value = node.meta["val"]
    return value.shape, value.stride(), value.storage_offset()


def _storages(module: fx.GraphModule) -> dict[fx.Node, frozenset[int]]:
    """Return the storages of each node's value."""
    storages: dict[fx.Node, frozenset[int]] = {}
    same: dict[int, frozenset[int]] = {}
    for node in all_nodes(module):
        tensors = [leaf for leaf in pytree.tree_leaves(node.meta.get("val")) if isinstance(leaf, Tensor)]
        if any(tensor.layout != torch.strided for tensor in tensors):
            raise LoweringError(f"forward uses sparse tensors{at_source(node)}; use dense ones, or torch.scatter_add")
        try:
            ids = [tensor.untyped_storage()._cdata for tensor in tensors]
        except NotImplementedError:
            raise LoweringError(
                f"forward calls torch.vmap, whose values have no memory{at_source(node)}; write it as operations on "
                "batches, such as torch.einsum"
            ) from None
        if node.target in _SAME_IN_EVALUATION and not (node.args[2] and node.args[1]):
            same[ids[0]] = storages[node.args[0]]  # type: ignore[index]  # returns its input, but not in a trace
        storages[node] = _union(same.get(item, frozenset({item})) for item in ids)
    return storages


def _rewrite(graph: fx.Graph, storage: int, storages: dict[fx.Node, frozenset[int]]) -> None:
    """Rewrite the operations that write to a storage, unless one of them must stay in place."""
    sharing = [node for node in graph.nodes if storage in storages[node]]
    writes = [node for node in sharing if written_nodes(node)]
    for write in writes:
        later = set(_after(write))
        others = [node for node in sharing if node not in later and node not in (write, *written_nodes(write))]
        must_stay = any(not later.isdisjoint(node.users) for node in others)
        if must_stay or functional(write.target) is None or any(node.op != "call_function" for node in sharing):
            return
    for write in writes:
        (target,) = written_nodes(write)
        later = set(_after(write))
        new = _new_value(graph, write, storages)
        for node in graph.nodes:
            storages.setdefault(node, storages[write])
        write.replace_all_uses_with(new)
        target.replace_all_uses_with(new, later.__contains__)
        graph.erase_node(write)


def _after(node: fx.Node) -> Iterator[fx.Node]:
    while (node := node.next).op != "root":
        yield node


def _new_value(graph: fx.Graph, write: fx.Node, storages: Mapping[fx.Node, frozenset[int]]) -> fx.Node:
    """Return a node that computes the value that an operation writes."""
    if write.target is aten.copy_.default:
        source: Any = write.args[1]
        copied, written = source.meta["val"], write.meta["val"]
        if copied.shape == written.shape and copied.dtype == written.dtype:
            sharing = [node for node, own in storages.items() if own & storages[source]]
            if sharing == [source] and list(source.users) == [write] and source.op == "call_function":
                return source  # type: ignore[no-any-return]  # a result that nothing else uses needs no copy
            with graph.inserting_before(write):
                node = graph.call_function(aten.clone.default, (source,))
            node.meta = dict(write.meta)
            return node
    kwargs = {name: item for name, item in write.kwargs.items() if name != "out"}
    with graph.inserting_before(write):
        node = graph.call_function(functional(write.target), positional(write), kwargs)
        node.meta = dict(write.meta)
        dtype = write.meta["val"].dtype
        if any(item.meta["val"].dtype != dtype for item in write.all_input_nodes):
            node = graph.call_function(aten.to.dtype, (node, dtype))  # an in-place operation keeps the type
            node.meta = dict(write.meta)
    return node


def positional(node: fx.Node) -> tuple[Any, ...]:
    """Return the positional arguments of a node, with defaults: the functional form may have none."""
    schema = node.target._schema.arguments  # type: ignore[union-attr]
    rest = [item.default_value for item in schema[len(node.args) :] if item.has_default_value() and not item.kwarg_only]
    return node.args if node.kwargs else (*node.args, *rest)


def written_nodes(node: fx.Node) -> list[fx.Node]:
    """Return the arguments that a node writes to."""
    if not isinstance(node.target, torch._ops.OpOverload) or not node.target._schema.is_mutable:
        return []
    given = arguments(node)
    names = [a.name for a in node.target._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    return [given[name] for name in names if isinstance(given[name], fx.Node)]


@cache
def functional(target: Any) -> Any:
    """Return the functional form of an in-place operator, or of one with `out`; None if there is none."""
    schema = target._schema
    written = [argument.name for argument in schema.arguments if argument.alias_info is not None]
    if not schema.is_mutable or len(written) != 1:
        return None
    name = schema.name.rpartition("::")[2].removesuffix("_")
    places = (aten, name), (aten, f"{name}_functional"), (torch.ops.hullo, name)
    packets = [getattr(place, known) for place, known in places if hasattr(place, known)]
    types = [str(argument.type) for argument in schema.arguments if argument.name != "out"]
    for overload in (getattr(packet, name) for packet in packets for name in packet.overloads()):
        if not overload._schema.is_mutable and [str(argument.type) for argument in overload._schema.arguments] == types:
            return overload
    return None
