"""Put hulls into the sites of a model; they keep the hooks, the mode and the in-place behavior of the activations."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hullo._compat import is_eager, is_left_aligned, storage_uses, tracing_state
from hullo.modules import AffineHull, ConicHull, ConvexHull, Hull, LinearHull
from hullo.surgery.build import is_frozen
from hullo.surgery.edits import changed_classes
from hullo.surgery.sites import Site

_HOOKS = [name for name in vars(nn.Identity()) if name.startswith(("_forward_", "_backward_", "_is_full_backward"))]


def swap(model: nn.Module, sites: Sequence[Site], hulls: Mapping[str, Hull]) -> None:
    """Put hulls into a model. An error may leave it half changed: the caller restores it with `Structure`.

    A module that is called several times becomes several children; those without a hull are the module itself. Hulls
    in frozen modules are frozen.

    Args:
        model: the model.
        sites: all its sites.
        hulls: the hulls, by the names of their sites.
    """
    changed_groups = {id(site.group) for site in sites if site.group is not None and site.name in hulls}
    affected = [
        site for site in sites if site.name in hulls or (id(site.group) in changed_groups and site.group is not None)
    ]
    for site in affected:
        if site.name not in hulls and site.module is None:
            raise ValueError(f"{site.name} is one of several calls of one function; choose all of them, or none")
    hulls = _separate_in_place(affected, hulls)
    modules = dict(model.named_modules())
    frozen = {site.name for site in affected if is_frozen(modules, site.name, site.module)}
    for owner, cls in changed_classes(affected, sites):
        owner.__class__ = cls
    hooked: set[int] = set()
    for site in affected:
        assert site.slot is not None  # noqa: S101  (a site with a reason is never chosen)
        hull = hulls.get(site.name)
        if hull is not None:
            _prepare(hull, site, first=id(site.module) not in hooked)
            hooked.add(id(site.module))
            if site.name in frozen:
                hull.requires_grad_(False)
        site.slot.put(hull or site.module)  # type: ignore[arg-type]  # one of them is not None: see above
    slow_encoders(model)


def _separate_in_place(sites: Sequence[Site], hulls: Mapping[str, Hull]) -> dict[str, Hull]:
    """Return the hulls, and twins with the same parameters where a hull is shared with sites that are not in place."""
    chosen = [site for site in sites if site.name in hulls]
    ordinary = {hulls[site.name] for site in chosen if not _is_in_place(site)}
    separate, twins = dict(hulls), dict[Hull, Hull]()
    for site in chosen:
        hull = hulls[site.name]
        if _is_in_place(site) and hull in ordinary:
            if hull not in twins:
                twins[hull] = copy.deepcopy(hull, {id(item): item for item in hull.parameters()})
            separate[site.name] = twins[hull]
    return separate


def _is_in_place(site: Site) -> bool:
    return site.reading is not None and site.reading.in_place


def _prepare(hull: Hull, site: Site, first: bool) -> None:
    """Give a hull the mode, the hooks and the in-place behavior of the activation at its site."""
    if _is_in_place(site):
        make_in_place(hull)
    places = list(dict.fromkeys(call.place for call in site.calls)) if site.place else []
    called = f" in {' and '.join(places)}" if places else ""
    replaced = type(site.module).__name__ if site.module else site.function + called
    vars(hull)["replaced"] = replaced
    vars(hull)["how_to_avoid"] = (
        f" (the hull {site.name} replaced {replaced}; to keep the original there, start from the original model and "
        f"call replace_activations with where=lambda site: site.name != {site.name!r})"
    )
    source = site.module or site.slot.parent  # type: ignore[union-attr]
    hull.train(source.training)
    if site.module is not None:
        transfer_hooks(hull, site.module, copies=not first)


def transfer_hooks(new: nn.Module, old: nn.Module, copies: bool = False) -> None:
    """Give a module the hooks of another: the same dictionaries, whose handles remain valid, or copies."""
    for name in _HOOKS:
        hooks = getattr(old, name)
        setattr(new, name, copy.copy(hooks) if copies else hooks)


# In-place hulls


class InPlace:
    """Overwrite the input, as the replaced activation did: other code may rely on it.

    If no other tensor shares the memory of the input, the input gets the memory of the result instead of a copy; the
    original values remain for the backward pass.
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  (PyTorch's name)
        if not torch.is_grad_enabled() and tracing_state() is None:  # a trace is checked with and without gradients
            return input.copy_(super().forward(input))  # type: ignore[misc]
        if _owns_memory(input):
            output: Tensor = _ReplaceData.apply(input, super().forward(_ShareMemory.apply(input)))  # type: ignore[misc, no-untyped-call]
            return output
        return input.copy_(super().forward(input.clone()))  # type: ignore[misc]

    def _get_name(self) -> str:  # which repr() prints
        return type(self).__mro__[2].__name__

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, inplace=True"  # type: ignore[misc]


def _owns_memory(x: Tensor) -> bool:
    """Return whether x was computed and no other tensor shares its memory."""
    if (
        torch.compiler.is_compiling()
        or type(x) is not Tensor
        or not is_eager()
        or x.grad_fn is None
        or x._is_view()
        or x.layout is not torch.strided
    ):
        return False
    return storage_uses(x) == 2  # x and this call


class _ShareMemory(torch.autograd.Function):
    """Return a new tensor with the memory of x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.data

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class _ReplaceData(torch.autograd.Function):
    """Give x the memory and the history of y."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        x.data = y
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        return None, gradient


class InPlaceAffineHull(InPlace, AffineHull):
    """Affine hull that overwrites its input."""


class InPlaceConvexHull(InPlace, ConvexHull):
    """Convex hull that overwrites its input."""


class InPlaceConicHull(InPlace, ConicHull):
    """Conic hull that overwrites its input."""


class InPlaceLinearHull(InPlace, LinearHull):
    """Linear hull that overwrites its input."""


_IN_PLACE: dict[type[Hull], type[Hull]] = {
    cls.__mro__[2]: cls for cls in (InPlaceAffineHull, InPlaceConvexHull, InPlaceConicHull, InPlaceLinearHull)
}


def make_in_place(hull: Hull) -> None:
    """Make a hull overwrite its input, unless it does already, as one that is shared with another site may."""
    if isinstance(hull, InPlace):
        return
    if type(hull) not in _IN_PLACE:
        kind, valid = type(hull).__name__, ", ".join(cls.__name__ for cls in _IN_PLACE)
        raise TypeError(f"a {kind} cannot overwrite its input, as the activation there does; give one of {valid}")
    hull.__class__ = _IN_PLACE[type(hull)]


# nn.TransformerEncoder


class SlowEncoder(nn.TransformerEncoder):
    """Encoder without the nested tensors of the fast path, which hulls do not support.

    For padding it returns what the fast path returns: zeros, or the final norm of zeros.
    """

    def forward(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:
        output = super().forward(src, mask, src_key_padding_mask, is_causal)
        if src_key_padding_mask is None or mask is not None or not self._was_fast(src):
            return output
        padding = F._canonical_mask(src_key_padding_mask, "src_key_padding_mask", None, "", src.dtype)
        kept = padding.logical_not()  # type: ignore[union-attr]
        if self.mask_check and not is_left_aligned(src, kept):
            return output
        zeros = output.new_zeros(output.shape[-1:])
        return torch.where(kept.unsqueeze(-1), output, zeros if self.norm is None else self.norm(zeros))

    def _was_fast(self, src: Tensor) -> bool:
        """Return whether nn.TransformerEncoder would take its fast path, apart from conditions on the mask."""
        if self.layers[0].training or src.dim() != 3 or src.is_nested or torch.compiler.is_compiling():
            return False
        tensors = (src, *self.layers[0].parameters())
        return (
            torch.backends.mha.get_fastpath_enabled()
            and not torch.is_autocast_enabled()
            and not torch.overrides.has_torch_function(tensors)
            and not (torch.is_grad_enabled() and any(item.requires_grad for item in tensors))
        )


def slow_encoders(model: nn.Module) -> None:
    """Disable the fast path of the encoders whose layers have hulls."""
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder) and any(isinstance(part, Hull) for part in module.modules()):
            was_fast = vars(module).get("use_nested_tensor", False)
            module.use_nested_tensor = False
            if was_fast and type(module) is nn.TransformerEncoder:
                module.__class__ = SlowEncoder


def fast_encoders(model: nn.Module) -> None:
    """Enable the fast path again in a folded model, for encoders all of whose layers support it."""
    for module in model.modules():
        if type(module) is SlowEncoder and all(getattr(item, "activation_relu_or_gelu", 0) for item in module.layers):
            module.__class__ = nn.TransformerEncoder  # type: ignore[assignment]
            module.use_nested_tensor = True
