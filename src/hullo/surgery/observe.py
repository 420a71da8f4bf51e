"""Observe a model: run it, and record every call of an activation with the place in the code that makes it."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from hullo.gating import GatedHull
from hullo.modules import Hull
from hullo.recognition.known import Reading
from hullo.recognition.probe import may_be_activation, read_function, read_module
from hullo.recognition.table import NAMES, name_of, read_call, read_type
from hullo.surgery.source import Method, Position, method_of

_FOLDER = torch.__file__.removesuffix("__init__.py")
_SKIPPED = frozenset(
    {__file__, *(f"{_FOLDER}{name}.py" for name in ("overrides", "_tensor", "_jit_internal", "nn/functional"))}
    | {f"{_FOLDER}nn/modules/{name}.py" for name in ("module", "activation")}
)
IN_SCRIPT = "scripted code calls it; write that in Python"
SCRIPTED = "it is scripted; replace before scripting"
_VARIADIC = 0x04 | 0x08  # flags of code with *args or **kwargs


@dataclass(eq=False)
class Call:
    """Describe one observed call of an activation."""

    what: str  # the name of the function or the type of the module
    reading: Reading
    mode: str
    shape: tuple[int, ...]  # of the input
    last: nn.Module | None  # the module with weights that ran last
    made: tuple[int, ...]  # the shape of what that module has computed
    callee: nn.Module | None  # the module that was called; None for a function
    argument: tuple[int, str] = (0, "")  # the index and the name of the input, of a function other than PyTorch's
    helper: str = ""  # the function that makes the call instead of a method
    owner: nn.Module | None = None  # the module whose method makes the call; None if no module of the model does
    code: types.CodeType | None = None  # of that method, or nested in it
    method: Method | None = None
    invocation: int = 0  # the number of the call of the method
    position: Position = (0, 0)  # of the call in its file
    place: str = ""  # the function and the line, for messages

    @property
    def spot(self) -> tuple[Any, ...]:
        """Return what identifies the expression of the call, and the module it calls."""
        return id(self.owner), self.code, self.position, id(self.callee)


@dataclass
class _Running:
    """Hold a module that runs."""

    start: int  # how many calls were recorded before
    x: Tensor | None
    reading: Reading | None = None


class _ScriptedOperators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Call each operator from Python, where a TorchFunctionMode sees also those of scripted code."""

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return operator(*args, **(kwargs or {}))


@contextlib.contextmanager
def _visible_scripts() -> Iterator[None]:
    """Run scripted functions in a mode in which their operators are seen.

    Other code runs without it: in a dispatch mode, PyTorch does not turn a tensor into one of a subclass.
    """
    scripted: Any = torch.jit.ScriptFunction
    original = scripted.__call__

    def call(*args: Any, **kwargs: Any) -> Any:
        with _ScriptedOperators():  # type: ignore[no-untyped-call]
            return original(*args, **kwargs)

    scripted.__call__ = call
    try:
        yield
    finally:
        scripted.__call__ = original


class Observer(TorchFunctionMode):
    """Record the calls of activations while a model runs; what hulls call is not recorded.

    Args:
        model: the model.
        mode: the name of the mode it runs in.
        readings: which activation a module is, by its id; filled here.
    """

    def __init__(self, model: nn.Module, mode: str, readings: dict[int, tuple[nn.Module, Reading | None]]) -> None:
        super().__init__()
        self.members = {id(module) for module in model.modules()}
        self.calls: list[Call] = []
        self.ran: set[int] = set()
        self.seen: set[tuple[str, Position]] = set()  # files and positions of calls
        self._mode, self._readings = mode, readings
        self._running: list[_Running] = []
        self._inside = 0  # of how many activations
        self._last: nn.Module | None = None  # with weights
        self._made: tuple[int, ...] = ()  # the shape of its output
        self._helper: tuple[types.FrameType, Reading | None] | None = None  # the last one that ran
        self._invocations: dict[types.CodeType, tuple[types.FrameType, int]] = {}  # the last of each function

    def __enter__(self) -> Observer:
        with contextlib.ExitStack() as stack:
            stack.callback(register_module_forward_pre_hook(self._enter).remove)
            stack.callback(register_module_forward_hook(self._leave, always_call=True).remove)
            stack.enter_context(_visible_scripts())
            self._stack = stack.pop_all()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._stack.close()
        self._helper = None
        self._invocations.clear()

    def _enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        x = args[0] if args else None
        running = _Running(len(self.calls), x if isinstance(x, Tensor) else None)
        self._running.append(running)
        self.ran.add(id(module))
        if self._inside:
            return
        if isinstance(module, (Hull, GatedHull)):
            running.reading = Reading(None)
        elif isinstance(module, torch.jit.ScriptModule):
            running.reading = Reading(None, SCRIPTED)
        else:
            running.reading = read_type(module)
        if running.reading is not None:
            self._inside += 1

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        running = self._running.pop()
        if running.reading is not None:
            self._inside -= 1
            if isinstance(module, (Hull, GatedHull)):
                return
            self._record(type(module).__name__, running.reading, module, running.x)
        elif running.x is not None and isinstance(output, Tensor) and not self._inside:
            self._read_own(module, running.x, output, running.start)
        if module._parameters and not isinstance(module, Hull):
            self._last, self._made = module, tuple(output.shape) if isinstance(output, Tensor) else ()

    def _read_own(self, module: nn.Module, x: Tensor, output: Tensor, start: int) -> None:
        """Record a module of a user's own that is a known function, in place of the calls it makes."""
        if output.shape != x.shape or not output.is_floating_point() or not may_be_activation(module):
            return
        self._inside += 1
        if id(module) not in self._readings:
            self._readings[id(module)] = module, read_module(module)
        self._inside -= 1
        reading = self._readings[id(module)][1]
        if reading is not None and (reading.known is not None or len(self.calls) == start):
            del self.calls[start:]
            self._record(type(module).__name__, reading, module, x)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if isinstance(function, torch._ops.OpOverload) and not self._inside:
            name = function._schema.name.removeprefix("aten::").removesuffix("_")
            if name in NAMES:
                self._record(name, Reading(None, IN_SCRIPT), None, args[0])
        if self._inside or not name_of(function):
            return function(*args, **kwargs)
        x = args[0] if args else kwargs.get("input")
        if not isinstance(x, Tensor) or not (x.is_floating_point() or x.is_complex()):
            return function(*args, **kwargs)
        self._inside += 1
        try:
            result = function(*args, **kwargs)
        finally:
            self._inside -= 1
        self._record(name_of(function), read_call(function, args, kwargs), None, x)
        return result

    def _record(self, what: str, reading: Reading, callee: nn.Module | None, x: Tensor | None) -> None:
        self._inside += 1
        try:
            callee = callee if id(callee) in self.members else None  # one that the code makes is like a function
            found = _locate(sys._getframe(2), self.members, callee)
            if found is None and callee is None:
                return  # a call outside of the model
            if found is not None:
                self.seen.add((found.first.f_code.co_filename, _position(found.first)))
            if x is not None and not x.is_floating_point():
                reading = Reading(None, f"its input has dtype {x.dtype}")
            elif x is not None and x.layout != torch.strided:
                reading = Reading(None, "its input is sparse")
            argument, helper = (0, ""), ""
            if found is not None and found.below is not None and callee is None:
                is_again = self._helper is not None and self._helper[0] is found.below
                function, argument = _rebuild(found.below)
                if not is_again:
                    self._helper = found.below, None if function is None else read_function(function)
                whole = self._helper[1]  # type: ignore[index]
                if whole is None or whole.known is None:
                    helper = found.first.f_code.co_qualname
                elif is_again:
                    return  # the same call of the helper
                else:
                    what, reading = found.below.f_code.co_name, whole
            where: dict[str, Any] = {}
            if found is not None:
                code = found.frame.f_code
                where = {
                    "owner": found.owner,
                    "code": code,
                    "method": method_of(type(found.owner), code),
                    "invocation": self._invocation_of(found.frame),
                    "position": _position(found.frame),
                    "place": f"{code.co_qualname}, line {found.frame.f_lineno}",
                }
            shape = () if x is None else tuple(x.shape)
            made = self._last, self._made
            self.calls.append(Call(what, reading, self._mode, shape, *made, callee, argument, helper, **where))
        finally:
            self._inside -= 1

    def _invocation_of(self, frame: types.FrameType) -> int:
        """Return the number of the call of a function in whose frame, or a lambda or comprehension in it, is called."""
        while frame.f_code.co_name.startswith("<") and frame.f_back is not None:
            frame = frame.f_back
        last, number = self._invocations.get(frame.f_code, (None, -1))
        if last is not frame:
            number += 1
            self._invocations[frame.f_code] = frame, number
        return number


@dataclass
class _Found:
    owner: nn.Module
    frame: types.FrameType
    first: types.FrameType  # the function that makes the call
    below: types.FrameType | None = None  # the function that the method calls, if the call is not in the method


def _locate(frame: types.FrameType | None, members: set[int], callee: nn.Module | None) -> _Found | None:
    """Return the method of a module, and the frame in it, that makes a call; None if there is none.

    A function that runs as a hook of a module, or instead of its forward, belongs to that module.
    """
    first: types.FrameType | None = None
    below: types.FrameType | None = None
    while frame is not None:
        if frame.f_code.co_filename not in _SKIPPED:
            first = first or frame
            owner = _owner(frame, members)
            if owner is not None:
                is_nested = method_of(type(owner), first.f_code) == method_of(type(owner), frame.f_code)
                return _Found(owner, first if is_nested else frame, first, None if is_nested else below)
            below = frame
        elif first is not None and callee is None and frame.f_code.co_name == "_call_impl":
            owner = frame.f_locals["self"]
            if id(owner) in members:
                return _Found(owner, first, first, first)
        frame = frame.f_back
    return None


def _owner(frame: types.FrameType, members: set[int]) -> nn.Module | None:
    """Return the module of the model whose method, or a function inside of it, runs in a frame."""
    code = frame.f_code
    names = (*code.co_varnames[: min(code.co_argcount, 1)], *code.co_freevars)
    if not names:
        return None
    local = frame.f_locals
    for value in (local.get(name) for name in names):
        if isinstance(value, nn.Module) and id(value) in members and method_of(type(value), code) is not None:
            return value
    return None


def _position(frame: types.FrameType) -> Position:
    """Return the position of the expression that a frame evaluates."""
    _, end_line, _, end_column = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))
    return end_line or 0, end_column or 0


def _rebuild(frame: types.FrameType) -> tuple[Any, tuple[int, str]]:
    """Return the function of a frame as a function of its only tensor, and which argument that is; None if unknown."""
    code, local = frame.f_code, frame.f_locals
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    tensors = [n for n, name in enumerate(names) if isinstance(local.get(name), Tensor)]
    if len(tensors) != 1 or code.co_flags & _VARIADIC or any(name not in local for name in (*names, *code.co_freevars)):
        return None, (0, "")
    (index,) = tensors
    cells = tuple(types.CellType(local[name]) for name in code.co_freevars)
    function = types.FunctionType(code, frame.f_globals, code.co_name, None, cells)
    given = {name: local[name] for name in names}

    def call(x: Tensor) -> Any:
        values = [x if n == index else given[name] for n, name in enumerate(names)]
        named = dict(zip(names[code.co_argcount :], values[code.co_argcount :], strict=True))
        return function(*values[: code.co_argcount], **named)

    first = local[names[0]]
    is_bound = method_of(first if isinstance(first, type) else type(first), code) is not None
    return call, (index - is_bound, names[index])
