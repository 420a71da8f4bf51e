"""Test gradients on the boundary of the simplex: they add up, and steps stay feasible."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import hullo
from hullo import optimizer_hook
from hullo.parametrizations import feasible_gradient
from made_hulls import through_torch_save

BASES = ("identity", "relu", "tanh")
OPTIMIZERS: list[Callable[[Sequence[Tensor]], torch.optim.Optimizer]] = [  # whose steps do not magnify rounding errors
    lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
]
PRECISIONS = (torch.float32, torch.float64)
on_faces = st.lists(st.sampled_from([0.0, 0.0, 0.25, 0.5, 1.0]), min_size=3, max_size=3).filter(sum)


def hull(numbers: list[float], **options: object) -> hullo.ConvexHull:
    """Return a hull on the boundary: many of the coefficients are zero."""
    start = torch.tensor(numbers, dtype=torch.float64)
    return hullo.ConvexHull(*BASES, init=start / start.sum(), dtype=torch.float64, **options)


def batch(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x, target = torch.randn(2, 12, 4, dtype=torch.float64, generator=generator).unbind()
    return x, target


def accumulate(model: nn.Module, x: Tensor, target: Tensor, micro_batches: int) -> None:
    model.zero_grad()
    for part, expected in zip(x.chunk(micro_batches), target.chunk(micro_batches), strict=True):
        (model(part) - expected).square().sum().backward()


@given(on_faces, st.integers(0, 2**31), st.sampled_from([2, 3, 12]), st.sampled_from([1, 2, 4]))
@settings(max_examples=50)
def test_micro_batch_gradients_sum_to_the_batch_gradient(
    numbers: list[float], seed: int, micro_batches: int, groups: int
) -> None:
    act = hull(numbers, groups=groups)
    accumulate(act, *batch(seed), micro_batches=1)
    whole = act.raw.grad
    accumulate(act, *batch(seed), micro_batches=micro_batches)
    torch.testing.assert_close(act.raw.grad, whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("make", OPTIMIZERS)
@given(numbers=on_faces, seed=st.integers(0, 2**31))
@settings(max_examples=10)
def test_micro_batch_training_equals_batch_training(
    make: Callable[[Sequence[Tensor]], torch.optim.Optimizer], numbers: list[float], seed: int
) -> None:
    torch.manual_seed(seed)
    whole = nn.Sequential(nn.Linear(4, 4, dtype=torch.float64), hull(numbers))
    parts = copy.deepcopy(whole)
    for model, micro_batches in ((whole, 1), (parts, 4)):
        optimizer = make(list(model.parameters()))
        for step in range(5):
            accumulate(model, *batch(seed + step), micro_batches=micro_batches)
            optimizer.step()
    torch.testing.assert_close(parts[1].coefficients, whole[1].coefficients, rtol=1e-9, atol=1e-9)


@given(on_faces, st.lists(st.floats(-2, 2), min_size=3, max_size=3))
def test_step_uses_the_feasible_gradient(numbers: list[float], gradient: list[float]) -> None:
    act = hull(numbers)
    before = act.coefficients.detach()
    act.coefficients.backward(torch.tensor(gradient, dtype=torch.float64))
    torch.optim.SGD(act.parameters(), lr=1e-6).step()
    expected = before - 1e-6 * feasible_gradient(before, torch.tensor(gradient, dtype=torch.float64))
    torch.testing.assert_close(act.coefficients.detach(), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("copied", [copy.deepcopy, through_torch_save, lambda model: model.to(torch.float32)])
def test_copies_are_updated_like_the_original(copied: Callable[[nn.Module], nn.Module]) -> None:
    model = copied(nn.Sequential(hull([0.0, 1.0, 0.0], groups=2)))
    act = model[0]
    act.coefficients.sum(0).backward(torch.tensor([1.0, 0.0, 0.5], dtype=act.raw.dtype))  # nothing helps
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert act.raw.grad.tolist() == [[0.0] * 3] * 2
    assert act.raw.tolist() == [[0.0, 1.0, 0.0]] * 2


def test_raw_parameters_stay_near_the_simplex() -> None:
    act = hull([0.2, 0.6, 0.2])
    optimizer = torch.optim.Adam(act.parameters(), lr=0.01)
    for _ in range(1000):
        act.raw.grad = torch.tensor([1.0, -2.0, 1.0], dtype=torch.float64)
        optimizer.step()
    assert act.coefficients.tolist() == [0.0, 1.0, 0.0]
    assert (act.raw - act.coefficients).abs().max() < 0.5  # without the restriction: 10
    steps = 0
    while act.coefficients[0] == 0:
        act.raw.grad = torch.tensor([-1.0, 1.0, 0.0], dtype=torch.float64)
        optimizer.step()
        steps += 1
    assert steps < 100


@pytest.mark.parametrize("by_name", [False, True])
def test_closure_gradients_are_restricted(by_name: bool) -> None:
    act = hull([0.0, 1.0, 0.0])

    def closure() -> float:
        act.raw.grad = torch.tensor([-1.0, 0.5, 2.0], dtype=torch.float64)
        return 3.0

    step = torch.optim.SGD(act.parameters(), lr=0.1).step
    assert (step(closure=closure) if by_name else step(closure)) == 3.0
    expected = feasible_gradient(torch.tensor([0.0, 1.0, 0.0]), torch.tensor([-1.0, 0.5, 2.0]))
    torch.testing.assert_close(act.raw.grad, expected.double())


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_rounding_errors_of_a_projection_count_as_zero(dtype: torch.dtype) -> None:
    eps, gradient = torch.finfo(dtype).eps, torch.tensor([0.0, 1.0, 2.0], dtype=dtype)
    for small, moves in ((4 * eps, False), (100 * eps, True)):
        feasible = feasible_gradient(torch.tensor([1 - small, small, 0.0], dtype=dtype), gradient)
        assert feasible.tolist() == ([-0.5, 0.5, 0.0] if moves else [0.0, 0.0, 0.0])


def test_other_parameters_and_hulls_keep_their_gradients() -> None:
    others = nn.ModuleList(
        [
            nn.Linear(3, 3),
            hullo.AffineHull(*BASES, init="relu"),
            hullo.ConvexHull(*BASES, parametrization="softmax"),
            hullo.ConvexHull(*BASES, init="relu"),
        ]
    )
    for parameter in others.parameters():
        parameter.grad = torch.randn(parameter.shape)
    before = {name: parameter.grad.clone() for name, parameter in others.named_parameters()}
    trained = [p for name, p in others.named_parameters() if not name.startswith("3.")]
    torch.optim.SGD([*trained, *hullo.ConvexHull(*BASES).parameters()], lr=0.1).step()
    assert all(torch.equal(parameter.grad, before[name]) for name, parameter in others.named_parameters())


def test_hulls_of_one_step_are_restricted_like_each_alone() -> None:
    torch.manual_seed(0)
    kinds = [(names, groups, dtype) for names in (BASES[:2], BASES) for groups in (1, 3) for dtype in PRECISIONS]
    together = nn.ModuleList(
        hull_class(*names, groups=groups, init="relu", dtype=dtype)
        for names, groups, dtype in kinds
        for hull_class in (hullo.ConvexHull, hullo.ConicHull)
    )
    alone = copy.deepcopy(together)
    for act, other in zip(together, alone, strict=True):
        act.raw.grad = torch.randn_like(act.raw)
        other.raw.grad = act.raw.grad.clone()
    up, down = together[::2], together[1::2]
    groups = [{"params": up.parameters(), "maximize": True}, {"params": down.parameters()}]
    torch.optim.SGD(groups, lr=0.1).step()
    for n, (act, other) in enumerate(zip(together, alone, strict=True)):
        sign = -1 if n % 2 == 0 else 1
        gradient = sign * other.parametrization.restrict(other.raw, sign * other.raw.grad)
        torch.testing.assert_close(act.raw.grad, gradient)
        torch.testing.assert_close(act.raw, other.raw - 0.1 * sign * gradient)


@pytest.mark.parametrize(("maximize", "expected"), [(False, [-1.0, 0.0]), (True, [0.0, 2.0])])
def test_owner_of_many_parameters_restricts_the_descent(maximize: bool, expected: list[float]) -> None:
    class Owner:
        raw = nn.Parameter(torch.zeros(2))

        def feasible_gradient(self, gradient: Tensor) -> Tensor:
            return gradient.clamp_max(0)

    owner = Owner()
    optimizer_hook.watch(owner)
    owner.raw.grad = torch.tensor([-1.0, 2.0])
    torch.optim.SGD([owner.raw], lr=1.0, maximize=maximize).step()
    assert owner.raw.grad.tolist() == expected


def test_deleted_hull_is_not_kept_alive() -> None:
    gc.collect()
    before = len(optimizer_hook._watched)
    act = hullo.ConvexHull(*BASES)
    assert len(optimizer_hook._watched) == before + 1
    del act
    gc.collect()
    assert len(optimizer_hook._watched) == before


def test_shard_of_a_flattened_parameter_keeps_its_gradient() -> None:
    act = hull([0.0, 1.0, 0.0], groups=2)
    act.raw = nn.Parameter(torch.zeros(2, dtype=torch.float64))  # two of six numbers, which are no row of coefficients
    act.raw.grad = torch.tensor([1.0, 3.0], dtype=torch.float64)
    torch.optim.SGD(act.parameters(), lr=1.0).step()
    assert act.raw.tolist() == [-1.0, -3.0]


def test_compiled_step_is_restricted() -> None:
    plain, compiled = hull([0.0, 1.0, 0.0]), hull([0.0, 1.0, 0.0])
    for act, wrap in ((plain, lambda step: step), (compiled, lambda step: torch.compile(step, backend="eager"))):
        act.raw.grad = torch.tensor([-1.0, 0.5, 2.0], dtype=torch.float64)
        wrap(torch.optim.SGD(act.parameters(), lr=0.1).step)()
    assert torch.equal(plain.raw, compiled.raw)


def test_ascent_is_the_descent_of_the_negative() -> None:
    found = []
    for maximize in (False, True):
        act, x = hullo.ConvexHull("identity", "relu", init=[1.0, 0.0]), -torch.linspace(0, 1, 50)
        optimizer = torch.optim.SGD(act.parameters(), lr=0.1, maximize=maximize)
        for _ in range(10):
            loss = (act(x) - torch.relu(x)).square().mean()
            optimizer.zero_grad()
            (-loss if maximize else loss).backward()
            optimizer.step()
        found.append(act.coefficients)
    torch.testing.assert_close(*found)
    assert found[0][1] > 0.1
