"""Networks into a population and out of it: compare architectures, stack tensors, rebuild the user's own modules."""

from __future__ import annotations

import dataclasses
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

from hullo.population.sites import BOOKKEEPING, Site, read_own_site, read_site
from hullo.population.trace.functions import copy_network


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
    """Check that networks have one architecture.

    Networks may differ in activations and in dropout rates; other differences raise a ValueError that names them.

    Returns:
        The sites at which the networks differ, and for each network the attributes that differ from those of the first
        and may be dropout rates.
    """
    sites: list[Site] = []
    rates: list[list[str]] = [[] for _ in members]
    for k, member in enumerate(members):
        _check_member(k, member)
        _check_hooks(member)
    _compare("", members, [_Roles(member) for member in members], sites, rates)
    _check_unshared(members)
    _check_tied(members, sites)
    return sites, [tuple(own) for own in rates]


def _compare(
    path: str, modules: Sequence[nn.Module], roles: Sequence[_Roles], sites: list[Site], rates: Sequence[list[str]]
) -> None:
    """Compare the members' modules at a path, and those inside them."""
    if site := read_site(path, modules):
        sites.append(site)
        return
    where = f"module {path!r}" if path else "the networks"
    for k, other in enumerate(modules[1:], 1):
        comparison = _Comparison(roles[0], roles[k])
        if reason := _difference(modules[0], other, comparison):
            if path and (own := read_own_site(path, modules)):
                sites.append(own)
                return
            raise ValueError(f"members 0 and {k} differ in {where}: {reason}; give networks of one architecture")
        rates[k] += [f"{where}: {rate}" for rate in comparison.rates]
    for name, child in modules[0]._modules.items():
        if child is not None:
            children = [module._modules[name] for module in modules]
            _compare(f"{path}.{name}" if path else name, children, roles, sites, rates)  # type: ignore[arg-type]


def _difference(first: nn.Module, other: nn.Module, comparison: _Comparison) -> str:
    """Return the difference of two modules at the same path, except the values of parameters and buffers."""
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
    attributes, others = ({k: v for k, v in vars(item).items() if k not in BOOKKEEPING} for item in (first, other))
    if attributes.keys() != others.keys():
        return f"only one has the attribute {min(attributes.keys() ^ others.keys())!r}"
    has_rates = not type(first).__module__.startswith("torch.nn.") or isinstance(first, _DROPOUTS)
    for name, value in attributes.items():
        comparison.name = name if has_rates else ""
        if not comparison.equal(value, others[name]):
            if isinstance(value, (Tensor, list, tuple, dict)) and type(value) is type(others[name]):
                return f"{name} holds other values; register tensors as buffers, modules in an nn.ModuleList"
            if isinstance(value, (types.FunctionType, types.MethodType, types.BuiltinFunctionType, functools.partial)):
                return (
                    f"{name} is {_shorten(value)} in one, a function with other code or other values in the other (to "
                    "compare activations, use modules such as nn.ReLU)"
                )
            return f"{name} is {_shorten(value)} and {_shorten(others[name])}"
    for name in ("_forward_hooks", "_forward_pre_hooks"):
        if not comparison.equal(list(getattr(first, name).values()), list(getattr(other, name).values())):
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


class _Comparison:
    """Compare attributes of two networks by content; registered tensors and modules are equal if their names are.

    Numbers from 0 to 1 may be dropout rates, which may differ: `rates` lists those of attributes. They are not
    accepted in functions, nor if the `name` of the attribute is empty.
    """

    def __init__(self, first_roles: _Roles, second_roles: _Roles) -> None:
        self.first_roles, self.second_roles = first_roles, second_roles
        self.name, self.rates = "", list[str]()
        self.seen: dict[tuple[int, int], tuple[Any, Any]] = {}  # keeps the objects alive, and thus their ids unique

    def equal(self, one: Any, other: Any) -> bool:
        """Return whether two attributes are equal."""
        if one is other or (id(one), id(other)) in self.seen:  # there may be reference cycles
            return True
        if self.name and _may_be_rates(one, other):
            self.rates.append(f"{self.name} is {one} and {other}")
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
            return one.keys() == other.keys() and all(self.equal(one[key], other[key]) for key in one)
        if isinstance(one, (list, tuple, deque)):
            return len(one) == len(other) and all(map(self.equal, one, other))
        parts = _PARTS.get(type(one))
        if parts is not None:
            name, self.name = self.name, ""
            is_equal = all(self.equal(*(part(item) for item in (one, other))) for part in parts)
            self.name = name
            return is_equal
        try:
            if _are_equal(one, other):
                return True
        except Exception:  # noqa: S110  (an object whose == fails is compared by its attributes)
            pass
        before = len(self.rates)
        is_equal = hasattr(one, "__dict__") and self.equal(vars(one), vars(other))
        by_attributes = "__eq__" not in vars(type(one)) or dataclasses.is_dataclass(one)
        return is_equal and (by_attributes or len(self.rates) > before)


def _are_equal(one: Any, other: Any) -> bool:
    """Return whether two objects are equal; arrays of NumPy are if all their entries are."""
    if not (hasattr(one, "dtype") and hasattr(one, "shape")):
        return bool(one == other)
    return (one.shape, one.dtype) == (other.shape, other.dtype) and bool((one == other).all())


def _may_be_rates(one: Any, other: Any) -> bool:
    """Return whether two values are different numbers that may be dropout rates."""
    return {type(one), type(other)} <= {int, float} and one != other and 0 <= one <= 1 and 0 <= other <= 1


def _closure(function: Any) -> list[Any]:
    """Return the closure variables of a function."""
    return [cell.cell_contents for cell in function.__closure__ or ()]


_DROPOUTS = (_DropoutNd, nn.MultiheadAttention, nn.RNNBase)

_PARTS: dict[type, tuple[Callable[[Any], Any], ...]] = {
    types.FunctionType: (
        *map(operator.attrgetter, ("__code__", "__defaults__", "__kwdefaults__", "__dict__")),
        _closure,
        lambda function: id(function.__globals__),
    ),
    types.MethodType: (operator.attrgetter("__func__"), operator.attrgetter("__self__")),
    functools.partial: tuple(map(operator.attrgetter, ("func", "args", "keywords", "__dict__"))),
    weakref.ReferenceType: (operator.methodcaller("__call__"),),
}
"""The parts to compare of objects whose == compares identities."""


def _check_member(k: int, member: nn.Module) -> None:
    """Raise an error for a network without Python code, or without values."""
    for path, module in member.named_modules():
        is_scripted = isinstance(module, torch.jit.ScriptModule) or type(module).__name__ == "OptimizedModule"
        if is_scripted or module._compiled_call_impl is not None:
            what = f"module {path!r} of member {k}" if path else f"member {k}"
            raise TypeError(f"{what} is compiled, a {type(module).__name__}; give the network before it is compiled")
    for name, tensor in (*member.named_parameters(), *member.named_buffers()):
        if torch.nn.parameter.is_lazy(tensor):
            raise ValueError(f"{name} of member {k} is not initialized yet; call the network once on example inputs")
        if tensor.is_meta:
            raise ValueError(f"{name} of member {k} is on the meta device, without values; make it on a CPU or GPU")
        if tensor.layout != torch.strided:
            raise ValueError(f"{name} of member {k} is sparse; register a dense tensor")


def _check_hooks(member: nn.Module) -> None:
    """Raise an error for hooks that a population cannot call."""
    for path, module in member.named_modules():
        where = f"module {path!r}" if path else "the network"
        hooked = [name for name, item in module._parameters.items() if item is not None and item._backward_hooks]
        if module._backward_hooks or module._backward_pre_hooks or hooked:
            what = f"the parameter {hooked[0]!r}" if hooked else "the module"
            raise ValueError(f"{where} has a backward hook on {what}, which a population would not call; remove it")
        for hook in module._forward_pre_hooks.values():
            if type(hook).__module__.startswith("torch.nn.utils."):  # it writes an attribute before each call
                raise ValueError(
                    f"{where} has a hook, {type(hook).__name__} of torch.nn.utils, whose results a population cannot "
                    "copy; use torch.nn.utils.parametrizations instead, or make pruning permanent"
                )


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


def _check_tied(members: Sequence[nn.Module], sites: Sequence[Site]) -> None:
    """Raise an error if parameters of activations are used by other modules, or with other bases."""
    for k, member in enumerate(members):
        uses: dict[int, tuple[str, Any]] = {}
        paths = {site.path: site.activations[k] for site in sites}
        for name, parameter in member.named_parameters(remove_duplicate=False):
            path, _, leaf = name.rpartition(".")
            activation = paths.get(path)
            use = None
            if activation is not None:  # it shares all of its parameters, or none
                others = [id(other) for other in member.get_submodule(path).parameters()]
                use = (leaf, activation.bases, activation.parametrization, others)
            first, kind = uses.setdefault(id(parameter), (name, use))
            if kind != use:
                raise ValueError(
                    f"{first} and {name} of member {k} are one parameter, with different uses; only activations of the "
                    "same bases and parameters may share it"
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


def registered_names(member: nn.Module) -> set[str]:
    """Return the names of a network's parameters, buffers and modules."""
    named = (*member.named_parameters(), *member.named_buffers(), *member.named_modules())
    return {name for name, _ in named}


def check_memory(member: nn.Module) -> None:
    """Raise a ValueError if a parameter shares its memory with another tensor, which it would not do in a copy."""
    named = (*member.named_parameters(), *member.named_buffers())
    tensors = {name: tensor for name, tensor in named if _has_memory(tensor)}
    first: dict[int, str] = {}
    for name, tensor in tensors.items():
        other = first.setdefault(tensor.data_ptr(), name)
        if other != name and (tensor.requires_grad or tensors[other].requires_grad):
            raise ValueError(
                f"{other} and {name} share their memory, but are not one tensor; tie them by assigning the parameter "
                "itself instead of its .data"
            )
    own = set(map(id, tensors.values()))
    storages = {tensor.untyped_storage().data_ptr(): name for name, tensor in tensors.items() if tensor.requires_grad}
    for path, module in member.named_modules():
        for name, item in vars(module).items():
            is_other = isinstance(item, Tensor) and id(item) not in own and _has_memory(item)
            if is_other and (viewed := storages.get(item.untyped_storage().data_ptr())):
                where = f"{path}.{name}".lstrip(".")
                raise ValueError(f"{where} is a view of {viewed}, which a copy would not be; make it in forward")


def _has_memory(tensor: Tensor) -> bool:
    if tensor.is_meta or tensor.layout != torch.strided or nn.parameter.is_lazy(tensor) or not tensor.numel():
        return False
    return tensor.data_ptr() != 0


def empty_copy(member: nn.Module) -> nn.Module:
    """Return a copy of a network with its parameters and buffers on the meta device."""
    memo: dict[int, Any] = {}
    for tensor in (*member.parameters(), *member.buffers()):
        memo[id(tensor)] = _like(tensor, torch.empty_like(tensor, device="meta"))
    return copy_network(member, memo)


def filled_copy(empty: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
    """Return a copy of an empty network with the given tensors, by name, wherever they are used.

    They have the network's own order in memory, on which views of what it computes depend.
    """
    memo: dict[int, Any] = {}
    for name, tensor in (*empty.named_parameters(), *empty.named_buffers()):
        given = tensors[name].detach()
        values = torch.empty_like(tensor, dtype=given.dtype, device=given.device, requires_grad=False)
        memo[id(tensor)] = _like(tensor, values.copy_(given))
    return copy_network(empty, memo)


def _like(tensor: Tensor, values: Tensor) -> Tensor:
    """Return values as a parameter if the tensor is one."""
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(values, requires_grad=tensor.requires_grad)
    return values
