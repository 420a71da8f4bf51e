"""Test derivatives of combine, of any order, single and batched."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import hullo
import oracle
from hullo.parametrizations import get_parametrization
from made_hulls import QUARTET, every_hull


class TestDerivatives:
    """In float64 against differences, away from kinks."""

    @staticmethod
    def inputs(parametrization: str, groups: int | None) -> tuple[Tensor, Tensor]:
        x = torch.tensor([[-2.3, 0.7, 1.9, -0.4], [0.2, -1.1, 4.0, -5.0]], dtype=torch.float64)
        rows = torch.tensor([[0.2, 0.3, 0.1, 0.4], [0.4, 0.15, 0.25, 0.2]], dtype=torch.float64)
        raw = get_parametrization(parametrization).inverse(rows if groups else rows[0])
        return x.requires_grad_(), raw.clone().requires_grad_()

    @pytest.mark.parametrize("groups", [None, 2])
    @every_hull
    def test_first_and_second_derivatives_are_correct_for_every_parametrization(
        self, hull: type[hullo.Hull], parametrization: str, groups: int | None
    ) -> None:
        def function(x: Tensor, raw: Tensor) -> Tensor:
            act = hull(*QUARTET, parametrization=parametrization, groups=groups or 1, dtype=torch.float64)
            return torch.func.functional_call(act, {act.raw_name: raw}, (x,))

        inputs = self.inputs(parametrization, groups)
        assert torch.autograd.gradcheck(function, inputs, check_batched_grad=True, check_forward_ad=True)
        assert torch.autograd.gradgradcheck(function, inputs, check_batched_grad=True)

    @pytest.mark.parametrize("name", oracle.CLOSED_FORMS)
    def test_three_derivatives_match_the_oracle(self, name: str) -> None:
        x, _ = self.inputs("given", None)
        c = torch.tensor([0.7], dtype=torch.float64, requires_grad=True)
        results = []
        for function in (hullo.combine, oracle.combine):
            value = function(x, c, [name]).sum()
            chain = [value]
            for _ in range(3):
                slope = torch.zeros_like(x)  # that of a constant
                if value.requires_grad:
                    (slope,) = torch.autograd.grad(
                        value, x, create_graph=True, allow_unused=True, materialize_grads=True
                    )
                value = slope.sum()
                chain += [slope, value]
            results.append(chain)
        for actual, expected in zip(*results, strict=True):
            torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-7)

    def test_gradient_penalty_reaches_the_coefficients(self) -> None:
        x, c = self.inputs("given", 2)
        results = []
        for function in (hullo.combine, oracle.combine):
            (slope,) = torch.autograd.grad(function(x, c, QUARTET).sum(), x, create_graph=True)
            results.append(torch.autograd.grad(slope.square().sum(), (x, c)))
        for actual, expected in zip(*results, strict=True):
            torch.testing.assert_close(actual, expected)

    def test_batched_gradients_match_single_ones(self) -> None:
        x, c = self.inputs("given", 2)
        y = hullo.combine(x, c, QUARTET)
        upstream = torch.randn(5, *y.shape, dtype=torch.float64)
        together = torch.autograd.grad(y, (x, c), upstream, is_grads_batched=True, retain_graph=True)
        for k in range(5):
            for actual, expected in zip(
                together, torch.autograd.grad(y, (x, c), upstream[k], retain_graph=True), strict=True
            ):
                torch.testing.assert_close(actual[k], expected)
