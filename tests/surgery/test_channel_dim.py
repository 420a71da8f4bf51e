"""Test that the channel dimension is inferred from the operations that computed a tensor, or unknown."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hullo
from hullo.surgery.channel_dim import channel_dim_of

IMAGE, TOKENS = torch.randn(2, 3, 8, 8), torch.randn(2, 5, 6)
CONV, LINEAR = nn.Conv2d(3, 4, 3), nn.Linear(6, 8)


@pytest.mark.parametrize(
    ("make", "dim"),
    [
        (lambda: CONV(IMAGE), 1),
        (lambda: nn.BatchNorm2d(4)(CONV(IMAGE)), 1),
        (lambda: nn.GroupNorm(2, 4)(CONV(IMAGE)) + 1, 1),
        (lambda: nn.ConvTranspose2d(3, 4, 2)(IMAGE), 1),
        (lambda: nn.Conv1d(5, 3, 1)(TOKENS), 1),
        (lambda: F.max_pool2d(CONV(IMAGE), 2), 1),
        (lambda: F.adaptive_avg_pool2d(CONV(IMAGE), 1), 1),
        (lambda: CONV(IMAGE).mean((2, 3)), 1),
        (lambda: CONV(IMAGE).mean((2, 3), keepdim=True), 1),
        (lambda: CONV(IMAGE).permute(0, 2, 3, 1), -1),
        (lambda: CONV(IMAGE).flatten(2).transpose(1, 2), -1),
        (lambda: torch.cat([CONV(IMAGE), CONV(IMAGE)], 1), 1),
        (lambda: LINEAR(TOKENS), -1),
        (lambda: LINEAR(TOKENS[0]), 1),
        (lambda: F.dropout(LINEAR(TOKENS) * torch.sigmoid(LINEAR(TOKENS))), -1),
        (lambda: LINEAR(TOKENS).transpose(1, 2), 1),
        (lambda: LINEAR(TOKENS).transpose(-1, -2).unsqueeze(-1), 1),
        (lambda: LINEAR(TOKENS).chunk(2, -1)[1], -1),
        (lambda: LINEAR(TOKENS)[:, 0], 1),
        (lambda: nn.LayerNorm(8)(LINEAR(TOKENS)), -1),
        (lambda: nn.Embedding(3, 4)(torch.zeros(2, 3, dtype=torch.long)), -1),
        (lambda: nn.MultiheadAttention(6, 2, batch_first=True)(TOKENS, TOKENS, TOKENS)[0], -1),
        (lambda: hullo.AffineHull("identity", "relu")(LINEAR(TOKENS)), -1),
        (lambda: CONV(IMAGE).flatten(1), None),
        (lambda: LINEAR(TOKENS) + nn.Conv1d(5, 5, 1)(torch.randn(2, 5, 8)), None),
        (lambda: nn.GRU(6, 4)(TOKENS)[0], None),
        (lambda: TOKENS, None),
    ],
)
def test_channel_dimension_is_inferred_from_operations(make: Callable[[], Tensor], dim: int | None) -> None:
    assert channel_dim_of(make()) == dim


class Mixer(nn.Module):
    """Convolutions and linear layers, over patches."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.up, self.down = nn.Conv2d(3, 4, 2, 2), nn.Linear(4, 12), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.patch(x)).flatten(2).transpose(1, 2)
        return self.down(F.gelu(self.up(x)))


def test_one_group_per_channel_in_convolutions_and_in_linear_layers() -> None:
    model = hullo.replace_activations(Mixer(), groups="channels", example_inputs=IMAGE)
    result = {name: (hull.groups, hull.spec.channel_dim) for name, hull in hullo.summary(model).hulls.items()}
    assert result == {"relu_1": (4, 1), "gelu_1": (12, -1)}
    model = hullo.replace_activations(Mixer(), groups=2, example_inputs=IMAGE)
    result = {name: (hull.groups, hull.spec.channel_dim) for name, hull in hullo.summary(model).hulls.items()}
    assert result == {"relu_1": (2, 1), "gelu_1": (2, -1)}


def test_vision_transformer_has_no_group_per_token() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1}
    model = transformers.ViTModel(transformers.ViTConfig(image_size=8, patch_size=4, **sizes))
    hullo.replace_activations(model, groups="channels", example_inputs=IMAGE)
    assert {(hull.groups, hull.spec.channel_dim) for hull in hullo.summary(model).hulls.values()} == {(16, -1), (8, 1)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"groups": "channels"}, "groups='channels' needs example_inputs"),
        ({"groups": 4}, "groups=4 .*example_inputs.* channel_dim"),
        ({"groups": "channels", "example_inputs": IMAGE.flatten(1)}, r"of 0, of shape \(2, 192\)"),
    ],
)
def test_unknown_channel_dimension_is_an_error(options: dict[str, object], message: str) -> None:
    model = nn.Sequential(nn.ReLU(), nn.Linear(192, 2))
    with pytest.raises(ValueError, match=message):
        hullo.replace_activations(model, **options)  # type: ignore[arg-type]
    assert isinstance(model[0], nn.ReLU)
