"""The kernel takes the steps of RMSprop's formula, each parameter and member at its own rate."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

from hullo.lab.kernels.flat import Layout, move  # noqa: E402
from hullo.lab.kernels.rmsprop import rule  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")  # by the interpreter

SETTINGS = {"decay": 0.25, "rho": 0.75, "epsilon": 0.125}


@pytest.fixture
def layout() -> Layout:
    return Layout([torch.zeros(2, 700, device=DEVICE), torch.zeros(2, 3, device=DEVICE)], members=2)


def test_it_takes_the_steps_of_the_formula(layout: Layout) -> None:
    values, squares = layout.buffer(torch.float32), layout.buffer(torch.float32)
    rates, scales = torch.tensor([0.5, 2.0], device=DEVICE), torch.tensor([[1.0, 1.0], [3.0, 5.0]], device=DEVICE)
    w = [view.double() for view in layout.views(values)]
    v = [torch.zeros_like(each) for each in w]
    for updates in range(3):
        gradients = [torch.randn(each.shape, device=DEVICE) for each in w]
        count = torch.tensor(updates, device=DEVICE)
        move(layout, values, squares, gradients, rates=rates, scales=scales, rule=rule(count, **SETTINGS))
        for i, g in enumerate(gradients):
            v[i] = 0.75 * v[i] + 0.25 * g.double() ** 2
            rate = (scales[i] * rates)[:, None].double() / (1 + 0.25 * updates)
            w[i] = w[i] - rate * g / (v[i].sqrt() + 0.125)
        for found, expected in zip(layout.views(values), w, strict=True):
            torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-6)
    for found, expected in zip(layout.views(squares), v, strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-6)


def test_gradients_that_do_not_fit_are_refused(layout: Layout) -> None:
    values, squares = layout.buffer(torch.float32), layout.buffer(torch.float32)
    how = {"rates": torch.ones(2), "scales": torch.ones(2, 2), "rule": rule(torch.tensor(0), **SETTINGS)}
    with pytest.raises(ValueError, match="2 parameters need as many gradients, got 1"):
        move(layout, values, squares, [torch.zeros(2, 700)], **how)
    with pytest.raises(ValueError, match=r"float32 or bfloat16 of that shape, got torch\.float64"):
        move(layout, values, squares, [torch.zeros(2, 700), torch.zeros(2, 3).double()], **how)
