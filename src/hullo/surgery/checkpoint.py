"""Save and load hulls: `restore` reads a state_dict, `save_hulls` and `load_hulls` use a small JSON file."""

from __future__ import annotations

import itertools
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hullo._compat import gather
from hullo.bases import is_known, resolve
from hullo.gating import GatedHull
from hullo.modules import HULLS, Hull
from hullo.parametrizations import evaluate
from hullo.recognition.probe import MAX_PARAMETERS
from hullo.state_names import read_raw_name
from hullo.surgery.build import frozen_sites, nearby_tensor
from hullo.surgery.edit import swap
from hullo.surgery.find import default_inputs, module_sites, observed_sites
from hullo.surgery.prove import Comparison
from hullo.surgery.sites import Site, named_hulls, put
from hullo.surgery.state import Inputs, Structure

_SCALES = "inner_scale"
_FORMAT = "hullo hulls, version 1"
_BY_PARAMETRIZATION = {name: cls for cls in HULLS.values() for name in cls.set_class.choices}


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
    present = named_hulls("restore", model)
    if not isinstance(state_dict, Mapping):
        raise TypeError(
            f"state_dict is {state_dict!r:.80}; give the tensors by name, as torch.load(path) or "
            "safetensors.torch.load_file(path) return them"
        )
    saved = _saved_hulls(state_dict)
    if not saved:
        raise ValueError(
            f"the state_dict has no hulls: none of its {len(state_dict)} names ends like "
            "raw_recentred__identity__relu; give that of a model after replace_activations"
        )
    modules = dict(model.named_modules())
    structure = Structure(model)
    try:
        sites, names = _find(model, list(saved), list(present), example_inputs)
        by_name = {site.name: site for site in sites if not site.reason}
        hulls: dict[str, Hull] = {}
        shared: dict[tuple[int, str], Hull] = {}  # a hull at several sites is one tensor with several names
        for name, tensors in saved.items():
            if (target := names[name]) not in present and target not in hulls:
                raw_name, raw = next(iter(tensors.items()))
                key = (raw.data_ptr(), raw_name)
                earlier = shared.get(key) if key[0] else None
                hulls[target] = shared[key] = earlier or _hull_for(
                    tensors, nearby_tensor(modules, target), by_name.get(target)
                )
        swap(model, sites, {target: hull for target, hull in hulls.items() if target in by_name})
        learned = [Site(target, "", modules[target]) for target in hulls if target not in by_name]
        for target in frozen_sites(model, learned):
            hulls[target].requires_grad_(False)
        for site in learned:
            parent, _, child = site.name.rpartition(".")
            put(model.get_submodule(parent), child, hulls[site.name])
        for name, tensors in saved.items():
            model.get_submodule(names[name]).load_state_dict(tensors)
    except BaseException:
        structure.restore()
        raise
    return model


def _find(
    model: nn.Module, saved: list[str], present: list[str], example_inputs: Inputs | None
) -> tuple[list[Site], dict[str, str]]:
    """Return the sites of a model, and the name of the site of each saved hull; run the model only if it has to be."""
    sites = module_sites(model)
    try:
        return sites, _match_names(saved, _aliases(model, sites, present))
    except ValueError as error:
        inputs = default_inputs(model) if example_inputs is None else example_inputs
        if inputs is None:
            raise ValueError(f"{error}; if it belongs to a call of a function, give example_inputs") from None
    sites = observed_sites(model, Comparison(model, inputs, observe=True))
    return sites, _match_names(saved, _aliases(model, sites, present))


def _aliases(model: nn.Module, sites: Iterable[Site], present: Iterable[str]) -> dict[str, str]:
    """Return the names of sites by all names that a module there has, also of hulls and learned activations."""
    paths: dict[int, list[str]] = defaultdict(list)
    for name, module in model.named_modules(remove_duplicate=False):
        paths[id(module)].append(name)
    found = {name: name for name in present}
    for site in (site for site in sites if not site.reason):
        found[site.name] = site.name
        for slot in site.slots:
            parts = [part for part in (slot.name, slot.key) if part]
            found |= {".".join([*filter(None, [path]), *parts]): site.name for path in paths[id(slot.parent)]}
    for name, module in model.named_modules():
        if name not in found and _may_be_learned(module):
            found[name] = name
    return found


def _saved_hulls(state_dict: Mapping[str, Any]) -> dict[str, dict[str, Tensor]]:
    """Return the tensors of each hull of a state_dict, raw parameters first, by the names of the hulls."""
    hulls: dict[str, dict[str, Tensor]] = {}
    for key, tensor in state_dict.items():
        name, _, raw_name = key.rpartition(".")
        if raw_name.startswith("raw_") and read_raw_name(raw_name) is not None:
            scales = state_dict.get(f"{name}.{_SCALES}" if name else _SCALES)
            hulls[name] = {raw_name: tensor} if scales is None else {raw_name: tensor, _SCALES: scales}
    return hulls


def _match_names(saved: list[str], aliases: Mapping[str, str]) -> dict[str, str]:
    """Return the site of each saved hull: the one with that name, or the only one with the same numbers and last part.

    Libraries rename parts of a model when they save it, and wrappers add a prefix.
    """
    matched: dict[str, str] = {}
    for name in saved:
        short = name.removesuffix(".hull")  # the hull of a GatedHull, which fuse_gates creates later
        alike = {site for alias, site in aliases.items() if _key(alias) == _key(short)} - set(matched.values())
        target = aliases.get(name, aliases.get(short, alike.pop() if len(alike) == 1 else None))
        if target is None:
            listed = ", ".join(map(repr, itertools.islice(aliases, 8))) or "none"
            raise ValueError(
                f"the state_dict has a hull at {name!r}, where the model has no activation; it has {listed}"
            )
        matched[name] = target
    return matched


def _key(name: str) -> list[str]:
    """Return the numbers in a name and its last part."""
    *parts, last = name.split(".")
    return [*filter(str.isdigit, parts), last]


def _may_be_learned(module: nn.Module) -> bool:
    """Return whether a module may be an activation with parameters, such as xIELU, that are not loaded yet."""
    count = sum(parameter.numel() for parameter in module.parameters())
    plain = type(module).__module__.startswith("torch.nn") or isinstance(module, Hull)
    return 0 < count <= MAX_PARAMETERS and not plain and not any(True for _ in module.children())


def _hull_for(tensors: Mapping[str, Tensor], like: Tensor, site: Site | None) -> Hull:
    """Return a hull for the tensors of a state_dict, on the device of `like`; it starts as the function of the site."""
    raw_name, raw = next(iter(tensors.items()))
    parametrization, bases, channel_dim = read_raw_name(raw_name)  # type: ignore[misc]  # checked by _saved_hulls
    if parametrization not in _BY_PARAMETRIZATION:
        valid = ", ".join(_BY_PARAMETRIZATION)
        raise ValueError(
            f"{raw_name} has an unknown parametrization {parametrization!r}; valid are {valid}. For your own, call "
            "replace_activations with the parametrization first, then load_state_dict"
        )
    cls, groups = _BY_PARAMETRIZATION[parametrization], raw.shape[0] if raw.dim() == 2 else 1
    rows = None if site is None else site.known.coefficients(resolve(bases, strict=False))
    init = None
    if rows is not None and len(rows) in (1, groups):
        coefficients = torch.tensor(rows if len(rows) > 1 else rows[0], dtype=torch.float64, device="cpu")
        init = coefficients if cls.set_class(parametrization).check(coefficients)[0] else None
    return cls(
        *bases,
        init=init,
        groups=groups,
        channel_dim=channel_dim,
        parametrization=parametrization,
        inner_scale=_scale_kind(tensors.get(_SCALES)),
        strict=False,
        device=like.device,
        dtype=like.dtype if like.is_floating_point() else None,
    )


def _scale_kind(scales: Tensor | None) -> str | None:
    return None if scales is None else "hull" if scales.shape[-1] == 1 else "base"


def save_hulls(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Write the hulls of a model to a small JSON file: names, bases and coefficients.

    The hull of a :class:`hullo.GatedHull` has the name of the latter, as before :func:`hullo.fuse_gates`.

    Args:
        model: any module with hulls, or a single hull.
        path: the file. It is replaced atomically.

    Example:
        >>> import hullo, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     hullo.surgery.save_hulls(hullo.AffineHull("identity", "relu", init="relu"), f"{folder}/hulls.json")
        ...     hullo.surgery.load_hulls(f"{folder}/hulls.json")
        {'': AffineHull(identity=0, relu=1)}
    """
    named_hulls("save_hulls", model, required=True)
    first: dict[Hull, str] = {}
    hulls: dict[str, Any] = {}
    gated: set[str] = set()
    for name, module in model.named_modules(remove_duplicate=False):  # a hull at several places has several names
        if isinstance(module, GatedHull):
            gated.add(f"{name}.hull".removeprefix("."))
        hull = module.hull if isinstance(module, GatedHull) else module
        if isinstance(hull, Hull) and name not in gated:
            hulls[name] = {"same_as": first[hull]} if hull in first else _to_json(hull)
            first.setdefault(hull, name)
    file = Path(path)
    partial = file.with_name(f"{file.name}.{os.getpid()}.partial")
    try:
        partial.write_text(json.dumps({"format": _FORMAT, "hulls": hulls}, indent=1) + "\n", "utf-8")
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


def load_hulls(path: str | os.PathLike[str], *, trainable: bool = True) -> dict[str, Hull]:
    """Return the hulls of a file written by :func:`save_hulls`, by their names in the saved model.

    ``replace_activations(model, hull=lambda site: hulls[site.name])`` puts them into a model of the same architecture;
    hulls that were shared are shared again. For another architecture, use copies of them.

    Args:
        path: the file.
        trainable: whether the coefficients require gradients.

    Raises:
        ValueError: the file has another format, or a base is unknown.
    """
    text = Path(path).read_text("utf-8")
    unknown: list[str] = []
    try:
        content = json.loads(text)
        if content["format"] != _FORMAT:
            raise ValueError(f"its format is {content['format']!r}, not {_FORMAT!r}")
        spelled = {name for entry in content["hulls"].values() for name in entry.get("bases", ())}
        unknown = sorted(name for name in spelled if not is_known(name))
        hulls: dict[str, Hull] = {}
        for name, entry in content["hulls"].items():
            if "same_as" in entry:
                hulls[name] = hulls[entry["same_as"]]
                vars(hulls[name])["is_shared"] = True  # it may be put at several sites
            else:
                hulls[name] = _from_json(entry).requires_grad_(trainable)
        return hulls
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        if unknown:
            raise ValueError(
                f"{os.fspath(path)} has an unknown base function {unknown[0]!r}; if it is your own, call "
                "hullo.add_base first"
            ) from error
        reason = f"it has no {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"{os.fspath(path)} was not written by save_hulls: {reason}") from error


def _to_json(hull: Hull) -> dict[str, Any]:
    if (name := hull.constraint.parametrization.name) not in hull.set_class.choices:
        raise ValueError(
            f"save_hulls cannot write parametrization={name!r} of {hull.spelling}; valid are "
            f"{', '.join(map(repr, hull.set_class.choices))}. Save the state_dict instead"
        )
    return {
        "hull": hull.kind,
        "bases": [item.name for item in hull.bases],
        "parametrization": name,
        "groups": hull.groups,
        "channel_dim": hull.spec.channel_dim,
        "coefficients": evaluate(hull.constraint.parametrization, gather(hull.raw).detach().double()).tolist(),
        "inner_scale": None if hull.inner_scale is None else hull.inner_scale.tolist(),
    }


def _from_json(entry: dict[str, Any]) -> Hull:
    options = {name: entry[name] for name in ("parametrization", "groups", "channel_dim")}
    scales = None if entry["inner_scale"] is None else torch.tensor(entry["inner_scale"])
    cls, init = HULLS[entry["hull"]], entry["coefficients"]
    hull = cls(*entry["bases"], init=init, inner_scale=_scale_kind(scales), strict=False, **options)
    if hull.inner_scale is not None:
        hull.inner_scale.data.copy_(scales)  # type: ignore[arg-type]
    return hull
