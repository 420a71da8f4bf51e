"""Trace the members of a population, and merge their graphs into one."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.nn.modules.module import register_module_buffer_registration_hook

from hullo._compat import are_transforms_active, without_saved_tensor_hooks
from hullo.population.members import fork_rng, registered_names
from hullo.population.sites import Site
from hullo.population.trace.dropout_rates import first_difference, merge_rates
from hullo.population.trace.export import LOCK, LoweringError
from hullo.population.trace.graph import Graph, read_graph
from hullo.population.trace.in_place import all_nodes


@dataclass(frozen=True)
class Reader:
    """Read the graph of all members for example inputs; raise the networks' own exceptions.

    Args:
        member: returns a copy of member k.
        sites: the activations.
        differences: the attributes in which each member differs from the first, such as dropout rates; members with
            the same ones share a graph.
        device: the device of the members.
        originals: the parameters and buffers of the user's own networks, which no graph may read.
    """

    member: Callable[[int], nn.Module]
    sites: Sequence[Site]
    differences: Sequence[tuple[str, ...]]
    device: torch.device
    originals: Sequence[weakref.ref[Tensor]]

    def read(self, examples: Sequence[Any], spec: Any) -> Graph:
        """Return the graph for one member's inputs, given as the leaves and the structure of all arguments."""
        if are_transforms_active():
            raise LoweringError(
                "networks are traced in the first call for a shape, which cannot be inside of torch.func: call the "
                "population in evaluation mode once before"
            )
        kinds = dict.fromkeys(self.differences)
        graphs = {kind: self._read_member(self.differences.index(kind), examples, spec) for kind in kinds}
        return merge_rates(graphs, self.differences, self.device)

    def _read_member(self, k: int, examples: Sequence[Any], spec: Any) -> Graph:
        autocast = torch.autocast(self.device.type, enabled=False)
        grad_mode = torch.set_grad_enabled(torch.is_grad_enabled())
        with torch.inference_mode(False), grad_mode, autocast, without_saved_tensor_hooks():

            def arguments() -> tuple[tuple[Any, ...], dict[str, Any]]:
                """Return the arguments anew: a forward may change them."""
                cloned = [item.clone() if isinstance(item, Tensor) else item for item in examples]
                args, kwargs = pytree.tree_unflatten(cloned, spec)
                return args, kwargs

            assigned = self._call_once(k, *arguments())
            originals = [tensor for held in self.originals if (tensor := held()) is not None]
            graph = read_graph(self.member(k), self.sites, *arguments(), k, originals, assigned)
            if different := [site for site in self.sites if site.differs_in_place]:
                others = [replace(site, inplace=site.inplace and not site.differs_in_place) for site in self.sites]
                other = read_graph(self.member(k), others, *arguments(), k, assigned=assigned)
                self._check_in_place(graph, other, different[0].path)
            if graph.asks_for_class:
                kinds = {tuple(site.classes[j] for site in self.sites): j for j in range(len(self.differences))}
                del kinds[tuple(site.classes[k] for site in self.sites)]
                for j in kinds.values():
                    other = read_graph(self.member(k), self.sites, *arguments(), j, assigned=assigned)
                    self._check_classes(graph, other)
            return graph

    def _call_once(self, k: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
        """Call a member before it is traced: it raises its own exceptions.

        Return the names of the buffers to which its forward assigns other tensors.
        """
        member = self.member(k)
        before, buffers = registered_names(member), dict(member.named_buffers(remove_duplicate=False))
        with LOCK, fork_rng(), _record_assignments() as set_again:
            member(*args, **kwargs)
        after = dict(member.named_buffers(remove_duplicate=False))
        assigned = []
        for name, buffer in buffers.items():
            if after.get(name) is not buffer:
                _check_assigned(name, buffers, after.get(name))
                assigned.append(name)
            elif id(buffer) in set_again and sum(other is buffer for other in buffers.values()) == 1:
                assigned.append(name)  # as by `self.calls += 1`
        if new := sorted(registered_names(member) - before):
            raise LoweringError(
                f"the forward of {type(member).__name__} registers {new[0]!r}, which members do not have; call the "
                "networks once before they join"
            )
        return assigned

    def _check_classes(self, one: Graph, other: Graph) -> None:
        """Raise an error if the operations depend on the classes of activations, in which members differ."""
        if _differ(one, other):
            path = next(site.path for site in self.sites if len(set(site.classes)) > 1)
            raise ValueError(
                f"forward performs other operations for other classes of activations, as at {path!r}, in which members "
                "differ; make a population for each class, or let the network know the positions instead"
            )

    def _check_in_place(self, one: Graph, other: Graph, path: str) -> None:
        """Raise an error if it matters whether activations change their input, in which members differ."""
        if _differ(one, other):
            raise ValueError(
                f"the activation {path!r} changes its input in place in some members and not in others, and the "
                "network reads this input again; give all members the same inplace="
            )


@contextmanager
def _record_assignments() -> Iterator[set[int]]:
    """Yield a set that collects the ids of the tensors that are assigned to buffers."""
    found: set[int] = set()

    def record(module: nn.Module, name: str, buffer: Any) -> None:
        found.add(id(buffer))

    hook = register_module_buffer_registration_hook(record)
    try:
        yield found
    finally:
        hook.remove()


def _check_assigned(name: str, buffers: Mapping[str, Tensor], new: Tensor | None) -> None:
    """Raise an error if what a forward assigns to a buffer cannot be copied to it."""
    old = buffers[name]
    if new is None or new.shape != old.shape or new.dtype != old.dtype:
        given = "None" if new is None else f"{new.dtype} of shape {tuple(new.shape)}"
        raise LoweringError(
            f"forward assigns {given} to the buffer {name!r}, which is {old.dtype} of shape {tuple(old.shape)}; let it "
            "have this shape and type from the beginning"
        )
    if new.requires_grad:
        raise LoweringError(f"forward assigns a value with a gradient to the buffer {name!r}; use detach()")
    if sum(other is old for other in buffers.values()) > 1:
        raise LoweringError(f"forward assigns to the buffer {name!r}, which other modules use, too; change it in place")


def _differ(one: Graph, other: Graph) -> bool:
    """Return whether two graphs have other operations."""
    return first_difference(one, list(all_nodes(one.module)), other, list(all_nodes(other.module))) is not None
