"""Rewrite in-place operations of a graph as operations that return new values.

Values that share memory are known from the trace: their fake tensors share a storage. After a write, each of them is
read from the new contents of that memory. Parameters and buffers get their new contents at once, by `copy_`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, fx

from hullo.population.rules import arguments
from hullo.population.trace.export import LoweringError, at_source

aten = torch.ops.aten
RUNNING = (aten.batch_norm.default, aten.instance_norm.default)
"""Operators whose arguments 3 and 4 are running statistics, which they update if argument 5 is true."""


@dataclass
class _Memory:
    """Hold what is in one storage.

    Args:
        origin: the value that was there first; it fills the storage.
        contents: the node with its current value, in the layout of `origin`.
        written, latest: the value that was written last, and the node with its current value.
        version: the number of writes.
    """

    origin: fx.Node
    contents: fx.Node
    written: fx.Node
    latest: fx.Node
    version: int = 0


class Rewriter:
    """Rewrite the in-place operations of a graph.

    `inputs` has the source of each placeholder, as in :class:`hullo.population.trace.graph.Graph`. `changed` has the
    placeholders of parameters and buffers that a run changes.
    """

    def __init__(self, graph: fx.Graph, inputs: Mapping[str, tuple[str, Any]]) -> None:
        self.graph, self.inputs = graph, inputs
        self.changed: set[fx.Node] = set()
        self._memories: dict[int, _Memory] = {}
        self._versions: dict[fx.Node, int] = {}  # of a node's memory, when the node was computed
        self._made: list[fx.Node] = []
        writes = []
        for node in list(graph.nodes):
            target = _written(node)
            node.args, node.kwargs = fx.node.map_arg((node.args, node.kwargs), partial(self._read, node))
            if node.target is aten.lift_fresh_copy.default:  # what torch.tensor makes anew in every call
                self._memories.pop(_storage(node), None)
            if (memory := self._memory(node)) is not None:
                self._versions[node] = memory.version
            if node.target in RUNNING and node.args[5]:
                self.changed.update(
                    self._memories[_storage(item)].origin for item in node.args[3:5] if item is not None
                )
            if target is not None:
                self._write(node, target)
                writes.append(node)
        unused = [node for node in self._made if not node.users and node.target is not aten.copy_.default]
        for node in (*reversed(writes), *reversed(unused)):
            graph.erase_node(node)

    def _memory(self, node: fx.Node) -> _Memory | None:
        storage = _storage(node)
        if storage is None:
            return None
        return self._memories.setdefault(storage, _Memory(node, node, node, node))

    def _make(self, at: fx.Node, operator: Any, args: tuple[Any, ...], like: fx.Node, **kwargs: Any) -> fx.Node:
        """Insert an operation, whose value is like another in the trace."""
        with self.graph.inserting_before(at):
            node = self.graph.call_function(operator, args, kwargs)
        node.meta = {**at.meta, "val": like.meta["val"]}
        self._made.append(node)
        return node

    def _read(self, reader: fx.Node, item: fx.Node) -> fx.Node:
        """Return the node with the current value of an item."""
        memory = self._memory(item)
        if memory is None or self._versions[item] == memory.version:
            return item
        for value, current in ((memory.written, memory.latest), (memory.origin, memory.contents)):
            if _layout(item) == _layout(value):
                return current
        return self._make(reader, aten.as_strided.default, _locate(item, memory), item)

    def _write(self, write: fx.Node, target: fx.Node) -> None:
        """Replace an operation by one that returns the new value of its target."""
        memory = self._memories[_storage(target)]
        origin = memory.origin
        kind, _ = self.inputs.get(origin.name, ("", ""))
        if kind == "constant":
            raise LoweringError(
                f"{write.target} writes to a tensor that is not registered{at_source(write)}; register it as a buffer"
            )
        full = new = self._new_value(write, target)
        if _layout(target) != _layout(origin):
            contents, *place = _locate(target, memory)
            full = self._make(write, aten.as_strided_scatter.default, (contents, new, *place), origin)
        if kind != "tensor":
            memory.contents, memory.written, memory.latest = full, target, new
        elif full is not origin:
            self._make(write, aten.copy_.default, (origin, full), origin)
            self.changed.add(origin)
        memory.version += 1

    def _new_value(self, write: fx.Node, target: fx.Node) -> fx.Node:
        """Return a node that computes the value that an operation writes."""
        make = partial(self._make, write, like=target)
        if write.target is aten.copy_.default:
            source: Any = write.args[1]
            if isinstance(source, fx.Node) and _is_alike(source, target):
                memory = self._memory(source)
                is_kept = memory is not None and self.inputs.get(memory.origin.name, ("",))[0] != "tensor"
                return source if is_kept and not write.meta.get("regions") else make(aten.clone.default, (source,))
        operator = functional(write.target)
        if operator is None:
            raise LoweringError(
                f"{write.target} has no form that returns a new value{at_source(write)}; compute one instead"
            )
        kwargs: dict[str, Any] = {name: item for name, item in write.kwargs.items() if name != "out"}
        node = make(operator, _positional(write), **kwargs)
        if any(item.meta["val"].dtype != target.meta["val"].dtype for item in write.all_input_nodes):
            return make(aten.to.dtype, (node, target.meta["val"].dtype))  # an in-place operation keeps the type
        return node


def _storage(node: fx.Node) -> Any:
    """Return the id of the memory of a node's value; None if it is no tensor."""
    value = node.meta.get("val")
    if not isinstance(value, Tensor):
        return None
    try:
        return value.untyped_storage()._cdata
    except NotImplementedError:
        what = "sparse tensors or torch.vmap"
        raise LoweringError(f"forward uses {what}{at_source(node)}; use dense tensors, operations on batches") from None


def _layout(node: fx.Node) -> tuple[Any, ...]:
    value = node.meta["val"]
    return value.shape, value.stride(), value.storage_offset(), value.dtype


def _is_alike(one: fx.Node, other: fx.Node) -> bool:
    """Return whether two values have the same order in memory, so that one can take the place of the other."""
    return _layout(one)[:2] == _layout(other)[:2] and _layout(one)[3] == _layout(other)[3]


def _locate(item: fx.Node, memory: _Memory) -> tuple[Any, ...]:
    """Return the contents of a memory, and the size, strides and offset of an item in them."""
    shape, stride, offset, dtype = _layout(item)
    whole = _layout(memory.origin)
    if dtype != whole[3]:
        raise LoweringError(f"a view of another type is written in place{at_source(item)}; compute a new tensor")
    return memory.contents, shape, stride, offset - whole[2] + _layout(memory.contents)[2]


def _written(node: fx.Node) -> fx.Node | None:
    """Return the argument that a node writes to."""
    if not isinstance(node.target, torch._ops.OpOverload) or not node.target._schema.is_mutable:
        return None
    if torch.Tag.inplace_view in node.target.tags and node.target is not aten.detach_.default:  # the old shape is lost
        raise LoweringError(f"{node.target} changes a shape in place{at_source(node)}; compute a view instead")
    given = arguments(node)
    names = [a.name for a in node.target._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    return given[names[0]]  # type: ignore[no-any-return]


def _positional(node: fx.Node) -> tuple[Any, ...]:
    """Return the positional arguments of a node, with defaults: the functional form may have none."""
    schema = node.target._schema.arguments  # type: ignore[union-attr]
    rest = [item.default_value for item in schema[len(node.args) :] if item.has_default_value() and not item.kwarg_only]
    return node.args if node.kwargs else (*node.args, *rest)


@cache
def functional(target: Any) -> Any:
    """Return the functional form of an in-place operator, or of one with `out`, or None."""
    schema = target._schema
    name = schema.name.rpartition("::")[2].removesuffix("_")
    packets = [getattr(aten, known) for known in (name, f"{name}_functional") if hasattr(aten, known)]
    types = [str(argument.type) for argument in schema.arguments if argument.name != "out"]
    for overload in (getattr(packet, name) for packet in packets for name in packet.overloads()):
        if not overload._schema.is_mutable and [str(argument.type) for argument in overload._schema.arguments] == types:
            return overload
    return None
