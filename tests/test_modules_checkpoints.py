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
