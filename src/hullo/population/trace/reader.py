"""Trace the members of a population, and merge their graphs into one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from hullo._compat import are_transforms_active, without_saved_tensor_hooks
from hullo.population.members import fork_rng
from hullo.population.sites import Site
from hullo.population.trace.dropout_rates import merge_rates
from hullo.population.trace.export import LOCK, LoweringError
from hullo.population.trace.graph import Graph, read_graph


def read_members(
    member: Callable[[int], nn.Module],
    sites: Sequence[Site],
    differences: Sequence[tuple[str, ...]],
    device: torch.device,
    examples: Sequence[Any],
    spec: Any,
) -> Graph:
    """Return the graph of all members for one member's inputs; raise the networks' own exceptions.

    Args:
        member: returns a copy of member k.
        sites: the activations.
        differences: the attributes in which each member differs from the first, such as dropout rates; members with
            the same ones share a graph.
        device: the device of the members.
        examples, spec: the leaves and the structure of all arguments.
    """
    if are_transforms_active():
        raise LoweringError(
            "networks are traced in the first call for a shape, which cannot be inside of torch.func: call the "
            "population in evaluation mode once before"
        )

    def arguments() -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments anew: a forward may change them."""
        cloned = [item.clone() if isinstance(item, Tensor) else item for item in examples]
        args, kwargs = pytree.tree_unflatten(cloned, spec)
        return args, kwargs

    graphs = {}
    for kind in dict.fromkeys(differences):
        k = differences.index(kind)
        autocast = torch.autocast(device.type, enabled=False)
        grad_mode = torch.set_grad_enabled(torch.is_grad_enabled())
        with torch.inference_mode(False), grad_mode, autocast, without_saved_tensor_hooks():
            args, kwargs = arguments()
            with LOCK, fork_rng():  # a call raises the network's own exceptions, and fills its caches with values
                member(k)(*args, **kwargs)
            graphs[kind] = read_graph(member(k), sites, *arguments())
    return merge_rates(graphs, differences, device)
