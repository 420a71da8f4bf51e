"""Captures of steps survive what goes on in the process around them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from hullo.population import capture
from hullo.population.graphs import pause_collection


class Node:
    def __init__(self) -> None:
        self.own: Any = self  # only a collection of garbage deletes it


@pytest.fixture
def eager_collection() -> Iterator[None]:
    """Collect garbage at every chance."""
    before = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    yield
    gc.set_threshold(*before)


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
def test_garbage_is_collected_before_a_capture_and_a_collector_that_was_off_stays_off() -> None:
    old = weakref.ref(Node())
    with pause_collection():
        assert old() is None
    assert not gc.isenabled()


@pytest.mark.usefixtures("eager_collection")
def test_garbage_is_not_collected_during_a_capture() -> None:
    with pause_collection():
        new = weakref.ref(Node())
        made = [Node() for _ in range(100)]
        assert new() is not None
    made += [Node() for _ in range(100)]
    assert new() is None


@pytest.mark.gpu
@pytest.mark.usefixtures("eager_collection")
def test_another_graph_may_become_garbage_during_a_capture() -> None:
    x = torch.ones(3, device="cuda")
    other: Any = capture(lambda x: x + 1)
    other(x)
    other.own = other
    kept = [other]
    del other

    def step(x: Tensor) -> Tensor:
        if torch.cuda.is_current_stream_capturing():
            kept.clear()
            assert len([Node() for _ in range(100)]) == 100  # objects enough for a collection
        return x * 2

    assert capture(step)(x).tolist() == [2, 2, 2]
