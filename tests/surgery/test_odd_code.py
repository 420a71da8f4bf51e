"""Test that unusual code is swapped correctly or listed, without a bare KeyError, SyntaxError or TypeError."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from programs import assert_right_or_refused, imported
from torch import nn

import hullo

# The code of forward, and the hulls that are made. Modules have self.act, used or not.
FORWARDS: dict[str, tuple[str, int]] = {
    "own class": ("return F.relu(self.l0(x)) * Net.FACTOR", 1),
    "super with arguments": ("return torch.tanh(super(Net, self).forward(self.l0(x)))", 2),
    "by index": ("return self.seq[1](self.l0(self.seq[-1](x)))", 2),
    "by key": ("return self.d['my-act'](self.l0(self.d['my-act'](x)))", 2),
    "by keyword": ("return self.act(input=self.l0(self.act(input=x)))", 2),
    "with a star": ("return torch.tanh(self.act(*(self.l0(x),)))", 2),
    "walrus": ("return y if (y := self.act(self.l0(x))) is not None else x", 1),
    "inner function": ("def inner(y): return F.relu(y)\n        return inner(self.l0(x)) + torch.tanh(x)", 2),
    "lambda": ("return (lambda y: self.act(y))(self.l0(x)) + torch.tanh(x)", 2),
    "private name": ("return self.__act(self.l0(self.__act(x)))", 2),
    "property": ("return self.prop(self.l0(self.prop(x)))", 2),
    "generator": ("return sum(self.parts(x))", 2),
    "class attribute": ("return self.shared(self.static(self.l0(x)))", 2),
    "alias": ("act = self.act\n        return act(self.l0(act(x)))", 2),
    "unpacked pairs": ("for act, n in self.pairs: x = act(self.l0(x)) * n\n        return x", 2),
    "unpacked": ("a, b = self.act, F.gelu\n        return b(self.l0(a(x)))", 2),
    "by name in a loop": ("for n in range(2): x = getattr(self, f'act{n}')(self.l0(x))\n        return x", 2),
    "forward by hand": ("return self.act.forward(self.l0(self.act.__call__(x)))", 2),
    "checkpoint": ("return checkpoint(self.act, self.l0(x), use_reentrant=False)", 1),
    "checkpoint twice": ("y = checkpoint(self.act, x, use_reentrant=False)\n        return self.act(self.l0(y))", 2),
    "checkpoint of a method": ("return checkpoint(self._Net__step, self.l0(x), use_reentrant=False)", 1),
    "a method in a closure": ("f = lambda y: self._Net__step(y)\n        return f(self.l0(x))", 1),
    "formatted string": ("str(f'{self.act(x)}')\n        return torch.tanh(self.l0(x))", 2),
    "no gradients": ("with torch.no_grad(): y = F.relu(x)\n        return torch.tanh(self.l0(x)) + y", 2),
    "slice": ("return self.seq[1:](self.seq[:1](x))", 1),
    "recursion": ("return torch.tanh(self.again(self.l0(x), 2))", 2),
    "exact type": ("return torch.tanh(self.l0(x)) * (2 if type(self) is Net else 3)", 0),
    "type of an activation": ("return self.act(x) * (2 if isinstance(self.act, nn.ReLU) else 3)", 0),
    "attribute of an activation": ("return self.act(self.l0(x)) * (2 if self.act.inplace else 3)", 0),
    "assigned in forward": ("self.slope = float(x.mean())\n        return F.leaky_relu(self.l0(x), self.slope)", 1),
    "made in forward": ("self.act = nn.Tanh()\n        return self.act(self.l0(x))", 1),
    "slopes of a function": ("return self.leaky(self.l0(self.leaky(x, 0.1)), 0.4)", 2),
    "slopes by turn": ("for s in (0.1, 0.2): x = F.leaky_relu(self.l0(x), s)\n        return x", 2),
    "functions by turn": ("for f in (F.relu, torch.exp): x = f(self.l0(x))\n        return torch.tanh(x)", 1),
    "text of a module": ("return torch.tanh(self.l0(x)) * len(repr(self))", 0),
    "name of a class": ("return torch.tanh(self.l0(x)) * len(type(self).__name__)", 1),
    "name of an activation": ("return self.act(self.l0(x)) * len(self.act._get_name())", 0),
    "dictionary": ("return self.leaky(self.l0(x)) * (2 if 'leaky' in self.__dict__ else 3)", 1),
    "list that grows": (
        "y = []\n        for n in range(2): y.append(F.relu(self.l0(x)))\n"
        "        for z in reversed(y): x = torch.tanh(z + x)\n        return x",
        2,
    ),
    "attribute that grows": (
        "self.grown.append(x.detach())\n        for z in self.grown[-1:]: x = torch.tanh(z)\n"
        "        return F.relu(self.l0(x))",
        2,
    ),
    "while": ("n = 0\n        while (n := n + 1) < len(x): x = self.act(self.l0(x)).tanh()\n        return x", 2),
    "a part for each row": ("return torch.stack([F.relu(self.l0(row)) for row in x])", 1),
    "known turns in unknown ones": (
        "for row in x:\n            for layer in self.layers: x = x + torch.tanh(layer(row))\n        return x",
        3,
    ),
    "list that another method fills": (
        "y = [self.l0, self.l1]\n        self.fill(y)\n        for f in y: x = F.relu(f(x))\n        return x",
        3,
    ),
    "integers": ("n = (x > 0).long()\n        return torch.tanh(self.l0(x)) + F.relu(n - 1)", 1),
    "complex numbers": ("return torch.tanh(torch.complex(self.l0(x), x)).real + F.relu(x)", 1),
    "sparse": ("return torch.tanh(self.l0(x)) + torch.relu(self.l1(x).to_sparse()).to_dense()", 1),
    "made and added": ("self.add_module('late', nn.ELU())\n        return torch.tanh(self.late(self.l0(x)))", 2),
    "after a break": (
        "for f in self.d.values():\n            x = f(x)\n            if x.sum() > 9: break\n        return f(x)",
        2,
    ),
}


@pytest.mark.parametrize(
    "body",
    [
        "return torch.tanh(self.table.get('a')(self.l0(x)))",
        "act = self.table.get('a')\n        return torch.tanh(act(self.l0(x)))",
        "act = self.pairs[len(x) - 2][0]\n        return torch.tanh(act(self.l0(x)))",
    ],
)
def test_activations_from_collections_are_replaced(body: str, tmp_path: Path) -> None:
    code = f"""
class Net(Base):
    def build(self):
        self.table, self.pairs = {{"a": nn.SiLU()}}, [(nn.ELU(), 1)]

    def forward(self, x):
        {body}
"""
    assert len(assert_right_or_refused(imported(code, tmp_path)["Net"], torch.randn(2, 4))) == 2


def test_activation_that_train_assigns_is_listed(tmp_path: Path) -> None:
    code = """
class Net(Base):
    def build(self):
        self.act = nn.ReLU()

    def train(self, mode=True):
        self.act = nn.ReLU() if mode else nn.GELU()
        return super().train(mode)

    def forward(self, x):
        return torch.tanh(self.act(self.l0(x)))
"""
    assert list(assert_right_or_refused(imported(code, tmp_path)["Net"], torch.randn(3, 4))) == ["l0_tanh"]


def test_traced_graph_is_listed() -> None:
    class Sum(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x) + torch.tanh(x)

    model = nn.Sequential(nn.Linear(4, 4), nn.GELU(), torch.fx.symbolic_trace(Sum()))
    hullo.replace_activations(model, example_inputs=torch.randn(2, 4))
    assert list(hullo.summary(model).hulls) == ["1"]
    assert str(hullo.summary(model)).count("traced graph") == 2


UNTRAINED = ("formatted string", "no gradients")  # code without gradients, or whose results are not used


@pytest.mark.parametrize("name", FORWARDS)
def test_unusual_code_is_handled(name: str, tmp_path: Path) -> None:
    body, count = FORWARDS[name]
    net = imported(
        f"""
class Parent(Base):
    def forward(self, x):
        return F.silu(x)

class Net(Parent):
    FACTOR = 2.0
    shared = nn.ReLU()
    static = staticmethod(F.gelu)

    def build(self):
        self.act, self.act0, self.act1, self.__act = nn.ReLU(), nn.ReLU(), nn.Tanh(), nn.ELU()
        self.d = nn.ModuleDict({{"my-act": nn.ReLU()}})
        {"self.seq = nn.Sequential(nn.Linear(4, 4), nn.SiLU())" if "self.seq" in body else ""}
        self.leaky, self.grown = F.leaky_relu, []
        self.pairs, self.table = [(nn.ELU(), 2.0), (F.gelu, 3.0)], {{"a": nn.SiLU()}}

    @property
    def prop(self):
        return self.act

    def __step(self, x):
        return F.silu(x)

    def fill(self, parts):
        parts.append(self.l2)

    def parts(self, x):
        yield F.relu(self.l0(x))
        yield torch.tanh(self.l1(x))

    def again(self, x, n):
        x = F.relu(self.l1(x))
        return x if n == 0 else self.again(x, n - 1)

    def forward(self, x):
        {body}
""",
        tmp_path,
    )["Net"]
    result = assert_right_or_refused(
        net, torch.randn(3, 4), by_name=name != "forward by hand", all_trained=name not in UNTRAINED
    )
    assert len(result) == count, list(result)


def test_derived_classes_are_not_registered_with_the_base(tmp_path: Path) -> None:
    space = imported(
        """
class Registered(Base):
    names = []
    def __init_subclass__(cls, *, name, **kwargs):
        cls.names.append(name)

class Net(Registered, name="net"):
    def forward(self, x):
        return F.relu(self.l0(x))
""",
        tmp_path,
    )
    assert len(assert_right_or_refused(space["Net"], torch.randn(3, 4))) == 1
    assert space["Net"].names == ["net"]  # type: ignore[attr-defined]


# What names an activation without a plain call of it: it is replaced, or listed with a reason.
LISTED = {
    "chosen by a switch": "act = F.relu if self.flag else F.gelu\n        return act(self.l0(x))",
    "chosen by the mode": "act = F.relu if self.training else F.gelu\n        return act(self.l0(x))",
    "bound twice": "act = F.relu\n        y = act(self.l0(x))\n        act = F.gelu\n        return act(y)",
    "default": "return act(self.l0(x))",
    "closure": "return self.closed(self.l0(x))",
    "class method": "return self.by_class(self.l0(x))",
    "class method of two": "return self.of_two(self.l0(x), x)",
    "callable object": "return self.called(self.l0(x))",
    "table by attribute": "return TABLE[self.kind](self.l0(x))",
    "table by argument": "return TABLE[kind](self.l0(x))",
    "name by argument": "return getattr(F, kind)(self.l0(x))",
    "method by name": "return getattr(self.l0(x), 'relu')()",
    "property by mode": "return self.chosen(self.l0(x))",
    "handed on": "return sum(map(F.relu, (self.l0(x), x)))",
    "helper": "return apply(F.relu, self.l0(x))",
    "helper that another chooses": "return chosen(None, squashed)(self.l0(x))",
    "helper that another takes": "return apply(squashed, self.l0(x))",
    "autograd": "return Straight.apply(self.l0(x))",
    "made anew": "return Custom()(self.l0(x))",
    "tensor method": "return torch.Tensor.relu(self.l0(x))",
    "unbound": "return Base2.forward(self, self.l0(x))",
}


@pytest.mark.parametrize("name", LISTED)
def test_every_activation_is_replaced_or_listed(name: str, tmp_path: Path) -> None:
    net = imported(
        f"""
TABLE = {{"relu": F.relu, "gelu": F.gelu}}

def closed(f):
    return Closed(f)

def squashed(x):
    return torch.tanh(x / 2) * 2

def chosen(name, default):
    return {{}}.get(name, default)

class Closed:
    def __init__(self, f):
        self.f = f
    def __call__(self, x):
        return F.relu(x)

class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.relu(x)
    @staticmethod
    def backward(ctx, gradient):
        return gradient

class Custom(nn.Module):
    def forward(self, x):
        return torch.relu(x)

class Base2(Base):
    def forward(self, x):
        return F.relu(x)

class Net(Base2):
    def build(self):
        self.flag, self.kind, self.closed, self.called = True, "relu", closed(F.relu), Closed(None)

    @classmethod
    def by_class(cls, x):
        return F.relu(x)

    @classmethod
    def of_two(cls, x, y):
        return F.relu(x) + y

    @property
    def chosen(self):
        return F.relu if self.training else F.gelu

    def forward(self, x, act=F.relu, kind="gelu"):
        {LISTED[name]}
""",
        tmp_path,
    )["Net"]
    assert_right_or_refused(net, torch.randn(3, 4), by_name=False)


def test_uncalled_activation_is_not_replaced(tmp_path: Path) -> None:
    net = imported(
        """
class Net(Base):
    def build(self):
        self.act, self.fn, self.unused = nn.ReLU(), F.gelu, nn.Sequential(nn.Linear(4, 4), nn.SiLU())

    def forward(self, x):
        return torch.tanh(self.l0(x))
""",
        tmp_path,
    )["Net"]
    model = net()
    assert list(assert_right_or_refused(net, torch.randn(3, 4))) == ["l0_tanh"]
    hullo.replace_activations(model, example_inputs=torch.randn(3, 4))
    listed = [site for site in hullo.summary(model).not_replaced if "did not run" in site.reason]
    assert [site.name for site in listed] == ["act", "unused.1"]


def test_parametrized_and_lazy_modules_are_not_replaced() -> None:
    layer = nn.Linear(4, 4)
    nn.utils.parametrize.register_parametrization(layer, "weight", nn.Tanh())
    for inputs in (None, torch.randn(2, 4)):
        model = hullo.replace_activations(nn.Sequential(copy.deepcopy(layer), nn.ReLU()), example_inputs=inputs)
        assert list(hullo.summary(model).hulls) == ["1"]
    assert [site.reason for site in hullo.summary(model).not_replaced] == ["it parametrizes a weight"]
