"""Prove a swap: compare outputs, gradients and buffers, and check that hulls run where activations did."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from hullo.gating import named_callers
from hullo.modules import Hull
from hullo.recognition.known import Reading
from hullo.recognition.probe import DOUBLE
from hullo.surgery.in_place import InPlace
from hullo.surgery.observe import Call, Observer
from hullo.surgery.sites import Site
from hullo.surgery.state import Clones, Inputs, hook_inputs, restored, run, version_of

MODES = ("training", "evaluation")
_TOLERANCES = {torch.float64: 1e-8, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
_GRADIENTS = 10.0  # gradients may differ by this multiple of the tolerance of outputs
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
_MAX_DEPTH = 12
_ROUNDINGS = 8  # differences up to this multiple of the effect of rounding are accepted
_EPSILONS = 4  # rounding of one activation, in machine epsilons

Leaves = dict[str, Any]  # tensors and numbers in the output of a model, by path


class NotProvenError(RuntimeError):
    """Raised for sites at which a hull does not run where the activation did."""

    def __init__(self, sites: Sequence[Site], reason: str) -> None:
        super().__init__(f"{sites[0].name}: {reason}")
        self.sites, self.reason = sites, reason


@dataclass
class Outcome:
    """Hold what a run has computed and called."""

    outputs: Leaves
    buffers: Leaves = field(default_factory=dict)
    gradients: dict[str, Tensor] = field(default_factory=dict)
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
        self._observes, self._evaluates_with_gradients = observe, False
        self._clones: Clones = {}
        dtypes = {item.dtype for item in [*model.parameters(), *model.buffers(), *_tensors(inputs)]}
        self._tolerance = max([coarsest, *(_TOLERANCES.get(dtype, 0.0) for dtype in dtypes)])
        self.shapes: dict[str, Tensor] = {}  # the last input of each hull, on the meta device
        self.readings: dict[int, tuple[nn.Module, Reading | None]] = {}
        self.ran: set[int] = set()  # the ids of modules that ran
        self.expected: dict[str, Outcome] = {}
        self.failures: dict[str, Exception] = {}
        for mode in MODES:
            try:
                self.expected[mode] = self._run_original(model, mode)
            except Exception as error:  # in training mode, a batch of one may fail, or targets may be missing
                self.failures[mode] = error
        if not self.expected:
            raise self.failures[MODES[-1]]
        self._plain: Outcome | None = None

    def _run_original(self, model: nn.Module, mode: str) -> Outcome:
        try:
            return self._run(model, mode, is_original=True)
        except Exception:
            if mode == "training":
                raise
            self._evaluates_with_gradients = True  # a forward that differentiates
            return self._run(model, mode, is_original=True)

    @property
    def calls(self) -> list[Call]:
        """Return the observed calls of all modes."""
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
        noise: float = 0.0,
        is_original: bool = False,
        observe: bool | None = None,
        backward: bool = True,
    ) -> Outcome:
        backward = mode == "training" and self._backward and backward and not noise
        inputs: list[tuple[str, Tensor, int]] = []  # of hulls, with their versions
        hulls: Counter[int] = Counter()

        def record(name: str, x: Tensor) -> None:
            self.shapes[name] = x.detach().to("meta")
            if backward:
                inputs.append((name, x, version_of(x)))

        observer = Observer(model, mode, self.readings) if (self._observes if observe is None else observe) else None
        with contextlib.ExitStack() as stack:
            stack.enter_context(restored(model, self._clones))
            stack.enter_context(torch.set_grad_enabled(mode == "training" or self._evaluates_with_gradients))
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            hook_inputs(model, record)
            for hull in [module for module in model.modules() if isinstance(module, Hull)]:
                hull.register_forward_pre_hook(lambda module, args: hulls.update([id(module)]))
                if noise:
                    hull.register_forward_hook(_perturb(noise))
            for module in model.modules() if backward else ():
                module._backward_hooks.clear()
                module._backward_pre_hooks.clear()
            model.train(mode == "training")
            with observer or contextlib.nullcontext():
                output = run(model, self.inputs)
            outcome = Outcome(dict(_leaves("", output)), dict(_buffers(model)), hulls=hulls)
            if observer is not None:
                outcome.calls, self.ran = observer.calls, self.ran | observer.ran
            if backward:
                try:
                    outcome.gradients, outcome.trained = _differentiate(model, output)
                except Exception as error:
                    if not is_original:
                        raise RuntimeError(f"{error}{_blame(model, inputs)}") from error
                if is_original and not outcome.gradients:
                    self._backward = False
            return outcome

    def run_mode(self, model: nn.Module, mode: str) -> None:
        """Run a changed model in a mode; raise RuntimeError if it fails."""
        self._outcome(model, mode, observe=False, backward=False)

    def run_changed(self, model: nn.Module) -> None:
        """Run a changed model in the modes in which the original ran; raise RuntimeError if it fails."""
        for mode in self.expected:
            self._outcome(model, mode, observe=False)

    def _outcome(self, model: nn.Module, mode: str, **options: Any) -> Outcome:
        try:
            return self._run(model, mode, **options)
        except Exception as error:
            kind = type(error).__name__
            raise RuntimeError(f"the changed model fails in {mode} mode on example_inputs: {kind}: {error}") from error

    def check(self, model: nn.Module) -> dict[str, Outcome]:
        """Compare a changed model, and return its runs; raise RuntimeError if it fails, or something differs."""
        outcomes = {}
        for mode, expected in self.expected.items():
            actual = outcomes[mode] = self._outcome(model, mode)
            self._compare(model, mode, "output", actual.outputs, expected.outputs, self._tolerance, "outputs")
            buffers = {name: item for name, item in expected.buffers.items() if name in actual.buffers}
            found = {name: actual.buffers[name] for name in buffers}
            self._compare(model, mode, "buffer ", found, buffers, self._tolerance, "buffers")
            weights = {name: item for name, item in expected.gradients.items() if name in actual.gradients}
            found = {name: actual.gradients[name] for name in weights}
            self._compare(model, mode, "gradient of ", found, weights, _GRADIENTS * self._tolerance, "gradients")
        return outcomes

    def _compare(
        self, model: nn.Module, mode: str, what: str, actual: Leaves, expected: Leaves, tolerance: float, kind: str
    ) -> None:
        is_gradient = kind == "gradients"
        where, distance = difference(actual, expected, common_scale=is_gradient)
        if distance <= tolerance:
            return
        coarse = [torch.finfo(dtype).eps for dtype, value in _TOLERANCES.items() if value <= self._tolerance]
        if not is_gradient:
            noisy = getattr(self._run(model, mode, noise=_EPSILONS * max(coarse, default=0.0), observe=False), kind)
            _, noise = difference({name: noisy[name] for name in actual if name in noisy}, actual)
            again = getattr(self._run(model, mode, observe=False), kind)
            is_repeatable = difference({name: again[name] for name in actual if name in again}, actual)[1] <= tolerance
            if is_repeatable and distance <= _ROUNDINGS * noise:
                return
        elif self._is_chaotic(model, mode, actual, distance, max(coarse, default=0.0)):
            return
        raise RuntimeError(
            f"the changed model computes something else: in {mode} mode, {what}{where} differs by "
            f"{distance:.2g} relative to its largest number; the tolerance is {tolerance:.0e}"
        )

    def _is_chaotic(self, model: nn.Module, mode: str, actual: Leaves, distance: float, eps: float) -> bool:
        """Return whether rounding changes gradients as much: weights are perturbed by some units of rounding."""
        generator = torch.Generator().manual_seed(0)
        with restored(model, self._clones), torch.no_grad():
            for parameter in model.parameters():
                if parameter.is_floating_point():
                    signs = torch.randint(0, 2, parameter.shape, generator=generator) * 2 - 1
                    parameter.mul_(1 + _EPSILONS * eps * signs.to(parameter))
            noisy = self._run(model, mode, observe=False).gradients
        _, noise = difference({name: noisy[name] for name in actual}, actual, common_scale=True)
        return distance <= _ROUNDINGS * noise

    def check_calls(self, model: nn.Module, outcomes: Mapping[str, Outcome], sites: Mapping[str, Site]) -> None:
        """Check that hulls are called where activations were, also without gradients and without an observer.

        Args:
            model: the changed model.
            outcomes: its runs, by mode.
            sites: the replaced sites, by name.
        """
        hulls = {name: model.get_submodule(name) for name in sites}
        for mode, outcome in outcomes.items():
            wanted: Counter[int] = Counter()
            for name, site in sites.items():
                wanted[id(hulls[name])] += sum(call.run[0] == mode for call in site.calls)
            missing = [site for name, site in sites.items() if outcome.hulls[id(hulls[name])] < wanted[id(hulls[name])]]
            if missing:
                raise NotProvenError(missing, "code of the model calls it by a reference that a hull does not replace")
            before, after = len(self.expected[mode].calls), len(outcome.calls)
            if before != after:
                raise RuntimeError(f"in {mode} mode, {before} activations ran before and {after} afterwards")
        if "evaluation" not in outcomes:
            return
        plain = self._outcome(model, "evaluation", observe=False)
        idle = [
            site
            for name, site in sites.items()
            if outcomes["evaluation"].hulls[id(hulls[name])] > plain.hulls[id(hulls[name])]
        ]
        if idle:
            raise NotProvenError(idle, "a fused path of the model does not call it")
        used = outcomes.get("training", Outcome({})).trained
        if any(id(hull) in used and plain.hulls[id(hull)] for hull in hulls.values()):
            with _moved(hulls.values()):
                moved = self._outcome(model, "evaluation", observe=False)
            if difference(moved.outputs, plain.outputs)[1] == 0:
                raise RuntimeError("the outputs of the changed model do not depend on the coefficients of its hulls")


@contextlib.contextmanager
def _moved(hulls: Any) -> Iterator[None]:
    """Move the coefficients of hulls, and move them back at exit."""
    generator = torch.Generator().manual_seed(0)
    raw = {id(hull.raw): hull.raw for hull in hulls if not hull.raw.is_meta}
    before = {key: item.detach().clone() for key, item in raw.items()}
    with torch.no_grad():
        for item in raw.values():
            item.add_(torch.randn(item.shape, generator=generator).to(item))
    try:
        yield
    finally:
        with torch.no_grad():
            for key, item in raw.items():
                item.copy_(before[key])


def _perturb(noise: float) -> Any:
    """Return a hook that perturbs the output of a hull by as much as rounding and recognition may change it."""
    generator = torch.Generator().manual_seed(0)

    def perturb(module: nn.Module, inputs: Any, output: Tensor) -> None:
        signs = torch.randint(0, 2, output.shape, generator=generator).to(output.device, output.dtype) * 2 - 1
        coarse = _EPSILONS * torch.finfo(output.dtype).eps  # of a submodule with a coarser dtype than the rest
        output.data.mul_(1 + max(noise, coarse, DOUBLE.relative) * signs)

    return perturb


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


def _blame(model: nn.Module, inputs: list[tuple[str, Tensor, int]]) -> str:
    """Return a clause on the hulls whose inputs were changed after the call, other than by themselves."""
    in_place = {name for name, module in named_callers(model) if isinstance(module, InPlace)}
    changed = dict.fromkeys(
        repr(name) for name, x, version in inputs if version_of(x) > version and name not in in_place
    )
    listed = ", ".join(changed)
    return f"; the model changes the input of {listed} in place after the call, and a hull needs it" if changed else ""


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
    hooks = [(p._backward_hooks, dict(p._backward_hooks)) for p in parameters if p._backward_hooks]
    for registered, _ in hooks:
        registered.clear()
    try:
        gradients = torch.autograd.grad(found, parameters, weights, retain_graph=True, allow_unused=True)
    finally:
        for registered, content in hooks:
            registered.update(content)
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
