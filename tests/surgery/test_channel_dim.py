"""Test that the channel dimension is inferred from the module with weights that ran last, or unknown."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hullo

IMAGE, TOKENS = torch.randn(2, 3, 8, 8), torch.randn(2, 5, 6)


class Own(nn.LayerNorm):
    """A layer norm over the channels of images."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


class After(nn.Module):
    """An activation after layers, with operations in between."""

    def __init__(self, layers: list[nn.Module], between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layers, self.between = nn.Sequential(*layers), between

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.between(self.layers(x)))


def conv() -> nn.Module:
    return nn.Conv2d(3, 4, 3)


def linear() -> nn.Module:
    return nn.Linear(6, 8)


@pytest.mark.parametrize(
    ("x", "layers", "between", "groups", "dim"),
    [
        (IMAGE, [conv()], lambda y: y, 4, 1),
        (IMAGE, [conv(), nn.BatchNorm2d(4)], lambda y: y + 1, 4, 1),
        (IMAGE, [conv(), nn.GroupNorm(2, 4)], lambda y: y, 4, 1),
        (IMAGE, [conv(), Own(4)], lambda y: y, 4, 1),
        (IMAGE, [nn.ConvTranspose2d(3, 4, 2)], lambda y: y, 4, 1),
        (TOKENS, [nn.Conv1d(5, 3, 1)], lambda y: y, 3, 1),
        (IMAGE, [conv(), nn.MaxPool2d(2)], lambda y: F.pad(y, (1, 0, 1, 0)), 4, 1),  # 4 x 4 pixels
        (IMAGE, [conv()], lambda y: y.mean((2, 3)), 4, 1),
        (IMAGE, [conv()], lambda y: y.permute(0, 2, 3, 1), 4, -1),
        (IMAGE, [conv()], lambda y: y.flatten(2).transpose(1, 2), 4, -1),
        (IMAGE, [conv()], lambda y: torch.cat([y, y], 1), 8, 1),
        (TOKENS, [linear()], lambda y: y, 8, -1),
        (TOKENS[0], [linear()], lambda y: y, 8, 1),
        (TOKENS, [linear()], lambda y: y.transpose(1, 2), 8, 1),
        (TOKENS, [nn.Linear(6, 2)], lambda y: y.transpose(1, 2), 2, 1),  # as many as examples
        (TOKENS, [linear()], lambda y: y.chunk(2, -1)[1], 4, -1),
        (TOKENS, [linear()], lambda y: y[:, 0], 8, 1),
        (TOKENS, [linear(), nn.LayerNorm(8)], lambda y: y, 8, -1),
        (torch.zeros(2, 3, dtype=torch.long), [nn.Embedding(3, 4)], lambda y: y, 4, -1),
        (IMAGE, [conv()], lambda y: y.flatten(1), None, None),
        (TOKENS, [nn.Linear(6, 5)], lambda y: y.unsqueeze(1), None, None),  # two dimensions of size 5
    ],
)
def test_channel_dimension_is_that_of_the_last_layer(
    x: Tensor, layers: list[nn.Module], between: Callable[[Tensor], Tensor], groups: int | None, dim: int | None
) -> None:
    model = After(layers, between)
    if dim is None:
        with pytest.raises(ValueError, match=r"channel dimension .* layers_tanh"):
            hullo.replace_activations(model, groups="channels", example_inputs=x)
        return
    hullo.replace_activations(model, groups="channels", example_inputs=x)
    assert (model.layers_tanh.groups, model.layers_tanh.spec.channel_dim) == (groups, dim)


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
    assert result == {"patch_relu": (4, 1), "up_gelu": (12, -1)}
    model = hullo.replace_activations(Mixer(), groups=2, example_inputs=IMAGE)
    result = {name: (hull.groups, hull.spec.channel_dim) for name, hull in hullo.summary(model).hulls.items()}
    assert result == {"patch_relu": (2, 1), "up_gelu": (2, -1)}


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


def test_slopes_of_channels_of_images() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.PReLU(4))
    nn.init.uniform_(model[1].weight)
    expected = model(IMAGE)
    hullo.replace_activations(model, example_inputs=IMAGE)
    assert model[1].groups == 4
    torch.testing.assert_close(model(IMAGE), expected)
