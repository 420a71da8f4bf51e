"""Test `hullo.replace_activations` on one model.

The checks do not depend on how hullo works: a model is built several times from the same seed, swapped or not, and
outputs, gradients and the activations that run are compared.
"""

from __future__ import annotations

import copy
import math
import pickle
import random
import re
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from watch import GATES, NOT_BY_DEFAULT, Event, Passes, Settled, Watch, cast, difference, loss, tensors

import hullo

TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-3}  # relative to the largest number of an output
MODES = ("eval", "train")
SEED = 1  # of the random numbers of each run


@dataclass(frozen=True)
class Case:
    """Describe a model: how to build it, and its inputs."""

    library: str
    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], Mapping[str, Any] | tuple[Any, ...]]


@dataclass
class Result:
    """Hold the result for a model: the number of hulls, the sites that were not replaced, and all errors."""

    library: str
    name: str
    verdict: str = ""
    hulls: int = 0
    gates: int = 0  # functions that are replaced only on request
    left: list[str] = field(default_factory=list)
    refusal: str = ""
    wrong: list[str] = field(default_factory=list)
    dtype: str = ""
    seconds: float = 0.0
    swap: float = 0.0  # CPU seconds of the swap beyond the forward and backward passes that it runs
    setting: str = ""


class Build:
    """A model built from its seed, with its inputs."""

    def __init__(self, case: Case, dtype: torch.dtype) -> None:
        _seed(0)
        self.inputs = cast(case.inputs(), dtype)
        _seed(0)
        self.model = case.build().double() if dtype == torch.float64 else case.build().float()
        with torch.no_grad():
            for parameter in self.model.parameters():
                if parameter.numel() and parameter.abs().max() < 0.01:
                    parameter.normal_(std=0.1)  # a branch that is zero would test nothing

    def outputs(self, mode: str, model: nn.Module | None = None) -> list[Tensor]:
        """Return the outputs of the model in a mode, with the same random numbers each time."""
        model = model or self.model
        model.train(mode == "train")
        _seed(SEED)
        given = copy.deepcopy(self.inputs)
        return list(tensors(model(**given) if isinstance(given, Mapping) else model(*given)))


def examine(case: Case) -> Result:
    """Swap a model and run all checks."""
    trial = _Trial(case)
    result = trial.result
    try:
        trial.run()
    except Exception as error:
        traceback.print_exc(limit=-6)
        result.wrong.append(f"unexpected error: {_one_line(error)}")
    if result.wrong:
        result.verdict = "wrong"
    elif result.refusal:
        result.verdict = "refused"
    else:
        result.verdict = "partly" if result.left else "right"
    return result


class _Trial:
    def __init__(self, case: Case) -> None:
        self.case, self.result = case, Result(case.library, case.name)
        self.dtype = torch.float64

    def build(self) -> Build:
        return Build(self.case, self.dtype)

    def check(self, holds: bool, what: str) -> None:
        if not holds:
            self.result.wrong.append(what)

    def same(self, what: str, found: list[Tensor], wanted: list[Tensor]) -> None:
        distance = difference(found, wanted)
        self.check(distance <= TOLERANCE[self.dtype], f"{what}: outputs differ by {distance:.2g}")

    def run(self) -> None:
        before, wanted = self.reference()
        swapped = self.build()
        passes = Passes(swapped.model)
        _seed(SEED)  # a router with random choices reaches the same experts as in the other runs
        start = time.process_time()
        try:
            with passes:
                hullo.replace_activations(swapped.model, example_inputs=swapped.inputs)
        except Exception as error:
            self.refused(error, swapped, wanted)
            return
        spent = time.process_time() - start
        summary = hullo.summary(swapped.model)
        self.result.hulls = len(summary.hulls)
        for mode in MODES:
            self.same(f"after the swap, {mode}", swapped.outputs(mode), wanted[mode])
        self.compare_calls(before, swapped, summary, wanted["train"])
        forward = self.train(swapped)
        self.result.swap = round(max(0.0, spent - passes.forward * forward - passes.backward), 3)
        self.change(swapped.model)
        self.copies(before, swapped)
        self.modes(before, swapped)

    def reference(self) -> tuple[Build, dict[str, list[Tensor]]]:
        """Return the original model and its outputs, in float64 if possible."""
        before, wanted = self.run_as_it_is()
        if not _finite(wanted):
            self.dtype = torch.float32
            before, wanted = self.run_as_it_is()
        self.result.dtype = str(self.dtype).removeprefix("torch.")
        self.check(_finite(wanted), "the original model returns no finite numbers")
        return before, wanted

    def run_as_it_is(self) -> tuple[Build, dict[str, list[Tensor]]]:
        before = self.build()
        try:
            return before, {mode: before.outputs(mode) for mode in MODES}
        except (RuntimeError, TypeError, ValueError):
            if self.dtype == torch.float32:
                raise
            return before, {}

    def refused(self, error: Exception, swapped: Build, wanted: dict[str, list[Tensor]]) -> None:
        """Check a refusal: hullo raises the error itself, and the model is unchanged."""
        last = traceback.extract_tb(error.__traceback__)[-1]
        meant = Path(hullo.__file__).parent in Path(last.filename).parents and (last.line or "").startswith("raise ")
        if not meant or not isinstance(error, (TypeError, ValueError, RuntimeError)):
            raise error
        self.result.refusal = f"{type(error).__name__}: {error}"
        hulls = [part for part in swapped.model.modules() if isinstance(part, hullo.Hull)]
        self.check(not hulls, "refused, yet it has hulls")
        summary = hullo.summary(swapped.model, example_inputs=swapped.inputs)
        for mode in MODES:
            with Watch(swapped.model) as watch:
                self.same(f"after a refusal, {mode}", swapped.outputs(mode), wanted[mode])
            self.listed(mode, watch, summary)

    def compare_calls(self, before: Build, after: Build, summary: Any, wanted: list[Tensor]) -> None:
        """Check that every activation that ran is a hull that runs and gets gradients, or still runs and is listed."""
        reached, ran, called = set[str](), list[Event](), set[str]()
        for mode in MODES:
            with Watch(before.model, summary.hulls) as old:
                found = before.outputs(mode)
            with Watch(after.model) as new:
                outputs = after.outputs(mode)
            if mode == "train":
                self.same("the original model, second run", found, wanted)
            loss(found).backward()
            loss(outputs).backward()
            reached, ran, called = reached | set(new.hulls), ran + new.events, called | new.called
            self.listed(mode, new, summary)
            total = new.hulls.total() + len(new.events)
            self.check(len(old.events) == total, f"{mode}: {len(old.events)} activations ran before, {total} after")
            self.compare_gradients(mode, before.model, after.model, set(summary.hulls))
            cold = [name for name in new.trained if summary.hulls[name].raw.grad is None]
            self.check(not cold, f"{mode}: hulls without a gradient: {', '.join(sorted(cold))}")
            for build in (before, after):
                build.model.zero_grad()
        idle = [name for name in summary.hulls if name not in reached]
        self.check(not idle, f"hulls that are never called: {', '.join(idle)}")

        for site in summary.not_replaced:  # only those that run
            if site.function.partition("(")[0] in NOT_BY_DEFAULT:
                self.result.gates += 1
            elif any(event.fits(site) for event in ran if event.name not in GATES) or site.name in called:
                self.result.left.append(f"{site.name or '(the model)'} ({site.function}): {site.reason}")

    def listed(self, mode: str, watch: Watch, summary: Any) -> None:
        """Check that the summary lists every activation that still runs."""
        events = (event for event in watch.events if event.name not in GATES)
        silent = Counter(str(event) for event in events if not any(event.fits(site) for site in summary.not_replaced))
        self.check(not silent, f"{mode}: neither replaced nor listed: {dict(silent)}")

    def compare_gradients(self, mode: str, before: nn.Module, after: nn.Module, hulls: set[str]) -> None:
        """Check that the gradients of the weights are unchanged."""
        old, new = dict(before.named_parameters()), dict(after.named_parameters())
        lost = [name for name in old if name not in new and name.rpartition(".")[0] not in hulls]
        self.check(not lost, f"parameters lost or renamed: {', '.join(lost[:5])}")
        both = [(name, old[name].grad, new[name].grad) for name in sorted(set(old) & set(new))]
        odd = [name for name, one, other in both if (one is None) != (other is None)]
        self.check(not odd, f"{mode}: gradients before the swap or after it alone: {', '.join(odd)}")
        pairs = [
            (name, one, other) for name, one, other in both if one is not None and other is not None and one.numel()
        ]
        scale = max([1e-30, *(one.abs().max().item() for _, one, _ in pairs)])
        worst = max(((one - other).abs().max().item() / scale, name) for name, one, other in pairs)
        self.check(worst[0] <= TOLERANCE[self.dtype], f"{mode}: gradient of {worst[1]} differs by {worst[0]:.2g}")

    def train(self, swapped: Build) -> float:
        """Run two steps of training, and return the time of a forward pass."""
        groups = hullo.parameter_groups(swapped.model, lr=1e-3, weight_decay=1e-2, coefficient_lr_scale=10)
        optimizer = torch.optim.AdamW(groups)
        for _ in range(2):
            optimizer.zero_grad()
            start = time.process_time()
            value = loss(swapped.outputs("train"))
            spent = time.process_time() - start
            value.backward()
            optimizer.step()
        self.check(math.isfinite(value.item()), "the loss is not finite after two steps of training")
        return spent

    def change(self, model: nn.Module) -> None:
        """Change the coefficients of every hull in a different direction."""
        generator = torch.Generator().manual_seed(2)
        with torch.no_grad():
            for hull in (part for part in model.modules() if isinstance(part, hullo.Hull)):
                hull.raw.add_(0.1 * torch.randn(hull.raw.shape, generator=generator).to(hull.raw))

    @torch.no_grad()  # a tensor that a model keeps from a run with gradients cannot be copied
    def copies(self, before: Build, swapped: Build) -> None:
        """Check that copies of the model and the folded model compute the same."""
        wanted = swapped.outputs("eval")
        ways: dict[str, Callable[[nn.Module], nn.Module]] = {
            "deepcopy": copy.deepcopy,
            "pickle": lambda model: pickle.loads(pickle.dumps(model)),  # noqa: S301  (its own)
        }
        for name, way in ways.items():
            try:
                copied = way(swapped.model)
            except Exception as error:
                try:
                    way(before.model)
                except Exception:  # the original cannot be copied either  # noqa: S112
                    continue
                self.check(False, f"{name}: {_one_line(error)}")
                continue
            self.same(name, swapped.outputs("eval", copied), wanted)
        with torch.enable_grad():
            loaded = self.build()
            _seed(SEED)
            hullo.replace_activations(loaded.model, example_inputs=loaded.inputs)
        loaded.model.load_state_dict(swapped.model.state_dict())
        self.same("state_dict", loaded.outputs("eval"), wanted)
        folded = hullo.fold(swapped.model)
        self.check(not any(isinstance(part, hullo.Hull) for part in folded.modules()), "fold leaves hulls")
        self.same("fold", swapped.outputs("eval", folded), wanted)

    def modes(self, before: Build, swapped: Build) -> None:
        """Check that a model that computes the same in both modes, apart from dropout and batch norm, still does."""
        torch.manual_seed(SEED)
        start = torch.get_rng_state()
        with Settled():
            trained = before.outputs("train")
            draws = not torch.equal(torch.get_rng_state(), start)  # as a router with random choices in training
            if not draws and difference(trained, before.outputs("eval")) == 0:
                self.same("training against evaluation", swapped.outputs("train"), swapped.outputs("eval"))


def _one_line(error: Exception) -> str:
    """Return the type of an error and the first line of its text, without the folders of files."""
    text = re.sub(r"(?<![\w/])/(?:[^\s/]+/)+", "", str(error))
    return f"{type(error).__name__}: {text.partition(chr(10))[0]}"


def _seed(number: int) -> None:
    """Seed all random number generators."""
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number)


def _finite(outputs: Mapping[str, list[Tensor]]) -> bool:
    """Tell whether a model has returned numbers in each mode."""
    return bool(outputs) and all(found and all(item.isfinite().any() for item in found) for found in outputs.values())
