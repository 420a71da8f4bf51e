"""Test code as people write it: wrapped, scripted, compiled, decorated, in plain containers. It is right, or listed."""

from __future__ import annotations

import abc
import copy
import functools
import types
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import hullo

T = TypeVar("T")
X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)


@torch.jit.script
def scripted(x: Tensor) -> Tensor:
    return torch.relu(x) + 0.1


class CallsScript(Base):
    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.b(scripted(self.a(x))))


class HoldsScript(Base):
    def __init__(self) -> None:
        super().__init__()
        self.part = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.b(self.part(x)))


class CallsScriptedMethod(Base):
    def __init__(self) -> None:
        super().__init__()
        self.part = torch.jit.script(ScriptedPart())

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.b(self.part.encode(self.a(x))))


class ScriptedPart(nn.Module):
    @torch.jit.export
    def encode(self, x: Tensor) -> Tensor:
        return torch.relu(x) + 0.1


class Named(Tensor):
    names: str

    def __new__(cls, x: Tensor, names: str) -> Named:
        return super().__new__(cls, x)

    def __init__(self, x: Tensor, names: str) -> None:
        self.names = names

    def detach(self) -> Named:
        return Named(super().detach(), self.names)  # which the result of a layer does not have


class MakesSubclass(Base):
    """A forward that turns its input into a tensor of a subclass, in a process with scripted functions."""

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.a(Named(x, "abcd"))).as_subclass(Tensor)


class WithoutGradients(Base):
    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.b(F.gelu(self.a(x))))


class InferenceMode(Base):
    @torch.inference_mode()
    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.a(x))


class CompiledMethod(Base):
    @torch.compile(backend="eager")  # type: ignore[misc]
    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.a(x))


class Part(Base):
    def forward(self, x: Tensor) -> Tensor:
        return x + F.silu(self.a(x))


class CompiledPart(Base):
    def __init__(self) -> None:
        super().__init__()
        self.part = torch.compile(Part(), backend="eager")

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.a(self.part(x)))


class PlainList(Base):
    """Its parts are no children, so that their code is not that of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = [Part(), Part()]

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.a(sum(part(x) for part in self.parts)))  # type: ignore[arg-type]


class Solver(Base):
    """Called by code outside of the model."""

    def forward(self, t: float, y: Tensor) -> Tensor:
        return self.b(torch.tanh(self.a(y))) * t


def euler(field: nn.Module) -> Tensor:
    y = X
    for step in range(1, 4):
        y = y + field(1 / step, y)
    return y


class Pair(tuple):  # type: ignore[type-arg]
    pass


class TupleSubclass(Base):
    def forward(self, x: Tensor) -> Pair:
        return Pair((F.relu(self.a(x)), torch.tanh(x)))


class Stacked(Base):
    """A recurrence over two layers, in one expression."""

    steps = 3

    def forward(self, x: Tensor) -> Tensor:
        states = [torch.zeros_like(x), torch.zeros_like(x)]
        for _ in range(self.steps):
            y = x
            for n, layer in enumerate((self.a, self.b)):
                states[n] = y = torch.tanh(layer(y) + states[n])
        return y


class TwoLoops(Base):
    """One loop in a method that runs over different layers."""

    def run(self, layers: tuple[nn.Module, ...], x: Tensor) -> Tensor:
        for layer in layers:
            x = F.relu(layer(x))
        return x

    def forward(self, x: Tensor) -> Tensor:
        return self.run((self.b, self.a), self.run((self.a, self.b), x))


class WhileLayers(Base):
    """A loop that counts by itself, in a function inside that runs twice."""

    def forward(self, x: Tensor) -> Tensor:
        def run(x: Tensor) -> Tensor:
            n = 0
            while n < 2:
                x = torch.tanh((self.a, self.b)[n](x))
                n += 1
            return x

        return run(run(x))


class EarlyExit(Base):
    """A loop in a method that runs twice, the first time over fewer layers."""

    def run(self, count: int, x: Tensor) -> Tensor:
        for layer in (self.a, self.b)[:count]:
            x = F.relu(layer(x))
        return x

    def forward(self, x: Tensor) -> Tensor:
        return self.run(2, self.run(1, x))


class LayersOutside(Base):
    """Time steps inside of layers: turns do not say which layer it is."""

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.a, self.b):
            for _ in range(3):
                x = F.relu(layer(x))
        return x


class Reentrant(Base):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([Part(), Part()])

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = checkpoint(part, x, use_reentrant=True)
        return x


class ZeroStart(Base):
    """A residual branch that starts as zero: its activation has no effect yet."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.zeros_(self.b.weight)
        nn.init.zeros_(self.b.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.b(F.relu(self.a(x)))


class Unused(Base):
    def forward(self, x: Tensor) -> Tensor:
        F.silu(self.b(x))
        return torch.tanh(self.a(x))


class Table(Base):
    def __init__(self) -> None:
        super().__init__()
        self.acts = {
            "relu": nn.ReLU(),
            "tanh": torch.tanh,
            "leaky": functools.partial(F.leaky_relu, negative_slope=0.2),
        }

    def forward(self, x: Tensor) -> Tensor:
        return self.acts["leaky"](self.acts["tanh"](self.acts["relu"](self.a(x))))  # type: ignore[no-any-return, operator]


class Lambdas(Base):
    """Lambdas are made in one method and called in another, each after another layer."""

    def __init__(self) -> None:
        super().__init__()
        self.acts = [lambda x: F.relu(x), torch.tanh]

    def forward(self, x: Tensor) -> Tensor:
        for act, layer in zip(self.acts, (self.a, self.b), strict=True):
            x = act(layer(x))
        return x


class OtherInTraining(Base):
    def forward(self, x: Tensor) -> Tensor:
        x = F.elu(self.a(x)) if self.training else F.silu(self.a(x))
        return torch.tanh(self.b(x))


def patched(self: Any, x: Tensor) -> Tensor:
    return torch.sin(F.gelu(self.a(x)))


class Patched(nn.Module):
    """A function in the place of a forward, as libraries that patch models do."""

    def __init__(self) -> None:
        super().__init__()
        self.part, self.act = Base(), nn.ReLU()
        self.part.forward = types.MethodType(patched, self.part)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.part(x))


class Hooked(Base):
    def __init__(self) -> None:
        super().__init__()
        self.b.register_forward_pre_hook(lambda module, inputs: (F.silu(inputs[0]),))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.b(self.a(x)))


class Mapped(Base):
    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(torch.cat(list(map(F.relu, (self.a(x), self.b(x))))))


class Buffered(Base):
    def forward(self, x: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        with torch.no_grad():
            torch.tanh(self.a(x), out=out)
        return F.relu(self.b(x)) + out


class Property(Base):
    @property
    def scale(self) -> Tensor:
        return F.relu(self.b.bias)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.a(x)) * self.scale


class Interface(abc.ABC, Generic[T], Base):
    """Its first bases have no dictionary for attributes."""

    @abc.abstractmethod
    def act(self, x: Tensor) -> Tensor: ...

    def forward(self, x: Tensor) -> Tensor:
        return self.act(torch.tanh(self.a(x)))


class Implementation(Interface[int]):
    def act(self, x: Tensor) -> Tensor:
        return F.elu(x)


class Guarded(Base):
    """It refuses assignments once it is made."""

    def __init__(self) -> None:
        super().__init__()
        self.is_made = True

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "training" and vars(self).get("is_made"):
            raise AttributeError(f"{name} cannot be set")
        super().__setattr__(name, value)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.a(x))


class Chain(Base):
    """A chain over several lines, in which a call does not begin where its expression does."""

    def forward(self, x: Tensor) -> Tensor:
        return (
            self.a(x)
            .relu()
            .mul(2)
            .tanh()
        )  # fmt: skip


class Bound(Base):
    """Methods without a module, which are activations as a whole."""

    @staticmethod
    def first(x: Tensor) -> Tensor:
        return F.relu(x)

    @classmethod
    def second(cls, x: Tensor) -> Tensor:
        return F.gelu(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.b(self.first(self.a(x))))


class Overwrites(Base):
    """Statements that drop what a function returns, and keep what it wrote into its input."""

    def forward(self, x: Tensor) -> Tensor:
        h, g = self.a(x), self.b(x)
        F.relu(h, inplace=True)
        g.tanh_()
        return h + g


class Pipeline:
    """A plain object, whose methods do not call it self."""

    def __init__(it, act: nn.Module) -> None:  # noqa: N805
        it.act = act

    def run(it, x: Tensor) -> Tensor:  # noqa: N805
        return it.act(x)  # type: ignore[no-any-return]


class HoldsPipeline(Base):
    def __init__(self) -> None:
        super().__init__()
        self.pipeline = Pipeline(nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.pipeline.run(self.a(x)))


class Settings(Base):
    """Settings that are not written out, after an input that is."""

    settings = MappingProxyType({"negative_slope": 0.3})

    def forward(self, x: Tensor) -> Tensor:
        h = F.leaky_relu(self.a(x), **self.settings)
        arguments = {"input": x}
        return F.elu(self.b(h), *(0.5,)) + F.leaky_relu(**arguments)


class OtherName(Base):
    """A method whose first argument has another name, with a keyword-only argument and its default."""

    def forward(module, x: Tensor, *, slope: float = 0.5) -> Tensor:  # noqa: N805
        return F.relu(module.a(x)) * slope


class Indexed(nn.Sequential):
    """Children whose names are numbers, and two calls after one of them."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self[0](x)) + F.relu(self[0](2 * x))


class Unrolled(Base):
    """Time steps after the first, which follows another layer."""

    steps = 3

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        for _ in range(self.steps):
            x = self.b(F.relu(x))
        return x


class Gelu(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x)


class OwnModule(Base):
    """A module of one's own that calls one function: it is one activation."""

    def __init__(self) -> None:
        super().__init__()
        self.act = Gelu()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.b(self.act(self.a(x))))


class KeepsTuple(Base):
    """Tensors in a tuple, which each forward changes."""

    def __init__(self) -> None:
        super().__init__()
        self.state = (torch.zeros(4), torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        self.state[0].add_(1)
        return F.relu(self.a(x)) + 0 * self.state[0]


class SparseInput(Base):
    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.a(x)) + torch.relu(x.to_sparse()).to_dense()


class Annotated(Base):
    """A function inside, with an annotation that is not evaluated."""

    def forward(self, x: Tensor) -> Tensor:
        def inner(z: NotThere) -> Tensor:  # type: ignore[name-defined]  # noqa: F821
            return F.relu(z)

        return inner(self.a(x))


class Alias(Base):
    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.a(x))

    encode = forward


class CallsAlias(Base):
    def __init__(self) -> None:
        super().__init__()
        self.part = Alias()

    def forward(self, x: Tensor) -> Tensor:
        return self.part.encode(x)


class First(Base):
    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.a(x))


class Second(First):
    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(super().forward(x))


class Third(Second):
    """Three generations, each of which is rewritten and calls the next."""

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(super().forward(x)) + super(Second, self).forward(x)


# The model, its inputs, the hulls, and words of the reason for what is left.
CASES: dict[type[nn.Module], tuple[Any, list[str], str]] = {
    CallsScript: (X, ["b_tanh"], "scripted code calls it"),
    HoldsScript: (X, ["b_tanh"], "it is scripted"),
    CallsScriptedMethod: (X, ["b_tanh"], "scripted"),
    MakesSubclass: (X, ["a_relu"], ""),
    WithoutGradients: (X, ["a_gelu", "b_tanh"], ""),
    InferenceMode: (X, ["a_relu"], ""),
    CompiledMethod: (X, ["a_relu"], ""),
    CompiledPart: (X, ["a_tanh", "part._orig_mod.a_silu"], ""),
    PlainList: (X, ["a_tanh"], "Part.forward calls it, which is not a method of a module"),
    Solver: (euler, ["a_tanh"], ""),
    TupleSubclass: (X, ["a_relu", "a_tanh"], ""),
    Stacked: (X, ["a_tanh.0", "a_tanh.1"], ""),
    TwoLoops: (X, ["a_relu"], ""),
    WhileLayers: (X, ["a_tanh.0", "a_tanh.1"], ""),
    EarlyExit: (X, ["a_relu.0", "a_relu.1"], ""),
    LayersOutside: (X, ["b_relu"], ""),
    Reentrant: (X.clone().requires_grad_(), ["parts.0.a_silu", "parts.1.a_silu"], ""),
    ZeroStart: (X, ["a_relu"], ""),
    Unused: (X, ["a_tanh", "b_silu"], ""),
    OtherInTraining: (X, ["b_tanh"], "which of them answer each other is not clear"),
    Patched: (X, ["act"], "patched calls it, which is not a method of a module"),
    Hooked: (X, ["b_tanh"], "<lambda> calls it, which is not a method of a module"),
    Mapped: (X, ["b_tanh"], "through another function, such as map"),
    Buffered: (X, ["b_relu"], "writes its result to out"),
    Property: (X, ["a_tanh"], "scale is a property"),
    Implementation: (X, ["a_elu", "a_tanh"], ""),
    Guarded: (X, ["a_relu"], ""),
    Chain: (X, ["a_relu", "a_tanh"], ""),
    Overwrites: (X, ["b_relu", "b_tanh"], ""),
    HoldsPipeline: (X, ["a_relu"], ""),
    Settings: (X, ["a_leaky_relu", "b_elu"], "the arguments of its calls are not written out"),
    OtherName: (X, ["a_relu"], ""),
    Indexed: (X, ["layer_0_relu", "layer_0_relu_2"], ""),
    Unrolled: (X, ["b_relu"], ""),
    OwnModule: (X, ["act", "act_2"], ""),
    SparseInput: (X, ["a_tanh"], "its input is sparse"),
    Annotated: (X, ["a_relu"], ""),
    CallsAlias: (X, ["part.a_relu"], ""),
    Bound: (X, ["a_relu", "b_gelu"], ""),
    Third: (X, ["a_gelu", "a_relu", "a_tanh"], ""),
    Lambdas: (X, ["a_relu.0", "a_relu.1"], ""),
    Table: (X, ["a_leaky_relu", "a_relu", "a_tanh"], ""),
}


def outputs(model: nn.Module, inputs: Any, training: bool) -> Tensor:
    made = inputs(model) if inputs is euler else model.train(training)(inputs)
    return torch.cat([item.detach().clone() for item in (made if isinstance(made, tuple) else (made,))])


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("make", CASES)
def test_wild_code_is_right_or_listed(make: Callable[[], nn.Module]) -> None:
    inputs, names, reason = CASES[make]  # type: ignore[index]
    torch.manual_seed(0)
    model = make()
    before = {mode: outputs(model, inputs, mode) for mode in (True, False)}
    weights = copy.deepcopy(model.state_dict())
    hullo.replace_activations(model, example_inputs=inputs)
    summary = hullo.summary(model)
    assert sorted(summary.hulls) == names
    assert all(reason in site.reason for site in summary.not_replaced)
    assert bool(summary.not_replaced) == bool(reason)
    for mode, expected in before.items():
        torch.testing.assert_close(outputs(model, inputs, mode), expected, rtol=1e-5, atol=1e-6)
    state = model.state_dict()
    for name, item in weights.items():
        assert torch.equal(state[name], item)
    for name, hull in summary.hulls.items() if make is not ZeroStart else ():
        if name == "b_silu" and make is Unused:
            continue
        start = hull.raw.detach().clone()
        hull.raw.data.add_(torch.tensor([0.5, -0.5, 0.5]))
        assert not torch.equal(outputs(model, inputs, False), before[False]), name
        hull.raw.data.copy_(start)


def test_hulls_do_not_depend_on_the_proof() -> None:
    proven, other = (hullo.replace_activations(Unused(), example_inputs=X, compare=flag) for flag in (True, False))
    proven.load_state_dict(other.state_dict())


def test_loops_over_layers_and_steps_take_any_number_of_steps() -> None:
    model = hullo.replace_activations(Stacked(), example_inputs=X)
    model.steps = 7
    plain = Stacked()
    plain.steps = 7
    plain.load_state_dict(model.state_dict(), strict=False)
    torch.testing.assert_close(model(X), plain(X))
    whole = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(whole(X), plain(X))


def test_steps_of_a_recurrence_share_a_hull_also_if_the_first_follows_another_layer() -> None:
    model = hullo.replace_activations(Unrolled(), example_inputs=X)
    model.steps = 7
    assert model(X).shape == X.shape


def test_tensors_in_a_tuple_are_restored() -> None:
    model = hullo.replace_activations(KeepsTuple(), example_inputs=X)
    assert torch.equal(model.state[0], torch.zeros(4))


def test_keyword_defaults_are_kept() -> None:
    model = hullo.replace_activations(OtherName(), example_inputs=X)
    torch.testing.assert_close(model(X, slope=1.0), 2 * model(X))


def test_second_swap_keeps_methods_that_the_first_has_changed() -> None:
    class Two(Base):
        def gate(self, x: Tensor) -> Tensor:
            return torch.sigmoid(self.b(x))

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(self.a(x)) * self.gate(x)

    model, names = Two(), ["a_relu", "b_sigmoid"]
    for function in ("relu", "sigmoid"):
        hullo.replace_activations(model, example_inputs=X, functions=[function])
    before = model(X)
    for name in names:
        model.get_submodule(name).raw.data.add_(torch.tensor([0.5, -0.5, 0.5]))
        after = model(X)
        assert not torch.equal(after, before), name
        before = after


def test_evaluation_mode_runs_without_gradients() -> None:
    modes = set()

    class Notes(Base):
        def forward(self, x: Tensor) -> Tensor:
            modes.add((self.training, torch.is_grad_enabled()))
            return F.relu(self.a(x))

    hullo.replace_activations(Notes(), example_inputs=X)
    assert modes == {(True, True), (False, False)}


def test_attributes_of_a_method_are_kept() -> None:
    class Tagged(Base):
        def forward(self, x: Tensor) -> Tensor:
            return F.relu(self.a(x))

        forward.tag = "mine"  # type: ignore[attr-defined]

    assert hullo.replace_activations(Tagged(), example_inputs=X).forward.tag == "mine"


def test_backward_hooks_and_compilers_are_not_called() -> None:
    called = []

    def backend(graph: Any, inputs: Any) -> Any:
        called.append("compiled")
        return graph.forward

    compiled: Any = torch.compile(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), backend=backend)
    whole = nn.Sequential(compiled, First())
    whole[1].a.register_full_backward_hook(lambda *_: called.append("backward"))
    hullo.replace_activations(whole, example_inputs=X)
    assert not called
    whole(X).sum().backward()
    assert set(called) == {"compiled", "backward"}


def test_hulls_of_a_loop_have_the_mode_of_the_model() -> None:
    model = hullo.replace_activations(Stacked().eval(), example_inputs=X)
    assert not any(module.training for module in model.modules())


def test_loop_that_does_not_decide_is_restored() -> None:
    model = hullo.replace_activations(TwoLoops(), example_inputs=X)
    model.a_relu.coefficients = [0.2, 0.5, 0.3]
    restored = hullo.restore(TwoLoops(), model.state_dict(), example_inputs=X)
    restored.load_state_dict(model.state_dict())
    torch.testing.assert_close(restored(X), model(X))


def mish(x: Tensor) -> Tensor:
    return x * torch.tanh(F.softplus(x))


class Helper(Base):
    """A helper function that calls two functions, and is an activation as a whole."""

    def forward(self, x: Tensor) -> Tensor:
        return self.b(mish(self.a(x)))


class ByShape(nn.Module):
    """Another function than at test points, which only the proof tells."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x) if x.shape == X.shape else F.relu(x)


def test_helper_is_one_call() -> None:
    model = hullo.replace_activations(nn.Sequential(Helper(), nn.Linear(4, 4), ByShape()), example_inputs=X)
    assert list(hullo.summary(model).hulls) == ["0.a_mish"]
    listed = [site.name for site in hullo.summary(model).not_replaced if "a hull cannot replace it" in site.reason]
    assert listed == ["2"]


def test_second_hull_of_a_module_has_copies_of_its_hooks() -> None:
    class Twice(Base):
        def __init__(self) -> None:
            super().__init__()
            self.act = nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            return self.act(self.b(self.act(self.a(x))))

    model, called = Twice(), []
    handle = model.act.register_forward_hook(lambda *_: called.append("both"))
    hullo.replace_activations(model, example_inputs=X)
    called.clear()
    model.act_2.register_forward_hook(lambda *_: called.append("second"))
    model(X)
    assert called == ["both", "both", "second"]
    handle.remove()
    called.clear()
    model(X)
    assert called == ["both", "second"]
