"""Read activations of PyTorch and transformers by their type and settings, without calling them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from hullo._compat import gather
from hullo.bases import get_base
from hullo.recognition.known import LEARNED, NOT_IN_CATALOGUE, Known, Reading

NAMES = frozenset({
    "relu", "relu6", "leaky_relu", "prelu", "rrelu", "elu", "celu", "selu", "gelu", "silu", "mish", "hardswish",
    "softplus", "softsign", "tanh", "hardtanh", "sigmoid", "hardsigmoid", "logsigmoid", "glu", "threshold",
    "hardshrink", "softshrink", "tanhshrink", "sin", "erf", "arctan", "asinh",
})  # fmt: skip
"""Names of PyTorch's functions that may be activations."""

_ALIASES = {
    "expit": "sigmoid", "special_expit": "sigmoid", "atan": "arctan", "arcsinh": "asinh", "special_erf": "erf",
    "log_sigmoid": "logsigmoid", "_threshold": "threshold",
}  # fmt: skip
_SETTINGS: dict[str, dict[str, Any]] = {
    "leaky_relu": {"negative_slope": 0.01}, "elu": {"alpha": 1.0}, "celu": {"alpha": 1.0},
    "softplus": {"beta": 1.0, "threshold": 20.0}, "gelu": {"approximate": "none"},
    "hardtanh": {"min_val": -1.0, "max_val": 1.0}, "threshold": {"threshold": None, "value": None},
}  # fmt: skip
"""Settings of functions, in order, with their defaults; modules have attributes of the same names."""

_MODULES: dict[type[nn.Module], str] = {
    nn.ReLU: "relu", nn.LeakyReLU: "leaky_relu", nn.ELU: "elu", nn.CELU: "celu", nn.SELU: "selu", nn.GELU: "gelu",
    nn.SiLU: "silu", nn.Mish: "mish", nn.Hardswish: "hardswish", nn.Softplus: "softplus", nn.Softsign: "softsign",
    nn.Tanh: "tanh", nn.Hardtanh: "hardtanh", nn.Sigmoid: "sigmoid", nn.Hardsigmoid: "hardsigmoid",
    nn.LogSigmoid: "logsigmoid", nn.RReLU: "rrelu", nn.Threshold: "threshold", nn.Hardshrink: "hardshrink",
    nn.Softshrink: "softshrink", nn.Tanhshrink: "tanhshrink", nn.GLU: "glu",
}  # fmt: skip
_FORWARDS = {cls.forward: name for cls, name in _MODULES.items()}
_TRANSFORMERS = {
    "GELUActivation": "gelu", "NewGELUActivation": "gelu_tanh", "FastGELUActivation": "gelu_tanh",
    "AccurateGELUActivation": "gelu_tanh", "GELUTanh": "gelu_tanh", "PytorchGELUTanh": "gelu_tanh",
    "QuickGELUActivation": "quick_gelu", "SiLUActivation": "silu", "MishActivation": "mish",
    "ReLUSquaredActivation": "relu2",
}  # fmt: skip

_WHY_NOT = {
    "glu": "it multiplies one half of its input by a gate of the other; write hull(gate) * up with hullo.GatedHull",
    "rrelu": "its slope is random in training; use a hull of identity and relu",
    "prelu": "its slopes are a tensor; nn.PReLU is replaced",
}


def name_of(function: Any) -> str:
    """Return the name of an activation function of PyTorch, or of a method of tensors; empty for other functions."""
    name = str(getattr(function, "__name__", "")).removesuffix("_")
    name = _ALIASES.get(name, name)
    return name if name in NAMES else ""


def read_call(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Reading:
    """Return which activation a call of a function of PyTorch is; see :func:`name_of`."""
    name = name_of(function)
    if kwargs.get("out") is not None:
        return Reading(None, "it writes its result to out=")
    settings = dict(_SETTINGS.get(name, {}))
    settings |= dict(zip(settings, args[1 if args else 0 :], strict=False))
    settings |= {key: value for key, value in kwargs.items() if key in settings}
    return _read(name, settings)


def read_type(module: nn.Module) -> Reading | None:
    """Return which activation of PyTorch or transformers a module is; None for other modules."""
    kind = type(module)
    if isinstance(module, (nn.RNNBase, nn.RNNCellBase)):
        return Reading(None, reason="its activations are inside a fused kernel")
    is_of_transformers = kind.__module__ == "transformers.activations"
    if kind.forward is nn.PReLU.forward:
        reading = _read_learned("prelu", lambda: [(slope, 1 - slope) for slope in _numbers(module.weight)])
    elif is_of_transformers and kind.__name__ == "XIELUActivation":
        reading = _read_learned("xielu", lambda: [_xielu_coefficients(module)])
    elif kind.forward in _FORWARDS:
        name = _FORWARDS[kind.forward]
        reading = _read(name, {key: getattr(module, key) for key in _SETTINGS.get(name, {})})
    elif is_of_transformers and kind.__name__ in _TRANSFORMERS:
        reading = Reading(Known.of(_TRANSFORMERS[kind.__name__]))
    else:
        return None
    reason = reading.reason or why_not_module(module)
    return Reading(None if reason else reading.known, reason)


def why_not_module(module: nn.Module) -> str:
    """Return why a hull cannot replace a module whatever it computes; empty if it can."""
    if "forward" in vars(module):
        return "its forward is set on the module itself, not in its class"
    if type(module).__call__ is not nn.Module.__call__:
        return "its class defines __call__"
    return ""


def _read(name: str, settings: Mapping[str, Any]) -> Reading:
    """Return the base for the name and the settings of a function."""
    values = tuple(settings.values())
    if any(isinstance(value, Tensor) for value in values):
        return Reading(None, reason="one of its settings is a tensor")
    spelled: str | None = name
    match name:
        case "leaky_relu" | "elu" | "celu":
            spelled = f"{name}({float(values[0])!r})"
        case "softplus":  # beyond the threshold it is the identity, to rounding
            spelled = f"softplus({float(values[0])!r})" if values[1] >= 20 else None
        case "gelu":
            spelled = "gelu" if values[0] == "none" else "gelu_tanh"
        case "hardtanh":
            spelled = {(-1.0, 1.0): "hardtanh", (0.0, 6.0): "relu6"}.get(values)
        case "threshold":
            spelled = "relu" if values == (0, 0) else None
    try:
        return Reading(Known.of(spelled or ""))
    except (ValueError, TypeError):
        return Reading(None, reason=_WHY_NOT.get(name, NOT_IN_CATALOGUE))


def _read_learned(name: str, read_rows: Callable[[], list[tuple[float, ...]]]) -> Reading:
    """Return an activation with the coefficients that its parameters stand for."""
    try:
        rows = tuple(read_rows())
    except (RuntimeError, NotImplementedError):  # on meta, or in a dispatch mode
        return Reading(None, reason="its parameters have no values yet")
    return Reading(Known(name, tuple(map(get_base, LEARNED[name])), rows))


def _numbers(tensor: Any) -> list[float]:
    numbers: list[float] = gather(tensor.detach()).double().cpu().tolist()
    return numbers


def _xielu_coefficients(module: Any) -> tuple[float, ...]:
    """Return the factors of x, of the square for positive x, and of exp(x) - 1 - x for negative x."""
    beta = float(module.beta)
    (positive,), (negative,) = (_numbers(F.softplus(item.double())) for item in (module.alpha_p, module.alpha_n))
    return beta, positive, beta + negative
