"""Test that functions with side effects or state are refused, and that recognition has no side effects."""

from __future__ import annotations

import copy
import logging
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from recognition import Function, assert_refused, plain
from torch import Tensor, nn

from hullo.surgery.recognize import read_function, read_module


class Stateful(nn.Module):
    def __init__(self, function: Function, kind: str) -> None:
        super().__init__()
        self.function, self.kind = function, kind
        self.calls, self.seen, self.last = 0, [], torch.zeros(1)

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "counts":
            self.calls += 1
        if self.kind == "collects":
            self.seen.append(x.shape)
        if self.kind == "keeps":
            self.last = x.detach()
        if self.kind == "writes":
            self.last += 1
        if self.kind == "sets":
            self.other = True
        return self.function(x)


@given(plain, st.sampled_from(["counts", "collects", "keeps", "writes", "sets"]))
def test_stateful_modules_are_rejected_and_unchanged(item: tuple[str, Function], kind: str) -> None:
    module = Stateful(item[1], kind)
    before = copy.deepcopy(vars(module))
    reading = read_module(module)
    assert reading is None or reading.known is None
    assert vars(module).keys() == before.keys()
    assert (module.calls, module.seen, module.last.tolist()) == (0, [], [0.0])


CALLS = 0
SEEN: list[Any] = []
TABLE: dict[str, Any] = {"calls": 0}


class Shared(nn.Module):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        type(self).calls += 1
        return F.relu(x)


def test_variables_of_a_function_are_restored(caplog: pytest.LogCaptureFixture) -> None:
    count, total = 0, torch.zeros(2)

    def with_global(x: Tensor) -> Tensor:
        global CALLS
        CALLS += 1
        return F.relu(x)

    def with_nonlocal(x: Tensor) -> Tensor:
        nonlocal count
        count += 1
        return F.relu(x)

    def with_tensor(x: Tensor) -> Tensor:
        total.add_(1)
        return F.relu(x)

    def with_table(x: Tensor) -> Tensor:
        TABLE["calls"] += 1
        TABLE["last"] = x
        return F.relu(x)

    def with_log(x: Tensor) -> Tensor:
        logging.getLogger("activation").warning("called")
        return F.relu(x)

    def with_list(x: Tensor) -> Tensor:
        SEEN.append(x)
        return F.relu(x)

    for function in (with_global, with_nonlocal, with_tensor, with_table, with_list):
        assert_refused(function)
    reading = read_module(Shared())
    assert reading is not None
    assert reading.known is None
    read_function(with_log)
    assert (CALLS, count, total.tolist(), TABLE, SEEN, Shared.calls) == (0, 0, [0.0, 0.0], {"calls": 0}, [], 0)
    assert not caplog.records


RANDOM: dict[str, Callable[[Function, Tensor], Tensor]] = {
    "noise": lambda f, x: f(x) + 1e-3 * torch.randn_like(x),
    "noise in training": lambda f, x: f(x) * (1 + 1e-3 * torch.rand_like(x)),
    "dropout": lambda f, x: F.dropout(f(x), 0.1),
    "seldom": lambda f, x: f(x) if float(torch.rand(())) < 0.9999 else -f(x),
    "Python's": lambda f, x: f(x) if random.random() < 0.9999 else -f(x),
    "NumPy's": lambda f, x: f(x) if np.random.rand() < 0.9999 else -f(x),
}


@given(plain, st.sampled_from(list(RANDOM)))
def test_random_functions_are_rejected_without_changing_rng(item: tuple[str, Function], kind: str) -> None:
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    assert_refused(lambda x: RANDOM[kind](item[1], x))
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert np.random.get_state()[1].tolist() == states[2]


def test_printing_function_is_rejected_silently(capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(lambda x: (print("called"), F.relu(x))[1], "prints")
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("training", [False, True])
def test_mode_dependent_module_is_rejected(training: bool) -> None:
    class Moody(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.relu(x) if self.training == training else F.leaky_relu(x, 1e-3)

    reading = read_module(Moody())
    assert reading is not None
    assert reading.known is None
    assert "training" in reading.reason
