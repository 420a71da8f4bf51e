"""Trace the graph of a network, with its activations as single nodes."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from hullo.gating import GatedHull
from hullo.population.export import LoweringError, export
from hullo.population.inplace import rewrite_in_place
from hullo.population.sites import Site

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in [^\n]+\n\s*(?P<code>[^\n]+)')


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


class _LocalResponseNorm(nn.Module):
    """Replace PyTorch's module while a network is traced."""

    def __init__(self, module: nn.LocalResponseNorm) -> None:
        super().__init__()
        self.settings = module.size, module.alpha, module.beta, module.k

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        result: Tensor = norm_operator(input, *self.settings)
        return result


class _Placeholder(nn.Module):
    """Replace the module of a site while a network is traced."""

    def __init__(self, index: int, site: Site) -> None:
        super().__init__()
        self.index, self.site = index, site

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  (PyTorch's name, by which it may be called)
        result: Tensor = site_operator(input, self.index)
        return input.copy_(result) if self.site.inplace else result


@dataclass(frozen=True)
class Graph:
    """Hold the traced graph of a network.

    Args:
        module: the graph, with ATen operators and `hullo::site`; in-place operations are rewritten where possible.
        inputs: the source of each placeholder: ("tensor", name) for parameters and buffers, ("constant", tensor),
            ("input", None).
        output_spec: how outputs are nested.
        written: the nodes whose memory is written to in place, with the ids of that memory.
        rates: the numbers in which members differ, such as dropout rates, by node and position among its arguments; one
            per member.
    """

    module: fx.GraphModule
    inputs: Mapping[str, tuple[str, Any]]
    output_spec: Any
    written: Mapping[fx.Node, frozenset[int]]
    rates: Mapping[fx.Node, Mapping[int, Tensor]] = field(default_factory=dict)


def read_graph(network: nn.Module, sites: Sequence[Site], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Graph:
    """Trace a network on example inputs and return its graph; a LoweringError says what cannot be traced, and where.

    Placeholders replace the network's modules at the sites. The graph is valid only for inputs of the same shapes and
    for the current training modes.
    """
    _settle(network)
    program = export(_with_placeholders(network, sites), args, kwargs)
    kinds = torch.export.graph_signature.InputKind
    inputs: dict[str, tuple[str, Any]] = {}
    for spec in program.graph_signature.input_specs:
        if spec.kind in (kinds.PARAMETER, kinds.BUFFER):
            inputs[spec.arg.name] = ("tensor", spec.target)
        elif spec.kind == kinds.CONSTANT_TENSOR:
            inputs[spec.arg.name] = ("constant", program.constants[spec.target])
        elif spec.kind == kinds.USER_INPUT:
            inputs[getattr(spec.arg, "name", "")] = ("input", None)
        else:
            raise LoweringError(f"the graph of {type(network).__name__} holds {spec.kind}, which cannot be stacked")
    written = rewrite_in_place(program.graph_module)
    return Graph(program.graph_module, inputs, program.call_spec.out_spec, written)


def _with_placeholders(network: nn.Module, sites: Sequence[Site]) -> nn.Module:
    """Replace modules at sites by placeholders, and others by modules that can be traced."""
    for index, site in enumerate(sites):
        placeholder = _Placeholder(index, site).train(network.get_submodule(site.path).training)
        if not site.path:
            return placeholder
        network.set_submodule(site.path, placeholder)
    for path, module in list(network.named_modules()):
        if type(module) is nn.LocalResponseNorm and path:
            network.set_submodule(path, _LocalResponseNorm(module))
        elif isinstance(module, GatedHull):
            module.forward = functools.partial(_gate, module)  # type: ignore[method-assign]
        elif isinstance(module, _BatchNorm) and module.momentum is None and module.training:
            module.forward = functools.partial(_normalize_cumulatively, module)  # type: ignore[method-assign]
    return network


class _Zero(float):
    """A rate of zero: no random number is below it, which a comparison says without looking at the number."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if function in (Tensor.lt, Tensor.gt) and args[0].dim() == 0:
            return function is Tensor.gt
        plain = pytree.tree_map(lambda item: 0.0 if isinstance(item, cls) else item, (args, kwargs or {}))
        return function(*plain[0], **plain[1])


def _settle(network: nn.Module) -> None:
    """Settle what a forward pass of transformers decides by random numbers, or returns beside tensors.

    There, layers are dropped if a random number is below a rate, even if that is zero; and decoders return an object
    with past keys and values by default, which is for inference.
    """
    configurations = [vars(module)["config"] for module in network.modules() if "config" in vars(module)]
    for owner in (*network.modules(), *configurations):
        if not any(kind.__module__.startswith("transformers.") for kind in type(owner).__mro__):
            continue
        settings = vars(owner)
        zeros = [name for name, value in settings.items() if name.endswith("layerdrop") and type(value) in (int, float)]
        settings.update({name: _Zero() for name in zeros if settings[name] == 0})
        if settings.get("use_cache") is True:
            settings["use_cache"] = False


def _gate(module: GatedHull, gate: Tensor, up: Tensor) -> Tensor:
    product: Tensor = module.hull(gate) * up
    return product


def _normalize_cumulatively(module: _BatchNorm, input: Tensor) -> Tensor:  # noqa: A002
    """Normalize as a batch norm without momentum does, whose running statistics are means over all batches."""
    if module.running_mean is not None and module.running_var is not None:
        assert module.num_batches_tracked is not None  # noqa: S101
        module.num_batches_tracked.add_(1)
        with torch.no_grad():
            new = torch.var_mean(input, [dim for dim in range(input.dim()) if dim != 1])
            share = 1 / module.num_batches_tracked.to(new[0].dtype)
            for running, batch in zip((module.running_var, module.running_mean), new, strict=True):
                running.mul_(1 - share).add_(batch * share)
    return F.batch_norm(input, None, None, module.weight, module.bias, True, 0.0, module.eps)


def source_of(node: fx.Node) -> str:
    """Return the line of source code of a node, if known."""
    frames = list(_FRAME.finditer(node.meta.get("stack_trace") or ""))
    if not frames:
        return ""
    last = next((frame for frame in reversed(frames) if frame["file"] != __file__), frames[-1])
    return f"{last['file']}:{last['line']}: {last['code'].strip()}"


def at_source(node: fx.Node) -> str:
    """Return ' at ' and the line of source code of a node, for an error message; nothing if it is not known."""
    source = source_of(node)
    return f" at {source}" if source else ""
