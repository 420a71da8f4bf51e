"""Change a model: put modules in the places of activations, change the code that calls them, and undo all of it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

from torch import nn

from hullo.modules import Hull
from hullo.surgery.changes import changed_classes
from hullo.surgery.encoders import slow_encoders
from hullo.surgery.inplace import change_input
from hullo.surgery.sites import Site

_HOOKS = [name for name in vars(nn.Identity()) if name.startswith(("_forward_", "_backward_", "_is_full_backward"))]


def take_hooks(new: nn.Module, old: nn.Module, copies: bool = False) -> None:
    """Give a module another one's hooks: the very ones, so that their handles still remove them, or copies."""
    for name in _HOOKS:
        hooks = getattr(old, name)
        setattr(new, name, copy.copy(hooks) if copies else hooks)


class Undo:
    """What a model is made of, to be gone back to: the class, the attributes and the children of every module.

    Args:
        model: the model; its tensors are not copied.
    """

    def __init__(self, model: nn.Module) -> None:
        self._states = [(module, type(module), dict(vars(module)), dict(module._modules)) for module in model.modules()]

    def __call__(self) -> None:
        """Make the model what it was."""
        for module, cls, attributes, children in self._states:
            module.__class__ = cls
            vars(module).clear()
            vars(module).update(attributes)
            module._modules.clear()
            module._modules.update(children)


def swap(model: nn.Module, sites: Sequence[Site], made: Mapping[str, Hull]) -> None:
    """Put hulls in their places, and what was there in the places of the same module that get none.

    Args:
        model: the model; as it was, if anything goes wrong.
        sites: all its sites.
        made: the hulls, by the names of their sites.
    """
    undo = Undo(model)
    try:
        _swap(model, sites, made)
    except BaseException:
        undo()
        raise


def _swap(model: nn.Module, sites: Sequence[Site], made: Mapping[str, Hull]) -> None:
    touched = {id(site.group) for site in sites if site.group is not None and site.name in made}
    moved = [site for site in sites if site.name in made or (id(site.group) in touched and site.group is not None)]
    for site in moved:
        if site.name not in made and site.module is None:
            raise ValueError(f"{site.name} is one of several calls of one function; choose all of them, or none")
    for owner, cls in changed_classes(moved, sites):
        owner.__class__ = cls
    hooked: set[int] = set()
    for site in moved:
        assert site.home is not None  # noqa: S101  (a site with a reason is never chosen)
        hull = made.get(site.name)
        if hull is not None:
            _settle(hull, site, first=id(site.module) not in hooked)
            hooked.add(id(site.module))
        site.home.put(hull or site.module)  # type: ignore[arg-type]  # one of the two is there: see above
    slow_encoders(model)


def _settle(hull: Hull, site: Site, first: bool) -> None:
    """Give a hull what else its place had: mode, hooks, and whether it changes its input."""
    if site.reading is not None and site.reading.in_place:
        change_input(hull)
    places = list(dict.fromkeys(call.place for call in site.calls)) if site.place else []
    called = f" in {' and '.join(places)}" if places else ""
    replaced = type(site.module).__name__ if site.module else site.function + called
    vars(hull)["replaced"] = replaced
    vars(hull)["how_to_avoid"] = (
        f" (the hull {site.name} took the place of {replaced}; to leave that as it is, replace the activations of the "
        f"model as it was with where=lambda site: site.name != {site.name!r})"
    )
    source = site.module or site.home.keeper  # type: ignore[union-attr]
    hull.train(source.training)
    if site.module is not None:
        take_hooks(hull, site.module, copies=not first)
