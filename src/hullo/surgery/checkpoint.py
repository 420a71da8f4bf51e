"""Make hulls from the names in a state_dict."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from hullo.modules import HULLS, Hull
from hullo.state_names import read_raw_name
from hullo.surgery.build import nearby_tensor
from hullo.surgery.edit import swap
from hullo.surgery.find import default_inputs, module_sites, observed_sites
from hullo.surgery.prove import Comparison
from hullo.surgery.sites import Site, named_hulls
from hullo.surgery.state import Inputs, Snapshot

_SCALES = "inner_scale"
_BY_PARAMETRIZATION = {name: cls for cls in HULLS.values() for name in cls.coefficient_set.choices}


def restore(model: nn.Module, state_dict: Mapping[str, Any], *, example_inputs: Inputs | None = None) -> nn.Module:
    """Put the hulls of a checkpoint into a model, with the saved coefficients.

    The names in a state_dict contain the sites of the hulls, their bases and their parametrization, so nothing else is
    needed. Other weights are not loaded: call ``model.load_state_dict`` afterwards, unless they are loaded already, as
    by ``from_pretrained`` of transformers. Each hull starts, for ``reset_parameters`` and :func:`hullo.plot`, as the
    function it replaces if it can, otherwise with 1/N each.

    Args:
        model: the model as it was before :func:`hullo.replace_activations`; changed in place. Hulls that it has
            already get the saved coefficients.
        state_dict: the state_dict of the model with hulls, from any file format that has all its names; of a hull at
            several sites, `safetensors.torch.save_model` writes only one.
        example_inputs: arguments of the model as for :func:`hullo.replace_activations`. They are needed if hulls
            replace calls of functions, or several calls of one module; models of transformers and timm know theirs.

    Returns:
        The model.

    Raises:
        ValueError: the state_dict has no hulls, or the model has no site for one of them. The model is unchanged.

    Example:
        >>> import torch, hullo
        >>> def make():
        ...     return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
        >>> saved = hullo.replace_activations(make()).state_dict()
        >>> model = hullo.restore(make(), saved)
        >>> model.load_state_dict(saved)
        <All keys matched successfully>
    """
    named_hulls("restore", model)
    hulls = load_hulls(state_dict)
    if not hulls:
        raise ValueError(
            f"the state_dict has no hulls: none of its {len(state_dict)} names ends like "
            "raw_recentred__identity__relu; give that of a model after replace_activations"
        )
    modules = dict(model.named_modules(remove_duplicate=False))
    missing = {name: hull for name, hull in hulls.items() if not isinstance(modules.get(name), Hull)}
    with Snapshot(model):
        sites, inputs = module_sites(model), example_inputs
        matched = _match(missing, _by_name(model, sites))
        if None in matched.values():
            inputs = default_inputs(model) if inputs is None else inputs
        if None in matched.values() and inputs is not None:
            sites = observed_sites(model, Comparison(model, inputs, observe=True))
            matched = _match(missing, _by_name(model, sites))
        for name, site in matched.items():
            if site is None:
                listed = ", ".join(map(repr, itertools.islice(_by_name(model, sites), 8))) or "none"
                hint = "" if inputs is not None else "; if it belongs to a call of a function, give example_inputs"
                raise ValueError(
                    f"the state_dict has a hull at {name!r}, where the model has no activation; it has {listed}{hint}"
                )
            like = nearby_tensor(modules, site.name)
            missing[name].to(like.device, like.dtype)
            _start_as(missing[name], site)
        swap(model, sites, {site.name: missing[name] for name, site in matched.items() if site is not None})
        for name in hulls.keys() - missing.keys():
            modules[name].load_state_dict(hulls[name].state_dict())
    return model


def load_hulls(state_dict: Mapping[str, Any]) -> dict[str, Hull]:
    """Return the hulls of a state_dict by name, to use the learned functions in another model.

    ``replace_activations(model, hull=lambda site: hulls[site.name])`` puts them into a model of the same architecture;
    hulls that were shared are shared again. For another architecture, use copies of them.

    Args:
        state_dict: that of a model with hulls, or of a single hull.

    Example:
        >>> import hullo
        >>> saved = hullo.AffineHull("identity", "relu", init="relu").state_dict()
        >>> hullo.surgery.load_hulls(saved)
        {'': AffineHull(identity=0, relu=1)}
    """
    hulls: dict[str, Hull] = {}
    shared: dict[tuple[int, str], Hull] = {}
    for name, tensors in _saved_hulls(state_dict).items():
        raw_name, raw = next(iter(tensors.items()))
        if raw.is_meta:
            raise ValueError(f"{name}.{raw_name} has no values, on the meta device; load the state to another device")
        memory = raw.data_ptr(), raw_name
        hull = shared.get(memory) if memory[0] else None
        if hull is None:
            hull = shared[memory] = _make_hull(tensors)
            hull.load_state_dict(tensors)
            hull.init = hull.coefficients.double().cpu()
        hulls[name] = hull
    return hulls


def _by_name(model: nn.Module, sites: Iterable[Site]) -> dict[str, Site]:
    """Return the sites that a hull can replace, by all names that a module there has."""
    paths: dict[int, list[str]] = defaultdict(list)
    for name, module in model.named_modules(remove_duplicate=False):
        paths[id(module)].append(name)
    return {
        ".".join(part for part in (path, slot.name, slot.key) if part): site
        for site in sites
        if not site.reason
        for slot in site.slots
        for path in paths[id(slot.parent)]
    }


def _match(names: Iterable[str], sites: Mapping[str, Site]) -> dict[str, Site | None]:
    """Return the site of each name: the one there, or the only other one with the same numbers and last part.

    Libraries rename parts of a model when they save it, and wrappers add a prefix.
    """
    matched: dict[str, Site | None] = {}
    for name in names:
        alike = {site for other, site in sites.items() if _key(other) == _key(name)} - set(matched.values())
        matched[name] = sites.get(name, alike.pop() if len(alike) == 1 else None)
    return matched


def _key(name: str) -> list[str]:
    """Return the numbers in a name and its last part."""
    *parts, last = name.split(".")
    return [*filter(str.isdigit, parts), last]


def _saved_hulls(state_dict: Mapping[str, Any]) -> dict[str, dict[str, Tensor]]:
    """Return the tensors of each hull of a state_dict, raw parameters first, by the names of the hulls."""
    if not isinstance(state_dict, Mapping):
        raise TypeError(
            f"state_dict is {state_dict!r:.80}; give the tensors by name, as torch.load(path) or "
            "safetensors.torch.load_file(path) return them"
        )
    hulls: dict[str, dict[str, Tensor]] = {}
    for key, tensor in state_dict.items():
        name, _, raw_name = key.rpartition(".")
        if raw_name.startswith("raw_") and read_raw_name(raw_name) is not None:
            scales = state_dict.get(f"{name}.{_SCALES}" if name else _SCALES)
            hulls[name] = {raw_name: tensor} if scales is None else {raw_name: tensor, _SCALES: scales}
    return hulls


def _make_hull(tensors: Mapping[str, Tensor]) -> Hull:
    """Return a hull for the tensors of a state_dict."""
    raw_name, raw = next(iter(tensors.items()))
    parametrization, bases, channel_dim = read_raw_name(raw_name)  # type: ignore[misc]  # checked by _saved_hulls
    if parametrization not in _BY_PARAMETRIZATION:
        valid = ", ".join(_BY_PARAMETRIZATION)
        raise ValueError(
            f"{raw_name} has an unknown parametrization {parametrization!r}; valid are {valid}. For your own, call "
            "replace_activations with the parametrization first, then load_state_dict"
        )
    scales = tensors.get(_SCALES)
    return _BY_PARAMETRIZATION[parametrization](
        *bases,
        groups=raw.shape[0] if raw.dim() == 2 else 1,
        channel_dim=channel_dim,
        parametrization=parametrization,
        inner_scale=None if scales is None else "hull" if scales.shape[-1] == 1 else "base",
        strict=False,
        device=raw.device,
        dtype=raw.dtype,
    )


def _start_as(hull: Hull, site: Site) -> None:
    """Let a hull start, if it is reset, as the function of a site if it can, otherwise with 1/N each."""
    rows = site.known.coefficients(hull.bases) or [[]]
    try:
        hull.init = hull._validate(rows if len(rows) > 1 else rows[0])
    except ValueError:
        hull.init = hull._validate(None)
