"""Networks into a population and out of it: compare architectures, stack tensors, rebuild the user's own modules."""

from __future__ import annotations

import copy
import functools
import operator
import types
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.utils import parametrize

from hullo.population.sites import BOOKKEEPING, Site, read_site


def make_members(factory: Callable[[], nn.Module], seeds: Sequence[int]) -> list[nn.Module]:
    """Call a factory once per seed, each time after `torch.manual_seed(seed)`; the global random state is kept."""
    networks, started = [], torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    with fork_rng():
        for seed in seeds:
            torch.manual_seed(seed)
            networks.append(factory())
    if not started:  # the seed for a GPU that is used later
        torch.cuda.manual_seed_all(torch.initial_seed())
    return networks


def fork_rng() -> AbstractContextManager[Any]:
    """Keep the global random state of PyTorch; of GPUs where they are in use."""
    started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return torch.random.fork_rng(devices=range(torch.cuda.device_count()) if started else ())


def compare(members: Sequence[nn.Module]) -> tuple[list[Site], list[tuple[str, ...]]]:
    """Check that networks have one architecture; raise a ValueError that names a difference.

    Returns:
        The sites of activations, and for each network a key that is equal for those with equal attributes, empty for
        those of the first: what differs, and in which network first. Networks of different keys are traced one by one.
    """
    sites: list[Site] = []
    paths: list[str] = []
    roles = [_Roles(member) for member in members]
    for k, member in enumerate(members):
        _check_member(k, member)
    _compare_modules("", members, roles, sites, paths)
    _check_unshared(members)
    keys: list[tuple[str, ...]] = [()]
    first: dict[tuple[str, ...], int] = {(): 0}  # the first network of each key
    for k in range(1, len(members)):
        found = {key: _find_difference(members, roles, j, k, paths) for key, j in first.items()}
        equal = next((key for key, difference in found.items() if not difference), None)
        keys.append((found[()], f"member {k}") if equal is None else equal)
        first.setdefault(keys[-1], k)
    return sites, keys


def _compare_modules(
    path: str, modules: Sequence[nn.Module], roles: Sequence[_Roles], sites: list[Site], paths: list[str]
) -> None:
    """Compare the members' modules at a path, and those inside them; collect sites, and the paths of other modules."""
    reason, k = "", 0
    for k, other in enumerate(modules):
        reason = _structural_difference(modules[0], other)
        if not reason and _is_layer(other):
            reason = _attribute_difference(modules[0], other, _Equality(roles[0], roles[k]))
        if reason:
            break
    if site := read_site(path, modules, are_alike=not reason):
        sites.append(site)
        return
    if reason:
        where = f"module {path!r}" if path else "the networks"
        raise ValueError(f"members 0 and {k} differ in {where}: {reason}; give networks of one architecture")
    paths.append(path)
    for name, child in modules[0]._modules.items():
        if child is not None:
            children: Any = [module._modules[name] for module in modules]
            _compare_modules(f"{path}.{name}" if path else name, children, roles, sites, paths)


def _structural_difference(first: nn.Module, other: nn.Module) -> str:
    """Return how two modules at the same path differ in class, tensors, mode or modules inside."""
    if _class_of(first) is not _class_of(other):
        names = type(first).__name__, type(other).__name__
        same = " of different code; swap activations in all of them, or in none" if names[0] == names[1] else ""
        return f"{names[0]} and {names[1]}{same}"
    for kind in ("_parameters", "_buffers"):
        tensors, others = getattr(first, kind), getattr(other, kind)
        if tensors.keys() != others.keys():
            return f"only one has {min(tensors.keys() ^ others.keys())!r}"
        for name, tensor in tensors.items():
            if _kind(tensor) != _kind(others[name]):
                return f"{name} is {_kind(tensor)} and {_kind(others[name])}"
    if first.training != other.training:
        return "one is in training mode and one in evaluation mode; call train() or eval() on all members"
    if first._modules.keys() != other._modules.keys():
        return f"only one has the module {min(first._modules.keys() ^ other._modules.keys())!r}"
    return ""


def _is_layer(module: nn.Module) -> bool:
    """Return whether a module is one of PyTorch's, without a dropout rate."""
    return type(module).__module__.startswith("torch.nn.") and not isinstance(module, _DROPOUTS)


def _find_difference(
    members: Sequence[nn.Module], roles: Sequence[_Roles], j: int, k: int, paths: Sequence[str]
) -> str:
    """Return the first attribute in which members j and k differ, in modules at some paths."""
    equality = _Equality(roles[j], roles[k])
    for path in paths:
        if reason := _attribute_difference(members[j].get_submodule(path), members[k].get_submodule(path), equality):
            return f"module {path!r}: {reason}" if path else f"the networks: {reason}"
    return ""


def _attribute_difference(first: nn.Module, other: nn.Module, equality: _Equality) -> str:
    """Return the first attribute or forward hook in which two modules differ."""
    one, two = ({k: v for k, v in vars(item).items() if k not in BOOKKEEPING} for item in (first, other))
    if one.keys() != two.keys():
        return f"only one has the attribute {min(one.keys() ^ two.keys())!r}"
    for name, value in one.items():
        if not equality.holds(value, two[name]):
            return f"{name} is {_shorten(value)} and {_shorten(two[name])}"
    for name in ("_forward_hooks", "_forward_pre_hooks"):
        if not equality.holds(list(getattr(first, name).values()), list(getattr(other, name).values())):
            return f"they have different {name.strip('_').replace('_', ' ')}"
    return ""


def _class_of(module: nn.Module) -> type:
    """Return the class of a module; torch.nn.utils.parametrize creates a subclass per module, which is ignored."""
    kind = type(module)
    return kind.__bases__[0] if parametrize.is_parametrized(module) else kind


def _kind(tensor: Tensor | None) -> str:
    if tensor is None:
        return "None"
    frozen = "" if tensor.requires_grad or not isinstance(tensor, nn.Parameter) else ", frozen"
    return f"{tensor.dtype} of shape {tuple(tensor.shape)}{frozen}".removeprefix("torch.")


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


class _Roles(dict[int, str]):
    """Name the parameters, buffers and modules of a network, by identity."""

    def __init__(self, network: nn.Module) -> None:
        named = (*network.named_parameters(), *network.named_buffers(), *network.named_modules())
        super().__init__((id(item), name) for name, item in named)


class _Equality:
    """Compare attributes of two networks by content; registered tensors and modules are equal if their names are."""

    def __init__(self, first_roles: _Roles, second_roles: _Roles) -> None:
        self.first_roles, self.second_roles = first_roles, second_roles
        self.seen: dict[tuple[int, int], tuple[Any, Any]] = {}  # keeps the objects alive, and thus their ids unique

    def holds(self, one: Any, other: Any) -> bool:
        """Return whether two attributes are equal."""
        if one is other or (id(one), id(other)) in self.seen:  # there may be reference cycles
            return True
        if type(one) is not type(other):
            return False
        if id(one) in self.first_roles or id(other) in self.second_roles:
            return self.first_roles.get(id(one)) == self.second_roles.get(id(other))
        if isinstance(one, Tensor):
            return one.shape == other.shape and one.dtype == other.dtype and bool(one.equal(other))
        if isinstance(one, (int, float, complex, str, bytes)):
            return bool(one == other) or (one != one and other != other)  # nan
        self.seen[id(one), id(other)] = one, other
        if isinstance(one, Mapping):
            return one.keys() == other.keys() and all(self.holds(one[key], other[key]) for key in one)
        if isinstance(one, (list, tuple, deque)):
            return len(one) == len(other) and all(map(self.holds, one, other))
        if type(one) in _PARTS:
            return all(self.holds(part(one), part(other)) for part in _PARTS[type(one)])
        if hasattr(one, "dtype") and hasattr(one, "shape"):  # arrays
            return (one.shape, one.dtype) == (other.shape, other.dtype) and bool((one == other).all())
        if one == other:  # of classes with an equality of their own
            return True
        return hasattr(one, "__dict__") and self.holds(vars(one), vars(other))


def _closure(function: Any) -> list[Any]:
    """Return the closure variables of a function."""
    return [cell.cell_contents for cell in function.__closure__ or ()]


_DROPOUTS = (_DropoutNd, nn.MultiheadAttention, nn.RNNBase)

_PARTS: dict[type, tuple[Callable[[Any], Any], ...]] = {
    types.FunctionType: (*map(operator.attrgetter, ("__code__", "__defaults__", "__kwdefaults__")), _closure),
    types.MethodType: (operator.attrgetter("__func__"), operator.attrgetter("__self__")),
    functools.partial: tuple(map(operator.attrgetter, ("func", "args", "keywords"))),
    weakref.ReferenceType: (operator.methodcaller("__call__"),),
}
"""The parts to compare of objects whose == compares identities."""


def _check_member(k: int, member: nn.Module) -> None:
    """Raise an error for a network without Python code, or without values."""
    for path, module in member.named_modules():
        is_scripted = isinstance(module, torch.jit.ScriptModule) or type(module).__name__ == "OptimizedModule"
        what = f"module {path!r} of member {k}" if path else f"member {k}"
        if is_scripted or module._compiled_call_impl is not None:
            raise TypeError(f"{what} is compiled, a {type(module).__name__}; give the network before it is compiled")
        hooked = [name for name, item in module._parameters.items() if item is not None and item._backward_hooks]
        if module._backward_hooks or module._backward_pre_hooks or hooked:
            raise ValueError(f"{what} has a backward hook, which a population would not call; remove it")
    for name, tensor in (*member.named_parameters(), *member.named_buffers()):
        if torch.nn.parameter.is_lazy(tensor):
            raise ValueError(f"{name} of member {k} is not initialized yet; call the network once on example inputs")
        if tensor.is_meta:
            raise ValueError(f"{name} of member {k} is on the meta device, without values; make it on a CPU or GPU")
        if tensor.layout != torch.strided:
            raise ValueError(f"{name} of member {k} is sparse; register a dense tensor")


def _check_unshared(members: Sequence[nn.Module]) -> None:
    """Raise an error if members share tensors: each gets its own copy."""
    owners: dict[int, tuple[int, str]] = {}
    for k, member in enumerate(members):
        for name, tensor in (*member.named_parameters(), *member.named_buffers()):
            owner, shared_name = owners.setdefault(id(tensor), (k, name))
            if owner != k:
                raise ValueError(
                    f"members {owner} and {k} share {shared_name}; make a network per member, or copy.deepcopy one"
                )


def tensors_of(member: nn.Module, sites: Sequence[Site]) -> dict[str, Tensor]:
    """Return a network's parameters and buffers by name, once each, without those at sites."""
    inside = tuple(f"{site.path}." if site.path else "" for site in sites)
    named = (*member.named_parameters(), *member.named_buffers())
    return {name: tensor for name, tensor in named if not name.startswith(inside)}


def aliases_of(member: nn.Module) -> dict[str, str]:
    """Return, for every name of a parameter or buffer, the first name of the same tensor."""
    first: dict[int, str] = {}
    named = (*member.named_parameters(remove_duplicate=False), *member.named_buffers(remove_duplicate=False))
    return {name: first.setdefault(id(tensor), name) for name, tensor in named}


def empty_copy(member: nn.Module) -> nn.Module:
    """Return a copy of a network with its parameters and buffers on the meta device."""
    memo: dict[int, Any] = {}
    for tensor in (*member.parameters(), *member.buffers()):
        memo[id(tensor)] = _like(tensor, torch.empty_like(tensor, device="meta"))
    return copy.deepcopy(member, memo)


def filled_copy(empty: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
    """Return a copy of an empty network with the given tensors, by name, wherever they are used.

    They have the network's own order in memory, on which views of what it computes depend.
    """
    memo: dict[int, Any] = {}
    for name, tensor in (*empty.named_parameters(), *empty.named_buffers()):
        given = tensors[name].detach()
        values = torch.empty_like(tensor, dtype=given.dtype, device=given.device, requires_grad=False)
        memo[id(tensor)] = _like(tensor, values.copy_(given))
    return copy.deepcopy(empty, memo)


def _like(tensor: Tensor, values: Tensor) -> Tensor:
    """Return values as a parameter if the tensor is one."""
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(values, requires_grad=tensor.requires_grad)
    return values
