"""Snapshot, restore and copy models, and run them without side effects on tensors, attributes or random numbers."""

from __future__ import annotations

import contextlib
import copy
import functools
import random
import sys
import threading
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hullo.gating import named_callers
from hullo.surgery.isolation import random_states, set_random_states
from hullo.surgery.rewrite.write import rewritten

Inputs = Tensor | tuple[Any, ...] | Mapping[str, Any]

_CONTAINERS = (dict, OrderedDict, defaultdict, Counter, list, deque, set)
_OPAQUE = (nn.Module, type, types.ModuleType, types.FunctionType, types.MethodType, torch.device, torch.dtype)
_PROBE = "_hullo_probe"
_UNCOPIED = (type(threading.Lock()), type(threading.RLock()), types.ModuleType)
_COPY_METHODS = ("__deepcopy__", "__copy__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__")


class Structure:
    """Snapshot of the class, the attributes and the children of every module of a model, without copies of tensors."""

    def __init__(self, model: nn.Module) -> None:
        self._modules = [(item, type(item), dict(vars(item)), dict(item._modules)) for item in model.modules()]

    def restore(self) -> None:
        """Undo all changes since the snapshot."""
        for module, cls, attributes, children in self._modules:
            module.__class__ = cls
            vars(module).clear()
            vars(module).update(attributes)
            module._modules.clear()
            module._modules.update(children)


class State:
    """Snapshot of the state that running a model may change: tensors, gradients, attributes, children, generators.

    NumPy's arrays and generators are part of it.
    """

    def __init__(self, model: nn.Module) -> None:
        contents = _contents(model)
        tensors = [item for item in contents if isinstance(item, Tensor)]
        leaves = [item for item in tensors if item.is_leaf]
        self._containers = [(item, copy.copy(item)) for item in contents if type(item) in _CONTAINERS]
        self._tensors = [(item, item.detach().clone()) for item in tensors if not item.is_meta]
        self._gradients = [(item, item.grad, None if item.grad is None else item.grad.clone()) for item in leaves]
        self._undo = [undo for item in contents if (undo := _undo(item)) is not None]

    def restore(self) -> None:
        """Undo all changes since the snapshot."""
        for container, content in self._containers:
            container.clear()
            if isinstance(container, (list, deque)):
                container.extend(content)
            else:
                container.update(content)
        with torch.no_grad():
            for tensor, values in self._tensors:
                if tensor.shape != values.shape:
                    tensor.data = values.clone()
                else:
                    tensor.data.copy_(values)
            for tensor, gradient, gradient_values in self._gradients:
                tensor.grad = gradient
                if gradient is not None and gradient_values is not None:
                    gradient.copy_(gradient_values)
        for undo in self._undo:
            undo()


def _undo(item: Any) -> Callable[[], object] | None:
    """Return a function that restores the present state of a random generator or a NumPy array; None for others."""
    if isinstance(item, torch.Generator):
        return functools.partial(item.set_state, item.get_state())
    if isinstance(item, random.Random):
        return functools.partial(item.setstate, item.getstate())
    if (numpy := sys.modules.get("numpy")) is None:
        return None
    if isinstance(item, numpy.random.RandomState):
        return functools.partial(item.set_state, item.get_state(legacy=False))
    if isinstance(item, numpy.random.Generator):
        return functools.partial(setattr, item.bit_generator, "state", copy.deepcopy(item.bit_generator.state))
    return functools.partial(numpy.copyto, item, item.copy()) if isinstance(item, numpy.ndarray) else None


def _is_stateful(value: Any) -> bool:
    """Return whether a value is a tensor, a random generator or a NumPy array, which can be restored."""
    if isinstance(value, (Tensor, torch.Generator)):
        return True
    if isinstance(value, random.Random):
        return not isinstance(value, random.SystemRandom)  # it has no state
    if (numpy := sys.modules.get("numpy")) is None:
        return False
    if isinstance(value, numpy.ndarray):
        return bool(value.flags.writeable)
    return isinstance(value, (numpy.random.Generator, numpy.random.RandomState))


def _contents(model: nn.Module) -> list[Any]:
    contents: dict[int, Any] = {}
    for module in model.modules():
        _collect(vars(module), contents)
    return list(contents.values())


def _collect(value: Any, contents: dict[int, Any]) -> None:
    """Collect containers, tensors, random generators and arrays, also from the attributes of plain objects."""
    if id(value) in contents or isinstance(value, _OPAQUE):
        return
    if _is_stateful(value):
        contents[id(value)] = value
    elif type(value) in _CONTAINERS or isinstance(value, tuple):
        contents[id(value)] = value
        for item in list(value.values() if isinstance(value, dict) else value):
            _collect(item, contents)
    elif type(getattr(value, "__dict__", None)) is dict:
        _collect(vars(value), contents)


# Runs


@contextlib.contextmanager
def restored(model: nn.Module) -> Iterator[None]:
    """Restore a model and all random number generators at exit, also hooks that were registered inside."""
    devices: dict[str, set[int]] = defaultdict(set)
    for tensor in [*model.parameters(), *model.buffers()]:
        if tensor.device.index is not None:
            devices[tensor.device.type].add(tensor.device.index)
    with contextlib.ExitStack() as stack:
        stack.callback(State(model).restore)
        stack.callback(set_random_states, random_states())
        for kind, numbers in devices.items():
            if hasattr(torch.get_device_module(kind), "get_rng_state"):
                stack.enter_context(torch.random.fork_rng(devices=numbers, device_type=kind))
        yield


def hook_inputs(model: nn.Module, record: Callable[[str, Tensor], None]) -> None:
    """Register hooks that call `record` with the name and the input of every hull that runs."""

    def hook(name: str, module: nn.Module, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        record(name, next(iter([*inputs, *named.values()])))

    for name, caller in named_callers(model):
        caller.register_forward_pre_hook(functools.partial(hook, name), with_kwargs=True)


def run(model: nn.Module, inputs: Inputs) -> Any:
    """Call a model with copies of inputs, which it may overwrite."""
    inputs_copy = _copy_inputs(inputs)
    if isinstance(inputs_copy, Mapping):
        return model(**inputs_copy)
    try:
        return model(*(inputs_copy if isinstance(inputs_copy, tuple) else (inputs_copy,)))
    except Exception as error:
        if isinstance(inputs, list):
            error.add_note("example_inputs is a list, which is one argument of the model; give several as a tuple")
        raise


def _copy_inputs(inputs: Any) -> Any:
    """Return a copy of inputs; unlike copy.deepcopy, also of tensors that are not leaves."""
    contents: dict[int, Any] = {}
    _collect(inputs, contents)
    tensors = [item for item in contents.values() if isinstance(item, Tensor)]
    memo = {id(item): item.detach().clone().requires_grad_(item.requires_grad) for item in tensors}
    try:
        return copy.deepcopy(inputs, memo)
    except Exception as error:
        raise TypeError(f"example_inputs cannot be copied, give tensors and plain containers: {error}") from error


# Copies


def copy_model(model: nn.Module) -> nn.Module:
    """Return a copy of a model.

    Unlike copy.deepcopy, it shares locks and Python modules, and detaches tensors that are not leaves.

    Raises:
        TypeError: an attribute cannot be copied.
    """
    shared = [thing for module in model.modules() for thing in vars(module).values() if isinstance(thing, _UNCOPIED)]
    memo: dict[int, Any] = {id(thing): thing for thing in shared}
    for thing in _contents(model):
        if isinstance(thing, Tensor) and not thing.is_leaf:
            memo[id(thing)] = thing.detach().clone()
    try:
        return copy.deepcopy(model, memo)
    except Exception as error:
        raise TypeError(f"the model cannot be copied{_uncopyable_attribute(model, memo)}: {error}") from error


def _uncopyable_attribute(model: nn.Module, memo: dict[int, Any]) -> str:
    """Name the attribute that cannot be copied, if there is one."""
    for name, module in model.named_modules():
        for attribute, thing in vars(module).items():
            try:
                copy.deepcopy(thing, dict(memo) | {id(child): child for child in model.modules()})
            except Exception:
                return f" because of {'.'.join(part for part in (name, attribute) if part)}"
    return ""


def customizes_copying(module: nn.Module) -> bool:
    """Return whether a class other than PyTorch's defines how a module is copied or pickled."""
    classes = [
        cls for cls in type(module).__mro__ if cls.__module__.partition(".")[0] not in ("torch", "builtins", "hullo")
    ]
    return any(name in vars(cls) for cls in classes for name in _COPY_METHODS)


def loses_children(module: nn.Module) -> str:
    """Return why copies of a module would lose a new child; empty if they keep it, or cannot be made anyway."""
    if customizes_copying(module) and not all(
        _keeps_new_child(module, make_copy) for make_copy in (copy.deepcopy, _copy_by_pickle)
    ):
        return f"{type(module).__qualname__} defines how it is copied, and its copies would lose a hull"
    return ""


def _keeps_new_child(module: nn.Module, make_copy: Any) -> bool:
    """Return whether a copy has a child that the module was given; true if it cannot be copied in the first place."""
    shared = [*module.parameters(), *module.buffers(), *module._modules.values()]
    memo = {id(item): item for item in shared}
    try:
        make_copy(module, dict(memo))
    except Exception:
        return True
    structure = Structure(module)
    try:
        module.__class__ = rewritten(module, {})
        module._modules[_PROBE] = nn.Identity()
        return _PROBE in make_copy(module, dict(memo))._modules
    except Exception:
        return False
    finally:
        structure.restore()


def _copy_by_pickle(module: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """Return a copy made as by pickling."""
    reduced: Any = module.__reduce_ex__(4)
    module_copy: nn.Module = reduced[0](*reduced[1])
    if len(reduced) > 2 and isinstance(reduced[2], dict):
        module_copy.__setstate__({name: copy.copy(item) for name, item in reduced[2].items()})  # type: ignore[no-untyped-call]
    return module_copy
