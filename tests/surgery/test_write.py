"""Test that rewritten code does the same as before."""

from __future__ import annotations

import abc
import copy
import inspect
import pickle

import pytest
import torch
import torch.nn.functional as F
from models_to_swap import Child, FunctionalNet, assert_replaced
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import hullo
from made_hulls import through_torch_save


def test_rewritten_code_keeps_mode_and_arguments() -> None:
    model, x = FunctionalNet(), torch.randn(4, 3, 8, 8)
    old = copy.deepcopy(model)
    assert hullo.replace_activations(model, example_inputs=x) is model
    assert isinstance(model, FunctionalNet)
    for mode in (True, False):
        for offset in (None, torch.tensor(0.5)):
            torch.manual_seed(1)
            expected = old.train(mode)(x, offset)
            torch.manual_seed(1)
            torch.testing.assert_close(model.train(mode)(x, offset=offset), expected, rtol=1e-6, atol=1e-6)


def test_source_of_rewritten_code_is_available() -> None:
    source = inspect.getsource(
        type(hullo.replace_activations(FunctionalNet(), example_inputs=torch.randn(2, 3, 8, 8))).forward
    )
    assert "self.first_relu(self.first(x))" in source
    assert "F.relu" not in source


@pytest.mark.parametrize("way", ["deepcopy", "pickle", "compile"])
def test_rewritten_model_can_be_copied_pickled_and_compiled(way: str) -> None:
    x = torch.randn(4, 3, 8, 8)
    model = hullo.replace_activations(FunctionalNet(), example_inputs=x).eval()
    if way == "deepcopy":
        again = copy.deepcopy(model)
    elif way == "pickle":
        again = through_torch_save(model)
    else:
        again = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(again(x), model(x))
    if way != "compile":
        assert type(again) is type(model)
        again.first_relu.coefficients = [1.0, 0.0, 0.0]
        assert model.first_relu.coefficients.tolist() == [0.0, 1.0, 0.0]


def test_closure_variables_are_kept() -> None:
    factor = 2.0

    class Local(nn.Module, abc.ABC):
        def __init__(self, size: int = 4) -> None:
            super().__init__()
            self.layer = nn.Linear(size, size)

        def forward(self, x: Tensor) -> Tensor:
            return factor * F.relu(self.layer(x))

    model = Local()
    assert_replaced(model, torch.randn(3, 4), hulls=["layer_relu"])
    assert hullo.summary(type(model)(size=3)).hulls == {}  # another one is made as it was


class Chooses(nn.Module):
    """Control flow on values, which tracing cannot follow."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        if x.sum() > 0:
            return F.relu(x)
        return checkpoint(lambda value: value * 2, F.gelu(x), use_reentrant=False)


def both(model: nn.Module, sign: float, x: Tensor) -> Tensor:
    model.layer.bias.data.fill_(9 * sign)
    return model(x)


def test_data_dependent_control_flow_is_kept() -> None:
    model, x = Chooses(), torch.randn(3, 4)
    old = copy.deepcopy(model)
    hullo.replace_activations(model, example_inputs=lambda m: [both(m, sign, x) for sign in (-1.0, 1.0)])
    assert sorted(hullo.summary(model).hulls) == ["layer_gelu", "layer_relu"]
    for sign in (-1.0, 1.0):
        model.layer.bias.data.fill_(9 * sign), old.layer.bias.data.fill_(9 * sign)
        torch.testing.assert_close(model(x), old(x), rtol=1e-6, atol=1e-6)


def test_method_of_a_parent_is_rewritten_where_super_finds_it() -> None:
    model, x = Child().eval(), torch.randn(5, 4)
    before = model(x)
    hullo.replace_activations(model, where=["layer_silu"], example_inputs=x)
    torch.testing.assert_close(model(x), before)
    model.layer_silu.coefficients = "identity"
    assert not torch.allclose(model(x), before)
    assert list(hullo.summary(model).hulls) == ["layer_silu"]


@pytest.mark.parametrize(
    ("make", "first", "shape", "count"), [(FunctionalNet, "*_relu", (3, 8, 8), 7), (Child, "layer_silu", (4,), 2)]
)
def test_model_can_be_replaced_in_several_calls(make, first: str, shape: tuple[int, ...], count: int) -> None:  # type: ignore[no-untyped-def]
    model, x = make().eval(), torch.randn(2, *shape)
    before = model(x)
    hullo.replace_activations(model, where=first, example_inputs=x)
    hullo.replace_activations(model, example_inputs=x)
    torch.testing.assert_close(model(x), before, rtol=1e-6, atol=1e-6)
    assert len(hullo.summary(model).hulls) == count
    torch.testing.assert_close(pickle.loads(pickle.dumps(model))(x), model(x))
