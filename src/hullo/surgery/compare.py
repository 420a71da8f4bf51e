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

MODES = {"training": True, "evaluation": False}
_TOLERANCES = {torch.float64: 1e-8, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
_DEEPEST = 12
_ROUNDINGS = 8  # a difference up to this multiple of the effect of rounding counts as rounding
_EPSILONS = 4  # rounding of one activation, in machine epsilons

Leaves = dict[str, Any]  # tensors and numbers in the output of a model, by path


class Comparison:
    """Record the outputs of a model for example inputs, in training and evaluation mode, and compare with them.

    Args:
        model: the model; its state is restored after each run.
        inputs: the arguments of the model.
        coarsest: a lower bound for the tolerance, relative to the largest number of an output.
    """

    def __init__(self, model: nn.Module, inputs: Inputs, coarsest: float = 0.0) -> None:
        for name, item in [*model.named_parameters(), *model.named_buffers()]:
            if torch.nn.parameter.is_lazy(item):
                raise ValueError(f"{name} is uninitialized: run the model once before you give example_inputs")
        self._inputs = inputs
        dtypes = {item.dtype for item in [*model.parameters(), *model.buffers(), *_tensors(inputs)]}
        self._tolerance = max([coarsest, *(_TOLERANCES.get(dtype, 0.0) for dtype in dtypes)])
        self.shapes: dict[str, Tensor] = {}  # the last input of each hull, on the meta device
        self.channel_dims: dict[str, set[int | None]] = {}  # the channel dimensions of all its inputs; None: unknown
        self.wanted: dict[str, Leaves] = {}
        failures: list[Exception] = []
        for mode in MODES:
            try:
                self.wanted[mode] = self._run(model, mode)
            except Exception as error:  # a batch of one in training mode, a model that needs targets there
                failures.append(error)
        if not self.wanted:
            raise failures[-1]

    def repeats(self, model: nn.Module) -> bool:
        """Return whether the original model reproduces its outputs."""
        found = {mode: self._run(model, mode) for mode in self.wanted}
        return all(difference(found[mode], wanted)[1] <= self._tolerance for mode, wanted in self.wanted.items())

    @property
    def modes(self) -> str:
        """Return the names of the compared modes; empty if outputs have no values, as on the meta device."""
        leaves = [item for found in self.wanted.values() for item in found.values()]
        return " and ".join(self.wanted) if any(not getattr(item, "is_meta", False) for item in leaves) else ""

    def _run(self, model: nn.Module, mode: str, noise: float = 0.0) -> Leaves:
        with restored(model), torch.set_grad_enabled(MODES[mode]):
            hook_inputs(model, self._note)
            for _, hull in named_callers(model) if noise else ():
                hull.register_forward_hook(_shake(noise))
            return dict(_leaves("", run(model.train(MODES[mode]), self._inputs)))

    def _note(self, name: str, x: Tensor) -> None:
        self.shapes[name] = x.detach().to("meta")
        if torch.is_grad_enabled():
            self.channel_dims.setdefault(name, set()).add(channel_dim_of(x))

    def try_out(self, model: nn.Module) -> None:
        """Run a changed model in the modes in which the original ran; raise RuntimeError if it fails."""
        for mode in self.wanted:
            self._outputs(model, mode)

    def _outputs(self, model: nn.Module, mode: str) -> Leaves:
        try:
            return self._run(model, mode)
        except Exception as error:
            kind = type(error).__name__
            raise RuntimeError(f"the changed model fails in {mode} mode on example_inputs: {kind}: {error}") from error

    def check(self, model: nn.Module) -> None:
        """Compare the outputs of a changed model; raise RuntimeError if it fails, or they differ."""
        for mode, wanted in self.wanted.items():
            found = self._outputs(model, mode)
            where, distance = difference(found, wanted)
            if distance <= self._tolerance:
                continue
            coarse = [torch.finfo(dtype).eps for dtype, value in _TOLERANCES.items() if value <= self._tolerance]
            _, noise = difference(self._run(model, mode, noise=_EPSILONS * max(coarse, default=0.0)), found)
            steady = difference(self._run(model, mode), found)[1] <= self._tolerance
            if not steady or not distance <= _ROUNDINGS * noise:
                raise RuntimeError(
                    f"the changed model computes something else: in {mode} mode, output{where} differs by "
                    f"{distance:.2g} relative to its largest number; the tolerance is {self._tolerance:.0e}"
                )


def _shake(noise: float) -> Any:
    """Return a hook that perturbs the output of a hull by as much as rounding and recognition may change it."""
    generator = torch.Generator().manual_seed(0)

    def shake(module: nn.Module, inputs: Any, output: Tensor) -> None:
        signs = torch.randint(0, 2, output.shape, generator=generator).to(output.device, output.dtype) * 2 - 1
        coarse = _EPSILONS * torch.finfo(output.dtype).eps  # of a submodule with a coarser dtype than the rest
        output.data.mul_(1 + max(noise, coarse, DOUBLE.relative) * signs)

    return shake


def difference(found: Leaves, wanted: Leaves) -> tuple[str, float]:
    """Return the path at which two outputs differ most, and by how much relative to the largest number there."""
    worst = ("", 0.0)
    for where in [*wanted, *(key for key in found if key not in wanted)]:
        in_both = where in found and where in wanted
        distance = _distance(found[where], wanted[where]) if in_both else float("inf")
        if not distance <= worst[1]:
            worst = (where, distance)
    return worst


def _distance(found: Any, wanted: Any) -> float:
    if not isinstance(found, Tensor) or not isinstance(wanted, Tensor):
        same = type(found) is type(wanted) and (found == wanted or (found != found and wanted != wanted))
        return 0.0 if same else float("inf")
    if (found.shape, found.dtype) != (wanted.shape, wanted.dtype):
        return float("inf")
    if found.is_meta or not found.numel():
        return 0.0
    if not (found.is_floating_point() or found.is_complex()):
        return 0.0 if torch.equal(found, wanted) else float("inf")
    exact = torch.complex128 if found.is_complex() else torch.float64
    a, b = found.to(exact), wanted.to(exact)
    same = (a == b) | (a.isnan() & b.isnan())
    if bool(same.all()):
        return 0.0
    gaps = (a - b).abs()[~same]
    finite = b[b.isfinite()].abs()
    scale = float(finite.max()) if finite.numel() else 0.0
    gap = float(gaps.max()) if bool(gaps.isfinite().all()) else float("inf")
    return gap / scale if scale > 0 else float("inf")


def _leaves(where: str, thing: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield the tensors and numbers in an output: in containers, data classes and other objects."""
    if isinstance(thing, Tensor):
        yield where, _dense(thing.detach()).clone()
    elif isinstance(thing, _PLAIN):
        yield where, thing
    elif depth < _DEEPEST:
        if isinstance(thing, Mapping):
            parts = [(f"[{key!r}]", item) for key, item in thing.items()]
        elif isinstance(thing, (list, tuple)):
            parts = [(f"[{n}]", item) for n, item in enumerate(thing)]
        elif dataclasses.is_dataclass(thing) and not isinstance(thing, type):
            parts = [(f".{item.name}", getattr(thing, item.name)) for item in dataclasses.fields(thing)]
        elif isinstance(thing, nn.Module) or callable(thing):
            parts = []
        else:
            parts = [(f".{name}", item) for name, item in getattr(thing, "__dict__", {}).items()]
        for name, item in parts:
            yield from _leaves(where + name, item, depth + 1)


def _dense(tensor: Tensor) -> Tensor:
    if tensor.is_nested:
        return tensor.to_padded_tensor(0.0)
    return tensor.to_dense() if tensor.layout != torch.strided else tensor


def _tensors(inputs: Any) -> list[Tensor]:
    return [item for _, item in _leaves("", inputs) if isinstance(item, Tensor)]
