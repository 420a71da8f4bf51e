"""Prove a swap: compare outputs, gradients and buffers, and count the calls of hulls.

What is proved, on the example inputs, in training and evaluation mode and with the same random numbers: outputs,
buffers and, in training mode, the gradients of weights are as before, to rounding; and each hull runs as often as the
activation it replaces, also without gradients and without an observer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from hullo._compat import has_values
from hullo.modules import Hull
from hullo.recognition.known import Reading
from hullo.surgery.observe import Call, Observer
from hullo.surgery.sites import Site
from hullo.surgery.source import Position
from hullo.surgery.state import Inputs, hook_inputs, restored, run

_RUNS = (
    ("training", True, True),
    ("training", True, False),
    ("evaluation", False, False),
    ("evaluation", True, False),
)
"""Modes, whether gradients are enabled, and whether those of weights are compared: the first of a mode that works.

Evaluation mode has gradients only if it fails without, as in a force field.
"""

_TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
_KINDS = {"outputs": ("output", 1.0), "buffers": ("buffer ", 1.0), "gradients": ("gradient of ", 10.0)}
"""Prefixes of names in messages, and multiples of the tolerance, by what is compared."""

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
_MAX_DEPTH = 12

Leaves = dict[str, Any]  # tensors and numbers in the output of a model, by path


@dataclass
class Outcome:
    """Hold what a run has computed and called."""

    outputs: Leaves = field(default_factory=dict)
    buffers: Leaves = field(default_factory=dict)
    gradients: Leaves = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    hulls: Counter[int] = field(default_factory=Counter)  # how often each hull ran, by id


class Comparison:
    """Run a model on example inputs, in training and evaluation mode, and compare a changed model with it.

    Args:
        model: the model; its state is restored after each run.
        inputs: the arguments of the model, or a function of it.
        coarsest: a lower bound for the tolerance, relative to the largest number of an output.
        backward: whether to compare the gradients of weights, in training mode.
        observe: whether to record the calls of activations.
    """

    def __init__(
        self, model: nn.Module, inputs: Inputs, coarsest: float = 0.0, backward: bool = False, observe: bool = False
    ) -> None:
        dtypes = {item.dtype for item in [*model.parameters(), *model.buffers(), *_tensors(inputs)]}
        self._inputs, self._tolerance = inputs, max([coarsest, *(_TOLERANCES.get(dtype, 0.0) for dtype in dtypes)])
        self.ran: set[int] = set()  # the ids of modules that ran
        self.seen: set[tuple[str, Position]] = set()  # files and positions of calls of activations
        self.expected: dict[str, Outcome] = {}
        self._settings: dict[str, tuple[bool, bool]] = {}
        readings: dict[int, tuple[nn.Module, Reading | None]] = {}
        failures: list[Exception] = []
        for mode, gradients, differentiates in _RUNS:
            if mode in self.expected or (differentiates and not backward):
                continue
            self._settings[mode] = gradients, differentiates
            observer = Observer(model, mode, readings) if observe else None
            try:
                self.expected[mode] = self._run(model, mode, observer)
            except Exception as error:  # in training mode, a batch of one may fail, or targets may be missing
                failures.append(error)
            else:
                if observer is not None:
                    self.ran |= observer.ran
                    self.seen |= observer.seen
        if not self.expected:
            raise failures[-1]

    @property
    def calls(self) -> list[Call]:
        """Return the observed calls of all modes, in their order."""
        return [call for outcome in self.expected.values() for call in outcome.calls]

    @property
    def modes(self) -> str:
        """Return the names of the compared modes; empty if outputs have no values, as on the meta device."""
        leaves = [item for outcome in self.expected.values() for item in outcome.outputs.values()]
        return " and ".join(self.expected) if any(map(has_values, leaves)) else ""

    def _run(self, model: nn.Module, mode: str, observer: Observer | None = None) -> Outcome:
        gradients, differentiates = self._settings[mode]
        outcome = Outcome()

        def record(name: str, x: Tensor) -> None:
            outcome.hulls[id(model.get_submodule(name))] += 1

        with contextlib.ExitStack() as stack:
            stack.enter_context(restored(model))
            stack.enter_context(torch.set_grad_enabled(gradients))
            if "torch._dynamo" in sys.modules:  # otherwise nothing is compiled, and the import takes seconds
                stack.enter_context(torch.compiler.set_stance("force_eager"))
                stack.enter_context(warnings.catch_warnings())
                warnings.filterwarnings("ignore", "Using `torch.compile.*global hooks")  # those of the observer
            hook_inputs(model, record)
            for module in model.modules():
                module._backward_hooks.clear()  # restored, as all that a run changes
                module._backward_pre_hooks.clear()
                if isinstance(module, nn.TransformerEncoder):
                    module.use_nested_tensor = False  # hulls do not take nested tensors
            model.train(mode == "training")
            with observer or contextlib.nullcontext():
                output = run(model, self._inputs)
            outcome.outputs = {where: _copy(item) for where, item in _items("", output)}
            outcome.buffers = {name: _copy(item) for name, item in model.named_buffers()}
            outcome.calls = observer.calls if observer else []
            if differentiates:
                outcome.gradients = _differentiate(model, output)
            return outcome

    def run_changed(self, model: nn.Module, mode: str) -> Outcome:
        """Run a changed model in a mode; raise RuntimeError if it fails."""
        try:
            return self._run(model, mode)
        except Exception as error:
            kind = type(error).__name__
            raise RuntimeError(f"the changed model fails in {mode} mode on example_inputs: {kind}: {error}") from error

    def check(self, model: nn.Module, sites: Iterable[Site] = ()) -> None:
        """Raise RuntimeError if a changed model fails, computes something else, or calls a hull too rarely.

        Args:
            model: the changed model.
            sites: the replaced sites.
        """
        hulls = {site: id(model.get_submodule(site.name)) for site in sites}
        for mode, expected in self.expected.items():
            actual = self.run_changed(model, mode)
            self._compare(mode, actual, expected)
            wanted: Counter[int] = Counter()
            for site, hull in hulls.items():
                wanted[hull] += sum(call.mode == mode for call in site.calls)
            if missing := [site.name for site, hull in hulls.items() if actual.hulls[hull] < wanted[hull]]:
                raise RuntimeError(f"code of the model calls {', '.join(missing)} by a reference that is not replaced")

    def _compare(self, mode: str, actual: Outcome, expected: Outcome) -> None:
        """Raise an error if a run differs by more than rounding."""
        for kind, (what, multiple) in _KINDS.items():
            found, wanted = getattr(actual, kind), getattr(expected, kind)
            if kind != "outputs":  # others may have gone with a replaced module
                names = found.keys() & wanted.keys()
                found, wanted = ({name: leaves[name] for name in names} for leaves in (found, wanted))
            where, distance = difference(found, wanted, common_scale=kind == "gradients")
            if distance > multiple * self._tolerance:
                raise RuntimeError(
                    f"the changed model computes something else: in {mode} mode, {what}{where} differs by "
                    f"{distance:.2g} relative to its largest number; the tolerance is {multiple * self._tolerance:.0e}"
                )


def difference(actual: Leaves, expected: Leaves, common_scale: bool = False) -> tuple[str, float]:
    """Return the path at which two outputs differ most, and by how much relative to the largest number there."""
    largest = max(map(_largest, expected.values()), default=0.0) if common_scale else None
    distances = {where: float("inf") for where in actual.keys() ^ expected.keys()}
    distances |= {where: _distance(actual[where], item, largest) for where, item in expected.items() if where in actual}
    return max([("", 0.0), *distances.items()], key=lambda item: item[1])


def _largest(item: Any) -> float:
    if not isinstance(item, Tensor) or not has_values(item):
        return 0.0
    return float(item[item.isfinite()].abs().max()) if item.isfinite().any() else 0.0


def _distance(actual: Any, expected: Any, scale: float | None = None) -> float:
    if not isinstance(actual, Tensor) or not isinstance(expected, Tensor):
        same = type(actual) is type(expected) and (actual == expected or (actual != actual and expected != expected))
        return 0.0 if same else float("inf")
    if (actual.shape, actual.dtype) != (expected.shape, expected.dtype):
        return float("inf")
    if not has_values(actual) or not actual.numel():
        return 0.0
    if not (actual.is_floating_point() or actual.is_complex()):
        return 0.0 if torch.equal(actual, expected) else float("inf")
    exact = torch.complex128 if actual.is_complex() else torch.float64
    a, b = actual.to(exact), expected.to(exact)
    same = (a == b) | (a.isnan() & b.isnan())
    if bool(same.all()):
        return 0.0
    gaps = (a - b).abs()[~same]
    scale = _largest(b) if scale is None else scale
    gap = float(gaps.max()) if bool(gaps.isfinite().all()) else float("inf")
    return gap / scale if scale > 0 else float("inf")


def _differentiate(model: nn.Module, output: Any) -> dict[str, Tensor]:
    """Return the gradients of weights other than coefficients."""
    hulls = [module for module in model.modules() if isinstance(module, Hull)]
    raw = {id(item) for hull in hulls for item in hull.parameters()}
    weights = {name: item for name, item in model.named_parameters() if item.requires_grad and id(item) not in raw}
    found = [item for _, item in _items("", output) if isinstance(item, Tensor) and item.requires_grad]
    found = list({id(item): item for item in found if not item.is_leaf}.values())
    if not found or not weights:
        return {}
    generator = torch.Generator().manual_seed(0)
    upstream = [torch.randn(item.shape, generator=generator).to(item) for item in found]
    gradients = torch.autograd.grad(found, list(weights.values()), upstream, retain_graph=True, allow_unused=True)
    return {name: item.detach() for name, item in zip(weights, gradients, strict=True) if item is not None}


def _copy(item: Any) -> Any:
    return _dense(item.detach()).clone() if isinstance(item, Tensor) else item


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
    return [item for _, item in _items("", inputs) if isinstance(item, Tensor)]
