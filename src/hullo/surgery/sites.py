"""Group the observed calls of activations into sites, and choose where the hull of each is stored."""

from __future__ import annotations

import ast
import builtins
import itertools
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from torch import nn
from torch.fx import GraphModule
from torch.nn.utils.parametrize import ParametrizationList

from hullo.modules import Hull
from hullo.recognition.known import Known, Reading
from hullo.surgery.observe import Call
from hullo.surgery.source import call_at, parse
from hullo.surgery.write import PerTurn, why_not_rewritten

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_ONE_MODE = "training and evaluation mode call other activations here, and which of them answer each other is not clear"


@dataclass(eq=False)
class Site:
    """A place in a model where an activation is called.

    Args:
        name: the name of a hull there, such as ``encoder.layers.0.activation``.
        function: the activation; if it is a base, its name, such as ``gelu`` or ``leaky_relu(0.2)``.
        module: the module there; None for a function.
        place: the line that calls a function, or a module that is called more than once.
        reason: why a hull cannot replace it; empty if one can.
    """

    name: str
    function: str
    module: nn.Module | None = None
    place: str = ""
    reason: str = ""
    reading: Reading = field(default_factory=lambda: Reading(None), repr=False)
    calls: Sequence[Call] = field(default=(), repr=False)
    slots: Sequence[Slot] = field(default=(), repr=False)
    edited: Sequence[Call] = field(default=(), repr=False)  # one for each expression that is changed to call the hull

    @property
    def known(self) -> Known:
        """Return the function there, for a site without a reason."""
        assert self.reading.known is not None  # noqa: S101
        return self.reading.known


@dataclass(frozen=True, eq=False)
class Slot:
    """Describe where a hull is stored: a child of a module, or for a loop, one of several below a child."""

    parent: nn.Module
    name: str
    key: str = ""
    container: PerTurn | None = None

    def put(self, module: nn.Module) -> None:
        """Store a module here."""
        if self.container is not None:
            self.container[self.key] = module
            self.container.training = self.parent.training
        self.parent._modules[self.name] = module if self.container is None else self.container


Group = list[Call]  # the calls that share a hull


def group_calls(calls: Sequence[Call]) -> list[Group]:
    """Return the calls that share a hull, in the order of the first.

    These are the calls by one expression in one module. In a loop, only those after the same submodule with weights
    share a hull. An expression that runs in training mode only shares it with the one that takes its place in
    evaluation mode.
    """
    by_spot: dict[Hashable, Group] = defaultdict(list)
    for call in calls:
        by_spot[call.spot].append(call)
    order = {id(call): n for n, call in enumerate(calls)}
    groups = [group for same in by_spot.values() for group in _by_turn(same)]
    return _join_modes(sorted(groups, key=lambda group: order[id(group[0])]))


def _by_turn(calls: Group) -> list[Group]:
    """Return the calls by one expression that share a hull: those after the same submodule, if these take turns."""
    for keys in ([(call.last, call.reading.known) for call in calls], [call.reading.known for call in calls]):
        groups: dict[Hashable, Group] = defaultdict(list)
        turns: dict[Hashable, list[int]] = defaultdict(list)
        for key, call in zip(keys, calls, strict=True):
            groups[key].append(call)
            turns[call.mode, call.invocation].append(list(groups).index(key))
        if all(turn == n % len(groups) for numbers in turns.values() for n, turn in enumerate(numbers)):
            return list(groups.values())
    return [calls]


def _join_modes(groups: list[Group]) -> list[Group]:
    """Join the groups of a module that run in training mode only with those that run in evaluation mode only.

    They have to be the same functions in the same order; others are listed.
    """
    by_owner: dict[int, dict[str, list[Group]]] = defaultdict(lambda: defaultdict(list))
    for group in groups:
        modes = {call.mode for call in group}
        if len(modes) == 1:
            by_owner[id(group[0].owner)][modes.pop()].append(group)
    joined: set[int] = set()
    for first, second in (by_mode.values() for by_mode in by_owner.values() if len(by_mode) == 2):
        if [group[0].reading.known for group in first] == [group[0].reading.known for group in second]:
            for one, other in zip(first, second, strict=True):
                one += other
                joined.add(id(other))
        else:
            for call in (call for group in (*first, *second) for call in group):
                call.reading = Reading(call.reading.known, _ONE_MODE)
    return [group for group in groups if id(group) not in joined]


class Planner:
    """Decide for each group of calls where its hull is stored, and which expressions are changed.

    A hull takes the place of the module that the calls call, wherever it is registered. If other groups call it, too,
    only one of them keeps the place. Any other hull is a new child of the module whose code makes the calls, and this
    code is changed.
    """

    def __init__(self, model: nn.Module, groups: Sequence[Group]) -> None:
        self.model, self.groups = model, groups
        self.paths = {id(module): name for name, module in model.named_modules()}
        self.registered: dict[int, list[tuple[nn.Module, str]]] = defaultdict(list)
        for parent in model.modules():
            for name, child in parent._modules.items():
                if child is not None:
                    self.registered[id(child)].append((parent, name))
        self.of_module: dict[int, list[Group]] = defaultdict(list)
        self.of_spot: dict[Hashable, list[Group]] = defaultdict(list)
        for group in groups:
            for callee in {id(call.callee): call for call in group if call.callee is not None}:
                self.of_module[callee].append(group)
            for spot in dict.fromkeys(call.spot for call in group):
                self.of_spot[spot].append(group)
        self.containers: dict[Hashable, tuple[nn.Module, str, PerTurn]] = {}
        self.new_names: set[tuple[int, str]] = set()

    def sites(self) -> list[Site]:
        return [self._site(group) for group in self.groups]

    def _path(self, parent: nn.Module | None, *parts: str) -> str:
        return ".".join(part for part in (self.paths.get(id(parent), ""), *parts) if part)

    def _new_name(self, owner: nn.Module, stem: str) -> str:
        """Return the first of stem, stem_2, stem_3, ... that a module does not have."""
        stem = re.sub(r"\W", "_", stem)
        stem = name = f"layer_{stem}" if stem[:1].isdigit() else stem
        number = 1
        while hasattr(owner, name) or (id(owner), name) in self.new_names:
            number += 1
            name = f"{stem}_{number}"
        self.new_names.add((id(owner), name))
        return name

    def _site(self, group: Group) -> Site:
        call, reading = group[0], group[0].reading
        module = next((item.callee for item in group if item.callee is not None), None)
        names = (item.reading.known.spelling if item.reading.known else item.what for item in group)
        function = ", ".join(dict.fromkeys(names))
        reason = reading.reason or _why_not(group)
        slots: Sequence[Slot] = ()
        edited: Sequence[Call] = ()
        if not reason and reading.known is not None:
            slots, edited = self._place(group, module)
            reason = next((why for item in edited if (why := why_not_edited(item))), "")
        if reason or not slots:
            at = self.registered.get(id(module), [])
            name = self._path(*at[0]) if at else self._path(call.owner)
            return Site(name, function, module, "" if at else call.place, reason, reading, group)
        name = self._path(slots[0].parent, slots[0].name, slots[0].key)
        place = call.place if module is None or len(self.of_module[id(module)]) > 1 else ""
        return Site(name, function, module, place, "", reading, group, slots, edited)

    def _place(self, group: Group, module: nn.Module | None) -> tuple[Sequence[Slot], Sequence[Call]]:
        """Return the slots of the hull, and the calls to change, one for each expression."""
        firsts = list({call.spot: call for call in group}.values())
        call, owner, at = firsts[0], firsts[0].owner, self.registered.get(id(module), [])
        in_loop = self.of_spot[call.spot]
        if owner is not None and len(in_loop) > 1:
            index = [item is group for item in in_loop].index(True)
            own = [name for parent, name in at if parent is owner]
            if isinstance(owner, nn.Sequential) and len(own) == len(in_loop):  # it calls each name once
                return [Slot(owner, own[index])], []
            if call.spot not in self.containers:
                keeps = bool(own) and len(self.of_module[id(module)]) == len(in_loop)
                name = own[0] if keeps else self._new_name(owner, own[0] if own else _stem(call))
                turns = Counter((item.spot, item.mode, item.invocation) for other in in_loop for item in other)
                repeats = max(turns.values()) > len(in_loop)
                self.containers[call.spot] = owner, name, PerTurn(repeats)
            owner, name, container = self.containers[call.spot]
            return [Slot(owner, name, str(index), container)], firsts
        if reused := self._reused(group):
            return reused, [item for item in firsts if id(item.callee) not in self.registered]
        stem = _stem(call)
        if at:
            stem = at[0][1] if at[0][1].isidentifier() else self._path(*at[0])
        if owner is None:
            return [Slot(self.model, stem)], firsts  # refused, since nothing can be changed
        return [Slot(owner, self._new_name(owner, stem))], firsts

    def _reused(self, group: Group) -> list[Slot]:
        """Return the children that the hull can take the place of, so that calls need not change."""
        found: list[Slot] = []
        for module, owner in {id(call.callee): (call.callee, call.owner) for call in group if call.callee}.values():
            at, groups = self.registered.get(id(module), []), self.of_module[id(module)]
            if len(groups) > 1:
                own = [item for item in at if item[0] is owner]
                of_owner = [item for item in groups if any(call.owner is owner for call in item)]
                at = (own or at) if _keeper(of_owner if own else groups) is group else []
            found += [Slot(parent, name) for parent, name in at]
        return found


def _stem(call: Call) -> str:
    """Return a name for a hull: the child whose weights were used last, and the function, as in ``conv1_relu``."""
    assert call.reading.known is not None  # noqa: S101
    children = () if call.owner is None else call.owner.named_children()
    last = [name for name, child in children if any(part is call.last for part in child.modules())]
    return "_".join([*last[:1], call.reading.known.family])


def _keeper(groups: Sequence[Group]) -> Group:
    """Return the group that keeps the module: one without a hull, one whose calls cannot change, or the first."""
    left = [group for group in groups if group[0].reading.reason or _why_not(group)]
    return next(iter([*left, *(group for group in groups if any(map(why_not_edited, group)))]), groups[0])


def _why_not(group: Group) -> str:
    """Return why no hull can take the place of a group of calls; empty if one can."""
    for call in group:
        if isinstance(call.owner, ParametrizationList):
            return "it parametrizes a weight"
        if call.helper:
            return f"{call.helper} calls it, which is not a method of a module of the model"
    if len({call.reading.known for call in group}) > 1:
        return "one expression calls different functions"
    return ""


def why_not_edited(call: Call) -> str:
    """Return why the expression of a call cannot be changed to call a hull; empty if it can."""
    if call.owner is None or call.code is None:
        return "its calls must be changed, but no method of the model makes them"
    if isinstance(call.owner, _CONTAINERS) and type(call.owner).__module__.startswith("torch."):
        return f"its calls must be changed, but {type(call.owner).__name__} makes them"
    if isinstance(call.owner, GraphModule):
        return "its calls must be changed, but they are in a traced graph; replace before tracing"
    method = call.method
    if method is None:
        return "its calls must be changed, but no method of the model makes them"
    name = method[2].__qualname__
    try:
        node = call_at(parse(method[2]), call.position)
    except LookupError as error:
        return f"its calls must be changed, but {name} {error}"
    if node is None or (isinstance(node.func, ast.Name) and hasattr(builtins, node.func.id)):
        return f"its calls must be changed, but {name} makes them through another function, such as map"
    if input_of(node, call.argument) is None:
        return "the arguments of its calls are not written out"
    return why_not_rewritten(type(call.owner), method)


def input_of(node: ast.Call, argument: tuple[int, str] = (0, "")) -> ast.expr | None:
    """Return the input in a call of an activation: an argument, or the object of a method; None if not written out."""
    index, name = argument
    named = {item.arg: item.value for item in node.keywords}  # None is the name of **settings
    written = list(itertools.takewhile(lambda item: not isinstance(item, ast.Starred), node.args))
    if index < len(written):
        return written[index]
    if (name or "input") in named:
        return named[name or "input"]
    if node.args or None in named:
        return None
    if len(named) == 1 and not name:
        return next(iter(named.values()))
    return node.func.value if isinstance(node.func, ast.Attribute) and not named else None


# Hulls


def named_hulls(caller: str, model: object, required: bool = False) -> dict[str, Hull]:
    """Return the hulls of a model by name, for a public function.

    Raises:
        TypeError: the model is not a module, or one that holds several networks.
        ValueError: there are no hulls, but they are required.
    """
    keras = sys.modules.get("keras")
    is_keras = keras is not None and isinstance(model, keras.layers.Layer)  # a torch.nn.Module on the backend torch
    if is_keras or not isinstance(model, nn.Module):
        hint = "see hullo.keras for functions of Keras" if is_keras else "give the model itself"
        raise TypeError(f"{caller} takes a torch.nn.Module, not a {type(model).__name__}; {hint}")
    if caller and (hint := getattr(type(model), "surgery_hint", "")):
        raise TypeError(f"{caller} does not take a {type(model).__name__}; {hint}")
    hulls = {name: module for name, module in model.named_modules() if isinstance(module, Hull)}
    if required and not hulls:
        raise ValueError(f"the model has no hulls for {caller}; call replace_activations first")
    return hulls
