"""The places of a model where activations are, and what it takes to change each."""

from __future__ import annotations

import ast
import copy
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hullo.modules import Hull
from hullo.surgery.calls import Body, Call, Calls
from hullo.surgery.reader import calls_of, times_named
from hullo.surgery.recognise import Known, Reading, is_torch_function, read_function, read_module
from hullo.surgery.source import Edits, Written, method, position, rewritten

_SHARED = "it is in a module without weights that is used more than once; give each place one of its own"

Kept = tuple[int, str]  # a module, by id, and the name of something it keeps


@dataclass(frozen=True, eq=False)
class Site:
    """A place of a model where an activation is.

    Args:
        name: the name that the hull there has in the model, such as ``encoder.layers.0.activation``.
        function: what is there, as a base's name such as ``gelu`` or ``leaky_relu(0.2)`` where it is one.
        module: the module that is there; None for a function.
        place: where it is called, for a call that the code makes of a function or of a module used more than once.
        reason: why no hull can take its place; empty if one can.
    """

    name: str
    function: str
    module: nn.Module | None
    place: str = ""
    reason: str = ""
    reading: Reading | None = None
    keeper: nn.Module | None = None
    attribute: str = ""
    call: Call | None = None  # where the call has to be changed
    renamed: bool = False  # whether the call goes by another name than before
    group: object = None  # the same for sites of one module, or of one call in several turns

    @property
    def known(self) -> Known:
        """The function that is there, for a site without a reason."""
        assert self.reading is not None  # noqa: S101
        assert self.reading.known is not None  # noqa: S101
        return self.reading.known

    def put(self, module: nn.Module) -> None:
        """Put a module in this place; the code that calls it changes with `changed_classes`."""
        assert self.keeper is not None  # noqa: S101  (sites with a reason are never given a module)
        if not self.call or not self.call.turns:
            put(self.keeper, self.attribute, module)
            return
        if not isinstance(getattr(self.keeper, self.attribute, None), nn.ModuleDict):
            setattr(self.keeper, self.attribute, nn.ModuleDict())
        getattr(self.keeper, self.attribute)[self.call.key] = module


def put(keeper: nn.Module, name: str, module: nn.Module) -> None:
    """Set a module's child, and tell encoder layers, whose fused path knows two functions only, which it is."""
    if isinstance(keeper, nn.TransformerEncoderLayer) and name == "activation":
        fused = {nn.ReLU: 1, nn.GELU: 2 if getattr(module, "approximate", "") == "none" else 0}
        keeper.activation_relu_or_gelu = fused.get(type(module), 0)
    setattr(keeper, name, module)


_HOOKS = [name for name in vars(nn.Identity()) if name.startswith(("_forward_", "_backward_", "_is_full_backward"))]


def take_hooks(new: nn.Module, old: nn.Module, copies: bool = False) -> None:
    """Give a module another one's hooks: the very ones, so that their handles still remove them, or copies."""
    for name in _HOOKS:
        hooks = getattr(old, name)
        setattr(new, name, copy.copy(hooks) if copies else hooks)


def expect_model(caller: str, model: object) -> None:
    """Refuse what is no model, such as model.parameters()."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"{caller} takes a torch.nn.Module, not a {type(model).__name__}; give the model itself")


def survey(model: nn.Module) -> list[Site]:
    """All activations of a model, in the order of its modules."""
    return list(_Survey(model).sites())


class _Survey:
    def __init__(self, model: nn.Module) -> None:
        self.paths = {id(module): name for name, module in model.named_modules()}
        self.owners = [module for module in model.modules() if self._has_code(module)]
        self.calls = {id(module): calls_of(module) for module in self.owners if _has_own_code(module)}
        self.taken: dict[int, set[str]] = defaultdict(set)
        self.kept: dict[Kept, list[Call]] = defaultdict(list)
        for call in (call for calls in self.calls.values() for call in calls.found):
            if call.kept:
                self.kept[id(call.kept[0]), call.kept[1]].append(call)
        self.shared = {id(part) for module in self._used_twice(model) for part in module.modules()}

    def _used_twice(self, model: nn.Module) -> Iterator[nn.Module]:
        """Modules around activations, without weights that would be shared too, that are used more than once."""
        called = Counter(id(module) for calls in self.calls.values() for module in calls.weightless)
        named = Counter(id(module) for _, module in model.named_modules(remove_duplicate=False))
        for module in self.owners:
            if max(called[id(module)], named[id(module)]) > 1 and not any(True for _ in module.parameters()):
                yield module

    def _has_code(self, module: nn.Module) -> bool:
        if isinstance(module, (Hull, torch.jit.ScriptModule)) or read_module(module) is not None:
            return False
        return any(True for _ in module.children()) or not type(module).__module__.startswith("torch.")

    def sites(self) -> Iterator[Site]:
        for owner in self.owners:
            calls = self.calls.get(id(owner), Calls())
            for name, thing, reading in self._kept_by(owner):
                yield from self._kept_sites(owner, name, thing, reading, calls.unread)
            yield from self._function_sites(owner, [call for call in calls.found if call.kept is None])
            for place, what, why in calls.missed:
                yield Site(self.paths[id(owner)], what, None, place, why)

    def _name(self, keeper: nn.Module, *parts: str) -> str:
        return ".".join(part for part in (self.paths[id(keeper)], *parts) if part)

    def _kept_by(self, owner: nn.Module) -> Iterator[tuple[str, Any, Reading]]:
        """The activations that a module keeps: children, and functions as attributes."""
        for name, child in owner._modules.items():
            if isinstance(child, torch.jit.ScriptModule):
                yield name, child, Reading(None, reason="it is scripted; replace before scripting")
            elif child is not None and (reading := read_module(child)) is not None:
                yield name, child, reading
        for name, thing in vars(owner).items():
            if calls := self.kept.get((id(owner), name)):
                yield name, thing, calls[0].reading
            elif is_torch_function(thing) and (reading := read_function(thing)) is not None:
                yield name, thing, reading

    def _kept_sites(self, owner: nn.Module, name: str, thing: Any, reading: Reading, unread: str) -> Iterator[Site]:
        """A module, or a function, that a module keeps under a name: one site a call."""
        module = thing if isinstance(thing, nn.Module) else None
        function = reading.known.name if reading.known else getattr(thing, "__name__", type(thing).__name__)
        calls = self.kept.get((id(owner), name), [])
        reason = reading.reason or self._trouble(owner, name, module, calls, unread)
        if reason or len(calls) <= 1:
            yield Site(self._name(owner, name), function, module, "", reason, reading, owner, name)
            return
        group = object()
        for number, node in enumerate(_by_node(calls)):
            keeper, attribute = (owner, name) if number == 0 else (node[0].body.owner, "")
            attribute = attribute or self._free_name(keeper, name, 2)
            for call in node:
                edit = call if number or call.turns else None
                label = self._name(keeper, attribute, call.key)
                yield Site(label, function, module, call.place, "", reading, keeper, attribute, edit, number > 0, group)

    def _trouble(self, owner: nn.Module, name: str, module: nn.Module | None, calls: list[Call], unread: str) -> str:
        """Why something that is kept under a name cannot have a hull for every call; empty if it can."""
        if id(owner) in self.shared:
            return _SHARED
        if unread:
            forward = method(type(owner).__mro__, "forward")[2]
            once = "forward" not in vars(owner) and hasattr(forward, "__code__") and times_named(forward, name) == 1
            return "" if once else f"it may be called more than once, and {unread}"
        if module is None and not calls:
            return "no call of it was found"
        repeated = next((call.repeated for call in calls if call.repeated), "")
        if repeated or len(calls) <= 1:
            return repeated
        fixed = next((call.body.fixed for call in calls if call.body.fixed), "")
        if fixed:
            return f"it is called more than once, and {fixed}"
        if any(
            call.kept != other.kept for node in _by_node(calls) for call in self._same_node(node[0]) for other in node
        ):
            return "which of several is called changes from turn to turn of a loop"
        return ""

    def _same_node(self, call: Call) -> Iterator[Call]:
        found = self.calls[id(call.body.owner)].found
        return (other for other in found if other.body is call.body and other.node is call.node)

    def _function_sites(self, owner: nn.Module, calls: list[Call]) -> Iterator[Site]:
        """Calls of functions, and of modules that are no part of the model, as in ``nn.ReLU()(x)``."""
        for node in _by_node(calls):
            first = node[0]
            if id(first.callee) in self.paths:  # a module of the model is a site under each of its names
                continue
            known = first.reading.known
            shared = _SHARED if id(owner) in self.shared else ""
            reason = first.reading.reason or shared or first.repeated or first.body.fixed
            if any(call.reading != first.reading for call in node):
                reason = "which function it is changes from turn to turn of a loop"
            if reason or known is None:
                function = known.name if known else ast.unparse(first.node.func)
                yield Site(self.paths[id(owner)], function, None, first.place, reason, first.reading)
                continue
            attribute = self._free_name(owner, known.family, 1)
            for call in node:
                label = self._name(owner, attribute, call.key)
                yield Site(label, known.name, None, call.place, "", call.reading, owner, attribute, call, True, node)

    def _free_name(self, owner: nn.Module, stem: str, number: int) -> str:
        name = free_name(owner, stem, number, self.taken[id(owner)])
        self.taken[id(owner)].add(name)
        return name


def _has_own_code(module: nn.Module) -> bool:
    return type(module).forward not in (nn.Sequential.forward, nn.Module.forward)  # the latter: lists and dicts


def _by_node(calls: Iterable[Call]) -> list[list[Call]]:
    """Calls that the same piece of code makes in different turns, together."""
    nodes: dict[tuple[int, int], list[Call]] = defaultdict(list)
    for call in calls:
        nodes[id(call.body), id(call.node)].append(call)
    return list(nodes.values())


def changed_classes(sites: Iterable[Site]) -> list[tuple[nn.Module, type[nn.Module]]]:
    """The modules whose code has to change for calls to go to the sites' attributes, and the classes they need."""
    edits: dict[Body, Edits] = defaultdict(Edits)
    for site in sites:
        if site.call is None:
            continue
        call, at = site.call, position(site.call.node)
        change = edits[call.body]
        turns = [(target, f"turn_{target[0]}_{target[1]}") for target, _ in call.turns]
        change.turns |= dict(turns)
        subscript = f'[f"{"_".join(f"{{{name}}}" for _, name in turns)}"]' if turns else ""
        called = f"{call.body.self_name}.{site.attribute}" if site.renamed else ast.unparse(call.node.func)
        change.functions[at] = called + subscript
        if site.module is None:
            change.inputs_only.add(at)
    return [(owner, rewritten(owner, methods)) for owner, methods in _written(edits).items()]


def _written(edits: dict[Body, Edits]) -> dict[nn.Module, dict[str, Written]]:
    """The methods to write anew.

    The first run of a method in a forward keeps the method's name; each further one, and one by super(), gets a name
    of its own, which its caller has to be told. So all runs of a method are written if one is.
    """
    names: dict[Body, str] = {}
    waiting = list(edits)
    while waiting:
        body = waiting.pop()
        if body in names:
            continue
        if body is body.siblings[0] and not body.by_super:
            names[body] = body.name
            waiting += body.siblings[1:]
        else:
            taken = {name for other, name in names.items() if other.owner is body.owner}
            names[body] = free_name(body.owner, body.name, 2, taken)
            waiting += [body.caller[0]] if body.caller else []
    for body, name in names.items():
        if body.caller and name != body.name:
            caller, at = body.caller
            edits[caller].functions[at] = f"{caller.self_name}.{name}"
    result: dict[nn.Module, dict[str, Written]] = defaultdict(dict)
    for body, name in names.items():
        text = edits[body].applied_to(body.function, name)
        result[body.owner][name] = Written(name, body.home, body.origin, text)
    return result


def free_name(owner: nn.Module, stem: str, number: int, taken: set[str]) -> str:
    """stem_1, stem_2, ...: the first that a module does not have."""
    while hasattr(owner, f"{stem}_{number}") or f"{stem}_{number}" in taken:
        number += 1
    return f"{stem}_{number}"
