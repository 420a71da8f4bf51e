"""Test that combine is the same function in torch.func transforms, compiled, traced and exported."""

from __future__ import annotations

import itertools
import shutil
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import hullo
import oracle
from made_hulls import QUARTET, TRIO, rows_of


def stacked(function: Callable[..., Tensor], x: Tensor, c: Tensor, x_dim: int | None, c_dim: int | None) -> Tensor:
    size = x.shape[x_dim] if x_dim is not None else c.shape[c_dim]  # type: ignore[index]
    results = [
        function(x if x_dim is None else x.select(x_dim, k), c if c_dim is None else c.select(c_dim, k))
        for k in range(size)
    ]
    return torch.stack(results)


class TestTransforms:
    @pytest.mark.parametrize(("x_dim", "c_dim"), [*itertools.product([None, 0, 1, 2, -1], [None, 0, 1, -1])][1:])
    @pytest.mark.parametrize("groups", [None, 2])
    @pytest.mark.parametrize("channel_dim", [0, 1, -1])
    def test_vmap_equals_a_loop(
        self, x_dim: int | None, c_dim: int | None, groups: int | None, channel_dim: int
    ) -> None:
        shape, rows = [4, 6], list(rows_of(groups, 3).shape)
        if x_dim is not None:
            shape.insert(x_dim % 3, 5)
        if c_dim is not None:
            rows.insert(c_dim % (len(rows) + 1), 5)
        x, c = torch.randn(shape, dtype=torch.float64), torch.randn(rows, dtype=torch.float64)

        def function(x: Tensor, c: Tensor) -> Tensor:
            return hullo.combine(x, c, TRIO, channel_dim=channel_dim)

        actual = torch.vmap(function, in_dims=(x_dim, c_dim))(x, c)
        torch.testing.assert_close(actual, stacked(function, x, c, x_dim, c_dim))

        def gradient(x: Tensor, c: Tensor) -> Tensor:
            dx, dc = torch.func.grad(lambda x, c: function(x, c).square().sum(), argnums=(0, 1))(x, c)
            return torch.cat([dx.flatten(), dc.flatten()])

        actual = torch.vmap(gradient, in_dims=(x_dim, c_dim))(x, c)
        torch.testing.assert_close(actual, stacked(gradient, x, c, x_dim, c_dim))

    def test_vmap_of_scalars_equals_a_vector(self) -> None:
        x, c = torch.randn(5), torch.randn(5, 3)
        actual = torch.vmap(lambda x, c: hullo.combine(x, c, TRIO))(x, c)
        torch.testing.assert_close(actual, oracle.combine(x[:, None], c, TRIO, 0).float()[:, 0])

    def test_nested_vmap_equals_nested_loops(self) -> None:
        x, c = torch.randn(2, 3, 4, 6), torch.randn(3, 2, 3)

        def function(x: Tensor, c: Tensor) -> Tensor:
            return hullo.combine(x, c, TRIO)

        actual = torch.vmap(torch.vmap(function, in_dims=(0, None)), in_dims=(1, 0))(x, c)
        for i, j in itertools.product(range(3), range(2)):
            torch.testing.assert_close(actual[i, j], function(x[j, i], c[i]))

    @pytest.mark.parametrize("groups", [None, 2])
    @pytest.mark.parametrize("transform", ["jacrev", "jacfwd", "hessian", "jacrev of jacrev", "jacfwd of jacfwd"])
    def test_jacobians_and_hessians_match_the_oracle(self, transform: str, groups: int | None) -> None:
        outer, _, inner = transform.partition(" of ")
        x, c = torch.randn(2, 4, dtype=torch.float64), rows_of(groups, 4, torch.float64)

        def transformed(combine: Callable[..., Tensor]) -> Callable[[Tensor, Tensor], object]:
            def function(x: Tensor, c: Tensor) -> Tensor:
                return combine(x, c, QUARTET).square()

            if inner:
                function = getattr(torch.func, inner)(function, argnums=(0, 1))
            return getattr(torch.func, outer)(function, argnums=(0, 1))

        actual, expected = (transformed(combine)(x, c) for combine in (hullo.combine, oracle.combine))
        torch.testing.assert_close(actual, expected)

    def test_is_grads_batched_works(self) -> None:
        x, c = torch.randn(2, 4, dtype=torch.float64), rows_of(None, 3, torch.float64)
        for vectorised in (False, True):
            actual = torch.autograd.functional.jacobian(
                lambda x, c: hullo.combine(x, c, TRIO), (x, c), vectorize=vectorised
            )
            torch.testing.assert_close(actual, torch.func.jacrev(oracle.combine, argnums=(0, 1))(x, c, TRIO))

    def test_vmap_of_a_backward_pass_equals_a_loop(self) -> None:
        x = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
        c = rows_of(None, 3, torch.float64).requires_grad_()
        y = hullo.combine(x, c, TRIO)
        slopes = torch.autograd.grad(y.square().sum(), (x, c), create_graph=True)
        for output in (y, *slopes):
            basis = torch.randn(5, *output.shape, dtype=torch.float64)

            def pull(v: Tensor, output: Tensor = output) -> tuple[Tensor, ...]:
                return torch.autograd.grad(output, (x, c), v, retain_graph=True)

            for actual, expected in zip(torch.vmap(pull)(basis), zip(*map(pull, basis), strict=True), strict=True):
                torch.testing.assert_close(actual, torch.stack(expected))

    def test_forward_mode_works_with_one_tangent(self) -> None:
        x, c = torch.randn(3, 4, dtype=torch.float64), rows_of(None, 3, torch.float64)
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
            tangent = torch.autograd.forward_ad.unpack_dual(hullo.combine(dual, c, TRIO)).tangent
        x.requires_grad_()
        (slope,) = torch.autograd.grad(oracle.combine(x, c, TRIO).sum(), x)
        torch.testing.assert_close(tangent, slope)


class TestCompiled:
    @pytest.mark.parametrize(("backend", "groups"), [("aot_eager", None), ("aot_eager", 2), ("inductor", 2)])
    def test_base_names_in_a_compiled_function_do_not_break_the_graph(self, backend: str, groups: int | None) -> None:
        if backend == "inductor" and not (shutil.which("g++") or shutil.which("clang++")):
            pytest.skip("needs a C++ compiler")
        names = ("identity", "leaky_relu(0.3)", "tanh")
        hullo.get_base("leaky_relu(0.3)")

        def function(x: Tensor, c: Tensor) -> Tensor:
            return 2 * hullo.combine(x + 1, c, names).square()

        x, c = torch.randn(4, 6, requires_grad=True), rows_of(groups, 3).requires_grad_()
        actual = torch.compile(function, fullgraph=True, backend=backend)(x, c)
        expected = function(x, c)
        torch.testing.assert_close(actual, expected)
        upstream = torch.randn_like(x)
        for a, b in zip(*(torch.autograd.grad(y, (x, c), upstream) for y in (actual, expected)), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)

    def test_new_base_breaks_the_graph_and_a_known_one_does_not(self) -> None:
        def bent(x: Tensor, c: Tensor) -> Tensor:
            return hullo.combine(x, c, ["leaky_relu(0.31)"])

        x, c, expected = torch.tensor([-1.0, 2.0]), torch.ones(1), torch.tensor([-0.31, 2.0])
        torch.testing.assert_close(torch.compile(bent, backend="aot_eager")(x, c), expected)
        hullo.get_base("leaky_relu(0.31)")
        torch.testing.assert_close(torch.compile(bent, fullgraph=True, backend="aot_eager")(x, c), expected)

    def test_torch_func_works_in_a_compiled_function(self) -> None:
        def gradient(x: Tensor, c: Tensor) -> Tensor:
            return torch.func.grad(lambda c: hullo.combine(x, c, TRIO).sum())(c)

        x, c = torch.randn(5), rows_of(None, 3)
        compiled = torch.compile(gradient, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x, c), gradient(x, c))

    def test_traced_module_keeps_its_coefficients(self) -> None:
        act = hullo.AffineHull(*TRIO)
        x = torch.randn(5)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of torch.jit
            traced = torch.jit.trace(act, x)
        act.coefficients = "relu"
        torch.testing.assert_close(traced(x), torch.relu(x))

    def test_base_objects_in_a_compiled_function_do_not_break_the_graph(self) -> None:
        bases = [hullo.get_base(name) for name in TRIO]
        x, c = torch.randn(4, 6), rows_of(None, 3)
        compiled = torch.compile(lambda x, c: hullo.combine(x, c, bases), fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x, c), hullo.combine(x, c, bases))


class TestExported:
    def test_exported_function_has_only_plain_operations(self) -> None:
        class Network(torch.nn.Module):
            def forward(self, x: Tensor, c: Tensor) -> Tensor:
                return hullo.combine(x, c, ("identity", "leaky_relu(0.35)", "elu(4)"))  # not seen before

        x, c = torch.randn(4, 6), rows_of(2, 3)
        exported = torch.export.export(Network(), (x, c))
        torch.testing.assert_close(exported.module()(x, c), Network()(x, c))
        assert not any("hullo" in str(node.target) for node in exported.graph.nodes)
