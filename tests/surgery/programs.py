"""Generate modules: write their code to a file and import it, so that its source can be read."""

from __future__ import annotations

import copy
import importlib.util
import itertools
import pickle
import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import hullo
from hullo.modules import Hull
from hullo.recognition.table import NAMES
from hullo.surgery.summary import Summary

HEADER = """
import functools
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

def apply(f, x):
    return f(x)

swish = lambda v: F.silu(v)
swish.__qualname__ = "swish"

class Base(nn.Module):
    def __init__(self):
        super().__init__()
        for n in range(6):
            setattr(self, f"l{n}", nn.Linear(4, 4))
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.build()

    def build(self):
        pass
"""
_NUMBERS = itertools.count()


def imported(source: str, folder: Path) -> dict[str, type[nn.Module]]:
    """Import source code from a file of its own, after the header; return what it defines."""
    name = f"generated_{next(_NUMBERS)}"
    path = folder / f"{name}.py"
    path.write_text(HEADER + source)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return vars(module)


def outputs(model: nn.Module, x: Tensor, training: bool) -> Tensor:
    """Run a model in a mode, with gradients in training alone, from the same random numbers each time."""
    torch.manual_seed(0)
    with torch.set_grad_enabled(training):
        result: Tensor = model.train(training)(x)
    return result


def hulls_of(model: nn.Module) -> list[Hull]:
    """Return the hulls of a model without reading its code, as a summary does."""
    return [module for module in model.modules() if isinstance(module, Hull)]


def change_hulls(model: nn.Module) -> None:
    """Move every hull away from its start, each in a direction of its own."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for hull in hulls_of(model):
            hull.raw += torch.randn(hull.raw.shape, generator=generator).to(hull.raw)


class Watch(TorchFunctionMode):
    """Notes the activation functions that run outside of hulls."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.ran: set[str] = set()
        self.inside = 0
        for hull in hulls_of(model):
            hull.register_forward_pre_hook(self._enter)
            hull.register_forward_hook(self._leave)

    def _enter(self, *_: object) -> None:
        self.inside += 1

    def _leave(self, *_: object) -> None:
        self.inside -= 1

    def __torch_function__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name = getattr(function, "__name__", "").removesuffix("_")
        if name in NAMES and not self.inside:
            self.ran.add(name)
        return function(*args, **(kwargs or {}))


def assert_right_or_refused(
    make: type[nn.Module], x: Tensor, by_name: bool = True, all_trained: bool = True
) -> dict[str, nn.Module]:
    """Swap a module and check all that has to hold, or that it is as it was where nothing could be swapped.

    Its outputs stay, hulls learn, copies compute the same, what is not replaced is listed, and where training and
    evaluation computed the same before, they do so after hulls have moved. Returns the hulls. Where `by_name` is off,
    what is not replaced may be listed under another name than the function's.
    """
    torch.manual_seed(0)
    model = make()
    before = copy.deepcopy(model)
    expected = {mode: outputs(before, x, mode).detach() for mode in (True, False)}
    text, state = repr(model), {name: id(item) for name, item in model.state_dict(keep_vars=True).items()}
    try:
        hullo.replace_activations(model, example_inputs=x)
    except (ValueError, RuntimeError):
        summary = hullo.summary(model, example_inputs=x)
        assert repr(model) == text
        assert {name: id(item) for name, item in model.state_dict(keep_vars=True).items()} == state
        assert type(model) is make
        _assert_listed(model, summary, x, by_name)
        return {}
    for mode, value in expected.items():
        torch.testing.assert_close(outputs(model, x, mode).detach(), value, rtol=1e-5, atol=1e-5)
    summary = hullo.summary(model)
    change_hulls(model)
    moved = {mode: outputs(model, x, mode).detach() for mode in (True, False)}
    if torch.allclose(expected[True], expected[False], rtol=1e-5, atol=1e-5):
        torch.testing.assert_close(moved[True], moved[False], rtol=1e-4, atol=1e-4)
    model.zero_grad()
    outputs(model, x, True).square().sum().backward()
    cold = [name for name, hull in summary.hulls.items() if hull.raw.grad is None]
    assert not cold or not all_trained, f"no gradient: {cold}"
    model.zero_grad()
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        for mode, value in moved.items():
            torch.testing.assert_close(outputs(again, x, mode).detach(), value)
    _assert_listed(copy.deepcopy(model), summary, x, by_name)
    return dict(summary.hulls)


def _assert_listed(model: nn.Module, summary: Summary, x: Tensor, by_name: bool) -> None:
    """Check that the summary speaks of every activation that runs and is no hull."""
    listed = " ".join(f"{site.function} {site.reason}" for site in summary.not_replaced)
    for mode in (True, False):
        with Watch(model) as watch:
            outputs(model, x, mode)
        silent = [name for name in watch.ran if (name not in listed if by_name else not listed)]
        assert not silent, f"neither replaced nor listed: {silent}; listed: {listed}"
