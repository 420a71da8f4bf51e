"""Record which activations run in a model, and measure the difference of outputs."""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

import hullo

HULL: Any = hullo.Hull
ACTIVATIONS = frozenset({
    "relu", "relu6", "leaky_relu", "prelu", "rrelu", "elu", "celu", "selu", "gelu", "silu", "mish", "hardswish",
    "softsign", "tanh", "hardtanh", "threshold", "hardshrink", "softshrink", "tanhshrink",
})  # fmt: skip
GATES = frozenset({"softplus", "sigmoid", "hardsigmoid", "logsigmoid", "special_expit", "erf"})
NOT_BY_DEFAULT = frozenset({"sigmoid", "hardsigmoid", "softplus", "sin", "arctan", "asinh", "erf", "glu", "GLU"})
NOT_RUN = "it did not run on example_inputs"
DROPOUTS = frozenset({"dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"})


@dataclass(frozen=True)
class Event:
    """Describe a call of an activation function outside of hulls."""

    name: str
    paths: frozenset[str]  # the names of the running module
    frames: tuple[str, ...]  # the functions between that module and the call

    def __str__(self) -> str:
        return f"{self.name} in {min(self.paths) or 'the model'} by {self.frames[0]}"

    def fits(self, site: Any) -> bool:
        """Return whether a site of a summary describes this call."""
        if site.reason == NOT_RUN or not {site.name, site.name.rpartition(".")[0]} & self.paths:
            return False
        function = site.place.partition(",")[0].rpartition(".")[2]
        names = {frame.rpartition(".")[2] for frame in self.frames}
        return not function or function in names or self.name in site.function


class Watch(TorchFunctionMode):
    """Record every call of an activation function, and of a hull, while a model runs."""

    def __init__(self, model: nn.Module, replaced: Collection[str] = ()) -> None:
        super().__init__()
        self.replaced = set(replaced)  # the names of modules that are known to be activations
        self.paths: dict[int, set[str]] = {}
        self.names: dict[int, str] = {}  # the first of each module
        for name, module in model.named_modules(remove_duplicate=False):
            self.paths.setdefault(id(module), set()).add(name)
            self.names.setdefault(id(module), name)
        self.events: list[Event] = []
        self.hulls: Counter[str] = Counter()
        self.called: set[str] = set()  # the names of modules without children that ran
        self.trained: set[str] = set()  # hulls whose output gets a gradient
        self.inside = 0  # of how many hulls
        self.running: list[tuple[nn.Module, list[Event]]] = [(model, [])]

    def __enter__(self) -> Watch:
        self.hooks = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]
        self.forward = HULL.forward
        watch = self

        def forward(hull: nn.Module, x: Tensor) -> Tensor:
            return watch._hull(hull, x)

        HULL.forward = forward
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        HULL.forward = self.forward
        for hook in self.hooks:
            hook.remove()
        self.events += self.running.pop()[1]

    def _enter(self, module: nn.Module, inputs: Any) -> None:
        self.running.append((module, []))

    def _leave(self, module: nn.Module, inputs: Any, output: Any) -> None:
        _, own = self.running.pop()
        names = self.paths.get(id(module), set())
        self.called |= set() if any(True for _ in module.children()) else names
        if names & self.replaced:
            own = [Event(type(module).__name__, frozenset(names), ())]
        self.running[-1][1].extend(own)

    def _hull(self, hull: nn.Module, x: Tensor) -> Tensor:
        name = self.names.get(id(hull), "(not a part of the model)")
        self.hulls[name] += 1
        self.inside += 1
        try:
            output: Tensor = self.forward(hull, x)
        finally:
            self.inside -= 1
        if output.requires_grad:
            output.register_hook(lambda gradient: self.trained.add(name))
        return output

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", "").rstrip("_")
        if name in ACTIVATIONS | GATES and not self.inside:
            owner = next(module for module, _ in reversed(self.running) if id(module) in self.paths)
            self.running[-1][1].append(Event(name, frozenset(self.paths[id(owner)]), tuple(_frames())))
        return function(*args, **(kwargs or {}))


def _frames() -> Iterator[str]:
    """Yield the running functions, innermost first, up to the call of their module."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_name not in ("_call_impl", "outputs"):
        if frame.f_code.co_name != "handle_torch_function" and frame.f_code.co_filename != __file__:
            yield frame.f_code.co_qualname
        frame = frame.f_back


class Passes:
    """Count the forward passes of a model, and measure the time of backward passes."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.forward, self.backward = model, 0, 0.0

    def __enter__(self) -> None:
        autograd: Any = torch.autograd
        self.run = autograd._engine_run_backward
        autograd._engine_run_backward = self._backward
        self.hook = register_module_forward_pre_hook(self._forward)

    def __exit__(self, *error: Any) -> None:
        self.hook.remove()
        torch.autograd._engine_run_backward = self.run  # type: ignore[attr-defined]

    def _forward(self, module: nn.Module, inputs: Any) -> None:
        self.forward += module is self.model

    def _backward(self, *args: Any, **kwargs: Any) -> Any:
        start = time.process_time()
        try:
            return self.run(*args, **kwargs)
        finally:
            self.backward += time.process_time() - start


class Settled(TorchFunctionMode):
    """Disable intended differences in training mode: dropout and batch statistics."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(function, "__name__", "").rstrip("_")
        if name in DROPOUTS:
            return args[0] if args else kwargs["input"]
        if function is F.batch_norm:
            names = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
            given = dict(zip(names, args, strict=False)) | kwargs
            return F.batch_norm(**given | {"training": given["training"] and given["running_mean"] is None})
        if name == "scaled_dot_product_attention" and "dropout_p" in kwargs:
            kwargs["dropout_p"] = 0.0
        return function(*args, **kwargs)


def tensors(value: Any) -> Iterator[Tensor]:
    """Yield all floating-point tensors in the output of a model."""
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors(item)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from tensors(getattr(value, field.name))


def cast(value: Any, dtype: torch.dtype) -> Any:
    """Return inputs with their floating-point tensors converted to a dtype."""
    if isinstance(value, Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, Mapping):
        return {name: cast(item, dtype) for name, item in value.items()}
    return type(value)(cast(item, dtype) for item in value) if isinstance(value, (list, tuple)) else value


def difference(found: list[Tensor], wanted: list[Tensor]) -> float:
    """Return the largest difference, relative to the largest number of each output."""
    if [item.shape for item in found] != [item.shape for item in wanted]:
        return math.inf
    worst = 0.0
    for one, other in zip(found, wanted, strict=True):
        one, other = one.detach().double(), other.detach().double()
        finite = other.isfinite()
        if not torch.equal(one[~finite].nan_to_num(), other[~finite].nan_to_num()) or not one[finite].isfinite().all():
            return math.inf
        if finite.any():
            scale = other[finite].abs().max().clamp(min=1e-12)
            worst = max(worst, float((one - other)[finite].abs().max() / scale))
    return worst


def loss(outputs: list[Tensor]) -> Tensor:
    """Return a scalar that depends on every element of every output with a different weight."""
    generator = torch.Generator().manual_seed(3)
    parts = [item for item in outputs if item.requires_grad and item.numel()]
    weights = [torch.randn(item.shape, generator=generator).to(item) for item in parts]
    return torch.stack([(item * weight).mean() for item, weight in zip(parts, weights, strict=True)]).sum()
