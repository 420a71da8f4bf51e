"""The backward kernel that looks slopes up in a table."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import hullo
from hullo.kernels import CombineSpec, reference
from hullo.parametrizations import get_parametrization

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

from hullo.kernels import slope_table  # noqa: E402
from hullo.kernels import triton as kernels  # noqa: E402
from hullo.kernels.slope_table import number_at, place_of  # noqa: E402

SIX = tuple(hullo.get_base(name) for name in ("identity", "relu", "tanh", "hardtanh", "unit_gelu", "unit_silu"))
OTHERS = tuple(hullo.get_base(name) for name in ("elu", "softplus", "mish", "hardswish", "leaky_relu"))
SPECIAL = torch.tensor([0.0, -0.0, 1e-9, -1e-9, 2e-5, 1.0, -1.0, 7e4, -7e4, 3e38, torch.inf, -torch.inf])
HALF_A_STEP = 0.51 if DEVICE == "cuda" else 1.01
"""The most that rounding to bfloat16 may change, over the last bit (the interpreter cuts bfloat16 off)."""


@pytest.fixture
def always_by_table(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(slope_table, "LEAST_TILES", 0)
    kernels._launches.cache_clear()
    yield
    kernels._launches.cache_clear()


def all_numbers() -> Tensor:
    """Return every bfloat16 that is not NaN."""
    numbers = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    return numbers[~numbers.isnan()].to(DEVICE)


@triton.jit
def _there_and_back(x_ptr, y_ptr, count, BLOCK: tl.constexpr):  # noqa: N803
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < count, other=0.0)
    tl.store(y_ptr + at, number_at(place_of(x)), mask=at < count)


def there_and_back(x: Tensor) -> Tensor:
    """Return the numbers whose slopes the table has for x."""
    y = torch.empty_like(x, dtype=torch.float32)
    _there_and_back[(triton.cdiv(x.numel(), 1024),)](x.float(), y, x.numel(), BLOCK=1024)
    return y


def test_the_table_has_a_place_for_every_number() -> None:
    x = all_numbers()
    found, x = there_and_back(x), x.float()
    exact = (x.abs() >= 2.0**-14) & (x.abs() <= 65504)
    assert torch.equal(found[exact], x[exact])
    assert torch.equal(found.abs()[x.abs() > 65504], torch.full_like(x[x.abs() > 65504], 65536.0))
    assert ((found - x)[x.abs() < 2.0**-14].abs() <= 2.0**-21).all()
    assert torch.equal(found > 0, x > 0)  # where steps are
    assert there_and_back(torch.tensor([torch.nan, -torch.nan], device=DEVICE)).isnan().all()


@pytest.mark.parametrize("name", hullo.list_bases())
def test_slopes_that_change_far_out_do_not_fit(name: str) -> None:
    assert slope_table.fits(hullo.get_base(name)) == (name not in ("asinh", "relu2", "relu3", "sin", "snake"))


@pytest.mark.parametrize(
    "formula",
    [
        "tanh(3e4 * x) / 3e4",
        "abs(x)",  # whose slope at zero is not that of negative numbers, which share its place
        "positive_part(-x)",
        "where(x < 1e-7, x, 2 * x)",
        "clamp(x, -1e25, 1e25)",
    ],
)
def test_slopes_that_change_within_a_place_do_not_fit(formula: str) -> None:
    assert not slope_table.fits(hullo.add_base("own", formula))


def test_only_large_tensors_in_bfloat16_have_a_table() -> None:
    def has_table(
        inner: int, bases: tuple[hullo.Base, ...] = SIX, dtype: torch.dtype = torch.bfloat16, groups: int = 1
    ) -> bool:
        rest = (get_parametrization("recentred"), dtype, torch.float32, 0 if DEVICE == "cuda" else None, False, 0)
        table = kernels.kernels_by_table(bases, rest[0])["backward"]
        return kernels._launches((1, groups, inner), bases, *rest).backward.kernel is table

    if DEVICE == "cpu" or torch.cuda.get_device_capability() >= (9, 0):
        assert has_table(2**28)
        assert not has_table(2**18)
        assert not has_table(2**28 - 1)
        assert has_table(2**20, groups=256)
        assert not has_table(56 * 56, groups=256)  # a table for each channel of one image
    assert not has_table(2**28, SIX[:3])
    assert not has_table(2**28, (*SIX, hullo.get_base("sin")))
    assert not has_table(2**28, (*SIX, hullo.get_base("elu")))  # too many
    assert not has_table(2**28, dtype=torch.float16)


@pytest.mark.usefixtures("always_by_table")
@pytest.mark.parametrize("bases", [SIX, OTHERS], ids=["six", "others"])
@pytest.mark.parametrize("shape", [(20000,), (4, 3, 5008)], ids=["flat", "groups"])
def test_backward_by_table_agrees_with_float64(bases: tuple[hullo.Base, ...], shape: tuple[int, ...]) -> None:
    spec = CombineSpec(bases, get_parametrization("given"), 1)
    x = (3 * torch.randn(shape)).bfloat16()
    x.view(-1)[: len(SPECIAL)] = SPECIAL.bfloat16()
    x, gradient = x.to(DEVICE), torch.randn(shape).bfloat16().to(DEVICE)
    raw = torch.rand((shape[1], len(bases)) if len(shape) > 1 else (len(bases),)).to(DEVICE)
    dx, _ = kernels.backward(gradient, x, raw, spec)
    bounded = x.double().clamp(-65536, 65536)  # PyTorch's own slopes of some are NaN at infinities
    expected, _ = reference.backward(gradient.double(), bounded, raw.double(), spec)
    last_bit = 2.0 ** (expected.abs().clamp_min(2.0**-126).log2().floor() - 7)
    cancelled = 2e-6 * gradient.double().abs() * raw.sum()  # slopes are sums in float32
    assert ((dx.double() - expected).abs() <= HALF_A_STEP * last_bit + cancelled).all()
    finite = x.abs() < 1e4
    x, gradient = torch.where(finite, x, 0), torch.where(finite, gradient, 0)
    _, sums = reference.backward(gradient.double(), x.double(), raw.double(), spec)
    torch.testing.assert_close(kernels.backward(gradient, x, raw, spec)[1].double(), sums, rtol=2e-3, atol=2e-2)


@pytest.mark.usefixtures("always_by_table")
def test_nan_stays_nan() -> None:
    x = torch.tensor([torch.nan, 1.0] * 8, device=DEVICE).bfloat16()
    raw, spec = torch.ones(6, device=DEVICE), CombineSpec(SIX, get_parametrization("given"), 1)
    assert kernels.backward(torch.ones_like(x), x, raw, spec)[0].isnan().tolist() == [True, False] * 8


@pytest.mark.gpu  # Triton's interpreter has no table
@pytest.mark.parametrize("size", [2**27, 2**27 - 16])
def test_a_large_tensor_is_served_as_by_the_other_kernel(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(size, device="cuda", dtype=torch.bfloat16)
    gradient, raw = torch.randn_like(x), torch.randn(6, device="cuda")
    spec = CombineSpec(SIX, get_parametrization("recentred"), 1)
    found = [kernels.backward(gradient, x, raw, spec) for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    monkeypatch.setattr(slope_table, "LEAST_TILES", 2**40)
    kernels._launches.cache_clear()
    dx, sums = kernels.backward(gradient, x, raw, spec)
    kernels._launches.cache_clear()
    assert ((found[0][0] - dx).abs() > 0.02 * gradient.abs()).sum() == 0
    torch.testing.assert_close(found[0][1], sums, rtol=1e-4, atol=1.0)


COMPILE = r"""
import re, subprocess, sys, tempfile
import torch
torch.version.cuda = torch.version.cuda or "13.0"  # words mean what they mean on a GPU
torch.cuda.get_device_properties = lambda device: type("", (), {"multi_processor_count": 132})
torch.cuda.get_device_capability = lambda device: (9, 0)

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
import hullo
from hullo.kernels import triton as kernels
from hullo.parametrizations import get_parametrization

bases = tuple(map(hullo.get_base, sys.argv[1:]))
key = bases, get_parametrization("given"), torch.bfloat16, torch.float32, 0, False, 0
whole, odd = (kernels._launches((1, 1, 2**28 + extra), *key) for extra in (0, 3))
groups = kernels._launches((64, 32, 57**2), *key)
for launch in (whole.backward, odd.forward, odd.backward, groups.forward, groups.backward):
    kernel, constants = launch.kernel, launch.constants
    kinds = dict.fromkeys(kernel.arg_names, "i32") | dict.fromkeys(constants, "constexpr")
    kinds |= {name: "*fp32" for name in kinds if name.endswith("_ptr")}
    kinds |= {name: "*bf16" for name in kinds if re.fullmatch("(x|dx|dy)_ptr", name)}
    sizes = dict(zip([name for name in kinds if kinds[name] == "i32"], launch.sizes))
    aligned = [i for i, name in enumerate(kinds) if kinds[name][0] == "*" or sizes.get(name, 1) % 16 == 0]
    aligned = {(i,): [["tt.divisibility", 16]] for i in aligned}
    compiled = compile(ASTSource(kernel, kinds, constants, aligned), GPUTarget("cuda", 90, 32), launch.options)
    with tempfile.NamedTemporaryFile() as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    text = compiled.asm["ptx"]
    vectors = len(re.findall(r"ld.global.v[24]", text))
    print(*re.search(r"STACK:(\d+) SHARED:(\d+)", usage).groups(), text.count(".b8 table["), vectors)
"""


def test_compiled_for_a_gpu_nothing_spills_and_a_program_has_one_table() -> None:
    """This takes no GPU, and the interpreter cannot tell. Odd lengths have no table; all load several numbers at
    once."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", COMPILE, *(base.name for base in SIX)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    stacks, shared, tables, vectors = zip(*(map(int, line.split()) for line in done.stdout.splitlines()), strict=True)
    assert stacks == (0,) * 5
    assert tables == (1, 0, 0, 0, 0)
    assert shared[0] >= 2**15
    assert min(vectors) > 0
