"""Test code that refers to activations or methods in other ways: attributes, class attributes, __call__, decorators."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from programs import assert_right_or_refused, imported
from torch import Tensor, nn

import hullo

# How plain attributes hold an activation that is a child too, or a method, and how they are called.
HELD = {
    "list": ("[{}]", "self.held[0]({})"),
    "tuple in a list": ("[(1, {})]", "self.held[0][1]({})"),
    "dict": ("{{'a': {}}}", "self.held['a']({})"),
    "partial": ("functools.partial({})", "self.held({})"),
    "object": ("Holder({})", "self.held.thing({})"),
    "object with slots": ("Slotted({})", "self.held.thing({})"),
    "method of an object": ("Holder({})", "self.held.call({})"),
    "chosen at random": ("[{}]", "random.choice(self.held)({})"),
    "bound method": ("{}.__call__", "self.held({})"),
}
HOLDERS = """
import random

class Holder:
    def __init__(self, thing):
        self.thing = thing
    def call(self, x):
        return self.thing(x)

class Slotted:
    __slots__ = ("thing",)
    def __init__(self, thing):
        self.thing = thing
    def __getstate__(self):
        return self.thing
    def __setstate__(self, state):
        self.thing = state
"""


@pytest.mark.parametrize("holder", HELD)
def test_activation_referenced_by_an_attribute_is_replaced_or_listed(holder: str, tmp_path: Path) -> None:
    made, called = HELD[holder]
    for forward in ("{0}", "{0} + self.act(x)", "self.act({0})"):
        net = imported(
            f"""
{HOLDERS}
class Net(Base):
    def build(self):
        self.act = nn.ReLU()
        self.held = {made.format("self.act")}

    def forward(self, x):
        return torch.tanh({forward.format(called.format("self.l0(x)"))})
""",
            tmp_path,
        )["Net"]
        assert "l0_tanh" in assert_right_or_refused(net, torch.randn(3, 4), by_name=False)


@pytest.mark.parametrize("holder", [name for name in HELD if name != "bound method"])
def test_method_referenced_by_an_attribute_is_rewritten_or_listed(holder: str, tmp_path: Path) -> None:
    made, called = HELD[holder]
    net = imported(
        f"""
{HOLDERS}
class Net(Base):
    def build(self):
        self.act, self.held = nn.ReLU(), None
        self.held = {made.format("self.step")}

    def step(self, x):
        return F.gelu(self.act(self.l1(x)))

    def forward(self, x):
        return torch.tanh({called.format("self.l0(x)")})
""",
        tmp_path,
    )["Net"]
    assert "l1_tanh" in assert_right_or_refused(net, torch.randn(3, 4), by_name=False)


@pytest.mark.parametrize("default", ["None", "staticmethod(F.relu)", "functools.cached_property(lambda self: F.relu)"])
def test_attribute_that_hides_one_of_its_class_is_replaced(default: str, tmp_path: Path) -> None:
    net = imported(
        f"""
class Net(Base):
    fn = {default}
    def build(self):
        self.fn = F.gelu

    def forward(self, x):
        return torch.tanh(self.fn(self.l0(x)) if self.fn is not None else x)
""",
        tmp_path,
    )["Net"]
    assert set(assert_right_or_refused(net, torch.randn(3, 4))) == {"l0_gelu", "l0_tanh"}


CALLS = {  # how a module of its own __call__ is called, and the hulls it gets
    "def __call__(self, x): return torch.tanh(self.forward(x))": {"l0_tanh", "l0_relu", "act"},
    "def __call__(self, x): return super().__call__(torch.tanh(x))": {"tanh", "l0_relu", "act"},
    "def __call__(self, x): return torch.tanh(self.l1(x))": {"l1_tanh"},
    "def _call_impl(self, x): return torch.tanh(self.l1(x))": {"l1_tanh"},
    "def own(self, x): return torch.tanh(self.forward(x))\n    __call__ = own": {"l0_tanh", "l0_relu", "act"},
}


@pytest.mark.parametrize("call", CALLS)
def test_overridden_call_is_read_before_forward(call: str, tmp_path: Path) -> None:
    net = imported(
        f"""
class Inner(Base):
    def build(self):
        self.act = nn.SiLU()

    {call}

    def forward(self, x):
        return F.relu(self.act(self.l0(x)))

class Net(Base):
    def build(self):
        self.inner = Inner()

    def forward(self, x):
        return self.inner(x)
""",
        tmp_path,
    )["Net"]
    result = assert_right_or_refused(net, torch.randn(3, 4))
    assert set(result) == {f"inner.{name}" for name in CALLS[call]}


@pytest.mark.parametrize("call", ["table['f'](self, x)", "again(self, x)", "f(self, x) + rest[0](self, x)"])
def test_decorator_with_two_references_is_rewritten_or_listed(call: str, tmp_path: Path) -> None:
    net = imported(
        f"""
def twice(f):
    table, again, rest = {{"f": f}}, functools.partial(f), [f]
    @functools.wraps(f)
    def wrapper(self, x):
        return {call} if f is not None else x
    return wrapper

class Net(Base):
    @twice
    def forward(self, x):
        return torch.tanh(self.l0(x))
""",
        tmp_path,
    )["Net"]
    assert_right_or_refused(net, torch.randn(3, 4))


@pytest.mark.parametrize("wrapper", ["return torch.tanh(self.l1(x))", "return g(self, torch.tanh(x))"])
def test_decorator_that_does_not_call_the_function(wrapper: str, tmp_path: Path) -> None:
    net = imported(
        f"""
def other(self, x):
    return F.gelu(self.l0(x))

def instead(f, g=other):
    @functools.wraps(f)
    def wrapper(self, x):
        {wrapper}
    return wrapper

class Net(Base):
    def build(self):
        self.act = nn.ReLU()

    @instead
    def forward(self, x):
        return self.act(self.l0(x))
""",
        tmp_path,
    )["Net"]
    assert_right_or_refused(net, torch.randn(3, 4), by_name=False)


DECORATORS = {
    "wraps": "@functools.wraps(f)\n    def g(self, x): return f(self, x) * 2\n    return g",
    "twice": "@functools.wraps(f)\n    def g(self, x): return f(self, f(self, x))\n    return g",
    "keyword": "@functools.wraps(f)\n    def g(self, x, *, y=1.0): return f(self, x) * 2 + y\n    return g",
    "its own": "@functools.wraps(f)\n    def g(self, x): return f(self, torch.tanh(x))\n    return g",
    "two": (
        "g = functools.wraps(f)(lambda self, x: f(self, x) + 1)\n"
        "    return functools.wraps(g)(lambda self, x: g(self, x) * 3)"
    ),
}


@pytest.mark.parametrize("name", DECORATORS)
def test_decorated_methods_are_rewritten_inside_their_decorators(name: str, tmp_path: Path) -> None:
    net = imported(
        f"""
def decorator(f):
    {DECORATORS[name]}

class Net(Base):
    @decorator
    def step(self, x):
        return F.relu(self.l0(x))

    @decorator
    def forward(self, x):
        return self.l1(F.gelu(self.step(x)))
""",
        tmp_path,
    )["Net"]
    result = set(assert_right_or_refused(net, torch.randn(3, 4)))
    assert result >= {"l0_relu", "l0_gelu"}


class Loop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers, self.turns = nn.ModuleList(nn.Linear(4, 4) for _ in range(3)), 2

    def forward(self, x: Tensor) -> Tensor:
        for n in range(self.turns):
            x = torch.tanh(self.layers[n](x))
        return x


def test_more_turns_of_a_loop_raise_an_error() -> None:
    x = torch.randn(2, 4)
    model = hullo.replace_activations(Loop(), example_inputs=x)
    assert list(hullo.summary(model).hulls) == ["layers_tanh.0", "layers_tanh.1"]
    model.turns = 1
    model(x)
    model.turns = 3
    with pytest.raises(IndexError, match=r"turn 2 .* 2 turns"):
        model(x)


class Lengths(nn.Module):
    """Nothing in the code tells that one of the tensors holds integers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.act = nn.Linear(4, 4), nn.ReLU()

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        return self.act(self.layer(x)) + self.act(lengths - 1).unsqueeze(1)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_activation_of_integers_is_listed(dtype: torch.dtype) -> None:
    given = (torch.randn(2, 4), torch.tensor([1, 2], dtype=dtype))
    model = hullo.replace_activations(Lengths(), example_inputs=given)
    summary = hullo.summary(model)
    assert (len(summary.hulls), [str(dtype) in site.reason for site in summary.not_replaced]) == (1, [True])
    model = hullo.replace_activations(nn.Sequential(nn.ReLU()))
    with pytest.raises(TypeError, match=str(dtype)):
        model(given[1])


def test_model_with_a_python_module_attribute_is_folded() -> None:
    model = hullo.replace_activations(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    model.functions = torch.nn.functional  # type: ignore[assignment]
    assert isinstance(hullo.fold(model)[1], nn.ReLU)  # type: ignore[index]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_single_encoder_layer_error_says_to_replace_the_encoder() -> None:
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    encoder, x, padding = nn.TransformerEncoder(layer, 2).eval(), torch.randn(2, 3, 4), torch.zeros(2, 3).bool()
    padding[0, 2] = True
    hullo.replace_activations(encoder.layers[0], example_inputs=x)  # the encoder itself does not know of it
    with torch.no_grad(), pytest.raises(TypeError, match=r"nested.*whole encoder"):
        encoder(x, src_key_padding_mask=padding)
