"""State that the code of a network keeps from call to call, beside parameters and buffers."""

from __future__ import annotations

import functools
import random
import sys
import types
from collections import deque
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from hullo.population.sites import BOOKKEEPING
from hullo.population.trace.functions import functions_of, reached_from
from hullo.population.trace.watched import plain

PLAIN = (bool, int, float, complex, str, bytes)
CONTAINERS = (list, tuple, set, frozenset, deque, Mapping)
_FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.ModuleType, functools.partial)


def attributes(network: nn.Module) -> dict[tuple[Any, str], Any]:
    """Return the modes and the unregistered attributes of all modules; of containers, what they contain.

    And the numbers of their classes, which code changes as `type(self).calls += 1`.
    """
    found = {
        (module, name): _content(value)
        for module in network.modules()
        for name, value in vars(module).items()
        if name == "training" or name not in BOOKKEEPING
    }
    return found | class_numbers(network)


def class_numbers(network: nn.Module) -> dict[tuple[Any, str], Any]:
    """Return the numbers that are attributes of the classes of all modules, other than PyTorch's and our own."""
    classes = dict.fromkeys(kind for module in network.modules() for kind in type(module).__mro__)
    return {
        (kind, name): plain(value)
        for kind in classes
        if kind.__module__.partition(".")[0] not in ("torch", "hullo", "builtins")
        for name, value in vars(kind).items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }


def _content(value: Any) -> Any:
    """Return what is compared of an attribute: a container or an object is changed in place."""
    value = plain(value)
    is_object = hasattr(value, "__dict__") and not isinstance(value, (Tensor, nn.Module, type, *_FUNCTIONS))
    return _describe(value, set()) if isinstance(value, CONTAINERS) or is_object else value


def _describe(value: Any, seen: set[int]) -> str:
    """Return text that changes with what a container or an object contains."""
    if isinstance(value, PLAIN) or value is None:
        return repr(value)
    if isinstance(value, Tensor):
        return f"tensor {id(value)} {value._version}"
    if id(value) in seen or isinstance(value, (nn.Module, type, *_FUNCTIONS)):
        return str(id(value))
    seen.add(id(value))
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key!r}: {_describe(item, seen)}' for key, item in value.items())}}}"
    if isinstance(value, CONTAINERS):
        return f"[{', '.join(_describe(item, seen) for item in value)}]"
    return f"{id(value)} {_describe(vars(value), seen)}" if hasattr(value, "__dict__") else str(id(value))


def random_states(network: nn.Module) -> list[Any]:
    """Return the states of Python's and NumPy's generators: the global ones, and those that the network's code uses."""
    functions = [*functions_of(network), *forwards(network)]
    reached = [item for module in network.modules() for item in vars(module).values()]
    reached += [item for function in functions for item in reached_from(function)]
    own = [item for item in reached if isinstance(item, random.Random) and not isinstance(item, random.SystemRandom)]
    states: list[Any] = [random.getstate(), *(item.getstate() for item in own)]
    if (numpy := sys.modules.get("numpy")) is not None:
        states.append(str(numpy.random.get_state(legacy=False)))
        states += [str(item.bit_generator.state) for item in reached if isinstance(item, numpy.random.Generator)]
        states += [str(item.get_state(legacy=False)) for item in reached if isinstance(item, numpy.random.RandomState)]
    return states


def forwards(network: nn.Module) -> list[Any]:
    """Return the forward functions of the classes of all modules."""
    return [kind.forward for kind in dict.fromkeys(map(type, network.modules())) if hasattr(kind, "forward")]
