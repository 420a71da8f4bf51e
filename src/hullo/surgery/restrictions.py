"""Find restrictions on changes to a model, from how its code inspects modules, and how modules are copied."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils.parametrize import ParametrizationList, is_parametrized

from hullo.modules import Hull
from hullo.surgery.rewrite.bytecode import code_of
from hullo.surgery.rewrite.findings import Findings
from hullo.surgery.rewrite.reach import Reach, held_by, hooks_of
from hullo.surgery.rewrite.write import Rewritten
from hullo.surgery.state import loses_children

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


class Restrictions:
    """Decide what may be changed in a model without changing what its code does.

    Args:
        model: the model.
        findings: the findings in the code of its modules.
        reach: the code that its forwards may run.
    """

    def __init__(self, model: nn.Module, findings: Iterable[Findings], reach: Reach) -> None:
        all_findings = list(findings)
        self._assigned, self._used = reach.assigned, reach.used()
        functions = {function for item in all_findings for function in item.passed}
        passed = {
            function: [module for item in all_findings for module in item.passed.get(function, ())]
            for function in functions
        }
        walks = reach.walks((function for item in all_findings for function in item.seen), passed)
        self._tied = {(id(parent), name): why for item in all_findings for (parent, name), why in item.tied}
        self._exact = {cls for item in all_findings for cls in item.exact}
        self._tested = [test for item in all_findings for test in item.tested]
        self._walked: dict[str, dict[int, str]] = {"children": {}, "modules": {}, "parameters": {}, "text": {}}
        self._anything: dict[str, str] = {}
        for module, kind, where in [*(walk for item in all_findings for walk in item.walked), *walks]:
            if module is None:
                self._anything.setdefault(kind, where)
            else:
                reached = [module] if kind == "children" else module.modules()
                self._walked[kind] |= {id(part): where for part in reached}
        self._lost: dict[int, str] = {}
        for module in model.modules():
            if why := loses_children(module):
                self._lost |= {id(part): why for part in module.modules()}
        attribute_refs = [(module, item) for module in model.modules() for item in held_by(module)]
        owned = [
            (holder, name, thing.__self__ if inspect.ismethod(thing) else thing)
            for holder, (name, thing) in attribute_refs
        ]
        self._held = {id(thing): name for holder, name, thing in owned if thing is not holder}

    def on_attribute(self, parent: nn.Module, name: str) -> str:
        """Return why an attribute of a module cannot become a hull; empty if it can."""
        if isinstance(parent, ParametrizationList):
            return "it parametrizes a weight"
        if id(parent) not in self._used:
            return "no code of the model uses the module that contains it"
        if (id(parent), name) in self._tied:
            return self._tied[id(parent), name]
        if self._assigned.has(parent, name):
            return f"the code of the model assigns {name}"
        if name in vars(parent) and any(name in vars(cls) for cls in type(parent).__mro__):
            return f"its class has an attribute {name}, too, which would hide a hull"
        thing = parent._modules.get(name)
        if id(thing) in self._held:
            return f"the attribute {self._held[id(thing)]} refers to it, too"
        if thing is not None and any(_uses_isinstance(hook) for hook in hooks_of(thing)):
            return "a hook on it uses isinstance"
        for kinds, where in self._tested:
            if thing is not None and _differs_from_hull(kinds, thing):
                return f"the code tests modules for this type ({where})"
        return self._on_parameters(parent)

    def on_new_child(self, parent: nn.Module) -> str:
        """Return why a module cannot get a new child; empty if it can."""
        new = "a hull would be a new child of it"
        if isinstance(parent, _CONTAINERS):
            return f"{type(parent).__name__} iterates over its children, and {new}"
        for kind in ("children", "modules"):
            if where := self._walked[kind].get(id(parent)):
                return f"the code iterates over the children of this module, and {new} ({where})"
            if where := self._anything.get(kind):
                return f"the code iterates over the children of some module, maybe this one, and {new} ({where})"
        return self._on_parameters(parent)

    def on_code(self, owner: nn.Module) -> str:
        """Return why the code of a module cannot be changed; empty if it can."""
        if type(owner) in self._exact:
            return "the code tests its class with type(), and rewriting needs a derived class"
        if is_parametrized(owner):
            return "torch.nn.utils.parametrize has changed its class; replace first, then parametrize"
        if isinstance(owner, LazyModuleMixin) and owner.has_uninitialized_params():
            return "the module is lazy and changes its class in its first run; run it once before"
        if isinstance(owner, Rewritten) and "_hullo_written" not in vars(type(owner)):
            return "its class was changed after an earlier call of replace_activations; replace all at once"
        return ""

    def _on_parameters(self, parent: nn.Module) -> str:
        why = self._lost.get(id(parent), "")
        if where := self._walked["text"].get(id(parent)):
            return why or f"the code converts a module around it to text, where a hull would appear ({where})"
        if where := self._walked["parameters"].get(id(parent)) or self._anything.get("parameters"):
            return why or f"the code iterates over the parameters, and a hull would add one ({where})"
        return why


def _uses_isinstance(hook: Any) -> bool:
    function = code_of(hook)
    return function is not None and "isinstance" in function.__code__.co_names


def _differs_from_hull(kinds: Any, thing: nn.Module) -> bool:
    """Return whether isinstance gives another answer for a module than for a hull."""
    try:
        return isinstance(thing, kinds) != issubclass(Hull, kinds)
    except TypeError:
        return False
