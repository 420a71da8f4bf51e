"""Test that state which matters only to later calls is refused, and so are numbers of generators."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from function_networks import Net, numbers
from torch import Tensor

from hullo.population import LoweringError, Population


class Counting(Net):
    """Count calls in attributes of the object and of the class."""

    total = 0

    def __init__(self, compute: Callable[..., Any]) -> None:
        super().__init__(compute)
        self.count, self.rate, self.items = 0, 1.0, list[Any]()


def warm_up(net: Any, y: Tensor) -> Tensor:
    net.count += 1
    return y if net.count <= 3 else 2 * y


def skip_some(net: Any, y: Tensor) -> Tensor:
    net.count = net.count + 1
    return 2 * y if net.count % 4 == 0 else y


def decay(net: Any, y: Tensor) -> Tensor:
    net.rate -= 0.1
    return 2 * y if net.rate > 0 else y


def collect(net: Any, y: Tensor) -> Tensor:
    net.items.append(y.detach())
    return y


def count_in_the_class(net: Any, y: Tensor) -> Tensor:
    Counting.total += 1
    return y if Counting.total < 9 else 2 * y


@pytest.mark.parametrize("compute", [warm_up, skip_some, decay, collect, count_in_the_class])
def test_state_that_matters_to_a_later_call_is_refused(compute: Callable[..., Tensor]) -> None:
    network: Any = Counting(lambda net, x: compute(net, net.a(x)))
    with pytest.raises(LoweringError, match=r"changes self\.\w+ in every call, and a later call may depend on it"):
        Population([network])(numbers(1, 5, 4))
    assert (network.count, network.rate, network.items) == (0, 1.0, [])


def test_numbers_that_nothing_depends_on_may_be_counted() -> None:
    def compute(net: Any, x: Tensor) -> Tensor:
        net.count += x.shape[0]
        net.rate = f"{net.count} samples"
        net.largest = max(getattr(net, "largest", 0), x.shape[0])  # is read, and stays as it is
        net.toggled = [1] if getattr(net, "toggled", None) is None else None
        return net.a(x)

    networks, x = [Counting(compute) for _ in range(2)], numbers(2, 5, 4)
    population = Population(networks)
    for _ in range(2):
        torch.testing.assert_close(population(x), torch.stack([n(x) for n, x in zip(networks, x, strict=True)]))


GENERATOR, ARRAYS, OLD = random.Random(0), np.random.default_rng(0), np.random.RandomState(0)


@pytest.mark.parametrize(
    "draw",
    [
        lambda net: net.generator.random(),
        lambda net: GENERATOR.random(),
        lambda net: float(ARRAYS.random()),
        lambda net: OLD.rand(),
    ],
    ids=["attribute", "global", "global of NumPy", "global of the old NumPy"],
)
def test_random_numbers_of_generators_are_refused(draw: Callable[[Any], float]) -> None:
    network: Any = Net(lambda net, x: net.a(x) * net.draw(net))
    network.generator, network.draw = random.Random(0), draw
    with pytest.raises(LoweringError, match="draws random numbers of Python or NumPy"):
        Population([network])(numbers(1, 5, 4))
