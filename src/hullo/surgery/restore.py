"""restore: the hulls of a checkpoint, in a model that has none yet."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from hullo.modules import AffineHull, ConicHull, ConvexHull, Hull, LinearHull
from hullo.rawnames import read_raw_name
from hullo.surgery.making import nearby_tensor
from hullo.surgery.parametric import MOST
from hullo.surgery.sites import put
from hullo.surgery.survey import expect_model, survey
from hullo.surgery.swap import Undo, swap

SCALES = "inner_scale"
_CLASSES = {
    parametrization: cls
    for cls in (AffineHull, ConvexHull, ConicHull, LinearHull)
    for parametrization in cls.set_class.choices
}


def restore(model: nn.Module, state_dict: Mapping[str, Any]) -> nn.Module:
    """Put the hulls of a checkpoint into a model, with the coefficients that were saved.

    The names of a state_dict say where hulls are, of which bases, and how their coefficients are kept; so nothing else
    is needed to make a swapped model again. Other weights are left alone: call ``model.load_state_dict`` afterwards,
    unless they are loaded already, as by ``from_pretrained`` of transformers.

    Args:
        model: the model as it was before :func:`hullo.replace_activations`; changed in place. Hulls that it has already
            get the saved numbers.
        state_dict: that of the swapped model, from any format.

    Returns:
        The model.

    Raises:
        ValueError: the state_dict has no hulls, or one of them has no place in the model; the model is as it was.

    Example:
        >>> import torch, hullo
        >>> def make():
        ...     return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
        >>> saved = hullo.replace_activations(make()).state_dict()
        >>> model = hullo.restore(make(), saved)
        >>> model.load_state_dict(saved)
        <All keys matched successfully>
    """
    expect_model("restore", model)
    saved = _saved_hulls(state_dict)
    if not saved:
        raise ValueError(
            f"the state_dict has no hulls: none of its {len(state_dict)} names ends like "
            "raw_recentred__identity__relu; give that of a model after replace_activations"
        )
    sites = survey(model)
    by_name = {site.name: site for site in sites if not site.reason}
    modules = dict(model.named_modules())
    present = {name for name, module in modules.items() if isinstance(module, Hull)}
    unread = [name for name, module in modules.items() if name not in by_name and _may_be_learned(module)]
    places = _places(list(saved), [*by_name, *present, *unread])
    made: dict[str, Hull] = {}
    shared: dict[tuple[int, str], Hull] = {}  # a hull in several places is one tensor under several names
    for name, (own, numbers) in saved.items():
        if (place := places[name]) not in present:
            key = (numbers.data_ptr(), own)
            known = shared.get(key) if key[0] else None
            scales = state_dict.get(f"{name}.{SCALES}" if name else SCALES)
            made[place] = shared[key] = known or _made(own, numbers, scales, nearby_tensor(modules, place))
    undo = Undo(model)
    try:
        swap(model, sites, {place: hull for place, hull in made.items() if place in by_name})
        for place in (place for place in made if place not in by_name):
            keeper, _, child = place.rpartition(".")
            put(model.get_submodule(keeper), child, made[place])
        for name, (own, numbers) in saved.items():
            scales = state_dict.get(f"{name}.{SCALES}" if name else SCALES)
            found = {own: numbers} if scales is None else {own: numbers, SCALES: scales}
            model.get_submodule(places[name]).load_state_dict(found)
    except BaseException:
        undo()
        raise
    return model


def _places(saved: list[str], known: list[str]) -> dict[str, str]:
    """Return the place in the model of each saved hull: that of its name, or the only one that it can be.

    Libraries rename parts of a model when they save it, wrappers put a name in front. So a place may have another name
    if it has the same numbers of layers, and more of the name's end than any other place.
    """
    found = {}
    for name in saved:
        parts = name.removesuffix(".hull").split(".")  # of a GatedHull, which fuse_gates makes again
        shared = {place: _shared_end(parts, place.split(".")) for place in known if _numbers(place) == _numbers(name)}
        most = max(shared.values(), default=0)
        best = [place for place, length in shared.items() if length == most and length]
        found[name] = name if name in known else best[0] if len(best) == 1 else ""
        if not found[name] or list(found.values()).count(found[name]) > 1:
            listed = ", ".join(map(repr, known[:8])) + (", ..." if known[8:] else "")
            raise ValueError(
                f"the state_dict has a hull at {name!r}, where the model has no activation; it has {listed}"
            )
    return found


def _numbers(name: str) -> list[str]:
    return [part for part in name.split(".") if part.isdigit()]


def _shared_end(some: list[str], others: list[str]) -> int:
    pairs = zip(reversed(some), reversed(others), strict=False)
    return len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))


def _may_be_learned(module: nn.Module) -> bool:
    """Return whether a module may be an activation with parameters, such as xIELU's, which have no values yet."""
    count = sum(parameter.numel() for parameter in module.parameters())
    plain = type(module).__module__.startswith("torch.nn")
    return 0 < count <= MOST and not plain and not isinstance(module, Hull) and not any(True for _ in module.children())


def _saved_hulls(state_dict: Mapping[str, Any]) -> dict[str, tuple[str, Tensor]]:
    """Return the names and numbers of raw numbers, by the names of their hulls."""
    found = {}
    for key, numbers in state_dict.items():
        name, _, own = key.rpartition(".")
        if own.startswith("raw_") and read_raw_name(own) is not None:
            found[name] = own, numbers
    return found


def _made(own: str, numbers: Tensor, scales: Tensor | None, like: Tensor) -> Hull:
    parts = read_raw_name(own)
    assert parts is not None  # noqa: S101  (_saved_hulls lets no others through)
    parametrization, bases, channel_dim = parts
    if parametrization not in _CLASSES:
        raise ValueError(f"{own} has an unknown parametrization {parametrization!r}; known are {', '.join(_CLASSES)}")
    groups = numbers.shape[0] if numbers.dim() == 2 else 1
    options: dict[str, Any] = {
        "groups": groups,
        "channel_dim": channel_dim,
        "parametrization": parametrization,
        "strict": False,
    }
    if scales is not None:
        options["inner_scale"] = "hull" if scales.shape[-1] == 1 else "base"
    dtype = like.dtype if like.is_floating_point() else None
    return _CLASSES[parametrization](*bases, **options, device=like.device, dtype=dtype)
