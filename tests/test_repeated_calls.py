"""A hull that was called before computes other tensors, in other contexts, as if they were the first."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

import hullo

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
X = torch.linspace(-3, 3, 24, device=DEVICE)


def warm() -> hullo.Hull:
    """Return a hull that has been called with X."""
    act = hullo.AffineHull("identity", "relu", "tanh").to(DEVICE)
    for _ in range(3):
        act(X)
    return act


def expected(act: hullo.Hull, x: Tensor) -> Tensor:
    return hullo.combine(x, act.coefficients, act.bases, backend="reference")


CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "shape": lambda x: x.reshape(4, 6),
    "strides": lambda x: x.reshape(4, 6).T,
    "gaps": lambda x: torch.stack([x, -x], 1)[:, 0],
    "address": lambda x: torch.cat([x[:1], x])[1:],
    "dtype": Tensor.double,
    "expanded": lambda x: x[3].expand(24),
    "requires_grad": lambda x: x.clone().requires_grad_(),
    "parameter": torch.nn.Parameter,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_another_tensor_of_as_many_elements_is_computed_as_if_it_were_the_first(change: Callable) -> None:
    act, x = warm(), change(X)
    y = act(x)
    torch.testing.assert_close(y, expected(act, x), rtol=1e-5, atol=1e-6)
    assert y.stride() == torch.empty_like(x).stride()
    torch.testing.assert_close(act(X), expected(act, X), rtol=1e-5, atol=1e-6)


def test_other_coefficients_of_the_same_hull_count_at_once() -> None:
    act = warm()
    act.coefficients = [0.0, 1.0, 0.0]
    assert torch.equal(act(X), X.relu())
    (slope,) = torch.autograd.grad(act(X).sum(), act.raw)
    act.raw = torch.nn.Parameter(act.raw.detach().double())
    torch.testing.assert_close(act(X), X.relu())
    torch.testing.assert_close(*torch.autograd.grad(act(X).sum(), act.raw), slope.double(), rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        assert not act(X).requires_grad
    assert act(X).requires_grad
    act.raw.requires_grad_(False)
    assert not act(X).requires_grad


CONTEXTS: dict[str, Callable[[hullo.Hull], Tensor]] = {
    "vmap": lambda act: torch.vmap(lambda x: act(X) + act(x))(torch.stack([X, X]))[1] - act(X),
    "functionalize": lambda act: torch.func.functionalize(act)(X),
    "make_fx": lambda act: make_fx(act)(X)(X),
    "make_fx before dispatch": lambda act: make_fx(act, pre_dispatch=True)(X)(X),
    "autocast": lambda act: torch.autocast(DEVICE, torch.bfloat16)(act)(X),
    "trace": lambda act: torch.jit.trace(act, X, check_trace=False)(X),
    "a new thread": lambda act: ThreadPoolExecutor(1).submit(act, X).result(),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("call", CONTEXTS.values(), ids=CONTEXTS)
def test_transforms_and_tracers_see_every_operation(call: Callable) -> None:
    act = warm()
    torch.testing.assert_close(call(act), expected(act, X), rtol=1e-5, atol=1e-6)


def test_forward_mode_and_transforms_give_the_slope() -> None:
    act = warm()
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(X, torch.ones_like(X))
        tangent = forward_ad.unpack_dual(act(dual)).tangent
    slope = torch.func.grad(lambda x: act(x).sum())(X)
    torch.testing.assert_close(tangent, slope, rtol=1e-5, atol=1e-6)
    x = X.clone().requires_grad_()
    torch.testing.assert_close(slope, *torch.autograd.grad(act(x).sum(), x))


def test_a_fake_mode_and_a_tensor_that_outlived_its_transform_are_recognized() -> None:
    act, kept = warm(), []
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert act(mode.from_tensor(X)).shape == X.shape
    torch.func.grad(lambda x: (kept.append(x), x.sum())[-1])(X)
    torch.testing.assert_close(act(kept[0]), expected(act, X), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("layout", ["nested", "csr", "coo"])
@pytest.mark.parametrize("gated", [False, True], ids=["hull", "gated"])
def test_layouts_without_strides_raise_the_usual_error(layout: str, gated: bool) -> None:
    act = warm()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = {
            "nested": lambda: torch.nested.nested_tensor([X[:10], X[10:]]),
            "csr": lambda: X.reshape(4, 6).to_sparse_csr(),
            "coo": lambda: X.to_sparse(),
        }[layout]()
    if not gated:
        with pytest.raises(TypeError, match="dense floating-point tensor"):
            act(made)
        return
    module = hullo.GatedHull(act)
    for _ in range(3):
        module(X, X)
    with pytest.raises(TypeError, match="dense floating-point tensor"):
        module(made, X)
    with contextlib.suppress(RuntimeError):  # a product with such a tensor is PyTorch's; the process goes on
        module(X, made)


def test_a_gated_hull_heeds_hooks_and_other_tensors_after_its_first_calls() -> None:
    act = warm()
    module, up = hullo.GatedHull(act), X.flip(0).contiguous()
    for _ in range(3):
        torch.testing.assert_close(module(X, up), expected(act, X) * up, rtol=1e-5, atol=1e-6)
    for gate, other in ((X, up[:1]), (X, up.double()), (X.reshape(4, 6), up.reshape(4, 6).T.reshape(6, 4).T), (X, 2.0)):
        torch.testing.assert_close(module(gate, other), expected(act, gate) * other, rtol=1e-5, atol=1e-6)
    calls = []
    act.register_forward_hook(lambda *_: calls.append(1))
    module(X, up)
    assert calls


def test_a_gated_hull_computes_ones_own_parametrization_at_every_call() -> None:
    halved = hullo.parametrizations.Parametrization("halved", lambda raw: raw / 2, lambda c: 2 * c)
    act = hullo.LinearHull("identity", "relu", "tanh", parametrization=halved).to(DEVICE)
    module, up = hullo.GatedHull(act), X.flip(0).contiguous()
    for call in range(5):
        act.coefficients = [0.1 * call, 0.5, -0.2]
        y = module(X, up)
        torch.testing.assert_close(y, expected(act, X) * up, rtol=1e-5, atol=1e-6)
        (of_raw,) = torch.autograd.grad(y.sum(), act.raw)
        (wanted,) = torch.autograd.grad((expected(act, X) * up).sum(), act.raw)
        torch.testing.assert_close(of_raw, wanted, rtol=1e-5, atol=1e-5)
