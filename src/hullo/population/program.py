"""Lower the graph of one network onto operations of a whole population, and run it."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, fx, nn

from hullo.population import shapes  # noqa: F401  (registers rules)
from hullo.population.activations import Activations
from hullo.population.errors import LoweringError
from hullo.population.fusion import Fusion, find_fusions
from hullo.population.layers import drop
from hullo.population.rules import RULES, Context
from hullo.population.sites import Site
from hullo.population.tracing import SITE, Graph, source_of
from hullo.population.values import (
    Value,
    call_pointwise,
    call_shared,
    call_vmapped,
    map_values,
    values_in,
)

aten = torch.ops.aten
_ASSERTIONS = ("aten._assert", "aten.sym_constrain", "aten._functional_assert", "aten._functional_sym")
_DRAWING = frozenset({
    aten.dropout.default, aten.feature_dropout.default, aten.scaled_dot_product_attention.default, SITE,
})  # fmt: skip
"""Operators that may drop entries: each has a number in the network, and is computed per member."""


@dataclass(frozen=True)
class Run:
    """Hold what one run of a program needs besides its inputs."""

    context: Context
    activations: Activations
    rows: Sequence[Sequence[Tensor]]  # the coefficients, as `activations.rows` returns them
    rates: Mapping[int, Tensor]  # of the dropouts at sites


class Program:
    """Compute the nodes of a network's graph for all members.

    `lowering` says how each node was computed: by a "fused" kernel, an "own" operation, once as it is "shared" by all
    members, or by "vmap".
    """

    def __init__(self, graph: Graph, sites: Sequence[Site], activations: Activations) -> None:
        self.graph, self.sites = graph, sites
        for module in graph.module.modules():
            if isinstance(module, fx.GraphModule):
                _drop_copies(module.graph)
        self.numbers = {node: i for i, node in enumerate(filter(_draws, _all_nodes(graph.module)))}
        found = find_fusions(graph.module.graph, activations.calls)
        self.fusions = {fusion.last: fusion for fusion in found}
        self.owner = {node: fusion.last for fusion in self.fusions.values() for node in fusion.inner}
        self.lowering: dict[fx.Node, str] = {}

    def run(self, run: Run, tensors: Mapping[str, Value], inputs: Sequence[Value]) -> Any:
        """Return the network's outputs, nested as the network returns them, with a value for each tensor."""
        given, leaves = iter(inputs), []
        for node in self.graph.module.graph.find_nodes(op="placeholder"):
            kind, what = self.graph.inputs[node.name]
            leaves.append(tensors[what] if kind == "tensor" else Value(what) if kind == "constant" else next(given))
        outputs = self._run_nodes(run, self.graph.module, leaves)
        return pytree.tree_unflatten(list(outputs), self.graph.output_spec)

    def _run_nodes(self, run: Run, module: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        env: dict[Any, Any] = {}  # by node; a copy that is meant for one user, by node and user
        given = iter(inputs)
        last = self._last_uses(module.graph)
        for node in module.graph.nodes:
            if node in self.owner:
                continue
            if node.op == "placeholder":
                env[node] = next(given)
            elif node.op == "get_attr":
                env[node] = getattr(module, node.target)
            elif node.op == "output":
                return fx.node.map_arg(node.args[0], env.__getitem__)
            elif fusion := self.fusions.get(node):
                made = self._compute_fused(run, fusion, env)
                env[node] = made[0]
                users = list(dict.fromkeys(self.owner.get(user, user) for user in node.users))
                if len(made) > 1 and len(users) > 1:
                    env[node, users[1]] = made[1]
            else:
                env[node] = self._compute(run, node, env)
            for done in last.get(node, ()):
                env.pop(done, None)
                env.pop((done, node), None)
        return None

    def _last_uses(self, graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
        """Return which values are not needed after each node."""
        seen: set[fx.Node] = set()
        last: dict[fx.Node, list[fx.Node]] = {}
        for node in reversed(graph.nodes):
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
        number = run.activations.number(fusion.site)
        bases = run.activations.calls[fusion.site]
        context = run.context
        if fusion.dropout is not None:
            context = replace(context, dropout=self.numbers[fusion.dropout])
        return fusion.compute(lambda item: _look_up(item, fusion.last, env), run.rows[number][0], bases, context)

    def _compute(self, run: Run, node: fx.Node, env: Mapping[Any, Any]) -> Any:
        args, kwargs = _look_up(node.args, node, env), _look_up(node.kwargs, node, env)
        try:
            return self._call(run, node, args, kwargs)
        except (LoweringError, torch.OutOfMemoryError):
            raise
        except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise LoweringError(f"cannot compute {node.target} for all members: {reason}{_at(node)}") from error

    def _call(self, run: Run, node: fx.Node, args: Any, kwargs: Any) -> Any:
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
        if functional := _functional(target):
            return self._call_in_place(run, node, functional, args, kwargs)
        return self._call_operator(run, node, target, args, kwargs)

    def _call_site(self, run: Run, node: fx.Node, x: Value, index: int) -> Value:
        site = self.sites[index]
        self.lowering[node] = "own"
        if site.rates:
            context = replace(run.context, dropout=self.numbers[node])
            dropped: Value = drop(context, x, run.rates[index], training=True)
            return dropped
        return run.activations.compute(index, run.rows, x)

    def _call_operator(self, run: Run, node: fx.Node, target: Any, args: Any, kwargs: Any) -> Any:
        if node in self.numbers:
            run = replace(run, context=replace(run.context, dropout=self.numbers[node]))
        elif torch.Tag.nondeterministic_seeded in target.tags:
            raise LoweringError(
                f"{target} draws random numbers that would not be those of a member alone{_at(node)}; use nn.Dropout, "
                "or draw them outside of the network"
            )
        elif all(value.dim is None for value in values_in((args, kwargs))):
            self.lowering[node] = "shared"
            return call_shared(target, args, kwargs)
        if (own := RULES.get(target)) is not None:
            made = own(run.context, *args, **kwargs)
            if made is not NotImplemented:
                self.lowering[node] = "own"
                return made
        if torch.Tag.pointwise in target.tags:
            self.lowering[node] = "own"
            return call_pointwise(target, args, kwargs)
        self.lowering[node] = "vmap"
        return call_vmapped(target, args, kwargs)

    def _call_in_place(self, run: Run, node: fx.Node, functional: Any, args: Any, kwargs: Any) -> Any:
        """Compute an operation that changes its first argument."""
        target = args[0]
        made = self._call_operator(run, node, functional, args, kwargs)
        if _is_seen_once(node):
            return made
        if made.dim is not None and target.dim is None:
            raise LoweringError(f"{node.target} writes a value per member into one that all share{_at(node)}")
        members = run.context.members
        target.tensor.copy_(made.tensor if target.dim is None else made.at(target.dim, members))
        return target

    def explain(self) -> str:
        """Return how the operations of the last run were computed, those by vmap with their places in the source."""
        counts = Counter(self.lowering.values())
        texts = {
            "fused": "with their neighbours by one kernel",
            "own": "for all members at once",
            "shared": "once, on what all members share",
        }
        lines = [f"{counts[kind]} operations {text}" for kind, text in texts.items() if counts[kind]]
        mapped = Counter((str(node.target), source_of(node)) for node, kind in self.lowering.items() if kind == "vmap")
        lines += [f"{counts['vmap']} operations by torch.vmap:"] if mapped else []
        lines += [f"  {count} x {name}{f' at {source}' if source else ''}" for (name, source), count in mapped.items()]
        return "\n".join(lines)


def mutated_tensors(graph: Graph) -> set[str]:
    """Return the names of parameters and buffers that a run of the graph changes."""
    found = set()
    for node in _all_nodes(graph.module):
        changed = []
        if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
            changed = [node.args[0]]
        if node.target in (aten.batch_norm.default, aten.instance_norm.default):
            changed = list(node.args[3:5])
        for item in changed:
            if isinstance(item, fx.Node) and graph.inputs.get(item.name, ("", None))[0] == "tensor":
                found.add(graph.inputs[item.name][1])
    return found


def _all_nodes(module: nn.Module) -> Iterator[fx.Node]:
    """Yield the nodes of a graph and of the graphs inside it."""
    for part in module.modules():
        if isinstance(part, fx.GraphModule):
            yield from part.graph.nodes


def _draws(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target in _DRAWING


def _look_up(item: Any, user: fx.Node, env: Mapping[Any, Any]) -> Any:
    """Return an argument of a node with the values of the nodes in it."""
    return fx.node.map_arg(item, lambda node: env[node, user] if (node, user) in env else env[node])


def _drop_copies(graph: fx.Graph) -> None:
    """Remove the copies that in-place activations make of their results, where nobody else sees what they change."""
    for node in graph.find_nodes(op="call_function", target=aten.copy_.default):
        made = node.args[1]
        if isinstance(made, fx.Node) and made.target is SITE and _is_seen_once(node):
            node.replace_all_uses_with(made)
            graph.erase_node(node)


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


def _functional(target: Any) -> Any:
    """Return the operator that computes what an in-place operator writes; None for other operators."""
    schema = target._schema
    name = schema.name.rpartition("::")[2]
    if not schema.is_mutable or not name.endswith("_"):
        return None
    packet = getattr(aten, name[:-1], None)
    return None if packet is None else getattr(packet, target._overloadname, None)


def _is_seen_once(node: fx.Node) -> bool:
    """Return whether nobody but an in-place operation sees the tensor that it changes."""
    source = node.args[0]
    if not isinstance(source, fx.Node) or source.op != "call_function" or _aliases(source):
        return False
    others = set(source.users) - {node}
    # the placeholder of an in-place activation computes from its input, then writes there
    return all(user.target is SITE and list(user.users) == [node] for user in others)


def _aliases(node: fx.Node) -> bool:
    """Return whether a node's result may share memory with its inputs."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return True
    if _functional(node.target) is not None:
        return not _is_seen_once(node)
    return any(returned.alias_info is not None for returned in node.target._schema.returns) or node.target in (
        aten.contiguous.default,
        aten.reshape.default,
        aten.flatten.using_ints,
        aten.to.dtype,
        aten.dropout.default,
    )


def _at(node: fx.Node) -> str:
    source = source_of(node)
    return f" at {source}" if source else ""


def unwrap(tree: Any, members: int) -> Any:
    """Return nested values as tensors with the members first."""
    return map_values(lambda value: value.at(0, members), tree)
