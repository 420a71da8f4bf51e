"""Test that a folded model computes the same function without hullo."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

import hullo
from made_hulls import through_torch_save

CATALOGUE = [name for name in hullo.list_bases() if name not in ("identity", "relu", "tanh")]


@pytest.mark.parametrize(
    ("hull", "module"),
    [
        (hullo.AffineHull("identity", "relu", "tanh", init="relu"), nn.ReLU()),
        (hullo.AffineHull("identity", "relu", "tanh", init="tanh"), nn.Tanh()),
        (hullo.AffineHull("identity", "relu", "tanh", init="identity"), nn.Identity()),
        (hullo.ConvexHull("identity", "relu", init=[0.25, 0.75]), nn.LeakyReLU(0.25)),
        (hullo.AffineHull("identity", "relu", init=[-0.5, 1.5]), nn.LeakyReLU(-0.5)),
        (hullo.AffineHull("relu", "gelu", init="gelu", strict=False), nn.GELU()),
        (hullo.AffineHull("relu", "gelu_tanh", init="gelu_tanh", strict=False), nn.GELU(approximate="tanh")),
        (hullo.AffineHull("relu", "elu(0.3)", init="elu(0.3)"), nn.ELU(0.3)),
        (hullo.ConvexHull("relu", "elu", init=[0.5, 0.5]), nn.ELU(0.5)),
        (hullo.LinearHull("unit_silu", "tanh", init=[0.5, 0.0]), nn.SiLU()),
        (hullo.AffineHull("relu", "tanh", groups=4, init="tanh"), nn.Tanh()),
        (hullo.AffineHull("relu", "tanh", init=[1 - 1e-8, 1e-8]), nn.ReLU()),
    ],
    ids=repr,
)
def test_hull_equal_to_an_activation_becomes_it(hull: nn.Module, module: nn.Module) -> None:
    assert repr(hullo.fold(nn.Sequential(hull))[0]) == repr(module)
    assert repr(hullo.fold(hull)) == repr(module)
    x = torch.randn(5, 4)
    torch.testing.assert_close(hullo.fold(hull)(x), hull(x).detach(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", CATALOGUE)
@pytest.mark.parametrize("groups", [1, 4])
def test_folded_hull_has_the_same_values(name: str, groups: int) -> None:
    hull = (
        hullo.AffineHull("identity", "relu", "tanh", name, groups=groups, strict=False)
        if name != "leaky_relu"
        else (hullo.AffineHull("relu", "tanh", name, groups=groups))
    )
    with torch.no_grad():
        hull.raw.add_(torch.randn_like(hull.raw))
    folded = hullo.fold(hull)
    for x in (3 * torch.randn(5, 8, 3), torch.randn(2, 8), torch.randn(0, 4), torch.randn(3, 4, dtype=torch.float64)):
        torch.testing.assert_close(folded(x), hull(x).detach(), rtol=1e-5, atol=1e-6)
    x = torch.randn(5, 4, requires_grad=True)
    torch.testing.assert_close(
        torch.autograd.grad(folded(x).sum(), x), torch.autograd.grad(hull(x).sum(), x), rtol=1e-5, atol=1e-5
    )
    x = torch.randn(5, 4).bfloat16()
    assert folded(x).dtype == torch.bfloat16
    torch.testing.assert_close(folded(x), hull(x).detach())


@pytest.mark.parametrize("channel_dim", [0, 1, 2, -1])
def test_groups_fold_in_any_channel_dimension(channel_dim: int) -> None:
    hull = hullo.AffineHull("identity", "tanh", groups=2, channel_dim=channel_dim, init=[[0.3, 0.7], [-1.0, 2.0]])
    x = torch.randn(4, 6, 8)
    torch.testing.assert_close(hullo.fold(hull)(x), hull(x).detach())


@pytest.mark.parametrize(
    "hull",
    [
        hullo.LinearHull("relu", "tanh", init=[9e-7, 5e-7]),
        hullo.LinearHull("identity", "relu", init=[[1e-7, 2e-7], [3e-7, 1e-7]], groups=2),
        hullo.presets.poly_relu(init=[0.0, 1.0, 0.0, 9e-7]),
    ],
    ids=["small", "small groups", "cubic"],
)
def test_small_coefficients_that_matter_are_kept(hull: hullo.Hull) -> None:
    x = torch.tensor([[-3.0, 2.0], [100.0, -0.1]])
    torch.testing.assert_close(hullo.fold(hull)(x), hull(x).detach(), rtol=1e-6, atol=0.0)


def test_bases_with_zero_coefficient_are_removed() -> None:
    hull = hullo.AffineHull("identity", "relu", "tanh", init=[0.4, 0.0, 0.6])
    folded = hullo.fold(hull)
    assert isinstance(folded, fx.GraphModule)
    assert not any(node.target in (torch.relu, F.relu) for node in folded.graph.nodes)
    assert list(folded.parameters()) == []


def test_model_is_unchanged_and_hooks_are_kept() -> None:
    model = nn.Sequential(nn.Linear(4, 4), hullo.AffineHull("relu", "tanh", init="relu"))
    seen: list[str] = []
    model[1].register_forward_hook(lambda module, args, out: seen.append(type(module).__name__))
    hullo.fold(model)(torch.randn(2, 4))
    assert isinstance(model[1], hullo.AffineHull)
    assert seen == ["ReLU"]


def test_shared_hull_stays_one_module() -> None:
    hull = hullo.AffineHull("relu", "tanh")
    folded = hullo.fold(nn.Sequential(hull, nn.Linear(4, 4), hull))
    assert folded[0] is folded[2]


def test_folded_model_does_not_need_hullo(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2), nn.Tanh())
    hullo.replace_activations(model)
    model[1].coefficients = [0.1, 0.5, 0.4]
    model[3] = hullo.AffineHull("identity", "asinh", "unit_softplus", groups=4)
    folded, x = hullo.fold(model), torch.randn(3, 4)
    torch.save({"model": folded, "x": x, "y": folded(x).detach()}, tmp_path / "model.pt")
    torch.save(folded.state_dict(), tmp_path / "state.pt")
    program = f"""
import sys
sys.modules["hullo"] = None
import torch
saved = torch.load({str(tmp_path / "model.pt")!r}, weights_only=False)
model = saved["model"]
torch.testing.assert_close(model(saved["x"]), saved["y"])
for parameter in model.state_dict().values():
    parameter.zero_()
model.load_state_dict(torch.load({str(tmp_path / "state.pt")!r}, weights_only=True))
torch.testing.assert_close(model(saved["x"]), saved["y"])
"""
    subprocess.run([sys.executable, "-c", program], check=True)


class Rewritten(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.layer(x))


def test_folded_model_with_rewritten_code_can_be_pickled() -> None:
    x = torch.randn(5, 4)
    folded = hullo.fold(hullo.replace_activations(Rewritten(), example_inputs=x))
    torch.testing.assert_close(through_torch_save(folded)(x), folded(x))


def test_untraceable_base_is_rejected() -> None:
    hullo.add_base("careful_sin", lambda x: torch.sin(x) if bool(x.isfinite().all()) else torch.zeros_like(x))
    with pytest.raises(ValueError, match=r"'careful_sin' .*graph"):
        hullo.fold(hullo.AffineHull("relu", "careful_sin"))


def test_hull_without_values_is_rejected() -> None:
    hull = hullo.AffineHull("identity", "relu").to("meta")
    for function in (hullo.fold, hullo.identify):
        with pytest.raises(ValueError, match="no values, on the meta device"):
            function(hull)


def test_bad_input_is_rejected() -> None:
    with pytest.raises(ValueError, match="no hulls"):
        hullo.fold(nn.ReLU())
    with pytest.raises(TypeError, match="not a str"):
        hullo.fold("model")  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{}, {"groups": 4}, {"inner_scale": "base"}])
def test_a_hull_without_coefficients_is_zero(options: dict[str, object]) -> None:
    model = nn.Sequential(nn.Linear(4, 4), hullo.LinearHull("relu", "tanh", init=[0.0, 0.0], **options))
    x = torch.randn(3, 4)
    torch.testing.assert_close(hullo.fold(model)(x), model(x), rtol=0, atol=0)


class Doubled(hullo.AffineHull):
    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  (PyTorch's name)
        return super().forward(input) * 2


def test_hull_with_a_forward_of_its_own_is_refused() -> None:
    with pytest.raises(ValueError, match="Doubled overrides forward"):
        hullo.fold(nn.Sequential(nn.Linear(4, 4), Doubled("identity", "relu")))


@pytest.mark.parametrize("coefficients", [[0.2, 0.3, 0.5], [0.0, 0.0, 2.0]])
def test_folded_hull_is_as_accurate_near_zero_as_pytorch(coefficients: list[float]) -> None:
    model = nn.Sequential(hullo.LinearHull("identity", "relu", "tanh", init=coefficients))
    x = torch.logspace(-30, 0, 400, dtype=torch.float64)
    x = torch.cat([x, -x])
    a, b, c = coefficients
    expected = a * x + b * x.relu() + c * x.tanh()
    relative = (hullo.fold(model)(x.float()).double() - expected).abs() / expected.abs()
    assert relative.max() < 1e-6


def test_folded_model_does_not_claim_to_be_compared() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    hullo.replace_activations(model, example_inputs=torch.randn(2, 4))
    assert hullo.summary(model).compared
    assert not hullo.summary(hullo.fold(model)).compared


def test_summary_says_which_coefficients_are_frozen() -> None:
    model = nn.Sequential(hullo.AffineHull("identity", "relu").requires_grad_(False))
    assert "frozen" in str(hullo.summary(model))


def test_summary_shows_the_range_of_groups() -> None:
    act = hullo.LinearHull("relu", groups=3, init=[[0.5], [2.0], [1.0]])
    assert "0.5..2 (3 groups)" in str(hullo.summary(nn.Sequential(act)))
