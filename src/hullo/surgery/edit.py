"""Put hulls into a model: as children in the place of activations, and by changing the expressions that call them."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from hullo.modules import Hull
from hullo.surgery.build import is_frozen
from hullo.surgery.encoder import slow_encoders
from hullo.surgery.in_place import make_in_place
from hullo.surgery.observe import Call
from hullo.surgery.sites import Site, Slot, input_of
from hullo.surgery.source import Position, call_at, functions_in, loops_around, position
from hullo.surgery.write import Edits, NewMethod, PerIteration, origin_of, rewritten

_HOOKS = [name for name in vars(nn.Identity()) if name.startswith(("_forward_", "_backward_", "_is_full_backward"))]

Spot = tuple[Any, ...]  # an expression that calls an activation


@dataclass
class Turns:
    """Hold the loops whose iterations decide which hull a call goes to, and the name of the hull for each."""

    loops: list[Position]
    hulls: dict[str, str]


def swap(
    model: nn.Module,
    sites: Sequence[Site],
    hulls: Mapping[str, Hull],
    turns: Mapping[Spot, Turns],
) -> None:
    """Put hulls into a model. An error may leave it half changed: the caller restores it with `Structure`.

    A module that is called by several expressions becomes several children; those without a hull are the module itself.
    Hulls in frozen modules are frozen.

    Args:
        model: the model.
        sites: all its sites.
        hulls: the hulls, by the names of their sites.
        turns: which iterations call which hull, for each expression in a loop; for others, all loops are counted.
    """
    chosen = [site for site in sites if site.slots and site.name in hulls]
    taken = {id(site.module) for site in chosen if site.module is not None}
    affected = [site for site in sites if site.slots and (site.name in hulls or id(site.module) in taken)]
    hulls = _separate_in_place(chosen, hulls)
    modules = dict(model.named_modules())
    frozen = {site.name for site in chosen if is_frozen(modules, site.name, site.module)}
    _check_loops(affected, hulls)
    for owner, methods in _methods(affected, turns):
        owner.__class__ = rewritten(owner, methods)
    hooked: set[int] = set()
    for site in affected:
        hull = hulls.get(site.name)
        if hull is not None:
            _prepare(hull, site, first=id(site.module) not in hooked)
            hooked.add(id(site.module))
            if site.name in frozen:
                hull.requires_grad_(False)
        for slot in site.slots:
            slot.put(hull or site.module)  # type: ignore[arg-type]  # a module of which other calls get hulls
            if slot.key and site.edited[0].spot in turns:
                slot.parent._modules[slot.name].turns = turns[site.edited[0].spot].hulls  # type: ignore[union-attr]
    slow_encoders(model)


def _check_loops(affected: Sequence[Site], hulls: Mapping[str, Hull]) -> None:
    """Raise an error if only some of the hulls of a loop are chosen, and the others are functions."""
    for site in affected:
        if site.slots[0].key and site.name not in hulls and site.module is None:
            raise ValueError(f"where must select all sites of the loop of {site.name}, or none")


def _methods(sites: Sequence[Site], turns: Mapping[Spot, Turns]) -> list[tuple[nn.Module, list[NewMethod]]]:
    """Return the modules whose code changes, with their rewritten methods."""
    edits: dict[int, dict[tuple[type, str, int], Edits]] = defaultdict(lambda: defaultdict(Edits))
    owners: dict[int, nn.Module] = {}
    functions: dict[tuple[type, str, int], Any] = {}
    for site in sites:
        for slot in site.slots:
            has_own_state = type(slot.parent).__setstate__ is not nn.Module.__setstate__  # which may set it again
            if slot.name in vars(slot.parent) or has_own_state:
                owners[id(slot.parent)] = slot.parent
        for call in site.edited:
            assert call.owner is not None and call.method is not None  # noqa: S101, PT018
            home, name, function = call.method
            index = functions_in(vars(home)[name]).index(function)
            owners[id(call.owner)] = call.owner
            functions[home, name, index] = function
            loops = turns[call.spot].loops if call.spot in turns else loops_of(call)
            _edit(edits[id(call.owner)][home, name, index], call, site.slots[0], function, loops)
    return [
        (
            owner,
            [
                NewMethod(origin_of(key[0]), key[1], ((key[2], change.applied_to(functions[key])),))
                for key, change in edits[number].items()
            ],
        )
        for number, owner in owners.items()
    ]


def _edit(change: Edits, call: Call, slot: Slot, function: Any, loops: list[Position]) -> None:
    """Make the expression of a call call the hull at a slot."""
    node: Any = call_at(function, call.position)
    at = position(node)
    callee = f"{function.__code__.co_varnames[0]}.{slot.name}"
    if slot.key:
        counters = [(loop, f"iteration_{loop[0]}_{loop[1]}") for loop in loops]
        change.counters |= dict(counters)
        index = "_".join(f"{{{name}}}" for _, name in counters)
        callee += f'.at(f"{index}")'
    change.callees[at] = callee
    change.inputs[at] = position(input_of(node, call.argument))  # type: ignore[arg-type]  # checked by the planner


def loops_of(call: Call) -> list[Position]:
    """Return the loops around the expression of a call, outermost first."""
    assert call.method is not None  # noqa: S101
    node: Any = call_at(call.method[2], call.position)
    return loops_around(call.method[2], node)


class _Log:
    """Hold what a loop calls. It has no __dict__, so that it is not restored after a run."""

    __slots__ = ("expected", "seen")

    def __init__(self) -> None:
        self.expected: list[str] = []  # the hulls, in the order of the calls
        self.seen: dict[tuple[str, ...], set[str]] = {}  # the hulls by iteration


class _Learning(PerIteration):
    """Record for which iterations a loop calls which hull, from the order of its calls."""

    log: _Log

    def at(self, key: str) -> nn.Module:
        name = self.log.expected.pop(0) if self.log.expected else ""
        self.log.seen.setdefault(tuple(key.split("_")), set()).add(name)
        return self[name or next(iter(self))]


def learn_turns(
    sites: Sequence[Site], run: Callable[[str], object], modes: Iterable[str]
) -> tuple[dict[Spot, Turns], set[Spot]]:
    """Find out which iterations of the loops in a swapped model call which hull.

    Args:
        sites: the sites, which were swapped with all loops around them counted.
        run: a function that runs the model in a mode.
        modes: the modes.

    Returns:
        The turns by expression, and the expressions in no loop that decides.
    """
    by_spot: dict[Spot, list[Site]] = defaultdict(list)
    for site in sites:
        if site.slots[0].key:
            by_spot[site.edited[0].spot].append(site)
    containers: dict[Spot, Any] = {}
    for spot, own in by_spot.items():
        slot = own[0].slots[0]
        containers[spot] = slot.parent._modules[slot.name]
        containers[spot].__class__, containers[spot].log = _Learning, _Log()
    for mode in modes if by_spot else ():
        for spot, own in by_spot.items():
            keys = {id(call): site.slots[0].key for site in own for call in site.calls}
            calls = sorted((call for site in own for call in site.calls), key=lambda call: call.order)
            containers[spot].log.expected = [keys[id(call)] for call in calls if call.run[0] == mode]
        run(mode)
    turns: dict[Spot, Turns] = {}
    for spot, container in containers.items():
        around = loops_of(by_spot[spot][0].edited[0])
        choices = [*([n] for n in reversed(range(len(around)))), list(range(len(around)))]
        for chosen in choices if around else ():
            hulls = _decide(container.log.seen, chosen)
            if hulls is not None and spot not in turns:
                turns[spot] = Turns([around[n] for n in chosen], hulls)
    return turns, containers.keys() - turns.keys()


def _decide(seen: Mapping[tuple[str, ...], set[str]], chosen: list[int]) -> dict[str, str] | None:
    """Return the hull for each iteration of the chosen loops; None if these do not decide."""
    names: dict[str, set[str]] = defaultdict(set)
    for key, hulls in seen.items():
        names["_".join(key[n] for n in chosen)].update(hulls)
    if any(len(hulls) > 1 or "" in hulls for hulls in names.values()):
        return None
    return {key: next(iter(hulls)) for key, hulls in names.items()}


def _separate_in_place(sites: Sequence[Site], hulls: Mapping[str, Hull]) -> dict[str, Hull]:
    """Return the hulls, and twins with the same parameters where a hull is shared with sites that are not in place."""
    ordinary = {hulls[site.name] for site in sites if not site.reading.in_place}
    separate, twins = dict(hulls), dict[Hull, Hull]()
    for site in sites:
        hull = hulls[site.name]
        if site.reading.in_place and hull in ordinary:
            if hull not in twins:
                twins[hull] = copy.deepcopy(hull, {id(item): item for item in hull.parameters()})
            separate[site.name] = twins[hull]
    return separate


def _prepare(hull: Hull, site: Site, first: bool) -> None:
    """Give a hull the mode, the hooks and the in-place behavior of the activation at its site."""
    if site.reading.in_place:
        make_in_place(hull)
    places = list(dict.fromkeys(call.place for call in site.calls)) if site.place else []
    called = f" in {' and '.join(places)}" if places else ""
    replaced = type(site.module).__name__ if site.module else site.function + called
    vars(hull)["replaced"] = replaced
    vars(hull)["how_to_avoid"] = (
        f" (the hull {site.name} replaced {replaced}; to keep the original there, start from the original model and "
        f"call replace_activations with where=lambda site: site.name != {site.name!r})"
    )
    source = site.module or site.slots[0].parent
    hull.train(source.training)
    if site.module is not None:
        transfer_hooks(hull, site.module, copies=not first)


def transfer_hooks(new: nn.Module, old: nn.Module, copies: bool = False) -> None:
    """Give a module the hooks of another: the same dictionaries, whose handles remain valid, or copies."""
    for name in _HOOKS:
        hooks = getattr(old, name)
        setattr(new, name, copy.copy(hooks) if copies else hooks)
