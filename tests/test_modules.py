"""ConvexHull and AffineHull behave like native activations: construction, types, copies, checkpoints, compilers."""

from __future__ import annotations

import copy
import io
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hullo
import oracle
from hullo.modules import Hull

TRIO = ("identity", "relu", "tanh")
HULLS = [(hullo.ConvexHull, keep) for keep in hullo.Simplex.ways] + [
    (hullo.AffineHull, keep) for keep in hullo.Hyperplane.ways
]
every_hull = pytest.mark.parametrize(("hull", "keep"), HULLS)


def uneven(hull: type[Hull], keep: str, groups: int = 1, **options: Any) -> Hull:
    """A hull whose coefficients all differ."""
    rows = [[0.1 + 0.05 * g, 0.3, 0.6 - 0.05 * g] for g in range(groups)]
    return hull(*TRIO, keep=keep, groups=groups, start=rows[0] if groups == 1 else rows, **options)


class TestConstruction:
    @every_hull
    @pytest.mark.parametrize("groups", [1, 4])
    def test_it_starts_uniform_and_is_reproducible(self, hull: type[Hull], keep: str, groups: int) -> None:
        act = hull(*TRIO, keep=keep, groups=groups)
        assert act.coefficients.shape == ((3,) if groups == 1 else (groups, 3))
        torch.testing.assert_close(act.coefficients.detach(), torch.full_like(act.coefficients, 1 / 3))
        assert torch.equal(act.raw, hull(*TRIO, keep=keep, groups=groups).raw)

    @every_hull
    def test_it_computes_the_combination_of_its_coefficients(self, hull: type[Hull], keep: str) -> None:
        for groups, channel_dim in ((1, 1), (2, 1), (3, -1)):
            act = uneven(hull, keep, groups, channel_dim=channel_dim)
            x = torch.randn(4, 6, 9)
            exact = oracle.combine(x, act.coefficients.detach(), TRIO, channel_dim)
            torch.testing.assert_close(act(x).detach(), exact.float(), rtol=1e-5, atol=1e-6)

    @every_hull
    def test_any_admissible_start_is_taken(self, hull: type[Hull], keep: str) -> None:
        row = [0.2, 0.5, 0.3]
        for start in (row, torch.tensor(row), tuple(row), torch.tensor(row, dtype=torch.float64, requires_grad=True)):
            torch.testing.assert_close(
                hull(*TRIO, start=start, keep=keep).coefficients.tolist(), row, rtol=0, atol=1e-6
            )
        shared = hull(*TRIO, start=row, keep=keep, groups=2)
        torch.testing.assert_close(shared.coefficients.tolist(), [row, row], rtol=0, atol=1e-6)

    @pytest.mark.parametrize(("hull", "keep"), [pair for pair in HULLS if pair[1] != "softmax"])
    def test_it_starts_as_any_of_its_bases_exactly(self, hull: type[Hull], keep: str) -> None:
        x = torch.linspace(-3, 3, 25)
        for name in ("gelu", "identity", "relu"):
            act = hull("identity", "relu", "gelu", start=name, keep=keep, strict=False)
            torch.testing.assert_close(act(x), hullo.base(name).function(x), rtol=0, atol=0)

    def test_a_start_between_vertices_of_an_affine_hull_may_be_negative(self) -> None:
        assert hullo.AffineHull("identity", "tanh", start=[2.0, -1.0]).coefficients.tolist() == [2.0, -1.0]

    @every_hull
    def test_one_base_alone_is_itself(self, hull: type[Hull], keep: str) -> None:
        act = hull("tanh", keep=keep)
        x = torch.randn(5, requires_grad=True)
        torch.testing.assert_close(act(x), torch.tanh(x), rtol=0, atol=1e-6)
        act(x).sum().backward()
        assert act.raw.grad is not None
        assert act.raw.grad.abs().sum() == 0

    def test_strict_false_admits_raw_forms(self) -> None:
        with pytest.raises(ValueError, match=r"'gelu'.*'unit_gelu'"):
            hullo.AffineHull("identity", "gelu")
        assert hullo.AffineHull("identity", "gelu", strict=False).spelling == "affine(identity,gelu)"

    def test_it_shows_what_it_is(self) -> None:
        assert repr(hullo.AffineHull(*TRIO)) == "AffineHull(identity=0.33, relu=0.33, tanh=0.33)"
        assert repr(hullo.ConvexHull("relu", "elu(2)", start=[0.25, 0.75])) == "ConvexHull(relu=0.25, elu(2)=0.75)"
        grouped = hullo.ConvexHull("relu", "tanh", groups=4, channel_dim=-1, keep="softmax")
        assert repr(grouped) == "ConvexHull(relu, tanh, groups=4, channel_dim=-1, keep='softmax')"
        assert hullo.ConvexHull(*TRIO).spelling == "convex(identity,relu,tanh)"

    @pytest.mark.parametrize("given", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
    def test_coefficients_are_kept_in_float32_or_better(self, given: torch.dtype) -> None:
        kept = torch.float64 if given == torch.float64 else torch.float32
        assert hullo.AffineHull(*TRIO, dtype=given).raw.dtype == kept

    def test_the_default_dtype_is_followed(self) -> None:
        torch.set_default_dtype(torch.float64)
        try:
            assert hullo.AffineHull(*TRIO).raw.dtype == torch.float64
        finally:
            torch.set_default_dtype(torch.float32)


class TestAssignment:
    @every_hull
    def test_assigned_coefficients_are_the_coefficients(self, hull: type[Hull], keep: str) -> None:
        act = hull(*TRIO, keep=keep)
        parameter = act.raw
        act.coefficients = [0.2, 0.3, 0.5]
        torch.testing.assert_close(act.coefficients.tolist(), [0.2, 0.3, 0.5], rtol=0, atol=1e-6)
        act.coefficients = None
        torch.testing.assert_close(act.coefficients.tolist(), [1 / 3] * 3, rtol=0, atol=1e-6)
        assert act.raw is parameter

    def test_a_base_can_be_assigned_by_name(self) -> None:
        act = hullo.AffineHull(*TRIO, groups=2)
        act.coefficients = "relu"
        assert act.coefficients.tolist() == [[0, 1, 0], [0, 1, 0]]

    @every_hull
    @pytest.mark.parametrize(
        ("value", "error", "said"),
        [
            ([0.5, 0.6, 0.1], ValueError, r"\[0.5, 0.6, 0.1\] are no coefficients of .*these sum to 1.2"),
            ([torch.nan, 0.5, 0.5], ValueError, r"\[nan, 0.5, 0.5\] are no coefficients .*finite"),
            ([torch.inf, 0.0, 1.0], ValueError, "finite"),
            ([0.5, 0.5], ValueError, r"takes 3 numbers as coefficients, got shape \(2,\)"),
            ([[0.2, 0.3, 0.5]] * 2, ValueError, r"takes 3 numbers as coefficients, got shape \(2, 3\)"),
            (1.0, ValueError, r"got shape \(\)"),
            (["a", "b", "c"], TypeError, r"takes 3 numbers as coefficients, got \['a', 'b', 'c'\]"),
            ({"relu": 1.0}, TypeError, "takes 3 numbers as coefficients, got {'relu': 1.0}"),
            ("sin", ValueError, "cannot start as 'sin': it is not one of the bases of"),
            ("rellu", ValueError, r"unknown base function 'rellu'.*Did you mean 'relu'"),
        ],
    )
    def test_a_value_off_the_hull_is_refused_and_changes_nothing(
        self, hull: type[Hull], keep: str, value: Any, error: type[Exception], said: str
    ) -> None:
        act = uneven(hull, keep)
        before = act.raw.detach().clone()
        with pytest.raises(error, match=said):
            act.coefficients = value
        assert torch.equal(act.raw, before)
        with pytest.raises(error, match=said):
            hull(*TRIO, start=value, keep=keep)

    def test_a_convex_hull_refuses_negative_coefficients(self) -> None:
        with pytest.raises(ValueError, match=r"\[2.0, -1.0\] are no coefficients of convex\(relu,tanh\): .* one is -1"):
            hullo.ConvexHull("relu", "tanh", start=[2.0, -1.0])

    def test_one_bad_row_is_enough(self) -> None:
        with pytest.raises(ValueError, match=r"2 rows are no coefficients of .*sum to 0.5"):
            hullo.AffineHull("relu", "tanh", groups=2, start=[[1.0, 0.0], [0.5, 0.0]])


class TestRefusals:
    @pytest.mark.parametrize("groups", [0, -1, 1.5, "2", True, None])
    def test_groups_that_are_no_number_of_groups(self, groups: Any) -> None:
        with pytest.raises(ValueError, match=r"groups=.*give 1 for one activation a layer") as refusal:
            hullo.AffineHull(*TRIO, groups=groups)
        assert f"groups={groups!r}" in str(refusal.value)

    @pytest.mark.parametrize("channel_dim", ["1", 1.0, None, False])
    def test_a_channel_dimension_that_is_no_index(self, channel_dim: Any) -> None:
        with pytest.raises(ValueError, match=r"channel_dim=.*give the index of the dimension"):
            hullo.AffineHull(*TRIO, channel_dim=channel_dim)

    @pytest.mark.parametrize("dtype", ["float32", torch.int64, torch.complex64, float])
    def test_a_dtype_that_is_no_floating_point_type(self, dtype: Any) -> None:
        with pytest.raises(TypeError, match=r"need a floating-point torch\.dtype such as torch\.float32") as refusal:
            hullo.AffineHull(*TRIO, dtype=dtype)
        assert f"dtype={dtype!r}" in str(refusal.value)

    def test_a_way_of_the_other_hull(self) -> None:
        with pytest.raises(ValueError, match="keep='softmax': coefficients in the Hyperplane are kept by 'recentred'"):
            hullo.AffineHull(*TRIO, keep="softmax")

    def test_input_that_does_not_fit(self) -> None:
        with pytest.raises(TypeError, match=r"got torch\.int64; for integers call x\.float\(\) first"):
            hullo.AffineHull(*TRIO)(torch.arange(3))
        with pytest.raises(ValueError, match=r"7 channels .* do not fall into 2 equal groups"):
            hullo.AffineHull(*TRIO, groups=2)(torch.randn(3, 7))


class TestPrecision:
    @every_hull
    @pytest.mark.parametrize("convert", [nn.Module.half, nn.Module.bfloat16, lambda m: m.to(torch.float16)])
    def test_half_precision_models_keep_their_coefficients_in_float32(
        self, hull: type[Hull], keep: str, convert: Callable[[nn.Module], nn.Module]
    ) -> None:
        model = nn.Sequential(nn.Linear(4, 4), uneven(hull, keep), nn.Linear(4, 2))
        before = model[1].raw.detach().clone()
        x = torch.randn(3, 4)
        model(x).sum().backward()
        convert(model)
        assert torch.equal(model[1].raw, before)
        assert model[1].raw.grad.dtype == torch.float32
        y = model(x.to(model[0].weight.dtype))
        assert y.dtype == model[0].weight.dtype
        y.sum().backward()

    def test_double_models_have_double_coefficients(self) -> None:
        act = hullo.AffineHull(*TRIO).double()
        assert act.raw.dtype == torch.float64
        assert act(torch.randn(3, dtype=torch.float64)).dtype == torch.float64

    @every_hull
    def test_autocast_feeds_bfloat16_in_and_gets_bfloat16_out(self, hull: type[Hull], keep: str) -> None:
        model = nn.Sequential(nn.Linear(8, 8), uneven(hull, keep, groups=2), nn.Linear(8, 2))
        x, seen = torch.randn(5, 8), []
        model[1].register_forward_hook(lambda module, args, y: seen.append((args[0], y)))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(x).square().mean()
        loss.backward()
        given, y = seen[0]
        assert given.dtype == y.dtype == torch.bfloat16
        assert model[1].raw.dtype == model[1].raw.grad.dtype == torch.float32
        exact = oracle.combine(given, model[1].coefficients, TRIO).detach()
        torch.testing.assert_close(y.double(), exact, rtol=2**-8, atol=1e-6)

    def test_autocast_changes_nothing_in_the_hull_itself(self) -> None:
        act, x = uneven(hullo.AffineHull, "free", groups=2), torch.randn(3, 4, requires_grad=True)
        results = []
        for enabled in (False, True):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
                y = act(x)
                results.append((y, *torch.autograd.grad(y.square().sum(), (x, act.raw))))
        for plain, cast in zip(*results, strict=True):
            assert plain.dtype == cast.dtype == torch.float32
            assert torch.equal(plain, cast)


class TestCopies:
    @every_hull
    @pytest.mark.parametrize("groups", [1, 2])
    def test_copies_and_pickles_are_the_same_function(self, hull: type[Hull], keep: str, groups: int) -> None:
        act = uneven(hull, keep, groups)
        x = torch.randn(3, 4)
        for twin in (copy.deepcopy(act), pickle.loads(pickle.dumps(act)), copy.copy(act)):
            assert repr(twin) == repr(act)
            assert torch.equal(twin(x), act(x))
        independent = copy.deepcopy(act)
        with torch.no_grad():
            independent.raw.add_(torch.arange(independent.raw.numel()).reshape(independent.raw.shape))
        assert not torch.equal(independent(x), act(x))

    @every_hull
    @pytest.mark.parametrize("groups", [1, 2])
    def test_a_checkpoint_brings_the_function_back(self, hull: type[Hull], keep: str, groups: int) -> None:
        model = nn.Sequential(nn.Linear(4, 4), uneven(hull, keep, groups))
        file = io.BytesIO()
        torch.save(model.state_dict(), file)
        file.seek(0)
        other = nn.Sequential(nn.Linear(4, 4), hull(*TRIO, keep=keep, groups=groups))
        missing = other.load_state_dict(torch.load(file, weights_only=True))
        assert not missing.missing_keys
        assert not missing.unexpected_keys
        x = torch.randn(3, 4)
        assert torch.equal(other(x), model(x))

    def test_safetensors_hold_a_checkpoint(self, tmp_path: Path) -> None:
        safetensors = pytest.importorskip("safetensors.torch")
        model = nn.Sequential(nn.Linear(4, 4), uneven(hullo.ConvexHull, "projection", 2))
        other = nn.Sequential(nn.Linear(4, 4), hullo.ConvexHull(*TRIO, groups=2))
        safetensors.save_file(model.state_dict(), tmp_path / "model.safetensors")
        other.load_state_dict(safetensors.load_file(tmp_path / "model.safetensors"))
        assert torch.equal(other[1].raw, model[1].raw)

    @pytest.mark.parametrize(
        ("saved", "said"),
        [
            (
                hullo.ConvexHull("identity", "relu", "sin"),
                r"1\.raw was saved by 'convex\(identity,relu,sin\) projection'",
            ),
            (hullo.ConvexHull("identity", "tanh", "relu"), r"saved by 'convex\(identity,tanh,relu\) projection'"),
            (hullo.ConvexHull(*TRIO, keep="softmax"), r"saved by 'convex\(identity,relu,tanh\) softmax'; this module"),
            (hullo.AffineHull(*TRIO), r"saved by 'affine\(identity,relu,tanh\) recentred'"),
            (hullo.ConvexHull(*TRIO, groups=2), "saved with groups=2; this module has groups=1"),
        ],
    )
    @pytest.mark.parametrize("strict", [True, False])
    def test_another_hulls_checkpoint_is_refused_and_changes_nothing(
        self, saved: Hull, said: str, strict: bool
    ) -> None:
        model = nn.Sequential(nn.Identity(), uneven(hullo.ConvexHull, "projection"))
        before = model[1].raw.detach().clone()
        with pytest.raises(RuntimeError, match=said):
            model.load_state_dict(nn.Sequential(nn.Identity(), saved).state_dict(), strict=strict)
        assert torch.equal(model[1].raw, before)

    def test_an_older_count_of_groups_is_named(self) -> None:
        act = hullo.AffineHull(*TRIO, groups=4)
        with pytest.raises(RuntimeError, match="raw was saved with groups=1; this module has groups=4"):
            act.load_state_dict(hullo.AffineHull(*TRIO).state_dict())

    def test_layers_do_not_share_coefficients_by_accident(self) -> None:
        model = nn.Sequential(*(copy.deepcopy(hullo.AffineHull(*TRIO)) for _ in range(3)))
        assert len({parameter.data_ptr() for parameter in model.parameters()}) == 3

    @pytest.mark.gpu
    def test_a_checkpoint_moves_between_devices(self) -> None:
        act = uneven(hullo.AffineHull, "recentred", 2).cuda()
        file = io.BytesIO()
        torch.save(act.state_dict(), file)
        file.seek(0)
        other = hullo.AffineHull(*TRIO, groups=2)
        other.load_state_dict(torch.load(file, weights_only=True))
        assert torch.equal(other.raw, act.raw.cpu())
        back = hullo.AffineHull(*TRIO, groups=2).cuda()
        back.load_state_dict(other.state_dict())
        assert torch.equal(back.raw, act.raw)


class TestMeta:
    @every_hull
    def test_it_can_be_made_without_memory_and_filled_later(self, hull: type[Hull], keep: str) -> None:
        saved = uneven(hull, keep, 2)
        with torch.device("meta"):
            in_context = hull(*TRIO, keep=keep, groups=2)
        for act in (in_context, hull(*TRIO, keep=keep, groups=2, device="meta")):
            assert act.raw.is_meta
            assert "identity, relu, tanh, groups=2" in repr(act)
            assert act(torch.empty(3, 4, device="meta")).shape == (3, 4)
            act.to_empty(device="cpu").load_state_dict(saved.state_dict())
            assert torch.equal(act(torch.ones(3, 4)), saved(torch.ones(3, 4)))

    def test_a_meta_module_takes_a_checkpoints_tensors_over(self) -> None:
        saved, act = uneven(hullo.AffineHull, "free"), hullo.AffineHull(*TRIO, keep="free", device="meta")
        assert repr(act) == "AffineHull(identity, relu, tanh, keep='free')"
        act.load_state_dict(saved.state_dict(), assign=True)
        assert repr(act) == repr(saved)


class TestTransforms:
    @every_hull
    def test_functional_call_and_grad_agree_with_autograd(self, hull: type[Hull], keep: str) -> None:
        act, x = uneven(hull, keep, 2), torch.randn(3, 4)
        act(x).square().sum().backward()
        found = torch.func.grad(lambda p: torch.func.functional_call(act, p, (x,)).square().sum())(
            {"raw": act.raw.detach()}
        )
        torch.testing.assert_close(found["raw"], act.raw.grad)

    @every_hull
    @pytest.mark.parametrize("groups", [1, 2])
    def test_an_ensemble_is_its_members(self, hull: type[Hull], keep: str, groups: int) -> None:
        members = [nn.Sequential(nn.Linear(4, 4), uneven(hull, keep, groups)) for _ in range(3)]
        for k, member in enumerate(members):
            with torch.no_grad():
                member[1].raw.add_(0.01 * k * torch.arange(member[1].raw.shape[-1]))
        parameters, buffers = torch.func.stack_module_state(members)
        x = torch.randn(5, 4)

        def loss(parameters: dict[str, Tensor], buffers: dict[str, Tensor]) -> Tensor:
            return torch.func.functional_call(members[0], (parameters, buffers), (x,)).square().sum()

        found = torch.vmap(torch.func.grad(loss))(parameters, buffers)
        for k, member in enumerate(members):
            member(x).square().sum().backward()
            torch.testing.assert_close(found["1.raw"][k], member[1].raw.grad, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("keep", hullo.Simplex.ways)
    def test_jacobians_by_both_modes_agree(self, keep: str) -> None:
        act = uneven(hullo.ConvexHull, keep, dtype=torch.float64)
        x = torch.randn(5, dtype=torch.float64)

        def function(raw: Tensor) -> Tensor:
            return torch.func.functional_call(act, {"raw": raw}, (x,))

        raw = act.raw.detach()
        torch.testing.assert_close(torch.func.jacfwd(function)(raw), torch.func.jacrev(function)(raw))


class TestCompilers:
    @pytest.fixture(autouse=True)
    def _fresh(self) -> None:
        torch._dynamo.reset()

    @every_hull
    @pytest.mark.parametrize("groups", [1, 2])
    def test_compiled_modules_have_no_graph_break(self, hull: type[Hull], keep: str, groups: int) -> None:
        self.check_compiled(uneven(hull, keep, groups), "aot_eager", batches=(3, 5))

    @pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="needs a C++ compiler")
    def test_inductor_compiles_a_module(self) -> None:
        self.check_compiled(uneven(hullo.ConvexHull, "projection", 2), "inductor", batches=(3,))

    @staticmethod
    def check_compiled(module: nn.Module, backend: str, batches: tuple[int, ...]) -> None:
        compiled = torch.compile(module, fullgraph=True, backend=backend)
        for batch in batches:  # a second one is compiled with a symbol for its size
            x = torch.randn(batch, 4, requires_grad=True)
            results = []
            for function in (module, compiled):
                y = function(x)
                results.append((y, *torch.autograd.grad(y.square().sum(), (x, *module.parameters()))))
            for plain, found in zip(*results, strict=True):
                torch.testing.assert_close(found, plain, rtol=1e-5, atol=1e-5)

    @every_hull
    @pytest.mark.parametrize("groups", [1, 2])
    def test_an_exported_module_takes_any_batch(self, hull: type[Hull], keep: str, groups: int) -> None:
        act = uneven(hull, keep, groups)
        sizes = ({0: torch.export.Dim("batch")},)
        exported = torch.export.export(act, (torch.randn(3, 4),), dynamic_shapes=sizes)
        file = io.BytesIO()
        torch.export.save(exported, file)
        file.seek(0)
        loaded = torch.export.load(file).module()
        for batch in (1, 2, 7):
            x = torch.randn(batch, 4)
            torch.testing.assert_close(loaded(x), act(x), rtol=1e-5, atol=1e-6)


def test_a_network_of_hulls_learns() -> None:
    model = nn.Sequential(nn.Linear(1, 16), hullo.AffineHull(*TRIO, groups=16), nn.Linear(16, 1))
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    x = torch.linspace(-3, 3, 64)[:, None]
    losses = []
    for _ in range(300):
        loss = (model(x) - torch.sin(2 * x)).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0]
    torch.testing.assert_close(model[1].coefficients.sum(-1), torch.ones(16), rtol=0, atol=1e-5)
