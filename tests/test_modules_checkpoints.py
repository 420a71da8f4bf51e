"""Test that hulls are copied, saved and loaded like any module, and checkpoints of other hulls are rejected."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import hullo
from hullo.modules import Hull
from hullo.state_names import read_raw_name, write_raw_name
from made_hulls import HULLS, TRIO, every_hull, uneven


def model_of(act: Hull) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 4), act)


class TestCopies:
    @every_hull
    @pytest.mark.parametrize("groups", [1, 2])
    def test_copies_and_pickles_compute_the_same(self, hull: type[Hull], parametrization: str, groups: int) -> None:
        act = uneven(hull, parametrization, groups)
        x = torch.randn(3, 4)
        for twin in (copy.deepcopy(act), pickle.loads(pickle.dumps(act))):
            assert repr(twin) == repr(act)
            assert torch.equal(twin(x), act(x))
        independent = copy.deepcopy(act)
        with torch.no_grad():
            independent.raw.add_(torch.arange(independent.raw.numel()).reshape(independent.raw.shape))
        assert not torch.equal(independent(x), act(x))

    @every_hull
    @pytest.mark.parametrize("groups", [1, 2])
    def test_checkpoint_restores_the_function(self, hull: type[Hull], parametrization: str, groups: int) -> None:
        model = nn.Sequential(nn.Linear(4, 4), uneven(hull, parametrization, groups))
        file = io.BytesIO()
        torch.save(model.state_dict(), file)
        file.seek(0)
        other = nn.Sequential(nn.Linear(4, 4), hull(*TRIO, parametrization=parametrization, groups=groups))
        missing = other.load_state_dict(torch.load(file, weights_only=True))
        assert not missing.missing_keys
        assert not missing.unexpected_keys
        x = torch.randn(3, 4)
        assert torch.equal(other(x), model(x))

    @every_hull
    @pytest.mark.parametrize("other", ["bases", "parametrization", "number of bases", "groups"])
    @pytest.mark.parametrize("strict", [True, False])
    def test_checkpoint_of_another_hull_is_rejected_and_changes_nothing(
        self, hull: type[Hull], parametrization: str, other: str, strict: bool
    ) -> None:
        act = uneven(hull, parametrization, 2)
        saved, named = {
            "bases": (hull("identity", "relu", "sin", parametrization=parametrization, groups=2), parametrization),
            "parametrization": (
                uneven(*next(item for item in HULLS if item[1] != parametrization), 2),
                parametrization,
            ),
            "number of bases": (hull("identity", "relu", parametrization=parametrization, groups=2), parametrization),
            "groups": (hull(*TRIO, parametrization=parametrization, groups=4), r"\[4, .*\[2, "),
        }[other]
        before = act.raw.detach().clone()
        with pytest.raises(RuntimeError, match=rf"1\.{saved.raw_name}\b.*{named}"):
            model_of(act).load_state_dict(model_of(saved).state_dict(), strict=strict)
        assert torch.equal(act.raw, before)

    @every_hull
    def test_names_and_shapes_are_checked_without_metadata(self, hull: type[Hull], parametrization: str) -> None:
        act = uneven(hull, parametrization)
        other, bare = hull(*TRIO, parametrization=parametrization), dict(model_of(act).state_dict())
        model_of(other).load_state_dict(bare)
        assert torch.equal(other.raw, act.raw)
        with pytest.raises(RuntimeError, match=rf'Missing key.*"1\.raw_{parametrization}__identity__relu__tanh"'):
            model_of(other).load_state_dict({name: value for name, value in bare.items() if "raw" not in name})
        with pytest.raises(RuntimeError, match="size mismatch"):
            model_of(hull(*TRIO, parametrization=parametrization, groups=2)).load_state_dict(bare, strict=False)
        different = [
            hull(*TRIO[:2], parametrization=parametrization),
            hull("identity", "tanh", "relu", parametrization=parametrization),
        ]
        different += [others(*TRIO, parametrization=kept) for others, kept in HULLS if kept != parametrization]
        for another in different:
            with pytest.raises(RuntimeError, match=f"{act.raw_name} .*another hull.*{another.raw_name}"):
                model_of(another).load_state_dict(bare, strict=False)

    @pytest.mark.parametrize(
        ("bases", "name"),
        [
            (["relu", "leaky_relu(0.2)"], "raw_recentred__relu__leaky_relu_0p2"),
            (["elu(1e-05)", "leaky_relu(-3)"], "raw_recentred__elu_1em05__leaky_relu_m3"),
        ],
    )
    def test_raw_name_is_an_identifier(self, bases: list[str], name: str) -> None:
        act = hullo.AffineHull(bases, strict=False)
        assert list(act.state_dict()) == [name]
        assert name.isidentifier()

    @pytest.mark.parametrize("name", [*hullo.list_bases(), "leaky_relu(-0.25)", "elu(1e-06)", "sin(1e+17)"])
    @pytest.mark.parametrize(("groups", "channel_dim"), [(1, 1), (4, 1), (4, -2), (4, 12)])
    def test_raw_names_are_read_back(self, name: str, groups: int, channel_dim: int) -> None:
        bases = (hullo.get_base(name), hullo.get_base("gelu_tanh"))
        written = write_raw_name("recentred", bases, groups, channel_dim)
        assert read_raw_name(written) == ("recentred", bases, channel_dim)

    def test_hulls_can_share_raw_parameters(self) -> None:
        model = nn.Sequential(hullo.AffineHull(*TRIO), hullo.AffineHull(*TRIO))
        model[1].raw = model[0].raw
        assert [name for name, _ in model.named_parameters()] == ["0.raw_recentred__identity__relu__tanh"]
        model[0].coefficients = "relu"
        assert torch.equal(model(torch.tensor([-1.0, 2.0])), torch.tensor([0.0, 2.0]))

    def test_hulls_do_not_share_coefficients_by_default(self) -> None:
        act = hullo.AffineHull(*TRIO)
        model = nn.Sequential(act, copy.deepcopy(act), hullo.AffineHull(*TRIO))
        assert len({parameter.data_ptr() for parameter in model.parameters()}) == 3

    @pytest.mark.gpu
    def test_checkpoint_moves_between_devices(self) -> None:
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


class TestReset:
    @every_hull
    @pytest.mark.parametrize("groups", [1, 2])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_reset_parameters_restores_initial_coefficients(
        self, hull: type[Hull], parametrization: str, groups: int, dtype: torch.dtype
    ) -> None:
        act = uneven(hull, parametrization, groups, dtype=dtype)
        first, parameter = act.raw.detach().clone(), act.raw
        for twin in (act, copy.deepcopy(act), pickle.loads(pickle.dumps(act))):
            with torch.no_grad():
                twin.raw.add_(torch.arange(twin.raw.numel()).reshape(twin.raw.shape))
            twin.reset_parameters()
            assert torch.equal(twin.raw, first)
        assert act.raw is parameter
        empty = act.to("meta").to_empty(device="cpu")
        with torch.no_grad():
            empty.raw.fill_(torch.nan)
        empty.reset_parameters()
        assert torch.equal(empty.raw, first)

    def test_init_is_not_part_of_a_checkpoint(self) -> None:
        assert set(hullo.AffineHull(*TRIO, init="relu").state_dict()) == {"raw_recentred__identity__relu__tanh"}


@every_hull
@pytest.mark.parametrize("groups", [1, 2])
class TestTools:
    """Tools that know nothing of hulls: they treat each entry of a state_dict as a tensor that a module holds."""

    def test_state_dict_contains_only_floating_point_tensors(
        self, hull: type[Hull], parametrization: str, groups: int
    ) -> None:
        state = uneven(hull, parametrization, groups).state_dict()
        assert set(state) == {name for name, _ in uneven(hull, parametrization, groups).named_parameters()}
        assert all(tensor.is_floating_point() for tensor in state.values())

    def test_safetensors_round_trip(self, hull: type[Hull], parametrization: str, groups: int, tmp_path: Path) -> None:
        safetensors = pytest.importorskip("safetensors.torch")
        saved, loaded = (
            model_of(uneven(hull, parametrization, groups)),
            model_of(hull(*TRIO, parametrization=parametrization, groups=groups)),
        )
        safetensors.save_model(saved, tmp_path / "model.safetensors")
        assert safetensors.load_model(loaded, tmp_path / "model.safetensors") == (set(), [])
        assert torch.equal(loaded[1].raw, saved[1].raw)

    def test_distributed_checkpoints_round_trip(
        self, hull: type[Hull], parametrization: str, groups: int, tmp_path: Path
    ) -> None:
        dcp = pytest.importorskip("torch.distributed.checkpoint")
        state_dict = pytest.importorskip("torch.distributed.checkpoint.state_dict")
        saved, loaded = (
            model_of(uneven(hull, parametrization, groups)),
            model_of(hull(*TRIO, parametrization=parametrization, groups=groups)),
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there is one process alone
            dcp.save(state_dict.get_model_state_dict(saved), checkpoint_id=tmp_path / "checkpoint")
            state = state_dict.get_model_state_dict(loaded)
            dcp.load(state, checkpoint_id=tmp_path / "checkpoint")
        state_dict.set_model_state_dict(loaded, state)
        assert torch.equal(loaded[1].raw, saved[1].raw)

    @pytest.mark.parametrize("use_buffers", [False, True])
    def test_averaged_models_work(self, hull: type[Hull], parametrization: str, groups: int, use_buffers: bool) -> None:
        model = model_of(uneven(hull, parametrization, groups))
        averaged = torch.optim.swa_utils.AveragedModel(model, use_buffers=use_buffers)
        for _ in range(3):
            averaged.update_parameters(model)
        x = torch.randn(3, 4)
        torch.testing.assert_close(averaged(x), model(x))
        again = torch.optim.swa_utils.AveragedModel(
            model_of(hull(*TRIO, parametrization=parametrization, groups=groups))
        )
        again.load_state_dict(averaged.state_dict())
        assert torch.equal(again(x), averaged(x))

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
    @pytest.mark.parametrize("assign", [False, True])
    def test_cast_and_averaged_checkpoints_load(
        self, hull: type[Hull], parametrization: str, groups: int, dtype: torch.dtype, assign: bool
    ) -> None:
        act, other = uneven(hull, parametrization, groups), hull(*TRIO, parametrization=parametrization, groups=groups)
        cast = {name: torch.stack([value.to(dtype)] * 3).mean(0) for name, value in act.state_dict().items()}
        other.load_state_dict(cast, assign=assign)
        torch.testing.assert_close(other.raw.double(), act.raw.double(), rtol=2 * torch.finfo(dtype).eps + 1e-7, atol=0)
        assert other.raw.dtype == (torch.float64 if assign and dtype == torch.float64 else torch.float32)

    def test_half_precision_checkpoints_load_as_float32(
        self, hull: type[Hull], parametrization: str, groups: int
    ) -> None:
        act, other = uneven(hull, parametrization, groups), uneven(hull, parametrization, groups)
        other.raw = nn.Parameter(other.raw.detach().half())  # as tools do that put tensors into modules themselves
        x = torch.randn(3, 4)
        act.raw = nn.Parameter(other.raw.detach().float())
        torch.testing.assert_close(other(x), act(x), rtol=0, atol=0)
        other(x).sum().backward()
        assert other.raw.grad is not None

    def test_state_dicts_work_in_functional_calls(self, hull: type[Hull], parametrization: str, groups: int) -> None:
        model, x = model_of(uneven(hull, parametrization, groups)), torch.randn(3, 4)
        other = model_of(hull(*TRIO, parametrization=parametrization, groups=groups))
        assert torch.equal(torch.func.functional_call(other, model.state_dict(), (x,), strict=True), model(x))

    @pytest.mark.parametrize("device_map", [{"": "cpu"}, {"0": "cpu", "1": "disk"}])
    def test_accelerate_works(
        self, hull: type[Hull], parametrization: str, groups: int, device_map: dict[str, str], tmp_path: Path
    ) -> None:
        accelerate = pytest.importorskip("accelerate")
        model, x = model_of(uneven(hull, parametrization, groups)), torch.randn(3, 4)
        file = str(tmp_path / "model.bin")
        torch.save(model.state_dict(), file)
        with accelerate.init_empty_weights():
            other = model_of(hull(*TRIO, parametrization=parametrization, groups=groups))
        accelerate.load_checkpoint_and_dispatch(other, file, device_map, offload_folder=str(tmp_path / "offloaded"))
        assert torch.equal(other(x), model(x))


class TestMeta:
    @every_hull
    def test_meta_device_hull_can_be_materialized(self, hull: type[Hull], parametrization: str) -> None:
        saved = uneven(hull, parametrization, 2)
        with torch.device("meta"):
            in_context = hull(*TRIO, parametrization=parametrization, groups=2)
        for act in (in_context, hull(*TRIO, parametrization=parametrization, groups=2, device="meta")):
            assert act.raw.is_meta
            assert "identity, relu, tanh, groups=2" in repr(act)
            assert act(torch.empty(3, 4, device="meta")).shape == (3, 4)
            act.to_empty(device="cpu").load_state_dict(saved.state_dict())
            assert torch.equal(act(torch.ones(3, 4)), saved(torch.ones(3, 4)))

    def test_meta_module_loads_with_assign(self) -> None:
        saved, act = uneven(hullo.AffineHull, "free"), hullo.AffineHull(*TRIO, parametrization="free", device="meta")
        assert repr(act) == "AffineHull(identity, relu, tanh, parametrization='free')"
        act.load_state_dict(saved.state_dict(), assign=True)
        assert repr(act) == repr(saved)


def test_one_group_has_the_same_name_for_every_channel_dimension() -> None:
    names = {hullo.AffineHull("relu", "tanh", channel_dim=dim).raw_name for dim in (1, -1, 2)}
    assert names == {"raw_recentred__relu__tanh"}
