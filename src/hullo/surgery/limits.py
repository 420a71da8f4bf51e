"""Know what must not be changed in a model: what its code asks of modules, and how they are made and copied."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils.parametrize import ParametrizationList, is_parametrized

from hullo.modules import Hull
from hullo.surgery.copies import loses_children
from hullo.surgery.rewrite.calls import Findings
from hullo.surgery.rewrite.mentions import code_of
from hullo.surgery.rewrite.reach import Reach, held_by, hooks_of
from hullo.surgery.rewrite.write import Rewritten

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


class Limits:
    """What the code of a model does with modules that a hull must not disturb.

    Args:
        model: the model.
        findings: what was found in its code.
        reach: the code that its forwards may run.
    """

    def __init__(self, model: nn.Module, findings: Iterable[Findings], reach: Reach) -> None:
        found = list(findings)
        self._assigned, self._used = reach.assigned, reach.used()
        functions = {function for item in found for function in item.handed}
        handed = {
            function: [module for item in found for module in item.handed.get(function, ())] for function in functions
        }
        walks = reach.walks((function for item in found for function in item.seen), handed)
        self._tied = {(id(kept[0]), kept[1]): why for item in found for kept, why in item.tied}
        self._exact = {cls for item in found for cls in item.exact}
        self._tested = [test for item in found for test in item.tested]
        self._walked: dict[str, dict[int, str]] = {"children": {}, "modules": {}, "parameters": {}, "text": {}}
        self._anything: dict[str, str] = {}
        for module, kind, where in [*(walk for item in found for walk in item.walked), *walks]:
            if module is None:
                self._anything.setdefault(kind, where)
            else:
                reached = [module] if kind == "children" else module.modules()
                self._walked[kind] |= {id(part): where for part in reached}
        self._lost: dict[int, str] = {}
        for module in model.modules():
            if why := loses_children(module):
                self._lost |= {id(part): why for part in module.modules()}
        held = [(module, item) for module in model.modules() for item in held_by(module)]
        owned = [(holder, name, thing.__self__ if inspect.ismethod(thing) else thing) for holder, (name, thing) in held]
        self._held = {id(thing): name for holder, name, thing in owned if thing is not holder}

    def of_kept(self, keeper: nn.Module, name: str) -> str:
        """Return why something that a module keeps has to stay as it is; empty if a hull can take its place."""
        if isinstance(keeper, ParametrizationList):
            return "it parametrizes a weight"
        if id(keeper) not in self._used:
            return "no code of the model names the module that it is in"
        if (id(keeper), name) in self._tied:
            return self._tied[id(keeper), name]
        if self._assigned.has(keeper, name):
            return f"a forward assigns {name}"
        if name in vars(keeper) and any(name in vars(cls) for cls in type(keeper).__mro__):
            return f"its class has a {name} too, which would be found before a hull"
        thing = keeper._modules.get(name)
        if id(thing) in self._held:
            return f"the attribute {self._held[id(thing)]} holds it too, as it is"
        if thing is not None and any(_asks_for_types(hook) for hook in hooks_of(thing)):
            return "a hook on it asks what type it has"
        for kinds, where in self._tested:
            if thing is not None and _asks(kinds, thing):
                return f"the code asks modules for this type ({where})"
        return self._of_parameters(keeper)

    def of_child(self, keeper: nn.Module) -> str:
        """Return why a module cannot get a new child; empty if it can."""
        new = "a hull would be a new child of it"
        if isinstance(keeper, _CONTAINERS):
            return f"{type(keeper).__name__} goes through its children, and {new}"
        for kind in ("children", "modules"):
            if where := self._walked[kind].get(id(keeper)):
                return f"the code goes through the children of this module, and {new} ({where})"
            if where := self._anything.get(kind):
                return f"the code goes through the children of some module, perhaps of this one, and {new} ({where})"
        return self._of_parameters(keeper)

    def of_code(self, owner: nn.Module) -> str:
        """Return why the code of a module cannot be changed; empty if it can."""
        if type(owner) in self._exact:
            return "the code asks for its class by type(), and the class would be a derived one"
        if is_parametrized(owner):
            return "its class is one that torch.nn.utils.parametrize made; replace first, then parametrize"
        if isinstance(owner, LazyModuleMixin) and owner.has_uninitialized_params():
            return "the module is lazy and changes its class when it first runs; run it once before"
        if isinstance(owner, Rewritten) and "_hullo_written" not in vars(type(owner)):
            return "its class was changed after activations were replaced before; replace all of them at once"
        return ""

    def _of_parameters(self, keeper: nn.Module) -> str:
        why = self._lost.get(id(keeper), "")
        if where := self._walked["text"].get(id(keeper)):
            return why or f"the code turns a module around it into text, where a hull would show ({where})"
        if where := self._walked["parameters"].get(id(keeper)) or self._anything.get("parameters"):
            return why or f"the code goes through the parameters, and a hull would add one ({where})"
        return why


def _asks_for_types(hook: Any) -> bool:
    function = code_of(hook)
    return function is not None and "isinstance" in function.__code__.co_names


def _asks(kinds: Any, thing: nn.Module) -> bool:
    try:
        return isinstance(thing, kinds) != issubclass(Hull, kinds)
    except TypeError:
        return False
