"""Sites: the modules in which members of a population may differ, activations."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from hullo.bases import Base, get_base
from hullo.modules import Hull
from hullo.parametrizations import BuiltInParametrization
from hullo.population.kernels.kinds import Kinds
from hullo.population.values import Value
from hullo.recognition.probe import read_module
from hullo.surgery.summary import KEPT

BOOKKEEPING = frozenset({*vars(nn.Identity()), KEPT})
"""The attributes that every module has, and what a swap has noted, which is not computed with."""


@dataclass(frozen=True)
class Activation:
    """Describe one member's activation at a site as rows of numbers over base functions.

    Args:
        bases: the base functions.
        parametrization: how numbers become coefficients, as in :data:`hullo.population.activations.CODES`.
        raw: the numbers, (groups, numbers per row).
        is_learned: whether the numbers are learned.
        channel_dim: the dimension of the channels, where there are several groups.
        parameter: the name of the numbers in the module; None if they are no parameters.
        owner: the parameter itself, which sites may share.
        scales: the inner scales, (groups, 1) or (groups, bases); None if there are none.
        function: a module that is not a combination of bases, and is called itself.
        constants: the buffers of a module that is a fixed combination, or its parameter.
    """

    bases: tuple[Base, ...]
    parametrization: str
    raw: Tensor
    is_learned: bool = False
    channel_dim: int = 1
    parameter: str | None = None
    owner: Tensor | None = None
    scales: Tensor | None = None
    function: nn.Module | None = None
    constants: tuple[tuple[str, Tensor], ...] = ()

    @property
    def groups(self) -> int:
        return len(self.raw)

    def describe(self) -> tuple[Any, ...]:
        """Return what it is, apart from numbers that a state has: a state of another one cannot be loaded."""
        own = type(self.function).__qualname__ if self.function is not None else ""
        names = [base.name for base in self.bases]
        numbers = self.raw.tolist() if self.parametrization == "fixed" else None
        return names, self.parametrization, self.is_learned, self.groups, self.channel_dim, own, numbers

    @property
    def is_base(self) -> bool:
        """Return whether it is one base function, as it is."""
        is_one = len(self.bases) == 1 and bool((self.raw == 1).all())
        return self.parametrization == "fixed" and is_one and self.function is None

    @classmethod
    def of(cls, module: nn.Module) -> Activation | None:
        """Return the activation of a module; None if it is not a combination of bases."""
        if isinstance(module, Hull):
            chosen, scales = module.parametrization, None
            if module.inner_scale is not None:
                scales = module.inner_scale.detach().reshape(module.groups, -1)
                scales.requires_grad_(module.inner_scale.requires_grad)
            given: dict[str, Any] = {"channel_dim": module.spec.channel_dim, "scales": scales}
            raw = module.raw.detach()
            if not isinstance(chosen, BuiltInParametrization):  # which is frozen
                rows = module.coefficients.detach().reshape(module.groups, -1)
                return cls(module.bases, "fixed", rows, constants=((module.raw_name, raw),), **given)
            given |= {"parameter": module.raw_name, "owner": module.raw, "is_learned": module.raw.requires_grad}
            return cls(module.bases, chosen.name, raw.reshape(module.groups, -1), **given)
        if type(module) is nn.Identity:
            return cls((get_base("identity"),), "fixed", torch.ones(1, 1))
        if type(module) is nn.LeakyReLU and abs(module.negative_slope) <= 1:  # needs no base of its own
            leaky = [[module.negative_slope, 1 - module.negative_slope]]
            return cls((get_base("identity"), get_base("relu")), "fixed", torch.tensor(leaky, dtype=torch.float64))
        if type(module) is nn.PReLU:  # a * identity + (1 - a) * relu
            bases, slopes = (get_base("identity"), get_base("relu")), module.weight.detach().reshape(-1, 1)
            return cls(bases, "slope", slopes, module.weight.requires_grad, 1, "weight", module.weight)
        reading = read_module(module)
        if reading is None or reading.known is None:
            return None
        known = reading.known
        constants = tuple((name, tensor.detach().clone()) for name, tensor in module.named_buffers())
        return cls(known.bases, "fixed", torch.tensor(known.rows, dtype=torch.float64), constants=constants)


@dataclass(frozen=True)
class ActivationCall:
    """Describe an activation as kernels compute it: for some members of a site, or a function that all members call.

    Args:
        bases: the base functions of any of the members.
        groups: groups of channels, a common multiple of the members' numbers.
        site: the number of the site.
        channel_dim: the dimension of the channels, where there are several groups.
        members: the members.
        columns: the bases in the table of :class:`hullo.population.activations.Activations`; None for all.
        rows: rows of the table, one per member and group of channels.
        coefficients: those of a function that is no site.
        function: what computes the members' values instead: one base as it is, or the module of one member.
        is_scaled: whether a member has inner scales.
        kinds: which bases each member uses, where it differs and they cost time.
    """

    bases: tuple[Base, ...]
    groups: int = 1
    site: int = 0
    channel_dim: int = 1
    members: Sequence[int] = ()
    columns: Tensor | None = None
    rows: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    coefficients: Tensor | None = None
    function: Callable[[Value], Value] | None = None
    is_scaled: bool = False
    kinds: Kinds | None = None

    def select(self, rows: Tensor) -> Tensor:
        """Return the columns of the bases from rows of the table."""
        return rows if self.columns is None else rows[:, self.columns]


@dataclass(frozen=True)
class ActivationSite:
    """Describe a site: each member's activation there.

    Args:
        path: the name of the module.
        activations: one per member.
    """

    path: str
    activations: Sequence[Activation]

    @property
    def is_scaled(self) -> bool:
        """Return whether a hull has inner scales."""
        return any(activation.scales is not None for activation in self.activations)

    @property
    def functions(self) -> list[nn.Module]:
        """Return the modules that members call, which are no combinations of bases."""
        return [item.function for item in self.activations if item.function is not None]

    def call(self, k: int, x: Value) -> Value:
        """Return what member k's own module computes, which must have the shape of its input."""
        function, given = self.activations[k].function, x.select(0).clone()  # it may change its input
        assert function is not None  # noqa: S101
        y: Tensor = function(given)
        if y.shape != given.shape:
            raise ValueError(
                f"{self.path!r} of member {k}, {type(function).__name__}, returns shape {tuple(y.shape)} for "
                f"{tuple(given.shape)}; members may differ in modules that keep the shape"
            )
        return Value(y.unsqueeze(0), 0)


def _call_of(module: nn.Module) -> Activation | None:
    """Return the activation of a module that is called itself.

    That is one of PyTorch's activations, unless it is random or changes the shape, or a module of one's own without
    parameters and buffers.
    """
    is_native = type(module).__module__.startswith("torch.nn.")
    has_tensors = any(True for _ in (*module.parameters(), *module.buffers()))
    if has_tensors or isinstance(module, (nn.GLU, nn.RReLU)) or (is_native and not _is_activation(module)):
        return None
    return Activation((get_base("identity"),), "fixed", torch.ones(1, 1), function=copy.deepcopy(module))


def _is_activation(module: nn.Module) -> bool:
    """Return whether a module is a hull or one of PyTorch's activation modules, among which attention is defined."""
    is_native = type(module).__module__ == "torch.nn.modules.activation" and type(module) is not nn.MultiheadAttention
    return isinstance(module, Hull) or is_native


def read_site(path: str, modules: Sequence[nn.Module], are_alike: bool) -> ActivationSite | None:
    """Return the site of the members' modules at a path: of activations, or of unlike modules that are called alone."""
    hooked = any(module._forward_hooks or module._forward_pre_hooks for module in modules)
    are_known = any(_is_activation(module) for module in modules)
    for module in modules:
        if isinstance(module, Hull):
            _check_hull(path, module, hooked)
    if hooked or (are_alike and not are_known):
        return None
    found = [(Activation.of(module) if are_known else None) or _call_of(module) for module in modules]
    activations = [item for item in found if item is not None]
    if len(activations) < len(found) or (are_alike and all(item.function is not None for item in activations)):
        return None
    return ActivationSite(path, activations)


def _check_hull(path: str, hull: Hull, hooked: bool) -> None:
    """Raise an error for a hull with code of the user's own that populations do not compute."""
    if hooked or type(hull).forward is not Hull.forward:
        raise ValueError(f"the hull {path!r} has hooks or an overridden forward, which a population does not call")
    chosen = hull.parametrization
    if hull.raw.requires_grad and not isinstance(chosen, BuiltInParametrization):
        valid = ", ".join(map(repr, hull.coefficient_set.choices))
        raise ValueError(
            f"the hull {path!r} has parametrization={chosen.name!r}; a population trains hulls with {valid}, and "
            "others if they are frozen with requires_grad_(False)"
        )
