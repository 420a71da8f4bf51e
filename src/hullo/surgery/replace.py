"""replace_activations: the activations of a model become hulls."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import nn

from hullo.bases import Base, list_bases
from hullo.modules import Hull, Init
from hullo.surgery.compare import Comparison
from hullo.surgery.making import Channels, Factory, Recipe, Share, starts_alike
from hullo.surgery.optimizers import expect_optimizer
from hullo.surgery.parametric import COMBINATIONS
from hullo.surgery.recognise import AMBIGUOUS
from hullo.surgery.sites import Site
from hullo.surgery.summary import NOT_REACHED, why_left
from hullo.surgery.survey import survey
from hullo.surgery.swap import Undo, swap
from hullo.surgery.untouched import Inputs

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
    parametrization: str | None = None,
    share: Share | None = None,
    inner_scale: str | None = None,
    example_inputs: Inputs | None = None,
) -> nn.Module:
    r"""Turn the activations of a model into hulls that start as the functions they replace.

    Modules are found wherever they are and whatever they are called: a module without parameters that does what a base
    does, entry by entry, is that base. Calls of functions (``F.relu(x)``, ``torch.tanh(x)``, ``x.relu()``) are found in
    the code of every forward, which is written anew with hulls in their place; control flow, arguments and names of
    parameters stay as they were.

    Every call gets a hull of its own: an activation that is called twice becomes two hulls, and one in a loop over
    parts of the model becomes one per turn. All turns of a loop whose length depends on the input share one, and so do
    calls on branches that exclude each other, as in ``if self.training: ... else: ...``: what is learned on one branch
    holds on the other. What cannot be replaced safely is left alone; :func:`hullo.summary` says what and why.

    With `example_inputs`, the outputs before and after are compared, in training and in evaluation mode, with the same
    random numbers. Where they differ by more than rounding, an error says by how much. Whenever there is an error, the
    model is as it was.

    Args:
        model: changed in place.
        where: which sites: patterns of names such as ``"encoder.*"``, types of modules, or a function of a
            :class:`hullo.surgery.Site`; one of them, or several of which one has to fit. All by default.
        functions: which functions, by a base's name. All by default but sigmoid, hardsigmoid, softplus, sin, arctan,
            asinh and erf, which serve as gates, as probabilities or to keep numbers positive just as often.
        hull: the class of the hulls, or a function that makes a hull for a :class:`hullo.surgery.Site`. By default
            AffineHull, and LinearHull where what was there is no affine combination, as xIELU.
        bases: the bases of every hull; by default identity, relu, tanh and, where it is no combination of these, the
            function that was there; those of xIELU and PolyReLU for these.
        init: the initial coefficients, as in :class:`hullo.AffineHull`; those of the function that was there by
            default.
        groups: 1 is one activation for each site, a number G is one for each of G groups of channels, and
            ``"channels"`` one for each channel. Both take `example_inputs`, a number takes `channel_dim` instead, too.
        channel_dim: the dimension of the channels: 1 as in convolutions, -1 in transformers. By default it is found at
            each site from the operations that made its input: 1 after a convolution, -1 after a linear layer, moved by
            what permutes and reshapes in between. Where they do not tell, an error says so.
        parametrization: how raw parameters become coefficients, as in :class:`hullo.AffineHull`.
        share: which sites have one hull in common, whose gradients add up: ``"model"`` all of them, ``"block"`` those
            in the same numbered module, such as ``layers.0``, or those for which a function of a
            :class:`hullo.surgery.Site` returns the same; None is a hull of its own. Sites with different functions
            never share one.
        inner_scale: learn a scale inside of the functions, as in :class:`hullo.AffineHull`.
        example_inputs: what the model is given, as a tensor, a tuple or a dict, to compare outputs and to count
            channels. The runs leave no trace in the model or in the random numbers. Hulls that do not start as what
            they replace are compared by hulls that do.

    Returns:
        The model; each hull's `replaced` tells what was there.

    Raises:
        ValueError: nothing can be replaced, or an argument does not fit the model.
        RuntimeError: with hulls, the model does not compute what it did for `example_inputs`.

    Example:
        >>> import torch, hullo
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
        >>> hullo.replace_activations(model)[1]
        AffineHull(identity=0, relu=0, tanh=0, gelu=1)
    """
    _check_model(model)
    sites = survey(model)
    hulls = [name or "the model" for name, module in model.named_modules() if isinstance(module, Hull)]
    chosen = _choose(sites, hulls, where, functions)
    recipe = Recipe(hull, bases, init, groups, channel_dim, parametrization, share, inner_scale)
    if example_inputs is None and (groups == "channels" or (groups != 1 and channel_dim is None)):
        raise ValueError(
            f"groups={groups!r} takes example_inputs, to find and to count the channels; or give groups as a number "
            "and channel_dim: 1 as in convolutions, -1 in transformers"
        )
    undo = Undo(model)
    try:
        if example_inputs is None:
            swap(model, sites, recipe.make(model, chosen, {}))
        else:
            _swap_and_compare(model, sites, chosen, recipe, Comparison(model, example_inputs), undo)
    except BaseException:
        undo()
        raise
    expect_optimizer(model, (module for module in model.modules() if isinstance(module, Hull)))
    return model


def _swap_and_compare(
    model: nn.Module, sites: Sequence[Site], chosen: Sequence[Site], recipe: Recipe, net: Comparison, undo: Undo
) -> None:
    """Put hulls in, first such as compute what was there if others are wanted, and compare the outputs."""
    channels: dict[str, Channels] = {}
    finds_channels = recipe.groups == "channels" or (recipe.groups != 1 and recipe.channel_dim is None)
    alike = not finds_channels
    if alike:
        made = recipe.make(model, chosen, {})
        alike = all(starts_alike(made[site.name], site) for site in chosen)
    if not alike:
        swap(model, sites, Recipe().make(model, chosen, {}))
        _check(model, net, undo)
        undo()
        if finds_channels:
            channels = {site.name: _find_channels(net, site.name, recipe) for site in chosen}
        made = recipe.make(model, chosen, channels)
    net.shapes.clear()
    swap(model, sites, made)
    if all(starts_alike(made[site.name], site) for site in chosen):
        _check(model, net, undo)
    else:
        net.try_out(model)
    reached = {made[site.name] for site in chosen if site.name in net.shapes}
    for shared in set(made.values()):
        vars(shared)["compared"] = net.modes if shared in reached else NOT_REACHED


def _check(model: nn.Module, net: Comparison, undo: Undo) -> None:
    """Compare outputs, and say so if the model as it was does not repeat its own."""
    try:
        net.check(model)
    except RuntimeError:
        undo()
        if not net.repeats(model):
            raise RuntimeError(
                "the model computes something else whenever it is run, with the same random numbers: there is nothing "
                "to compare with; leave out example_inputs"
            ) from None
        raise


def _find_channels(net: Comparison, name: str, recipe: Recipe) -> Channels:
    """Return the groups that a site gets, and the dimension that holds its channels."""
    if name not in net.shapes:
        raise ValueError(f"example_inputs do not reach {name}; leave it out with where, or give groups as a number")
    shape, dim = tuple(net.shapes[name].shape), recipe.channel_dim
    if dim is None:
        found = net.channel_dims.get(name, {None})
        (dim,) = found if len(found) == 1 else (None,)
        if dim is None:
            raise ValueError(
                f"the operations before {name} do not tell which dimension of its input, of shape {shape}, holds the "
                "channels; give channel_dim: 1 as in convolutions, -1 in transformers, with where to choose sites"
            )
    if not -len(shape) <= dim < len(shape):
        raise ValueError(f"{name} sees a tensor of shape {shape}, without a dimension {dim}")
    return shape[dim] if recipe.groups == "channels" else recipe.groups, dim  # type: ignore[return-value]


def _check_model(model: nn.Module) -> None:
    if not isinstance(model, nn.Module) or isinstance(model, torch.jit.ScriptModule):
        kind = type(model).__name__
        raise TypeError(
            f"replace_activations takes a torch.nn.Module with Python code, not a {kind}; replace, then script"
        )
    for name, module in model.named_modules():
        where = f"{name or 'the model'} is a {type(module).__name__}"
        kinds = {cls.__name__ for cls in type(module).__mro__}
        if not kinds.isdisjoint(_WRAPPERS):
            raise TypeError(f"{where}; replace the activations of the model inside first, then wrap or compile it")
        if ".quantized" in type(module).__module__ and type(module).__name__ != "FloatFunctional":
            raise TypeError(f"{where}, which is quantised; replace the activations first, then quantise")


def _choose(
    sites: list[Site], hulls: list[str], where: Choice | Iterable[Choice] | None, functions: Iterable[str] | None
) -> list[Site]:
    present = f"the model has {len(hulls)} hulls already, such as {hulls[0]}" if hulls else ""
    if not sites and present:
        raise ValueError(f"{present}, and no other activations; hullo.summary lists them, hullo.fold takes them out")
    if not sites:
        raise ValueError(
            "the model has no activations that could be found; for a model that is one, use the hull itself"
        )
    if isinstance(functions, str):
        raise TypeError(f"functions are given as a list of names, as in [{functions!r}]")
    every = frozenset({*list_bases(), "prelu", *COMBINATIONS})
    wanted = every - AMBIGUOUS if functions is None else frozenset(functions)
    for name in wanted - every:
        raise ValueError(f"unknown function {name!r} in functions; known are {', '.join(sorted(every))}")
    choices = [where] if isinstance(where, str) or callable(where) else None if where is None else list(where)
    free = [site for site in sites if not site.reason and site.known.family in wanted]
    chosen = [site for site in free if choices is None or any(_fits(site, choice) for choice in choices)]
    if not chosen and free:
        listed = ", ".join(site.name for site in free[:8])
        raise ValueError(f"where={where!r} fits none of the {len(free)} sites: {listed}{', ...' if free[8:] else ''}")
    if not chosen:
        listed = "; ".join(f"{site.name or 'the model'} ({site.function}): {why_left(site)}" for site in sites[:8])
        listed += "; ..." if sites[8:] else ""
        raise ValueError(f"{present or 'the model has no hulls'}, and no activation can be replaced: {listed}")
    return chosen


def _fits(site: Site, choice: Choice) -> bool:
    if isinstance(choice, str):
        return fnmatch.fnmatchcase(site.name, choice)
    return isinstance(site.module, choice) if isinstance(choice, type) else bool(choice(site))
