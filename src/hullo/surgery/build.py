"""Build the hulls that replace activations."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
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

    def check(self) -> None:
        """Raise an error for arguments that fit no model."""
        if self.hull is not None and not self._is_class and not replace(self, hull=None).is_default:
            raise TypeError(
                f"hull={self.hull!r} is a function that makes hulls: give bases, init, groups, parametrization and "
                "inner_scale to the hulls that it makes, not to replace_activations"
            )
        if not (self.share in (None, "model") or callable(self.share)):
            raise ValueError(f"share={self.share!r}: give 'model', or a function of a site")

    @property
    def _is_class(self) -> bool:
        return isinstance(self.hull, type) and issubclass(self.hull, Hull) and hasattr(self.hull, "kind")

    @property
    def is_default(self) -> bool:
        """Return whether the hulls start as the functions they replace, each with its default bases."""
        given = (self.hull, self.bases, self.init, self.parametrization, self.inner_scale)
        return self.groups == 1 and all(item is None for item in given)

    @property
    def infers_channels(self) -> bool:
        """Return whether the number of channels or their dimension is not given."""
        return self.groups == "channels" or (self.groups != 1 and self.channel_dim is None)

    def make(self, model: nn.Module, sites: Sequence[Site]) -> dict[str, Hull]:
        """Return a hull for each site, by its name."""
        modules = dict(model.named_modules())
        hulls: dict[str, Hull] = {}
        shared: dict[Hashable, Hull] = {}
        for site in sites:
            channels = self._channels(site)
            common = self.share(site) if callable(self.share) else self.share
            key = site.name if common is None else (common, site.known, channels)
            if key not in shared:
                like = nearby_tensor(modules, site.name)
                if self.hull is None or self._is_class:
                    shared[key] = self._make(site, *channels, like)
                else:
                    shared[key] = _call_factory(self.hull, site).to(like.device)
            hulls[site.name] = shared[key]
        return hulls

    def _channels(self, site: Site) -> tuple[int, int]:
        """Return the number of groups and the channel dimension of a site."""
        groups, dim = self.groups, self.channel_dim
        if self.infers_channels:
            shape = site.calls[-1].shape
            dims = {channel_dim_of(call) for call in site.calls} if dim is None else {dim}
            dim = dims.pop() if len(dims) == 1 else None
            if dim is None:
                raise ValueError(
                    f"cannot infer the channel dimension of the input of {site.name}, of shape {shape}; give "
                    "channel_dim: 1 as in convolutions, -1 in transformers, with where to choose sites"
                )
            if not -len(shape) <= dim < len(shape):
                raise ValueError(
                    f"channel_dim={dim}: the input of {site.name} has shape {shape}, without that dimension"
                )
            groups = shape[dim] if groups == "channels" else groups
        if not isinstance(groups, int):
            raise ValueError(f"groups={groups!r}: give a number, or 'channels' for one activation per channel")
        return groups, 1 if dim is None else dim

    def _make(self, site: Site, groups: int, channel_dim: int, like: Tensor) -> Hull:
        hull: Any = self.hull
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
            if len(rows) > 1 and groups == 1:  # one function per channel already
                groups, channel_dim = len(rows), 1
            init = rows if len(rows) > 1 else rows[0]
            is_affine = all(math.isclose(sum(row), 1, abs_tol=1e-6) for row in rows)
            hull = hull or (AffineHull if is_affine else LinearHull)
        made: Hull = (hull or AffineHull)(
            *bases,
            init=init,
            groups=groups,
            channel_dim=channel_dim,
            parametrization=self.parametrization,
            inner_scale=self.inner_scale,
            strict=False,
            device=like.device,
            dtype=like.dtype,
        )
        return made


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


def _call_factory(factory: Any, site: Site) -> Hull:
    try:
        made = factory(site)
    except (TypeError, ValueError, AttributeError) as error:
        made = error
    if isinstance(made, Hull):
        return made
    raise TypeError(
        f"hull={factory!r}: give a class of hulls, bases, init and groups to replace_activations; or a function "
        f"of a site that returns a hull, as in lambda site: hullo.presets.xielu(). For {site.name} it gave {made!r}"
    )


def nearby_tensor(modules: Mapping[str, nn.Module], name: str) -> Tensor:
    """Return a tensor with the device and the dtype of those around a site."""
    while name:
        name = name.rpartition(".")[0]
        for tensor in [*modules[name].parameters(), *modules[name].buffers()] if name in modules else []:
            if tensor.is_floating_point():
                return tensor
    return torch.empty(())
