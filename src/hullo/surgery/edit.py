"""Put hulls into a model: as children in the place of activations, and by changing the expressions that call them."""

from __future__ import annotations

import copy
import functools
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from torch import nn

from hullo.modules import Hull
from hullo.surgery.build import frozen_sites
from hullo.surgery.observe import Call
from hullo.surgery.prove import Comparison
from hullo.surgery.sites import Site, Slot, input_of
from hullo.surgery.source import call_at, functions_in, loops_around, position
from hullo.surgery.write import Edits, NewMethod, origin_of, rewritten

_HOOKS = [name for name in vars(nn.Identity()) if name.startswith(("_forward_", "_backward_", "_is_full_backward"))]


def swap(model: nn.Module, sites: Sequence[Site], hulls: Mapping[str, Hull]) -> None:
    """Put hulls into a model. An error may leave it half changed: the caller restores it with `Structure`.

    A module that is called by several expressions becomes several children; those without a hull are the module itself.
    Hulls in frozen modules are frozen.

     Args:
         model: the model.
         sites: all its sites.
         hulls: the hulls, by the names of their sites.
    """
    chosen = [site for site in sites if site.slots and site.name in hulls]
    taken = {id(site.module) for site in chosen if site.module is not None}
    affected = [site for site in sites if site.slots and (site.name in hulls or id(site.module) in taken)]
    frozen = frozen_sites(model, chosen)
    _check_loops(affected, hulls)
    for owner, methods in _methods(affected):
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
    _disable_fast_paths(model)


def _disable_fast_paths(model: nn.Module) -> None:
    """Disable the fused path and the nested tensors of encoders with hulls."""
    for module in model.modules():
        if any(isinstance(part, Hull) for part in module.modules()):
            if isinstance(module, nn.TransformerEncoder):
                module.use_nested_tensor = False
            elif isinstance(module, nn.TransformerEncoderLayer):
                module.activation_relu_or_gelu = 0


def _check_loops(affected: Sequence[Site], hulls: Mapping[str, Hull]) -> None:
    """Raise an error if only some of the hulls of a loop are chosen, and the others are functions."""
    for site in affected:
        if site.slots[0].key and site.name not in hulls and site.module is None:
            raise ValueError(f"where must select all sites of the loop of {site.name}, or none")


def _methods(sites: Sequence[Site]) -> list[tuple[nn.Module, list[NewMethod]]]:
    """Return the modules whose code changes, with their rewritten methods."""
    edits: dict[int, dict[tuple[type, str, int], Edits]] = defaultdict(lambda: defaultdict(Edits))
    owners: dict[int, nn.Module] = {}
    functions: dict[tuple[type, str, int], Any] = {}
    for site in sites:
        for call in site.edited:
            assert call.owner is not None and call.method is not None  # noqa: S101, PT018
            home, name, function = call.method
            index = functions_in(vars(home)[name]).index(function)
            owners[id(call.owner)] = call.owner
            functions[home, name, index] = function
            _edit(edits[id(call.owner)][home, name, index], call, site.slots[0], function)
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


def _edit(change: Edits, call: Call, slot: Slot, function: Any) -> None:
    """Make the expression of a call call the hull at a slot."""
    node: Any = call_at(function, call.position)
    at = position(node)
    callee = f"{function.__code__.co_varnames[0]}.{slot.name}"
    if slot.key:
        counters = {loop: f"iteration_{loop[0]}_{loop[1]}" for loop in loops_around(function, node)}
        change.counters |= counters
        callee += f".at({', '.join(counters.values())})"
    change.callees[at] = callee
    change.inputs[at] = position(input_of(node, call.argument))  # type: ignore[arg-type]  # checked by the planner


def learn_turns(model: nn.Module, sites: Sequence[Site], comparison: Comparison) -> list[Site]:
    """Find out which iterations of loops call which hull, by running a swapped model; fill `turns` of the slots.

    Returns:
        The sites of expressions around which no loop decides.
    """
    by_spot: dict[Hashable, list[Site]] = defaultdict(list)
    for site in sites:
        by_spot[site.edited[0].spot].append(site)
    expected: dict[Hashable, list[str]] = {}  # the hulls of each loop, in the order of the calls
    seen: dict[Hashable, dict[tuple[int, ...], set[str]]] = {spot: defaultdict(set) for spot in by_spot}

    def look_up(spot: Hashable, container: Any, *iterations: int) -> nn.Module:
        name = expected[spot].pop(0) if expected[spot] else ""
        seen[spot][iterations].add(name)
        hull: nn.Module = container[name or next(iter(container))]
        return hull

    for spot, own in by_spot.items():
        container = own[0].slots[0].parent._modules[own[0].slots[0].name]
        vars(container)["at"] = functools.partial(look_up, spot, container)
    for mode in comparison.expected:
        for spot, own in by_spot.items():
            keys = {id(call): site.slots[0].key for site in own for call in site.calls}
            calls = (call for call in comparison.calls if call.run[0] == mode and id(call) in keys)
            expected[spot] = [keys[id(call)] for call in calls]
        comparison.run_changed(model, mode, backward=False)
    undecided: list[Site] = []
    for spot, own in by_spot.items():
        depth = len(next(iter(seen[spot]), ()))
        choices = [*([n] for n in reversed(range(depth))), list(range(depth))]
        decided = ((loops, hulls) for loops in choices if loops and (hulls := _decide(seen[spot], loops)))
        turns = own[0].slots[0].turns
        turns.loops, turns.hulls = next(decided, ([], {}))
        undecided += [] if turns.hulls else own
    return undecided


def _decide(seen: Mapping[tuple[int, ...], set[str]], loops: list[int]) -> dict[tuple[int, ...], str] | None:
    """Return the hull for each iteration of some of the loops; None if they do not decide."""
    names: dict[tuple[int, ...], set[str]] = defaultdict(set)
    for iterations, hulls in seen.items():
        names[tuple(iterations[n] for n in loops)] |= hulls
    if any(len(hulls) > 1 or "" in hulls for hulls in names.values()):
        return None
    return {key: next(iter(hulls)) for key, hulls in names.items()}


def _prepare(hull: Hull, site: Site, first: bool) -> None:
    """Give a hull the mode and the hooks of the activation at its site."""
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
