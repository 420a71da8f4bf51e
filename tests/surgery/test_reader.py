"""Test that every call of an activation is found or reported."""

from __future__ import annotations

import functools
import linecache
import types
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from models_to_swap import FUNCTIONAL_SITES, Block, Child, FunctionalNet, Parent, assert_replaced, swish
from torch import Tensor, nn

import hullo


def block(x: Tensor, layer: nn.Module) -> Tensor:
    return F.relu(layer(x))


def positions(x: Tensor) -> Tensor:
    return torch.cat([x.sin(), x.cos()], -1)


class Encoded(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x) + positions(x).mean()


def test_helper_is_listed_with_the_function_it_calls() -> None:
    left = hullo.summary(hullo.replace_activations(Encoded())).not_replaced
    assert [(site.function, "positions calls sin" in site.reason) for site in left] == [("sin", True)]


def test_functions_called_in_forward_become_hulls() -> None:
    model = FunctionalNet()
    assert_replaced(model, torch.randn(4, 3, 8, 8), hulls=FUNCTIONAL_SITES)
    assert hullo.summary(model).not_replaced == ()


def test_in_place_module_called_twice_becomes_two_in_place_hulls() -> None:
    assert_replaced(Block(), torch.randn(5, 6), hulls=["relu", "relu_2"])


def test_module_with_several_names_becomes_several_hulls() -> None:
    act = nn.Tanh()
    model = nn.Sequential(nn.Linear(4, 4), act, nn.Linear(4, 4), act, nn.Sequential(nn.Linear(4, 4), act))
    assert_replaced(model, torch.randn(3, 4), hulls=["1", "3", "4.1"])


class Looped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.ModuleList(nn.Linear(4, 4) for _ in range(2)) for _ in range(2))
        self.act = nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        for group in self.blocks:
            for layer in group:
                x = self.act(layer(x))
        return torch.stack([F.elu(layer(x)) for layer in self.blocks[0]]).sum(0)


def test_call_in_a_loop_over_submodules_becomes_one_hull_per_iteration() -> None:
    hulls = ["act.0_0", "act.0_1", "act.1_0", "act.1_1", "elu_1.0", "elu_1.1"]
    assert_replaced(Looped(), torch.randn(3, 4), hulls=hulls)


def test_helper_methods_and_super_get_hulls_per_call_site() -> None:
    hulls = ["tanh_1", "silu_1", "silu_2", *(f"leaky_relu_{n}" for n in range(1, 5))]
    model = Child()
    assert_replaced(model, torch.randn(3, 4), hulls=hulls)
    result = hullo.summary(model).hulls
    slopes = [result[f"leaky_relu_{n}"].coefficients[0].item() for n in range(1, 5)]
    assert slopes == pytest.approx([0.1, 0.3, 0.1, 0.3])


RELU = nn.ReLU()


class Loose(nn.Module):
    """Activations outside of the model, in unusual places."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.kinds = {"elu": F.elu, "gelu": nn.GELU()}
        self.act = lambda x: swish(x)
        self.kind, self.last = "elu", "mish"
        self.early = False

    def forward(self, x: Tensor) -> Tensor:
        if self.early:
            return F.selu(x)
        x = nn.LeakyReLU(negative_slope=0.3)(self.layer(x))
        x = RELU(self.layer(x + 1)) + self.kinds["gelu"](x) + self.kinds[self.kind](x)
        return self.act(self.layer(x)) + getattr(F, self.last)(input=x)


def test_activations_outside_of_the_model_are_found() -> None:
    model = Loose()
    assert_replaced(model, torch.randn(3, 4), hulls=["leaky_relu_1", "relu_1", "gelu_1", "elu_1", "act", "mish_1"])
    (left,) = hullo.summary(model).not_replaced
    assert (left.function, "does not run" in left.reason) == ("selu", True)


class Shares(nn.Module):
    """A module without weights around an activation, used twice; and one with weights, shared on purpose."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Sequential(nn.ReLU(), nn.Dropout(0.1))
        self.block = nn.Sequential(nn.Linear(4, 4), nn.GELU())

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.block(self.drop(self.block(x))))


def test_activation_is_shared_only_if_weights_are() -> None:
    model = hullo.replace_activations(Shares())
    assert list(hullo.summary(model).hulls) == ["block.1"]
    (left,) = hullo.summary(model).not_replaced
    assert left.name == "drop.0"
    assert "without weights that is used more than once" in left.reason


class Alternating(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.acts = nn.ModuleList([nn.ReLU(), nn.Tanh()])
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for i, layer in enumerate(self.layers):
            x = self.acts[i % 2](layer(x))
        return x


def test_modules_alternating_in_a_loop_are_reported() -> None:
    with pytest.raises(ValueError, match="changes between iterations of a loop"):
        hullo.replace_activations(Alternating())


class Recurrent(nn.Module):
    """Activations that cannot be replaced, and a loop whose length depends on the input."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.lstm = nn.Linear(4, 4), nn.LSTM(4, 4)
        self.act, self.random, self.final = nn.Tanh(), nn.RReLU(), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        slope = float(x.mean())
        for _ in range(x.shape[0]):
            x = self.act(F.relu(self.cell(x)))
        x = F.leaky_relu(x, slope)
        x = block(x, self.cell)
        x = torch.sigmoid(self.random(x))
        values = list(map(F.elu, x))
        local = F if slope > 0 else torch
        return self.final(local.relu(self.lstm(torch.stack(values))[0]))

    def unused(self, x: Tensor) -> Tensor:
        return F.silu(x)


def test_irreplaceable_activations_are_reported() -> None:
    model, x = Recurrent().eval(), torch.randn(3, 4)
    before = model(x)
    hullo.replace_activations(model)
    torch.testing.assert_close(model(x), before)
    summary = hullo.summary(model)
    assert list(summary.hulls) == ["act", "final", "relu_1"]
    why = {site.function: site.reason for site in summary.not_replaced}
    assert "arguments depend on the input" in why["F.leaky_relu"]
    assert "block calls relu" in why["block"]
    assert "training and evaluation" in why["RReLU"]
    assert "fused kernel" in why["LSTM"]
    assert "not called here" in why["F.elu"]
    assert "local is not known" in why["local.relu"]
    assert why["silu"] == "forward does not call unused"
    assert why["sigmoid"] == ""
    for text in ("final", "affine(identity,relu,tanh)", "0 1 0", "ReLU", "replaced only if named in functions"):
        assert text in str(summary)


def test_code_without_source_is_reported_and_its_modules_replaced() -> None:
    space: dict[str, type[nn.Module]] = {}
    source = """
from torch import nn
import torch.nn.functional as F
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.once, self.twice = nn.ReLU(), nn.ReLU()
    def forward(self, x):
        return F.gelu(self.twice(self.twice(self.once(x))))
"""
    exec(compile(source, "<nowhere>", "exec"), space)
    model = hullo.replace_activations(space["Net"]())
    summary = hullo.summary(model)
    assert list(summary.hulls) == ["once"]
    assert {site.name: site.function for site in summary.not_replaced} == {"twice": "relu", "": "calls of functions"}


def test_changed_source_is_not_used(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "changing.py"
    text = "import torch\nclass Net(torch.nn.Sequential):\n    def forward(self, x):\n        return torch.relu(x)\n"
    path.write_text(text)
    module = types.ModuleType("changing")
    module.__file__ = str(path)
    exec(compile(text, str(path), "exec"), vars(module))
    path.write_text(text.replace("torch.relu(x)", "torch.tanh(x) + 1"))
    linecache.checkcache()
    with pytest.raises(ValueError, match="source code does not match"):
        hullo.replace_activations(module.Net(nn.Linear(2, 2)))


def test_functions_of_a_traced_graph_are_reported() -> None:
    model = torch.fx.symbolic_trace(nn.Sequential(nn.ReLU(), Parent()))
    hullo.replace_activations(model)
    summary = hullo.summary(model)
    assert list(summary.hulls) == ["0"]
    assert [site.function for site in summary.not_replaced] == ["calls of functions"]


def passed_through(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*given: Any) -> Any:
        return function(*given)

    return wrapper


@passed_through
def total(x: Tensor) -> Tensor:
    return F.softplus(x).sum(-1, keepdim=True)


class Totals(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.act = nn.Linear(4, 4), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return total(self.act(self.layer(x)))


def test_decorated_helper_is_listed_with_the_function_it_calls() -> None:
    summary = hullo.summary(hullo.replace_activations(Totals()))
    assert list(summary.hulls) == ["act"]
    (left,) = summary.not_replaced
    assert left.function == "softplus"
    assert "total calls softplus" in left.reason
