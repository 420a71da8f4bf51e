"""Sites: the modules in which members of a population may differ, activations."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from hullo.bases import Base, get_base
from hullo.modules import Hull
from hullo.parametrizations import BuiltInParametrization
from hullo.recognition.probe import read_module
from hullo.surgery.in_place import InPlace

BOOKKEEPING = frozenset(vars(nn.Identity()))
"""The attributes that every module has."""


@dataclass(frozen=True)
class Activation:
    """Describe one member's activation at a site as rows of coefficients over base functions.

    Args:
        bases: the base functions.
        parametrization: how raw parameters become coefficients, a name of :mod:`hullo.parametrizations`, or "fixed".
        raw: the raw parameters, or the coefficients if they are fixed: (groups, raw parameters per row).
        channel_dim: the dimension of the channels, where there are several groups.
        parameter: the name of the raw parameters in the module; None if there are none.
        owner: the id of the raw parameters, equal for sites that share them.
        frozen: the raw parameters of a hull that is not learned.
        scales: the inner scales, (groups, 1) or (groups, bases); None if there are none.
        function: a module that is not a combination of bases, and is called itself.
    """

    bases: tuple[Base, ...]
    parametrization: str
    raw: Tensor
    channel_dim: int = 1
    parameter: str | None = None
    owner: int = 0
    frozen: Tensor | None = None
    scales: Tensor | None = None
    function: nn.Module | None = None

    @property
    def groups(self) -> int:
        return len(self.raw)

    @property
    def learns(self) -> bool:
        """Return whether anything is learned."""
        return self.parametrization != "fixed" or (self.scales is not None and self.scales.requires_grad)

    @property
    def is_prelu(self) -> bool:
        """Return whether it is an `nn.PReLU` that is learned."""
        return self.parameter == "weight" and self.frozen is None

    @property
    def is_learned_hull(self) -> bool:
        """Return whether it is a hull with coefficients that are learned."""
        return self.parametrization != "fixed" and not self.is_prelu

    def equals(self, other: Activation) -> bool:
        """Return whether another activation has the same bases, settings and numbers."""
        if (self.bases, self.parametrization, self.channel_dim) != (
            other.bases,
            other.parametrization,
            other.channel_dim,
        ):
            return False
        pairs = ((self.raw, other.raw), (self.scales, other.scales))
        return all(a is b is None or (a is not None and b is not None and torch.equal(a, b)) for a, b in pairs)

    @classmethod
    def of(cls, module: nn.Module) -> Activation | None:
        """Return the activation of a module; None if it is not a combination of bases."""
        if isinstance(module, Hull):
            learns, channel_dim = module.raw.requires_grad, module.spec.channel_dim
            raw = (module.raw if learns else module.coefficients).detach().reshape(module.groups, -1)
            parametrization = module.constraint.parametrization.name if learns else "fixed"
            frozen = None if learns else module.raw.detach()
            scale, scales = module.inner_scale, None
            if scale is not None:
                scales = scale.detach().reshape(module.groups, -1).requires_grad_(scale.requires_grad)
            return cls(module.bases, parametrization, raw, channel_dim, module.raw_name, id(module.raw), frozen, scales)
        if type(module) is nn.Identity:
            return cls((get_base("identity"),), "fixed", torch.ones(1, 1))
        if type(module) is nn.LeakyReLU and abs(module.negative_slope) <= 1:  # needs no base of its own
            rows = [[module.negative_slope, 1 - module.negative_slope]]
            return cls((get_base("identity"), get_base("relu")), "fixed", torch.tensor(rows, dtype=torch.float64))
        if type(module) is nn.PReLU:  # a * identity + (1 - a) * relu
            bases, slopes = (get_base("identity"), get_base("relu")), module.weight.detach().reshape(-1, 1)
            if module.weight.requires_grad:
                return cls(bases, "free", slopes, 1, "weight", id(module.weight))
            table, owner = torch.cat([slopes, 1 - slopes], 1), id(module.weight)
            return cls(bases, "fixed", table, 1, "weight", owner, module.weight.detach())
        reading = read_module(module)
        if reading is None or reading.known is None:
            return None
        known = reading.known
        return cls(known.bases, "fixed", torch.tensor(known.rows, dtype=torch.float64))


@dataclass(frozen=True)
class Call:
    """Describe an activation as kernels compute it: for some members of a site, or a function that all members call.

    Args:
        bases: the base functions of any of the members.
        groups: groups of channels, a common multiple of the members' numbers.
        site: the number of the site; None for a function.
        channel_dim: the dimension of the channels, where there are several groups.
        members: the members; None for all.
        columns: the bases in the table of :class:`hullo.population.activations.Activations`; None for all.
        rows: rows of the table, one per member and group of channels.
        coefficients: those of a function that is not in the table.
        function: what the members compute, if that is one base alone, as it is.
        own: calls of members with like bases, if these differ; their members, columns and rows are those in this call.
    """

    bases: tuple[Base, ...]
    groups: int = 1
    site: int | None = None
    channel_dim: int = 1
    members: Tensor | None = None
    columns: Tensor | None = None
    rows: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    coefficients: tuple[float, ...] = ()
    function: Callable[[Tensor], Tensor] | None = None
    own: tuple[Call, ...] = ()

    def select(self, rows: Tensor) -> Tensor:
        """Return the columns of the bases from rows of the table."""
        return rows if self.columns is None else rows[:, self.columns]

    def to(self, device: torch.device) -> Call:
        members, columns = (None if item is None else item.to(device) for item in (self.members, self.columns))
        own = tuple(item.to(device) for item in self.own)
        return replace(self, members=members, columns=columns, rows=self.rows.to(device), own=own)


@dataclass(frozen=True)
class Site:
    """Describe a site: each member's activation there.

    Args:
        path: the name of the module.
        activations: one per member.
        inplace: whether the module changes its input, of any member.
        is_shared: whether all members share one hull.
    """

    path: str
    activations: Sequence[Activation]
    inplace: bool = False
    is_shared: bool = False

    def keep(self, members: Sequence[int]) -> Site:
        """Return the site of some members."""
        return replace(self, activations=[self.activations[k] for k in members])

    @property
    def is_scaled(self) -> bool:
        """Return whether a hull has inner scales."""
        return any(activation.scales is not None for activation in self.activations)

    @property
    def functions(self) -> list[nn.Module | None]:
        """Return the modules that members call, None for combinations of bases; empty if there are only these."""
        functions = [activation.function for activation in self.activations]
        return functions if any(functions) else []

    def call(self, k: int, x: Tensor) -> Tensor:
        """Return what member k's own module computes, which must have the shape of its input."""
        function = self.functions[k]
        assert function is not None  # noqa: S101
        y: Tensor = function(x)
        if y.shape != x.shape:
            raise ValueError(
                f"{self.path!r} of member {k}, {type(function).__name__}, returns shape {tuple(y.shape)} for "
                f"{tuple(x.shape)}; members may differ in modules that keep the shape"
            )
        return y


def _call_of(module: nn.Module) -> Activation | None:
    """Return the activation of a module that is called itself.

    That is one of PyTorch's activations, unless it is random or changes the shape, or a module of one's own without
    parameters and buffers.
    """
    is_random = isinstance(module, nn.RReLU) and module.lower != module.upper
    is_native = type(module).__module__.startswith("torch.nn.")
    has_tensors = any(True for _ in (*module.parameters(), *module.buffers()))
    if has_tensors or is_random or isinstance(module, nn.GLU) or (is_native and not _is_activation(module)):
        return None
    function = copy.deepcopy(module)
    if hasattr(function, "inplace"):
        function.inplace = False  # type: ignore[assignment]
    return Activation((get_base("identity"),), "fixed", torch.ones(1, 1), function=function)


def _is_activation(module: nn.Module) -> bool:
    """Return whether a module is a hull or one of PyTorch's activation modules."""
    return isinstance(module, Hull) or type(module).__module__ == "torch.nn.modules.activation"


def read_site(path: str, modules: Sequence[nn.Module]) -> Site | None:
    """Return the site of the members' modules at a path, if they are activations; else None."""
    hooked = any(module._forward_hooks or module._forward_pre_hooks for module in modules)
    if not any(_is_activation(module) for module in modules):
        return None
    for module in modules:
        if isinstance(module, Hull) and (hooked or type(module).forward not in (Hull.forward, InPlace.forward)):
            raise ValueError(f"the hull {path!r} has hooks or an overridden forward, which a population does not call")
        _check_parametrization(path, module)
    found = [Activation.of(module) or _call_of(module) for module in modules]
    activations = [item for item in found if item is not None]
    are_alike = len(set(map(type, modules))) == 1
    if hooked or (are_alike and all(item.function is not None for item in activations)):
        return None
    if len(activations) < len(modules):
        k = found.index(None)
        raise ValueError(
            f"module {path!r} is {type(modules[k]).__name__} in member {k}, and an activation in others; give networks "
            "of one architecture, whose activations are hulls, those of PyTorch, or modules without parameters and "
            "buffers"
        )
    inplace = any(isinstance(module, InPlace) or bool(getattr(module, "inplace", False)) for module in modules)
    return Site(path, activations, inplace=inplace)


def read_own_site(path: str, modules: Sequence[nn.Module]) -> Site | None:
    """Return the site of unlike modules of the user's own, if none of them has parameters or buffers; else None."""
    found = [_call_of(module) for module in modules]
    activations = [item for item in found if item is not None]
    if len(activations) < len(modules) or any(module._forward_hooks or module._forward_pre_hooks for module in modules):
        return None
    return Site(path, activations)


def _check_parametrization(path: str, module: nn.Module) -> None:
    """Raise an error if a hull that is learned has a parametrization that populations do not compute."""
    if isinstance(module, Hull) and module.raw.requires_grad:
        chosen = module.constraint.parametrization
        if not isinstance(chosen, BuiltInParametrization):
            valid = ", ".join(map(repr, module.set_class.choices))
            raise ValueError(
                f"the hull {path!r} has parametrization={chosen.name!r}; a population trains hulls with {valid}, and "
                "others if they are frozen with requires_grad_(False)"
            )


def fingerprint(sites: Sequence[Site], k: int) -> int:
    """Return a hash of member k's activations, without the numbers that a state contains.

    It is below 2^24: averages of states round buffers to float32.
    """
    parts: list[Any] = []
    for site in sites:
        item = site.activations[k]
        scales = item.scales
        parts += [
            (site.path, [base.name for base in item.bases], item.parametrization, repr(item.function)),
            (item.groups, item.channel_dim, site.is_shared),
            item.raw.tolist() if item.parametrization == "fixed" and item.frozen is None else None,
            None if scales is None else tuple(scales.shape) if scales.requires_grad else scales.tolist(),
        ]
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:3])


def share_sites(sites: Sequence[Site], names: Sequence[str]) -> list[Site]:
    """Return the sites, with one hull for all members at those with the given names."""
    hulls = {site.path: site.activations for site in sites if any(item.learns for item in site.activations)}
    for name in names:
        if name not in hulls:
            is_frozen = any(site.path == name and site.activations[0].frozen is not None for site in sites)
            what = "it is frozen, so there is nothing to share" if is_frozen else "there is no such hull"
            raise ValueError(f"shared_hulls={name!r}: {what}; there are {sorted(hulls) or 'none'} that learn")
        if not all(item.equals(hulls[name][0]) for item in hulls[name]):
            raise ValueError(f"members cannot share the hull {name!r}: it has other bases or coefficients in some")
    return [replace(site, is_shared=site.path in names) for site in sites]
