"""Hulls are copied, saved, loaded and made without memory as any module is; another hull's checkpoint is refused."""

from __future__ import annotations

import copy
import io
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn

import hullo
from hullo.modules import Hull
from made_hulls import TRIO, every_hull, uneven


class TestCopies:
    @every_hull
    @pytest.mark.parametrize("groups", [1, 2])
    def test_copies_and_pickles_are_the_same_function(self, hull: type[Hull], keep: str, groups: int) -> None:
        act = uneven(hull, keep, groups)
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

    @every_hull
    def test_a_checkpoint_of_parameters_alone_is_taken_and_its_shapes_checked(
        self, hull: type[Hull], keep: str
    ) -> None:
        model = nn.Sequential(nn.Linear(4, 4), uneven(hull, keep))
        parameters = {name: value for name, value in model.state_dict().items() if not name.endswith("_extra_state")}
        other = nn.Sequential(nn.Linear(4, 4), hull(*TRIO, keep=keep))
        assert other.load_state_dict(parameters) == ([], [])
        assert torch.equal(other[1].raw, model[1].raw)
        with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "1.raw"\. '):
            other.load_state_dict({name: value for name, value in parameters.items() if name != "1.raw"})
        with pytest.raises(RuntimeError, match="saved with groups=1; this module has groups=2"):
            nn.Sequential(nn.Linear(4, 4), hull(*TRIO, keep=keep, groups=2)).load_state_dict(parameters)

    def test_layers_do_not_share_coefficients_by_accident(self) -> None:
        act = hullo.AffineHull(*TRIO)
        model = nn.Sequential(act, copy.deepcopy(act), hullo.AffineHull(*TRIO))
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


class TestReset:
    @every_hull
    @pytest.mark.parametrize("groups", [1, 2])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_coefficients_go_back_to_their_start(
        self, hull: type[Hull], keep: str, groups: int, dtype: torch.dtype
    ) -> None:
        act = uneven(hull, keep, groups, dtype=dtype)
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

    def test_a_start_is_no_part_of_a_checkpoint(self) -> None:
        assert set(hullo.AffineHull(*TRIO, start="relu").state_dict()) == {"raw", "_extra_state"}

    def test_a_hull_pickled_without_its_start_resets_to_equal_shares(self) -> None:
        act = hullo.AffineHull(*TRIO, start="relu")
        del vars(act)["start"]
        old = pickle.loads(pickle.dumps(act))
        old.reset_parameters()
        assert torch.equal(old.raw, hullo.AffineHull(*TRIO).raw)


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
