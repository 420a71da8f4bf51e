"""Give a network that is called alone the random numbers that it has in a population."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree
from torch import Tensor, fx
from torch.overrides import TorchFunctionMode

from hullo._compat import backward_pass_id
from hullo.population.rules import RULES, Context, is_random
from hullo.population.values import Value, map_values

_MODULES = (F.__name__, torch.autograd.__name__)  # whose functions in Python call random ones
_HANDLERS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")


class SameDraws(TorchFunctionMode):
    """Compute the random functions of PyTorch by the rules of a population of one.

    The position among them is the seed of PyTorch's generator, too: checkpointing restores that before a backward pass
    computes a part again.

    Args:
        nodes: the random operations of the traced graph in their order, with their numbers.
        context: the seed and the step of the member.
    """

    def __init__(self, nodes: Mapping[fx.Node, int], context: Context) -> None:
        super().__init__()
        self.nodes, self.context, self.entered, self.position = list(nodes.items()), context, list[Any](), 0
        torch.default_generator.manual_seed(0)
        targets = {_base_name(target) for target in RULES if is_random(target)}
        self.names = targets | {f"{name}_" for name in targets}

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, getattr(function, "__name__", "")
        if getattr(function, "__module__", "") in _MODULES and hasattr(function, "__code__"):
            if function in self.entered:  # those that choose between others hand these their own name
                return function(*args, **kwargs)
            self.entered.append(function)
            with self:
                result = _without_handlers(function)(*args, **kwargs)
            self.entered.pop()
            return result
        if name not in self.names or kwargs.get("generator") is not None:  # which networks may not have
            return function(*args, **kwargs)
        if backward_pass_id() >= 0:
            self.position = torch.initial_seed()
        node, number = self.nodes[self.position] if self.position < len(self.nodes) else (None, 0)
        self.position += 1
        torch.default_generator.manual_seed(self.position)
        target: Any = None if node is None else node.target
        if target is None or _base_name(target) != name.removesuffix("_"):
            traced = "none" if target is None else target
            raise RuntimeError(f"{name} draws random numbers where the traced graph has {traced}")
        if name in ("rand", "randn") and all(isinstance(item, int) for item in args):
            args = (args,)  # torch.rand(2, 3)
        given = pytree.tree_map_only(Tensor, lambda item: Value(item.unsqueeze(0), 0), (args, kwargs))
        context = replace(self.context, number=number)
        result = RULES[target](context, *given[0], **given[1])
        if result is NotImplemented:
            return function(*args, **kwargs)
        result = map_values(lambda value: value.select(0), result)
        return args[0].copy_(result) if name.endswith("_") else result


def _base_name(target: Any) -> str:
    """Return the name of an operator that it shares with its form in place."""
    name: str = target._schema.name.rpartition("::")[2]
    return name.removesuffix("_functional").removesuffix("_")


def _without_handlers(function: Any) -> Any:
    """Return a function of these modules that does not hand its call to the mode again, only those inside it."""
    namespace = function.__globals__ | dict.fromkeys(_HANDLERS, lambda *_: False)
    inner = types.FunctionType(
        function.__code__, namespace, function.__name__, function.__defaults__, function.__closure__
    )
    inner.__kwdefaults__ = function.__kwdefaults__
    return inner
