"""The fused kernels: on a GPU where there is one, else on the CPU through Triton's interpreter."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

import hullo
from cuda_steps import assert_replayed, count_kernels
from hullo.bases.formulas import FUNCTIONS
from hullo.functional import _Gradients
from hullo.kernels import CombineSpec, choose, reference
from hullo.kernels.codegen import kernel_source
from hullo.parametrizations import get_parametrization

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


from hullo.kernels import device_math  # noqa: E402
from hullo.kernels import triton as kernels  # noqa: E402

TRIO = tuple(hullo.get_base(name) for name in ("identity", "relu", "tanh"))
SIX = tuple(hullo.get_base(name) for name in ("identity", "relu", "tanh", "hardtanh", "unit_gelu", "unit_silu"))
PARAMETRIZATIONS = ("given", "recentred", "free", "softmax", "projection", "clamped", "softplus")
ROUNDING = {
    torch.float32: 1e-6,
    torch.float16: 2.0**-11,
    torch.bfloat16: 2.0**-8 if DEVICE == "cuda" else 2.0**-7,
}
"""A relative error in norm; for 16 bits the most that rounding a result can do (the interpreter cuts bfloat16 off)."""

LAYOUTS = {
    "one element": ((1,), 1, 0, torch.contiguous_format),
    "odd": ((1023,), 1, 0, torch.contiguous_format),
    "several programs": ((17, 521), 1, 0, torch.contiguous_format),
    "a group a channel": ((2, 6, 5, 7), 6, 1, torch.contiguous_format),
    "groups of channels": ((3, 6, 40, 16), 3, 1, torch.contiguous_format),
    "long runs": ((3, 2, 2111), 2, 1, torch.contiguous_format),
    "long runs that begin anywhere": ((64, 4, 516), 4, 1, torch.contiguous_format),
    "short runs, many": ((70, 4, 9, 8), 2, 1, torch.contiguous_format),
    "channels last": ((2, 6, 5, 7), 6, 1, torch.channels_last),
    "channels last, groups": ((4, 150, 3, 3), 50, 1, torch.channels_last),
    "last dimension": ((3, 5, 70), 70, -1, torch.contiguous_format),
}


def random_case(shape: tuple[int, ...], groups: int, raw_size: int, layout: torch.memory_format) -> tuple[Tensor, ...]:
    x, gradient = 3 * torch.randn(shape), torch.randn(shape)
    raw = 0.7 * torch.randn((groups, raw_size) if groups > 1 else (raw_size,))
    return *(t.to(DEVICE, memory_format=layout) for t in (x, gradient)), raw.to(DEVICE)


def relative_error(found: Tensor, expected: Tensor) -> float:
    return ((found.double() - expected).norm() / expected.norm().clamp_min(1e-2)).item()


def check(x: Tensor, gradient: Tensor, raw: Tensor, spec: CombineSpec) -> None:
    wide = (gradient.double(), x.double(), raw.double())
    y, (dx, draw) = kernels.forward(x, raw, spec), kernels.backward(gradient, x, raw, spec)
    expected_dx, expected_draw = reference.backward(*wide, spec)
    assert relative_error(y, reference.forward(*wide[1:], spec)) < ROUNDING[x.dtype]
    assert relative_error(dx, expected_dx) < ROUNDING[x.dtype]
    assert relative_error(draw, expected_draw) < max(4e-6, ROUNDING[x.dtype] / 4)  # sums that nearly cancel
    assert y.stride() == dx.stride() == torch.empty_like(x).stride()
    assert draw.dtype == raw.dtype


@pytest.mark.parametrize(
    ("layout", "parametrization"),
    [
        (layout, parametrization)
        for layout in LAYOUTS
        for parametrization in PARAMETRIZATIONS
        if DEVICE == "cuda" or layout in ("odd", "a group a channel", "channels last") or parametrization == "recentred"
    ],
)
def test_every_layout_and_way_agrees_with_float64(layout: str, parametrization: str) -> None:
    shape, groups, channel_dim, memory = LAYOUTS[layout]
    spec = CombineSpec(TRIO, get_parametrization(parametrization), channel_dim)
    check(*random_case(shape, groups, 3 - spec.parametrization.fewer, memory), spec)


def test_sums_of_programs_that_cancel_are_exact() -> None:
    x, gradient, size = torch.ones(2**15, device=DEVICE), torch.zeros(2**15, device=DEVICE), 2**10
    gradient[::size] = 1
    gradient[0], gradient[-size] = 2**25, -(2**25)
    spec = CombineSpec(TRIO[:2], get_parametrization("given"), 0)
    _, sums = kernels.backward(gradient, x, torch.ones(2, device=DEVICE), spec)
    assert sums.tolist() == [30, 30]


@pytest.mark.parametrize("parametrization", ["projection", "softmax"])
def test_large_raw_parameters_keep_the_sum_of_one(parametrization: str) -> None:
    x, raw = torch.linspace(-3, 3, 7, device=DEVICE), torch.tensor([1e8, -1e8, 0.0], device=DEVICE)
    spec = CombineSpec(TRIO, get_parametrization(parametrization), 0)
    assert torch.equal(kernels.forward(x, raw, spec), x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("bases", [TRIO, SIX], ids=["three", "six"])
@pytest.mark.parametrize("layout", ["odd", "groups of channels", "channels last, groups"])
def test_16_bits_agree_to_their_rounding(dtype: torch.dtype, bases: tuple[hullo.Base, ...], layout: str) -> None:
    shape, groups, channel_dim, memory = LAYOUTS[layout]
    x, gradient, raw = random_case(shape, groups, len(bases), memory)
    check(x.to(dtype), gradient.to(dtype), raw, CombineSpec(bases, get_parametrization("recentred"), channel_dim))


@pytest.mark.parametrize("others", [(), TRIO], ids=["alone", "of four"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.bfloat16, (1.2 * 2.0**-7, 0.0)), (torch.float16, (2.0**-10, 2.0**-24))]
)
@pytest.mark.parametrize("name", ["gelu", "silu"])
def test_16_bits_keep_their_relative_precision_where_functions_vanish(
    name: str, dtype: torch.dtype, tolerance: tuple[float, float], others: tuple[hullo.Base]
) -> None:
    x = torch.cat([torch.linspace(-6, 3, 200), torch.tensor([-torch.inf, torch.inf, torch.nan])]).to(DEVICE, dtype)
    bases = (*others, hullo.get_base(name))
    spec, raw = CombineSpec(bases, get_parametrization("given"), 0), torch.zeros(len(bases), device=DEVICE)
    raw[-1] = 1.0
    finite = x.isfinite()
    found, expected = kernels.forward(x, raw, spec).double(), reference.forward(x.double(), raw.double(), spec)
    torch.testing.assert_close(found[finite], expected[finite], rtol=tolerance[0], atol=tolerance[1])


@pytest.mark.parametrize("name", hullo.list_bases())
def test_every_base_agrees_with_float64(name: str) -> None:
    x = torch.cat([torch.linspace(-30, 30, 1201), torch.logspace(-6, 1, 200), -torch.logspace(-6, 1, 200)]).to(DEVICE)
    gradient = torch.where(x > 0, 1.0, 0.5)
    check(
        x, gradient, torch.ones(1, device=DEVICE), CombineSpec((hullo.get_base(name),), get_parametrization("given"), 0)
    )


@pytest.mark.parametrize("name", hullo.list_bases())
def test_nan_and_infinities_come_out_as_in_the_reference(name: str) -> None:
    x = torch.tensor([torch.nan, torch.inf, -torch.inf, 1e38, -1e38, 0.0], device=DEVICE)
    spec = CombineSpec((hullo.get_base(name),), get_parametrization("given"), 0)
    one = torch.ones(1, device=DEVICE)
    expected = reference.forward(x, one, spec)
    if name in ("gelu", "unit_gelu"):  # PyTorch's own depends on the length of the input here; these are the limits
        expected[1:3] = torch.tensor([torch.inf, 0.0])
    torch.testing.assert_close(kernels.forward(x, one, spec), expected, equal_nan=True)


@pytest.mark.gpu  # Triton's interpreter runs one program after the other
def test_every_run_gives_the_same_bits() -> None:
    x, gradient, raw = random_case((24, 60, 9, 9), 60, 3, torch.channels_last)
    spec = CombineSpec(TRIO, get_parametrization("projection"), 1)
    first = kernels.backward(gradient, x, raw, spec)
    for _ in range(2):
        again = kernels.backward(gradient.clone(), x.clone(), raw.clone(), spec)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_an_address_that_is_not_aligned_is_served() -> None:
    spec = CombineSpec(TRIO, get_parametrization("recentred"), 0)
    x, gradient, raw = random_case((4097,), 1, 3, torch.contiguous_format)
    check(x[:4096].clone(), gradient[:4096].clone(), raw, spec)
    check(x[1:], gradient[1:], raw, spec)


@pytest.mark.parametrize("length", [3, 1025, 2047, 6145])
@pytest.mark.parametrize("bases", [TRIO, SIX], ids=len)
def test_single_runs_of_odd_lengths(bases: tuple[hullo.Base, ...], length: int) -> None:
    """Tiles that are whole have no mask; the last one, which is not, ends before other numbers in memory."""
    x, gradient, raw = random_case((length,), 1, len(bases), torch.contiguous_format)
    spec = CombineSpec(bases, get_parametrization("recentred"), 0)
    check(x, gradient, raw, spec)
    beyond = torch.full((length + 13,), 7.0, device=DEVICE)
    launches, *_ = kernels._arrange(spec, False, raw, x)
    launches.forward(x, raw, beyond[:length])
    assert (beyond[length:] == 7).all()
    torch.testing.assert_close(beyond[:length], kernels.forward(x, raw, spec))


@pytest.mark.parametrize("shape", [(0,), (0, 4, 3), ()])
def test_empty_and_0d_inputs(shape: tuple[int, ...]) -> None:
    x, raw = torch.randn(shape, device=DEVICE), torch.full((3,), 1 / 3, device=DEVICE)
    spec = CombineSpec(TRIO, get_parametrization("recentred"), 1)
    dx, draw = kernels.backward(torch.ones_like(x), x, raw, spec)
    assert kernels.forward(x, raw, spec).shape == dx.shape == x.shape
    assert draw.isfinite().all()


def test_strided_and_expanded_inputs_and_gradients() -> None:
    spec = CombineSpec(TRIO, get_parametrization("recentred"), 1)
    x, gradient, raw = random_case((6, 12, 10), 4, 3, torch.contiguous_format)
    check(x[::2, :, 1::3], gradient[::2, :, 1::3].transpose(0, 2).contiguous().transpose(0, 2), raw, spec)
    check(x.transpose(0, 2)[:, :, :1].expand(10, 12, 6), torch.ones(1, device=DEVICE).expand(10, 12, 6), raw, spec)


def test_a_hull_trains_through_the_kernels_as_through_the_reference() -> None:
    x, target = torch.randn(64, 6, device=DEVICE), torch.randn(64, 6, device=DEVICE)
    raw = torch.full((3, 3), 1 / 3, device=DEVICE)
    paths = []
    for backend in ("triton", "reference"):
        c = raw.clone().requires_grad_()
        for _ in range(5):
            loss = (hullo.combine(x, c, TRIO, backend=backend) - target).square().mean()
            (slope,) = torch.autograd.grad(loss, c)
            c = (c - 0.1 * slope).detach().requires_grad_()
        paths.append(c)
    torch.testing.assert_close(paths[0], paths[1])


def test_every_word_of_the_catalogue_has_a_meaning_here() -> None:
    for meaning in (device_math.PRECISE, device_math.FLOAT16, device_math.BFLOAT16):
        assert FUNCTIONS.keys() <= meaning.keys()


def test_a_word_is_computed_once_however_often_formulas_use_it() -> None:
    text = kernel_source(
        (hullo.get_base("silu"), hullo.get_base("quick_gelu"), hullo.get_base("relu"), hullo.get_base("gelu")),
        get_parametrization("given"),
    )
    once = text[text.index("if ONE_TILE") : text.index("for tile in")]
    assert [once.count(word) for word in ("= sigmoid(x)", "= sigmoid(1.702 * x)", "= positive_part(x)")] == [1, 1, 1]


def test_a_base_without_a_formula_falls_back_and_is_refused_by_name() -> None:
    bump = hullo.bases.custom._measure(
        "bump", lambda x: x * torch.exp(-x * x), lambda x, y: (1 - 2 * x * x) * torch.exp(-x * x)
    )
    spec = CombineSpec((bump,), get_parametrization("given"), 1)
    x = torch.randn(3, device=DEVICE)
    assert choose(x, spec, None) in ("cpu", "reference")
    with pytest.raises(ValueError, match=r"'triton' does not support .* with bump: .*bases that have formulas; use"):
        choose(x, spec, "triton")


@pytest.mark.parametrize("layout", ["odd", "groups of channels", "channels last, groups"])
def test_second_derivatives_in_every_layout(layout: str) -> None:
    shape, groups, channel_dim, memory = LAYOUTS[layout]
    spec = CombineSpec(TRIO, get_parametrization("given"), channel_dim)
    x, gradient, c = random_case(shape, groups, 3, memory)
    v, w = (
        torch.randn(shape, device=DEVICE),
        torch.randn(*c.shape, 2, device=DEVICE)[..., 0],
    )  # not laid out as x, c are
    inputs = [t.double().requires_grad_() for t in (gradient, x, c)]
    expected = torch.autograd.grad(reference.backward(*inputs, spec), inputs, (v.double(), w.double()))
    inputs = [t.detach().requires_grad_() for t in (gradient, x, c)]
    firsts = _Gradients.apply(*inputs, spec)
    for tensor, wanted in zip(torch.autograd.grad(firsts, inputs, (v, w)), expected, strict=True):
        assert relative_error(tensor, wanted) < 4e-6


@given(
    outer=st.integers(1, 40),
    groups=st.integers(1, 9),
    inner=st.integers(1, 300),
    by_column=st.sampled_from([None, 16, 64]),
    size=st.sampled_from([64, 256]),
    programs=st.sampled_from([None, 1, 7, 32]),
)
def test_tiles_cover_every_element_once(
    outer: int, groups: int, inner: int, by_column: int | None, size: int, programs: int | None
) -> None:
    tiling = kernels.tile(outer, groups, inner, by_column, size, programs)
    _, _, width, span, tiles, across, splits = tiling.sizes
    rows, columns = (torch.arange(tiling.constants[name]) for name in ("ROWS", "COLUMNS"))
    counts = torch.zeros(outer * width, dtype=torch.int64)
    for program in range(tiling.programs):
        split, lane = program % splits, program // splits
        for tile in range(split, tiles, splits):
            down, right = tile // across * len(rows), tile % across * len(columns)
            inside = (down + rows[:, None] < outer) & (right + columns < span)
            inside &= (lane * span + columns < width) | (by_column is None)
            assert inside.all() or not tiling.constants["EVEN"]
            assert not tiling.constants["SINGLE"] or inside.all() == (right + len(columns) <= span)
            at = (down + rows[:, None]) * width + lane * span + right + columns
            counts[at[inside]] += 1
    assert (counts == 1).all()
    assert tiling.constants["ONE_TILE"] == (splits == tiles)


def test_offsets_have_64_bits_where_32_do_not_hold_them() -> None:
    flags = [kernels.tile(*sizes, None, 2048, None).constants["BIG"] for sizes in ((1, 1, 2**30), (8, 4, 2**26))]
    assert flags == [False, True]


gpu = pytest.mark.gpu


@gpu
def test_more_than_2_31_elements() -> None:
    size = 2**31 + 1000
    x = torch.empty(size, dtype=torch.bfloat16, device="cuda").uniform_(-3, 3)
    gradient = torch.empty_like(x).uniform_(0, 1)
    raw = torch.tensor([0.2, 0.3, 0.5], device="cuda")
    spec = CombineSpec(TRIO, get_parametrization("given"), 0)
    y, (dx, draw) = kernels.forward(x, raw, spec), kernels.backward(gradient, x, raw, spec)
    sums = torch.zeros(3, dtype=torch.float64, device="cuda")
    for start in range(0, size, 2**28):
        part = slice(start, start + 2**28)
        expected_dx, expected_sums = reference.backward(gradient[part].float(), x[part].float(), raw, spec)
        torch.testing.assert_close(
            y[part], reference.forward(x[part].float(), raw, spec).bfloat16(), rtol=8e-3, atol=1e-3
        )
        torch.testing.assert_close(dx[part], expected_dx.bfloat16(), rtol=8e-3, atol=1e-3)
        sums += expected_sums
    torch.testing.assert_close(draw.double(), sums, rtol=1e-4, atol=1e-2)


@gpu
def test_cuda_tensors_go_to_the_fused_kernel() -> None:
    spec = CombineSpec(TRIO, get_parametrization("recentred"), 1)
    assert choose(torch.empty(1, device="cuda"), spec, None) == "triton"
    assert choose(torch.empty(1, device="cuda", dtype=torch.float64), spec, None) == "reference"


@gpu
@pytest.mark.parametrize("groups", [1, 8])
def test_a_compiled_hull_equals_an_eager_one(groups: int) -> None:
    act = hullo.AffineHull("identity", "relu", "tanh", groups=groups).cuda()
    compiled = torch.compile(copy.deepcopy(act), fullgraph=True)
    x = torch.randn(16, 8, 9, 9, device="cuda")
    for hull in (act, compiled):
        (hull(2 * x) + 1).square().sum().backward()
    torch.testing.assert_close(compiled(x), act(x))
    torch.testing.assert_close(next(compiled.parameters()).grad, act.raw.grad)


@gpu
def test_compiled_code_calls_the_fused_kernel() -> None:
    graphs: list[torch.fx.GraphModule] = []

    def parametrization(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    act = hullo.AffineHull("identity", "relu", "tanh").cuda()
    torch.compile(act, fullgraph=True, backend=parametrization)(torch.randn(4, device="cuda"))
    assert any("hullo" in str(node.target) for node in graphs[0].graph.nodes)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_the_operators_pass_torchs_own_checks(layout: torch.memory_format) -> None:
    x = torch.randn(4, 6, 5, 5, device=DEVICE).to(memory_format=layout).requires_grad_()
    raw = torch.randn(2, 3, device=DEVICE, requires_grad=True)
    rest = (CombineSpec(TRIO, get_parametrization("recentred"), 1).encoded, None)
    torch.library.opcheck(torch.ops.hullo.combine, (x, raw, *rest))
    torch.library.opcheck(torch.ops.hullo.combine_backward, (x.detach(), x.detach(), raw.detach(), *rest))


@gpu
def test_second_derivatives_and_torch_func_agree_with_the_cpu() -> None:
    act = hullo.ConvexHull("identity", "relu", "tanh", init=[0.2, 0.3, 0.5])
    x = torch.randn(5, 4)

    def answers(device: str) -> list[Tensor]:
        raw, at = act.raw.detach().to(device), x.to(device)
        call = copy.deepcopy(act).to(device)

        def loss(raw: Tensor, x: Tensor) -> Tensor:
            return torch.func.functional_call(call, {call.raw_name: raw}, (x,)).square().sum()

        per_sample = torch.vmap(torch.func.grad(loss), (None, 0))(raw, at)
        rows = torch.vmap(loss, (0, None))(torch.stack([raw, raw.flip(0)]), at)
        x_leaf = at.clone().requires_grad_()
        (slope,) = torch.autograd.grad(call(x_leaf).pow(3).sum(), x_leaf, create_graph=True)
        (curvature,) = torch.autograd.grad(slope.square().sum(), x_leaf)
        return [t.cpu() for t in (per_sample, rows, torch.func.hessian(loss)(raw, at), curvature)]

    for found, expected in zip(answers("cuda"), answers("cpu"), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@gpu
@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events")
def test_one_kernel_forward_and_two_backward_also_in_a_cuda_graph() -> None:
    act = hullo.AffineHull("identity", "relu", "tanh").cuda()
    x = torch.randn(2**18, device="cuda", requires_grad=True)
    gradient = torch.randn_like(x)
    expected = torch.autograd.grad(act(x), (x, act.raw), gradient)

    held = [act(x)]
    assert count_kernels(lambda: act(x)) == 1
    assert count_kernels(lambda: torch.autograd.grad(held[0], (x, act.raw), gradient, retain_graph=True)) == 2
    held.clear()  # what is alive of an earlier pass would tie the capture to the stream of that pass
    torch.cuda.synchronize()
    assert_replayed(lambda: torch.autograd.grad(act(x), (x, act.raw), gradient), expected)


@gpu
def test_autocast_keeps_coefficients_in_float32() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), hullo.AffineHull("identity", "relu", "tanh")).cuda()
    with torch.autocast("cuda", torch.bfloat16):
        y = model(torch.randn(4, 8, device="cuda"))
    y.float().sum().backward()
    assert y.dtype == torch.bfloat16
    assert model[1].raw.grad.dtype == torch.float32


@pytest.mark.parametrize("layout", ["odd", "groups of channels", "channels last, groups", "last dimension"])
@pytest.mark.parametrize(("dtype", "parametrization"), [(torch.float32, "softmax"), (torch.bfloat16, "recentred")])
def test_gated_kernels_agree_with_float64(dtype: torch.dtype, layout: str, parametrization: str) -> None:
    shape, groups, channel_dim, memory = LAYOUTS[layout]
    spec = CombineSpec(TRIO, get_parametrization(parametrization), channel_dim)
    gate, gradient, raw = random_case(shape, groups, 3, memory)
    up = torch.randn(shape, device=DEVICE)  # not laid out as the gate is
    gate, gradient, up = gate.to(dtype), gradient.to(dtype), up.to(dtype)
    value = reference.forward(gate.double(), raw.double(), spec)
    dgate, draw = reference.backward(gradient.double() * up.double(), gate.double(), raw.double(), spec)
    found = kernels.gated_forward(gate, up, raw, spec), *kernels.gated_backward(gradient, gate, up, raw, spec)
    for tensor, expected in zip(found[:3], (value * up, dgate, gradient.double() * value), strict=True):
        assert relative_error(tensor, expected) < ROUNDING[dtype]
        assert tensor.stride() == gate.stride()
    assert relative_error(found[3], draw) < max(4e-6, ROUNDING[dtype] / 4)


def test_gated_kernels_take_empty_tensors() -> None:
    x, raw, spec = (
        torch.randn(0, 4, device=DEVICE),
        torch.ones(3, device=DEVICE),
        CombineSpec(TRIO, get_parametrization("recentred"), 1),
    )
    assert kernels.gated_forward(x, x, raw, spec).shape == (0, 4)
    assert kernels.gated_backward(x, x, x, raw, spec)[2].tolist() == [0, 0, 0]


@pytest.mark.parametrize("kernel", ["triton", "cpu"])
def test_compiled_code_calls_the_fused_kernel_where_there_is_one(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs: list[str] = []

    def keep(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., Any]:
        graphs.append(graph.code)
        return graph.forward

    monkeypatch.setattr(hullo.functional, "choose", lambda *_: kernel)
    torch.compile(hullo.AffineHull(*TRIO), backend=keep, fullgraph=True)(torch.randn(7))
    assert [".hullo.combine" in code for code in graphs] == [kernel == "triton"]


@given(
    outer=st.integers(1, 70),
    width=st.sampled_from([1, 48, 2**16, 2**24, 2**25, 2**26]),
    size=st.sampled_from([256, 4096]),
)
@example(outer=2, width=2**16, size=256)
@example(outer=2147483, width=1000, size=4096)
def test_tiles_in_one_row_hold_all_rows_and_offsets_fit_into_their_type(outer: int, width: int, size: int) -> None:
    tiling = kernels.tile(outer, 1, width, None, size, None)
    rows, columns = tiling.constants["ROWS"], tiling.constants["COLUMNS"]
    assert not tiling.constants["FLAT"] or outer <= rows
    last = (-(-outer // rows) * rows - 1) * width + -(-width // columns) * columns - 1  # also of masked elements
    assert tiling.constants["BIG"] or last < 2**31
