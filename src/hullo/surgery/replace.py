"""Replace the activations of a model by hulls."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import nn

from hullo.bases import Base, get_base, list_bases
from hullo.modules import Init
from hullo.parametrizations import Parametrization
from hullo.surgery.build import Channels, Factory, Recipe, Share, check_factory, starts_alike
from hullo.surgery.compare import Comparison
from hullo.surgery.find import find_sites
from hullo.surgery.optimizer_warning import expect_optimizer
from hullo.surgery.recognize import AMBIGUOUS, COMBINATIONS
from hullo.surgery.sites import Site, named_hulls
from hullo.surgery.state import Inputs, Structure
from hullo.surgery.summary import NOT_REACHED, why_not_replaced
from hullo.surgery.swap import swap

_WRAPPERS = frozenset({"DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule", "OptimizedModule"})

Choice = str | type[nn.Module] | Callable[[Site], bool]


def replace_activations(
    model: nn.Module,
    *,
    where: Choice | Iterable[Choice] | None = None,
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
) -> nn.Module:
    r"""Turn the activations of a model into hulls that start as the functions they replace.

    Modules are recognized by their values, not by their names: a module without parameters that computes a base
    elementwise is that base. Calls of functions (``F.relu(x)``, ``torch.tanh(x)``, ``x.relu()``) are found in the code
    of every forward, which is rewritten to call hulls; control flow, arguments and names of parameters do not change.

    Every call gets its own hull: an activation that is called twice becomes two hulls, and one in a loop over
    submodules becomes one per iteration. All iterations of a loop whose length depends on the input share one hull, and
    so do calls on branches that exclude each other, as in ``if self.training: ... else: ...``. Activations that cannot
    be replaced safely are not changed; :func:`hullo.summary` lists them with the reasons.

    A hull starts frozen (``requires_grad=False``) if all parameters of the activation are frozen, or, of an activation
    without parameters, all those of the nearest module around it that has any. In a model that is frozen as a whole,
    hulls are trained.

    With `example_inputs`, the outputs before and after are compared, in training and in evaluation mode, with the same
    random numbers. If they differ by more than rounding, an error says by how much. After an error, the model is
    unchanged.

    Args:
        model: changed in place.
        where: which sites: patterns of names such as ``"encoder.*"``, types of modules, or a function of a
            :class:`hullo.surgery.Site`; or a list of these, one of which must match. All by default.
        functions: which functions, by the names that :func:`hullo.get_base` takes, such as "relu", "GELU" or
            "leaky_relu(0.2)", or "prelu", "xielu" and "poly_relu". By default all but sigmoid, hardsigmoid, softplus,
            sin, arctan, asinh and erf, which often are gates, probabilities or positivity constraints.
        hull: the class of the hulls, or a function that returns a hull for a :class:`hullo.surgery.Site`. By default
            AffineHull, or LinearHull for functions such as xIELU that are not affine combinations.
        bases: the bases of every hull. By default identity, relu and tanh, or identity, tanh and the replaced
            function if it is not a combination of those; for xIELU and PolyReLU their own bases.
        init: the initial coefficients, as in :class:`hullo.AffineHull`; by default those of the replaced function.
        groups: 1 for one activation per site, a number G for one per group of channels, or ``"channels"`` for one per
            channel. The last two need `example_inputs`; a number can be given with `channel_dim` instead.
        channel_dim: the channel dimension: 1 as in convolutions, -1 in transformers. By default it is inferred at each
            site from the operations that computed its input: 1 after a convolution, -1 after a linear layer, moved by
            permutations and reshapes in between. If it cannot be inferred, an error says so.
        parametrization: how raw parameters become coefficients, as in :class:`hullo.AffineHull`.
        share: which sites share a hull: ``"model"`` all of them, ``"block"`` those in the same numbered module, such as
            ``layers.0``, and those in none, or those for which a function of a :class:`hullo.surgery.Site` returns the
            same value; None for no sharing. Sites with different functions or numbers of groups never share a hull,
            nor do frozen and other sites.
        inner_scale: learn a scale of the input, as in :class:`hullo.AffineHull`.
        example_inputs: arguments of the model, as a tensor, a tuple or a dict, to compare outputs and to count
            channels. The runs change neither the model nor random number generators. If hulls do not start as the
            functions they replace, outputs are compared with hulls that do.

    Returns:
        The model. The attribute `replaced` of each hull names the replaced activation.

    Raises:
        ValueError: nothing can be replaced, or an argument does not fit the model.
        RuntimeError: the model with hulls computes something else for `example_inputs`.

    Example:
        >>> import torch, hullo
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
        >>> hullo.replace_activations(model)[1]
        AffineHull(identity=0, tanh=0, gelu=1)
    """
    hulls = [name or "the model" for name in named_hulls("replace_activations", model)]
    _check_model(model)
    check_factory(hull)
    sites = find_sites(model)
    chosen = _choose(sites, hulls, where, functions)
    recipe = Recipe(hull, bases, init, groups, channel_dim, parametrization, share, inner_scale)
    if example_inputs is None and recipe.infers_channels:
        raise ValueError(
            f"groups={groups!r} needs example_inputs, to find and to count the channels; or give groups as a number "
            "and channel_dim: 1 as in convolutions, -1 in transformers"
        )
    structure = Structure(model)
    try:
        if example_inputs is None:
            swap(model, sites, recipe.make(model, chosen, {}))
        else:
            _swap_and_compare(model, sites, chosen, recipe, Comparison(model, example_inputs, backward=True), structure)
    except BaseException:
        structure.restore()
        raise
    expect_optimizer(model)
    return model


def _swap_and_compare(
    model: nn.Module,
    sites: Sequence[Site],
    chosen: Sequence[Site],
    recipe: Recipe,
    comparison: Comparison,
    before: Structure,
) -> None:
    """Put hulls in and compare outputs. If the hulls start as other functions, compare with default hulls first."""
    channels: dict[str, Channels] = {}
    starts_as_original = not recipe.infers_channels
    if starts_as_original:
        hulls = recipe.make(model, chosen, {})
        starts_as_original = all(starts_alike(hulls[site.name], site) for site in chosen)
    if not starts_as_original:
        swap(model, sites, Recipe().make(model, chosen, {}))
        _check(model, comparison, before)
        before.restore()
        if recipe.infers_channels:
            channels = {site.name: _find_channels(comparison, site.name, recipe) for site in chosen}
        hulls = recipe.make(model, chosen, channels)
    comparison.shapes.clear()
    swap(model, sites, hulls)
    if all(starts_alike(hulls[site.name], site) for site in chosen):
        _check(model, comparison, before)
    else:
        comparison.run_changed(model)
    made = {site.name: model.get_submodule(site.name) for site in chosen}
    reached = {made[name] for name in made if name in comparison.shapes}
    for shared in set(made.values()):
        vars(shared)["compared"] = comparison.modes if shared in reached else NOT_REACHED


def _check(model: nn.Module, comparison: Comparison, before: Structure) -> None:
    """Compare outputs. If they differ, test whether those of the original model are reproducible."""
    try:
        comparison.check(model)
    except RuntimeError:
        before.restore()
        if not comparison.repeats(model):
            raise RuntimeError(
                "the original model is not deterministic: with the same random numbers, its outputs differ between "
                "runs and cannot be compared; omit example_inputs"
            ) from None
        raise


def _find_channels(comparison: Comparison, name: str, recipe: Recipe) -> Channels:
    """Return the number of groups and the channel dimension of a site."""
    if name not in comparison.shapes:
        raise ValueError(f"example_inputs do not reach {name}; exclude it with where, or give groups as a number")
    shape, dim = tuple(comparison.shapes[name].shape), recipe.channel_dim
    if dim is None:
        dims = comparison.channel_dims.get(name, {None})
        (dim,) = dims if len(dims) == 1 else (None,)
        if dim is None:
            raise ValueError(
                f"cannot infer the channel dimension of the input of {name}, of shape {shape}; give "
                "channel_dim: 1 as in convolutions, -1 in transformers, with where to choose sites"
            )
    if not -len(shape) <= dim < len(shape):
        raise ValueError(f"channel_dim={dim}: the input of {name} has shape {shape}, without that dimension")
    return shape[dim] if recipe.groups == "channels" else recipe.groups, dim  # type: ignore[return-value]


def _check_model(model: nn.Module) -> None:
    if isinstance(model, torch.jit.ScriptModule):
        raise TypeError(
            f"replace_activations takes a torch.nn.Module with Python code, not a {type(model).__name__}; replace the "
            "activations of the original model, train it, and script the result of hullo.fold"
        )
    for name, module in model.named_modules():
        where = f"{name or 'the model'} has the type {type(module).__name__}"
        kinds = {cls.__name__ for cls in type(module).__mro__}
        if not kinds.isdisjoint(_WRAPPERS):
            raise TypeError(f"{where}; replace the activations first, then wrap or compile the model")
        if ".quantized" in type(module).__module__ and type(module).__name__ != "FloatFunctional":
            raise TypeError(f"{where}, which is quantized; replace the activations first, then quantize")


def _choose(
    sites: list[Site], hulls: list[str], where: Choice | Iterable[Choice] | None, functions: Iterable[str] | None
) -> list[Site]:
    present = f"the model has {len(hulls)} hulls already, such as {hulls[0]}" if hulls else ""
    if not sites and present:
        raise ValueError(f"{present}, and no other activations; hullo.summary lists them, hullo.fold removes them")
    if not sites:
        raise ValueError("no activations were found in the model; to replace a single activation, make a hull yourself")
    families, members = _read_functions(functions)
    choices = _read_choices(where)
    replaceable = [s for s in sites if not s.reason and (s.known.family in families or s.known.name in members)]
    chosen = [site for site in replaceable if choices is None or any(_matches(site, choice) for choice in choices)]
    if not chosen and replaceable:
        listed = ", ".join(site.name for site in replaceable[:8])
        raise ValueError(
            f"where={where!r} matches none of {len(replaceable)} sites: {listed}{', ...' if replaceable[8:] else ''}"
        )
    if not chosen:
        listed = "; ".join(
            f"{site.name or 'the model'} ({site.function}): "
            + (why_not_replaced(site, False) if site.reason or functions is None else f"excluded by {functions=}")
            for site in sites[:8]
        )
        listed += "; ..." if sites[8:] else ""
        raise ValueError(f"{present or 'the model has no hulls'}, and no activation can be replaced: {listed}")
    return chosen


def _read_functions(given: Iterable[str] | None) -> tuple[set[str], set[str]]:
    """Return the families of functions to replace, and single members of others, such as ``leaky_relu(0.2)``."""
    learned = {"prelu", *COMBINATIONS}
    if given is None:
        return {*list_bases(), *learned} - AMBIGUOUS, set()
    if isinstance(given, str):
        raise TypeError(f"functions={given!r}: give a list of names, as in [{given!r}]")
    families, members = set[str](), set[str]()
    for name in given:
        try:
            is_learned = isinstance(name, str) and name.lower() in learned
            chosen = members if isinstance(name, str) and "(" in name else families
            chosen.add(name.lower() if is_learned else get_base(name).name)
        except ValueError:
            valid = ", ".join(sorted({*list_bases(), *learned}))
            raise ValueError(f"unknown function {name!r} in functions; known are {valid}") from None
    return families, members


def _read_choices(where: Choice | Iterable[Choice] | None) -> list[Choice] | None:
    """Return what `where` selects as a list; None for all sites."""
    if where is None:
        return None
    given = list(where) if isinstance(where, Iterable) and not isinstance(where, (str, type)) else [where]
    for choice in given:
        if not (isinstance(choice, str) or callable(choice)):
            raise TypeError(
                f"where={where!r}: give patterns of names such as 'encoder.*', types of modules, or a function of a "
                "hullo.surgery.Site"
            )
    return given


def _matches(site: Site, choice: Choice) -> bool:
    if isinstance(choice, str):
        return fnmatch.fnmatchcase(site.name, choice)
    return isinstance(site.module, choice) if isinstance(choice, type) else bool(choice(site))
