"""Snapshot, restore and copy models, and run them without side effects on tensors, attributes or random numbers."""

from __future__ import annotations

import contextlib
import copy
import random
import sys
import threading
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from hullo.gating import named_callers

Inputs = Tensor | tuple[Any, ...] | Mapping[str, Any] | Callable[[nn.Module], Any]

_CONTAINERS = (dict, OrderedDict, defaultdict, Counter, list, deque, set)
_OPAQUE = (nn.Module, type, types.ModuleType, types.FunctionType, types.MethodType)
_ATOMS = frozenset({bool, int, float, str, bytes, type(None)})
_UNCOPIED = (type(threading.Lock()), type(threading.RLock()), types.ModuleType)


class Snapshot:
    """Snapshot of a model: the class of every module, its attributes and children, and all containers in these.

    As a context, it restores the model after an error. State in other objects, such as NumPy's arrays and generators,
    is not part of it.

    Args:
        model: the model.
        tensors: whether to copy the values of tensors, gradients and random generators, too.
    """

    @_disable_current_modes()
    def __init__(self, model: nn.Module, tensors: bool = False) -> None:
        contents = _contents(model)
        held = [item for item in contents if isinstance(item, Tensor)] if tensors else []
        grads = [(item, item.grad) for item in held if item.is_leaf]
        self._classes = [(item, type(item)) for item in model.modules()]
        self._containers = [(item, copy.copy(item) if item else ()) for item in contents if type(item) in _CONTAINERS]
        self._tensors = [(item, item.detach().clone()) for item in held if not item.is_meta]
        self._gradients = [(item, grad, None if grad is None else grad.clone()) for item, grad in grads]
        generators = [item for item in contents if isinstance(item, torch.Generator)] if tensors else []
        self._generators = [(item, item.get_state()) for item in generators]

    @_disable_current_modes()
    @torch.no_grad()
    def restore(self) -> None:
        """Undo all changes since the snapshot."""
        for module, cls in self._classes:
            if type(module) is not cls:
                object.__setattr__(module, "__class__", cls)  # a class may refuse assignments
        for container, content in self._containers:
            container.clear()
            if isinstance(container, (list, deque)):
                container.extend(content)
            else:
                container.update(content)
        for tensor, values in self._tensors:
            if tensor.shape != values.shape:
                tensor.data = values
            else:
                tensor.data.copy_(values)
        for tensor, gradient, gradient_values in self._gradients:
            tensor.grad = gradient
            if gradient is not None and gradient_values is not None:
                gradient.copy_(gradient_values)
        for generator, state in self._generators:
            generator.set_state(state)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is not None:
            self.restore()


def _contents(value: Any) -> list[Any]:
    """Return what a value, or every module of a model, holds."""
    contents: dict[int, Any] = {}
    for part in map(vars, value.modules()) if isinstance(value, nn.Module) else [value]:
        _collect(part, contents)
    return list(contents.values())


def _collect(value: Any, contents: dict[int, Any]) -> None:
    """Collect containers, tensors, generators and locks, also from the attributes of plain objects."""
    if type(value) in _ATOMS or id(value) in contents:
        return
    if type(value) in _CONTAINERS or isinstance(value, tuple):
        contents[id(value)] = value
        parts = tuple.__iter__(value) if isinstance(value, tuple) else value  # a subclass may iterate otherwise
        for item in list(value.values() if isinstance(value, dict) else parts):
            _collect(item, contents)
    elif isinstance(value, (Tensor, torch.Generator, *_UNCOPIED)):
        contents[id(value)] = value
    elif not isinstance(value, _OPAQUE) and type(getattr(value, "__dict__", None)) is dict:
        _collect(vars(value), contents)


# Runs


@contextlib.contextmanager
def restored(model: nn.Module) -> Iterator[None]:
    """Restore a model and all random number generators at exit, also hooks that were registered inside."""
    devices: dict[str, set[int]] = defaultdict(set)
    for tensor in [*model.parameters(), *model.buffers()]:
        if tensor.device.index is not None:
            devices[tensor.device.type].add(tensor.device.index)
    numpy = sys.modules.get("numpy")
    with contextlib.ExitStack() as stack:
        stack.callback(Snapshot(model, tensors=True).restore)
        stack.callback(torch.set_rng_state, torch.get_rng_state())
        stack.callback(random.setstate, random.getstate())
        if numpy is not None:
            stack.callback(numpy.random.set_state, numpy.random.get_state())
        for kind, numbers in devices.items():
            if hasattr(torch.get_device_module(kind), "get_rng_state"):
                stack.enter_context(torch.random.fork_rng(devices=numbers, device_type=kind))
        yield


def hook_inputs(model: nn.Module, record: Callable[[str, Tensor], None]) -> None:
    """Register hooks that call `record` with the name and the input of every hull that runs."""

    callers = {id(caller): name for name, caller in named_callers(model)}

    def hook(module: nn.Module, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        if id(module) in callers:  # not a replaced module, which has the same hooks
            record(callers[id(module)], next(iter([*inputs, *named.values()])))

    for _, caller in named_callers(model):
        caller.register_forward_pre_hook(hook, with_kwargs=True)


def run(model: nn.Module, inputs: Inputs) -> Any:
    """Call a model with copies of inputs, which it may overwrite; or call a function of the model."""
    if callable(inputs) and not isinstance(inputs, Tensor):
        function: Callable[[nn.Module], Any] = inputs
        return function(model)
    inputs_copy = copied(inputs, "example_inputs")
    if isinstance(inputs_copy, Mapping):
        return model(**inputs_copy)
    return model(*(inputs_copy if isinstance(inputs_copy, tuple) else (inputs_copy,)))


def copied(value: Any, what: str) -> Any:
    """Return a copy of a model or of inputs.

    Unlike copy.deepcopy, it shares locks, Python modules and the modes of fake tensors, and detaches tensors that are
    not leaves.

    Raises:
        TypeError: a part cannot be copied.
    """
    memo: dict[int, Any] = {}
    for item in _contents(value):
        if isinstance(item, _UNCOPIED):
            memo[id(item)] = item
        elif isinstance(item, Tensor) and not item.is_leaf:
            memo[id(item)] = item.detach().clone().requires_grad_(item.requires_grad)
        elif (mode := getattr(item, "fake_mode", None)) is not None:
            memo[id(mode)] = mode
    try:
        return copy.deepcopy(value, memo)
    except Exception as error:
        raise TypeError(f"{what} cannot be copied: {error}") from error
