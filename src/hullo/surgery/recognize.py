"""Recognize activations: identify the base that a module or a function computes by calling it."""

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

from hullo._compat import gather, real_tensors
from hullo.bases import Base, all_bases, get_base
from hullo.find_base import combination
from hullo.least_squares import express
from hullo.modules import Hull
from hullo.surgery.isolation import NotHashableError, has_changed, isolated, state_of
from hullo.surgery.probes import identify_function, points

_MAX_NUMBERS = 2**16  # in the parameters and buffers of an activation
_CACHE_SIZE = 2048
_BOOKKEEPING = frozenset(vars(nn.Identity()))

NAMES = frozenset({
    "relu", "relu_", "relu6", "leaky_relu", "leaky_relu_", "prelu", "rrelu", "rrelu_", "elu", "elu_", "celu", "celu_",
    "selu", "selu_", "gelu", "silu", "mish", "hardswish", "softplus", "softsign", "tanh", "tanh_", "hardtanh",
    "hardtanh_", "sigmoid", "sigmoid_", "hardsigmoid", "logsigmoid", "expit", "glu", "threshold", "threshold_",
    "hardshrink", "softshrink", "tanhshrink", "sin", "sin_", "erf", "erf_", "atan", "arctan", "asinh", "arcsinh",
})  # fmt: skip
"""Names of PyTorch's functions that may be activations."""
FUNCTIONS = frozenset(
    getattr(space, name) for space in (F, torch, torch.special) for name in NAMES if hasattr(space, name)
)


def is_torch_function(value: Any) -> bool:
    """Return whether a value is one of these functions, or a partial of one."""
    function = value.func if isinstance(value, functools.partial) else value
    return isinstance(function, (types.FunctionType, types.BuiltinFunctionType)) and function in FUNCTIONS


AMBIGUOUS = frozenset({"sigmoid", "hardsigmoid", "softplus", "sin", "arctan", "asinh", "erf"})
"""Functions that often are gates, probabilities, positivity constraints or positional encodings, not activations."""


@dataclass(frozen=True)
class Known:
    """Hold a function that a hull can start as: rows of coefficients of bases, one row per channel or one for all."""

    name: str
    bases: tuple[Base, ...]
    rows: tuple[tuple[float, ...], ...] = ((1.0,),)

    @property
    def family(self) -> str:
        """Return the name without its parameters."""
        return self.name.partition("(")[0]

    def coefficients(self, bases: Sequence[Base]) -> list[list[float]] | None:
        """Return the coefficients of the function in other bases, one row per channel; None if there are none."""
        if len(self.bases) == 1 and self.bases[0] in bases:
            return [[float(item is self.bases[0]) for item in bases]]
        functions = [functools.partial(combination, row, self.bases) for row in self.rows]
        rows = [
            [round(number, 12) for number in solution]
            for solution in express(functions, [item.function for item in bases])
            if solution is not None
        ]
        return rows if len(rows) == len(self.rows) else None


@dataclass(frozen=True)
class Reading:
    """Hold the result of reading an activation; `known` is None, with a reason, if no hull can start as it."""

    known: Known | None
    in_place: bool = False
    reason: str = ""


def read_module(module: nn.Module) -> Reading | None:
    """Return which activation a module is; None if it is not one. Only copies of the module are called."""
    if isinstance(module, (Hull, torch.jit.ScriptModule)) or any(True for _ in module.children()):
        return None
    if isinstance(module, (nn.RNNBase, nn.RNNCellBase)):
        return Reading(None, reason="its activations are inside a fused kernel")
    kind = type(module)
    if isinstance(module, nn.PReLU) and (kind.forward is nn.PReLU.forward or _equals_prelu(module)):
        return _read_prelu(module)
    if kind.__module__.startswith("torch.") and kind.__module__ != "torch.nn.modules.activation":
        return None
    tensors = [*module.parameters(), *module.buffers()]
    if sum(tensor.numel() for tensor in tensors) > _MAX_NUMBERS or any(map(_holds_module, vars(module).values())):
        return None
    combination = _read_combination(module)
    if combination is not None and not _why_not(module):
        return Reading(combination)
    reading = _cached(functools.partial(_read_copies, module), functools.partial(_module_state, module))
    if reading is None or not (reading.known or tensors):
        return reading
    reason = "it has parameters of its own" if tensors else _why_not(module)
    return Reading(None, reading.in_place, reason) if reason else reading


@real_tensors()
def read_function(function: Callable[..., Any]) -> Reading | None:
    """Return which activation a function of one tensor is; None if it is not elementwise, or linear."""
    return _cached(functools.partial(_read_calls, function), functools.partial(state_of, function))


def _read_calls(function: Callable[..., Any]) -> Reading | None:
    if (identified := identify_function(function)) is None:
        return None
    item, in_place, reason = identified
    return Reading(None if item is None else Known(item.name, (item,)), in_place, reason)


@real_tensors()
def _equals_prelu(module: nn.PReLU) -> bool:
    """Return whether a subclass of PReLU computes the values and gradients of PReLU."""
    try:
        with isolated():
            module_copy = copy.deepcopy(module).cpu()
            weight = module_copy.weight
            for shape in ((5, len(weight)), (3, len(weight), 4, 2)):
                x = points(torch.float32)[: math.prod(shape)].reshape(shape).to(weight.dtype).requires_grad_()
                actual, expected = (
                    (y, *torch.autograd.grad(y.sum(), (x, weight)))
                    for y in (module_copy.forward(x * 1.0), F.prelu(x, weight))
                )
                if not all(map(torch.equal, actual, expected)):
                    return False
    except Exception:
        return False
    return True


def _read_prelu(module: nn.PReLU) -> Reading:
    try:
        slopes: list[float] = gather(module.weight.detach()).double().cpu().tolist()
    except (RuntimeError, NotImplementedError):  # on meta, or in a dispatch mode
        return Reading(None, reason="its slopes have no values yet")
    rows = tuple((slope, 1 - slope) for slope in slopes)
    return Reading(Known("prelu", (get_base("identity"), get_base("relu")), rows))


@real_tensors()
def _read_copies(module: nn.Module) -> Reading | None:
    """Read a module in evaluation and in training mode, each with a new copy."""
    readings = []
    for training in (False, True):
        try:
            with isolated():
                module_copy = copy.deepcopy(module)
        except Exception:  # without a copy, calls might change the module
            return None
        module_copy.training = training
        reading = _read_calls(types.MethodType(type(module_copy).forward, module_copy))
        if reading is None and not training:
            return None
        if reading is not None and reading.known and has_changed(module_copy, module):
            reading = Reading(None, reading.in_place, "calls change its attributes")
        readings.append(reading)
    if readings[0] != readings[1]:
        return Reading(None, reason="it differs between training and evaluation mode")
    return readings[0]


_ALLOWED = frozenset({
    "__repr__", "__new__", "__init_subclass__", "__class_getitem__", "__slots__", "__orig_bases__", "__parameters__",
    "__abstractmethods__", "__setstate__", "__getstate__", *vars(nn.ReLU),
})  # fmt: skip


def _why_not(module: nn.Module) -> str:
    """Return why a hull cannot replace a module that computes a base; empty if it can."""
    if "forward" in vars(module):
        return "its forward is set on the module itself, not in its class"
    own = [name for cls in type(module).__mro__ if cls not in nn.Module.__mro__ for name in vars(cls)]
    if special := sorted({name for name in own if name.startswith("__")} - _ALLOWED):
        return f"its class defines {special[0]}"
    parameters = list(inspect.signature(type(module).forward).parameters)[2:]
    return f"its forward takes more than one argument: {', '.join(parameters)}" if parameters else ""


def _holds_module(value: Any) -> bool:
    """Return whether an attribute refers to modules that are not children: a copy would copy them, too."""
    held = value if isinstance(value, (list, tuple, set)) else value.values() if isinstance(value, dict) else [value]
    return any(isinstance(item, nn.Module) for item in held)


def _module_state(module: nn.Module) -> Hashable:
    kind = type(module)
    own = {name: value for name, value in vars(module).items() if name not in _BOOKKEEPING}
    if any(True for _ in module.parameters()) or any(True for _ in module.buffers()):
        raise NotHashableError
    return kind, state_of(kind.forward), state_of(own)


_readings: dict[Hashable, Reading | None] = {}


def _cached(read: Callable[[], Reading | None], state: Callable[[], Hashable]) -> Reading | None:
    """Call `read`, unless the result for this state is cached."""
    try:
        key = (all_bases(), state())
    except NotHashableError:
        return read()
    if key not in _readings:
        if len(_readings) >= _CACHE_SIZE:
            _readings.clear()
        _readings[key] = read()
    return _readings[key]


# Activations with learned parameters

COMBINATIONS = {"xielu": ("identity", "relu2", "xielu_negative"), "poly_relu": ("constant", "relu", "relu2", "relu3")}
"""Bases of learned activations in recent models; see :mod:`hullo.presets`."""

MAX_PARAMETERS = 8  # of such an activation
_COMBINATION_TOLERANCE = 2.0**-18  # of values and slopes: xIELU clips inputs within 1e-6 of the origin


@real_tensors()
def _read_combination(module: nn.Module) -> Known | None:
    """Return the combination of bases that xIELU, PolyReLU and the like are; None for other modules.

    A copy of the module is called in float64. Values and slopes must agree with the combination, which must contain a
    power of ReLU.
    """
    if not 0 < sum(parameter.numel() for parameter in module.parameters()) <= MAX_PARAMETERS:
        return None
    x = points(torch.float64)
    x = x[(x.abs() < 64) & (x.abs() > 1e-5)]
    try:
        y, slopes = _values_and_slopes(module, x, training=False)
        again, _ = _values_and_slopes(module, x, training=True)
    except Exception:  # it does not accept any tensor
        return None
    if not torch.equal(y, again):
        return None
    for name, spelled in COMBINATIONS.items():
        bases = tuple(map(get_base, spelled))
        columns = torch.stack([item.function(x) for item in bases], dim=1)
        solution = torch.linalg.lstsq(columns, y[:, None], driver="gelsd").solution[:, 0]
        expected = torch.stack([item.derivative(x) for item in bases], dim=1) @ solution
        powers = [n for n, item in enumerate(bases) if item.slope_bounds[1] == math.inf]
        has_power = bool(solution[powers].abs().max() > 1e-6)
        if has_power and _agree(columns @ solution, y, x) and _agree(expected, slopes, x):
            return Known(name, bases, (tuple(solution.tolist()),))
    return None


def _values_and_slopes(module: nn.Module, x: Tensor, training: bool) -> tuple[Tensor, Tensor]:
    """Call a copy of a module, on the CPU and in float64."""
    with isolated(), torch.enable_grad():
        module_copy = copy.deepcopy(module).cpu().double().train(training)
        leaf = x.clone().requires_grad_()
        argument = leaf * 1.0
        y = type(module_copy).forward(module_copy, argument)
        (slopes,) = torch.autograd.grad(y.sum(), leaf)
        if not torch.equal(argument, x) or y.shape != x.shape:
            raise ValueError("it overwrites its input, or returns another shape")
    return y.detach(), slopes


def _agree(actual: Tensor, expected: Tensor, x: Tensor) -> bool:
    return bool(((actual - expected).abs() <= _COMBINATION_TOLERANCE * (expected.abs() + x.abs().clamp_max(1))).all())
