"""The kernel takes the steps of Caffe's formula, each parameter and member at its own rate and decay."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

from hullo.lab.kernels.flat import Layout, move  # noqa: E402
from hullo.lab.kernels.sgd import rule  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")  # by the interpreter


def test_it_takes_the_steps_of_the_formula() -> None:
    starts = [torch.randn(shape, device=DEVICE) for shape in ((2, 700), (2, 3), (2, 1025))]
    layout = Layout(starts, members=2)
    values, velocities = layout.buffer(torch.float32), layout.buffer(torch.float32)
    for view, start in zip(layout.views(values), starts, strict=True):
        view.copy_(start)
    scales = torch.tensor([[1.0, 1.0], [2.0, 2.0], [3.0, 5.0]], device=DEVICE)
    decays = torch.tensor([0.5, 0.0, 0.25], device=DEVICE)
    w = [start.double() for start in starts]
    v = [torch.zeros_like(each) for each in w]
    for rates in torch.tensor([[0.5, 0.25], [0.5, 0.25], [0.125, 0.0]], device=DEVICE):
        gradients = [torch.randn(each.shape, device=DEVICE) for each in w]
        move(layout, values, velocities, gradients, rates=rates, scales=scales, rule=rule(decays, momentum=0.75))
        for i, g in enumerate(gradients):
            v[i] = 0.75 * v[i] + (scales[i] * rates)[:, None].double() * (g.double() + decays[i].double() * w[i])
            w[i] = w[i] - v[i]
        for buffer, expected in ((values, w), (velocities, v)):
            for found, each in zip(layout.views(buffer), expected, strict=True):
                torch.testing.assert_close(found.double(), each, rtol=1e-6, atol=1e-6)
