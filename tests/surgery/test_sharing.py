"""Test hulls that several sites share, and hulls that are loaded alone."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import hullo
from made_hulls import every_hull, uneven


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.act, self.down, self.out = nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 4), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.down(torch.nn.functional.gelu(self.act(self.up(x)))))


def made() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block(), nn.Linear(4, 1))


@pytest.mark.parametrize(
    ("share", "count"),
    [
        (None, 6),
        ("model", 2),
        (lambda site: site.name[0], 4),
        (lambda site: "act" if site.name.endswith(".act") else None, 5),
    ],
)
def test_sites_share_hulls_with_the_same_outputs(share: Any, count: int) -> None:
    x = torch.randn(3, 4)
    expected = made()(x)
    model = hullo.replace_activations(made(), share=share, example_inputs=x)
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-5)
    assert len(hullo.coefficient_parameters(model)) == count
    assert "not compared" not in str(hullo.summary(model))


def test_gradients_of_a_shared_hull_are_summed_over_sites() -> None:
    x = torch.randn(5, 4, dtype=torch.float64)
    alone = hullo.replace_activations(made().double(), example_inputs=x)
    shared = hullo.replace_activations(made().double(), share="model", example_inputs=x)
    for model in (alone, shared):
        model(x).square().sum().backward()
    sums = sum(alone.get_submodule(name).raw.grad for name in ("0.act", "0.up_gelu", "1.act", "1.up_gelu"))
    torch.testing.assert_close(shared.get_submodule("0.act").raw.grad, sums)
    assert shared.get_submodule("0.act") is shared.get_submodule("1.up_gelu")


def test_shared_hulls_stay_shared_in_copies_checkpoints_and_folded_models(tmp_path: Path) -> None:
    x = torch.randn(3, 4)
    model = hullo.replace_activations(made(), share="model", example_inputs=x)
    for parameter in hullo.coefficient_parameters(model):
        parameter.data.add_(0.1 * torch.rand_like(parameter))
    torch.save(model.state_dict(), tmp_path / "model.pt")
    saved = torch.load(tmp_path / "model.pt", weights_only=True)
    restored = hullo.restore(made(), saved, example_inputs=x)
    restored.load_state_dict(saved)
    for twin in (copy.deepcopy(model), restored):
        assert len(hullo.coefficient_parameters(twin)) == 2
        torch.testing.assert_close(twin(x), model(x), rtol=0, atol=0)
    torch.testing.assert_close(hullo.fold(model)(x), model(x), rtol=1e-4, atol=1e-5)


def test_shared_hulls_are_loaded_from_safetensors_as_documented(tmp_path: Path) -> None:
    x = torch.randn(3, 4)
    model = hullo.replace_activations(made(), share="model", example_inputs=x)
    for parameter in hullo.coefficient_parameters(model):
        parameter.data.add_(0.1 * torch.rand_like(parameter))
    safetensors.torch.save_model(model, tmp_path / "model.safetensors")
    shared = hullo.replace_activations(made(), share="model", example_inputs=x)
    safetensors.torch.load_model(shared, tmp_path / "model.safetensors")
    copies = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    safetensors.torch.save_file(copies, tmp_path / "copies.safetensors")
    saved = safetensors.torch.load_file(tmp_path / "copies.safetensors")
    separate = hullo.restore(made(), saved, example_inputs=x)
    separate.load_state_dict(saved)
    assert [len(hullo.coefficient_parameters(loaded)) for loaded in (shared, separate)] == [2, 6]
    for loaded in (shared, separate):
        torch.testing.assert_close(loaded(x), model(x), rtol=0, atol=0)


def test_summary_lists_all_sites_of_a_shared_hull() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.GELU(), nn.ReLU(), nn.GELU())
    summary = hullo.summary(hullo.replace_activations(model, share="model"))
    assert (list(summary.hulls), summary.shared) == (["1", "2"], {"3": "1", "4": "2"})
    assert [line.split()[:4] for line in str(summary).splitlines()[1:5]] == [
        ["1", "affine(identity,relu,tanh)", "0", "1"],
        ["3", "shared", "with", "1"],
        ["2", "affine(identity,tanh,gelu)", "0", "0"],
        ["4", "shared", "with", "2"],
    ]


def test_unknown_share_is_rejected() -> None:
    with pytest.raises(ValueError, match="share='layer': give 'model'"):
        hullo.replace_activations(made(), share="layer")


@every_hull
@pytest.mark.parametrize("groups", [1, 3])
def test_hulls_are_loaded_with_their_coefficients(hull: type[hullo.Hull], parametrization: str, groups: int) -> None:
    act = uneven(hull, parametrization, groups, channel_dim=-1)
    (loaded,) = hullo.surgery.load_hulls(act.state_dict()).values()
    assert torch.equal(loaded.raw, act.raw)
    assert loaded.raw_name == act.raw_name
    loaded.raw.data.zero_()
    loaded.reset_parameters()
    torch.testing.assert_close(loaded.coefficients, act.coefficients)


def test_loaded_hulls_start_another_model_and_are_shared_again() -> None:
    x = torch.randn(3, 4)
    model = hullo.replace_activations(made(), share=lambda site: site.name[0], example_inputs=x)
    for n, parameter in enumerate(hullo.coefficient_parameters(model)):
        parameter.data += 0.1 * (n + 1) * torch.tensor([1.0, 0.0, -1.0])
    hulls = hullo.surgery.load_hulls(model.state_dict())
    other = hullo.replace_activations(made(), hull=lambda site: hulls[site.name], example_inputs=x)
    torch.testing.assert_close(other(x), model(x))
    assert len(hullo.coefficient_parameters(other)) == 4


def test_hulls_without_parameters_are_loaded_apart_and_those_without_values_not_at_all() -> None:
    state = nn.Sequential(hullo.AffineHull("relu"), hullo.AffineHull("relu")).state_dict()
    first, second = hullo.surgery.load_hulls(state).values()
    assert first is not second
    with pytest.raises(ValueError, match=r"0\.raw_recentred__relu has no values.*meta device"):
        hullo.surgery.load_hulls({name: item.to("meta") for name, item in state.items()})


def test_sites_with_other_numbers_of_channels_do_not_share() -> None:
    layers = [nn.Linear(4, width) for width in (4, 4, 8)]
    model = nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU())))
    hullo.replace_activations(model, example_inputs=torch.randn(3, 4), share="model", groups="channels")
    assert model[1] is model[3]
    assert (model[3].groups, model[5].groups) == (4, 8)
