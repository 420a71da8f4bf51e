"""Generate modules: write their code to a file and import it, so that its source can be read."""

from __future__ import annotations

import copy
import importlib.util
import itertools
import pickle
import sys
from pathlib import Path
from random import Random

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


class Writer:
    """Writes forwards that compute one thing on all branches, in words that differ."""

    CONDITIONS = (
        "self.training", "not self.training", "self.flag", "not self.flag", "x.dim() == 2", "x.dim() != 2",
        "torch.is_grad_enabled()", "self.training and self.flag", "self.training or self.flag", "mode", "not mode",
        "self.is_fast()", "hasattr(self, 'l0')", "self.missing is not None", "self.kind == 'a'",
        "self.training is True",
    )  # fmt: skip

    def __init__(self, random: Random) -> None:
        self.random = random
        self.methods: list[str] = []
        self.layer = 0

    def forward(self) -> str:
        """Return a class of its own."""
        body = ["mode = self.training", *self.block(2, 0), "return x"]
        lines = "\n".join(f"        {line}" for line in body)
        methods = "".join(f"\n    def {text}" for text in self.methods)
        return f"""
class Net(Base):
    def build(self):
        self.act, self.second, self.flag, self.kind, self.missing = nn.ReLU(), nn.Tanh(), True, "a", None
        self.fn, self.part, self.fun = F.gelu, functools.partial(F.leaky_relu, negative_slope=0.2), swish
        self.table = nn.ModuleDict({{"my-act": nn.ReLU(), "0": nn.ELU()}})

    def is_fast(self):
        return not self.training
{methods}

    def forward(self, x):
{lines}
"""

    def block(self, depth: int, noise: int) -> list[str]:
        return [line for _ in range(self.random.randint(1, 3)) for line in self.statement(depth, noise)]

    def statement(self, depth: int, noise: int) -> list[str]:
        kind = self.random.choice(("plain", "plain", "choice", "ternary", "loop", "match", "try", "helper", "listed"))
        if kind == "plain" or depth == 0:
            return self.plain(noise)
        if kind == "ternary":
            act, layer = self.activation(), self.linear()
            noisy = self.argument(layer, 1 + noise)
            test = self.random.choice(self.CONDITIONS)
            return [f"x = {act(self.argument(layer, noise))} if {test} else {act(noisy)}"]
        if kind == "helper":
            name = f"step{len(self.methods)}"
            body = "; ".join(self.plain(noise))
            self.methods.append(f"{name}(self, x):\n        {body}\n        return x\n")
            return [f"x = self.{name}(x)"] * self.random.choice((1, 1, 2))
        if kind == "loop":
            inside = self.block(depth - 1, noise)
            skip = self.random.choice(([], [], ["if n == 1: continue"], ["if n == 2: break"]))
            loop = self.random.choice(("for n, layer in enumerate(self.layers):", "for n in range(2):"))
            return [loop, *(f"    {line}" for line in [*skip, *inside])]
        if kind == "listed":
            act = self.activation()
            return [f"x = sum([{act('layer(x)')} for layer in self.layers]) / 3"]
        return self.branches(kind, depth)

    def branches(self, kind: str, depth: int) -> list[str]:
        """Return the same statements on two branches, the second with noise in them."""
        state = self.random.getstate(), len(self.methods), self.layer
        first = self.block(depth - 1, 0)
        after, methods, layer = self.random.getstate(), len(self.methods), self.layer
        self.random.setstate(state[0])
        self.layer = state[2]
        second = self.block(depth - 1, 1)
        self.random.setstate(after)
        assert (len(self.methods) - methods, self.layer) == (methods - state[1], layer)
        one, two = ([f"    {line}" for line in lines] for lines in (first, second))
        test = self.random.choice(self.CONDITIONS)
        if kind == "match":
            inner = [f"    {line}" for line in one], [f"    {line}" for line in two]
            return [f"match {test}:", "    case True:", *inner[0], "    case _:", *inner[1]]
        if kind == "try":
            stop = [f"    if not ({test}): raise KeyError"]
            return ["y = x", "try:", *stop, *one, "except KeyError:", "    x = y", *two]
        return [f"if {test}:", *one, "else:", *two]

    def plain(self, noise: int) -> list[str]:
        act, layer = self.activation(), self.linear()
        argument = self.argument(layer, noise)
        form = self.random.choice((0, 0, 1))
        return [f"h = {argument}", f"x = {act('h')}"] if form else [f"x = {act(argument)}"]

    def linear(self) -> str:
        self.layer = (self.layer + 1) % 6
        return f"self.l{self.layer}"

    def argument(self, layer: str, noise: int) -> str:
        return f"{layer}(x)" + " * 1.0" * noise

    def activation(self):  # type: ignore[no-untyped-def]
        form = self.random.choice((
            "F.relu({})", "torch.tanh({})", "({}).relu()", "self.act({})", "self.second({})", "self.fn({})",
            "self.part({})", "self.fun({})", "self.table['my-act']({})", "self.table['0']({})", "self.act(input={})",
            "F.leaky_relu({}, 0.3)", "nn.SiLU()({})", "checkpoint(self.act, {}, use_reentrant=False)",
            "getattr(F, 'mish')({})", "apply(F.elu, {})", "(lambda v: F.celu(v, 0.5))({})",
        ))  # fmt: skip
        return form.format
