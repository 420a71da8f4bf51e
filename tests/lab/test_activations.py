"""Rows are read as spelled, and a population's activation layers are those of separate modules, member by member."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import hullo
from hullo.lab import paper
from hullo.lab.activations import Activations, Row, in_order
from hullo.modules import Hull

MORE = [
    "gelu",
    "leaky_relu(0.3)",
    "affine(relu,leaky_relu(0.2))",
    "convex(unit_gelu,softsign)",
    "convex(relu)",
    "convex(identity,tanh,keep=softmax)",
    "affine(identity,relu,tanh,keep=free)",
    "affine(identity,tanh,keep=free,start=tanh)",
    "convex(relu,tanh,start=relu)",
    "conic(identity,tanh)",
    "conic(identity,relu,tanh,keep=softplus)",
    "linear(relu,tanh)",
]
ROWS = [Row.parse(text) for text in [*paper.ROWS, *MORE]]
HULLS: dict[str, type[Hull]] = {
    hull.kind: hull for hull in (hullo.ConvexHull, hullo.AffineHull, hullo.ConicHull, hullo.LinearHull)
}
names = st.sampled_from([name for name in hullo.names() if not name.startswith(("unit_", "leaky", "celu", "selu"))])


class TestSpelling:
    def test_a_parameter_by_name_is_no_option(self) -> None:
        row = Row.parse("convex(relu,leaky_relu(negative_slope=0.2),start=relu)")
        assert str(row) == "convex(relu,leaky_relu(0.2),start=relu)"

    @given(st.sampled_from(list(HULLS)), st.lists(names, min_size=1, max_size=5, unique=True))
    def test_a_hull_is_spelled_in_the_catalogues_order_and_read_back(self, kind: str, bases: list[str]) -> None:
        row = Row.parse(f" {kind} ({' , '.join(bases)})")
        ordered = ",".join(name for name in hullo.names() if name in bases)
        assert str(row) == f"{kind}({ordered})"
        assert Row.parse(str(row)) == row

    @pytest.mark.parametrize(
        ("given_as", "spelled"),
        [
            ("leaky_relu(0.01)", "leaky_relu"),
            ("leaky_relu(0.2)", "leaky_relu(0.2)"),
            ("affine(leaky_relu(.5), tanh, leaky_relu(0.25))", "affine(tanh,leaky_relu(0.25),leaky_relu(0.5))"),
            ("convex(tanh,elu(2))", "convex(tanh,elu(2))"),
            ("affine(relu, per = channel, identity, keep=free)", "affine(identity,relu,keep=free,per=channel)"),
            ("convex(elu(2),tanh,start=elu(2))", "convex(tanh,elu(2),start=elu(2))"),
            ("affine(identity,relu,start=uniform,keep=recentred,per=layer)", "affine(identity,relu)"),
            (" prelu ", "prelu"),
            ("affine(relu,identity,per=channel,keep=free,start=relu)", "prelu"),
            ("affine(relu,identity,keep=free,start=relu)", "affine(identity,relu,keep=free,start=relu)"),
        ],
    )
    def test_parameters_of_bases_are_part_of_the_spelling(self, given_as: str, spelled: str) -> None:
        assert str(Row.parse(given_as)) == spelled

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
            "relu(start=relu)",
            "prelu(0.1)",
            "convex(identity,prelu)",
            "convex(identity,relu,keep=free)",
            "convex(identity,relu,keep=softmax,start=relu)",
            "affine(identity,relu,start=tanh)",
            "affine(identity,relu,per=pixel)",
            "affine(identity,relu,colour=red)",
        ],
    )
    def test_what_is_no_activation_is_refused_and_says_what_is(self, text: str) -> None:
        with pytest.raises(
            ValueError, match=r"no activation: .*An activation is a base function, prelu, or convex"
        ) as error:
            Row.parse(text)
        assert repr(text) in str(error.value)

    def test_something_else_than_text_is_refused(self) -> None:
        with pytest.raises(TypeError, match=r"spelled in text.*got 3 of int"):
            Row.parse(3)  # type: ignore[arg-type]

    def test_the_papers_twelve_rows_need_three_bases(self) -> None:
        layers = Activations([Row.parse(row) for row in paper.ROWS], widths=[1])
        assert [item.name for item in layers.bases] == ["identity", "relu", "tanh"]

    def test_bases_in_order_are_there_once(self) -> None:
        given_twice = [hullo.base(name) for name in ("tanh", "relu", "tanh", "leaky_relu(0.2)", "leaky_relu(0.1)")]
        assert [item.name for item in in_order(given_twice)] == ["relu", "tanh", "leaky_relu(0.1)", "leaky_relu(0.2)"]


def moved(rows: list[Row], layers: int, dtype: torch.dtype = torch.float64) -> Activations:
    """Layers whose raw numbers lie far from the start, so that many convex rows are on an edge of their simplex."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)  # a fixed row's numbers are then as exact as the rest
    population = Activations(rows, widths=[1] * layers)
    torch.set_default_dtype(default)
    learns = torch.tensor([row.learns for row in rows]).view(-1, 1, 1)
    with torch.no_grad():
        population.raw += learns * ~population.unused * torch.randn_like(population.raw)
    return population


def separate(population: Activations, k: int, layer: int) -> Callable[[Tensor], Tensor]:
    """Member k's activation in that layer, made of the library's own modules."""
    row = population.rows[k]
    if not row.learns:
        return row.bases[0].function
    hull = HULLS[row.kind](*row.bases, keep=row.keep, strict=False, dtype=population.raw.dtype)
    with torch.no_grad():
        hull.raw.copy_(population.raw[k, layer, ~population.unused[k, 0]][: hull.raw.numel()])
    return hull


class TestLayers:
    @pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
    @pytest.mark.parametrize("pictures", [True, False])
    def test_values_and_gradients_are_those_of_separate_modules(
        self, pictures: bool, dtype: torch.dtype, tolerance: float
    ) -> None:
        population = moved(ROWS, layers=2, dtype=dtype)
        close = {"rtol": tolerance, "atol": tolerance}
        for layer, function in enumerate(population()):
            parts = [torch.randn(3, 2, 4, 4, dtype=dtype) if pictures else torch.randn(3, 8, dtype=dtype) for _ in ROWS]
            x = (torch.cat(parts, 1) if pictures else torch.stack(parts)).requires_grad_()
            upstream = torch.randn_like(x)
            y = function(x)
            population.raw.grad = None
            y.backward(upstream, retain_graph=True)
            assert x.grad is not None
            split = (lambda t: t.chunk(len(ROWS), 1)) if pictures else (lambda t: t.unbind())
            for k, (own_y, own_x_grad, own_upstream) in enumerate(zip(*map(split, (y, x.grad, upstream)), strict=True)):
                alone = separate(population, k, layer)
                own_x = parts[k].clone().requires_grad_()
                expected = alone(own_x)
                expected.backward(own_upstream)
                torch.testing.assert_close(own_y, expected, **close)
                torch.testing.assert_close(own_x_grad, own_x.grad, **close)
                used = ~population.unused[k, 0]
                gradient = population.raw.grad[k, layer]
                if isinstance(alone, Hull):
                    torch.testing.assert_close(population.coefficients[k, layer][used], alone.coefficients, **close)
                    moved_by = gradient[used]
                    torch.testing.assert_close(moved_by[: len(alone.raw)], alone.raw.grad, **close)
                    assert not moved_by[len(alone.raw) :].any()
                    assert not gradient[~used].any()
                else:
                    assert not gradient.any()

    @given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=8 * 3, max_size=8 * 3))
    def test_coefficients_are_in_their_hull_wherever_an_optimiser_goes(self, numbers: list[float]) -> None:
        texts = [row for row in paper.ROWS if "(" in row]
        texts[4], texts[5] = "convex(identity,relu,tanh,keep=softmax)", "affine(identity,tanh,keep=free)"
        layers = Activations([Row.parse(text) for text in texts], widths=[1])
        with torch.no_grad():
            layers.raw.copy_(torch.tensor(numbers).view(8, 1, 3).masked_fill(layers.unused, 0.0))
        coefficients = layers.coefficients.detach()
        for row, kept, used in zip(layers.rows, coefficients[:, 0], ~layers.unused[:, 0], strict=True):
            assert not kept[~used].any()
            tolerance = 1e-6 * max(1.0, *map(abs, numbers))
            assert abs(kept.double().sum() - 1) < tolerance
            assert row.kind == "affine" or (kept >= 0).all()

    def test_hulls_start_at_their_centre_and_fixed_activations_at_their_point(self) -> None:
        layers = Activations([Row.parse(row) for row in ("leaky_relu", "tanh", "convex(identity,tanh)")], widths=[1, 1])
        rows = torch.tensor([[0.01, 0.99, 0.0], [0.0, 0.0, 1.0], [0.5, 0.0, 0.5]])
        torch.testing.assert_close(layers.coefficients.detach(), rows.unsqueeze(1).expand(3, 2, 3))

    def test_a_hull_may_start_as_one_of_its_bases(self) -> None:
        texts = ("affine(identity,relu,start=relu)", "affine(relu,tanh,keep=free,start=tanh)", "convex(identity,relu)")
        layers = Activations([Row.parse(text) for text in texts], widths=[1])
        rows = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.5, 0.5, 0.0]])
        torch.testing.assert_close(layers.coefficients.detach()[:, 0], rows)

    def test_one_activation_a_channel_is_a_hull_with_as_many_groups(self) -> None:
        texts = ("affine(identity,relu,tanh,per=channel)", "convex(relu,tanh,per=channel)")
        layers = Activations([Row.parse(text) for text in texts], widths=[3, 1])
        assert layers.raw.shape == (2, 4, 3)
        with torch.no_grad():
            layers.raw += ~layers.unused * torch.randn_like(layers.raw)
        pictures, features = layers()
        x, flat = torch.randn(2, 6, 4, 4), torch.randn(2, 5, 7)
        y, z = pictures(x), features(flat)
        for k, row in enumerate(layers.rows):
            raw = layers.raw[k, :, ~layers.unused[k, 0]]
            grouped = HULLS[row.kind](*row.bases, groups=3)
            grouped.load_state_dict({grouped.raw_name: raw[:3]})
            torch.testing.assert_close(y[:, 3 * k : 3 * k + 3], grouped(x[:, 3 * k : 3 * k + 3]))
            alone = HULLS[row.kind](*row.bases)
            alone.load_state_dict({alone.raw_name: raw[3]})
            torch.testing.assert_close(z[k], alone(flat[k]))

    def test_members_per_layer_beside_one_per_channel_get_the_gradient_that_they_get_alone(self) -> None:
        apart = moved(ROWS, layers=2)
        beside = Activations([*ROWS, Row.parse("prelu")], widths=[3, 1]).double()
        assert beside.raw.shape[1] == 4
        columns = [beside.bases.index(item) for item in apart.bases]
        with torch.no_grad():
            for mixed, plain in zip(beside.raw, apart.raw, strict=False):
                mixed[:, columns] = plain.repeat_interleave(torch.tensor([3, 1]), 0)
        count = len(ROWS)
        x, flat = torch.randn(2, 3 * (count + 1), 4, 4).double(), torch.randn(count + 1, 5, 7).double()
        upstream, flat_upstream = torch.randn_like(x), torch.randn_like(flat)
        for population, members in ((apart, count), (beside, count + 1)):
            images, features = population()
            y, z = images(x[:, : 3 * members]), features(flat[:members])
            ((y * upstream[:, : 3 * members]).sum() + (z * flat_upstream[:members]).sum()).backward()
        for k, plain in enumerate(apart.raw.grad):
            first, second = beside.split_member(k, beside.raw.grad[k])
            torch.testing.assert_close(torch.cat([first, second])[:, columns], plain, rtol=1e-10, atol=1e-10)
            assert torch.equal(beside.raw.grad[k, :3], first.expand(3, -1))
        slopes = beside.raw.grad[-1, :3, beside.bases.index(hullo.base("identity"))]
        own = x[:, 3 * count :], upstream[:, 3 * count :]
        torch.testing.assert_close(slopes, (own[0].clamp(max=0) * own[1]).sum((0, 2, 3)))

    def test_fixed_activations_have_no_parameters(self) -> None:
        assert not list(Activations([Row.parse("relu"), Row.parse("leaky_relu")], widths=[1, 1, 1]).parameters())

    def test_a_member_that_diverges_leaves_the_others_unchanged_to_the_bit(self) -> None:
        k = paper.ROWS.index("convex(identity,relu,tanh)")
        others = [i for i in range(len(ROWS)) if i != k]
        healthy = moved(ROWS, layers=1, dtype=torch.float32)
        diverged = copy.deepcopy(healthy)
        with torch.no_grad():
            diverged.raw[k] = torch.nan
        x = torch.randn(len(ROWS), 2, 5)
        results = []
        for population, value in ((healthy, 1.0), (diverged, torch.inf)):
            inputs = x.clone()
            inputs[k] = value
            inputs.requires_grad_()
            (function,) = population()
            y = function(inputs)
            y.backward(torch.ones_like(y))
            results.append((y, inputs.grad, population.raw.grad))
        assert results[1][0][k].isnan().all()
        assert all(torch.equal(a[others], b[others]) for a, b in zip(*results, strict=True))

    def test_one_pass_keeps_the_coefficients_of_all_layers(self) -> None:
        layers = Activations([Row.parse("convex(identity,relu)")], widths=[1] * 50)
        functions = list(layers())
        total = sum((function(torch.ones(1, 1, 1, 1)) for function in functions), torch.zeros(1))
        graph, seen = [total.grad_fn], set()
        while graph:
            node = graph.pop()
            if node is not None and node not in seen:
                seen.add(node)
                graph.extend(parent for parent, _ in node.next_functions)
        assert sum(node.name() == "_KeptBackward" for node in seen) == 1


def test_layers_learn_like_an_ordinary_module() -> None:
    layers = Activations([Row.parse("affine(identity,relu)")], widths=[1])
    assert isinstance(layers.raw, nn.Parameter)
    (function,) = layers()
    function(torch.tensor([[[1.0, -2.0]]])).sum().backward()
    # dc = (1 - 2, 1 + 0), pulled back by subtracting its mean
    torch.testing.assert_close(layers.raw.grad, torch.tensor([[[-1.0, 1.0]]]))
