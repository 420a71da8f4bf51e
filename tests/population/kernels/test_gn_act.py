"""The fused group norm, sum and activation equals the three; on the CPU it runs in Triton's interpreter."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import hullo
from hullo.functional import apply
from hullo.kernels import CombineSpec
from hullo.parametrizations import get_parametrization
from rounding import HALF_A_LAST_BIT, assert_rounded_once

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

from hullo.population.kernels import channel_stats  # noqa: E402
from hullo.population.kernels.gn_act import group_norm_combine  # noqa: E402

EPSILON = 1e-3


@dataclass
class Case:
    """A population's layer: what it normalizes, in groups of how many channels, and how it is called."""

    shape: tuple[int, int, int, int]
    width: int
    rows: int = 1
    bases: str = "identity relu tanh"
    residual: bool = False
    bias: bool = False
    twice: bool = False
    stacked: int = 0  # members whose images are stacked
    processors: int = 4  # that the interpreter pretends to have

    def __post_init__(self) -> None:
        self.found = tuple(map(hullo.get_base, self.bases.split()))

    def draw(self, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
        """Return the tensors that have a gradient."""
        channels = self.shape[1]
        inputs = {
            "x": (2 * torch.randn(self.shape) + torch.randn(channels, 1, 1)).to(dtype),
            "scale": 1 + 0.5 * torch.randn(channels),
            "shift": torch.randn(channels),
            "rows": torch.randn((self.rows, len(self.found)) if self.rows > 1 else len(self.found)),
        }
        if self.bias:
            inputs["bias"] = torch.randn(channels)
        if self.residual:
            inputs["residual"] = torch.randn(self.shape).to(dtype)
        return {name: tensor.to(DEVICE) for name, tensor in inputs.items()}

    def plain(
        self, x: Tensor, scale: Tensor, shift: Tensor, rows: Tensor, bias: Tensor | None = None,
        residual: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        x = x if bias is None else x + bias.view(-1, 1, 1)
        y = F.group_norm(x, self.shape[1] // self.width, scale, shift, EPSILON)
        spec = CombineSpec(self.found, get_parametrization("given"), 1)
        return apply(y if residual is None else y + residual, rows, spec, backend="reference")

    def fused(
        self, x: Tensor, scale: Tensor, shift: Tensor, rows: Tensor, bias: Tensor | None = None,
        residual: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        x, residual = (
            t.unflatten(1, (self.stacked, -1)).transpose(0, 1) if self.stacked and t is not None else t
            for t in (x, residual)
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(channel_stats, "processors", lambda x: self.processors)
            one, other = group_norm_combine(
                x, scale, shift, rows, self.found, width=self.width, eps=EPSILON, bias=bias, residual=residual
            )
        assert one.movedim(-3, -1).is_contiguous()
        y = 2 * one - other if self.twice else one
        return y.transpose(0, 1).flatten(1, 2) if self.stacked else y


CASES = {
    "a layer of a u-net": Case((3, 48, 4, 4), 4, 3, bias=True),
    "with a residual": Case((2, 48, 4, 4), 8, 3, residual=True, bias=True),
    "each channel alone": Case((3, 12, 3, 5), 1, 3),
    "all channels of a member": Case((2, 60, 3, 3), 20, 3, bias=True),
    "odd everything": Case((3, 45, 5, 3), 3, 5, residual=True, bias=True),
    "groups across lanes": Case((2, 420, 2, 2), 105, bias=True),
    "one sample": Case((1, 16, 4, 4), 4, 2, bias=True),
    "one pixel": Case((5, 12, 1, 1), 4, 2),
    "several tiles a program": Case((3, 12, 16, 16), 3, 2, bias=True, processors=1),
    "two ways on": Case((2, 24, 4, 4), 4, 3, bias=True, twice=True),
    "one activation a channel": Case((2, 20, 4, 4), 5, 20),
    "silu": Case((2, 16, 3, 3), 4, bases="silu", bias=True),
    "stacked": Case((3, 48, 4, 4), 4, 3, residual=True, bias=True, twice=True, stacked=3),
    "stacked, odd everything": Case((3, 45, 5, 3), 3, 5, residual=True, bias=True, stacked=5),
    "stacked, one activation a channel": Case((2, 20, 4, 4), 2, 20, stacked=5),
    "stacked, several tiles a program": Case((3, 24, 16, 16), 4, 3, bias=True, stacked=3, processors=1),
}


def passes(case: Case, inputs: dict[str, Tensor], dy: Tensor, *, fused: bool) -> dict[str, Tensor]:
    """Return the value of a layer and its gradients for all inputs."""
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in inputs.items()}
    y = case.fused(**leaves) if fused else case.plain(**leaves)
    gradients = torch.autograd.grad(y, list(leaves.values()), dy.to(y))
    return {"y": y.detach()} | {f"d{name}": item for name, item in zip(leaves, gradients, strict=True)}


def both(case: Case, inputs: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the fused passes, and the plain ones in float64."""
    dy = torch.randn_like(inputs["x"], dtype=torch.float32).to(inputs["x"].dtype)
    wide = {name: tensor.double() for name, tensor in inputs.items()}
    return passes(case, inputs, dy, fused=True), passes(case, wide, dy, fused=False)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_values_and_gradients_agree_with_the_three_in_float64(case: Case) -> None:
    found, expected = both(case, case.draw())
    for name, exact in expected.items():
        size = max(1.0, exact.abs().max().item())
        torch.testing.assert_close(
            found[name].double(), exact, rtol=1e-5, atol=5e-6 * size, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["a layer of a u-net", "with a residual", "odd everything", "stacked"])
def test_16_bits_agree_to_their_rounding(name: str, dtype: torch.dtype) -> None:
    case = CASES[name]
    found, expected = both(case, case.draw(dtype))
    for name, exact in expected.items():
        if name == "dx" and case.residual:  # computed from what was rounded for the residual
            assert (found[name].double() - exact).norm() <= 2 * HALF_A_LAST_BIT[dtype] * exact.norm()
        else:
            assert_rounded_once(found[name], exact, name)
        assert found[name].dtype == (dtype if name in ("y", "dx", "dresidual") else torch.float32)


def test_a_mean_far_from_zero_costs_no_more_than_its_own_rounding() -> None:
    case = CASES["a layer of a u-net"]
    inputs = case.draw()
    inputs["x"] = inputs["x"] / 2 + 1e3  # of deviation 1, in steps of 6e-5
    found, expected = both(case, inputs)
    for name in ("y", "dx", "dscale", "dshift"):
        assert (found[name].double() - expected[name]).norm() <= 1e-4 * expected[name].norm(), name


@pytest.mark.parametrize("stacked", [0, 3])
def test_a_member_that_is_not_finite_leaves_the_others_as_they_are_to_the_bit(stacked: int) -> None:
    case = replace(CASES["with a residual"], stacked=stacked)
    inputs = case.draw()
    dy = torch.randn_like(inputs["x"])
    ill = {name: tensor.clone() for name, tensor in inputs.items()}
    ill["x"][0, 16, 0, 0] = torch.nan
    ill["x"][1, 25, 0, 0] = torch.inf
    ill["rows"][2] = torch.nan
    well, beside = (passes(case, item, dy, fused=True) for item in (inputs, ill))
    assert beside["y"][0, 16:24].isnan().all()
    for name, expected in well.items():
        own = slice(0, 1) if name == "drows" else slice(0, 16)
        first = (slice(None), own) if expected.dim() == 4 else own
        assert torch.equal(expected[first], beside[name][first]), name


@pytest.mark.gpu  # Triton's interpreter runs one program after the other
@pytest.mark.parametrize("name", ["several tiles a program", "stacked, several tiles a program"])
def test_every_run_gives_the_same_bits(name: str) -> None:
    case = CASES[name]
    inputs = case.draw()
    dy = torch.randn_like(inputs["x"])
    first, again = (passes(case, inputs, dy, fused=True) for _ in range(2))
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_second_derivatives_are_refused() -> None:
    case = CASES["each channel alone"]
    leaves = {name: item.requires_grad_() for name, item in case.draw().items()}
    with pytest.raises(RuntimeError, match="no second derivatives"):
        torch.autograd.grad(case.fused(**leaves).square().sum(), leaves["x"], create_graph=True)


def test_the_result_has_the_dtype_that_is_asked_for() -> None:
    case = CASES["a layer of a u-net"]
    x, scale, shift, rows, bias = (tensor.requires_grad_() for tensor in case.draw(torch.float16).values())
    given = {"width": case.width, "eps": EPSILON, "bias": bias}
    wide, _ = group_norm_combine(x, scale, shift, rows, case.found, dtype=torch.float32, **given)
    narrow, _ = group_norm_combine(x, scale, shift, rows, case.found, **given)
    assert torch.equal(wide.half(), narrow)
    assert not torch.equal(wide, narrow.float())
    assert torch.autograd.grad(wide.sum(), [x])[0].dtype == torch.float16


def test_sums_of_several_parts_of_wide_groups_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program loads one part at a time of groups as wide as this."""
    monkeypatch.setattr(channel_stats, "processors", lambda x: 64)
    x = torch.randn(1, 12, 12, 1200).movedim(-1, 1) + 3
    rows, dy = torch.ones(1), torch.randn(1, 1200, 12, 12)
    leaf, wide = x.to(DEVICE).requires_grad_(), x.double().requires_grad_()
    bases = (hullo.get_base("identity"),)
    found, _ = group_norm_combine(leaf, None, None, rows.to(DEVICE), bases, width=1200, eps=1e-5)
    expected = F.group_norm(wide, 1, eps=1e-5)
    torch.testing.assert_close(found.double().cpu(), expected, rtol=1e-5, atol=1e-5)
    (dx,), (exact,) = (torch.autograd.grad(y, t, dy.to(y)) for y, t in ((found, leaf), (expected, wide)))
    torch.testing.assert_close(dx.double().cpu(), exact, rtol=1e-4, atol=1e-5)
