"""Lower the graph of one network onto operations of a whole population, and run it."""

from __future__ import annotations

import itertools
import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree
from torch import Tensor, fx

from hullo._compat import add_to_each, is_out_of_memory
from hullo.population import kernels
from hullo.population.activations import Activations
from hullo.population.fusion import find_fusions
from hullo.population.rules import RULES, Context, arguments, is_random, noise, norms, recurrent  # noqa: F401  (they register rules)
from hullo.population.rules.shapes import STRIDED, call_strided
from hullo.population.trace.export import LoweringError, at_source, source_of
from hullo.population.trace.graph import SITE, Graph
from hullo.population.trace.members import with_rates
from hullo.population.values import (
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
}
"""Operators without a derivative, and functions that compute the same, elementwise or with a rule of their own."""


class Program:
    """Compute the nodes of a network's graph for all members.

    `lowering` is how each node was computed: by a "fused" kernel, by an "own" operation, once because it is "shared" by
    all members, by "vmap", or in a "loop" over members. `numbers` has the nodes that may draw random numbers, in order.
    """

    def __init__(self, graph: Graph, activations: Activations) -> None:
        self.graph, self.activations = graph, activations
        random = [node for node in graph.nodes if node.target in RULES and is_random(node.target)]
        self.numbers = {node: i for i, node in enumerate(random)}
        fusions = find_fusions(graph.nodes, activations.fusable_calls, graph.changed)
        self.fusions = {fusion.last: fusion for fusion in fusions}
        self.owner = {node: fusion.last for fusion in self.fusions.values() for node in fusion.inner}
        counts: dict[Any, fx.Node] = {node.args[1]: node for node in graph.nodes if _is_count(node)}
        self.counts, self.skipped = list(counts), {*self.owner, *counts, *counts.values()}
        self.lowering: dict[fx.Node, str] = dict.fromkeys(counts, "own")
        self.dtypes: dict[Any, torch.dtype] = {}  # of results under autocast
        self.last_uses = self._find_last_uses()

    def run(
        self,
        context: Context,
        tensors: Mapping[str, Value],
        inputs: Sequence[Value],
        observe: Callable[[fx.Node, Any], None] | None = None,
    ) -> Any:
        """Return the network's outputs, nested as the network returns them, with the members first in each tensor.

        `observe` is called with each node that is computed, and its value.
        """
        context = replace(context, rows=self.activations.rows())
        remaining, members = iter(inputs), context.members
        env: dict[Any, Any] = {}  # by node; a copy for one user, by node and user
        for node in self.graph.nodes:
            if node.op == "placeholder":
                kind, what = self.graph.inputs[node.name]
                if kind == "tensor":
                    env[node] = tensors[what]
                else:
                    env[node] = Value(what) if kind == "constant" else next(remaining)
        for regions, nodes in itertools.groupby(self.graph.nodes, lambda node: node.meta.get("regions", ())):
            with ExitStack() as stack:
                for enter in regions:
                    stack.enter_context(enter())
                for node in nodes:
                    if node.op != "call_function" or node in self.skipped:
                        continue
                    self._run_node(context, node, env)
                    if observe is not None:
                        observe(node, env[node])
                    for done in self.last_uses.get(node, ()):
                        env.pop(done, None)
                        env.pop((done, node), None)
        if self.counts:  # all of them by one launch
            added = [_look_up(node.args, node, env) for node in self.counts]
            add_to_each([value.tensor for value, _ in added], [number for _, number in added])
        values = fx.node.map_arg(self.graph.nodes[-1].args[0], env.__getitem__)
        outputs = map_values(lambda value: _in_order(value.own(members).at(0, members)), values)
        return pytree.tree_unflatten(list(outputs), self.graph.output_spec)

    def _run_node(self, context: Context, node: fx.Node, env: dict[Any, Any]) -> None:
        if fusion := self.fusions.get(node):
            self.lowering[node] = "fused"
            if fusion.dropout is not None:
                context = replace(context, number=self.numbers[fusion.dropout])
            result = fusion.compute(lambda item: _look_up(item, node, env), context)
            env[node] = result[0]
            users = list(dict.fromkeys(self.owner.get(user, user) for user in node.users))
            if fusion.second is not None:
                env[fusion.second] = result[1]
            elif len(result) > 1 and len(users) > 1:
                env[node, users[1]] = result[1]
        else:
            env[node] = self._compute(context, node, env)

    def _find_last_uses(self) -> dict[fx.Node, list[fx.Node]]:
        """Return the values that are used for the last time by each node."""
        seen = {node for count in self.counts for node in count.all_input_nodes}
        last: dict[fx.Node, list[fx.Node]] = {}
        position = {node: i for i, node in enumerate(self.graph.nodes)}
        position |= {node: position[last] for node, last in self.owner.items()}
        for node in sorted(self.graph.nodes, key=position.__getitem__, reverse=True):
            after = self.owner.get(node, node)
            for item in node.all_input_nodes:
                if item not in seen:
                    seen.add(item)
                    last.setdefault(after, []).append(item)
        return last

    def _compute(self, context: Context, node: fx.Node, env: dict[Any, Any]) -> Any:
        args, kwargs = _look_up(node.args, node, env), _look_up(node.kwargs, node, env)
        try:
            return self._call(context, node, args, kwargs)
        except LoweringError:
            raise
        except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
            if is_out_of_memory(error):
                raise
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            what = f"the activation {self.activations.sites[args[1]].path!r}" if node.target is SITE else node.target
            raise LoweringError(f"cannot compute {what} for all members: {reason}{at_source(node)}") from error

    def _call(self, context: Context, node: fx.Node, args: Any, kwargs: Any) -> Any:
        target = node.target
        if str(target).startswith(_ASSERTIONS):
            return None
        if target is SITE:
            x, index = args
            self.lowering[node] = "loop" if self.activations.sites[index].functions else "own"
            return self.activations.compute(index, context.rows, x)
        if target is operator.getitem or not isinstance(target, torch._ops.OpOverload):
            return target(*args, **kwargs)  # type: ignore[operator]
        if target is aten.copy_.default:  # to a parameter, which needs no history, or to a buffer
            tensor: Tensor = args[0].tensor
            with torch.set_grad_enabled(torch.is_grad_enabled() and not tensor.requires_grad):
                tensor.copy_(args[1].at(0, context.members))
            return args[0]
        return self._call_operator(context, node, target, args, kwargs)

    def _call_operator(self, context: Context, node: fx.Node, target: Any, args: Any, kwargs: Any) -> Any:
        function = _DIFFERENTIABLE.get(target, target)
        if node in self.graph.rates:
            args = with_rates(node, args, self.graph.rates[node])
        if node in self.numbers:
            context = replace(context, number=self.numbers[node])
        elif _draws(target, node):
            raise LoweringError(
                f"{target} draws other random numbers than a single member would{at_source(node)}; use nn.Dropout, "
                "torch.rand or torch.randn, or give random numbers as an input"
            )
        elif target in STRIDED:
            self.lowering[node] = "own"
            return call_strided(context.members, node, *args, **kwargs)
        elif all(value.dim is None for value in values_in((args, kwargs))):
            self.lowering[node] = "shared"
            return call_shared(function, args, kwargs)
        if (rule := RULES.get(target)) is not None:
            result = rule(context, *args, **kwargs)
            if result is not NotImplemented:
                self.lowering[node] = "own"
                return result
        if torch.Tag.pointwise in target.tags or function is not target:
            self.lowering[node] = "own"
            result = call_pointwise(function, args, kwargs)
            if node in self.graph.rates and not result.shape:  # numbers do not widen types
                result = Value(result.tensor.to(node.meta["val"].dtype), result.dim)
            return result
        if self.lowering.get(node) != "loop" and target not in _WRONG_IN_VMAP:
            try:
                result = call_vmapped(target, *self._cast(node, args, kwargs))
                self.lowering[node] = "vmap"
                return result
            except (RuntimeError, NotImplementedError):  # no rule for vmap, or an error that the loop raises, too
                self.lowering[node] = "loop"
        self.lowering[node] = "loop"
        return call_looped(target, args, kwargs, context.members)

    def _cast(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        """Return arguments in the type in which autocast computes; torch.vmap would take operators apart before."""
        values = [value for value in values_in((args, kwargs)) if value.dtype in kernels.DTYPES]
        if not values or not torch.is_autocast_enabled(values[0].device.type):
            return args, kwargs
        key = node, torch.get_autocast_dtype(values[0].device.type)
        if key not in self.dtypes:
            own_args, own_kwargs = map_values(lambda value: value.select(0).detach(), (args, kwargs))
            results = pytree.tree_leaves(node.target(*own_args, **own_kwargs))  # type: ignore[operator]
            self.dtypes[key] = next((item.dtype for item in results if isinstance(item, Tensor)), torch.bool)
        dtype = self.dtypes[key] if self.dtypes[key] in kernels.DTYPES else None
        return map_values(
            lambda value: value.cast(dtype) if dtype and value.dtype in kernels.DTYPES else value, (args, kwargs)
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


def _is_count(node: fx.Node) -> bool:
    """Return whether a node writes the sum of a buffer and a number that nothing else reads, as batch norms count."""
    if node.target is not aten.copy_.default:
        return False
    buffer: Any
    add: Any
    buffer, add = node.args
    counts = isinstance(add, fx.Node) and add.target is aten.add.Tensor and add.args[0] is buffer and not add.kwargs
    is_read = {*buffer.users} != {add, node} or (isinstance(add, fx.Node) and len(add.users) > 1)
    return counts and not is_read and isinstance(add.args[1], int)


def _draws(target: Any, node: fx.Node) -> bool:
    """Return whether a call of an operator draws random numbers: not with a rate of zero or in evaluation mode."""
    if not is_random(target):
        return False
    given = arguments(node)
    rate, training = given.get("p", given.get("dropout", 1.0)), given.get("train", given.get("training", True))
    return bool(training) and rate != 0


def _look_up(item: Any, user: fx.Node, env: Mapping[Any, Any]) -> Any:
    """Return an argument of a node with the values of the nodes in it."""
    return fx.node.map_arg(item, lambda node: env[node, user] if (node, user) in env else env[node])


def _in_order(output: Tensor) -> Tensor:
    """Return images that a CPU computed with channels last in the order that those of one network have."""
    is_reordered = output.dim() == 5 and output.device.type == "cpu" and not output[:1, :1].is_contiguous()
    return output.contiguous() if is_reordered else output
