"""Run a model and leave no trace: not in its tensors and attributes, and not in the random numbers that follow."""

from __future__ import annotations

import contextlib
import copy
import random
import sys
import types
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

Inputs = Tensor | tuple[Any, ...] | Mapping[str, Any]

_CONTAINERS = (dict, OrderedDict, defaultdict, list, set)
_OPAQUE = (nn.Module, type, types.ModuleType, types.FunctionType, types.MethodType, torch.device, torch.dtype)


class State:
    """All that a run may change in a model: tensors, gradients, attributes, children, modes, random generators.

    Args:
        model: the model; its tensors are copied.
    """

    def __init__(self, model: nn.Module) -> None:
        found: dict[int, Any] = {}
        for module in model.modules():
            collect(vars(module), found)
        tensors = [item for item in found.values() if isinstance(item, Tensor)]
        leaves = [item for item in tensors if item.is_leaf]
        self._containers = [(item, copy.copy(item)) for item in found.values() if type(item) in _CONTAINERS]
        self._tensors = [(item, item.detach().clone()) for item in tensors if not item.is_meta]
        self._gradients = [(item, item.grad, None if item.grad is None else item.grad.clone()) for item in leaves]
        self._generators = [(item, item.get_state()) for item in found.values() if isinstance(item, torch.Generator)]

    def restore(self) -> None:
        """Make the model what it was."""
        for container, content in self._containers:
            if isinstance(container, list):
                container[:] = content
            else:
                container.clear()
                container.update(content)
        with torch.no_grad():
            for tensor, values in self._tensors:
                if tensor.shape != values.shape:
                    tensor.data = values.clone()
                else:
                    tensor.data.copy_(values)
            for tensor, gradient, kept in self._gradients:
                tensor.grad = gradient
                if gradient is not None and kept is not None:
                    gradient.copy_(kept)
        for generator, state in self._generators:
            generator.set_state(state)


def collect(thing: Any, found: dict[int, Any]) -> None:
    """Collect the containers, tensors and random generators in attributes, and in the attributes of plain objects."""
    if id(thing) in found or isinstance(thing, _OPAQUE):
        return
    if isinstance(thing, (Tensor, torch.Generator)):
        found[id(thing)] = thing
    elif type(thing) in _CONTAINERS or isinstance(thing, tuple):
        found[id(thing)] = thing
        for item in list(thing.values() if isinstance(thing, dict) else thing):
            collect(item, found)
    elif type(getattr(thing, "__dict__", None)) is dict:
        collect(vars(thing), found)


@contextlib.contextmanager
def same_random_numbers(model: nn.Module) -> Iterator[None]:
    """Draw the same random numbers in every such context, up to the next draw outside of one."""
    numpy: Any = sys.modules.get("numpy")
    ours, theirs = random.getstate(), numpy.random.get_state() if numpy else None
    devices: dict[str, set[int]] = defaultdict(set)
    for tensor in [*model.parameters(), *model.buffers()]:
        if tensor.device.index is not None:
            devices[tensor.device.type].add(tensor.device.index)
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng(devices=[]))
            for kind, numbers in devices.items():
                if hasattr(torch.get_device_module(kind), "get_rng_state"):
                    stack.enter_context(torch.random.fork_rng(devices=numbers, device_type=kind))
            yield
    finally:
        random.setstate(ours)
        if numpy:
            numpy.random.set_state(theirs)


def run(model: nn.Module, inputs: Inputs) -> Any:
    """Call a model with copies of inputs, which it may change."""
    given = _cloned(inputs)
    if isinstance(given, Mapping):
        return model(**given)
    return model(*(given if isinstance(given, tuple) else (given,)))


def _cloned(inputs: Any) -> Any:
    """Return a copy of inputs, also of tensors with a history, which copy.deepcopy does not take."""
    found: dict[int, Any] = {}
    collect(inputs, found)
    tensors = [item for item in found.values() if isinstance(item, Tensor)]
    memo = {id(item): item.detach().clone().requires_grad_(item.requires_grad) for item in tensors}
    try:
        return copy.deepcopy(inputs, memo)
    except Exception as error:
        raise TypeError(f"example_inputs cannot be copied, give tensors and plain containers: {error}") from error
