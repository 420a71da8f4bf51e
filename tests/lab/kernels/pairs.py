"""Two populations that start alike: plain operations move one, a kernel moves the other."""

from __future__ import annotations

import copy
from collections.abc import Callable
from unittest import mock

import torch

from hullo.lab import kernels, networks
from hullo.lab.recipes import Optimiser

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROWS = ("affine(identity,relu)", "relu", "convex(identity,tanh)")
RATES, SCALES = (1e-3, 1e-2, 3e-4), (1.0, 3.0, 10.0)


class Pair:
    def __init__(
        self,
        recipe: Callable[..., Optimiser],
        copies: torch.dtype = torch.float32,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        network = networks.build("lenet5", activation=ROWS, members=3, in_channels=1, image_size=16)
        other = copy.deepcopy(network).to(DEVICE)
        self.plain = recipe(network.to(dtype), lr=RATES, coefficient_lr_scale=SCALES)
        with mock.patch.object(kernels, "serve", return_value=True):
            self.fused = recipe(other, lr=RATES, coefficient_lr_scale=SCALES, copies=copies)

    def give(self, size: float = 1.0) -> None:
        """Random gradients for both, of very different sizes from parameter to parameter if so wanted."""
        for name, leaf in self.fused.leaves.items():
            gradient = torch.randn_like(leaf) * size ** torch.randn(()).item()
            leaf.grad = gradient
            parameter = self.plain.parameters[name]
            parameter.grad = gradient.to(parameter)

    def step(self) -> None:
        self.plain.step()
        self.fused.step()

    def check(self, slack: float) -> None:
        """That values and memory are alike, up to a share of a tensor's largest entry."""
        fused, plain = (optimiser.state_dict() | optimiser.parameters for optimiser in (self.fused, self.plain))
        assert fused.keys() == plain.keys()
        for name, expected in plain.items():
            limit = slack * expected.detach().abs().max().item()
            torch.testing.assert_close(fused[name].to(expected), expected, rtol=slack, atol=limit, msg=name)
