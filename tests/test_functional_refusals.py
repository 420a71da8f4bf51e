"""Test that combine rejects unsupported input and says what is valid."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import hullo


class TestRefusals:
    @pytest.mark.parametrize(
        ("x", "remedy"),
        [
            (torch.arange(3), "x.float()"),
            (torch.tensor([True]), "x.float()"),
            (torch.randn(3, dtype=torch.complex64), "torch.view_as_real(x)"),
            ([1.0, 2.0], "torch.as_tensor(x)"),
            (1.0, "torch.as_tensor(x)"),
            (None, "torch.as_tensor(x)"),
        ],
    )
    def test_non_floating_point_input_is_rejected(self, x: object, remedy: str) -> None:
        given = f"one of {x.dtype}" if isinstance(x, Tensor) else type(x).__name__
        with pytest.raises(TypeError, match=f"x must be a dense floating-point tensor, got {given}") as refusal:
            hullo.combine(x, torch.ones(1), ["relu"])  # type: ignore[arg-type]
        assert remedy in str(refusal.value)

    @pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch._mkldnn])
    @pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
    def test_sparse_input_is_rejected(self, layout: torch.layout) -> None:
        x, act = torch.eye(3), hullo.AffineHull("identity", "relu", "tanh")
        other = x.to_mkldnn() if layout is torch._mkldnn else x.to_sparse(layout=layout)
        with pytest.raises(TypeError, match=rf"{layout}; .* x.to_dense\(\)"):
            act(other)
        assert torch.equal(act(other.to_dense()), act(x))

    @pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
    @pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
    def test_nested_input_is_rejected(self, layout: torch.layout) -> None:
        x = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)], layout=layout)
        with pytest.raises(TypeError, match=r"got a nested one; .* torch.nested.to_padded_tensor\(x, 0.0\)"):
            hullo.combine(x, torch.ones(1), ["relu"])
        assert hullo.combine(torch.nested.to_padded_tensor(x, 0.0), torch.ones(1), ["relu"]).sum() == 9

    @pytest.mark.parametrize("c", [[0.5, 0.5], torch.tensor([1, 0]), None, 0.5])
    def test_non_floating_point_coefficients_are_rejected(self, c: object) -> None:
        with pytest.raises(TypeError, match=r"coefficients .* got (list|torch.int64|No|fl)"):
            hullo.combine(torch.randn(3), c, ["relu", "tanh"])  # type: ignore[arg-type]

    @pytest.mark.parametrize("shape", [(), (3,), (1,), (2, 3), (4, 1, 2), (0,)])
    def test_coefficients_of_wrong_shape_are_rejected(self, shape: tuple[int, ...]) -> None:
        with pytest.raises(ValueError, match=r"for 2 bases.*valid are \(2,\) and \(groups, 2\)") as refusal:
            hullo.combine(torch.randn(3, 4), torch.ones(shape), ["relu", "tanh"])
        assert str(shape) in str(refusal.value)

    def test_indivisible_channels_are_rejected(self) -> None:
        with pytest.raises(ValueError, match=r"7 channels \(dimension 1 of \(2, 7\)\) .* 3 equal groups"):
            hullo.combine(torch.randn(2, 7), torch.ones(3, 1), ["relu"])
        with pytest.raises(ValueError, match=r"2 channels \(dimension -2 of \(2, 6\)\) .* 3 equal"):
            hullo.combine(torch.randn(2, 6), torch.ones(3, 1), ["relu"], channel_dim=-2)

    @pytest.mark.parametrize(("shape", "dim"), [((), 1), ((6,), 1), ((2, 6), 2), ((2, 6), -3)])
    def test_missing_channel_dimension_is_rejected(self, shape: tuple[int, ...], dim: int) -> None:
        with pytest.raises(ValueError, match=f"has no dimension {dim} for 3 groups of channels"):
            hullo.combine(torch.randn(shape), torch.ones(3, 1), ["relu"], channel_dim=dim)

    def test_coefficients_on_another_device_are_rejected(self) -> None:
        class Elsewhere(torch.Tensor):
            device = torch.device("cuda", 1)  # type: ignore[assignment]

        c = torch.ones(1).as_subclass(Elsewhere)
        with pytest.raises(ValueError, match=r"x is on cpu .* on cuda:1"):
            hullo.combine(torch.randn(3), c, ["relu"])

    def test_unknown_or_unsupported_backend_is_rejected(self) -> None:
        x, c = torch.randn(3), torch.ones(1)
        with pytest.raises(ValueError, match="'gpu'; valid are 'reference', 'cpu'"):
            hullo.combine(x, c, ["relu"], backend="gpu")
        with pytest.raises(ValueError, match=r"'cpu' .* on meta .* use backend='reference'"):
            hullo.combine(x.to("meta"), c.to("meta"), ["relu"], backend="cpu")

    @pytest.mark.parametrize(
        ("bases", "message"),
        [
            ([], "at least one"),
            (["relu", "relu"], "more than once"),
            (["identity", "relu", "leaky_relu"], "linear comb"),
        ],
    )
    def test_invalid_bases_are_rejected(self, bases: list[str], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            hullo.combine(torch.randn(3), torch.ones(len(bases)), bases)

    @pytest.mark.gpu
    def test_cpu_coefficients_for_a_gpu_input_are_rejected(self) -> None:
        with pytest.raises(ValueError, match=r"x is on cuda:0 .* on cpu"):
            hullo.combine(torch.randn(3, device="cuda"), torch.ones(1), ["relu"])
