"""Lower the graph of one network onto operations of a whole population, and run it."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree
from torch import Tensor, fx

from hullo._compat import add_to_each, is_out_of_memory
from hullo.population.activations import Activations
from hullo.population.fusion import Fusion, find_fusions
from hullo.population.rules import RULES, Context, arguments, noise, norms, recurrent, shapes  # noqa: F401  (they register rules)
from hullo.population.rules.strides import memory_of, read_strided, write_strided
from hullo.population.sites import Site
from hullo.population.trace.dropout_rates import with_rates
from hullo.population.trace.export import LoweringError, at_source, source_of
from hullo.population.trace.graph import SITE, Graph
from hullo.population.trace.in_place import all_nodes, fill_diagonal, functional, positional, written_nodes
from hullo.population.values import (
    PaddedValue,
    Value,
    call_looped,
    call_pointwise,
    call_shared,
    call_vmapped,
    copy_like,
    map_values,
    values_in,
)

aten = torch.ops.aten
_ASSERTIONS = ("aten._assert", "aten.sym_constrain", "aten._functional_assert", "aten._functional_sym")
_DIFFERENTIABLE = {
    aten.copy.default: copy_like,
    torch.ops.hullo.local_response_norm.default: F.local_response_norm,
    torch.ops.hullo.fill_diagonal.default: fill_diagonal,
}
"""Operators without a derivative, and functions that compute the same, elementwise or with a rule of their own."""


@dataclass(frozen=True)
class Run:
    """Hold the context of one run of a program."""

    context: Context
    activations: Activations
    rows: Sequence[Sequence[Tensor]]  # the coefficients, as `activations.rows` returns them
    observe: Callable[[fx.Node, Any], None] | None = None  # is called with each node and its value


class Program:
    """Compute the nodes of a network's graph for all members.

    `lowering` is how each node was computed: by a "fused" kernel, by an "own" operation, once because it is "shared" by
    all members, by "vmap", or in a "loop" over members.
    """

    def __init__(self, graph: Graph, sites: Sequence[Site], activations: Activations) -> None:
        self.graph, self.sites = graph, sites
        self.numbers = {node: i for i, node in enumerate(filter(_has_random_rule, all_nodes(graph.module)))}
        fusions = find_fusions(graph.module.graph, activations.fusable_calls, graph.written)
        self.fusions = {fusion.last: fusion for fusion in fusions}
        self.owner = {node: fusion.last for fusion in self.fusions.values() for node in fusion.inner}
        self.counters = {node for node in graph.module.graph.nodes if self._is_counter(node)}
        self.lowering: dict[fx.Node, str] = {}
        self.mutated = self._mutated_tensors()
        self.writes = [node for node in all_nodes(graph.module) if node not in self.counters and _writes(node)]

    def _is_counter(self, node: fx.Node) -> bool:
        """Return whether a node adds a number to a buffer that nothing else reads, as batch norms count batches."""
        if node.target is not aten.add_.Tensor or len(node.args) != 2 or node.kwargs or node.users:
            return False
        buffer, number = node.args
        if not isinstance(buffer, fx.Node) or not isinstance(number, int) or len(buffer.users) > 1:
            return False
        sharing = {other for other, memory in self.graph.written.items() if memory & self.graph.written[node]}
        return self.graph.inputs.get(buffer.name, ("", ""))[0] == "tensor" and sharing == {buffer, node}

    def _mutated_tensors(self) -> set[str]:
        """Return the names of parameters and buffers that a run changes."""
        changed = set(self.graph.written)
        norms_of = [node for node in all_nodes(self.graph.module) if node.target in norms.RUNNING]
        statistics = [item for node in norms_of for item in node.args[3:5] if isinstance(item, fx.Node)]
        memory = set(map(memory_of, statistics))  # which may be views of buffers
        changed.update(
            node for node in self.graph.module.graph.find_nodes(op="placeholder") if memory_of(node) in memory
        )
        inputs = [self.graph.inputs.get(node.name, ("", "")) for node in changed if node.op == "placeholder"]
        return {name for kind, name in inputs if kind == "tensor"}

    @property
    def executed(self) -> list[fx.Node]:
        """Return the nodes in the order in which they are computed, those of regions in their place."""
        return list(_executed(self.graph.module))

    @property
    def draws(self) -> list[tuple[fx.Node, int]]:
        """Return the nodes that may draw random numbers in the order in which they are computed, with their numbers."""
        return [(node, self.numbers[node]) for node in self.executed if node in self.numbers]

    def run(self, run: Run, tensors: Mapping[str, Value], inputs: Sequence[Value]) -> Any:
        """Return the network's outputs, nested as the network returns them, with the members first in each tensor."""
        remaining, leaves = iter(inputs), []
        for node in self.graph.module.graph.find_nodes(op="placeholder"):
            kind, what = self.graph.inputs[node.name]
            leaves.append(tensors[what] if kind == "tensor" else Value(what) if kind == "constant" else next(remaining))
        members = run.context.members
        outputs = map_values(
            lambda value: _in_order(value.own(members).at(0, members)), self._run_nodes(run, self.graph.module, leaves)
        )
        return pytree.tree_unflatten(list(outputs), self.graph.output_spec)

    def _run_nodes(self, run: Run, module: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        env: dict[Any, Any] = {}  # by node; a copy for one user, by node and user
        remaining = iter(inputs)
        last = self._last_uses(module.graph)
        counted: list[tuple[Value, int]] = []
        filled = self._find_filled(module.graph, inputs)
        for node in module.graph.nodes:
            if node in self.owner:
                continue
            if node in self.counters:
                counted.append(tuple(_look_up(node.args, node, env)))
                self.lowering[node] = "own"
                continue
            if node.op == "placeholder":
                env[node] = next(remaining)
            elif node.op == "get_attr":
                env[node] = getattr(module, node.target)
            elif node.op == "output":
                if counted:  # all of them by one launch
                    add_to_each([value.tensor for value, _ in counted], [number for _, number in counted])
                return fx.node.map_arg(node.args[0], env.__getitem__)
            elif fusion := self.fusions.get(node):
                result = self._compute_fused(run, fusion, env)
                env[node] = result[0]
                users = list(dict.fromkeys(self.owner.get(user, user) for user in node.users))
                if fusion.second is not None:
                    env[fusion.second] = result[1]
                elif len(result) > 1 and len(users) > 1:
                    env[node, users[1]] = result[1]
            else:
                env[node] = self._compute(run, node, env)
                if node in filled:
                    env[node] = map_values(lambda value: value.own(run.context.members), env[node])
            if run.observe is not None:
                run.observe(node, env[node])
            for done in last.get(node, ()):
                env.pop(done, None)
                env.pop((done, node), None)
        return None

    def _find_filled(self, graph: fx.Graph, inputs: Sequence[Any]) -> set[fx.Node]:
        """Return the new tensors of a graph into which it writes values that differ between members."""
        writes = [node for node in self.writes if node.graph is graph]
        if not writes:
            return set()
        placeholders = zip(graph.find_nodes(op="placeholder"), inputs, strict=True)
        different = {node for node, value in placeholders if isinstance(value, Value) and value.dim is not None}
        found: set[fx.Node] = set()
        given = self._memory(graph.find_nodes(op="placeholder"))
        for _ in writes:  # a value that is read from one such tensor may be written into another
            for node in graph.nodes:
                if node.target is SITE or node in self.numbers or not different.isdisjoint(node.all_input_nodes):
                    different.add(node)
            memory = self._memory(node for node in writes if node in different) - given
            sharing = {node for node, own in self.graph.written.items() if own & memory and node.op == "call_function"}
            if sharing <= found:
                break
            found |= sharing
            different |= sharing
        return found

    def _memory(self, nodes: Iterable[fx.Node]) -> frozenset[int]:
        """Return the ids of the memory of nodes, of that which is written to in place."""
        return frozenset[int]().union(*(self.graph.written.get(node, frozenset()) for node in nodes))

    def _last_uses(self, graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
        """Return the values that are used for the last time by each node."""
        seen: set[fx.Node] = set()
        last: dict[fx.Node, list[fx.Node]] = {}
        position = {node: i for i, node in enumerate(graph.nodes)}
        for node in sorted(graph.nodes, key=lambda node: position[self.owner.get(node, node)], reverse=True):
            after = self.owner.get(node, node)
            for item in node.all_input_nodes:
                if item not in seen:
                    seen.add(item)
                    last.setdefault(after, []).append(item)
            if node not in seen and node.op == "call_function":
                last.setdefault(after, []).append(node)
        return last

    def _compute_fused(self, run: Run, fusion: Fusion, env: Mapping[Any, Any]) -> tuple[Value, ...]:
        self.lowering[fusion.last] = "fused"
        site = None if fusion.act is None else fusion.act.site
        rows = fusion.rows if site is None else run.rows[site][0]
        context = run.context
        if fusion.dropout is not None:
            context = replace(context, number=self.numbers[fusion.dropout])
        return fusion.compute(lambda item: _look_up(item, fusion.last, env), rows, context)

    def _compute(self, run: Run, node: fx.Node, env: dict[Any, Any]) -> Any:
        args, kwargs = _look_up(node.args, node, env), _look_up(node.kwargs, node, env)
        try:
            return self._call(run, node, args, kwargs, env)
        except LoweringError:
            raise
        except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
            if is_out_of_memory(error):
                raise
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            what = f"the activation {self.sites[args[1]].path!r}" if node.target is SITE else node.target
            raise LoweringError(f"cannot compute {what} for all members: {reason}{at_source(node)}") from error

    def _call(self, run: Run, node: fx.Node, args: Any, kwargs: Any, env: dict[Any, Any]) -> Any:
        target = node.target
        if str(target).startswith(_ASSERTIONS):
            return None
        if target is SITE:
            return self._call_site(run, node, *args)
        if region := _region(target, args):
            settings, module, inputs = region
            with settings:
                return self._run_nodes(run, module, inputs)
        if target is operator.getitem or not isinstance(target, torch._ops.OpOverload):
            return target(*args, **kwargs)  # type: ignore[operator]
        if target._schema.is_mutable:
            return self._call_in_place(run, node, kwargs, env)
        return self._call_operator(run, node, target, args, kwargs)

    def _call_site(self, run: Run, node: fx.Node, x: Value, index: int) -> Value:
        self.lowering[node] = "loop" if self.sites[index].functions else "own"
        return run.activations.compute(index, run.rows, x)

    def _call_operator(self, run: Run, node: fx.Node, target: Any, args: Any, kwargs: Any) -> Any:
        function, members = _DIFFERENTIABLE.get(target, target), run.context.members
        if node in self.graph.rates:
            args = with_rates(node, args, self.graph.rates[node])
        if node in self.numbers:
            run = replace(run, context=replace(run.context, number=self.numbers[node]))
        elif _is_random(target, node):
            raise LoweringError(
                f"{target} draws other random numbers than a single member would{at_source(node)}; use nn.Dropout, "
                "torch.rand or torch.randn, or give random numbers as an input"
            )
        elif all(value.dim is None for value in values_in((args, kwargs))):
            self.lowering[node] = "shared"
            return call_shared(function, args, kwargs)
        if target in norms.RUNNING:
            norms.check_statistics(node, args)
        if (rule := RULES.get(target)) is not None:
            result = rule(run.context, *args, **kwargs)
            if result is not NotImplemented:
                self.lowering[node] = "own"
                return result
        if torch.Tag.pointwise in target.tags or function is not target:
            self.lowering[node] = "own"
            result = call_pointwise(function, args, kwargs)
            if node in self.graph.rates and not result.shape:  # numbers do not widen types
                result = Value(result.tensor.to(node.meta["val"].dtype), result.dim)
            return result
        if target in (aten.as_strided.default, aten.as_strided_copy.default):
            self.lowering[node] = "own"
            return read_strided(members, node, *args, **kwargs)
        if target is aten.as_strided_scatter.default:
            self.lowering[node] = "own"
            return write_strided(members, node, *args, **kwargs)
        if self.lowering.get(node) != "loop" and target not in _WRONG_IN_VMAP:
            try:
                result = call_vmapped(target, args, kwargs)
                self.lowering[node] = "vmap"
                return result
            except (RuntimeError, NotImplementedError):  # no rule for vmap, or an error that the loop raises, too
                self.lowering[node] = "loop"
        self.lowering[node] = "loop"
        return call_looped(target, args, kwargs, members)

    def _call_in_place(self, run: Run, node: fx.Node, kwargs: Any, env: dict[Any, Any]) -> Any:
        """Compute an operation that writes to memory that other values share, or to a parameter, buffer or input."""
        function = functional(node.target)
        if function is None:
            raise LoweringError(
                f"{node.target} has no form that returns a new value{at_source(node)}; compute one instead"
            )
        (written,) = written_nodes(node)
        if written.graph is self.graph.module.graph and self.graph.inputs.get(written.name, ("",))[0] == "constant":
            raise LoweringError(
                f"{node.target} writes to a tensor that is not registered{at_source(node)}; register it as a buffer"
            )
        for key, value in env.items():
            if isinstance(value, PaddedValue):
                env[key] = Value(value.tensor, value.dim)  # computed before its source changes
        target = env[written]
        kwargs = {name: item for name, item in kwargs.items() if name != "out"}
        args = _look_up(positional(node), node, env)
        has_gradient = any(value.tensor.requires_grad for value in values_in((args, kwargs)))
        if torch.is_grad_enabled() and has_gradient:  # the backward pass may need what is overwritten
            args = map_values(
                lambda value: replace(value, tensor=value.tensor.clone()) if value is target else value, args
            )
        result = self._call_operator(run, node, function, args, kwargs)
        if result.dim is not None and target.dim is None:
            raise LoweringError(
                f"{node.target} writes a value per member into one that all share{at_source(node)}; give an input for "
                "each member (in_dims=0), or compute without inplace=True"
            )
        if written.op == "call_function":
            self._check_views(node, target, env)
        target.tensor.copy_(result.tensor if target.dim is None else result.at(target.dim, run.context.members))
        return target

    def _check_views(self, node: fx.Node, target: Value, env: Mapping[Any, Any]) -> None:
        """Raise an error unless the same values share memory in the population as in one member."""
        storages = self.graph.written[node]
        for other, value in env.items():
            if type(value) is Value and _share_memory(value, target) != bool(
                self.graph.written.get(other, frozenset()) & storages
            ):
                raise LoweringError(
                    f"{node.target} writes to a view, which a population may hold as a copy{at_source(node)}; "
                    "compute a new tensor instead, by torch.where, torch.cat or torch.stack"
                )

    def explain(self) -> str:
        """Return how the operations of the last run were computed, those by vmap and loops with their source lines."""
        counts = Counter(self.lowering.values())
        texts = {
            "fused": "with their neighbors by one kernel",
            "own": "for all members at once",
            "shared": "once, on what all members share",
        }
        lines = [f"{counts[kind]} operations {text}" for kind, text in texts.items() if counts[kind]]
        for kind, text in (("vmap", "by torch.vmap"), ("loop", "for one member after the other")):
            operations = Counter(
                (str(node.target), source_of(node)) for node, own in self.lowering.items() if own == kind
            )
            lines += [f"{counts[kind]} operations {text}:"] if operations else []
            lines += [f"  {count} x {name}{source and ' at '}{source}" for (name, source), count in operations.items()]
        return "\n".join(lines)


_WRONG_IN_VMAP = frozenset({aten.select_scatter.default, aten.index_fill.int_Tensor})
"""Operators whose rules for :func:`torch.vmap` are wrong in PyTorch, up to 2.13."""


def _executed(module: fx.GraphModule) -> Iterator[fx.Node]:
    for node in module.graph.nodes:
        for item in node.all_input_nodes:
            part = getattr(module, item.target) if item.op == "get_attr" else None
            if isinstance(part, fx.GraphModule):
                yield from _executed(part)
        yield node


def _writes(node: fx.Node) -> bool:
    """Return whether a node writes into a tensor that the network made."""
    return any(target.op == "call_function" for target in written_nodes(node))


def _is_random(target: Any, node: fx.Node) -> bool:
    """Return whether a call of an operator draws random numbers: not with a rate of zero or in evaluation mode."""
    if torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    remaining = arguments(node)
    rate, training = (
        remaining.get("p", remaining.get("dropout", 1.0)),
        remaining.get("train", remaining.get("training", True)),
    )
    return bool(training) and rate != 0


def _has_random_rule(node: fx.Node) -> bool:
    """Return whether a node may draw random numbers, by a rule: it has a number in the network."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    target = functional(target) if target._schema.is_mutable else target
    return target in RULES and torch.Tag.nondeterministic_seeded in target.tags


def _look_up(item: Any, user: fx.Node, env: Mapping[Any, Any]) -> Any:
    """Return an argument of a node with the values of the nodes in it."""
    return fx.node.map_arg(item, lambda node: env[node, user] if (node, user) in env else env[node])


def _region(target: Any, args: Any) -> tuple[AbstractContextManager[Any], fx.GraphModule, Sequence[Any]] | None:
    """Return the settings, the graph and the inputs of a region with other settings; None for other operations."""
    name = getattr(target, "__name__", "")
    if name == "wrap_with_set_grad_enabled":
        enabled, module, *inputs = args
        return torch.set_grad_enabled(enabled), module, inputs
    if name == "wrap_with_autocast":
        device, dtype, enabled, cached, module, *inputs = args
        return torch.autocast(device, dtype, enabled, cached), module, inputs
    return None


def _in_order(output: Tensor) -> Tensor:
    """Return images that a CPU computed with channels last in the order that those of one network have."""
    is_reordered = output.dim() == 5 and output.device.type == "cpu" and not output[:1, :1].is_contiguous()
    return output.contiguous() if is_reordered else output


def _share_memory(one: Value, other: Value) -> bool:
    return one.tensor.untyped_storage().data_ptr() == other.tensor.untyped_storage().data_ptr()
