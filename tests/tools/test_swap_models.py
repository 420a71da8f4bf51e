"""Test the checks of tools/swap_models: a correct replacement passes, each kind of error is found."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import hullo

REPLACE, SUMMARY = hullo.replace_activations, hullo.summary


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "tools" / "swap_models"))
    return importlib.import_module("checks")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.second = nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.second(self.act(self.first(x))))


class NoActivation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.only = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.only(x)  # type: ignore[no-any-return]


def _judge(checks: Any, build: Callable[[], nn.Module]) -> Any:
    return checks.examine(checks.Case("tests", "net", build, lambda: (torch.randn(5, 4),)))


def test_correct_replacement_is_right(checks: Any) -> None:
    result = _judge(checks, Net)
    assert (result.verdict, result.hulls, result.wrong) == ("right", 2, [])


def test_model_without_activations_is_refused(checks: Any) -> None:
    result = _judge(checks, NoActivation)
    assert result.verdict == "refused"
    assert "no activation" in result.refusal


class TwoHulls(nn.Module):
    """One hull for training and another for evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = (hullo.AffineHull("identity", "gelu", init="gelu", strict=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return (self.one if self.training else self.other)(x)  # type: ignore[no-any-return]


def _another_function(model: nn.Module, **_: Any) -> nn.Module:
    model = REPLACE(model)
    model.act.coefficients = "identity"  # type: ignore[union-attr]
    return model


def _two_for_two_modes(model: nn.Module, **_: Any) -> nn.Module:
    model.act = TwoHulls().double()
    return model


def _twice(model: nn.Module, **_: Any) -> nn.Module:
    model = REPLACE(model)
    model.second = nn.Sequential(hullo.AffineHull("identity", "relu", init="identity").double(), model.second)
    return model


def _never_called(model: nn.Module, **_: Any) -> nn.Module:
    model = REPLACE(model)
    model.unused = hullo.AffineHull("identity", "relu")
    return model


def _without_gradient(model: nn.Module, **_: Any) -> nn.Module:
    model = REPLACE(model)
    model.act.raw.requires_grad_(False)  # type: ignore[union-attr]
    return model


def _crash(model: nn.Module, **_: Any) -> nn.Module:
    raise KeyError("act")


def _error_of_others(model: nn.Module, **_: Any) -> nn.Module:
    raise ValueError("not raised by hullo")


def _refused_with_hulls(model: nn.Module, **_: Any) -> nn.Module:
    REPLACE(model)
    return REPLACE(NoActivation())


def _refused_with_other_weights(model: nn.Module, **_: Any) -> nn.Module:
    model.first.weight.data.mul_(2)  # type: ignore[union-attr, operator]
    return REPLACE(NoActivation())


def _another_gradient(model: nn.Module, **options: Any) -> nn.Module:
    model.first.weight.register_hook(lambda gradient: 2 * gradient)  # type: ignore[union-attr, operator]
    return REPLACE(model, **options)


def _frozen_weight(model: nn.Module, **options: Any) -> nn.Module:
    model.second.bias.requires_grad_(False)  # type: ignore[union-attr, operator]
    return REPLACE(model, **options)


def _renamed(model: nn.Module, **options: Any) -> nn.Module:
    model.second = nn.Sequential(model.second)  # type: ignore[arg-type]
    return REPLACE(model, **options)


def _not_copied(model: nn.Module, **options: Any) -> nn.Module:
    model = REPLACE(model, **options)
    other = copy.deepcopy(model)
    model.__deepcopy__ = lambda memo: other  # type: ignore[assignment]
    return model


def _not_saved(model: nn.Module, **options: Any) -> nn.Module:
    model = REPLACE(model, **options)
    start = copy.deepcopy(model.act.state_dict(prefix="act."))  # type: ignore[union-attr, operator]
    model.register_state_dict_post_hook(lambda _, state, *__: state.update(start))
    return model


@pytest.mark.parametrize(
    ("replace", "actual"),
    [
        (_another_function, "outputs differ"),
        (_two_for_two_modes, "training against evaluation"),
        (_twice, "activations ran before"),
        (_never_called, "never called: unused"),
        (_without_gradient, "without a gradient: act"),
        (_crash, "KeyError"),
        (_error_of_others, "ValueError: not raised by hullo"),
        (_refused_with_hulls, "refused, yet it has hulls"),
        (_refused_with_other_weights, "after a refusal, eval: outputs differ"),
        (_another_gradient, "gradient of first.weight differs"),
        (_frozen_weight, "before the swap or after it alone: second.bias"),
        (_renamed, "lost or renamed: second.weight"),
        (_not_copied, "deepcopy: outputs differ"),
        (_not_saved, "state_dict: outputs differ"),
    ],
)
def test_incorrect_replacement_is_wrong(
    checks: Any, monkeypatch: pytest.MonkeyPatch, replace: Callable[..., nn.Module], actual: str
) -> None:
    monkeypatch.setattr(hullo, "replace_activations", replace)
    result = _judge(checks, Net)
    assert result.verdict == "wrong"
    assert any(actual in line for line in result.wrong), result.wrong


def test_fold_of_other_coefficients_is_wrong(checks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fold = hullo.fold

    def fold_start(model: nn.Module) -> nn.Module:
        model = copy.deepcopy(model)
        model.act.coefficients = "gelu"  # type: ignore[union-attr]
        return fold(model)

    monkeypatch.setattr(hullo, "fold", fold_start)
    result = _judge(checks, Net)
    assert [line.partition(" by")[0] for line in result.wrong] == ["fold: outputs differ"]


def test_unlisted_activation_is_wrong(checks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hullo, "replace_activations", lambda model, **_: REPLACE(model, where="act"))
    assert _judge(checks, Net).verdict == "partly"
    monkeypatch.setattr(hullo, "summary", lambda model: type(SUMMARY(model))(SUMMARY(model).hulls, ()))
    result = _judge(checks, Net)
    assert any("neither replaced nor listed" in line and "tanh" in line for line in result.wrong), result.wrong


def test_activation_that_runs_and_is_listed_as_idle_is_wrong(checks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def claim(model: nn.Module) -> Any:
        found = SUMMARY(model)
        idle = [dataclasses.replace(site, reason="it did not run on example_inputs") for site in found.not_replaced]
        return type(found)(found.hulls, tuple(idle))

    monkeypatch.setattr(hullo, "replace_activations", lambda model, **_: REPLACE(model, where="act"))
    monkeypatch.setattr(hullo, "summary", claim)
    result = _judge(checks, Net)
    assert any("neither replaced nor listed" in line and "tanh" in line for line in result.wrong), result.wrong


class Swish(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Sigmoid()

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(x)  # type: ignore[no-any-return]


def test_activation_with_a_child_counts_once(checks: Any) -> None:
    result = _judge(checks, lambda: nn.Sequential(nn.Linear(4, 6), Swish(), nn.Linear(6, 3)))
    assert (result.verdict, result.hulls, result.wrong) == ("right", 1, [])


class Draws(nn.Module):
    """Draw from Python's and NumPy's generators, to build the model and to run it."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = random.random() + 1.0
        self.net = Net()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x * self.scale + np.random.rand() + random.random())  # type: ignore[no-any-return]


def test_all_random_numbers_are_repeated(checks: Any) -> None:
    assert _judge(checks, Draws).verdict == "right"


def test_unexpected_error_is_one_line_without_folders(checks: Any, capsys: pytest.CaptureFixture[str]) -> None:
    class Fails(Net):
        def forward(self, x: Tensor) -> Tensor:
            raise FileNotFoundError("no file /some/folder/weights.pt in 1/2\nsecond line")

    result = _judge(checks, Fails)
    assert result.wrong == ["unexpected error: FileNotFoundError: no file weights.pt in 1/2"]
    assert "second line" in capsys.readouterr().err
