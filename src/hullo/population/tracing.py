"""Read the graph of a network, with its activations and dropouts as nodes of their own."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from hullo.population.errors import LoweringError
from hullo.population.sites import Site

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>\w+)\n\s*(?P<code>[^\n]+)')


@torch.library.custom_op("hullo::site", mutates_args=())
def site_operator(x: Tensor, index: int) -> Tensor:
    """Stand for the activation or dropout at a site while a graph is read."""
    return x.clone()


site_operator.register_fake(lambda x, index: torch.empty_like(x))
SITE = torch.ops.hullo.site.default


@torch.library.custom_op("hullo::local_response_norm", mutates_args=())
def norm_operator(x: Tensor, size: int, alpha: float, beta: float, k: float) -> Tensor:
    """Stand for a local response normalization, which PyTorch computes in many operations."""
    return x.clone()


norm_operator.register_fake(lambda x, size, alpha, beta, k: torch.empty_like(x))


class _LocalResponseNorm(nn.Module):
    """Stand in the place of a module of PyTorch while a graph is read."""

    def __init__(self, module: nn.LocalResponseNorm) -> None:
        super().__init__()
        self.settings = module.size, module.alpha, module.beta, module.k

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        made: Tensor = norm_operator(input, *self.settings)
        return made


class _Placeholder(nn.Module):
    """Stand at a site while a graph is read."""

    def __init__(self, index: int, site: Site) -> None:
        super().__init__()
        self.index, self.site = index, site

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  (PyTorch's name, by which it may be called)
        if self.site.rates and not self.training:
            return input
        made: Tensor = site_operator(input, self.index)
        return input.copy_(made) if self.site.inplace else made


@dataclass(frozen=True)
class Graph:
    """Hold what was read of a network.

    Args:
        module: the graph, with ATen operators and `hullo::site`.
        inputs: what each placeholder is: ("tensor", name) for parameters and buffers, ("constant", tensor),
            ("input", None).
        output_spec: how outputs are nested.
    """

    module: fx.GraphModule
    inputs: Mapping[str, tuple[str, Any]]
    output_spec: Any


def read_graph(network: nn.Module, sites: Sequence[Site], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Graph:
    """Trace a network on example inputs and return its graph; a LoweringError says what cannot be traced, and where.

    Placeholders take the place of the network's modules at the sites. The graph holds for inputs of the same shapes and
    for the present training modes alone.
    """
    for index, site in enumerate(sites):
        parent, _, name = site.path.rpartition(".")
        placeholder = _Placeholder(index, site).train(network.get_submodule(site.path).training)
        if site.path:
            setattr(network.get_submodule(parent), name, placeholder)
        else:
            network = placeholder
    for path, module in list(network.named_modules()):
        if type(module) is nn.LocalResponseNorm and path:
            parent, _, name = path.rpartition(".")
            setattr(network.get_submodule(parent), name, _LocalResponseNorm(module))
    try:
        with _quiet():
            program = torch.export.export(network, args, kwargs, strict=False)
    except Exception as error:
        raise LoweringError(_explain(network, error)) from error
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
    return Graph(program.graph_module, inputs, program.call_spec.out_spec)


@contextmanager
def _quiet() -> Any:
    """Silence what PyTorch logs and warns while it traces."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _explain(network: nn.Module, error: Exception) -> str:
    """Return why a graph cannot be read, with the line of the user's code where that is known."""
    text = str(error)
    reason = text.strip().splitlines()[0] if text.strip() else type(error).__name__
    if "data-dependent" in text:
        reason = "its control flow depends on the values of tensors"
    where = "; ".join(f"{m['file']}:{m['line']}, in {m['name']}: {m['code'].strip()}" for m in _FRAME.finditer(text))
    return (
        f"cannot read the graph of {type(network).__name__}: {reason}"
        + (f" ({where})" if where else "")
        + "; a population needs networks that do the same operations for every input of one shape"
    )


def source_of(node: fx.Node) -> str:
    """Return the line of source code that a node comes from, as far as it is known."""
    frames = list(_FRAME.finditer(node.meta.get("stack_trace") or ""))
    if not frames:
        return ""
    last = frames[-1]
    return f"{last['file']}:{last['line']}: {last['code'].strip()}"
