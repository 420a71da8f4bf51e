"""Prove a swap: compare outputs, gradients and buffers, and check that hulls run where activations did.

What is proved, on the example inputs, in training and evaluation mode and with the same random numbers: outputs,
buffers and, in training mode, the gradients of weights are as before, to rounding; each hull runs as often as the
activation it replaces, also without gradients and without an observer; and which hulls the outputs depend on. For the
last, one backward pass shows which coefficients have a gradient other than 0; the coefficients of the other hulls move,
one hull after the other. Weights that start as zeros, as at the end of residual branches, hide such an effect, so they
are random numbers meanwhile. Moving all coefficients at once changes outputs in evaluation mode.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from hullo.modules import Hull
from hullo.recognition.known import Reading
from hullo.surgery.observe import IN_SCRIPT, Call, Observer
from hullo.surgery.sites import Site
from hullo.surgery.state import Inputs, hook_inputs, restored, run

_RUNS = (("training", True), ("evaluation", False), ("evaluation", True))
"""Modes, and whether gradients are enabled: evaluation mode has them only if it fails without, as in a force field."""

_TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
_KINDS = {"outputs": ("output", 1.0), "buffers": ("buffer ", 1.0), "gradients": ("gradient of ", 10.0)}
"""Prefixes of names in messages, and multiples of the tolerance, by what is compared."""

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
_MAX_DEPTH = 12
_SHIFT = 10  # of coefficients, so that dead units may become active

Leaves = dict[str, Any]  # tensors and numbers in the output of a model, by path


class NotProvenError(RuntimeError):
    """Raised for sites at which a hull does not do what the activation did."""

    def __init__(self, sites: Sequence[Site], reason: str) -> None:
        super().__init__(f"{sites[0].name}: {reason}")
        self.sites, self.reason = sites, reason


@dataclass
class Outcome:
    """Hold what a run has computed and called."""

    outputs: Leaves = field(default_factory=dict)
    buffers: Leaves = field(default_factory=dict)
    gradients: Leaves = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    hulls: Counter[int] = field(default_factory=Counter)  # how often each hull ran, by id
    trained: set[int] = field(default_factory=set)  # the ids of hulls whose coefficients have a gradient other than 0


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
        for name, item in [*model.named_parameters(), *model.named_buffers()]:
            if torch.nn.parameter.is_lazy(item):
                raise ValueError(f"{name} is uninitialized: run the model once before you give example_inputs")
        self.inputs, self._backward = inputs, backward and not _is_distributed(model)
        self._observes, self._gradients = observe, dict[str, bool]()
        dtypes = {item.dtype for item in [*model.parameters(), *model.buffers(), *_tensors(inputs)]}
        self._tolerance = max([coarsest, *(_TOLERANCES.get(dtype, 0.0) for dtype in dtypes)])
        self.shapes: dict[str, Tensor] = {}  # the last input of each hull, on the meta device
        self.readings: dict[int, tuple[nn.Module, Reading | None]] = {}
        self.ran: set[int] = set()  # the ids of modules that ran
        self.expected: dict[str, Outcome] = {}
        failures: list[Exception] = []
        for mode, gradients in _RUNS:
            if mode not in self.expected:
                self._gradients[mode] = gradients
                try:
                    self.expected[mode] = self._run(model, mode, is_original=True)
                except Exception as error:  # in training mode, a batch of one may fail, or targets may be missing
                    failures.append(error)
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
        return " and ".join(self.expected) if any(not getattr(item, "is_meta", False) for item in leaves) else ""

    def repeats(self, model: nn.Module) -> bool:
        """Return whether the outputs of the original model are reproducible."""
        actual = {mode: self._run(model, mode) for mode in self.expected}
        return all(
            difference(actual[mode].outputs, outcome.outputs)[1] <= self._tolerance
            for mode, outcome in self.expected.items()
        )

    def _run(
        self,
        model: nn.Module,
        mode: str,
        *,
        is_original: bool = False,
        observe: bool = True,
        backward: bool | None = None,
    ) -> Outcome:
        """Run a model in a mode; `backward` computes gradients, by default if they are compared."""
        backward = (mode == "training" and self._backward) if backward is None else backward
        outcome = Outcome()

        def record(name: str, x: Tensor) -> None:
            outcome.hulls[id(model.get_submodule(name))] += 1
            self.shapes[name] = x.detach().to("meta")

        observer = Observer(model, mode, self.readings, is_original) if self._observes and observe else None
        with contextlib.ExitStack() as stack:
            stack.enter_context(restored(model))
            stack.enter_context(torch.set_grad_enabled(backward or self._gradients[mode]))
            if "torch._dynamo" in sys.modules:  # otherwise nothing is compiled, and the import takes seconds
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            hook_inputs(model, record)
            for module in model.modules():
                module._backward_hooks.clear()  # restored, as all that a run changes
                module._backward_pre_hooks.clear()
                if isinstance(module, nn.TransformerEncoder):
                    module.use_nested_tensor = False  # hulls do not take nested tensors
            model.train(mode == "training")
            with observer or contextlib.nullcontext():
                output = run(model, self.inputs)
            outcome.outputs, outcome.buffers = dict(_leaves("", output)), dict(_buffers(model))
            if observer is not None:
                outcome.calls, self.ran = observer.calls, self.ran | observer.ran
            if backward:
                try:
                    outcome.gradients, outcome.trained = _differentiate(model, output)
                except Exception:
                    if not is_original:
                        raise
                self._backward &= bool(outcome.gradients) or not is_original
            return outcome

    def run_changed(self, model: nn.Module, mode: str, **options: Any) -> Outcome:
        """Run a changed model in a mode, without an observer; raise RuntimeError if it fails."""
        try:
            return self._run(model, mode, **({"observe": False} | options))
        except Exception as error:
            kind = type(error).__name__
            raise RuntimeError(f"the changed model fails in {mode} mode on example_inputs: {kind}: {error}") from error

    def check(self, model: nn.Module) -> dict[str, Outcome]:
        """Compare a changed model, and return its runs; raise RuntimeError if it fails, or something differs."""
        outcomes = {}
        for mode, expected in self.expected.items():
            outcomes[mode] = self.run_changed(model, mode, observe=True)
            self._compare(mode, outcomes[mode], expected)
        return outcomes

    def _compare(self, mode: str, actual: Outcome, expected: Outcome) -> None:
        """Raise an error if a run differs by more than rounding."""
        for kind, (what, multiple) in _KINDS.items():
            found, wanted = getattr(actual, kind), getattr(expected, kind)
            if kind != "outputs":  # others may have gone with a replaced module
                found, wanted = _common(found, wanted), _common(wanted, found)
            where, distance = difference(found, wanted, common_scale=kind == "gradients")
            if distance > multiple * self._tolerance:
                raise RuntimeError(
                    f"the changed model computes something else: in {mode} mode, {what}{where} differs by "
                    f"{distance:.2g} relative to its largest number; the tolerance is {multiple * self._tolerance:.0e}"
                )

    def check_hulls(self, model: nn.Module, outcomes: Mapping[str, Outcome], sites: Mapping[str, Site]) -> set[str]:
        """Check that hulls are called where activations were; raise NotProvenError if not.

        Args:
            model: the changed model.
            outcomes: its runs, by mode.
            sites: the replaced sites, by name.

        Returns:
            The names of the sites that outputs do not depend on: the model drops the results there.
        """
        hulls = {name: id(model.get_submodule(name)) for name in sites}
        for mode, outcome in outcomes.items():
            wanted: Counter[int] = Counter()
            for name, site in sites.items():
                wanted[hulls[name]] += sum(call.run[0] == mode for call in site.calls)
            missing = [site for name, site in sites.items() if outcome.hulls[hulls[name]] < wanted[hulls[name]]]
            if missing:
                raise NotProvenError(missing, "code of the model calls it by a reference that a hull does not replace")
            before = sum(call.reading.reason != IN_SCRIPT for call in self.expected[mode].calls)
            after = len(outcome.calls)
            if before != after:
                raise RuntimeError(f"in {mode} mode, {before} activations ran before and {after} afterwards")
        trained = {number for outcome in outcomes.values() for number in outcome.trained}
        if "evaluation" in outcomes:
            plain, observed = self.run_changed(model, "evaluation"), outcomes["evaluation"].hulls
            idle = [site for name, site in sites.items() if observed[hulls[name]] > plain.hulls[hulls[name]]]
            if idle:
                raise NotProvenError(idle, "a fused path of the model does not call it")
            moved = [model.get_submodule(name) for name in sites if hulls[name] in trained and observed[hulls[name]]]
            if moved and not self._depends(model, "evaluation", plain, moved):
                raise RuntimeError("the outputs of the changed model do not depend on the coefficients of its hulls")
        without = self._without_effect(model, trained) if self.modes else set()
        return {name for name in sites if hulls[name] in without}

    def _without_effect(self, model: nn.Module, trained: set[int]) -> set[int]:
        """Return the ids of the hulls that do not change the outputs; `trained` are known to do so."""
        left = [module for module in model.modules() if isinstance(module, Hull) and id(module) not in trained]
        if not left:
            return set()
        with restored(model):
            generator = torch.Generator().manual_seed(0)
            for parameter in model.parameters():
                if parameter.is_floating_point() and not parameter.any():
                    with torch.no_grad():
                        parameter.copy_(0.02 * torch.randn(parameter.shape, generator=generator))
            with contextlib.suppress(Exception):
                trained = self._run(model, next(iter(self.expected)), observe=False, backward=True).trained
            left = [hull for hull in left if id(hull) not in trained]
            for mode in self.expected if left else ():
                plain = self._run(model, mode, observe=False, backward=False)
                left = [hull for hull in left if not self._depends(model, mode, plain, [hull])]
        return set(map(id, left))

    def _depends(self, model: nn.Module, mode: str, plain: Outcome, hulls: Iterable[Any]) -> bool:
        """Return whether outputs or buffers change with the coefficients of hulls, or the model fails."""
        generator = torch.Generator().manual_seed(0)
        raw = list({id(hull.raw): hull.raw for hull in hulls}.values())
        before = [item.detach().clone() for item in raw]
        try:
            for item in raw:
                item.data.add_(_SHIFT * torch.randn(item.shape, generator=generator).to(item))
            now = self._run(model, mode, observe=False, backward=False)
        except Exception:
            return True
        finally:
            for item, values in zip(raw, before, strict=True):
                item.data.copy_(values)
        return difference(now.outputs | now.buffers, plain.outputs | plain.buffers)[1] > 0


def _common(leaves: Leaves, others: Leaves) -> Leaves:
    return {name: item for name, item in leaves.items() if name in others}


def difference(actual: Leaves, expected: Leaves, common_scale: bool = False) -> tuple[str, float]:
    """Return the path at which two outputs differ most, and by how much relative to the largest number there."""
    worst = ("", 0.0)
    largest = max((_largest(item) for item in expected.values()), default=0.0) if common_scale else None
    for where in [*expected, *(key for key in actual if key not in expected)]:
        in_both = where in actual and where in expected
        distance = _distance(actual[where], expected[where], largest) if in_both else float("inf")
        if not distance <= worst[1]:
            worst = (where, distance)
    return worst


def _largest(item: Any) -> float:
    if not isinstance(item, Tensor) or item.is_meta:
        return 0.0
    finite = item[item.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0


def _distance(actual: Any, expected: Any, scale: float | None = None) -> float:
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
    scale = _largest(b) if scale is None else scale
    gap = float(gaps.max()) if bool(gaps.isfinite().all()) else float("inf")
    return gap / scale if scale > 0 else float("inf")


def _differentiate(model: nn.Module, output: Any) -> tuple[dict[str, Tensor], set[int]]:
    """Return the gradients of weights, and the ids of the hulls whose coefficients have a gradient other than 0."""
    found = [item for _, item in _items("", output) if isinstance(item, Tensor) and item.requires_grad]
    found = list({id(item): item for item in found if not item.is_leaf}.values())
    names = {id(item): name for name, item in model.named_parameters() if item.requires_grad}
    parameters = [item for item in model.parameters() if item.requires_grad]
    if not found or not parameters:
        return {}, set()
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(item.shape, generator=generator).to(item) for item in found]
    gradients = torch.autograd.grad(found, parameters, weights, retain_graph=True, allow_unused=True)
    given = {id(p): gradient for p, gradient in zip(parameters, gradients, strict=True) if gradient is not None}
    hulls = [module for module in model.modules() if isinstance(module, Hull)]
    raw = {id(item) for hull in hulls for item in hull.parameters()}
    trained = {id(hull) for hull in hulls if id(hull.raw) in given and bool(given[id(hull.raw)].any())}
    return {names[key]: item.detach() for key, item in given.items() if key not in raw}, trained


def _is_distributed(model: nn.Module) -> bool:
    """Return whether processes share a model: its backward pass may communicate, so it is not run as a test."""
    parts = (*(type(module) for module in model.modules()), *(type(p) for p in model.parameters()))
    return any(kind.__module__.startswith("torch.distributed") for part in parts for kind in part.__mro__)


def _buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, item in model.named_buffers():
        yield name, _dense(item.detach()).clone()


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
    return [item for _, item in _items("", inputs) if isinstance(item, Tensor)]
