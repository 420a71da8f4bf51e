"""What function is this? Told by what it does, so that anybody's activation is recognised, whatever it is called."""

from __future__ import annotations

import copy
import functools
import math
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hullo._compat import real_tensors
from hullo.bases import Base, base, names
from hullo.modules import Hull
from hullo.span import express

_TOLERANCE = 1e-6  # relative, in float64: wide enough for code that computes in float32 and cuts its constants short

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
    """Whether something is one of these functions, also with some of its parameters given."""
    function = thing.func if isinstance(thing, functools.partial) else thing
    return isinstance(function, (types.FunctionType, types.BuiltinFunctionType)) and function in FUNCTIONS


AMBIGUOUS = frozenset({"sigmoid", "hardsigmoid", "softplus", "sin", "arctan", "asinh", "erf"})
"""Functions that serve as gates, as probabilities, to keep a number positive or to encode positions as often as they
serve as activations."""


@dataclass(frozen=True)
class Known:
    """A function that a hull can start as: rows of coefficients over bases, one row a channel or one for all."""

    name: str
    bases: tuple[Base, ...]
    rows: tuple[tuple[float, ...], ...] = ((1.0,),)

    @property
    def family(self) -> str:
        """The name without its parameters."""
        return self.name.partition("(")[0]

    def coefficients(self, bases: Sequence[Base]) -> list[list[float]] | None:
        """Return the function's coefficients in other bases, one row per channel; None if it is not in their affine
        hull."""
        if len(self.bases) == 1 and self.bases[0] in bases:
            return [[float(item is self.bases[0]) for item in bases]]
        functions = [functools.partial(_combine, row, self.bases) for row in self.rows]
        rows = [
            [round(number, 12) for number in found]
            for found in express(functions, [item.function for item in bases])
            if found is not None and math.isclose(sum(found), 1, abs_tol=1e-9)
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
    """What activation a module is; None if it is none."""
    if isinstance(module, (Hull, torch.jit.ScriptModule)) or any(module.children()):
        return None
    if isinstance(module, (nn.RNNBase, nn.RNNCellBase)):
        return Reading(None, reason="its functions are inside a fused kernel")
    if isinstance(module, nn.PReLU):
        slopes = module.weight.detach().double().cpu().tolist()
        rows = tuple((slope, 1 - slope) for slope in slopes)
        return Reading(Known("prelu", (base("identity"), base("relu")), rows))
    from_torch = type(module).__module__.startswith("torch.")
    if from_torch and type(module).__module__ != "torch.nn.modules.activation":
        return None
    has_tensors = any(True for _ in module.parameters()) or any(True for _ in module.buffers())
    training = copy.copy(module) if has_tensors else copy.deepcopy(module)  # to be run, without a trace in the model
    evaluating = copy.copy(training)
    training.training, evaluating.training = True, False
    reading = read_function(evaluating.forward)
    if reading is None or has_tensors:
        return reading and Reading(None, reason="it has parameters of its own")
    if read_function(training.forward) != reading:
        return Reading(None, reason="it does not do the same in training and in evaluation")
    return reading


@real_tensors()
def read_function(function: Callable[..., Any]) -> Reading | None:
    """What activation a function of one tensor is; None if it is none: not entry by entry, or linear."""
    x = _probe().clone()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            y = function(x)
            some = function(_probe()[:, ::3].clone())
    except Exception:  # whatever it is, it is not a function of any tensor
        return None
    if not isinstance(y, Tensor) or y.shape != x.shape or not y.is_floating_point() or not isinstance(some, Tensor):
        return None
    y, some = y.double(), some.double()
    if not _close(some, y[:, ::3]) or _is_linear(y):
        return None
    in_place = not torch.equal(x, _probe())
    for item in _candidates(y):
        if _close(item.function(_probe()), y):
            return Reading(Known(item.name, (item,)), in_place)
    return Reading(None, in_place, "it is none of the catalogue's functions; hullo.add_base can make it one")


def _probe() -> Tensor:
    return torch.linspace(-40.0, 40.0, 801, dtype=torch.float64, device="cpu").unsqueeze(0)


def _at(x: float, y: Tensor) -> float:
    return y[0, round((x + 40) * 10)].item()


def _close(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, rtol=_TOLERANCE, atol=_TOLERANCE)


def _is_linear(y: Tensor) -> bool:
    return _close(y.diff(n=2), torch.zeros_like(y[:, 2:]))


def _candidates(y: Tensor) -> Iterator[Base]:
    """Bases that a function with these values may be: all plain ones, and those whose parameter the values tell."""
    yield from (base(name) for name in names() if name != "identity" and not name.startswith("unit_"))
    left = -_at(-40, y)
    yield base(f"leaky_relu({left / 40:.12g})")
    yield base(f"elu({left:.12g})")
    if left > 0:
        yield base(f"celu({left:.12g})")
    if _at(0, y) > 0:
        yield base(f"softplus({math.log(2) / _at(0, y):.12g})")
