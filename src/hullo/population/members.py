"""Networks into a population and out of it: compare architectures, stack tensors, rebuild the user's own modules."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hullo.population.sites import Site, read_site

_BOOKKEEPING = frozenset(vars(nn.Identity())) | {"training"}
_DEEPEST = 8


def make_members(factory: Callable[[], nn.Module], seeds: Sequence[int]) -> list[nn.Module]:
    """Call a factory once per seed, each time after `torch.manual_seed(seed)`; the global state stays as it was."""
    made = []
    with torch.random.fork_rng():
        for seed in seeds:
            torch.manual_seed(seed)
            made.append(factory())
    return made


def compare(members: Sequence[nn.Module]) -> list[Site]:
    """Check that networks have one architecture and return the sites at which they differ.

    Networks may differ in activations and in dropout rates; other differences raise a ValueError that names them.
    """
    sites: list[Site] = []
    _compare("", members, sites)
    _check_unshared(members)
    return sites


def _compare(path: str, modules: Sequence[nn.Module], sites: list[Site]) -> None:
    """Compare the members' modules at a path, and those inside them."""
    if site := read_site(path, modules):
        sites.append(site)
        return
    for k, other in enumerate(modules[1:], 1):
        if reason := _difference(modules[0], other):
            where = f"module {path!r}" if path else "the networks"
            raise ValueError(f"members 0 and {k} differ in {where}: {reason}; give networks of one architecture")
    for name, child in modules[0]._modules.items():
        if child is not None:
            children = [module._modules[name] for module in modules]
            _compare(f"{path}.{name}" if path else name, children, sites)  # type: ignore[arg-type]


def _difference(first: nn.Module, other: nn.Module) -> str:
    """Return in what two modules at the same place differ, besides the values of parameters and buffers."""
    if type(first) is not type(other):
        return f"{type(first).__name__} and {type(other).__name__}"
    for kind in ("_parameters", "_buffers"):
        tensors, others = getattr(first, kind), getattr(other, kind)
        if tensors.keys() != others.keys():
            return f"only one has {min(tensors.keys() ^ others.keys())!r}"
        for name, tensor in tensors.items():
            if _kind(tensor) != _kind(others[name]):
                return f"{name} is {_kind(tensor)} and {_kind(others[name])}"
    if first._modules.keys() != other._modules.keys():
        return f"only one has the module {min(first._modules.keys() ^ other._modules.keys())!r}"
    own, others = ({k: v for k, v in vars(item).items() if k not in _BOOKKEEPING} for item in (first, other))
    if own.keys() != others.keys():
        return f"only one has the attribute {min(own.keys() ^ others.keys())!r}"
    for name, value in own.items():
        if not _equal(value, others[name], _DEEPEST):
            return f"{name} is {_shown(value)} and {_shown(others[name])}"
    return ""


def _kind(tensor: Tensor | None) -> str:
    if tensor is None:
        return "None"
    frozen = "" if tensor.requires_grad or not isinstance(tensor, nn.Parameter) else ", frozen"
    return f"{tensor.dtype} of shape {tuple(tensor.shape)}{frozen}".removeprefix("torch.")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _equal(one: Any, other: Any, depth: int) -> bool:
    """Return whether two attributes say the same; objects are compared by what they hold."""
    if one is other or depth == 0:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, nn.Module):  # compared at its own place
        return True
    if isinstance(one, Tensor):
        return one.shape == other.shape and one.dtype == other.dtype and bool(one.equal(other))
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_equal(one[key], other[key], depth - 1) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(_equal(a, b, depth - 1) for a, b in zip(one, other, strict=True))
    if callable(one) and hasattr(one, "__qualname__"):
        return bool(one.__qualname__ == other.__qualname__)
    try:
        if one == other:
            return True
    except Exception:  # noqa: S110  (an object whose == fails is compared by its attributes)
        pass
    if hasattr(one, "__dict__") and "__eq__" not in vars(type(one)):
        return _equal(vars(one), vars(other), depth - 1)
    return False


def _check_unshared(members: Sequence[nn.Module]) -> None:
    """Refuse members that share tensors: each gets its own copy."""
    owners: dict[int, tuple[int, str]] = {}
    for k, member in enumerate(members):
        for name, tensor in (*member.named_parameters(), *member.named_buffers()):
            owner, known = owners.setdefault(id(tensor), (k, name))
            if owner != k:
                raise ValueError(
                    f"members {owner} and {k} share {known}; make a network per member, or copy.deepcopy one"
                )


def tensors_of(member: nn.Module, sites: Sequence[Site]) -> dict[str, Tensor]:
    """Return a network's parameters and buffers by name, once each, without those at sites."""
    inside = tuple(f"{site.path}." if site.path else "" for site in sites)
    named = (*member.named_parameters(), *member.named_buffers())
    return {name: tensor for name, tensor in named if not name.startswith(inside)}


def aliases_of(member: nn.Module) -> dict[str, str]:
    """Return for every name of a parameter or buffer the first name of the same tensor."""
    first: dict[int, str] = {}
    every = (*member.named_parameters(remove_duplicate=False), *member.named_buffers(remove_duplicate=False))
    return {name: first.setdefault(id(tensor), name) for name, tensor in every}


def empty_copy(member: nn.Module) -> nn.Module:
    """Return a copy of a network whose parameters and buffers are on the meta device, and take no memory."""
    memo: dict[int, Any] = {}
    for tensor in (*member.parameters(), *member.buffers()):
        memo[id(tensor)] = _like(tensor, torch.empty_like(tensor, device="meta"))
    return copy.deepcopy(member, memo)


def filled_copy(empty: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
    """Return a copy of an empty network with the given tensors, by name, in all places that hold them."""
    memo: dict[int, Any] = {}
    for name, tensor in (*empty.named_parameters(), *empty.named_buffers()):
        memo[id(tensor)] = _like(tensor, tensors[name].detach().clone())
    return copy.deepcopy(empty, memo)


def _like(tensor: Tensor, values: Tensor) -> Tensor:
    """Return values as a parameter if the tensor is one."""
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(values, requires_grad=tensor.requires_grad)
    return values
