"""Networks into a population and out of it: compare architectures, stack tensors, rebuild the user's own modules."""

from __future__ import annotations

import copy
import io
import pickle
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from hullo.population.sites import BOOKKEEPING, ActivationSite, read_site

Kind = tuple[str, int]
"""Key of networks with equal attributes: how they differ from the first network, and which came first."""


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


def compare(members: Sequence[nn.Module]) -> tuple[list[ActivationSite], list[Kind]]:
    """Check that networks have one architecture; raise a ValueError that names a difference.

    Returns:
        The sites of activations, and the kind of each network: networks of one kind have equal attributes, and one
        graph.
    """
    _check_owners(members)
    sites: list[ActivationSite] = []
    contents: list[dict[tuple[str, str], bytes]] = [{} for _ in members]
    _compare_modules("", members, [_names(member) for member in members], sites, contents)
    first: dict[int, Kind] = {0: ("", 0)}  # the kinds by their first network
    kinds = []
    for k, own in enumerate(contents):
        like = next((j for j in first if contents[j] == own), None)
        if like is None:
            like, (path, name) = k, next(key for key in contents[0] | own if contents[0].get(key) != own.get(key))
            one, other = (repr(getattr(members[j].get_submodule(path), name, "missing")) for j in (0, k))
            first[k] = f"{_name(path)}: {name} is {one:.60} and {other:.60}", k
        kinds.append(first[like])
    return sites, kinds


def _names(member: nn.Module) -> dict[int, str]:
    """Return the names of what is registered in a network, by id."""
    named = (*member.named_parameters(), *member.named_buffers(), *member.named_modules())
    return {id(item): name for name, item in named}


def _name(path: str) -> str:
    return f"module {path!r}" if path else "the networks"


def _compare_modules(
    path: str,
    modules: Sequence[nn.Module],
    names: Sequence[Mapping[int, str]],
    sites: list[ActivationSite],
    contents: Sequence[dict[tuple[str, str], bytes]],
) -> None:
    """Compare the members' modules at a path, and those inside them; collect sites, and what other modules contain."""
    reasons = {k: text for k, other in enumerate(modules) if (text := _structural_difference(modules[0], other))}
    found = [_attributes(module, own) for module, own in zip(modules, names, strict=True)]
    is_own = not type(modules[0]).__module__.startswith("torch.nn.")
    if site := read_site(path, modules, are_alike=not reasons and (is_own or all(item == found[0] for item in found))):
        sites.append(site)
        for own, module in zip(contents, modules, strict=True):
            own[path, "inplace"] = _content(getattr(module, "inplace", False), {})
        return
    for k, reason in reasons.items():
        raise ValueError(f"members 0 and {k} differ in {_name(path)}: {reason}; give networks of one architecture")
    for own, attributes in zip(contents, found, strict=True):
        own.update({(path, name): content for name, content in attributes.items()})
    for name, child in modules[0]._modules.items():
        if child is not None:
            children: Any = [module._modules[name] for module in modules]
            _compare_modules(f"{path}.{name}" if path else name, children, names, sites, contents)


def _structural_difference(first: nn.Module, other: nn.Module) -> str:
    """Return how two modules at the same path differ in class, tensors, mode or modules inside."""
    if _class_of(first) is not _class_of(other):
        one, two = type(first).__name__, type(other).__name__
        if one == two:
            return f"{one} and {two} of different code; swap activations in all of them, or in none"
        return f"{one} and {two} (hulls, activations of PyTorch, and modules without parameters and buffers may differ)"
    if first.training != other.training:
        return "one is in training mode and one in evaluation mode; call train() or eval() on all members"
    given = [{**module._modules, **module._parameters, **module._buffers} for module in (first, other)]
    for name in given[0] | given[1]:
        ours, theirs = (_describe(items[name]) if name in items else "missing" for items in given)
        if ours != theirs:
            return f"{name} is {ours} and {theirs}"
    return ""


def _class_of(module: nn.Module) -> type:
    """Return the class of a module; torch.nn.utils.parametrize creates a subclass per module, which is ignored."""
    kind = type(module)
    return kind.__bases__[0] if parametrize.is_parametrized(module) else kind


def _describe(item: nn.Module | Tensor | None) -> str:
    if not isinstance(item, Tensor):
        return "None" if item is None else "a module"
    frozen = "" if item.requires_grad or not isinstance(item, nn.Parameter) else ", frozen"
    return f"{item.dtype} of shape {tuple(item.shape)}{frozen}".removeprefix("torch.")


def _attributes(module: nn.Module, names: Mapping[int, str]) -> dict[str, bytes]:
    """Return the attributes and forward hooks of a module by name, each as bytes that are equal for equal contents."""
    found = {name: value for name, value in vars(module).items() if name not in BOOKKEEPING}
    hooks = {name: list(getattr(module, name).values()) for name in ("_forward_hooks", "_forward_pre_hooks")}
    return {name: _content(value, names) for name, value in (found | hooks).items()}


def _content(value: Any, names: Mapping[int, str]) -> bytes:
    file = io.BytesIO()
    try:
        _ContentPickler(file, names).dump(value)
    except Exception:  # whatever an object of any class raises: `check` finds out whether it matters
        return b""
    return file.getvalue()


class _ContentPickler(pickle.Pickler):
    """Write what an object contains: registered tensors and modules as their names, functions as their code."""

    def __init__(self, file: io.BytesIO, names: Mapping[int, str]) -> None:
        super().__init__(file)
        self.fast = True  # writes what occurs twice like two equal objects
        self.names = names

    def persistent_id(self, item: Any) -> Any:
        if id(item) in self.names:
            return self.names[id(item)]
        if isinstance(item, Tensor):
            return item.dtype, item.tolist()
        if isinstance(item, types.FunctionType):
            return (
                item.__code__,
                item.__defaults__,
                item.__kwdefaults__,
                [c.cell_contents for c in item.__closure__ or ()],
            )
        if isinstance(item, types.CodeType):
            return item.co_code, item.co_names, item.co_consts
        return (item.__qualname__, id(item)) if isinstance(item, type) else None


def _check_owners(members: Sequence[nn.Module]) -> None:
    """Raise an error for members that share tensors: each gets its own copy."""
    owners: dict[int, tuple[int, str]] = {}
    for k, member in enumerate(members):
        for name, tensor in (*member.named_parameters(), *member.named_buffers()):
            owner = owners.setdefault(id(tensor), (k, name))
            if owner[0] != k:
                raise ValueError(
                    f"members {owner[0]} and {k} share {owner[1]}; make a network per member, or copy.deepcopy one"
                )


def tensors_of(member: nn.Module, sites: Sequence[ActivationSite]) -> dict[str, Tensor]:
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
