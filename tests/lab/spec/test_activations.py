"""Test that activations are parsed, spelled canonically and built."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import hullo
from hullo.lab.spec import paper
from hullo.lab.spec.activation import ActivationSpec
from hullo.modules import Hull
from hullo.population import Population

MORE = [
    "gelu",
    "leaky_relu(0.3)",
    "affine(relu,leaky_relu(0.2))",
    "convex(unit_gelu,softsign)",
    "convex(relu)",
    "convex(identity,tanh,parametrization=softmax)",
    "affine(identity,relu,tanh,parametrization=free)",
    "affine(identity,tanh,parametrization=free,init=tanh)",
    "convex(relu,tanh,init=relu)",
    "conic(identity,tanh)",
    "conic(identity,relu,tanh,parametrization=softplus)",
    "linear(relu,tanh)",
]
ROWS = [ActivationSpec.parse(text) for text in [*paper.ROWS, *MORE]]
HULLS: dict[str, type[Hull]] = {
    hull.kind: hull for hull in (hullo.ConvexHull, hullo.AffineHull, hullo.ConicHull, hullo.LinearHull)
}
names = st.sampled_from(
    [name for name in hullo.list_bases() if not name.startswith(("unit_", "leaky", "celu", "selu", "xielu"))]
)


class TestSpelling:
    def test_named_parameter_of_a_base_is_not_an_option(self) -> None:
        row = ActivationSpec.parse("convex(relu,leaky_relu(0.2),init=relu)")
        assert str(row) == "convex(relu,leaky_relu(0.2),init=relu)"

    @given(st.sampled_from(list(HULLS)), st.lists(names, min_size=1, max_size=5, unique=True))
    def test_hull_text_is_canonical_and_round_trips(self, kind: str, bases: list[str]) -> None:
        row = ActivationSpec.parse(f" {kind} ({' , '.join(bases)})")
        ordered = ",".join(name for name in hullo.list_bases() if name in bases)
        assert str(row) == f"{kind}({ordered})"
        assert ActivationSpec.parse(str(row)) == row

    @pytest.mark.parametrize(
        ("given_as", "spelling"),
        [
            ("leaky_relu(0.01)", "leaky_relu"),
            ("leaky_relu(0.2)", "leaky_relu(0.2)"),
            ("affine(leaky_relu(.5), tanh, leaky_relu(0.25))", "affine(tanh,leaky_relu(0.25),leaky_relu(0.5))"),
            ("convex(tanh,elu(2))", "convex(tanh,elu(2))"),
            (
                "affine(relu, per = channel, identity, parametrization=free)",
                "affine(identity,relu,parametrization=free,per=channel)",
            ),
            ("convex(elu(2),tanh,init=elu(2))", "convex(tanh,elu(2),init=elu(2))"),
            ("affine(identity,relu,init=uniform,parametrization=recentred,per=layer)", "affine(identity,relu)"),
            (" prelu ", "prelu"),
            ("affine(relu,identity,per=channel,parametrization=free,init=relu)", "prelu"),
            (
                "affine(relu,identity,parametrization=free,init=relu)",
                "affine(identity,relu,parametrization=free,init=relu)",
            ),
        ],
    )
    def test_parameters_of_bases_are_part_of_the_text(self, given_as: str, spelling: str) -> None:
        assert str(ActivationSpec.parse(given_as)) == spelling

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "rellu",
            "conv(identity,relu)",
            "convex()",
            "convex(relu,relu)",
            "affine(relu",
            "relu,tanh",
            "relu(init=relu)",
            "prelu(0.1)",
            "convex(identity,prelu)",
            "convex(identity,relu,parametrization=free)",
            "convex(identity,relu,parametrization=softmax,init=relu)",
            "affine(identity,relu,init=tanh)",
            "affine(identity,relu,per=pixel)",
            "affine(identity,relu,color=red)",
            "affine(identity,relu,init=relu,init=identity)",
            "affine(identity,relu,per=channel,per=channel)",
        ],
    )
    def test_invalid_activation_is_rejected_with_help(self, text: str) -> None:
        with pytest.raises(ValueError, match=r"invalid activation .*An activation is .*convex.*conic.*linear") as error:
            ActivationSpec.parse(text)
        assert repr(text) in str(error.value)

    def test_non_string_is_rejected(self) -> None:
        with pytest.raises(TypeError, match=r"must be a str.*got 3 of type int"):
            ActivationSpec.parse(3)  # type: ignore[arg-type]

    def test_paper_rows_need_three_bases(self) -> None:
        population = Population([nn.Sequential(ActivationSpec.parse(row).module(1)) for row in paper.ROWS])
        assert [item.name for item in population.activations.bases] == ["identity", "relu", "tanh"]


class TestModules:
    @pytest.mark.parametrize("row", ROWS, ids=str)
    def test_module_matches_the_text(self, row: ActivationSpec) -> None:
        module = row.module(3)
        x = torch.randn(2, 3, 4)
        if row.learns:
            assert isinstance(module, HULLS[row.kind])
            assert module.bases == row.bases
            assert module.parametrization.name == row.parametrization
            rows = module.coefficients.detach()
            expected = [float(item == row.init) if row.init else 1 / len(row.bases) for item in row.bases]
            torch.testing.assert_close(rows, torch.tensor(expected).expand_as(rows))
        else:
            assert not any(parameter.requires_grad for parameter in module.parameters())
            torch.testing.assert_close(module(x), row.bases[0].function(x))

    @pytest.mark.parametrize(("channels", "shape"), [(3, (3, 1)), (1, (1,))])
    def test_per_channel_activation_has_one_group_per_channel(self, channels: int, shape: tuple[int, ...]) -> None:
        module = ActivationSpec.parse("prelu").module(channels)
        assert tuple(module.raw.shape) == shape
        x = torch.randn(2, channels, 4)
        torch.testing.assert_close(module(x), x.relu())

    def test_fixed_activations_are_pytorch_modules(self) -> None:
        kinds = {row: type(ActivationSpec.parse(row).module(1)) for row in paper.ROWS[:4]}
        assert set(kinds.values()) == {nn.Identity, nn.ReLU, nn.Tanh, nn.LeakyReLU}
        assert ActivationSpec.parse("leaky_relu(0.3)").module(1).negative_slope == 0.3
