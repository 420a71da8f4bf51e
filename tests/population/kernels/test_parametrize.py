"""One kernel keeps the coefficients of all members and layers as the plain form does: on a GPU where there is one, else
on the CPU through Triton's interpreter."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

import hullo
from cuda_steps import assert_replayed, count_kernels
from hullo.lab.spec.activation import ActivationSpec
from hullo.population import kernels
from hullo.population.activations import CODES, Activations
from hullo.population.sites import Activation, ActivationSite

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

from hullo.population.kernels.parametrize import parametrize, restrict  # noqa: E402

NAMES = [name for name in hullo.list_bases() if not name.startswith(("unit_", "leaky", "celu", "selu"))][:9]
HULLS = [
    *(f"convex({{}},parametrization={name})" for name in hullo.coefficients.SIMPLEX.choices),
    *(f"affine({{}},parametrization={name})" for name in hullo.coefficients.HYPERPLANE.choices),
    *(f"conic({{}},parametrization={name})" for name in hullo.coefficients.ORTHANT.choices),
    "linear({})",
]
EVERY = [
    *(hull.format(",".join(bases)) for hull in HULLS for bases in (NAMES[:3], NAMES[:2], NAMES[1:3], NAMES[2:3])),
    "relu",
    "leaky_relu(0.2)",
]
"""Each parametrization over all bases, over some and over one."""
CLOSE = {"rtol": 1e-6, "atol": 1e-6, "equal_nan": True}

bases = st.lists(st.sampled_from(NAMES), min_size=1, unique=True).map(",".join)
hulls = st.builds(str.format, st.sampled_from(HULLS), bases)
by_channel = hulls.map(lambda row: f"{row[:-1]},per=channel)")
members = st.lists(hulls | by_channel | st.sampled_from([*NAMES, "prelu"]), min_size=1, max_size=4)


def build(rows: list[str], widths: list[int]) -> Activations:
    """Make the activations of a population, one site per width, with one site's channels as many."""
    sites = []
    for number, width in enumerate(widths):
        modules = [ActivationSpec.parse(row).module(width) for row in rows]
        sites.append(ActivationSite(str(number), [found for module in modules if (found := Activation.of(module))]))
    made = Activations(sites, len(rows), torch.float32).to(DEVICE)
    made.slopes = None  # the kernel gets those of PReLU in the table of raw numbers
    return made


def fill(layers: Activations, raw: Tensor) -> None:
    """Set the raw numbers of rows that learn."""
    learned = (layers.codes > 0) & (layers.codes != CODES["rest"])
    with torch.no_grad():
        layers.raw.copy_(torch.where(learned, raw.to(layers.raw), layers.raw))


def order(layers: Activations) -> Tensor:
    """Return the row of the table of each row of all calls."""
    return layers._make_plan(fused=True).order


def make(layers: Activations, raw: Tensor, plan: Any = None) -> tuple[Tensor, ...]:
    """Return the kernel's coefficients of each call."""
    plan = plan or layers._make_plan(fused=True)
    heights = [len(call.rows) for calls in plan.calls for call in calls]
    return parametrize(raw, layers.fixed, layers.codes, plan.order, plan.uses, heights)


def run(layers: Activations, gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the kernel's coefficients, the gradient for raw numbers where the calls get parts of `gradients`, and its
    feasible part."""
    raw = layers.raw.detach().requires_grad_()
    kept = make(layers, raw)
    parts = gradients.to(raw).split([len(rows) for rows in kept])
    (pulled,) = torch.autograd.grad(kept, raw, parts)
    feasible = restrict(layers.raw.detach(), pulled, layers.codes)
    return torch.cat(kept).detach(), pulled, feasible


def plain(layers: Activations, gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the same by plain operations in float64."""
    layers = copy.deepcopy(layers).double()
    layers.raw = torch.nn.Parameter(layers.raw.detach())
    kept = layers._transform(layers._make_plan(fused=True))[order(layers)]
    (pulled,) = torch.autograd.grad(kept, layers.raw, gradients.to(layers.raw))
    return kept.detach(), pulled, layers.feasible_gradient(pulled).detach()


def check(layers: Activations, gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    found, expected = run(layers, gradients), plain(layers, gradients)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.double(), theirs, **CLOSE)
    return found


def eighths(shape: tuple[int, ...], most: int = 2) -> Tensor:
    """Return numbers with many ties and few digits: both forms then agree on which coefficients are zero."""
    return torch.randint(-8 * most, 8 * most + 1, shape) / 8


@settings(max_examples=15)
@given(
    members=members,
    widths=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    most=st.integers(1, 5),
    seed=st.integers(0, 2**31),
)
def test_any_rows_and_layers_agree_with_float64(members: list[str], widths: list[int], most: int, seed: int) -> None:
    layers = build(members, widths)
    assume(layers.raw.requires_grad)  # some member learns
    torch.manual_seed(seed)
    fill(layers, eighths(layers.raw.shape, most))
    check(layers, eighths((len(order(layers)), len(layers.bases)), most))


def test_activations_of_modules_that_are_gone_have_rows_of_their_own() -> None:
    sites = []
    for number in range(200):
        activation = Activation.of(hullo.ConvexHull("identity", "relu"))
        assert activation is not None
        sites.append(ActivationSite(str(number), [activation]))
    assert Activations(sites, 1, torch.float32).raw.shape[1] == 200


def test_every_way_agrees_beside_the_others() -> None:
    layers = build(EVERY, widths=[1] * 10)
    fill(layers, torch.randn(layers.raw.shape))
    check(layers, torch.randn(len(order(layers)), len(layers.bases)))


@settings(max_examples=25)
@given(st.lists(st.floats(-(2**99), 2**99, width=32), min_size=4 * 5, max_size=4 * 5), st.floats(-1e6, 1e6, width=32))
def test_convex_coefficients_are_exact_wherever_an_optimizer_goes(numbers: list[float], level: float) -> None:
    layers = build([hull.format(",".join(NAMES[:n])) for hull in HULLS[:2] for n in (4, 5)], widths=[1])
    raw = torch.tensor(numbers).view(4, 1, 5)
    raw[::2] = raw[::2].remainder(1.0) + level
    fill(layers, raw)
    kept, _, _ = check(layers, torch.ones(4, 5))
    assert (kept >= 0).all()
    assert not kept[layers.codes[:, 0] == 0].any()
    torch.testing.assert_close(kept.double().sum(-1).cpu(), torch.ones(4, dtype=torch.float64), rtol=0, atol=5e-7)


@pytest.mark.parametrize(
    ("raw", "coefficients", "gradient", "feasible"),
    [
        ((1, 0, 0), (1, 0, 0), (0, -1, 1), (0.5, -0.5, 0)),  # leaves a vertex for the better of its neighbors
        ((1, 0, 0), (1, 0, 0), (-1, 2, 2), (0, 0, 0)),  # stays, since both are worse
        ((9, 9, -9), (0.5, 0.5, 0), (1, 3, 2), (-1, 1, 0)),  # moves along an edge
        ((1, 1, -1), (0.5, 0.5, 0), (3, 3, 0), (1, 1, -2)),  # leaves an edge
        ((-4, -4, -4), (1 / 3, 1 / 3, 1 / 3), (0, 3, 6), (-3, 0, 3)),  # is free inside
    ],
)
def test_a_projection_leaves_vertices_and_edges_when_the_gradient_says_so(
    raw: tuple[float, ...], coefficients: tuple[float, ...], gradient: tuple[float, ...], feasible: tuple[float, ...]
) -> None:
    layers = build([f"convex({','.join(NAMES[:3])})", f"convex({','.join(NAMES[:4])})"], widths=[1])
    padded = torch.tensor([[*raw, 7.0], [*raw, -9.0]]).unsqueeze(1)  # not used, and far from being used
    fill(layers, padded)
    kept, _, found = check(layers, torch.tensor([[*gradient, -100.0], [*gradient, 100.0]]))
    assert kept[0].tolist() == pytest.approx([*coefficients, 0], abs=1e-7)
    assert kept[1].tolist() == pytest.approx([*coefficients, 0], abs=1e-7)
    assert found[0, 0].tolist() == found[1, 0].tolist() == pytest.approx([*feasible, 0], abs=1e-7)


EVEN, ODD = slice(0, None, 2), slice(1, None, 2)


@pytest.mark.parametrize(
    ("sick", "value", "count"),
    [(EVEN, float("nan"), 1), (ODD, float("nan"), 3), (EVEN, float("inf"), 3), (ODD, float("-inf"), 4)],
)
def test_beside_a_row_that_diverges_the_others_are_unchanged_to_the_bit(sick: slice, value: float, count: int) -> None:
    rows = [hull.format(",".join(NAMES[:n])) for hull in HULLS for n in sorted({1, count // 2 + 1, count})]
    layers = build([*rows, NAMES[0]], widths=[1] * count)
    raw, gradient = 2 * torch.randn(layers.raw.shape), torch.randn(count, *layers.raw.shape[::2])
    fill(layers, raw)
    healthy = run(layers, gradient.flatten(0, 1))
    worse, worse_gradient = raw.clone(), gradient.clone()
    for base in range(count):  # in each layer another
        worse[sick, base, base] = value
        worse_gradient[base, sick, base] = value
    others = torch.ones(count, len(layers.codes), dtype=torch.bool)
    others[:, sick] = False
    compute = check if math.isnan(value) else run  # NaN is passed on as in the plain form, where inf may become NaN
    found = [compute(layers, worse_gradient.flatten(0, 1))]
    fill(layers, worse)
    found += [compute(layers, given.flatten(0, 1)) for given in (gradient, worse_gradient)]
    for kept, pulled, feasible in found:
        assert torch.equal(kept[others.flatten()], healthy[0][others.flatten()])
        assert torch.equal(pulled[others.T], healthy[1][others.T])
        assert torch.equal(feasible[others.T], healthy[2][others.T])


def test_numbers_and_gradients_may_be_in_any_order_in_memory() -> None:
    layers = build(EVERY[:5], widths=[1] * 4)
    fill(layers, torch.randn(layers.raw.shape))
    given = layers.raw.detach(), torch.randn_like(layers.raw)
    raw, gradient = (item.permute(2, 1, 0).contiguous().permute(2, 1, 0) for item in given)
    expected = restrict(*given, layers.codes)
    assert torch.equal(restrict(raw, given[1], layers.codes), expected)
    assert torch.equal(restrict(given[0], gradient, layers.codes), expected)


def test_layers_without_a_gradient_count_as_zero() -> None:
    layers = build(EVERY[:5], widths=[1] * 4)
    fill(layers, torch.randn(layers.raw.shape))
    gradients = torch.randn(len(order(layers)), len(layers.bases))
    gradients[5:10] = gradients[15:20] = 0
    _, expected, _ = run(layers, gradients)
    raw = layers.raw.detach().requires_grad_()
    kept = make(layers, raw)
    parts = gradients.to(DEVICE).split(5)
    (found,) = torch.autograd.grad(kept[::2], raw, parts[::2])
    assert torch.equal(found, expected)


def test_rows_of_several_calls_get_the_sum_of_their_gradients() -> None:
    layers = build([*EVERY, "prelu"], widths=[5, 1, 9])
    assert layers.raw.shape[1] == 5 + 1 + 9  # of prelu; the others have one row per site
    fill(layers, torch.randn(layers.raw.shape))
    kept, pulled, _ = check(layers, torch.randn(len(order(layers)), len(layers.bases)))
    first_site = kept[: 5 * len(layers.codes)].view(-1, 5, len(layers.bases))[:-1]
    assert torch.equal(first_site, first_site[:, :1].expand_as(first_site))
    assert not pulled[:-1, 3:].any()
    assert len(set(pulled[-1, :5, 0].tolist())) == 5


@pytest.mark.parametrize("rows", [["relu"], ["convex(identity,relu)"], ["tanh", *EVERY], ["prelu", *EVERY]])
def test_the_kernel_makes_the_rows_where_it_serves(rows: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "support", lambda x: x.dtype != torch.float64)
    layers = build(rows, widths=[3, 1])
    fill(layers, torch.randn(layers.raw.shape))
    expected = copy.deepcopy(layers).double().coefficients.flatten(0, 1)
    for calls, found in zip(layers._plan.calls, layers.rows(), strict=True):
        for call, own in zip(calls, found, strict=True):
            torch.testing.assert_close(own.double(), call.select(expected[call.rows]), **CLOSE)
            assert not own.requires_grad or "Parametrize" in str(own.grad_fn) + str(own.grad_fn.next_functions)


def test_frozen_rows_have_coefficients_and_no_gradient() -> None:
    hulls = [ActivationSpec.parse(row).module(1) for row in EVERY]
    activations = [found for hull in hulls if (found := Activation.of(hull.requires_grad_(False)))]
    learned = [found for row in EVERY[:3] if (found := Activation.of(ActivationSpec.parse(row).module(1)))]
    layers = Activations([ActivationSite("0", [*activations, *learned])], len(activations) + 3, torch.float32).to(
        DEVICE
    )
    with torch.no_grad():
        layers.fixed.copy_(torch.where(layers.codes < 0, torch.rand(layers.fixed.shape, device=DEVICE), 0.0))
    kept, pulled, _ = check(layers, torch.randn(len(order(layers)), len(layers.bases)))
    assert kept[: len(activations)].any(1).all()
    assert not pulled[: len(activations)].any()
    assert pulled[len(activations) :].any()


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events")
def test_one_kernel_forward_and_two_backward_for_all_sites_also_in_a_cuda_graph() -> None:
    layers = build(EVERY, widths=[1] * 55)
    fill(layers, torch.randn(layers.raw.shape))
    gradients = torch.randn(len(order(layers)), len(layers.bases), device=DEVICE).split(len(EVERY))
    gradients = [gradient.clone() for gradient in gradients]
    raw, plan = layers.raw.detach().requires_grad_(), layers._make_plan(fused=True)

    def passes() -> tuple[Tensor, ...]:
        kept = make(layers, raw, plan)
        return *(rows.detach() for rows in kept), torch.autograd.grad(kept, raw, gradients)[0]

    expected = passes()
    assert count_kernels(passes) == 3  # one of them puts the calls' gradients side by side
    assert_replayed(passes, expected)
