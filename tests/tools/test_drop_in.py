"""Test the steps of tools/drop_in.py: a sound model passes all of them, and the first that fails is named."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hullo

FOLD, REPLACE, RESTORE = hullo.fold, hullo.replace_activations, hullo.restore


@pytest.fixture
def drop_in(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "tools"))
    return importlib.import_module("drop_in")


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))


class Branches(Net):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 1e9 else super().forward(x)


def words(drop_in: Any, build: Callable[[], nn.Module] = Net) -> list[str]:
    hulls, said = drop_in.examine(drop_in.Case("tests", "net", build, lambda: (torch.randn(5, 4),)))
    assert hulls == 1
    assert len(said) == len(drop_in.STEPS)
    return said


def test_a_sound_model_passes_all_steps(drop_in: Any) -> None:
    assert words(drop_in) == ["yes"] * 6


@pytest.mark.filterwarnings("ignore")
def test_a_model_that_cannot_be_exported_before_is_not_exported_after(drop_in: Any) -> None:
    assert words(drop_in, Branches) == ["yes"] * 5 + ["-"]


def _moved(model: nn.Module, **_: Any) -> nn.Module:
    REPLACE(model)
    model[0].bias.data += 1  # type: ignore[index]
    return model


def _frozen(model: nn.Module, **_: Any) -> nn.Module:
    REPLACE(model)
    model[1].requires_grad_(False)  # type: ignore[index]
    return model


def _not_loaded(model: nn.Module, state: Any) -> nn.Module:
    model = RESTORE(model, state)
    model.load_state_dict = lambda _: None  # type: ignore[method-assign, assignment]
    return model


def _folded_otherwise(model: nn.Module, **_: Any) -> nn.Module:
    model = copy.deepcopy(model)
    model[2].bias.data += 1  # type: ignore[index]
    return FOLD(model)


@pytest.mark.parametrize(
    ("name", "function", "step"),
    [
        ("replace_activations", _moved, 0),
        ("replace_activations", _frozen, 1),
        ("restore", _not_loaded, 3),
        ("fold", lambda model, **_: model, 4),
        ("fold", _folded_otherwise, 4),
    ],
)
def test_the_first_step_that_fails_has_the_error_and_no_other_follows(
    drop_in: Any, monkeypatch: pytest.MonkeyPatch, name: str, function: Any, step: int
) -> None:
    monkeypatch.setattr(hullo, name, function)
    said = words(drop_in)
    assert said[:step] == ["yes"] * step
    assert "Error: " in said[step]
    assert said[step + 1 :] == ["-"] * (5 - step)
