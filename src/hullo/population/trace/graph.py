"""Trace the graph of a network, with its activations as single nodes."""

from __future__ import annotations

import copy
import functools
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from hullo.gating import GatedHull
from hullo.population.sites import ActivationSite
from hullo.population.trace.export import LoweringError, at_source, export
from hullo.population.trace.in_place import Rewriter


@torch.library.custom_op("hullo::site", mutates_args=())
def site_operator(x: Tensor, index: int) -> Tensor:
    """Represent the activation at a site while a network is traced."""
    return x.clone()


site_operator.register_fake(lambda x, index: torch.empty_like(x))
SITE = torch.ops.hullo.site.default


@torch.library.custom_op("hullo::local_response_norm", mutates_args=())
def norm_operator(x: Tensor, size: int, alpha: float, beta: float, k: float) -> Tensor:
    """Represent a local response normalization, which PyTorch computes in many operations."""
    return x.clone()


norm_operator.register_fake(lambda x, size, alpha, beta, k: torch.empty_like(x))


def _normalize_locally(module: nn.LocalResponseNorm, input: Tensor) -> Tensor:  # noqa: A002
    result: Tensor = norm_operator(input, module.size, module.alpha, module.beta, module.k)
    return result


def _activate(index: int, inplace: bool, input: Tensor) -> Tensor:  # noqa: A002  (PyTorch's name for it)
    result: Tensor = site_operator(input, index)
    return input.copy_(result) if inplace else result


@dataclass(frozen=True)
class Graph:
    """Hold the traced graph of a network.

    Args:
        nodes: the nodes, with ATen operators and `hullo::site`. Only parameters and buffers are written in place, by
            `copy_`. A node inside `torch.no_grad` or `torch.autocast` has functions in `meta["regions"]` that make the
            context managers.
        inputs: the source of each placeholder: ("tensor", name) for parameters and buffers, ("constant", tensor),
            ("input", None).
        output_spec: the nesting of outputs.
        changed: the placeholders of parameters and buffers that are written in place.
        rates: the numbers in which members differ, such as dropout rates, by node and position among its arguments; one
            per member.
    """

    nodes: Sequence[fx.Node]
    inputs: Mapping[str, tuple[str, Any]]
    output_spec: Any
    changed: Collection[fx.Node]
    rates: Mapping[fx.Node, Mapping[int, Tensor]] = field(default_factory=dict)

    @property
    def written(self) -> set[str]:
        """Return the names of the parameters and buffers that are written."""
        sources = [self.inputs.get(node.name, ("", "")) for node in self.changed]
        return {name for kind, name in sources if kind == "tensor"}


def read_graph(
    network: nn.Module,
    sites: Sequence[ActivationSite],
    assigned: Collection[str],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Graph:
    """Trace a network on example inputs and return its graph; a LoweringError says what cannot be traced, and where.

    The graph is valid only for inputs of the same shapes and for the current modes. `assigned` has the names of buffers
    to which forward assigns.
    """
    disable_cache(network)
    network = _with_placeholders(network, sites)
    program = export(network, assigned, args, kwargs)
    kinds = torch.export.graph_signature.InputKind
    inputs: dict[str, tuple[str, Any]] = {}
    graph = program.graph_module.graph
    placeholders = {node.name: node for node in graph.find_nodes(op="placeholder")}
    inside = tuple(f"{site.path}." if site.path else "" for site in sites)
    for spec in program.graph_signature.input_specs:
        name = (spec.target or "").removeprefix("network.")
        if spec.kind in (kinds.PARAMETER, kinds.BUFFER) and name.startswith(inside):
            _remove_unused(placeholders[spec.arg.name], name)
        elif spec.kind in (kinds.PARAMETER, kinds.BUFFER):
            inputs[spec.arg.name] = ("tensor", name)
        elif spec.kind == kinds.CONSTANT_TENSOR:
            inputs[spec.arg.name] = _classify_constant(program.constants[spec.target], network)
        elif spec.kind == kinds.USER_INPUT:
            inputs[getattr(spec.arg, "name", "")] = ("input", None)
        else:
            raise LoweringError(
                f"the forward of {type(network).__name__} uses an object that cannot be stacked, such as a "
                "torch.Generator; give random numbers as an input"
            )
    _inline_regions(program.graph_module)
    changed = Rewriter(graph, inputs).changed
    return Graph(list(graph.nodes), inputs, program.call_spec.out_spec, changed)


_REGIONS: dict[str, tuple[Any, int]] = {
    "wrap_with_set_grad_enabled": (torch.set_grad_enabled, 1),
    "wrap_with_autocast": (torch.autocast, 4),
}


def _inline_regions(module: fx.GraphModule) -> None:
    """Replace calls of graphs inside `torch.no_grad` or `torch.autocast` by the nodes of these graphs."""
    graph = module.graph
    for node in list(graph.nodes):
        if (region := _REGIONS.get(getattr(node.target, "__name__", ""))) is None:
            continue
        make, count = region  # and its number of arguments
        enter, part, inputs = functools.partial(make, *node.args[:count]), node.args[count], node.args[count + 1 :]
        inner = getattr(module, part.target)
        _inline_regions(inner)
        copies: dict[fx.Node, Any] = dict(zip(inner.graph.find_nodes(op="placeholder"), inputs, strict=True))
        with graph.inserting_before(node):
            results: Any = graph.graph_copy(inner.graph, copies)
        for original, copied in copies.items():
            if original.op != "placeholder":
                copied.meta = {**original.meta, "regions": (enter, *original.meta.get("regions", ()))}
        for user in list(node.users):
            user.replace_all_uses_with(results[user.args[1]])
            graph.erase_node(user)
        graph.erase_node(node)


def _classify_constant(tensor: Tensor, network: nn.Module) -> tuple[str, Any]:
    """Return the source of a tensor that a forward does not read from an attribute of a module: perhaps a parameter."""
    for name, own in (*network.named_parameters(), *network.named_buffers()):
        if own.numel() > 0 and (tensor.data_ptr(), tensor.shape) == (own.data_ptr(), own.shape):
            return "tensor", name
    return "constant", tensor


def _remove_unused(node: fx.Node, name: str) -> None:
    """Remove a parameter of an activation from a graph, which must not read it."""
    if node.users:
        raise LoweringError(
            f"forward uses {name}, a parameter of an activation, other than by a call of its module"
            f"{at_source(next(iter(node.users)))}; population.activations.coefficients has the coefficients of all "
            "members, for a penalty in the loss"
        )
    node.graph.erase_node(node)


def _with_placeholders(network: nn.Module, sites: Sequence[ActivationSite]) -> nn.Module:
    """Replace the forward of modules at sites, and of others that cannot be traced."""
    modules = [network.get_submodule(site.path) for site in sites]
    places = Counter(map(id, modules))
    for index, (site, module) in enumerate(zip(sites, modules, strict=True)):
        new = copy.copy(module) if places[id(module)] > 1 else module
        new.forward = functools.partial(_activate, index, getattr(module, "inplace", False))
        if not site.path:
            return new
        network.set_submodule(site.path, new)
    for module in network.modules():
        if type(module) is nn.LocalResponseNorm:
            module.forward = functools.partial(_normalize_locally, module)  # type: ignore[method-assign]
        elif isinstance(module, GatedHull):
            module.forward = functools.partial(_gate, module)  # type: ignore[method-assign]
        elif isinstance(module, nn.EmbeddingBag):
            module.sparse = False  # gradients of stacked weights are dense
    return network


def disable_cache(network: nn.Module) -> None:
    """Let models of transformers return no cache of keys and values."""
    for module in network.modules():
        config: Any = vars(module).get("config")
        if type(module).__module__.startswith("transformers.") and getattr(config, "use_cache", False):
            config.use_cache = False


def _gate(module: GatedHull, gate: Tensor, up: Tensor) -> Tensor:
    product: Tensor = module.hull(gate) * up
    return product
