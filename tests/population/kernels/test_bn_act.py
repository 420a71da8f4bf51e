"""The fused batch norm, sum and activation equals the three; on the CPU it runs in Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import hullo
from cuda_steps import assert_replayed, count_kernels
from hullo.functional import apply
from hullo.kernels import CombineSpec
from hullo.parametrizations import get_parametrization

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
    rounding = {torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}[dtype]
    case = CASES[name]
    found, expected = both(case, case.draw(dtype))
    for name, exact in expected.items():
        if name != "dbias":  # which is zero
            assert (found[name].double() - exact).norm() <= rounding * exact.norm(), name
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


def test_what_does_not_fit_is_refused_by_name() -> None:
    case = Case((2, 6, 2, 2), 3)
    inputs = case.draw()

    def call(**others: Tensor) -> Tensor:
        return case.fused(case.running(), **(inputs | others))

    with pytest.raises(ValueError, match="6 channels do not fall into 4 equal parts, as many as there are rows"):
        call(rows=torch.ones(4, 3, device=DEVICE))
    with pytest.raises(ValueError, match=r"x is torch\.float64 of shape \(2, 6, 2, 2\); give images"):
        call(x=inputs["x"].double())
    with pytest.raises(ValueError, match=r"x is .* of shape \(1, 6, 1, 1\); give .* two values of a channel or more"):
        call(x=inputs["x"][:1, :, :1, :1])
    with pytest.raises(ValueError, match=r"the residual is .* of shape \(2, 6, 1, 2\); give one like x, which is"):
        call(residual=inputs["x"][:, :, :1])


COMPILE = r"""
import itertools, re, subprocess, tempfile
import torch
torch.version.cuda = torch.version.cuda or "13.0"  # words mean what they mean on a GPU
torch.cuda.get_device_properties = lambda device: type("", (), {"multi_processor_count": 132})

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
import hullo
from hullo.population.kernels import bn_act as norm, channel_stats as columns

x = torch.empty(32, 960, 32, 32, dtype=torch.bfloat16, device="meta")
stacked = torch.empty(60, 32, 16, 32, 32, dtype=torch.bfloat16, device="meta")
made = norm.make_kernels(tuple(map(hullo.get_base, ("identity", "relu", "tanh"))), x.dtype)
made["partial_statistics"] = columns.partial_statistics
calls = [(made[name], tile, *way) for name, tile in columns.TILES.items() for way in ((0, 0), (1, 1))]
calls += [(kernel, columns.Tile(1, 4, 1), 0, 0) for kernel in (columns._merge_statistics, columns._add_partial_sums)]
for (kernel, tile, residual, twice), x in itertools.product(calls, (x, stacked)):
    constants = dict(GROUP=16, EACH=8, BIAS=False, RESIDUAL=residual, TRAINING=True, PARTS=64, EARLY=True, BASES=3)
    constants |= dict(BY_COLUMN=2, SUMS=False, REPEAT=1, WIDTH=1, GROUPED=False)
    constants |= dict(TWO_GRADIENTS=twice, STORE_DS=residual or twice, LEARNED=True, STAGES=norm.STAGES)
    constants |= columns.Tiling.of(x, tile).constants | dict(ZEROS=True, BLOCK=128)
    constants = {name: constants[name] for name in kernel.arg_names if name in constants}
    kinds = dict.fromkeys(kernel.arg_names, "i32") | dict.fromkeys(constants, "constexpr")
    kinds |= {name: "*fp32" for name in kinds if name.endswith("_ptr")}
    kinds |= {name: "*bf16" for name in kinds if re.fullmatch("(x|dx|y|dy|more|ds|residual)_ptr", name)}
    kinds |= {name: "fp32" for name in kinds if name in ("eps", "momentum")}
    aligned = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(kinds.values()) if kind[0] == "*"}
    source = ASTSource(kernel, kinds, constants, aligned)
    compiled = compile(source, GPUTarget("cuda", 90, 32), {"num_warps": tile.warps})
    with tempfile.NamedTemporaryFile() as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, stack = map(int, re.search(r"REG:(\d+) STACK:(\d+)", usage).groups())
    loads = re.findall(r"ld\.global[.\w:]*|cp\.async\.cg[^;]* 0x10", compiled.asm["ptx"])
    narrow = sum("v4.b32" not in load and "cp" not in load for load in loads)
    held = 32 * tile.warps * tile.programs * registers
    print(kernel.__name__, residual + 2 * twice, stack, held, len(loads) - narrow, narrow)
"""


def test_compiled_for_a_gpu_nothing_spills_and_all_programs_of_a_multiprocessor_are_there_at_once() -> None:
    """And images travel 16 bytes at a time, as does what belongs to columns; coefficients are read once for eight
    columns, that is three times. This takes no GPU, and the interpreter cannot tell."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert len(lines) == 20
    for name, case, stack, registers, wide, narrow in lines:
        assert int(stack) == 0, name
        assert int(registers) <= 2**16, (name, case)
        if name not in ("_merge_statistics", "_add_partial_sums"):
            assert int(narrow) <= 3 < int(wide), (name, case)


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
