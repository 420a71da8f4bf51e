"""Test that products with a hull are found in forwards and fused."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hullo


class Left(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down, self.act = nn.Linear(4, 6), nn.Linear(4, 6), nn.Linear(6, 4), nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.gate(x)) * self.up(x))


class Right(Left):
    def forward(self, x: Tensor) -> Tensor:
        up, gate = self.up(x), self.gate(x)
        return self.down(up * F.gelu(gate))


class UsedTwice(Left):
    def forward(self, x: Tensor) -> Tensor:
        gated = self.act(self.gate(x))
        return self.down(gated * self.up(x)) + gated.mean()


class Order(Left):
    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x) * self.act(self.gate(x)))


class Elsewhere(Left):
    def also(self, x: Tensor) -> Tensor:
        return self.act(x)


def test_gates_keep_the_mode_of_the_model() -> None:
    for mode in (True, False):
        fused = hullo.fuse_gates(hullo.replace_activations(Left().train(mode)))
        assert {module.training for module in fused.modules()} == {mode}


@pytest.mark.parametrize(("make", "name"), [(Left, "act"), (Right, "gate_gelu")])
def test_product_becomes_a_gate_with_the_same_outputs(make: type[nn.Module], name: str) -> None:
    model, x = nn.Sequential(make(), nn.Linear(4, 1)), torch.randn(3, 4)
    expected = model(x)
    hullo.fuse_gates(hullo.replace_activations(model, example_inputs=x))
    assert isinstance(model[0].get_submodule(name), hullo.GatedHull)
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-5)
    assert f"self.{name}(" in inspect.getsource(type(model[0]).forward)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), hullo.fold(model, example_inputs=x)):
        torch.testing.assert_close(twin(x), model(x), rtol=1e-4, atol=1e-5)
    model(x).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("make", [UsedTwice, Order, Elsewhere])
def test_other_code_is_not_changed(make: type[nn.Module]) -> None:
    model = hullo.replace_activations(make(), example_inputs=torch.randn(3, 4))
    cls = type(model)
    with pytest.raises(ValueError, match=r"no forward .*product"):
        hullo.fuse_gates(model)
    assert type(model) is cls


@pytest.mark.parametrize("share", ["model", None])
def test_shared_and_fused_hulls_are_not_fused(share: str | None) -> None:
    model = hullo.replace_activations(nn.Sequential(Left(), Left()), share=share)
    if share is None:
        hullo.fuse_gates(model)
    with pytest.raises(ValueError, match=r"no forward .*product"):
        hullo.fuse_gates(model)


def test_fused_model_is_restored() -> None:
    model, x = hullo.fuse_gates(hullo.replace_activations(nn.Sequential(Left(), Left()))), torch.randn(3, 4)
    for parameter in hullo.coefficient_parameters(model):
        parameter.data.add_(0.1 * torch.rand_like(parameter))
    other = hullo.fuse_gates(hullo.restore(nn.Sequential(Left(), Left()), model.state_dict()))
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(other(x), model(x), rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["Llama", "Gemma", "Phi3"])
def test_gated_transformers_blocks_are_fused(kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "intermediate_size": 12, "num_attention_heads": 2, "num_key_value_heads": 2}
    config = getattr(transformers, f"{kind}Config")(
        num_hidden_layers=2, vocab_size=16, head_dim=4, pad_token_id=0, bos_token_id=1, eos_token_id=2, **sizes
    )
    model = getattr(transformers, f"{kind}Model")(config).eval()
    ids = torch.arange(6)[None]
    expected = model(ids)[0]
    hullo.fuse_gates(hullo.replace_activations(model))
    assert sum(isinstance(module, hullo.GatedHull) for module in model.modules()) == 2
    torch.testing.assert_close(model(ids)[0], expected, rtol=1e-3, atol=1e-4)
