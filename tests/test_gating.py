"""Test that GatedHull(hull)(gate, up) is hull(gate) * up, with its derivatives, in every mode."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hullo
from made_hulls import every_hull, uneven

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@every_hull
@pytest.mark.parametrize("groups", [1, 3])
def test_product_and_gradients_are_correct(hull: type[hullo.Hull], parametrization: str, groups: int) -> None:
    act = uneven(hull, parametrization, groups, channel_dim=-1, dtype=torch.float64)
    inputs = [torch.randn(2, 6, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    upstream = torch.randn(2, 6, dtype=torch.float64)
    actual = torch.autograd.grad(hullo.GatedHull(act)(*inputs), [*inputs, act.raw], upstream)
    expected = torch.autograd.grad(act(inputs[0]) * inputs[1], [*inputs, act.raw], upstream)
    torch.testing.assert_close(hullo.GatedHull(act)(*inputs), act(inputs[0]) * inputs[1])
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_repeated_calls_follow_the_parameters() -> None:
    """Also those of a parametrization of a user's own, whose coefficients are computed before the kernel."""
    own = hullo.parametrizations.Parametrization(
        "own", lambda r: r.square() / r.square().sum(-1, keepdim=True), torch.sqrt
    )
    gate, up = torch.randn(2, 6, device=DEVICE, requires_grad=True), torch.randn(2, 6, device=DEVICE)
    for parametrization in (own, "projection", "softmax"):
        act = hullo.ConvexHull("relu", "tanh", init=[0.3, 0.7], parametrization=parametrization).to(DEVICE)
        gated = hullo.GatedHull(act)
        for _ in range(5):
            found, expected = (
                gated(gate, up),
                hullo.combine(gate, act.coefficients, act.bases, backend="reference") * up,
            )
            torch.testing.assert_close(found, expected)
            pairs = zip(*(torch.autograd.grad(y.sum(), (gate, act.raw)) for y in (found, expected)), strict=True)
            for one, other in pairs:
                torch.testing.assert_close(one, other)
            with torch.no_grad():
                act.raw.mul_(torch.tensor([1.3, 0.9], device=DEVICE))


def test_second_derivatives_are_correct() -> None:
    act = hullo.LinearHull("tanh", "silu", "sin", dtype=torch.float64)
    gate, up = (torch.randn(3, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))

    def function(gate: Tensor, up: Tensor, raw: Tensor) -> Tensor:
        result: Tensor = torch.func.functional_call(hullo.GatedHull(act), {f"hull.{act.raw_name}": raw}, (gate, up))
        return result

    assert torch.autograd.gradcheck(function, (gate, up, act.raw))
    assert torch.autograd.gradgradcheck(function, (gate, up, act.raw))


class Saved:
    """Counts the elements that are kept for the backward pass."""

    def __init__(self) -> None:
        self.kept: dict[int, int] = {}

    def __enter__(self) -> Saved:
        def pack(tensor: Tensor) -> Tensor:
            self.kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes() // tensor.itemsize
            return tensor

        self.hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
        self.hooks.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.hooks.__exit__(*error)


def test_only_inputs_and_raw_parameters_are_saved() -> None:
    act = hullo.AffineHull("identity", "relu", "tanh")
    gate, up = (torch.randn(100, requires_grad=True) for _ in range(2))
    with Saved() as saved:
        hullo.GatedHull(act)(gate, up)
    assert sum(saved.kept.values()) == 203
    with Saved() as saved:
        act(gate) * up
    assert sum(saved.kept.values()) == 303


def test_hull_with_a_forward_of_its_own_is_called() -> None:
    class Doubled(hullo.AffineHull):
        def forward(self, input: Tensor) -> Tensor:  # noqa: A002
            return 2 * super().forward(input)

    act, gate, up = Doubled("relu", "tanh"), torch.randn(4, 6), torch.randn(4, 6)
    expected = 2 * hullo.AffineHull("relu", "tanh")(gate) * up
    torch.testing.assert_close(hullo.GatedHull(act)(gate, up), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_supported(dtype: torch.dtype) -> None:
    act, gate, up = hullo.AffineHull("identity", "relu", "tanh"), torch.randn(64), torch.randn(64)
    gate, up = gate.to(dtype), up.to(dtype)
    actual = hullo.GatedHull(act)(gate, up)
    assert actual.dtype == dtype
    exact = act(gate.float()) * up.float()
    torch.testing.assert_close(actual.float(), exact, rtol=torch.finfo(dtype).eps, atol=1e-6)  # rounded twice


@pytest.mark.parametrize("shape", [(4, 6), (1, 6), (6,), ()], ids=["same", "broadcast", "fewer dimensions", "a number"])
def test_up_is_broadcast(shape: tuple[int, ...]) -> None:
    act, gate, up = hullo.AffineHull("relu", "tanh"), torch.randn(4, 6), torch.randn(shape)
    torch.testing.assert_close(hullo.GatedHull(act)(gate, up), act(gate) * up)
    torch.testing.assert_close(hullo.GatedHull(act)(gate, up.double()), act(gate) * up.double())


class Gated(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.gate, self.up, self.act = (
            nn.Linear(4, 6),
            nn.Linear(4, 6),
            hullo.GatedHull(hullo.AffineHull("relu", "tanh", **options)),
        )

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.act(self.gate(x), self.up(x))
        return result


@pytest.mark.parametrize("options", [{}, {"groups": 3, "channel_dim": -1}, {"inner_scale": "base"}])
def test_compiled_exported_traced_and_transformed_results_agree(options: dict[str, Any]) -> None:
    model, x = Gated(**options), torch.randn(5, 4)
    expected = model(x)
    for other in (
        torch.compile(model, backend="eager", fullgraph=True),
        torch.export.export(model, (x,)).module(),
        torch.fx.symbolic_trace(model),
    ):
        torch.testing.assert_close(other(x), expected)
    torch.testing.assert_close(torch.vmap(model)(x), expected)
    torch.testing.assert_close(torch.func.jvp(model, (x,), (x,))[0], expected)
    histogram = [axes.patches for axes in hullo.plot(model, example_inputs=x).axes if axes.patches]
    assert sum(bar.get_height() for bar in histogram[0]) == 30


def test_incompatible_shapes_are_rejected() -> None:
    act = hullo.AffineHull("relu", "tanh", groups=4)
    with pytest.raises(ValueError, match="6 channels"):
        hullo.GatedHull(act)(torch.randn(2, 6), torch.randn(2, 6))
    with pytest.raises(TypeError, match="hull is a ReLU"):
        hullo.GatedHull(nn.ReLU())  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{}, {"init": "relu"}, {"groups": 3, "channel_dim": -1}])
def test_folded_gate_is_a_plain_product(options: dict[str, Any]) -> None:
    model, x = Gated(**options), torch.randn(5, 4)
    folded = hullo.fold(model, example_inputs=x)
    torch.testing.assert_close(folded(x), model(x))
    assert not any(type(module).__module__.startswith("hullo") for module in folded.act.modules())
    alone = hullo.fold(model.act)
    torch.testing.assert_close(alone(model.gate(x), model.up(x)), model(x))


def test_hooks_of_the_hull_run() -> None:
    act, seen = hullo.GatedHull(hullo.AffineHull("relu", "tanh")), []
    act.hull.register_forward_hook(lambda module, inputs, output: seen.append(output))
    y = act(torch.randn(3), torch.ones(3))
    assert torch.equal(seen[0], y)


def test_fused_gradients_leave_the_inputs_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr("hullo.gating.choose", lambda *_: "triton")
    act = hullo.GatedHull(hullo.AffineHull("identity", "relu", "tanh")).to(DEVICE)
    gate, up = ((torch.randn(3, 16, device=DEVICE, requires_grad=True) * 1) for _ in range(2))
    before = [gate.clone(), up.clone()]
    y = act(gate, up).sum()
    expected = torch.autograd.grad((act.hull(before[0]) * before[1]).sum(), [*before, act.hull.raw])
    for _ in range(2):
        found = torch.autograd.grad(y, [gate, up, act.hull.raw], retain_graph=True)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other)
        for tensor, copy in zip((gate, up), before, strict=True):
            assert torch.equal(tensor, copy)


@pytest.mark.parametrize("kind", ["forward", "forward_pre", "full_backward", "full_backward_pre"])
def test_hooks_of_every_kind_are_called_alone(kind: str) -> None:
    act, seen = hullo.AffineHull("identity", "relu"), list[int]()
    getattr(act, f"register_{kind}_hook")(lambda *_: seen.append(1))
    gate = torch.randn(2, 4, requires_grad=True)
    hullo.GatedHull(act)(gate, torch.randn(2, 4)).sum().backward()
    assert seen == [1]


@pytest.mark.parametrize("scale", [3.0, [0.5, 2.0]])
def test_scaled_hull_is_called_with_its_scales(scale: Any) -> None:
    act, gate, up = hullo.AffineHull("relu", "tanh", inner_scale=scale), torch.randn(4, 6), torch.randn(4, 6)
    torch.testing.assert_close(hullo.GatedHull(act)(gate, up), act(gate) * up)
    assert not torch.allclose(act(gate), hullo.AffineHull("relu", "tanh")(gate))


def test_batched_gradients_of_the_fused_kernel_match_single_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr("hullo.gating.choose", lambda *_: "triton")
    act = hullo.GatedHull(hullo.AffineHull("identity", "relu", "tanh")).to(DEVICE)
    gate, up = (torch.randn(2, 5, device=DEVICE, requires_grad=True) for _ in range(2))
    y, upstream, inputs = act(gate, up), torch.randn(3, 2, 5, device=DEVICE), (gate, up, act.hull.raw)
    together = torch.autograd.grad(y, inputs, upstream, is_grads_batched=True, retain_graph=True)
    singles = [torch.autograd.grad(y, inputs, one, retain_graph=True) for one in upstream]
    for found, alone in zip(together, zip(*singles, strict=True), strict=True):
        torch.testing.assert_close(found, torch.stack(alone), rtol=1e-5, atol=1e-6)
