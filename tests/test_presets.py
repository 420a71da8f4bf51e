"""Test presets of learned activations, and recognition of the original modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import hullo

X = torch.linspace(-6, 6, 2001, dtype=torch.float64)


@pytest.mark.parametrize(
    ("made", "function"),
    [
        (
            lambda: hullo.presets.xielu(init=[0.4, 0.7, 0.9], dtype=torch.float64),
            lambda x: torch.where(x > 0, 0.7 * x * x + 0.4 * x, 0.9 * (torch.exp(x) - 1 - x) + 0.4 * x),
        ),
        (lambda: hullo.presets.poly_relu(dtype=torch.float64), lambda x: sum(F.relu(x) ** n / 3 for n in (1, 2, 3))),
        (lambda: hullo.presets.star_relu(dtype=torch.float64), lambda x: 0.8944 * F.relu(x) ** 2 - 0.4472),
        (
            lambda: hullo.presets.blending_unit(dtype=torch.float64),
            lambda x: (torch.tanh(x) + F.elu(x) + F.relu(x) + x + F.silu(x)) / 5,
        ),
    ],
    ids=["xielu", "poly_relu", "star_relu", "blending_unit"],
)
def test_preset_starts_as_its_closed_form(made: Callable[[], hullo.Hull], function: Callable[[Tensor], Tensor]) -> None:
    torch.testing.assert_close(made()(X), function(X), rtol=1e-12, atol=1e-12)


def test_presets_accept_hull_options() -> None:
    assert hullo.presets.xielu(groups=4, channel_dim=-1)(torch.randn(2, 3, 8)).shape == (2, 3, 8)
    clamped = hullo.presets.xielu(init=[0.0, 1.0, 0.0], parametrization="clamped")
    assert repr(clamped) == "ConicHull(identity=0, relu2=1, xielu_negative=0)"
    assert hullo.presets.star_relu(init=[0.0, 1.0]).coefficients.tolist() == [0.0, 1.0]
    assert hullo.presets.poly_relu(init=[1.0, 0.0, 0.0, 0.0])(torch.zeros(1)).item() == 1


def transformers_xielu(dtype: torch.dtype, alpha_p: float = 0.8, alpha_n: float = 0.8) -> Any:
    activations = pytest.importorskip("transformers.activations")
    return activations.XIELUActivation(alpha_p_init=alpha_p, alpha_n_init=alpha_n, dtype=dtype)


@settings(max_examples=10, deadline=None)
@given(st.floats(0.05, 3), st.floats(0.55, 3))
def test_apertus_parameters_give_its_activation(alpha_p: float, alpha_n: float) -> None:
    module = transformers_xielu(torch.bfloat16, alpha_p, alpha_n)
    model = hullo.replace_activations(nn.Sequential(nn.Linear(2, 2), module))
    x = (torch.linspace(-8, 8, 4001)).bfloat16()
    exact = module.float()(x.float())
    rounding = 2.0**-8 * exact.abs() + 2e-6  # it is cut off within 1e-6 of the origin
    assert bool(((model[1](x).float() - exact).abs() <= rounding).all())
    torch.testing.assert_close(model[1](x.float()), exact, rtol=1e-5, atol=3e-6)


def test_apertus_model_is_replaced_and_compared() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = transformers.ApertusConfig(num_hidden_layers=1, vocab_size=32, **sizes)
    model = transformers.ApertusForCausalLM(config)
    hullo.replace_activations(model, example_inputs={"input_ids": torch.arange(6)[None]})
    hull = model.model.layers[0].mlp.act_fn
    assert hull.spelling == "linear(identity,relu2,xielu_negative)"
    assert hull.coefficients.tolist() == pytest.approx([0.5, 0.8, 0.8], abs=2e-3)  # bfloat16 holds 0.8 as 0.80078


def test_relu_squared_is_recognized() -> None:
    activations = pytest.importorskip("transformers.activations")
    model = hullo.replace_activations(nn.Sequential(nn.Linear(2, 2), activations.ACT2FN["relu2"]))
    torch.testing.assert_close(model[1](X), F.relu(X) ** 2)
    assert [base.name for base, c in zip(model[1].bases, model[1].coefficients.tolist(), strict=True) if c] == ["relu2"]
