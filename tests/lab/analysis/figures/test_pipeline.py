"""The diagram holds the functions themselves, and its two stages make what the hull makes."""

from __future__ import annotations

import numpy as np
import torch

import hullo
from hullo.lab.analysis.figures.pipeline import BASES, HULLS, draw_pipeline


def test_the_boxes_hold_the_base_functions_and_what_comes_out_is_their_convolution() -> None:
    *stage, out = draw_pipeline().axes[0].child_axes
    x = np.linspace(-3, 3, 241)
    for box, expected in zip(stage, (x, np.maximum(x, 0), np.tanh(x)), strict=True):
        drawn_x, drawn_y = box.lines[-1].get_data()
        np.testing.assert_allclose(drawn_x, x, atol=1e-12)
        np.testing.assert_allclose(drawn_y, expected, atol=1e-12)
    stacked = torch.tensor(np.stack([box.lines[-1].get_ydata() for box in stage])).unsqueeze(0)
    for line, coefficients in zip(out.lines[-2:], HULLS.values(), strict=True):
        kernel = torch.tensor(coefficients, dtype=torch.float64).view(1, len(BASES), 1)
        convolved = torch.nn.functional.conv1d(stacked, kernel).flatten()
        np.testing.assert_allclose(line.get_ydata(), convolved.numpy(), atol=1e-12)


def test_the_example_coefficients_are_in_their_hulls_and_show_the_difference() -> None:
    affine, convex = (torch.tensor(HULLS[kind], dtype=torch.float64) for kind in ("affine", "convex"))
    assert not hullo.coefficients.SIMPLEX.describe_violation(convex)
    assert not hullo.coefficients.HYPERPLANE.describe_violation(affine)
    assert hullo.coefficients.SIMPLEX.describe_violation(affine)
    assert hullo.is_monotone(convex, BASES)
    assert not hullo.is_monotone(affine, BASES)
