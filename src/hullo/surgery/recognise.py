"""Tell what activation a module or a function is, by calling it: whatever it is called and however it is written."""

from __future__ import annotations

import copy
import functools
import inspect
import math
import types
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hullo._compat import real_tensors
from hullo.bases import Base, base, catalogued
from hullo.matching import members
from hullo.modules import Hull
from hullo.sharding import gather
from hullo.span import express
from hullo.surgery.isolation import NotHashableError, has_changed, isolated, numbers_in, state_of
from hullo.surgery.parametric import read_combination
from hullo.surgery.probes import BFLOAT16, DOUBLE, SINGLE, SINGLE_INSIDE, around, is_alone, points, slope_points, values

_MANY = 2**16  # numbers in parameters and buffers: no activation has more
_REMEMBERED = 2048  # readings
_FEW = 64  # points, which tell most functions apart
_BOOKKEEPING = frozenset(vars(nn.Identity()))

NAMES = frozenset({
    "relu", "relu_", "relu6", "leaky_relu", "leaky_relu_", "prelu", "rrelu", "rrelu_", "elu", "elu_", "celu", "celu_",
    "selu", "selu_", "gelu", "silu", "mish", "hardswish", "softplus", "softsign", "tanh", "tanh_", "hardtanh",
    "hardtanh_", "sigmoid", "sigmoid_", "hardsigmoid", "logsigmoid", "expit", "glu", "threshold", "threshold_",
    "hardshrink", "softshrink", "tanhshrink", "sin", "sin_", "erf", "erf_", "atan", "arctan", "asinh", "arcsinh",
})  # fmt: skip
"""The names of PyTorch's own functions that may be activations."""
FUNCTIONS = frozenset(
    getattr(space, name) for space in (F, torch, torch.special) for name in NAMES if hasattr(space, name)
)


def is_torch_function(thing: Any) -> bool:
    """Return whether something is one of these functions, also with some of its parameters given."""
    function = thing.func if isinstance(thing, functools.partial) else thing
    return isinstance(function, (types.FunctionType, types.BuiltinFunctionType)) and function in FUNCTIONS


AMBIGUOUS = frozenset({"sigmoid", "hardsigmoid", "softplus", "sin", "arctan", "asinh", "erf"})
"""Functions that serve as gates, as probabilities, to keep a number positive or to encode positions as often as they
serve as activations."""


@dataclass(frozen=True)
class Known:
    """A function that a hull can start as: rows of coefficients over bases, one row per channel or one for all."""

    name: str
    bases: tuple[Base, ...]
    rows: tuple[tuple[float, ...], ...] = ((1.0,),)

    @property
    def family(self) -> str:
        """The name without its parameters."""
        return self.name.partition("(")[0]

    def coefficients(self, bases: Sequence[Base]) -> list[list[float]] | None:
        """Return the function's coefficients in other bases, one row per channel; None if it is no combination."""
        if len(self.bases) == 1 and self.bases[0] in bases:
            return [[float(item is self.bases[0]) for item in bases]]
        functions = [functools.partial(_combine, row, self.bases) for row in self.rows]
        rows = [
            [round(number, 12) for number in found]
            for found in express(functions, [item.function for item in bases])
            if found is not None
        ]
        return rows if len(rows) == len(self.rows) else None


def _combine(row: Sequence[float], bases: Sequence[Base], x: Tensor) -> Tensor:
    return sum((c * item.function(x) for c, item in zip(row, bases, strict=True)), torch.zeros_like(x))


@dataclass(frozen=True)
class Reading:
    """What was found out about something that may be an activation; `known` is None where no hull can start as it."""

    known: Known | None
    in_place: bool = False
    reason: str = ""


def read_module(module: nn.Module) -> Reading | None:
    """Return what activation a module is; None if it is none.

    Copies of the module are called, so that it stays as it was.
    """
    if isinstance(module, (Hull, torch.jit.ScriptModule)) or any(True for _ in module.children()):
        return None
    if isinstance(module, (nn.RNNBase, nn.RNNCellBase)):
        return Reading(None, reason="its functions are inside a fused kernel")
    kind = type(module)
    if isinstance(module, nn.PReLU) and (kind.forward is nn.PReLU.forward or _does_as_prelu(module)):
        return _read_prelu(module)
    if kind.__module__.startswith("torch.") and kind.__module__ != "torch.nn.modules.activation":
        return None
    tensors = [*module.parameters(), *module.buffers()]
    if sum(tensor.numel() for tensor in tensors) > _MANY or any(map(_holds_module, vars(module).values())):
        return None
    found = read_combination(module)
    if found is not None and not _why_not(module):
        return Reading(Known(found[0], found[1], (found[2],)))
    reading = _remembered(functools.partial(_read_copies, module), functools.partial(_module_state, module))
    if reading is None or not (reading.known or tensors):
        return reading
    reason = "it has parameters of its own" if tensors else _why_not(module)
    return Reading(None, reading.in_place, reason) if reason else reading


@real_tensors()
def read_function(function: Callable[..., Any]) -> Reading | None:
    """Return what activation a function of one tensor is; None if it is none: not entry by entry, or linear."""
    return _remembered(functools.partial(_read_calls, function), functools.partial(state_of, function))


@real_tensors()
def _does_as_prelu(module: nn.PReLU) -> bool:
    """Return whether a subclass of PReLU computes what PReLU does, in values and gradients."""
    try:
        with isolated():
            twin = copy.deepcopy(module).cpu()
            for shape in ((5, len(twin.weight)), (3, len(twin.weight), 4, 2)):
                x = points(torch.float32)[: math.prod(shape)].reshape(shape).to(twin.weight.dtype).requires_grad_()
                found, expected = (
                    (y, *torch.autograd.grad(y.sum(), (x, twin.weight)))
                    for y in (twin.forward(x * 1.0), F.prelu(x, twin.weight))
                )
                if not all(map(torch.equal, found, expected)):
                    return False
    except Exception:
        return False
    return True


def _read_prelu(module: nn.PReLU) -> Reading:
    try:
        slopes: list[float] = gather(module.weight.detach()).double().cpu().tolist()
    except (RuntimeError, NotImplementedError):  # on meta, or in a mode
        return Reading(None, reason="its slopes have no values yet")
    rows = tuple((slope, 1 - slope) for slope in slopes)
    return Reading(Known("prelu", (base("identity"), base("relu")), rows))


@real_tensors()
def _read_copies(module: nn.Module) -> Reading | None:
    """Read a module in evaluation and in training, each on a copy of its own."""
    readings = []
    for training in (False, True):
        try:
            with isolated():
                twin = copy.deepcopy(module)
        except Exception:  # what cannot be copied cannot be called without a trace
            return None
        twin.training = training
        reading = _read_calls(types.MethodType(type(twin).forward, twin))
        if reading is None and not training:
            return None
        if reading is not None and reading.known and has_changed(twin, module):
            reading = Reading(None, reading.in_place, "calls change its attributes")
        readings.append(reading)
    if readings[0] != readings[1]:
        return Reading(None, reason="it does not do the same in training and in evaluation")
    return readings[0]


_USUAL = frozenset({
    "__repr__", "__new__", "__init_subclass__", "__class_getitem__", "__slots__", "__orig_bases__", "__parameters__",
    "__abstractmethods__", "__setstate__", "__getstate__", *vars(nn.ReLU),
})  # fmt: skip


def _why_not(module: nn.Module) -> str:
    """Return why no hull can stand in for a module that does what a base does; an empty string if one can."""
    if "forward" in vars(module):
        return "its forward is set on the module itself, not in its class"
    own = [name for cls in type(module).__mro__ if cls not in nn.Module.__mro__ for name in vars(cls)]
    if special := sorted({name for name in own if name.startswith("__")} - _USUAL):
        return f"its class has a {special[0]} of its own"
    parameters = list(inspect.signature(type(module).forward).parameters)[2:]
    return f"its forward takes more than one argument: {', '.join(parameters)}" if parameters else ""


def _holds_module(value: Any) -> bool:
    """Return whether an attribute refers to modules that are no children: a copy would take them along."""
    held = value if isinstance(value, (list, tuple, set)) else value.values() if isinstance(value, dict) else [value]
    return any(isinstance(item, nn.Module) for item in held)


def _module_state(module: nn.Module) -> Hashable:
    kind = type(module)
    own = {name: value for name, value in vars(module).items() if name not in _BOOKKEEPING}
    if any(True for _ in module.parameters()) or any(True for _ in module.buffers()):
        raise NotHashableError
    return kind, state_of(kind.forward), state_of(own)


_readings: dict[Hashable, Reading | None] = {}


def _remembered(read: Callable[[], Reading | None], state: Callable[[], Hashable]) -> Reading | None:
    """Read something, unless it has been read before in the same state."""
    try:
        key = (catalogued(), state())
    except NotHashableError:
        return read()
    if key not in _readings:
        if len(_readings) >= _REMEMBERED:
            _readings.clear()
        _readings[key] = read()
    return _readings[key]


# What a function does, told by calls of it


class _NoActivationError(Exception):
    """A call gave something else than a tensor like its input."""


_NO_BASE = "it is none of the catalogue's functions; hullo.add_base can make it one"


def _call(function: Callable[..., Any], x: Tensor) -> Tensor:
    y = function(x)
    if type(y) is not Tensor or y.shape != x.shape or not y.is_floating_point() or y.device != x.device:
        raise _NoActivationError
    return y


def _read_calls(function: Callable[..., Any]) -> Reading | None:
    call = functools.partial(_call, function)
    with isolated(function) as noticed, torch.no_grad():
        try:
            if not _seems_alone(call):
                return None
            x = points(torch.float64)
            given = x.clone()
            found = call(given)
            y = found.double().clone()
            single = torch.equal(y.nan_to_num(), y.float().double().nan_to_num())
            if _is_linear(call) or not is_alone(call, y, single):
                return None
        except Exception:  # whatever it is, it is not a function of any tensor
            return None
        in_place = not torch.equal(given, x)
        try:
            item = _match(call, y, single)
            reason = _NO_BASE if item is None else _check(function, item, single) or noticed()
            if not torch.equal(call(x.clone()).double().nan_to_num(0.5), y.nan_to_num(0.5)):
                reason = "it does not give the same for the same input"
        except Exception as error:
            item, reason = None, f"it fails for some inputs: {type(error).__name__}"
        if in_place and not (found.data_ptr() == given.data_ptr() and found.stride() == given.stride()):
            reason = reason or "it changes its input and returns something else"
        return Reading(None if reason or item is None else Known(item.name, (item,)), in_place, reason)


def _seems_alone(call: Callable[[Tensor], Tensor]) -> bool:
    """Return whether a function may act entry by entry; what normalises, mixes or reshapes is found out soon."""
    x = points(torch.float64)
    x = x[x.abs() < 5][:35].reshape(5, 7)
    y = call(x.clone())
    return torch.allclose(call(x.flip(0, 1)).flip(0, 1), y, rtol=1e-5, atol=1e-6, equal_nan=True)


def _is_linear(call: Callable[[Tensor], Tensor]) -> bool:
    x = points(torch.float32).double()
    low, middle, high = call(torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)).double()
    return bool(SINGLE.admits(call(x.clone()).double(), middle + (high - low) / 2 * x, x))


def _match(call: Callable[[Tensor], Tensor], y: Tensor, single: bool) -> Base | None:
    """Return the base that a function with these values is; None if it is none."""
    x, tolerance = points(torch.float64), DOUBLE
    if single:
        x, tolerance = points(torch.float32).double(), SINGLE_INSIDE
        y = call(x.clone()).double()
    bases = tuple(item for item in catalogued() if item.name != "identity")
    expected = values(bases, torch.float32 if single else torch.float64)
    may_be = tolerance.admits(y[:_FEW], expected[:, :_FEW], x[:_FEW]).tolist()
    for item, row, fits in zip(bases, expected, may_be, strict=True):
        if fits and bool(tolerance.admits(y, row, x)):
            return item
    for item in members(lambda few: call(few).double(), decimals=6 if single else None):
        if bool(tolerance.admits(y, item.function(x), x)):
            return base(item.name)
    return None


def _check(function: Callable[..., Any], item: Base, single: bool) -> str:
    """Return why a function whose values are those of a base is not that base; an empty string if it is."""
    call = functools.partial(_call, function)
    tolerance = SINGLE_INSIDE if single else DOUBLE
    mentioned = around(numbers_in(function))
    infinite = torch.tensor([math.inf, -math.inf], dtype=torch.float64)
    for x in (mentioned.float().double() if single else mentioned, infinite):
        y, expected = call(x.clone()).double(), item.function(x)
        if x is infinite:  # where many functions multiply it by zero
            expected = torch.where(y.isnan() | expected.isnan(), y, expected)
        if not bool(tolerance.admits(y, expected, x)):
            return _NO_BASE
    return _check_types(call, item) or _check_gradient(call, item, single)


def _check_types(call: Callable[[Tensor], Tensor], item: Base) -> str:
    """Return why a function is not a base in other types than float64, or under autocast; empty if it is."""
    few = points(torch.float32)
    few = few[(few.abs() < 1000) & (few.abs() > 1e-3)][:500]
    if call(few.double()).dtype != torch.float64:
        return "it does not return the type of its input"
    cases = [(points(torch.float32), SINGLE, False), (few, BFLOAT16, True)]
    for dtype in (torch.float16, torch.bfloat16):
        cases.append((few.to(dtype), BFLOAT16, False))
    for x, tolerance, autocast in cases:
        try:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                y = call(x.clone())
        except Exception:
            if x.dtype == torch.float32:
                raise
            continue  # as it is not made for this type, nothing is given to it in this type
        if y.dtype != x.dtype:
            return "it does not return the type of its input" + autocast * " under autocast"
        wide = x.double()
        expected = item.function(wide).to(x.dtype).double()  # infinite where the type has no such number
        if not bool(tolerance.admits(y.double(), expected, wide)):
            return f"it computes something else in {x.dtype}" + autocast * " under autocast"
    return ""


@torch.enable_grad()
def _check_gradient(call: Callable[[Tensor], Tensor], item: Base, single: bool) -> str:
    generator = torch.Generator().manual_seed(0)
    for dtype in (torch.float64, torch.float32):
        x = slope_points(item).to(dtype)
        upstream = torch.randn(len(x), dtype=dtype, generator=generator)
        upstream *= (20 * torch.rand(len(x), dtype=dtype, generator=generator) - 10).exp2()
        leaf = x.clone().requires_grad_()
        y = call(leaf * 1.0)
        (gradient,) = torch.autograd.grad(y, leaf, upstream, allow_unused=True) if y.requires_grad else (None,)
        if gradient is None:
            return "it passes no gradient on"
        wide, found = x.double(), (gradient / upstream).double()
        expected, exact = item.derivative(wide), dtype == torch.float64 and not single
        relative, absolute = (2.0**-20, 2.0**-22) if exact else (2.0**-14, 2.0**-14)
        close = (found - expected).abs() <= relative * expected.abs() + absolute
        overflown = found.isnan() & (wide.abs() > 80)  # 0 times infinity, in a branch that was not taken
        same_values = (DOUBLE if exact else SINGLE).admits(y.detach().double(), item.function(wide), wide)
        if not (bool((close | overflown).all()) and bool(same_values)):
            return f"its gradient is not that of {item.name}"
    return ""
