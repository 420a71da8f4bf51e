"""Find the activations of a model, and where the hulls that replace them can be stored."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.utils.parametrize import ParametrizationList

from hullo.modules import Hull
from hullo.surgery.grouping import Group, conflicts, group_calls
from hullo.surgery.recognize import AMBIGUOUS, Reading, is_torch_function, read_function, read_module
from hullo.surgery.restrictions import Restrictions
from hullo.surgery.rewrite.bytecode import count_uses, mentions_activation
from hullo.surgery.rewrite.entry_points import read_forward, read_other_methods
from hullo.surgery.rewrite.findings import Call, Findings, Skipped
from hullo.surgery.rewrite.reach import Reach, hooks_of
from hullo.surgery.rewrite.source import method
from hullo.surgery.sites import Names, Site, Slot

_SHARED = "it is in a module without weights that is used more than once; make one module for each use"
_ITERATIONS = "which activation is called changes between iterations of a loop"

AttributeId = tuple[int, str]  # the id of a module, and the name of its attribute


def find_sites(model: nn.Module) -> list[Site]:
    """Return all activations of a model, in the order of its modules."""
    return list(_Finder(model).sites())


class _Finder:
    def __init__(self, model: nn.Module) -> None:
        self.paths = {id(module): name for name, module in model.named_modules()}
        self.modules = list(model.modules())
        self.owners = [module for module in self.modules if self._has_code(module)]
        self.findings = self._read(model)
        all_calls = [call for findings in self.findings.values() for call in findings.calls]
        self.order = {id(call): n for n, call in enumerate(all_calls)}
        self.visits = {at: count for findings in self.findings.values() for at, count in findings.visits.items()}
        self.names = {id(module): Names(module) for module in model.modules()}
        self.by_attribute: dict[AttributeId, list[Call]] = defaultdict(list)
        for call in all_calls:
            if call.attribute is not None and id(call.attribute[0]) in self.paths:
                self.by_attribute[id(call.attribute[0]), call.attribute[1]].append(call)
        self.groups = {key: group_calls(calls, merge_idle=True) for key, calls in self.by_attribute.items()}
        self.functions = {id(owner): self._functions_of(owner) for owner in self.owners}
        self.used_twice = self._used_twice(model)
        self.conflicts = self._conflicts()

    def _has_code(self, module: nn.Module) -> bool:
        if isinstance(module, (Hull, torch.jit.ScriptModule)) or read_module(module) is not None:
            return False
        is_of_torch = type(module).__module__.startswith("torch.") and not isinstance(module, torch.fx.GraphModule)
        return any(True for _ in module.children()) or not is_of_torch

    def _read(self, model: nn.Module) -> dict[int, Findings]:
        reach = Reach(model)
        readable = [module for module in self.owners if _has_own_code(module)]
        findings = {id(module): read_forward(module, reach.assigned) for module in readable}
        entered = {entry for item in findings.values() for entry in item.entered} | reach.assigned.bound.keys()
        names = {call.attribute[1] for item in findings.values() for call in item.calls if call.attribute is not None}
        for module in readable:
            read_other_methods(module, findings[id(module)], entered, names, reach.assigned)
        self.restrictions = Restrictions(model, findings.values(), reach)
        return findings

    def _functions_of(self, owner: nn.Module) -> list[Group]:
        """Return the calls of functions, and of modules outside of the model, in groups that share a hull."""
        by_function: dict[Any, list[Call]] = defaultdict(list)
        for call in self._findings_of(owner).calls:
            if call.attribute is None and id(call.callee) not in self.paths and call.reading is not None:
                what = call.reading.known.name if call.reading.known else ast.unparse(call.callee_node)
                by_function[what, call.reading.in_place].append(call)
        groups = [group for calls in by_function.values() for group in group_calls(calls)]
        return sorted(groups, key=lambda group: self.order[id(group[0])])

    def _findings_of(self, owner: nn.Module) -> Findings:
        return self.findings.get(id(owner), Findings())

    def _used_twice(self, model: nn.Module) -> dict[int, str]:
        """Return the submodules, by id, of modules without weights that are used more than once, and the reason."""
        parts: dict[int, list[Call]] = defaultdict(list)
        for call in (call for findings in self.findings.values() for call in findings.parts):
            parts[id(call.callee)].append(call)
        self.parts = {key: group_calls(calls) for key, calls in parts.items()}
        named = Counter(id(module) for _, module in model.named_modules(remove_duplicate=False))
        reused: dict[int, str] = {}
        for module in self.owners:
            groups = self.parts.get(id(module), [])
            is_reused = len(groups) > 1 or any(call.blocker for group in groups for call in group)
            if (is_reused or named[id(module)] > 1) and not any(True for _ in module.parameters()):
                reused |= {id(part): _SHARED for part in module.modules()}
        return reused

    def _conflicts(self) -> dict[int, str]:
        """Return the first calls, by id, of groups that differ between training and evaluation, and the reason."""
        result: dict[int, str] = {}
        for owner in self.owners:
            findings = self._findings_of(owner)
            own = [group for groups in self.groups.values() for group in groups if group[0].body.owner is owner]
            parts = [group for groups in self.parts.values() for group in groups if group[0].body.owner is owner]
            parts = [group for group in parts if any(True for _ in self._inside(group))]
            all_calls: list[Sequence[Call | Skipped]] = [*own, *self.functions[id(owner)], *parts]
            all_calls += [[skipped] for skipped in findings.skipped]
            gates = {n for n, group in enumerate(all_calls) if _is_gate(group[0])}
            weighted = {n for n, group in enumerate(all_calls) if _has_weights(group[0])}
            for n, why in conflicts(all_calls, findings.modes, gates, weighted).items():
                result[id(all_calls[n][0])] = why
                for module in self._inside(all_calls[n]) if all_calls[n] in parts else ():
                    self.used_twice.setdefault(id(module), why)
        return result

    def _inside(self, group: Sequence[Call | Skipped]) -> Iterator[nn.Module]:
        """Yield the submodules with activations of a called module."""
        for module in group[0].callee.modules():  # type: ignore[union-attr]
            if any(read_module(child) is not None for child in module.children()) or id(module) in self.findings:
                yield module

    def sites(self) -> Iterator[Site]:
        for owner in self.owners:
            for name, thing, reading in self._attributes(owner):
                yield from self._attribute_sites(owner, name, thing, reading)
            yield from self._function_sites(owner)
            listed = {(item.place, item.what, item.why): None for item in self._findings_of(owner).skipped}
            for place, what, why in listed:
                yield Site(self.paths[id(owner)], what, None, place, why)
        for module in self.modules:
            for hook in (hook for hook in hooks_of(module) if mentions_activation(hook)):
                place = getattr(hook, "__qualname__", "")
                yield Site(self.paths[id(module)], "a hook", None, place, "it calls an activation outside of a method")

    def _name(self, parent: nn.Module, *parts: str) -> str:
        return ".".join(part for part in (self.paths[id(parent)], *parts) if part)

    def _attributes(self, owner: nn.Module) -> Iterator[tuple[str, Any, Reading]]:
        """Yield the attributes of a module that are activations: children and functions."""
        for name, child in owner._modules.items():
            if isinstance(child, torch.jit.ScriptModule):
                yield name, child, Reading(None, reason="it is scripted; replace before scripting")
            elif child is not None and (reading := read_module(child)) is not None:
                yield name, child, reading
        for name, thing in vars(owner).items():
            calls = self.by_attribute.get((id(owner), name), [])
            if calls and calls[0].reading is not None:
                yield name, thing, calls[0].reading
            elif is_torch_function(thing) and (reading := read_function(thing)) is not None:
                yield name, thing, reading

    def _attribute_sites(self, owner: nn.Module, name: str, thing: Any, reading: Reading) -> Iterator[Site]:
        """Yield the sites of an attribute that is an activation: one for each hull that its calls need."""
        module = thing if isinstance(thing, nn.Module) else None
        function = reading.known.name if reading.known else getattr(thing, "__name__", type(thing).__name__)
        groups = _with_idle_calls(self.groups.get((id(owner), name), []))
        reason = reading.reason or self._why_not_attribute(owner, name, module, groups)
        slots = [] if reason else self._slots(owner, name, groups)
        reason = reason or next((why for group, slot in slots if (why := self._why_not_slot(group, slot))), "")
        if reason or not slots:
            yield Site(self._name(owner, name), function, module, "", reason, reading, Slot(owner, name, reused=True))
            return
        together = object()
        for group, slot in slots:
            label = self._name(slot.parent, slot.name, slot.key)
            place = group[0].place if len(slots) > 1 else ""
            yield Site(label, function, module, place, "", reading, slot, group, together)

    def _why_not_attribute(self, owner: nn.Module, name: str, module: nn.Module | None, groups: list[Group]) -> str:
        """Return why an attribute cannot become a hull for every group of calls; empty if it can."""
        calls = [call for group in groups for call in group]
        if why := self.used_twice.get(id(owner), "") or self.restrictions.on_attribute(owner, name):
            return why
        if isinstance(owner, nn.Sequential) and not _has_own_code(owner):
            return self._why_not_calls(calls)
        if unread := self._findings_of(owner).unread:
            forward = method(type(owner).__mro__, "forward")[2]
            once = "forward" not in vars(owner) and hasattr(forward, "__code__") and count_uses(forward, name) == 1
            return "" if once and module is not None else f"it may be called more than once, and {unread}"
        if not calls:
            return "no call of it was found"
        if all(call.idle for call in calls):
            return f"no call of it runs: {calls[0].idle}"
        return self._why_not_calls(calls)

    def _why_not_calls(self, calls: Sequence[Call]) -> str:
        """Return why a hull cannot replace the callee of calls; empty if it can."""
        recursive = {function for findings in self.findings.values() for function in findings.recursive}
        for call in calls:
            if call.blocker or id(call) in self.conflicts:
                return call.blocker or self.conflicts[id(call)]
            if call.body.function in recursive:
                return f"{call.body.name} calls itself"
        return ""

    def _slots(self, owner: nn.Module, name: str, groups: list[Group]) -> list[tuple[Group, Slot]]:
        """Return where the hulls of an attribute are stored: one, preferably of fixed calls, keeps its name."""
        fixed = [group for group in groups if any(call.fixed for call in group)]
        first = (fixed or groups)[:1]
        order = first + [group for group in groups if group is not first[0]] if first else []
        slots = []
        attributes: dict[Any, str] = {}
        for group in order:
            call = group[0]
            reused = group is order[0] or attributes.get(call.at) == name
            if call.at not in attributes:
                stem = name if name.isidentifier() else self._name(owner, name)
                attributes[call.at] = name if reused else self.names[id(call.body.owner)].take(stem, 2)
            is_in_loop = len([part for part in groups if any(other.at == call.at for other in part)]) > 1
            parent = owner if reused else call.body.owner
            slots.append((group, Slot(parent, attributes[call.at], call.key if is_in_loop else "", reused)))
        return slots

    def _function_sites(self, owner: nn.Module) -> Iterator[Site]:
        """Yield the sites of calls of functions, and of modules outside of the model."""
        groups, attributes = self.functions[id(owner)], dict[Any, str]()
        candidates: list[tuple[Group, Slot | None, str]] = []
        for group in groups:
            first, slot = group[0], None
            reading = first.reading or Reading(None)
            reason = reading.reason or self.used_twice.get(id(owner), "") or self._why_not_calls(group)
            reason = reason or (first.idle if all(call.idle for call in group) else "")
            if not reason and reading.known is not None:
                if first.at not in attributes:
                    attributes[first.at] = self.names[id(owner)].take(reading.known.family, 1)
                is_in_loop = len([part for part in groups if any(call.at == first.at for call in part)]) > 1
                slot = Slot(owner, attributes[first.at], first.key if is_in_loop else "")
                reason = self._why_not_slot(group, slot)
            candidates.append((group, slot, reason))
        for group, slot, reason in _propagate_reasons(candidates):
            reading = group[0].reading or Reading(None)
            function = reading.known.name if reading.known else ast.unparse(group[0].callee_node)
            if reason or slot is None:
                yield Site(self.paths[id(owner)], function, None, group[0].place, reason, reading)
            else:
                label = self._name(owner, slot.name, slot.key)
                yield Site(label, function, None, group[0].place, "", reading, slot, group)

    def _why_not_slot(self, group: Group, slot: Slot) -> str:
        """Return why a hull cannot be stored at slot, or calls cannot be changed to go there; empty if they can."""
        reused = slot.reused and not slot.key
        for call in group:
            if reused and call.plain:
                continue
            if call.fixed:
                return f"its calls must be rewritten, but {call.fixed}"
            if not slot.reused and call.body.owner is not slot.parent:
                return "it is called from several modules"
            if call.body.pinned:
                return f"the code that leads to its calls must be rewritten, but {call.body.pinned}"
            if why := self.restrictions.on_code(call.body.owner):
                return why
            same = [other for other in self._findings_of(call.body.owner).calls if other.at == call.at]
            if len(same) != self.visits[call.at] or any(other.attribute != call.attribute for other in same):
                return _ITERATIONS
        if slot.reused and not reused and slot.name in self._findings_of(slot.parent).unreadable:
            return "it is called more than once, and occurs in code that cannot be read"
        if not slot.is_new:
            return ""
        return self.restrictions.on_new_child(slot.parent) or self.restrictions.on_code(slot.parent)


def _with_idle_calls(groups: list[Group]) -> list[Group]:
    """Join groups of idle calls to the first other group: they call the same attribute."""
    live = [group for group in groups if not all(call.idle for call in group)]
    idle = [group for group in groups if all(call.idle for call in group)]
    return [sum(idle, live[0]), *live[1:]] if live else groups


def _has_own_code(module: nn.Module) -> bool:
    plain = (
        nn.Sequential.forward,
        nn.Module.forward,
        ParametrizationList.forward,
    )  # nn.Module.forward: lists and dicts
    return type(module).forward not in plain or "forward" in vars(module)


def _has_weights(call: Call | Skipped) -> bool:
    """Return whether a module with weights is called."""
    return isinstance(call, Call) and call.reading is None and any(True for _ in call.callee.parameters())


def _is_gate(call: Call | Skipped) -> bool:
    """Return whether the callee is a function that often is not an activation."""
    if isinstance(call, Skipped):
        return call.what.rpartition(".")[2] in AMBIGUOUS
    return call.reading is not None and call.reading.known is not None and call.reading.known.family in AMBIGUOUS


def _propagate_reasons(candidates: Sequence[tuple[Group, Slot | None, str]]) -> list[tuple[Group, Slot | None, str]]:
    """Give groups the reason of another iteration of the same call: one line of code cannot call a hull and not."""
    while True:
        reasons = {call.at: reason for group, _, reason in candidates for call in group if reason}
        updated = [
            (group, slot, reason or next((reasons[call.at] for call in group if call.at in reasons), ""))
            for group, slot, reason in candidates
        ]
        if [item[2] for item in updated] == [item[2] for item in candidates]:
            return updated
        candidates = updated
