"""Trace the members of a population, and merge their graphs into one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.nn.modules.module import register_module_buffer_registration_hook

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
            assigned = _call_once(member(k), *arguments())
            graphs[kind] = read_graph(member(k), sites, *arguments(), assigned)
    return merge_rates(graphs, differences, device)


def _call_once(network: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """Call a network before it is traced, which raises its own exceptions; return the buffers that forward assigns."""
    before = dict(network.named_buffers(remove_duplicate=False))
    with LOCK, fork_rng(), _record_assignments() as assigned:
        output = network(*args, **kwargs)
    _check_leaves(network, output)
    after = dict(network.named_buffers(remove_duplicate=False))
    if new := sorted(after.keys() - before.keys()):
        raise LoweringError(
            f"the forward of {type(network).__name__} registers {new[0]!r}, which members do not have; call the "
            "networks once before they join"
        )
    return [name for name, buffer in before.items() if after.get(name) is not buffer or id(buffer) in assigned]


def _check_leaves(network: nn.Module, output: Any) -> None:
    """Raise an error if an output depends on a parameter that is not registered, which a graph takes for a constant."""
    own = set(network.parameters())
    nodes = [item.grad_fn for item in pytree.tree_leaves(output) if isinstance(item, Tensor)]
    seen: set[Any] = set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        nodes += [following for following, _ in node.next_functions]
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, nn.Parameter) and leaf not in own:
            raise LoweringError(
                f"the forward of {type(network).__name__} uses a parameter of shape {tuple(leaf.shape)} that is not "
                "registered in it; keep modules in nn.ModuleList, and write a method instead of a function that refers "
                "to the network, which every copy would call"
            )


@contextmanager
def _record_assignments() -> Iterator[set[int]]:
    """Yield a set that collects the ids of the tensors that are assigned to buffers, as by `self.calls += 1`."""
    found: set[int] = set()

    def record(module: nn.Module, name: str, buffer: Any) -> None:
        found.add(id(buffer))

    hook = register_module_buffer_registration_hook(record)
    try:
        yield found
    finally:
        hook.remove()
