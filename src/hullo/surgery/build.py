"""Build the hulls that replace activations."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hullo.bases import Base, resolve
from hullo.modules import AffineHull, Hull, Init, LinearHull
from hullo.parametrizations import Parametrization
from hullo.recognition.known import default_bases
from hullo.surgery.observe import Call
from hullo.surgery.sites import Site

_CHANNELS_FIRST = (nn.modules.batchnorm._NormBase, nn.GroupNorm)

Channels = tuple[int, int]  # the number of groups and the channel dimension
Share = str | Callable[[Site], Hashable]
Factory = type[Hull] | Callable[[Site], Hull]


@dataclass(frozen=True)
class Recipe:
    """Hold the arguments of `replace_activations` that describe the hulls."""

    hull: Factory | None = None
    bases: Iterable[str | Base] | None = None
    init: Init = None
    groups: int | str = 1
    channel_dim: int | None = None
    parametrization: str | Parametrization | None = None
    share: Share | None = None
    inner_scale: str | None = None

    @property
    def infers_channels(self) -> bool:
        """Return whether the number of channels or their dimension is not given."""
        return self.groups == "channels" or (self.groups != 1 and self.channel_dim is None)

    def make(self, model: nn.Module, sites: Iterable[Site], channels: Mapping[str, Channels]) -> dict[str, Hull]:
        """Return a hull for each site, by its name.

        Args:
            model: the model of the sites.
            sites: the sites.
            channels: the number of groups and the channel dimension, by the name of the site, if they were inferred.
        """
        own_hulls = not (self.hull is None or (isinstance(self.hull, type) and issubclass(self.hull, Hull)))
        options = (self.bases, self.init, self.groups, self.parametrization, self.inner_scale)
        if own_hulls and options != (None, None, 1, None, None):
            raise TypeError(
                f"hull={self.hull!r} is a function that makes hulls: give bases, init, groups, parametrization and "
                "inner_scale to the hulls that it makes, not to replace_activations"
            )
        modules = dict(model.named_modules())
        sites = list(sites)
        frozen = set() if self.share is None else frozen_sites(model, sites)
        hulls: dict[str, Hull] = {}
        shared: dict[Hashable, Hull] = {}
        for site in sites:
            key = self._key(site, channels.get(site.name), site.name in frozen)
            if key is not None and key in shared:
                hulls[site.name] = shared[key]
                continue
            like = nearby_tensor(modules, site.name)
            if own_hulls:
                hulls[site.name] = _call_factory(self.hull, site).to(like.device)
            else:
                hulls[site.name] = self._make(self.hull, site, channels.get(site.name), like)  # type: ignore[arg-type]
            if key is not None:
                shared[key] = hulls[site.name]
        uses = Counter(map(id, hulls.values()))
        for site in sites:
            if uses[id(hulls[site.name])] > 1:
                _check_hooks(site)
        return hulls

    def _key(self, site: Site, channels: Channels | None, frozen: bool) -> Hashable:
        """Return a key that is equal for sites that share a hull; None for a site with its own hull."""
        if self.share is None:
            return None
        if self.share != "model" and not callable(self.share):
            raise ValueError(f"share={self.share!r}: give 'model', or a function of a site")
        common = self.share(site) if callable(self.share) else ""
        return None if common is None else (common, site.known, channels, frozen)

    def _make(self, hull: type[Hull] | None, site: Site, channels: Channels | None, like: Tensor) -> Hull:
        groups, channel_dim = channels or (self.groups, 1 if self.channel_dim is None else self.channel_dim)
        if not isinstance(groups, int):
            raise ValueError(f"groups={groups!r}: give a number, or 'channels' for one activation per channel")
        bases = default_bases(site.known) if self.bases is None else resolve(self.bases, strict=False)
        init = self.init
        if init is None:
            rows = site.known.coefficients(bases)
            if rows is None:
                spelled = ", ".join(item.name for item in bases)
                raise ValueError(
                    f"{site.name} is {site.function}, which is not a combination of {spelled}: add it to bases, or "
                    "give init"
                )
            if len(rows) > 1:  # one function per channel already
                if groups not in (1, len(rows)):
                    raise ValueError(
                        f"{site.name} has one function for each of {len(rows)} channels, which does not fit "
                        f"groups={groups}; give groups={len(rows)} or none"
                    )
                groups, channel_dim = len(rows), 1
            init = rows if len(rows) > 1 else rows[0]
            is_affine = all(math.isclose(sum(row), 1, abs_tol=1e-6) for row in rows)
            hull = hull or (AffineHull if is_affine else LinearHull)
        dtype = like.dtype if like.is_floating_point() else None
        return (hull or AffineHull)(
            *bases,
            init=init,
            groups=groups,
            channel_dim=channel_dim,
            parametrization=self.parametrization,
            inner_scale=self.inner_scale,
            strict=False,
            device=like.device,
            dtype=dtype,
        )


def channel_dim_of(call: Call) -> int | None:
    """Return the channel dimension of the input of a call: 1, -1 or another; None if it is not known.

    The channels are dimension 1 of what a convolution, a batch norm or a group norm computes, and the last one of what
    other modules with weights compute. Pooling, slices and sums keep the dimension; otherwise it is the only one with
    as many numbers.
    """
    weight, made, shape = getattr(call.last, "weight", None), call.made, call.shape
    if not isinstance(weight, Tensor) or len(made) < 2 or len(shape) < 2:
        return None
    dim = 1 if weight.dim() > 2 or isinstance(call.last, _CHANNELS_FIRST) else len(made) - 1
    if weight.dim() == 1 and made[dim] != len(weight):  # a layer norm of one's own, over images
        dim = 1
    same_rest = made[:dim] + made[dim + 1 :] == shape[:dim] + shape[dim + 1 :]
    same_size = [n for n in range(1, len(shape)) if shape[n] == made[dim]]
    if not (len(shape) == len(made) and (same_rest or dim in same_size)):
        if len(same_size) != 1:
            return None
        dim = same_size[0]
    return -1 if dim == len(shape) - 1 and dim != 1 else dim


def starts_alike(hull: Hull, site: Site) -> bool:
    """Return whether a hull computes the function of its site."""
    expected = site.known.coefficients(hull.bases)
    rows = hull.local_rows()
    if rows is None:  # no values, on the meta device
        rows = torch.as_tensor(hull.init, dtype=torch.float64).reshape(hull.groups, -1).tolist()
    if expected is None or len(expected) not in (1, len(rows)):
        return False
    return torch.allclose(torch.tensor(rows), torch.tensor(expected).expand(len(rows), -1), rtol=0, atol=1e-6)


def check_factory(hull: Any) -> None:
    """Raise an error unless the argument `hull` is a class of hulls, or may be a function of a site."""
    if hull is None or (isinstance(hull, type) and issubclass(hull, Hull) and hasattr(hull, "set_class")):
        return
    target = hull.func if isinstance(hull, functools.partial) else hull
    if isinstance(target, (type, nn.Module)) or not callable(hull) or target.__module__.startswith("hullo."):
        raise TypeError(
            f"hull={hull!r}: give a class of hulls such as hullo.AffineHull, and its bases, init and groups to "
            "replace_activations; or a function of a hullo.surgery.Site, as in lambda site: hullo.presets.xielu()"
        )


def _call_factory(factory: Any, site: Site) -> Hull:
    hull = factory(site)
    if not isinstance(hull, Hull):
        raise TypeError(f"hull returned {hull!r} for {site.name}; it must return a hull such as AffineHull(...)")
    return hull


def _check_hooks(site: Site) -> None:
    """Raise an error if a site that shares a hull has hooks."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    if site.module is not None and any(getattr(site.module, name) for name in hooks):
        raise ValueError(
            f"{site.name} has hooks, and a shared hull would call them at all its sites; exclude it with where"
        )


def nearby_tensor(modules: Mapping[str, nn.Module], name: str) -> Tensor:
    """Return a tensor with the device and the dtype of those around a site."""
    while name:
        name = name.rpartition(".")[0]
        for tensor in [*modules[name].parameters(), *modules[name].buffers()] if name in modules else []:
            if tensor.is_floating_point():
                return tensor
    return torch.empty(())


def frozen_sites(model: nn.Module, sites: Iterable[Site]) -> set[str]:
    """Return the names of sites where all parameters of the replaced module, or of the nearest around it, are frozen.

    In a model that is frozen as a whole nothing is: its hulls are what is left to train.
    """
    modules = dict(model.named_modules())
    frozen: set[str] = set()
    if not any(parameter.requires_grad for parameter in _parameters_beside_hulls(model)):
        return frozen
    for site in sites:
        name, parameters = site.name, [] if site.module is None else list(site.module.parameters())
        while name and not parameters:
            name = name.rpartition(".")[0]
            parameters = _parameters_beside_hulls(modules[name]) if name in modules else []
        if parameters and not any(parameter.requires_grad for parameter in parameters):
            frozen.add(site.name)
    return frozen


def _parameters_beside_hulls(module: nn.Module) -> list[nn.Parameter]:
    parts = (part for part in module.modules() if not isinstance(part, Hull))
    return [parameter for part in parts for parameter in part.parameters(recurse=False)]
