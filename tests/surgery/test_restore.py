"""Test that hulls are rebuilt from the names in a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import hullo
from hullo.state_names import read_raw_name, write_raw_name
from made_hulls import HULLS

PARAMETERS = st.floats(2.0**-60, 2.0**60).map(lambda number: float(f"{number:.3g}"))
SPELLED = st.sampled_from(hullo.list_bases()) | st.builds(
    lambda family, parameter, sign: f"{family}({sign * parameter!r})",
    st.sampled_from(["leaky_relu", "elu"]),
    PARAMETERS,
    st.sampled_from([1, -1]),
)


@given(st.sampled_from(HULLS), st.lists(SPELLED, min_size=1, max_size=4), st.sampled_from([1, 8]), st.integers(-4, 4))
def test_raw_name_round_trips(hull: tuple[Any, str], spelling: list[str], groups: int, channel_dim: int) -> None:
    bases = tuple(map(hullo.get_base, spelling))
    name = write_raw_name(hull[1], bases, groups, channel_dim)
    assert name.isidentifier()
    assert read_raw_name(name) == (hull[1], bases, channel_dim if groups > 1 else 1)


class Net(nn.Module):
    """Modules and calls of functions, in place and not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.act = nn.Conv2d(3, 4, 1), nn.Linear(4, 4), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.act(self.first(x)))
        return torch.tanh(self.second(x.movedim(1, -1)))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"hull": hullo.ConvexHull, "parametrization": "projection"},
        {"hull": hullo.LinearHull, "bases": ["leaky_relu(-0.5)", "relu", "tanh", "gelu", "sin(30)"]},
        {"groups": 2, "channel_dim": -1},
        {"where": ["act", "first_gelu"]},
        {"inner_scale": "hull"},
        {"inner_scale": "base", "groups": 2, "channel_dim": -1},
    ],
)
def test_restored_model_matches_the_saved_one(options: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 4, 4)
    model = hullo.replace_activations(Net(), example_inputs=x, **options)
    for parameter in hullo.coefficient_parameters(model):
        parameter.data.add_(0.1 * torch.rand_like(parameter))
    torch.save(model.state_dict(), tmp_path / "model.pt")
    saved = torch.load(tmp_path / "model.pt", weights_only=True)
    restored = hullo.restore(Net(), saved, example_inputs=x)
    restored.load_state_dict(saved)
    torch.testing.assert_close(restored(x), model(x), rtol=0, atol=0)
    assert [repr(module) for module in restored.modules()] == [repr(module) for module in model.modules()]
    for name, hull in hullo.summary(model).hulls.items():
        torch.testing.assert_close(restored.get_submodule(name).init, hull.init)


def test_restored_hull_has_the_dtype_of_the_model() -> None:
    saved = hullo.replace_activations(nn.Sequential(nn.Linear(3, 3), nn.ReLU())).state_dict()
    assert hullo.restore(nn.Sequential(nn.Linear(3, 3), nn.ReLU()).double(), saved)[1].raw.dtype == torch.float64


@pytest.mark.parametrize(
    ("act", "hull", "expected"),
    [
        (nn.PReLU(2), hullo.AffineHull("identity", "relu", groups=2), [[0.25, 0.75], [0.25, 0.75]]),
        (nn.PReLU(2), hullo.AffineHull("identity", "relu"), [0.5, 0.5]),
        (nn.GELU(), hullo.AffineHull("identity", "relu"), [0.5, 0.5]),
        (nn.ReLU(), hullo.ConvexHull("identity", "relu", parametrization="softmax"), [0.5, 0.5]),
    ],
    ids=["one row per channel", "other groups", "not a combination", "not reached"],
)
def test_restored_hull_starts_as_the_replaced_function_if_it_can(act: nn.Module, hull: Any, expected: Any) -> None:
    saved = nn.Sequential(nn.Linear(2, 2), hull).state_dict()
    restored = hullo.restore(nn.Sequential(nn.Linear(2, 2), act), saved)[1]
    assert torch.equal(restored.coefficients, hull.coefficients)
    restored.reset_parameters()
    assert restored.coefficients.tolist() == expected


def test_existing_hulls_get_the_saved_coefficients() -> None:
    x = torch.randn(2, 3, 4, 4)
    saved = hullo.replace_activations(Net(), example_inputs=x).state_dict()
    key = next(key for key in saved if key.startswith("act.raw_"))
    saved[key] = torch.tensor([0.5, 0.25, 0.25])
    model = hullo.restore(hullo.replace_activations(Net(), where="act", example_inputs=x), saved, example_inputs=x)
    assert model.act.coefficients.tolist() == [0.5, 0.25, 0.25]
    assert len(hullo.summary(model).hulls) == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: "model.safetensors", r"'model\.safetensors'.*load_file"),
        (lambda state: {"first.weight": state["first.weight"]}, "has no hulls: none of its 1 names"),
        (lambda state: {"other.raw_recentred__relu": torch.zeros(1)}, r"'other', where .*'act'"),
        (lambda state: {"0.act.raw_recentred__relu": torch.zeros(1)}, r"'0\.act', where .*'act'"),
        (lambda state: {f"{n}.act.raw_recentred__relu": torch.zeros(1) for n in "ab"}, r"'b\.act', where"),
        (lambda state: {"act.raw_recentred__cosine": torch.zeros(1)}, "unknown base function 'cosine'"),
        (lambda state: {"act.raw_squeezed__relu": torch.zeros(1)}, "unknown parametrization 'squeezed'"),
        (lambda state: {**state, "act.raw_recentred__identity__relu__tanh": torch.zeros(2)}, "size mismatch"),
    ],
)
def test_unrestorable_hull_is_named_and_the_model_unchanged(
    change: Callable[[dict[str, Tensor]], Any], message: str
) -> None:
    model = Net()
    before = repr(model)
    with pytest.raises((TypeError, ValueError, RuntimeError), match=message):
        hullo.restore(model, change(hullo.replace_activations(Net()).state_dict()))
    assert repr(model) == before


def test_name_that_several_sites_match_is_an_error() -> None:
    model = nn.ModuleDict({name: nn.ModuleDict({"act": nn.ReLU()}) for name in "ab"})
    with pytest.raises(ValueError, match=r"'c\.act', where .*'a\.act', 'b\.act'"):
        hullo.restore(model, {"c.act.raw_recentred__relu": torch.ones(1)})


def test_prefix_of_a_wrapper_is_ignored() -> None:
    x = torch.randn(2, 3, 4, 4)
    saved = hullo.replace_activations(Net(), example_inputs=x).state_dict()
    with pytest.raises(ValueError, match="give example_inputs"):
        hullo.restore(Net(), saved)
    model = hullo.restore(Net(), {f"module.{key}": value for key, value in saved.items()}, example_inputs=x)
    assert model.load_state_dict(saved).missing_keys == []


def vit(**options: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2}
    return transformers.ViTModel(transformers.ViTConfig(image_size=8, patch_size=4, **sizes, **options)).eval()


@pytest.mark.filterwarnings("ignore")
def test_replaced_transformers_model_is_saved_and_loaded(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    model, x = hullo.replace_activations(vit()), torch.randn(1, 3, 8, 8)
    for parameter in hullo.coefficient_parameters(model):
        parameter.data.copy_(torch.rand_like(parameter))
    model.save_pretrained(tmp_path)
    loaded = type(vit()).from_pretrained(tmp_path).eval()
    hullo.restore(loaded, safetensors.load_file(tmp_path / "model.safetensors"))
    torch.testing.assert_close(loaded(x)[0], model(x)[0])


@pytest.mark.filterwarnings("ignore")
def test_hulls_replace_learned_activations_without_saved_parameters(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    safetensors = pytest.importorskip("safetensors.torch")
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = transformers.ApertusConfig(num_hidden_layers=2, vocab_size=32, **sizes)
    model, ids = hullo.replace_activations(transformers.ApertusModel(config)).eval(), torch.arange(6)[None]
    for parameter in hullo.coefficient_parameters(model):
        parameter.data.add_(torch.rand_like(parameter))
    model.save_pretrained(tmp_path)
    loaded = transformers.ApertusModel.from_pretrained(tmp_path).eval()
    loaded.layers[0].mlp.act_fn.alpha_p.data.fill_(torch.nan)  # as memory that nothing has filled may be
    hullo.restore(loaded, safetensors.load_file(tmp_path / "model.safetensors"))
    torch.testing.assert_close(loaded(ids)[0], model(ids)[0])


@pytest.mark.filterwarnings("ignore")
def test_model_with_hulls_in_its_config_is_saved_and_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    activations = pytest.importorskip("transformers.activations")
    monkeypatch.setitem(activations.ACT2FN, "learned", partial(hullo.AffineHull, "identity", "relu", "tanh"))
    model, x = vit(hidden_act="learned"), torch.randn(1, 3, 8, 8)
    for parameter in hullo.coefficient_parameters(model):
        parameter.data.copy_(torch.rand_like(parameter))
    model.save_pretrained(tmp_path)
    torch.testing.assert_close(type(model).from_pretrained(tmp_path).eval()(x)[0], model(x)[0])


def test_a_hull_alone_is_restored() -> None:
    act = hullo.AffineHull("identity", "relu", init=[0.3, 0.7])
    other = hullo.restore(hullo.AffineHull("identity", "relu"), act.state_dict())
    assert torch.equal(other.coefficients, act.coefficients)


class TwoNames(nn.Module):
    """A block and an activation that are registered under two names each, as models with tied parts do."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(4, 4), nn.SiLU())
        self.blocks = nn.ModuleList([self.block, nn.Linear(4, 4)])
        self.act = self.other = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.other(self.blocks[1](self.block(x)))


@pytest.mark.parametrize("inputs", [None, torch.randn(3, 4)])
def test_module_with_two_names_is_restored(inputs: Tensor | None) -> None:
    x = torch.randn(3, 4)
    model = hullo.replace_activations(TwoNames(), example_inputs=x)
    for parameter in hullo.coefficient_parameters(model):
        parameter.data.add_(0.1 * torch.rand_like(parameter))
    restored = hullo.restore(TwoNames(), model.state_dict(), example_inputs=inputs)
    restored.load_state_dict(model.state_dict())
    torch.testing.assert_close(restored(x), model(x), rtol=0, atol=0)
    assert restored.act is restored.other


class Lightning(nn.Module):
    """The checkpoints of lightning.LightningModule, without the package."""

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        pass

    @classmethod
    def load_from_checkpoint(cls, path: Path) -> nn.Module:
        checkpoint = torch.load(path, weights_only=True)
        model = cls()
        model.on_load_checkpoint(checkpoint)
        model.load_state_dict(checkpoint["state_dict"])
        return model


class LitNet(Lightning):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.layer(x))

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:  # the documented line
        hullo.restore(self, checkpoint["state_dict"], example_inputs=torch.zeros(1, 4))


def test_lightning_checkpoint_is_loaded_with_one_line(tmp_path: Path) -> None:
    x = torch.randn(3, 4)
    model = hullo.replace_activations(LitNet(), example_inputs=x)
    model.layer_relu.coefficients = [0.5, 0.25, 0.25]
    torch.save({"state_dict": model.state_dict()}, tmp_path / "model.ckpt")
    torch.testing.assert_close(LitNet.load_from_checkpoint(tmp_path / "model.ckpt")(x), model(x), rtol=0, atol=0)
