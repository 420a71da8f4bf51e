"""Compiled CPU kernels agree with float64, fall back where they cannot be built, and survive a damaged cache."""

from __future__ import annotations

import math
import multiprocessing
import os
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import hullo
import oracle
from hullo.formulas import FUNCTIONS
from hullo.kernels import CombineSpec, compiled, cpu, reference
from hullo.kernels.c_codegen import c_source
from hullo.parametrizations import get_parametrization

COMPILER = shutil.which(shlex.split(os.environ.get("CC") or "cc")[0])
pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")

QUARTETS = [hullo.list_bases()[k : k + 4] for k in range(0, len(hullo.list_bases()), 4)]
PRECISE = {
    name: hullo.get_base(name).function for name in ("tanh", "elu", "asinh", "silu", "mish", "softplus", "selu", "erf")
}
PRECISE["gelu"] = lambda x: x * 0.5 * torch.erfc(-math.sqrt(0.5) * x)
"""Bases, in float64, whose values have a relative precision also where they vanish."""

LAYOUTS: dict[str, tuple[tuple[int, ...], int | None, torch.memory_format]] = {
    "one row": ((3, 6, 517), None, torch.contiguous_format),
    "long runs": ((3, 2, 2111), 2, torch.contiguous_format),
    "short runs": ((70, 6, 9, 8), 6, torch.contiguous_format),
    "wide": ((3, 600, 3, 3), 300, torch.contiguous_format),
    "channels last": ((5, 6, 7, 9), 6, torch.channels_last),
    "one element each": ((1, 3), 3, torch.contiguous_format),
}


@pytest.fixture(scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _small_tensors_too(monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(own_cache))
    monkeypatch.setattr(compiled, "WORTHWHILE", 1)
    monkeypatch.setattr(compiled, "GRAIN", 1)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Start with an empty cache and no libraries loaded."""
    monkeypatch.setattr(compiled, "_loaded", {})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "hullo" / "kernels"


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def spec_of(*names: str | hullo.Base, channel_dim: int = 1) -> CombineSpec:
    return CombineSpec(tuple(map(hullo.get_base, names)), get_parametrization("given"), channel_dim)


def results(x: Tensor, dy: Tensor, c: Tensor, spec: CombineSpec) -> tuple[Tensor, Tensor, Tensor]:
    assert compiled.library(x, spec) is not None
    return cpu.forward(x, c, spec), *cpu.backward(dy, x, c, spec)


def expected(x: Tensor, dy: Tensor, c: Tensor, spec: CombineSpec) -> tuple[Tensor, Tensor, Tensor]:
    x, dy, c = x.double(), dy.double(), c.double()
    return reference.forward(x, c, spec), *reference.backward(dy, x, c, spec)


def relative_error(found: Tensor, wanted: Tensor) -> float:
    return ((found.double() - wanted).norm() / wanted.norm().clamp_min(1e-2)).item()


def test_every_function_of_formulas_is_there_in_c() -> None:
    source = c_source((hullo.get_base("relu"),), bfloat16=False)
    assert not [name for name in FUNCTIONS if f" f_{name}(" not in source]


@pytest.mark.parametrize("names", QUARTETS, ids=" ".join)
def test_every_base_agrees_with_float64(names: tuple[str, ...]) -> None:
    """Rows of coefficients that are the unit vectors: each base alone."""
    near = torch.logspace(-30, 1, 800)
    x = torch.cat([torch.linspace(-30, 30, 4001), near, -near])
    rows = x.expand(len(names), -1).contiguous()
    dy, c = torch.where(rows > 0, 1.0, 0.5), torch.eye(len(names))
    spec = spec_of(*names, channel_dim=0)
    y, dx, dc = results(rows, dy, c, spec)
    _, wanted_dx, wanted_dc = expected(rows, dy, c, spec)
    for i, name in enumerate(names):
        assert relative_error(y[i], oracle.CLOSED_FORMS[name](x.double())) < 1e-6
        assert relative_error(dx[i], wanted_dx[i]) < 1e-6
        if name in PRECISE:
            torch.testing.assert_close(
                y[i].double(), PRECISE[name](x.double()), rtol=6e-6 if name == "gelu" else 1e-6, atol=1e-37
            )
    assert relative_error(dc, wanted_dc) < 1e-6


@pytest.mark.parametrize("names", QUARTETS, ids=" ".join)
def test_nan_and_infinities_come_out_as_in_the_reference(names: tuple[str, ...]) -> None:
    """Numbers beside them are computed by the same loop."""
    x = torch.cat([torch.tensor([torch.nan, torch.inf, -torch.inf, 1e38, -1e38, 0.0]), torch.linspace(-20, 20, 60)])
    if "gelu" in names:
        x[1:3] = 0.0  # at infinity PyTorch's own depends on the length of the input
    rows, spec = x.expand(len(names) + 1, -1).contiguous(), spec_of(*names, channel_dim=0)
    c = torch.cat([torch.eye(len(names)), torch.ones(1, len(names))])
    torch.testing.assert_close(cpu.forward(rows, c, spec), reference.forward(rows, c, spec), equal_nan=True)
    found, wanted = (kernel.backward(torch.ones_like(rows), rows, c, spec)[0] for kernel in (cpu, reference))
    torch.testing.assert_close(found[:, 1:], wanted[:, 1:], equal_nan=True)  # the slope of ReLU at NaN is anything
    assert cpu.backward(torch.ones(1), x[:1], c[0], spec)[1].isnan().all()  # the value of every base at NaN


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_agrees_with_float64(layout: str, dtype: torch.dtype) -> None:
    shape, groups, memory = LAYOUTS[layout]
    x, dy = (torch.randn(shape).to(dtype=dtype) for _ in range(2))
    if len(shape) == 4:
        x, dy = (t.contiguous(memory_format=memory) for t in (x, dy))
    c, spec = torch.randn((4,) if groups is None else (groups, 4)), spec_of("relu", "sin", "unit_gelu", "elu")
    rounding = {torch.float32: 1e-6, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}[dtype]
    found = results(x, dy, c, spec)
    for part, wanted in zip(found, expected(x, dy, c, spec), strict=True):
        assert relative_error(part, wanted) < rounding
    assert found[0].stride() == found[1].stride() == x.stride()
    assert found[0].dtype == found[1].dtype == dtype


@pytest.mark.parametrize("groups", [None, 4])
def test_waves_of_huge_numbers_are_those_of_the_c_library(groups: int | None) -> None:
    x = torch.randn(6, 4, 20)
    x[2, 1, 3], x[3, 2, 5], x[0, 0, 0] = 1e30, -3e5, torch.inf
    spec = spec_of("sin", "snake(3)")
    c = torch.ones((2,) if groups is None else (groups, 2))
    found, wanted = results(x, torch.ones_like(x), c, spec), expected(x, torch.ones_like(x), c, spec)
    assert found[0].isnan().sum() == 1
    assert (found[0][3, 2, 5] - reference.forward(x, c, spec)[3, 2, 5]).abs() < 0.1  # 2^-5 is the last place of 3e5
    inside = (x.abs() < 1e5) & x.isfinite()
    for part, whole in zip(found[:2], wanted[:2], strict=True):
        torch.testing.assert_close(part[inside].double(), whole[inside], rtol=1e-5, atol=1e-5)
    assert torch.equal(found[2].isnan(), wanted[2].isnan())


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("layout", ["one row", "channels last"])
def test_results_do_not_depend_on_the_number_of_threads(layout: str) -> None:
    shape, groups, memory = (8, 16, 80, 80), 16 if layout == "channels last" else None, LAYOUTS[layout][2]
    x, dy = (torch.randn(shape).contiguous(memory_format=memory) for _ in range(2))
    c, spec = torch.randn((2,) if groups is None else (groups, 2)), spec_of("tanh", "identity")
    several = results(x, dy, c, spec)
    torch.set_num_threads(1)
    for one, two in zip(results(x, dy, c, spec), several, strict=True):
        assert torch.equal(one, two)
    for part, wanted in zip(several, expected(x, dy, c, spec), strict=True):
        assert relative_error(part, wanted) < 1e-6


def test_a_base_of_ones_own_is_compiled_if_it_has_a_formula() -> None:
    formula = "x / (1 + square(x)) + log1p(abs(x) / k) * sqrt(1 + x * x) - where(x < -1, exp(x), cos(x))"
    base = hullo.add_base("odd_one", formula, parameters={"k": 0.5})
    x, dy, c = torch.linspace(-9, 9, 301), torch.randn(301), torch.tensor([0.5, 0.5])
    spec = spec_of(base, "relu")
    (y, dx, dc), (wanted_y, wanted_dx, wanted_dc) = results(x, dy, c, spec), expected(x, dy, c, spec)
    assert relative_error(y, wanted_y) < 1e-6
    assert relative_error(dx, wanted_dx) < 1e-6
    terms = torch.stack([dy.double() * item.function(x.double()) for item in spec.bases])
    assert bool(((dc - wanted_dc).abs() < 1e-6 * terms.abs().sum(1)).all())  # they may nearly cancel in the sum
    large = spec_of(hullo.add_base("of_large", "asinh(square(square(x)))"))
    x = torch.tensor([0.5, 9e4])
    torch.testing.assert_close(cpu.forward(x, c[:1], large), reference.forward(x, c[:1], large))
    python_only = hullo.add_base("python_only", lambda x: x * torch.sigmoid(2 * x))
    assert compiled.library(x, spec_of(python_only)) is None


@pytest.mark.parametrize(
    ("variable", "value"), [("CC", "/bin/false"), ("CC", "no-such-compiler"), ("CC", "cc '"), ("HULLO_COMPILE", "0")]
)
def test_without_a_working_compiler_blocks_serve(
    variable: str, value: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    x, c, spec = torch.randn(100), torch.ones(2), spec_of("gelu", "tanh")
    assert compiled.library(x, spec) is None
    torch.testing.assert_close(cpu.forward(x, c, spec), reference.forward(x, c, spec))
    assert not list(cache.glob("*.so"))


def test_a_cache_that_cannot_be_written_leaves_blocks(cache: Path) -> None:
    cache.parent.write_text("a file in the place of the directory")
    assert compiled.library(torch.randn(100), spec_of("gelu")) is None


def test_nothing_is_loaded_from_a_cache_of_another_user(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, spec = torch.randn(100), spec_of("relu")
    assert compiled.library(x, spec) is not None
    monkeypatch.setattr(compiled, "_loaded", {})
    if os.getuid() == 0:
        os.chown(cache, 12345, 12345)
    else:
        monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert compiled.library(x, spec) is None


def test_what_was_computed_before_does_not_choose_the_kernel(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "WORTHWHILE", 1000)
    small, large, spec = torch.randn(999), torch.randn(1000), spec_of("relu")
    assert compiled.library(large.double(), spec) is None
    assert compiled.library(large, spec) is not None
    assert compiled.library(small, spec) is None


def test_a_damaged_library_is_built_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, spec = torch.randn(100), spec_of("relu")
    compiled.library(x, spec)
    (path,) = cache.glob("*.so")
    whole = path.read_bytes()
    for damaged in (whole[:1000], whole[:5000] + b"\0" * 100 + whole[5100:], b""):
        path.unlink()  # the mapping of the loaded one must not change
        path.write_bytes(damaged)
        monkeypatch.setattr(compiled, "_loaded", {})
        torch.testing.assert_close(cpu.forward(x, torch.ones(1), spec), torch.relu(x))
        assert path.read_bytes() != damaged


@pytest.mark.filterwarnings("ignore:.*fork")
@pytest.mark.usefixtures("two_threads")
def test_two_processes_that_compile_at_once_share_the_cache(cache: Path) -> None:
    x, spec = torch.randn(2**16), spec_of("relu")
    cpu.forward(x, torch.ones(2), spec_of("relu", "tanh"))  # starts the threads of OpenMP, which a fork does not copy
    before = len(list(cache.iterdir()))

    def child(barrier: Any) -> None:
        torch.set_num_threads(1)  # as workers of a DataLoader do
        barrier.wait()
        if compiled.library(x, spec) is None or not torch.equal(cpu.forward(x, torch.ones(1), spec), x.relu()):
            os._exit(1)

    fork = multiprocessing.get_context("fork")
    barrier = fork.Barrier(2)
    processes = [fork.Process(target=child, args=(barrier,)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=60)
    assert [process.exitcode for process in processes] == [0, 0]
    assert len(list(cache.iterdir())) == before + 1


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_types_of_eight_bits_are_computed_in_float32(dtype: torch.dtype) -> None:
    x = torch.linspace(-3, 3, 2 * compiled.WORTHWHILE).to(dtype)
    act = hullo.AffineHull("identity", "relu", "tanh")
    assert torch.equal(act(x).float(), act(x.float()).to(dtype).float())


def test_the_largest_numbers_have_an_asinh() -> None:
    x = torch.cat([torch.logspace(17, 38.5, 300), torch.tensor([torch.finfo(torch.float32).max])])
    y = hullo.LinearHull("asinh", init=[1.0])(x)
    torch.testing.assert_close(y.double(), torch.asinh(x.double()), rtol=3e-7, atol=0)


@pytest.mark.parametrize("count", [2, 5])
@pytest.mark.parametrize("size", [10, 1000])
def test_raw_parameters_of_another_number_are_refused(count: int, size: int) -> None:
    hull = hullo.LinearHull("identity", "relu", "tanh")
    with pytest.raises(ValueError, match=f"{count} raw parameters.*3 base functions"):
        torch.func.functional_call(hull, {hull.raw_name: torch.ones(count)}, (torch.ones(size),))
