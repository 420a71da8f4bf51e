"""combine refuses what it cannot serve, and says what is valid."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import hullo


class TestRefusals:
    @pytest.mark.parametrize(
        "x", [torch.arange(3), torch.tensor([True]), torch.randn(3, dtype=torch.complex64), 1.0, None]
    )
    def test_an_input_that_is_no_floating_point_tensor(self, x: object) -> None:
        with pytest.raises(TypeError, match=r"x must be a floating-point tensor, got .*; for integers call") as refusal:
            hullo.combine(x, torch.ones(1), ["relu"])  # type: ignore[arg-type]
        assert str(x.dtype if isinstance(x, Tensor) else type(x).__name__) in str(refusal.value)

    @pytest.mark.parametrize("c", [[0.5, 0.5], torch.tensor([1, 0]), None, 0.5])
    def test_coefficients_that_are_no_floating_point_tensor(self, c: object) -> None:
        with pytest.raises(
            TypeError, match=r"coefficients must be a floating-point tensor, got (list|torch.int64|No|fl)"
        ):
            hullo.combine(torch.randn(3), c, ["relu", "tanh"])  # type: ignore[arg-type]

    @pytest.mark.parametrize("shape", [(), (3,), (1,), (2, 3), (4, 1, 2), (0,)])
    def test_coefficients_of_the_wrong_shape(self, shape: tuple[int, ...]) -> None:
        with pytest.raises(ValueError, match=r"for 2 bases have shape \(2,\) or \(groups, 2\), got") as refusal:
            hullo.combine(torch.randn(3, 4), torch.ones(shape), ["relu", "tanh"])
        assert str(shape) in str(refusal.value)

    def test_channels_that_do_not_fall_into_the_groups(self) -> None:
        with pytest.raises(ValueError, match=r"7 channels \(dimension 1 of \(2, 7\)\) do not fall into 3 equal groups"):
            hullo.combine(torch.randn(2, 7), torch.ones(3, 1), ["relu"])
        with pytest.raises(ValueError, match=r"2 channels \(dimension -2 of \(2, 6\)\) do not fall into 3"):
            hullo.combine(torch.randn(2, 6), torch.ones(3, 1), ["relu"], channel_dim=-2)

    @pytest.mark.parametrize(("shape", "dim"), [((), 1), ((6,), 1), ((2, 6), 2), ((2, 6), -3)])
    def test_a_channel_dimension_that_is_not_there(self, shape: tuple[int, ...], dim: int) -> None:
        with pytest.raises(ValueError, match=f"has no dimension {dim} for 3 groups of channels"):
            hullo.combine(torch.randn(shape), torch.ones(3, 1), ["relu"], channel_dim=dim)

    def test_coefficients_on_another_device(self) -> None:
        class Elsewhere(torch.Tensor):
            device = torch.device("cuda", 1)  # type: ignore[assignment]

        c = torch.ones(1).as_subclass(Elsewhere)
        with pytest.raises(ValueError, match=r"x is on cpu and the coefficients on cuda:1; move both to one device"):
            hullo.combine(torch.randn(3), c, ["relu"])

    def test_a_backend_that_does_not_exist_or_cannot_serve(self) -> None:
        x, c = torch.randn(3), torch.ones(1)
        with pytest.raises(ValueError, match="unknown backend 'gpu'; there are 'reference', 'cpu'"):
            hullo.combine(x, c, ["relu"], backend="gpu")
        with pytest.raises(ValueError, match=r"'cpu' .*CPU tensors, and x is on meta; use backend='reference'"):
            hullo.combine(x.to("meta"), c.to("meta"), ["relu"], backend="cpu")

    @pytest.mark.parametrize(
        ("bases", "said"),
        [
            ([], "at least one"),
            (["relu", "relu"], "more than once"),
            (["identity", "relu", "leaky_relu"], "linear comb"),
        ],
    )
    def test_a_set_of_bases_without_sense(self, bases: list[str], said: str) -> None:
        with pytest.raises(ValueError, match=said):
            hullo.combine(torch.randn(3), torch.ones(len(bases)), bases)

    @pytest.mark.gpu
    def test_coefficients_on_the_cpu_for_an_input_on_the_gpu(self) -> None:
        with pytest.raises(ValueError, match="x is on cuda:0 and the coefficients on cpu; move both to one device"):
            hullo.combine(torch.randn(3, device="cuda"), torch.ones(1), ["relu"])
