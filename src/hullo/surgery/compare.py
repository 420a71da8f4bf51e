"""Compare the outputs of a model before and after a change."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hullo.gating import named_callers
from hullo.surgery.channel_dim import channel_dim_of
from hullo.surgery.probes import DOUBLE
from hullo.surgery.state import Inputs, hook_inputs, restored, run
from hullo.surgery.swap import InPlace

MODES = {"training": True, "evaluation": False}
_TOLERANCES = {torch.float64: 1e-8, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
_MAX_DEPTH = 12
_ROUNDINGS = 8  # differences up to this multiple of the effect of rounding are accepted
_EPSILONS = 4  # rounding of one activation, in machine epsilons

Leaves = dict[str, Any]  # tensors and numbers in the output of a model, by path


class Comparison:
    """Record the outputs of a model for example inputs, in training and evaluation mode, and compare with them.

    Args:
        model: the model; its state is restored after each run.
        inputs: the arguments of the model.
        coarsest: a lower bound for the tolerance, relative to the largest number of an output.
        backward: whether a changed model must have a backward pass in training mode if the original has one.
    """

    def __init__(self, model: nn.Module, inputs: Inputs, coarsest: float = 0.0, backward: bool = False) -> None:
        for name, item in [*model.named_parameters(), *model.named_buffers()]:
            if torch.nn.parameter.is_lazy(item):
                raise ValueError(f"{name} is uninitialized: run the model once before you give example_inputs")
        self._inputs, self._backward = inputs, backward and not _is_distributed(model)
        dtypes = {item.dtype for item in [*model.parameters(), *model.buffers(), *_tensors(inputs)]}
        self._tolerance = max([coarsest, *(_TOLERANCES.get(dtype, 0.0) for dtype in dtypes)])
        self.shapes: dict[str, Tensor] = {}  # the last input of each hull, on the meta device
        self.channel_dims: dict[str, set[int | None]] = {}  # the channel dimensions of all its inputs; None: unknown
        self.expected: dict[str, Leaves] = {}
        failures: list[Exception] = []
        for mode in MODES:
            try:
                self.expected[mode] = self._run(model, mode, is_original=True)
            except Exception as error:  # in training mode, a batch of one may fail, or targets may be missing
                failures.append(error)
        if not self.expected:
            raise failures[-1]

    def repeats(self, model: nn.Module) -> bool:
        """Return whether the outputs of the original model are reproducible."""
        actual = {mode: self._run(model, mode) for mode in self.expected}
        return all(difference(actual[mode], expected)[1] <= self._tolerance for mode, expected in self.expected.items())

    @property
    def modes(self) -> str:
        """Return the names of the compared modes; empty if outputs have no values, as on the meta device."""
        leaves = [item for actual in self.expected.values() for item in actual.values()]
        return " and ".join(self.expected) if any(not getattr(item, "is_meta", False) for item in leaves) else ""

    def _run(self, model: nn.Module, mode: str, noise: float = 0.0, is_original: bool = False) -> Leaves:
        backward = MODES[mode] and self._backward and not noise
        inputs: list[tuple[str, Tensor, int]] = []  # of hulls, with their versions

        def record(name: str, x: Tensor) -> None:
            self._record(name, x)
            if backward:
                inputs.append((name, x, _version(x)))

        with restored(model), torch.set_grad_enabled(MODES[mode]):
            hook_inputs(model, record)
            for _, hull in named_callers(model) if noise else ():
                hull.register_forward_hook(_perturb(noise))
            for module in model.modules() if backward else ():
                module._backward_hooks.clear()
                module._backward_pre_hooks.clear()
            output = run(model.train(MODES[mode]), self._inputs)
            leaves = dict(_leaves("", output))
            try:
                has_gradients = backward and _differentiate(model, output)
            except Exception as error:
                if not is_original:
                    raise RuntimeError(f"{error}{_blame(model, inputs)}") from error
                has_gradients = False
            if is_original and backward:
                self._backward = has_gradients
            return leaves

    def _record(self, name: str, x: Tensor) -> None:
        self.shapes[name] = x.detach().to("meta")
        if torch.is_grad_enabled():
            self.channel_dims.setdefault(name, set()).add(channel_dim_of(x))

    def run_changed(self, model: nn.Module) -> None:
        """Run a changed model in the modes in which the original ran; raise RuntimeError if it fails."""
        for mode in self.expected:
            self._outputs(model, mode)

    def _outputs(self, model: nn.Module, mode: str) -> Leaves:
        try:
            return self._run(model, mode)
        except Exception as error:
            kind = type(error).__name__
            raise RuntimeError(f"the changed model fails in {mode} mode on example_inputs: {kind}: {error}") from error

    def check(self, model: nn.Module) -> None:
        """Compare the outputs of a changed model; raise RuntimeError if it fails, or they differ."""
        for mode, expected in self.expected.items():
            actual = self._outputs(model, mode)
            where, distance = difference(actual, expected)
            if distance <= self._tolerance:
                continue
            coarse = [torch.finfo(dtype).eps for dtype, value in _TOLERANCES.items() if value <= self._tolerance]
            _, noise = difference(self._run(model, mode, noise=_EPSILONS * max(coarse, default=0.0)), actual)
            is_repeatable = difference(self._run(model, mode), actual)[1] <= self._tolerance
            if not is_repeatable or not distance <= _ROUNDINGS * noise:
                raise RuntimeError(
                    f"the changed model computes something else: in {mode} mode, output{where} differs by "
                    f"{distance:.2g} relative to its largest number; the tolerance is {self._tolerance:.0e}"
                )


def _perturb(noise: float) -> Any:
    """Return a hook that perturbs the output of a hull by as much as rounding and recognition may change it."""
    generator = torch.Generator().manual_seed(0)

    def perturb(module: nn.Module, inputs: Any, output: Tensor) -> None:
        signs = torch.randint(0, 2, output.shape, generator=generator).to(output.device, output.dtype) * 2 - 1
        coarse = _EPSILONS * torch.finfo(output.dtype).eps  # of a submodule with a coarser dtype than the rest
        output.data.mul_(1 + max(noise, coarse, DOUBLE.relative) * signs)

    return perturb


def difference(actual: Leaves, expected: Leaves) -> tuple[str, float]:
    """Return the path at which two outputs differ most, and by how much relative to the largest number there."""
    worst = ("", 0.0)
    for where in [*expected, *(key for key in actual if key not in expected)]:
        in_both = where in actual and where in expected
        distance = _distance(actual[where], expected[where]) if in_both else float("inf")
        if not distance <= worst[1]:
            worst = (where, distance)
    return worst


def _distance(actual: Any, expected: Any) -> float:
    if not isinstance(actual, Tensor) or not isinstance(expected, Tensor):
        same = type(actual) is type(expected) and (actual == expected or (actual != actual and expected != expected))
        return 0.0 if same else float("inf")
    if (actual.shape, actual.dtype) != (expected.shape, expected.dtype):
        return float("inf")
    if actual.is_meta or not actual.numel():
        return 0.0
    if not (actual.is_floating_point() or actual.is_complex()):
        return 0.0 if torch.equal(actual, expected) else float("inf")
    exact = torch.complex128 if actual.is_complex() else torch.float64
    a, b = actual.to(exact), expected.to(exact)
    same = (a == b) | (a.isnan() & b.isnan())
    if bool(same.all()):
        return 0.0
    gaps = (a - b).abs()[~same]
    finite = b[b.isfinite()].abs()
    scale = float(finite.max()) if finite.numel() else 0.0
    gap = float(gaps.max()) if bool(gaps.isfinite().all()) else float("inf")
    return gap / scale if scale > 0 else float("inf")


def _version(x: Tensor) -> int:
    """Return how often a tensor was changed in place."""
    return 0 if x.is_inference() else x._version


def _blame(model: nn.Module, inputs: list[tuple[str, Tensor, int]]) -> str:
    """Return a clause on the hulls whose inputs were changed after the call, other than by themselves."""
    in_place = {name for name, module in named_callers(model) if isinstance(module, InPlace)}
    changed = dict.fromkeys(repr(name) for name, x, version in inputs if _version(x) > version and name not in in_place)
    listed = ", ".join(changed)
    return f"; the model changes the input of {listed} in place after the call, and a hull needs it" if changed else ""


def _differentiate(model: nn.Module, output: Any) -> bool:
    """Compute gradients of a model's parameters, without storing them; return whether there are any."""
    sums = [item.sum() for _, item in _items("", output) if isinstance(item, Tensor) and item.requires_grad]
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not sums or not parameters:
        return False
    hooks = [(p._backward_hooks, dict(p._backward_hooks)) for p in parameters if p._backward_hooks]
    for registered, _ in hooks:
        registered.clear()
    try:
        torch.autograd.grad(sums, parameters, [torch.ones_like(s) for s in sums], retain_graph=True, allow_unused=True)
    finally:
        for registered, content in hooks:
            registered.update(content)
    return True


def _is_distributed(model: nn.Module) -> bool:
    """Return whether processes share a model: its backward pass may communicate, so it is not run as a test."""
    parts = (*(type(module) for module in model.modules()), *(type(p) for p in model.parameters()))
    return any(kind.__module__.startswith("torch.distributed") for part in parts for kind in part.__mro__)


def _leaves(where: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield copies of the tensors, and the numbers, in an output."""
    for path, item in _items(where, value):
        yield path, _dense(item.detach()).clone() if isinstance(item, Tensor) else item


def _items(where: str, value: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield the tensors and numbers in an output: in containers, data classes and other objects."""
    if isinstance(value, (Tensor, *_PLAIN)):
        yield where, value
    elif depth < _MAX_DEPTH:
        if isinstance(value, Mapping):
            parts = [(f"[{key!r}]", item) for key, item in value.items()]
        elif isinstance(value, (list, tuple)):
            parts = [(f"[{n}]", item) for n, item in enumerate(value)]
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            parts = [(f".{item.name}", getattr(value, item.name)) for item in dataclasses.fields(value)]
        elif isinstance(value, nn.Module) or callable(value):
            parts = []
        else:
            parts = [(f".{name}", item) for name, item in getattr(value, "__dict__", {}).items()]
        for name, item in parts:
            yield from _items(where + name, item, depth + 1)


def _dense(tensor: Tensor) -> Tensor:
    if tensor.is_nested:
        return tensor.to_padded_tensor(0.0)
    return tensor.to_dense() if tensor.layout != torch.strided else tensor


def _tensors(inputs: Any) -> list[Tensor]:
    return [item for _, item in _leaves("", inputs) if isinstance(item, Tensor)]
