"""Test that tracers see every operation on the raw parameters, and that modes leave no state."""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import hullo
from hullo.modules import Hull
from made_hulls import TRIO, every_hull, uneven

Function = Callable[[Tensor, Tensor], Any]


def functions(act: Hull) -> dict[str, Function]:
    """Return functions to trace: the hull, its gradients, and transforms of both, with the raw parameters as input."""

    def forward(x: Tensor, raw: Tensor) -> Tensor:
        result: Tensor = torch.func.functional_call(act, {act.raw_name: raw}, (x,))
        return result

    def loss(x: Tensor, raw: Tensor) -> Tensor:
        return forward(x, raw).square().sum()

    def backward(x: Tensor, raw: Tensor) -> tuple[Tensor, ...]:
        x, raw = x.detach().requires_grad_(), raw.detach().requires_grad_()
        return torch.autograd.grad(loss(x, raw), (x, raw))

    return {
        "forward": forward,
        "backward": backward,
        "grad": torch.func.grad(loss, argnums=(0, 1)),
        "vmap": torch.func.vmap(lambda x, raw: forward(x[None], raw)[0], in_dims=(0, None)),
        "hessian": torch.func.jacrev(torch.func.grad(loss, argnums=1), argnums=1),
    }


def assert_same_function(traced: Function, function: Function, act: Hull, *batches: int) -> None:
    """Compare both on raw parameters and batch sizes other than those of the trace."""
    for batch in batches:
        x, raw = torch.randn(batch, 4), act.raw.detach() + 0.3 * torch.randn_like(act.raw)
        torch.testing.assert_close(traced(x, raw), function(x, raw), rtol=1e-4, atol=1e-5)


@every_hull
@pytest.mark.parametrize("groups", [1, 2])
class TestTraces:
    @pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
    def test_make_fx_records_operations_on_raw_parameters(
        self, hull: type[Hull], parametrization: str, groups: int, mode: str
    ) -> None:
        act = uneven(hull, parametrization, groups)
        symbolic = mode == "symbolic"  # which takes seconds, most of all for second derivatives
        for kind in ("forward", "backward") if symbolic else functions(act):
            function = functions(act)[kind]
            traced = make_fx(function, tracing_mode=mode)(torch.randn(5, 4), act.raw.detach())
            assert_same_function(traced, function, act, *([5, 7] if symbolic else [5]))

    def test_make_fx_pre_dispatch_works(self, hull: type[Hull], parametrization: str, groups: int) -> None:
        act = uneven(hull, parametrization, groups)
        function = functions(act)["forward"]
        traced = make_fx(function, pre_dispatch=True)(torch.randn(5, 4), act.raw.detach())
        assert_same_function(traced, function, act, 5)

    @pytest.mark.parametrize("kind", ["forward", "grad", "vmap"])
    def test_functionalize_works(self, hull: type[Hull], parametrization: str, groups: int, kind: str) -> None:
        act = uneven(hull, parametrization, groups)
        function = functions(act)[kind]
        functionalized = torch.func.functionalize(function)
        assert_same_function(functionalized, function, act, 5)
        assert_same_function(make_fx(functionalized)(torch.randn(5, 4), act.raw.detach()), function, act, 5)

    def test_export_with_raw_parameters_as_inputs(self, hull: type[Hull], parametrization: str, groups: int) -> None:
        act = uneven(hull, parametrization, groups)
        function = functions(act)["forward"]

        class Network(nn.Module):
            def forward(self, x: Tensor, raw: Tensor) -> Any:
                return function(x, raw)

        batch = torch.export.Dim("batch", min=2, max=64)
        exported = torch.export.export(
            Network(), (torch.randn(5, 4), act.raw.detach()), dynamic_shapes=({0: batch}, None)
        )
        assert_same_function(exported.module(), function, act, 5, 7)


def test_values_of_tensor_subclasses_are_not_read() -> None:
    with FakeTensorMode() as mode:
        x = torch.empty(5, 4, requires_grad=True)
        act = hullo.AffineHull(*TRIO)
    assert act(x).shape == x.shape  # outside of the mode, with its tensors
    act(x).sum().backward()
    assert x.grad is not None
    assert x.grad.fake_mode is mode  # type: ignore[attr-defined]


class Watching(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def default_device() -> Iterator[None]:
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


@contextlib.contextmanager
def default_dtype() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "fake": FakeTensorMode,
    "watched": Watching,
    "meta": lambda: torch.device("meta"),
    "inference": torch.inference_mode,
    "default device": default_device,
    "default dtype": default_dtype,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
}


def forget_everything() -> None:
    """Empty all caches of hullo."""
    cached = type(functools.cache(lambda: None))
    for item in gc.get_objects():
        if type(item) is cached and str(item.__module__).startswith("hullo"):
            item.cache_clear()


def use_everything(number: int, train: bool) -> list[Any]:
    """Make and call hulls and ask questions; what has numbers in every mode is returned."""
    act = hullo.AffineHull(*TRIO, init=[0.5, 0.3, 0.2], groups=2)
    act.coefficients = "relu"
    act(torch.randn(3, 4))
    model = nn.Sequential(nn.Linear(4, 4), nn.LeakyReLU(0.3), nn.GELU(), hullo.ConvexHull(*TRIO))
    hullo.replace_activations(model)
    added = hullo.add_base(
        f"bump_{number}", lambda x, width: x * torch.exp(-(x * width).square()), parameters={"width": 0.5}
    )
    other = hullo.AffineHull("relu", f"bump_{number}(0.25)")
    if train:
        x = torch.randn(3, 4, requires_grad=True)
        (model(x) + other(x)).square().sum().backward()
    row = [0.5, 0.25, 0.25]
    questions = (hullo.is_monotone, hullo.slope_bounds, hullo.identify, hullo.properties.approximates_identity)
    return [added.slope_bounds, *(question(row, TRIO) for question in questions)]


@pytest.mark.parametrize("name", MODES)
def test_modes_leave_no_state(name: str) -> None:
    forget_everything()
    with MODES[name]():
        inside = use_everything(1, train=name != "inference")
    assert use_everything(2, train=True) == inside
    forget_everything()
    assert use_everything(3, train=True) == inside


def test_hulls_on_the_meta_device_have_coefficients_without_values() -> None:
    assert hullo.AffineHull("identity", "relu", device="meta").coefficients.is_meta
