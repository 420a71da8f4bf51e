"""Test that hulls in models of any precision keep their coefficients in float32 or better."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import hullo
import oracle
from hullo.modules import Hull
from made_hulls import TRIO, every_hull, uneven


class TestPrecision:
    @every_hull
    @pytest.mark.parametrize("convert", [nn.Module.half, nn.Module.bfloat16, lambda m: m.to(torch.float16)])
    def test_half_precision_models_keep_float32_coefficients(
        self, hull: type[Hull], parametrization: str, convert: Callable[[nn.Module], nn.Module]
    ) -> None:
        model = nn.Sequential(nn.Linear(4, 4), uneven(hull, parametrization), nn.Linear(4, 2))
        before = model[1].raw.detach().clone()
        x = torch.randn(3, 4)
        model(x).sum().backward()
        convert(model)
        assert torch.equal(model[1].raw, before)
        assert model[1].raw.grad.dtype == torch.float32
        y = model(x.to(model[0].weight.dtype))
        assert y.dtype == model[0].weight.dtype
        y.sum().backward()

    @pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float16, torch.float32, torch.float64])
    def test_conversions_move_coefficients_to_the_device(self, dtype: torch.dtype) -> None:
        act = hullo.AffineHull(*TRIO, inner_scale="base").to("meta", dtype)
        kept = torch.float64 if dtype == torch.float64 else torch.float32
        assert [(p.device.type, p.dtype) for p in act.parameters()] == [("meta", kept)] * 2

    def test_double_models_have_double_coefficients(self) -> None:
        act = hullo.AffineHull(*TRIO).double()
        assert act.raw.dtype == torch.float64
        assert act(torch.randn(3, dtype=torch.float64)).dtype == torch.float64

    @every_hull
    def test_autocast_keeps_bfloat16(self, hull: type[Hull], parametrization: str) -> None:
        model = nn.Sequential(nn.Linear(8, 8), uneven(hull, parametrization, groups=2), nn.Linear(8, 2))
        x, seen = torch.randn(5, 8), []
        model[1].register_forward_hook(lambda module, args, y: seen.append((args[0], y)))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(x).square().mean()
        loss.backward()
        given, y = seen[0]
        assert given.dtype == y.dtype == torch.bfloat16
        assert model[1].raw.dtype == model[1].raw.grad.dtype == torch.float32
        exact = oracle.combine(given, model[1].coefficients, TRIO).detach()
        torch.testing.assert_close(y.double(), exact, rtol=2**-8, atol=1e-6)

    def test_autocast_does_not_change_coefficients(self) -> None:
        act, x = uneven(hullo.AffineHull, "free", groups=2), torch.randn(3, 4, requires_grad=True)
        results = []
        for enabled in (False, True):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
                y = act(x)
                results.append((y, *torch.autograd.grad(y.square().sum(), (x, act.raw))))
        for plain, cast in zip(*results, strict=True):
            assert plain.dtype == cast.dtype == torch.float32
            assert torch.equal(plain, cast)


def test_conversions_between_single_and_double_precision_convert_all_parameters() -> None:
    act = hullo.AffineHull("identity", "relu", inner_scale="hull", dtype=torch.float32)
    for dtype in (torch.float64, torch.float32):
        act.to(dtype)
        assert {parameter.dtype for parameter in act.parameters()} == {dtype}
        assert act.half().raw.dtype == dtype
