"""Replace the activations of a model by hulls."""

from __future__ import annotations

import fnmatch
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import nn

from hullo.bases import Base, get_base, list_bases
from hullo.modules import Hull, Init
from hullo.parametrizations import Parametrization
from hullo.recognition.known import AMBIGUOUS, LEARNED, Reading
from hullo.surgery.build import Factory, Recipe, Share
from hullo.surgery.edit import swap
from hullo.surgery.find import (
    NO_INPUTS,
    called_twice,
    count_mentions,
    default_inputs,
    module_sites,
    observed_sites,
)
from hullo.surgery.prove import Comparison
from hullo.surgery.sites import Site, named_hulls
from hullo.surgery.state import Inputs, Snapshot
from hullo.surgery.summary import keep, why_not_replaced

_WRAPPERS = frozenset({"DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule"})
_INSIDE = {"DataParallel": "module", "OptimizedModule": "_orig_mod"}

Selector = str | type[nn.Module] | Callable[[Site], bool]
Where = Selector | Iterable[Selector] | None


def replace_activations(
    model: nn.Module,
    *,
    where: Where = None,
    functions: Iterable[str] | None = None,
    hull: Factory | None = None,
    bases: Iterable[str | Base] | None = None,
    init: Init = None,
    groups: int | str = 1,
    channel_dim: int | None = None,
    parametrization: str | Parametrization | None = None,
    share: Share | None = None,
    inner_scale: str | None = None,
    example_inputs: Inputs | None = None,
    compare: bool = True,
) -> nn.Module:
    """Turn the activations of a model into hulls that start as the functions they replace.

    The model runs once in training and once in evaluation mode on `example_inputs`, and every activation that it calls
    is observed: modules, and functions such as ``F.relu(x)`` or ``x.tanh()``. A module becomes a hull; an expression
    that calls a function is rewritten to call a hull. Every expression gets its own hull, and so does every submodule
    with weights in a loop over several. What cannot be replaced is not changed, and :func:`hullo.summary` lists it with
    the reason.

    Then the swap is proven: outputs, gradients of weights and buffers are as before, in both modes and with the same
    random numbers; and hulls run where activations did, also without gradients. After an error, the model is unchanged.
    The runs change neither the model nor random number generators.

    Without `example_inputs`, models of transformers and timm use those they know. Of any other model, only modules are
    replaced, one hull for each, and nothing is compared.

    Args:
        model: changed in place.
        where: which sites: patterns of names such as ``"encoder.*"``, types of modules, or a function of a
            :class:`hullo.surgery.Site`; or a list of these, one of which must match. All by default.
        functions: which functions, by the names that :func:`hullo.get_base` takes, such as "relu", "GELU" or
            "leaky_relu(0.2)", or "prelu" and "xielu". By default all but sigmoid, hardsigmoid, softplus,
            sin, arctan, asinh and erf, which often are gates, probabilities or positivity constraints.
        hull: the class of the hulls, or a function that returns a hull for a :class:`hullo.surgery.Site`; sites for
            which it returns the same hull share it. By default AffineHull, or LinearHull for functions such as xIELU
            that are not affine combinations.
        bases: the bases of every hull. By default identity, relu and tanh, or identity, tanh and the replaced
            function if it is not a combination of those; for xIELU its own.
        init: the initial coefficients, as in :class:`hullo.AffineHull`; by default those of the replaced function.
        groups: 1 for one activation per site, a number G for one per group of channels, or ``"channels"`` for one per
            channel. The last two need `example_inputs`; a number can be given with `channel_dim` instead.
        channel_dim: the channel dimension: 1 as in convolutions, -1 in transformers. By default it is inferred at each
            site from the layer that ran last.
        parametrization: how raw parameters become coefficients, as in :class:`hullo.AffineHull`.
        share: which sites share a hull: ``"model"`` all of them, or those for which a function of a
            :class:`hullo.surgery.Site` returns the same value; None for no sharing. Sites with different functions or
            numbers of groups never share a hull.
        inner_scale: learn a scale of the input, as in :class:`hullo.AffineHull`.
        example_inputs: arguments of the model, as a tensor, a tuple or a dict; or a function of the model that runs
            whatever is to be observed, as in ``lambda m: (m.training_step(batch, 0), m.generate(z))``.
        compare: whether to prove the swap. If not, the model runs only to be observed.

    Returns:
        The model. The attribute `replaced` of each hull names the replaced activation. Hulls are trainable, also in a
        model whose weights are frozen.

    Raises:
        ValueError: nothing can be replaced, or an argument does not fit the model.
        RuntimeError: the model with hulls computes something else.

    Example:
        >>> import torch, hullo
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
        >>> hullo.replace_activations(model)[1]
        AffineHull(identity=0, tanh=0, gelu=1)
    """
    hulls = [name or "the model" for name in named_hulls("replace_activations", model)]
    whole = model
    while inside := _INSIDE.get(type(model).__name__):
        model = getattr(model, inside)
    _check_model(model)
    recipe = Recipe(hull, bases, init, groups, channel_dim, parametrization, share, inner_scale)
    recipe.check()
    choice = Choice(where, functions, hulls)
    given = example_inputs is not None
    example_inputs = default_inputs(model) if example_inputs is None else example_inputs
    if example_inputs is None and recipe.infers_channels:
        raise ValueError(
            f"groups={groups!r} needs example_inputs, to find and to count the channels; or give groups as a number "
            "and channel_dim: 1 as in convolutions, -1 in transformers"
        )
    with Snapshot(model):
        if example_inputs is None or not _swap_observed(model, choice, recipe, example_inputs, compare, given):
            _swap_modules(model, choice, recipe)
    return whole


def _swap_modules(model: nn.Module, choice: Choice, recipe: Recipe) -> None:
    """Replace modules, without running the model."""
    sites = module_sites(model)
    chosen = choice.select(sites, "; " + NO_INPUTS)
    if twice := called_twice(chosen):
        warnings.warn(
            f"the code calls {', '.join(twice)} in several places, which share a hull; with example_inputs, each gets "
            "its own",
            stacklevel=3,
        )
    swap(model, sites, recipe.make(model, chosen))
    keep(model, sites, {site.name for site in chosen})


def _swap_observed(
    model: nn.Module, choice: Choice, recipe: Recipe, inputs: Inputs, compare: bool, given: bool
) -> bool:
    """Replace what runs on example inputs; return whether the model does run on those it knows itself."""
    try:
        comparison = Comparison(model, inputs, backward=compare, observe=True)
    except Exception:
        if given:
            raise
        return False  # its own inputs do not fit
    before = Snapshot(model)
    while True:
        sites = observed_sites(model, comparison)
        chosen = choice.select(sites)
        try:
            hulls = _swap_and_prove(model, sites, chosen, recipe, comparison, compare)
            break
        except RuntimeError:
            before.restore()
            if not compare:
                raise
            _check_repeats(model, comparison)
            units = _units(chosen)
            blamed = _find_blamed(model, sites, units, comparison)
            if not blamed:
                raise
            if len(blamed) == len(units):
                listed = _shorten((f"{unit[0].name} ({unit[0].function}): {error}" for unit, error in blamed), "; ")
                raise RuntimeError(f"no activation can be replaced: {listed}") from None
            for unit, error in blamed:
                for call in (call for site in unit for call in site.calls):
                    call.reading = Reading(call.reading.known, f"a hull cannot replace it: {error}")
    keep(model, sites, hulls, comparison.modes if compare else "")
    return True


def _check_repeats(model: nn.Module, comparison: Comparison) -> None:
    try:
        comparison.check(model)
    except RuntimeError:
        raise RuntimeError(
            "the original model is not deterministic: with the same random numbers, it computes something else in each "
            "run and cannot be compared; give compare=False"
        ) from None


def _units(sites: Iterable[Site]) -> list[list[Site]]:
    """Return sites that can be replaced without the others; those of a loop are one unit."""
    units: dict[tuple[int, str], list[Site]] = defaultdict(list)
    for site in sites:
        units[id(site.slots[0].parent), site.slots[0].name].append(site)
    return list(units.values())


def _find_blamed(
    model: nn.Module, sites: Sequence[Site], units: list[list[Site]], comparison: Comparison
) -> list[tuple[list[Site], RuntimeError]]:
    """Return the units that cannot be replaced even alone, with the errors; the model is unchanged."""
    before, blamed = Snapshot(model), []
    for unit in units:
        try:
            _swap_and_prove(model, sites, unit, Recipe(), comparison, compare=True)
        except RuntimeError as error:
            blamed.append((unit, error))
        before.restore()
    return blamed


def _swap_and_prove(
    model: nn.Module,
    sites: Sequence[Site],
    chosen: Sequence[Site],
    recipe: Recipe,
    comparison: Comparison,
    compare: bool,
) -> Mapping[str, Hull]:
    """Put hulls in and prove the swap; return them by the names of their sites.

    Hulls that may start as other functions are put in and run after the swap is proven with default ones.
    """
    before = Snapshot(model)
    hulls = recipe.make(model, chosen)
    if compare:
        swap(model, sites, hulls if recipe.is_default else Recipe().make(model, chosen))
        comparison.check(model, chosen)
    if not (compare and recipe.is_default):
        before.restore()
        swap(model, sites, hulls)
        for mode in comparison.expected if compare else ():
            comparison.run_changed(model, mode)
    return hulls


def _check_model(model: nn.Module) -> None:
    if isinstance(model, torch.jit.ScriptModule):
        raise TypeError(
            f"replace_activations takes a torch.nn.Module with Python code, not a {type(model).__name__}; replace the "
            "activations of the original model, train it, and script the result of hullo.fold"
        )
    for name, module in model.named_modules():
        if any(cls.__name__ in _WRAPPERS for cls in type(module).__mro__):
            raise TypeError(
                f"{name or 'the model'} has the type {type(module).__name__}; replace the activations first, then wrap"
            )


class Choice:
    """Select sites by `where` and `functions`; `hulls` are the names of those that the model has already."""

    def __init__(self, where: Where, functions: Iterable[str] | None, hulls: Sequence[str]) -> None:
        self._where, self._functions, self._hulls = where, functions, hulls
        self._families, self._members = _read_functions(functions)

    def select(self, sites: Sequence[Site], hint: str = "") -> list[Site]:
        """Return the chosen sites; raise ValueError, with a hint, if there are none."""
        replaceable = [site for site in sites if not site.reason and self._has_function(site)]
        chosen = [site for site in replaceable if _is_chosen(site, self._where)]
        if not chosen and replaceable:
            raise ValueError(
                f"where={self._where!r} matches none of {len(replaceable)} sites: "
                + _shorten((site.name for site in replaceable), ", ")
            )
        if not chosen:
            counts = count_mentions(sites)
            found = [f"the source calls functions: {counts}"] if counts else []
            found += [
                f"{site.name or 'the model'} ({site.function}): {self._why(site)}"
                for site in sites
                if site.reason != NO_INPUTS
            ]
            present = f"the model has {len(self._hulls)} hulls already, and " if self._hulls else ""
            listed = _shorten(found, "; ") or "none was found"
            raise ValueError(f"{present}no activation can be replaced: {listed}{hint}")
        return chosen

    def _has_function(self, site: Site) -> bool:
        return site.known.family in self._families or site.known.name in self._members

    def _why(self, site: Site) -> str:
        is_excluded = not site.reason and self._functions is not None
        return f"excluded by functions={self._functions}" if is_excluded else why_not_replaced(site, False)


def _shorten(items: Iterable[str], separator: str) -> str:
    """Return the first eight items as text."""
    listed = list(items)
    return separator.join([*listed[:8], *["..."][: len(listed) > 8]])


def _read_functions(given: Iterable[str] | None) -> tuple[set[str], set[str]]:
    """Return the families of functions to replace, and single members of others, such as ``leaky_relu(0.2)``."""
    if given is None:
        return {*list_bases(), *LEARNED} - AMBIGUOUS, set()
    if isinstance(given, str):
        raise TypeError(f"functions={given!r}: give a list of names, as in [{given!r}]")
    families, members = set[str](), set[str]()
    for name in map(str, given):
        try:
            chosen = members if "(" in name else families
            chosen.add(name.lower() if name.lower() in LEARNED else get_base(name).name)
        except ValueError:
            valid = ", ".join(sorted({*list_bases(), *LEARNED}))
            raise ValueError(f"unknown function {name!r} in functions; known are {valid}") from None
    return families, members


def _is_chosen(site: Site, where: Where) -> bool:
    """Return whether `where` selects a site."""
    match where:
        case None:
            return True
        case str():
            return fnmatch.fnmatchcase(site.name, where)
        case type():
            return isinstance(site.module, where)
        case Iterable():
            return any(_is_chosen(site, choice) for choice in where if choice is not None)
    if not callable(where):
        raise TypeError(
            f"where={where!r}: give patterns of names such as 'encoder.*', types of modules, a function of a "
            "hullo.surgery.Site, or a list of these"
        )
    return bool(where(site))
