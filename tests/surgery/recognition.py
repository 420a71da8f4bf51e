"""Functions and assertions for the tests of recognition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn

from hullo.surgery.recognize import Reading, read_function, read_module

Function = Callable[[Tensor], Tensor]

PLAIN: dict[str, Function] = {
    "relu": F.relu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu,
    "tanh": torch.tanh, "leaky_relu(0.2)": lambda x: F.leaky_relu(x, 0.2), "elu(0.5)": lambda x: F.elu(x, 0.5),
    "mish": F.mish, "hardswish": F.hardswish, "selu": F.selu, "sigmoid": torch.sigmoid, "softsign": F.softsign,
}  # fmt: skip
plain = st.sampled_from(list(PLAIN.items())).filter(lambda item: item[0] != "sigmoid")
magnitudes = st.floats(1.7, 30).map(lambda exponent: 10**exponent)


class Wrapped(nn.Module):
    """Call a function, as an activation module that a user wrote."""

    def __init__(self, function: Function, **attributes: Any) -> None:
        super().__init__()
        self.function = function
        self.__dict__.update(attributes)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def readings(function: Function) -> list[Reading | None]:
    return [read_function(function), read_module(Wrapped(function))]


def assert_refused(function: Function, named: str = "") -> None:
    for reading in readings(function):
        assert reading is None or reading.known is None
        assert named in (reading.reason if reading else "")


def assert_is_no_activation(function: Function) -> None:
    assert readings(function) == [None, None]


def assert_recognized(function: Function, name: str) -> None:
    for reading in readings(function):
        assert reading is not None, name
        assert reading.known is not None, reading.reason
        assert reading.known.name == name
