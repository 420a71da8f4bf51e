"""Test that calls on branches that exclude each other share a hull."""

from __future__ import annotations

import tempfile
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import Writer, assert_right_or_refused, change_hulls, imported, outputs
from torch import nn

import hullo
from hullo.surgery.grouping import group_calls


@settings(max_examples=15, deadline=None)
@given(st.randoms(use_true_random=False))
def test_generated_forwards_compute_train_and_copy_as_before(random: Random) -> None:
    with tempfile.TemporaryDirectory() as folder:
        net = imported(Writer(random).forward(), Path(folder))["Net"]
        assert_right_or_refused(net, torch.randn(3, 4))


def test_joined_branch_is_not_joined_again() -> None:
    outer, inner = ("at", 1), ("at", 2)
    paths = [{outer: 0}, {outer: 0}, {outer: 1, inner: 0}, {outer: 1, inner: 1}, {outer: 1, inner: 1}]
    calls = [SimpleNamespace(number=0, path=path, idle=path[outer] == 0) for path in paths]
    (group,) = group_calls(calls)  # type: ignore[arg-type]
    assert len(group) == len(calls)


# The code of forward, and the hulls it needs: calls of act(...) on the branches of one decision.
FORWARDS = {
    "return": ("if {test}: return {a}\nreturn {b}", 1),
    "else": ("if {test}:\n    y = {a}\nelse:\n    y = {b}\nreturn y", 1),
    "ternary": ("return {a} if {test} else {b}", 1),
    "and or": ("return (({test}) and [{a}] or [{b}])[0]", 1),
    "two ifs": ("if {test}: y = {a}\nif not ({test}): y = {b}\nreturn y", 1),
    "elif": ("if x is None: return {a}\nelif {test}: return {a}\nelse: return {b}", 1),
    "match": ("match {test}:\n    case True: return {a}\nreturn {b}", 1),
    "try": ("try:\n    if {test}: raise ValueError\n    return {a}\nexcept ValueError:\n    return {b}", 1),
    "loop": ("for n in range(3):\n    if {test}:\n        x = {a}\n        continue\n    x = {b}\nreturn x", 3),
    "break": (
        "for n in range(2):\n    if {test}:\n        x = {a}\n        break\n    x = {b}\n    break\nreturn x",
        1,
    ),
    "before and after": ("x = {a}\nif {test}:\n    y = {a}\nelse:\n    y = {b}\nreturn {a} + y", 3),
    "nested": ("if x.dim() == 2:\n    if {test}:\n        return {a}\nreturn {b}", 1),
    "walrus": ("if (mode := {test}): return {a}\nreturn {b}", 1),
    "method": ("if {test}: return self.one(x)\nreturn self.two(x)", 1),
    "same method": ("return self.one(x) if {test} else self.one(x)", 1),
}
TESTS = ("self.training", "not self.training", "self.flag", "x.dim() == 2", "torch.is_grad_enabled()", "self.fast()")
ACTS = ("F.silu({})", "self.act({})", "self.fn({})", "({}).tanh()", "self.part({})")


def source(body: str, act: str, test: str) -> str:
    a, b = act.format("self.l1(x)"), act.format("self.l1(x) * 1")
    lines = "\n".join(f"        {line}" for line in body.format(a=a, b=b, test=test).splitlines())
    methods = f"""
    def one(self, x):
        return {a}

    def two(self, x):
        return {b}
"""
    return f"""
class Net(Base):
    def build(self):
        self.act, self.fn, self.flag = nn.GELU(), F.mish, True
        self.part = functools.partial(F.leaky_relu, negative_slope=0.2)

    def fast(self):
        return not self.training
{methods if "self.one" in body else ""}
    def forward(self, x):
{lines}
"""


@pytest.mark.parametrize("form", FORWARDS)
def test_two_branches_share_one_hull(form: str, tmp_path: Path) -> None:
    body, count = FORWARDS[form]
    for number, test in enumerate(TESTS):
        net = imported(source(body, ACTS[number % len(ACTS)], test), tmp_path)["Net"]
        hulls = assert_right_or_refused(net, torch.randn(3, 4))
        assert len(hulls) == count, (test, list(hulls))


def test_training_and_evaluation_share_the_hull(tmp_path: Path) -> None:
    text = source("x = {a}\nif {test}: return {a}\nreturn {b}", "F.tanh({})", "self.training")
    model = hullo.replace_activations(imported(text, tmp_path)["Net"]())
    x, y = torch.randn(32, 4), torch.randn(32, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(5):
        optimizer.zero_grad()
        F.mse_loss(outputs(model, x, True), y).backward()
        optimizer.step()
    torch.testing.assert_close(outputs(model, x, True).detach(), outputs(model, x, False))


AUXILIARY = """
class Net(Base):
    def forward(self, x):
        if self.training:
            side = F.relu(self.l2(x))
            y = F.relu(self.l1(x))
            return y + 0 * side
        return F.relu({argument})
"""


@pytest.mark.parametrize(("argument", "count"), [("self.l1(x)", 2), ("self.l1(x * 1)", 1)])
def test_calls_are_matched_by_value_else_share_one_hull(argument: str, count: int, tmp_path: Path) -> None:
    net = imported(AUXILIARY.format(argument=argument), tmp_path)["Net"]
    assert len(assert_right_or_refused(net, torch.randn(3, 4))) == count


MERGED = """
class Net(Base):
    def build(self):
        self.{flag} = {off}
        self.act = nn.SiLU()

    def merge(self):
        with torch.no_grad():
            for one, other in zip((self.l0, self.l1), (self.l2, self.l3)):
                one.weight += other.weight
                one.bias += other.bias
        self.{flag} = {on}

    def forward(self, x):
        if {test}:
            return {act}(self.l1({act}(self.l0(x))))
        x = {act}(self.l0(x) + self.l2(x))
        return {act}(self.l1(x) + self.l3(x))
"""


@pytest.mark.parametrize("act", ["self.act", "F.silu"])
@pytest.mark.parametrize(
    ("flag", "off", "on", "test"),
    [
        ("deploy", False, True, "self.deploy"),
        ("branches", 2, 1, "self.branches == 1"),
        ("kind", "'slow'", "'fast'", "self.kind == 'fast'"),
        ("other", None, 1, "self.other is not None"),
    ],
)
def test_reparametrized_model_computes_the_same(  # type: ignore[no-untyped-def]
    act: str, flag: str, off, on, test: str, tmp_path: Path
) -> None:
    text = MERGED.format(act=act, flag=flag, off=off, on=on, test=test)
    model, x = hullo.replace_activations(imported(text, tmp_path)["Net"]()), torch.randn(3, 4)
    assert len(hullo.summary(model).hulls) == 2
    change_hulls(model)
    before = outputs(model, x, False)
    model.merge()
    torch.testing.assert_close(outputs(model, x, False), before)


def test_branch_for_a_later_attribute_is_replaced(tmp_path: Path) -> None:
    net = imported(
        """
class Net(Base):
    def forward(self, x):
        if hasattr(self, "merged"):
            return F.gelu(self.merged(x))
        return F.gelu(self.l0(x) + self.l1(x))
""",
        tmp_path,
    )["Net"]
    model, x = hullo.replace_activations(net()), torch.randn(3, 4)
    change_hulls(model)
    before = outputs(model, x, False)
    model.merged = nn.Linear(4, 4)
    with torch.no_grad():
        model.merged.weight.copy_(model.l0.weight + model.l1.weight)
        model.merged.bias.copy_(model.l0.bias + model.l1.bias)
    torch.testing.assert_close(outputs(model, x, False), before)


DIFFERENT = {
    "functions": ("return F.gelu(self.l0(x)) if self.training else F.gelu(self.l0(x), approximate='tanh')", []),
    "modules": ("return self.t(self.l0(x)) if self.training else self.h(self.l0(x))", []),
    "a module and a function": ("return self.t(self.l0(x)) if self.training else torch.tanh(self.l0(x))", []),
    "in place": ("x = self.l0(x)\nreturn F.relu(x, inplace=True) if self.training else F.relu(x)", []),
    "a function that cannot be read": ("return F.elu(self.l0(x)) if self.training else apply(F.elu, self.l0(x))", []),
    "parts": ("return self.p(self.l0(x)) if self.training else self.q(self.l0(x))", []),
    "an argument": ("return F.gelu(x) if train else F.silu(x)", []),
    "evaluation alone": ("x = F.relu(self.l0(x))\nif not self.training: x = torch.tanh(x)\nreturn x", ["relu_1"]),
    "training alone": ("x = F.relu(self.l0(x))\nif self.training: x = torch.tanh(x)\nreturn x", ["relu_1", "tanh_1"]),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_functions_of_one_mode_only_are_not_replaced(name: str, tmp_path: Path) -> None:
    body, hulls = DIFFERENT[name]
    lines = "\n".join(f"        {line}" for line in body.splitlines())
    net = imported(
        f"""
class Net(Base):
    def build(self):
        self.t, self.h = nn.Tanh(), nn.Hardtanh()
        self.p, self.q = nn.Sequential(nn.ReLU(), nn.Dropout(0.0)), nn.Sequential(nn.ReLU())

    def forward(self, x, train=True):
{lines}
""",
        tmp_path,
    )["Net"]
    result = assert_right_or_refused(net, torch.randn(3, 4))
    assert list(result) == hulls


ASIDE = """
class Net(Base):
    def build(self):
        self.act = nn.ReLU()

    def step(self, x, layer):
        return {act}(layer(x))

    def forward(self, x):
        return self.step(self.step(x, self.l0), self.l1)

    def predict(self, {name}):
        {noise}
        return self.step(self.step({name}, self.l0), self.l1)

    def hinge(self, x):
        return F.relu(1 - x)
"""


@pytest.mark.parametrize("noise", ["pass", "inputs = inputs * 1"])
@pytest.mark.parametrize("act", ["self.act", "F.relu"])
def test_other_method_still_computes_like_forward(act: str, noise: str, tmp_path: Path) -> None:
    net = imported(ASIDE.format(act=act, noise=noise, name="inputs"), tmp_path)["Net"]
    model, x = hullo.replace_activations(net()), torch.randn(3, 4)
    change_hulls(model)
    torch.testing.assert_close(model.predict(x), model(x))
    assert len(hullo.summary(model).hulls) == 2
    torch.testing.assert_close(model.hinge(x), F.relu(1 - x))


ENTERED = """
class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.act = nn.Linear(4, 4), nn.ReLU()

    def forward(self, x):
        return {act}(self.layer(x))

    def fast(self, x):
        return {act}(self.layer(x) * 1)

class Net(Base):
    def build(self):
        self.inner = Inner()

    def forward(self, x):
        if self.training:
            return self.inner(x)
        return {call}
"""


@pytest.mark.parametrize("call", ["self.inner.fast(x)", "self.inner.act(self.inner.layer(x))"])
@pytest.mark.parametrize("act", ["self.act", "F.relu"])
def test_module_with_several_entry_points_shares_hulls(act: str, call: str, tmp_path: Path) -> None:
    net = imported(ENTERED.format(act=act, call=call), tmp_path)["Net"]
    result = assert_right_or_refused(net, torch.randn(3, 4))
    assert len(result) == (0 if act == "F.relu" and "act" in call else 1)
