"""combine is the sum of c_i f_i(x), for any tensor, in any transform, and holds nothing but its input for backward."""

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
from hullo.coefficients import way

TRIO = ("identity", "relu", "tanh")
QUARTET = ("identity", "relu", "tanh", "unit_silu")
BACKENDS = ("cpu", "reference")
TOLERANCE = {torch.float64: 1e-8, torch.float32: 4e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def close(found: Tensor, exact: Tensor) -> None:
    """Within the rounding of found's type."""
    tolerance = TOLERANCE[found.dtype]
    torch.testing.assert_close(found.double(), exact.double(), rtol=tolerance, atol=tolerance)


def rows_of(groups: int | None, n: int, dtype: torch.dtype = torch.float32) -> Tensor:
    shape = (n,) if groups is None else (groups, n)
    return torch.randn(shape, dtype=dtype)


def check_against_oracle(
    x: Tensor, coefficients: Tensor, names: tuple[str, ...], channel_dim: int = 1, backend: str | None = None
) -> None:
    """Values, and gradients for x and the coefficients."""
    x = x.detach().requires_grad_()
    c = coefficients.detach().requires_grad_()
    y = hullo.combine(x, c, names, channel_dim=channel_dim, backend=backend)
    assert (y.shape, y.dtype, y.device) == (x.shape, x.dtype, x.device)
    exact = oracle.combine(x, c, names, channel_dim)
    close(y, exact)
    upstream = torch.randn(x.shape).to(x.dtype)
    dx, dc = torch.autograd.grad(y, (x, c), upstream)
    exact_dx, exact_dc = oracle.gradients(exact, (x, c), upstream)
    assert (dx.shape, dx.dtype, dc.shape, dc.dtype) == (x.shape, x.dtype, c.shape, c.dtype)
    close(dx, exact_dx)
    # Sums are as good as the type in which they are computed, whatever the type of x.
    scale = max(1.0, upstream.double().norm().item() * x.detach().double().norm().item())
    assert ((dc - exact_dc).abs().max() if dc.numel() else torch.zeros(())) <= 1e-6 * scale


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", oracle.CLOSED_FORMS)
def test_every_base_in_every_type_is_its_closed_form(name: str, dtype: torch.dtype, backend: str) -> None:
    x = (3 * torch.randn(3, 4, 5)).to(dtype)
    names = ("tanh", name) if name != "tanh" else ("tanh",)
    check_against_oracle(x, rows_of(None, len(names)), names, backend=backend)


SHAPES = {
    "contiguous": lambda: torch.randn(2, 6, 5, 3),
    "channels_last": lambda: torch.randn(2, 6, 5, 3).contiguous(memory_format=torch.channels_last),
    "strided": lambda: torch.randn(4, 12, 5, 6)[::2, ::2, :, ::2],
    "narrowed": lambda: torch.randn(3, 9, 5, 4)[1:, 2:8, 1:4],
    "transposed": lambda: torch.randn(5, 6, 2).transpose(0, 2),
    "permuted": lambda: torch.randn(3, 6, 2, 6).permute(2, 1, 3, 0)[:, :, :5],
    "expanded": lambda: torch.randn(2, 6, 1).expand(2, 6, 7),
    "all one number": lambda: torch.randn(()).expand(3, 6, 2),
    "batch of one": lambda: torch.randn(1, 6),
    "batch of one picture, channels_last": lambda: torch.randn(1, 6, 4, 4).to(memory_format=torch.channels_last),
    "one channel a group": lambda: torch.randn(7, 6, 1, 1),
    "empty batch": lambda: torch.randn(0, 6, 3),
    "empty picture": lambda: torch.randn(2, 6, 0, 3),
    "odd sizes": lambda: torch.randn(3, 6, 7, 11, 1),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("groups", [None, 1, 3, 6])
@pytest.mark.parametrize("shape", SHAPES)
def test_any_layout_and_grouping_is_served(shape: str, groups: int | None, backend: str) -> None:
    check_against_oracle(SHAPES[shape](), rows_of(groups, 4), QUARTET, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("groups", [None, 1, 2, 4])
@pytest.mark.parametrize("channel_dim", [0, 1, -1, -3, 2])
def test_any_dimension_can_hold_the_channels(channel_dim: int, groups: int | None, backend: str) -> None:
    for x in (torch.randn(4, 8, 12), torch.randn(12, 8, 4).transpose(0, 2)):
        check_against_oracle(x, rows_of(groups, 3), TRIO, channel_dim, backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [(), (1,), (5,), (0,)])
def test_a_number_and_a_vector_need_no_channels(shape: tuple[int, ...], backend: str) -> None:
    check_against_oracle(torch.randn(shape), rows_of(None, 3), TRIO, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradients_for_coefficients_are_summed_in_float32_or_better(dtype: torch.dtype, backend: str) -> None:
    x = torch.ones(2**14, dtype=dtype)  # their sum is far beyond what the type can count to one by one
    c = torch.tensor([0.5, 0.5], requires_grad=True)
    hullo.combine(x, c, ("identity", "relu"), backend=backend).backward(torch.ones_like(x))
    assert c.grad is not None
    assert c.grad.tolist() == [2**14, 2**14]


@pytest.mark.parametrize("x_type", TOLERANCE)
@pytest.mark.parametrize("coefficient_type", TOLERANCE)
def test_any_pair_of_types_gives_each_its_own_back(x_type: torch.dtype, coefficient_type: torch.dtype) -> None:
    x = torch.randn(4, 6).to(x_type).requires_grad_()
    c = torch.tensor([[0.5, 0.25], [0.75, 0.125]], dtype=coefficient_type, requires_grad=True)
    y = hullo.combine(x, c, ("relu", "tanh"))
    close(y, oracle.combine(x, c, ("relu", "tanh")))
    y.sum().backward()
    assert x.grad is not None
    assert c.grad is not None
    assert (y.dtype, x.grad.dtype, c.grad.dtype) == (x_type, x_type, coefficient_type)


@pytest.mark.parametrize("coefficients", [[0.3, 0.7], [0.0, 1.0], [[1.0, 0.0], [-0.5, 1.5]]])
@pytest.mark.parametrize("name", [name for name in oracle.CLOSED_FORMS if name != "sin"])
def test_nan_and_infinity_come_out_as_the_reference_says(name: str, coefficients: list[float]) -> None:
    odd = [torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 3e38, -3e38, 1e-42, 1.0, -1.0]
    x = torch.tensor([odd, odd], requires_grad=True)
    results = []
    for backend in BACKENDS:
        y = hullo.combine(x, torch.tensor(coefficients), ("sin", name), channel_dim=0, backend=backend)
        results.append((y.detach(), torch.autograd.grad(y.sum(), x)[0]))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_nan_goes_in_and_nan_comes_out(backend: str) -> None:
    for name in oracle.CLOSED_FORMS:
        assert hullo.combine(torch.tensor([torch.nan]), torch.ones(1), [name], backend=backend).isnan().all(), name


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("groups", [None, 2])
def test_only_the_input_and_the_coefficients_are_held_for_the_backward_pass(backend: str, groups: int | None) -> None:
    held: list[Tensor] = []
    x = torch.randn(3, 4, 5, requires_grad=True)
    c = rows_of(groups, 4).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: held.append(t) or t, lambda t: t):
        hullo.combine(x, c, QUARTET, backend=backend)
    assert [t.data_ptr() for t in held] == [x.data_ptr(), c.data_ptr()]


def test_the_input_is_left_as_it_is() -> None:
    x = torch.randn(4, 6, requires_grad=True)
    before = x.detach().clone()
    y = hullo.combine(x, torch.tensor([0.2, 0.3, 0.5], requires_grad=True), TRIO)
    upstream = torch.randn_like(y)
    upstream_before = upstream.clone()
    y.backward(upstream)
    assert torch.equal(x, before)
    assert torch.equal(upstream, upstream_before)
    assert y.data_ptr() != x.data_ptr()


def test_the_identity_alone_gives_new_memory() -> None:
    x = torch.randn(4, 6)
    y = hullo.combine(x, torch.ones(1), ["identity"])
    y.zero_()
    assert x.abs().sum() > 0


class TestDerivatives:
    """In float64 against differences, away from kinks."""

    @staticmethod
    def inputs(keep: str, groups: int | None) -> tuple[Tensor, Tensor]:
        x = torch.tensor([[-2.3, 0.7, 1.9, -0.4], [0.2, -1.1, 4.0, -5.0]], dtype=torch.float64)
        rows = torch.tensor([[0.2, 0.3, 0.1, 0.4], [0.4, 0.15, 0.25, 0.2]], dtype=torch.float64)
        raw = way(keep).raw(rows if groups else rows[0])
        return x.requires_grad_(), raw.clone().requires_grad_()

    @pytest.mark.parametrize("groups", [None, 2])
    @pytest.mark.parametrize("keep", ["given", *hullo.Simplex.ways, *hullo.Hyperplane.ways])
    def test_first_and_second_derivatives_are_right_for_every_way(self, keep: str, groups: int | None) -> None:
        def function(x: Tensor, raw: Tensor) -> Tensor:
            if keep == "given":
                return hullo.combine(x, raw, QUARTET)
            kind = hullo.ConvexHull if keep in hullo.Simplex.ways else hullo.AffineHull
            act = kind(*QUARTET, keep=keep, groups=groups or 1, dtype=torch.float64)
            return torch.func.functional_call(act, {"raw": raw}, (x,))

        inputs = self.inputs(keep, groups)
        assert torch.autograd.gradcheck(function, inputs, check_batched_grad=True, check_forward_ad=True)
        assert torch.autograd.gradgradcheck(function, inputs, check_batched_grad=True)

    @pytest.mark.parametrize("name", oracle.CLOSED_FORMS)
    def test_three_derivatives_are_those_of_the_closed_form(self, name: str) -> None:
        x, _ = self.inputs("given", None)
        c = torch.tensor([0.7], dtype=torch.float64, requires_grad=True)
        results = []
        for function in (hullo.combine, oracle.combine):
            value = function(x, c, [name]).sum()
            chain = [value]
            for _ in range(3):
                if not value.requires_grad:  # a constant: all further derivatives are zero
                    break
                (slope,) = torch.autograd.grad(value, x, create_graph=True, allow_unused=True, materialize_grads=True)
                value = slope.sum()
                chain += [slope, value]
            results.append(chain)
        for found, expected in zip(*results, strict=False):
            torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)

    def test_a_gradient_penalty_reaches_the_coefficients(self) -> None:
        x, c = self.inputs("given", 2)
        results = []
        for function in (hullo.combine, oracle.combine):
            (slope,) = torch.autograd.grad(function(x, c, QUARTET).sum(), x, create_graph=True)
            results.append(torch.autograd.grad(slope.square().sum(), (x, c)))
        for found, expected in zip(*results, strict=True):
            torch.testing.assert_close(found, expected)

    def test_gradients_in_batches_are_those_one_by_one(self) -> None:
        x, c = self.inputs("given", 2)
        y = hullo.combine(x, c, QUARTET)
        upstream = torch.randn(5, *y.shape, dtype=torch.float64)
        together = torch.autograd.grad(y, (x, c), upstream, is_grads_batched=True, retain_graph=True)
        for k in range(5):
            for found, expected in zip(
                together, torch.autograd.grad(y, (x, c), upstream[k], retain_graph=True), strict=True
            ):
                torch.testing.assert_close(found[k], expected)


def stacked(function: Callable[..., Tensor], x: Tensor, c: Tensor, x_dim: int | None, c_dim: int | None) -> Tensor:
    size = x.shape[x_dim] if x_dim is not None else c.shape[c_dim]  # type: ignore[index]
    results = [
        function(x if x_dim is None else x.select(x_dim, k), c if c_dim is None else c.select(c_dim, k))
        for k in range(size)
    ]
    return torch.stack(results)


class TestTransforms:
    @pytest.mark.parametrize("c_dim", [None, 0, 1, -1])
    @pytest.mark.parametrize("x_dim", [None, 0, 1, 2, -1])
    @pytest.mark.parametrize("groups", [None, 2])
    @pytest.mark.parametrize("channel_dim", [0, 1, -1])
    def test_vmap_is_a_loop(self, x_dim: int | None, c_dim: int | None, groups: int | None, channel_dim: int) -> None:
        if x_dim is None and c_dim is None:
            return
        shape, rows = [4, 6], list(rows_of(groups, 3).shape)
        if x_dim is not None:
            shape.insert(x_dim % 3, 5)
        if c_dim is not None:
            rows.insert(c_dim % (len(rows) + 1), 5)
        x, c = torch.randn(shape, dtype=torch.float64), torch.randn(rows, dtype=torch.float64)

        def function(x: Tensor, c: Tensor) -> Tensor:
            return hullo.combine(x, c, TRIO, channel_dim=channel_dim)

        found = torch.vmap(function, in_dims=(x_dim, c_dim))(x, c)
        torch.testing.assert_close(found, stacked(function, x, c, x_dim, c_dim))

        def gradient(x: Tensor, c: Tensor) -> Tensor:
            dx, dc = torch.func.grad(lambda x, c: function(x, c).square().sum(), argnums=(0, 1))(x, c)
            return torch.cat([dx.flatten(), dc.flatten()])

        found = torch.vmap(gradient, in_dims=(x_dim, c_dim))(x, c)
        torch.testing.assert_close(found, stacked(gradient, x, c, x_dim, c_dim))

    def test_vmap_of_numbers_is_a_vector(self) -> None:
        x, c = torch.randn(5), torch.randn(5, 3)
        found = torch.vmap(lambda x, c: hullo.combine(x, c, TRIO))(x, c)
        torch.testing.assert_close(found, oracle.combine(x[:, None], c, TRIO, 0).float()[:, 0])

    def test_vmap_in_vmap_is_a_loop_in_a_loop(self) -> None:
        x, c = torch.randn(2, 3, 4, 6), torch.randn(3, 2, 3)

        def function(x: Tensor, c: Tensor) -> Tensor:
            return hullo.combine(x, c, TRIO)

        found = torch.vmap(torch.vmap(function, in_dims=(0, None)), in_dims=(1, 0))(x, c)
        for i, j in itertools.product(range(3), range(2)):
            torch.testing.assert_close(found[i, j], function(x[j, i], c[i]))

    @pytest.mark.parametrize("groups", [None, 2])
    @pytest.mark.parametrize("transform", ["jacrev", "jacfwd", "hessian", "jacrev of jacrev", "jacfwd of jacfwd"])
    def test_jacobians_and_hessians_are_those_of_the_oracle(self, transform: str, groups: int | None) -> None:
        outer, _, inner = transform.partition(" of ")
        x, c = torch.randn(2, 4, dtype=torch.float64), rows_of(groups, 4, torch.float64)

        def transformed(combine: Callable[..., Tensor]) -> Callable[[Tensor, Tensor], object]:
            def function(x: Tensor, c: Tensor) -> Tensor:
                return combine(x, c, QUARTET).square()

            if inner:
                function = getattr(torch.func, inner)(function, argnums=(0, 1))
            return getattr(torch.func, outer)(function, argnums=(0, 1))

        found, expected = (transformed(combine)(x, c) for combine in (hullo.combine, oracle.combine))
        torch.testing.assert_close(found, expected)

    def test_older_batched_jacobians_work(self) -> None:
        x, c = torch.randn(2, 4, dtype=torch.float64), rows_of(None, 3, torch.float64)
        for vectorised in (False, True):
            found = torch.autograd.functional.jacobian(
                lambda x, c: hullo.combine(x, c, TRIO), (x, c), vectorize=vectorised
            )
            torch.testing.assert_close(found, torch.func.jacrev(oracle.combine, argnums=(0, 1))(x, c, TRIO))

    def test_a_forward_derivative_needs_only_one_tangent(self) -> None:
        x, c = torch.randn(3, 4, dtype=torch.float64), rows_of(None, 3, torch.float64)
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
            tangent = torch.autograd.forward_ad.unpack_dual(hullo.combine(dual, c, TRIO)).tangent
        x.requires_grad_()
        (slope,) = torch.autograd.grad(oracle.combine(x, c, TRIO).sum(), x)
        torch.testing.assert_close(tangent, slope)


class TestCompiled:
    @pytest.fixture(autouse=True)
    def _fresh(self) -> None:
        torch._dynamo.reset()

    @pytest.mark.parametrize(("backend", "groups"), [("aot_eager", None), ("aot_eager", 2), ("inductor", 2)])
    def test_names_inside_a_compiled_function_make_no_graph_break(self, backend: str, groups: int | None) -> None:
        if backend == "inductor" and not (shutil.which("g++") or shutil.which("clang++")):
            pytest.skip("needs a C++ compiler")
        names = ("identity", "leaky_relu(0.3)", "tanh")
        hullo.base("leaky_relu(0.3)")

        def function(x: Tensor, c: Tensor) -> Tensor:
            return 2 * hullo.combine(x + 1, c, names).square()

        x, c = torch.randn(4, 6, requires_grad=True), rows_of(groups, 3).requires_grad_()
        found = torch.compile(function, fullgraph=True, backend=backend)(x, c)
        expected = function(x, c)
        torch.testing.assert_close(found, expected)
        upstream = torch.randn_like(x)
        for a, b in zip(*(torch.autograd.grad(y, (x, c), upstream) for y in (found, expected)), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)

    def test_a_base_that_compiled_code_cannot_make_is_refused_with_the_remedy(self) -> None:
        compiled = torch.compile(
            lambda x, c: hullo.combine(x, c, ["leaky_relu(0.31)"]), fullgraph=True, backend="aot_eager"
        )
        with pytest.raises(torch._dynamo.exc.Unsupported, match=r"call hullo.base\('leaky_relu\(0.31\)'\) before"):
            compiled(torch.randn(3), torch.ones(1))

    def test_torch_func_works_inside_a_compiled_function(self) -> None:
        def gradient(x: Tensor, c: Tensor) -> Tensor:
            return torch.func.grad(lambda c: hullo.combine(x, c, TRIO).sum())(c)

        x, c = torch.randn(5), rows_of(None, 3)
        compiled = torch.compile(gradient, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x, c), gradient(x, c))

    def test_a_traced_module_keeps_its_coefficients(self) -> None:
        act = hullo.AffineHull(*TRIO)
        x = torch.randn(5)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of torch.jit
            traced = torch.jit.trace(act, x)
        act.coefficients = "relu"
        torch.testing.assert_close(traced(x), torch.relu(x))

    def test_base_objects_inside_a_compiled_function_make_no_graph_break(self) -> None:
        bases = [hullo.base(name) for name in TRIO]
        x, c = torch.randn(4, 6), rows_of(None, 3)
        compiled = torch.compile(lambda x, c: hullo.combine(x, c, bases), fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x, c), hullo.combine(x, c, bases))


class TestExported:
    def test_names_inside_an_exported_function_leave_plain_operations(self) -> None:
        class Network(torch.nn.Module):
            def forward(self, x: Tensor, c: Tensor) -> Tensor:
                return hullo.combine(x, c, ("identity", "leaky_relu(0.35)", "elu(4)"))  # not seen before

        x, c = torch.randn(4, 6), rows_of(2, 3)
        exported = torch.export.export(Network(), (x, c))
        torch.testing.assert_close(exported.module()(x, c), Network()(x, c))
        assert not any("hullo" in str(node.target) for node in exported.graph.nodes)


class TestRefusals:
    @pytest.mark.parametrize(
        "x", [torch.arange(3), torch.tensor([True]), torch.randn(3, dtype=torch.complex64), 1.0, None]
    )
    def test_an_input_that_is_no_floating_point_tensor(self, x: object) -> None:
        with pytest.raises(TypeError, match=r"x must be a floating-point tensor, got .*; for integers call") as refusal:
            hullo.combine(x, torch.ones(1), ["relu"])  # type: ignore[arg-type]
        assert str(x.dtype if isinstance(x, Tensor) else type(x).__name__) in str(refusal.value)

    @pytest.mark.parametrize("c", [[0.5, 0.5], torch.tensor([1, 0]), None, 0.5])
    def test_coefficients_that_are_no_floating_point_tensor(self, c: object) -> None:
        with pytest.raises(
            TypeError, match=r"coefficients must be a floating-point tensor, got (list|torch.int64|No|fl)"
        ):
            hullo.combine(torch.randn(3), c, ["relu", "tanh"])  # type: ignore[arg-type]

    @pytest.mark.parametrize("shape", [(), (3,), (1,), (2, 3), (4, 1, 2), (0,)])
    def test_coefficients_of_the_wrong_shape(self, shape: tuple[int, ...]) -> None:
        with pytest.raises(ValueError, match=r"for 2 bases have shape \(2,\) or \(groups, 2\), got") as refusal:
            hullo.combine(torch.randn(3, 4), torch.ones(shape), ["relu", "tanh"])
        assert str(shape) in str(refusal.value)

    def test_channels_that_do_not_fall_into_the_groups(self) -> None:
        with pytest.raises(ValueError, match=r"7 channels \(dimension 1 of \(2, 7\)\) do not fall into 3 equal groups"):
            hullo.combine(torch.randn(2, 7), torch.ones(3, 1), ["relu"])
        with pytest.raises(ValueError, match=r"2 channels \(dimension -2 of \(2, 6\)\) do not fall into 3"):
            hullo.combine(torch.randn(2, 6), torch.ones(3, 1), ["relu"], channel_dim=-2)

    @pytest.mark.parametrize(("shape", "dim"), [((), 1), ((6,), 1), ((2, 6), 2), ((2, 6), -3)])
    def test_a_channel_dimension_that_is_not_there(self, shape: tuple[int, ...], dim: int) -> None:
        with pytest.raises(ValueError, match=f"has no dimension {dim} for 3 groups of channels"):
            hullo.combine(torch.randn(shape), torch.ones(3, 1), ["relu"], channel_dim=dim)

    def test_coefficients_on_another_device(self) -> None:
        class Elsewhere(torch.Tensor):
            device = torch.device("cuda", 1)  # type: ignore[assignment]

        c = torch.ones(1).as_subclass(Elsewhere)
        with pytest.raises(ValueError, match=r"x is on cpu and the coefficients on cuda:1; move both to one device"):
            hullo.combine(torch.randn(3), c, ["relu"])

    def test_a_backend_that_does_not_exist_or_cannot_serve(self) -> None:
        x, c = torch.randn(3), torch.ones(1)
        with pytest.raises(ValueError, match="unknown backend 'gpu'; there are 'reference', 'cpu'"):
            hullo.combine(x, c, ["relu"], backend="gpu")
        with pytest.raises(ValueError, match=r"'cpu' .*CPU tensors, and x is on meta; use backend='reference'"):
            hullo.combine(x.to("meta"), c.to("meta"), ["relu"], backend="cpu")

    @pytest.mark.parametrize(
        ("bases", "said"),
        [
            ([], "at least one"),
            (["relu", "relu"], "more than once"),
            (["identity", "relu", "leaky_relu"], "linear comb"),
        ],
    )
    def test_a_set_of_bases_without_sense(self, bases: list[str], said: str) -> None:
        with pytest.raises(ValueError, match=said):
            hullo.combine(torch.randn(3), torch.ones(len(bases)), bases)

    @pytest.mark.gpu
    def test_coefficients_on_the_cpu_for_an_input_on_the_gpu(self) -> None:
        with pytest.raises(ValueError, match="x is on cuda:0 and the coefficients on cpu; move both to one device"):
            hullo.combine(torch.randn(3, device="cuda"), torch.ones(1), ["relu"])


def test_raw_forms_and_empty_channels_are_admitted() -> None:
    x = torch.randn(4, 5)
    torch.testing.assert_close(hullo.combine(x, torch.ones(1), ["gelu"]), torch.nn.functional.gelu(x))
    assert hullo.combine(torch.randn(4, 0), torch.ones(2, 1), ["gelu"]).shape == (4, 0)


def test_a_default_device_elsewhere_does_not_matter() -> None:
    x, c = torch.randn(4, 6, requires_grad=True), rows_of(2, 4)
    expected = hullo.combine(x, c, QUARTET)
    with torch.device("meta"):
        found = hullo.combine(x, c, QUARTET)
        found.sum().backward()
    assert torch.equal(found, expected)
