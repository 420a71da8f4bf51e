"""Test learned inner scales, f(b x), with gradients, in every tool that supports hulls."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

import hullo

NAMES = ("sin", "tanh", "gelu")


def made(kind: str, groups: int = 1, **options: object) -> hullo.Hull:
    """Return a linear hull with coefficients and scales that all differ."""
    torch.manual_seed(3)
    act = hullo.LinearHull(*NAMES, groups=groups, channel_dim=1, inner_scale=kind, **options)  # type: ignore[arg-type]
    for parameter in act.parameters():
        parameter.data.copy_(0.5 + torch.rand_like(parameter))
    return act


def exact(act: hullo.Hull, x: Tensor) -> Tensor:
    """Compute the same channel by channel, in float64."""
    assert act.inner_scale is not None
    each = x.shape[1] // act.groups
    rows = act.coefficients.double().reshape(act.groups, -1)
    scales = act.inner_scale.double().reshape(act.groups, -1).expand(-1, len(NAMES))
    channels = [
        sum(
            rows[k // each, n] * hullo.get_base(name).function(scales[k // each, n] * x[:, k].double())
            for n, name in enumerate(NAMES)
        )
        for k in range(x.shape[1])
    ]
    return torch.stack(channels, dim=1)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("kind", ["hull", "base"])
class TestEveryKind:
    def test_values_match_scaled_inputs(self, kind: str, groups: int) -> None:
        act, x = made(kind, groups), torch.randn(3, 4, 5)
        torch.testing.assert_close(act(x), exact(act, x).float(), rtol=1e-5, atol=1e-5)
        low = act(x.bfloat16())
        assert low.dtype == torch.bfloat16
        torch.testing.assert_close(low.double(), exact(act, x.bfloat16()), rtol=2**-8, atol=1e-6)

    def test_first_and_second_derivatives_are_correct(self, kind: str, groups: int) -> None:
        act, x = made(kind, groups, dtype=torch.float64), torch.randn(2, 4, dtype=torch.float64, requires_grad=True)

        def function(x: Tensor, raw: Tensor, scales: Tensor) -> Tensor:
            parameters = {act.raw_name: raw, "inner_scale": scales}
            result: Tensor = torch.func.functional_call(act, parameters, (x,))
            return result

        assert torch.autograd.gradcheck(function, (x, act.raw, act.inner_scale))
        assert torch.autograd.gradgradcheck(function, (x, act.raw, act.inner_scale))

    def test_compiled_traced_folded_and_copied_results_agree(self, kind: str, groups: int) -> None:
        model, x = nn.Sequential(made(kind, groups)), torch.randn(3, 4)
        expected = model(x)
        others = [
            torch.compile(model, backend="eager", fullgraph=True),
            torch.fx.symbolic_trace(model),
            hullo.fold(model, example_inputs=x),
            copy.deepcopy(model),
            torch.export.export(model, (x,)).module(),
        ]
        for other in others:
            torch.testing.assert_close(other(x), expected, rtol=1e-5, atol=1e-6)

    def test_pruned_scales_are_used(self, kind: str, groups: int) -> None:
        act, x = made(kind, groups), torch.randn(3, 4)
        expected = act(x)
        assert act.inner_scale is not None
        scales = act.inner_scale.detach().clone()
        prune.identity(act, "inner_scale")
        prune.identity(act, act.raw_name)
        torch.testing.assert_close(act(x), expected)
        act.inner_scale_orig.data.mul_(2)
        act(x)  # pruning computes the scales in a hook before each call
        torch.testing.assert_close(act.inner_scale, 2 * scales)
        assert not torch.allclose(act(x), expected, atol=1e-3)

    def test_checkpoints_contain_scales(self, kind: str, groups: int) -> None:
        model, x = nn.Sequential(nn.Linear(4, 4), made(kind, groups)), torch.randn(3, 4)
        restored = hullo.restore(nn.Sequential(nn.Linear(4, 4), nn.GELU()), model.state_dict())
        restored.load_state_dict(model.state_dict())
        torch.testing.assert_close(restored(x), model(x), rtol=0, atol=0)
        torch.testing.assert_close(hullo.surgery.load_hulls(model.state_dict())["1"](x), model[1](x))
        half = {name: tensor.half() for name, tensor in model[1].state_dict().items()}
        for assign in (False, True):
            loaded = made(kind, groups)
            loaded.load_state_dict(half, assign=assign)
            assert {parameter.dtype for parameter in loaded.parameters()} == {torch.float32}
            torch.testing.assert_close(loaded(x), model[1](x), rtol=1e-2, atol=1e-2)
        plain = nn.Sequential(nn.Linear(4, 4), hullo.LinearHull(*NAMES, groups=groups))
        with pytest.raises(RuntimeError, match=r"Unexpected key.*inner_scale"):
            plain.load_state_dict(model.state_dict())

    def test_plot_uses_scales(self, kind: str, groups: int) -> None:
        pytest.importorskip("matplotlib")
        act = made(kind, groups)
        (axes,) = hullo.plot(act).axes
        x = torch.as_tensor(axes.lines[1].get_xdata())
        mean = exact(act, x[:, None].expand(-1, 2)).mean(1).detach()
        torch.testing.assert_close(torch.as_tensor(axes.lines[1].get_ydata()), mean, rtol=1e-5, atol=1e-6)


def test_scales_start_at_one_and_learn_without_decay() -> None:
    model = hullo.replace_activations(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), inner_scale="base")
    assert model[1].inner_scale.tolist() == [1, 1, 1]
    assert len(hullo.coefficient_parameters(model)) == 2
    *_, last = hullo.parameter_groups(model, lr=0.1, weight_decay=0.1, coefficient_lr_scale=2)
    assert (len(last["params"]), last["weight_decay"], last["lr"]) == (2, 0.0, 0.2)
    model(torch.randn(8, 4)).sum().backward()
    torch.optim.SGD([last]).step()
    assert model[1].inner_scale.tolist() != [1, 1, 1]
    model[1].reset_parameters()
    assert model[1].inner_scale.tolist() == [1, 1, 1]


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(("given", "scales"), [(30, [30.0]), ([30.0, 0.5], [30.0, 0.5]), ("base", [1.0, 1.0])])
def test_scales_start_where_they_are_told_and_return_there(
    given: str | float | list[float], scales: list[float], groups: int
) -> None:
    act = hullo.AffineHull("sin", "tanh", init=[0.75, 0.25], inner_scale=given, groups=groups)
    assert act.inner_scale is not None
    assert act.inner_scale.reshape(groups, -1).tolist() == [scales] * groups
    x, pair = torch.randn(5, 2), (scales * 2)[:2]
    torch.testing.assert_close(act(x), 0.75 * torch.sin(pair[0] * x) + 0.25 * torch.tanh(pair[1] * x))
    with torch.no_grad():
        act.inner_scale.fill_(7.0)
    if groups == 1:
        assert f"inner_scale={'7' if len(scales) == 1 else '[7, 7]'})" in repr(act)
    assert "inner scale 7" in str(hullo.summary(nn.Sequential(act)))
    act.reset_parameters()
    assert act.inner_scale.reshape(groups, -1).tolist() == [scales] * groups


def test_half_precision_leaves_scales_in_float32() -> None:
    act = made("hull").half()
    assert act.inner_scale is not None
    assert act.inner_scale.dtype == torch.float32


@pytest.mark.parametrize(("kind", "count"), [("hull", 2), ("base", 1 + len(NAMES))])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_input_is_saved_once(kind: str, count: int, dtype: torch.dtype) -> None:
    act, x = made(kind), torch.randn(64, 64, dtype=dtype, requires_grad=True)
    saved: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        return saved.setdefault(tensor.data_ptr(), tensor)

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        act(x)
    assert [tensor.dtype for tensor in saved.values() if tensor.shape == x.shape] == [torch.float32] * count


def test_unsupported_functions_reject_scales() -> None:
    with pytest.raises(ValueError, match="inner_scale='each': give 'hull'"):
        made("each")
    for wrong in ([1.0, 2.0], float("nan"), []):
        with pytest.raises(ValueError, match="3 numbers"):
            made(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="inner scale"):
        hullo.slope_bounds(made("hull"))
    with pytest.raises(ValueError, match=r"4 channels .* 3 equal"):
        made("base", 3)(torch.randn(2, 4))
    with pytest.raises(TypeError, match="must be a dense floating-point tensor, got list"):
        made("hull")([1.0])  # type: ignore[arg-type]
