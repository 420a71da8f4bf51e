"""The fused batch norm, sum and activation equals the three; on the CPU it runs in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import hullo
from compiled import run_without_interpreter
from cuda_steps import assert_replayed, count_kernels
from hullo.functional import apply
from hullo.kernels import CombineSpec
from hullo.parametrizations import get_parametrization
from rounding import HALF_A_LAST_BIT, assert_rounded_once

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

from hullo.population.kernels import channel_stats  # noqa: E402
from hullo.population.kernels.bn_act import normalize_combine  # noqa: E402

MOMENTUM, EPSILON = 0.1, 1e-3


@dataclass
class Case:
    """A population's layer: what it normalizes, with how many rows of coefficients, and how it is called."""

    shape: tuple[int, int, int, int]
    groups: int
    bases: str = "identity relu tanh"
    residual: bool = False
    bias: bool = False
    training: bool = True
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
            "rows": torch.randn((self.groups, len(self.found)) if self.groups > 1 else len(self.found)),
        }
        if self.bias:
            inputs["bias"] = torch.randn(channels)
        if self.residual:
            inputs["residual"] = torch.randn(self.shape).to(dtype)
        return {
            name: t.to(DEVICE, memory_format=torch.channels_last) if t.dim() == 4 else t.to(DEVICE)
            for name, t in inputs.items()
        }

    def running(self) -> list[Tensor]:
        """Return running means and variances, the same at every call."""
        channels = self.shape[1]
        return [
            torch.linspace(-1, 1, channels).to(DEVICE),
            torch.linspace(0.5, 2, channels).to(DEVICE),
        ]

    def plain(
        self, running: list[Tensor], x: Tensor, scale: Tensor, shift: Tensor, rows: Tensor,
        bias: Tensor | None = None, residual: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        x = x if bias is None else x + bias.view(-1, 1, 1)
        y = F.batch_norm(x, *running, scale, shift, self.training, MOMENTUM, EPSILON)
        return apply(
            y if residual is None else y + residual,
            rows,
            CombineSpec(self.found, get_parametrization("given"), 1),
            backend="reference",
        )

    def fused(
        self, running: list[Tensor], x: Tensor, scale: Tensor, shift: Tensor, rows: Tensor,
        bias: Tensor | None = None, residual: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        x, residual = (
            t.unflatten(1, (self.stacked, -1)).transpose(0, 1) if self.stacked and t is not None else t
            for t in (x, residual)
        )
        given = x, *running, scale, shift, rows, self.found, self.training
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(channel_stats, "processors", lambda x: self.processors)
            one, other = normalize_combine(*given, momentum=MOMENTUM, eps=EPSILON, bias=bias, residual=residual)
        assert one.movedim(-3, -1).is_contiguous()
        y = 2 * one - other if self.twice else one
        return y.transpose(0, 1).flatten(1, 2) if self.stacked else y


CASES = {
    "a block's first": Case((2, 48, 4, 4), 3, bias=True),
    "a block's second": Case((2, 48, 4, 4), 3, residual=True, bias=True),
    "wide": Case((3, 256, 3, 3), 4, residual=True),
    "odd everything": Case((3, 35, 5, 3), 5, residual=True),
    "odd, without a residual": Case((3, 35, 5, 3), 7),
    "one member": Case((2, 8, 3, 3), 1, bias=True),
    "one activation a channel": Case((2, 20, 4, 4), 20, residual=True),
    "one channel, one image": Case((1, 1, 1, 2), 1, residual=True),
    "one pixel": Case((5, 12, 1, 1), 2),
    "several tiles a program": Case((3, 12, 16, 16), 3, residual=True, processors=1),
    "two ways on": Case((2, 48, 4, 4), 3, residual=True, bias=True, twice=True),
    "two ways on, odd, without a residual": Case((3, 35, 5, 3), 5, twice=True),
    "relu": Case((2, 16, 3, 3), 1, bases="relu"),
    "gelu": Case((2, 16, 3, 3), 2, bases="gelu", residual=True),
    "six bases": Case((2, 16, 3, 3), 2, bases="identity relu tanh unit_gelu unit_silu softsign"),
    "evaluation": Case((2, 48, 4, 4), 3, residual=True, bias=True, training=False),
    "evaluation of an odd one": Case((1, 35, 1, 1), 5, training=False),
    "stacked": Case((2, 48, 4, 4), 3, residual=True, bias=True, twice=True, stacked=3),
    "stacked, without a residual": Case((2, 96, 4, 4), 3, stacked=3),
    "stacked, odd everything": Case((3, 35, 5, 3), 5, residual=True, stacked=5),
    "stacked, wide": Case((1, 272, 2, 2), 2, stacked=2),
    "stacked, one activation a channel": Case((2, 20, 4, 4), 20, residual=True, stacked=5),
    "stacked, one activation for all": Case((2, 20, 4, 4), 1, stacked=2),
    "stacked, several tiles a program": Case((3, 24, 16, 16), 3, residual=True, stacked=3, processors=1),
    "stacked, evaluation": Case((2, 48, 4, 4), 3, residual=True, bias=True, training=False, stacked=3),
}

Function = Callable[..., Tensor]


def passes(function: Function, case: Case, inputs: dict[str, Tensor], dy: Tensor) -> dict[str, Tensor]:
    """Return the value of a function, its gradients for all inputs, and the running statistics after it."""
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in inputs.items()}
    running = [tensor.to(inputs["scale"].dtype) for tensor in case.running()]
    y = function(running, **leaves)
    gradients = torch.autograd.grad(y, list(leaves.values()), dy.to(y))
    found = {"y": y.detach(), "mean": running[0], "variance": running[1]}
    return found | {f"d{name}": gradient for name, gradient in zip(leaves, gradients, strict=True)}


def both(case: Case, inputs: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the fused passes, and the plain ones in float64."""
    dy = torch.randn_like(inputs["x"], dtype=torch.float32).to(inputs["x"].dtype)
    wide = {name: tensor.double() for name, tensor in inputs.items()}
    return passes(case.fused, case, inputs, dy), passes(case.plain, case, wide, dy)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_values_gradients_and_running_statistics_agree_with_the_three_in_float64(case: Case) -> None:
    found, expected = both(case, case.draw())
    for name, exact in expected.items():
        size = max(1.0, exact.abs().max().item())
        torch.testing.assert_close(
            found[name].double(), exact, rtol=1e-5, atol=3e-6 * size, msg=lambda m, n=name: f"{n}: {m}"
        )
    images = [] if case.stacked else ["y", "dx", *["dresidual"] * case.residual]
    for name in images:
        assert found[name].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "name", ["a block's first", "a block's second", "odd everything", "gelu", "two ways on", "stacked"]
)
def test_16_bits_agree_to_their_rounding(name: str, dtype: torch.dtype) -> None:
    case = CASES[name]
    found, expected = both(case, case.draw(dtype))
    for name, exact in expected.items():
        if name == "dx" and (case.residual or case.twice):  # computed from what was rounded for the residual
            assert (found[name].double() - exact).norm() <= 2 * HALF_A_LAST_BIT[dtype] * exact.norm()
        else:
            assert_rounded_once(found[name], exact, name)
        assert found[name].dtype == (dtype if name in ("y", "dx", "dresidual") else torch.float32)


@pytest.mark.parametrize("residual", [False, True])
def test_a_mean_far_from_zero_costs_no_more_than_its_own_rounding(residual: bool) -> None:
    case = Case((4, 24, 6, 6), 3, residual=residual)
    inputs = case.draw()
    inputs["x"] = inputs["x"] / 2 + 1e3  # of deviation 1, in steps of 6e-5
    found, expected = both(case, inputs)
    for name in ("y", "dx", "dscale", "dshift"):
        assert (found[name].double() - expected[name]).norm() <= 1e-4 * expected[name].norm(), name


@pytest.mark.parametrize("stacked", [0, 3])
@pytest.mark.parametrize("residual", [False, True])
def test_a_member_that_is_not_finite_leaves_the_others_as_they_are_to_the_bit(residual: bool, stacked: int) -> None:
    case = replace(CASES["a block's second"], residual=residual, stacked=stacked)
    inputs = case.draw()
    dy = torch.randn_like(inputs["x"])
    ill = {name: tensor.clone(memory_format=torch.preserve_format) for name, tensor in inputs.items()}
    ill["x"][0, 16, 0, 0] = torch.nan
    ill["x"][0, 17, 0, 0] = torch.inf
    ill["rows"][2] = torch.nan
    well, beside = passes(case.fused, case, inputs, dy), passes(case.fused, case, ill, dy)
    assert beside["y"][:, 16:18].isnan().all()
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
    first, again = (passes(case.fused, case, inputs, dy) for _ in range(2))
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_images_and_gradients_in_another_order_serve() -> None:
    case = CASES["a block's second"]
    inputs = case.draw()
    dy = torch.randn_like(inputs["x"])
    other = {name: tensor.contiguous() for name, tensor in inputs.items()}
    expected, found = passes(case.fused, case, inputs, dy), passes(case.fused, case, other, dy.contiguous())
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_an_address_that_is_not_aligned_is_served() -> None:
    case = Case((2, 16, 3, 3), 2)
    inputs = case.draw()
    dy = torch.randn_like(inputs["x"])
    expected = passes(case.fused, case, inputs, dy)
    moved = torch.empty(2 * 16 * 9 + 1, device=DEVICE)[1:].view(2, 3, 3, 16).permute(0, 3, 1, 2)
    found = passes(case.fused, case, inputs | {"x": moved.copy_(inputs["x"])}, dy)
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-5, atol=1e-5)


def test_evaluation_leaves_running_statistics_alone() -> None:
    case = CASES["evaluation"]
    running = case.running()
    case.fused(running, **case.draw())
    assert all(torch.equal(a, b) for a, b in zip(running, case.running(), strict=True))


@pytest.mark.parametrize("half", ["scale", "shift", "bias"])
def test_parameters_of_16_bits_have_gradients_of_16_bits(half: str) -> None:
    case = CASES["a block's first"]
    inputs = case.draw(torch.bfloat16)
    inputs[half] = inputs[half].bfloat16()
    leaves = {name: tensor.requires_grad_() for name, tensor in inputs.items()}
    y = case.fused(case.running(), **leaves)
    (gradient,) = torch.autograd.grad(y.float().sum(), [leaves[half]])
    assert gradient.dtype == torch.bfloat16


COMPILE = r"""
from compiled import compile_launches
launched = compile_launches()

import torch
import re
import hullo
from hullo.population.kernels.bn_act import normalize_combine
from hullo.population.kernels.channel_stats import TILES

def empty(*shape, dtype=torch.float32):
    return torch.empty(*shape, dtype=dtype, device="meta", requires_grad=True)

bases = tuple(map(hullo.get_base, ("identity", "relu", "tanh")))
side_by_side = empty(32, 32, 32, 960, dtype=torch.bfloat16).movedim(-1, 1)
stacked = empty(60, 32, 32, 32, 16, dtype=torch.bfloat16).movedim(-1, 2)
for x in (side_by_side, stacked):
    for twice in (False, True):
        running = empty(960).detach(), empty(960).detach()
        given = (*running, empty(960), empty(960), empty(60, 3), bases, True)
        both = normalize_combine(x, *given, momentum=0.1, eps=1e-5, residual=x if twice else None)[: 1 + twice]
        torch.autograd.backward(both, [torch.empty_like(y) for y in both])
for kernel in launched:
    tile = TILES.get(kernel.name)
    loads = re.findall(r"ld\.global[.\w:]*|cp\.async\.cg[^;]* 0x10", kernel.ptx)
    narrow = sum("v4.b32" not in load and "cp" not in load for load in loads)
    held = 32 * kernel.warps * (tile.programs if tile else 1) * kernel.registers
    print(kernel.name, tile is not None, kernel.stack, held, len(loads) - narrow, narrow)
"""


def test_compiled_for_a_gpu_nothing_spills_and_all_programs_of_a_multiprocessor_are_there_at_once() -> None:
    """And images travel 16 bytes at a time, as does what belongs to columns; coefficients are read once for eight
    columns, that is three times. This takes no GPU, and the interpreter cannot tell."""
    lines = run_without_interpreter("-c", COMPILE)
    names = ("partial_statistics", "apply", "backward_sums", "backward_input")
    assert all([name for name, *_ in lines].count(own) >= 2 for own in names)
    for name, is_tiled, stack, registers, wide, narrow in lines:
        assert int(stack) == 0, name
        assert int(registers) <= 2**16, name
        assert is_tiled == "False" or int(narrow) <= 3 < int(wide), name


gpu = pytest.mark.gpu


@gpu
@pytest.mark.parametrize("stacked", [0, 3])
def test_more_than_2_31_elements(stacked: int) -> None:
    """Images and gradients that repeat have the statistics of a few of them."""
    few = Case((10, 96, 32, 32), 3, residual=True, stacked=stacked)
    times = 2240
    many = replace(few, shape=(10 * times, 96, 32, 32))
    inputs = few.draw(torch.bfloat16)
    dy = torch.randn_like(inputs["x"])
    expected = passes(few.plain, few, {name: tensor.double() for name, tensor in inputs.items()}, dy)
    repeated = {name: t.repeat(times, 1, 1, 1) if t.dim() == 4 else t for name, t in inputs.items()}
    assert repeated["x"].numel() > 2**31
    found = passes(many.fused, many, repeated, dy.repeat(times, 1, 1, 1))
    for name in ("y", "dx", "dresidual"):
        for part in (slice(0, 10), slice(-10, None)):
            assert (found[name][part].double() - expected[name]).norm() <= 2.0**-7 * expected[name].norm(), name
    for name in ("dscale", "dshift", "drows"):
        assert (found[name].double() / times - expected[name]).norm() <= 1e-3 * expected[name].norm(), name


@gpu
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events")
def test_three_kernels_forward_and_three_backward_also_in_a_cuda_graph(residual: bool) -> None:
    case = Case((32, 960, 8, 8), 60, residual=residual)
    leaves = {name: tensor.requires_grad_() for name, tensor in case.draw(torch.bfloat16).items()}
    dy, running = torch.randn_like(leaves["x"]), case.running()

    def step() -> list[Tensor]:
        y = case.fused(running, **leaves)
        return [y.detach(), *torch.autograd.grad(y, list(leaves.values()), dy)]

    expected = step()
    assert count_kernels(step) == 6
    before = running[0].clone()
    assert_replayed(step, expected)
    assert not torch.equal(running[0], before)
