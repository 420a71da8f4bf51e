"""replace_activations: the activations of a model become hulls."""

from __future__ import annotations

import copy
import fnmatch
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hullo.bases import Base, names, resolve
from hullo.modules import AffineHull, Hull, Start
from hullo.surgery.recognise import AMBIGUOUS, Known
from hullo.surgery.sites import Site
from hullo.surgery.summary import why_left
from hullo.surgery.survey import survey
from hullo.surgery.swap import swap

Choice = str | type[nn.Module] | Callable[[Site], bool]
Inputs = Tensor | tuple[Any, ...] | Mapping[str, Any]

_PAPER = ("identity", "relu", "tanh")


def replace_activations(
    model: nn.Module,
    *,
    where: Choice | Iterable[Choice] | None = None,
    functions: Iterable[str] | None = None,
    hull: type[Hull] | Callable[[Site], Hull] = AffineHull,
    bases: Iterable[str | Base] | None = None,
    start: Start = None,
    groups: int | str = 1,
    channel_dim: int = 1,
    keep: str | None = None,
    example_inputs: Inputs | None = None,
) -> nn.Module:
    r"""Turn the activations of a model into hulls, each its own, that start as the functions they replace.

    Modules are found wherever they are and whatever they are called: a module without parameters that does what a base
    does, entry by entry, is that base. Calls of functions (``F.relu(x)``, ``torch.tanh(x)``, ``x.relu()``) are found in
    the code of every forward, which is written anew with hulls in their place; control flow, arguments and names of
    parameters stay as they were. An activation that is called twice becomes two hulls, and one in a loop over parts of
    the model becomes one a turn. What cannot be replaced is left alone; :func:`hullo.summary` says what and why. If
    anything is wrong, an error says so and the model is as it was.

    Args:
        model: changed in place.
        where: which sites: patterns of names such as ``"encoder.*"``, types of modules, or a function of a
            :class:`hullo.surgery.Site`; one of them, or several of which one has to fit. All by default.
        functions: which functions, by a base's name. All by default but sigmoid, hardsigmoid, softplus, sin, arctan,
            asinh and erf, which serve as gates, as probabilities or to keep numbers positive just as often.
        hull: AffineHull, ConvexHull, or a function that makes a hull for a :class:`hullo.surgery.Site`.
        bases: the bases of every hull; by default identity, relu, tanh and, where it is no combination of these, the
            function that was there.
        start: the coefficients to start with, as in :class:`hullo.AffineHull`; those of the function that was there by
            default.
        groups: 1 is one activation for each site, a number G is one for each of G groups of channels, and
            ``"channels"`` one for each channel, which takes `example_inputs`.
        channel_dim: the dimension of the channels: 1 as in convolutions, -1 in transformers.
        keep: how coefficients are kept in the hull, as in :class:`hullo.AffineHull`.
        example_inputs: what the model is given, as a tensor, a tuple or a dict, to count channels on a copy of it.

    Returns:
        The model; each hull's `replaced` tells what was there.

    Example:
        >>> import torch, hullo
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
        >>> hullo.replace_activations(model)[1]
        AffineHull(identity=0, relu=0, tanh=0, gelu=1)
    """
    _check_model(model)
    sites = survey(model)
    chosen = _choose(sites, where, functions)
    channels = _count_channels(model, chosen, channel_dim, example_inputs) if groups == "channels" else {}
    modules = dict(model.named_modules())
    made: dict[str, Hull] = {}
    for site in chosen:
        if isinstance(hull, type) and issubclass(hull, Hull):
            like = _nearby_tensor(modules, site)
            made[site.name] = _make(hull, site, bases, start, channels.get(site.name, groups), channel_dim, keep, like)
        elif bases is not None or start is not None or groups != 1 or keep is not None:
            raise TypeError("a function that makes hulls chooses bases, start, groups and keep; do not give them here")
        else:
            made[site.name] = _made_by(hull, site, made.values()).to(_nearby_tensor(modules, site).device)
    swap(model, sites, made)
    return model


def _check_model(model: nn.Module) -> None:
    if not isinstance(model, nn.Module) or isinstance(model, torch.jit.ScriptModule):
        kind = type(model).__name__
        raise TypeError(
            f"replace_activations takes a torch.nn.Module with Python code, not a {kind}; replace, then script"
        )
    for name, module in model.named_modules():
        where = f"{name or 'the model'} is a {type(module).__name__}"
        if type(module).__name__ in ("DistributedDataParallel", "FullyShardedDataParallel", "OptimizedModule"):
            raise TypeError(f"{where}; replace the activations of the model inside first, then wrap or compile it")
        if ".quantized" in type(module).__module__ and type(module).__name__ != "FloatFunctional":
            raise TypeError(f"{where}, which is quantised; replace the activations first, then quantise")


def _choose(sites: list[Site], where: Choice | Iterable[Choice] | None, functions: Iterable[str] | None) -> list[Site]:
    if not sites:
        raise ValueError(
            "the model has no activations that could be found; for a model that is one, use the hull itself"
        )
    if isinstance(functions, str):
        raise TypeError(f"functions are given as a list of names, as in [{functions!r}]")
    every = frozenset({*names(), "prelu"})
    wanted = every - AMBIGUOUS if functions is None else frozenset(functions)
    for name in wanted - every:
        raise ValueError(f"unknown function {name!r} in functions; known are prelu, {', '.join(names())}")
    choices = [where] if isinstance(where, str) or callable(where) else None if where is None else list(where)
    free = [site for site in sites if not site.reason and site.known.family in wanted]
    chosen = [site for site in free if choices is None or any(_fits(site, choice) for choice in choices)]
    if not chosen and free:
        listed = ", ".join(site.name for site in free[:8])
        raise ValueError(f"where={where!r} fits none of the {len(free)} sites: {listed}{', ...' if free[8:] else ''}")
    if not chosen:
        listed = "; ".join(f"{site.name or 'the model'} ({site.function}): {why_left(site)}" for site in sites[:8])
        raise ValueError(f"no activation of the model can be replaced: {listed}{'; ...' if sites[8:] else ''}")
    return chosen


def _fits(site: Site, choice: Choice) -> bool:
    if isinstance(choice, str):
        return fnmatch.fnmatchcase(site.name, choice)
    return isinstance(site.module, choice) if isinstance(choice, type) else bool(choice(site))


def _make(
    hull: type[Hull],
    site: Site,
    bases: Iterable[str | Base] | None,
    start: Start,
    groups: int | str,
    channel_dim: int,
    keep: str | None,
    like: Tensor,
) -> Hull:
    if not isinstance(groups, int):
        raise ValueError(f"groups={groups!r}: give a number, or 'channels' for one activation a channel")
    found = _bases_for(site.known) if bases is None else resolve(bases, strict=False)
    if start is None:
        rows = site.known.coefficients(found)
        if rows is None:
            spelled = ", ".join(item.name for item in found)
            raise ValueError(
                f"{site.name} is {site.function}, which is no affine combination of {spelled}: add it to "
                "bases, or give a start"
            )
        if len(rows) > 1:  # one function a channel already
            if groups not in (1, len(rows)):
                raise ValueError(
                    f"{site.name} has {len(rows)} channels with a function each; groups={groups} is not that"
                )
            groups, channel_dim = len(rows), 1
        start = rows if len(rows) > 1 else rows[0]
    dtype = like.dtype if like.is_floating_point() else None
    options: dict[str, Any] = {"groups": groups, "channel_dim": channel_dim, "keep": keep}
    return hull(*found, start=start, **options, strict=False, device=like.device, dtype=dtype)


def _bases_for(known: Known) -> tuple[Base, ...]:
    paper = resolve(_PAPER)
    return paper if known.coefficients(paper) else (*paper, *known.bases)


def _made_by(factory: Any, site: Site, others: Iterable[Hull]) -> Hull:
    if not callable(factory):
        raise TypeError(f"hull={factory!r}: give AffineHull, ConvexHull, or a function that makes a hull for a site")
    made = factory(site)
    if not isinstance(made, Hull):
        raise TypeError(f"hull made {made!r} for {site.name}; it has to make an AffineHull or a ConvexHull")
    if any(made is other or made.raw is other.raw for other in others):
        raise ValueError(f"hull made the same hull again for {site.name}; each site needs its own")
    return made


def _nearby_tensor(modules: Mapping[str, nn.Module], site: Site) -> Tensor:
    """A tensor with the device and type of those around a site: of the module it is in, or of the nearest around."""
    name = site.name
    while name:
        name = name.rpartition(".")[0]
        for tensor in [*modules[name].parameters(), *modules[name].buffers()] if name in modules else []:
            if tensor.is_floating_point():
                return tensor
    return torch.empty(())


def _count_channels(
    model: nn.Module, chosen: list[Site], channel_dim: int, example_inputs: Inputs | None
) -> dict[str, int]:
    """How many channels each site sees, counted on a copy of the model."""
    if example_inputs is None:
        raise ValueError("groups='channels' takes example_inputs, to count the channels; or give groups as a number")
    wanted = {site.name for site in chosen}
    functions = {site.known.family for site in chosen}
    trial = replace_activations(copy.deepcopy(model), where=lambda site: site.name in wanted, functions=functions)
    seen = record_inputs(trial.eval(), example_inputs)
    shapes = {name: tuple(x.shape) for name, x in seen.items()}
    for name in wanted:
        if name not in shapes:
            raise ValueError(f"example_inputs do not reach {name}; leave it out with where, or give groups as a number")
        if not -len(shapes[name]) <= channel_dim < len(shapes[name]):
            raise ValueError(f"{name} sees a tensor of shape {shapes[name]}, without a dimension {channel_dim}")
    return {name: shapes[name][channel_dim] for name in wanted}


def record_inputs(model: nn.Module, example_inputs: Inputs) -> dict[str, Tensor]:
    """What each hull of a model is given for example inputs, as tensors without values."""
    seen: dict[str, Tensor] = {}

    def note(name: str, module: nn.Module, inputs: tuple[Tensor]) -> None:
        seen[name] = inputs[0].detach().to("meta")

    hulls = [(name, module) for name, module in model.named_modules() if isinstance(module, Hull)]
    hooks = [hull.register_forward_pre_hook(functools.partial(note, name)) for name, hull in hulls]
    try:
        with torch.no_grad(), torch.random.fork_rng():
            if isinstance(example_inputs, Mapping):
                model(**example_inputs)
            else:
                model(*(example_inputs if isinstance(example_inputs, tuple) else (example_inputs,)))
    finally:
        for hook in hooks:
            hook.remove()
    return seen
