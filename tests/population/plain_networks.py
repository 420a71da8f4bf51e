"""Networks that know nothing of populations, small enough to train in a test."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class MLP(nn.Module):
    def __init__(self, act: nn.Module | None = None) -> None:
        super().__init__()
        self.hidden = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8)
        self.act = nn.ReLU() if act is None else act
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.act(self.norm(self.hidden(x))))


class ResBlock(nn.Module):
    def __init__(self, channels: int, act: nn.Module) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(2, channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, groups=2)
        self.norm2 = nn.GroupNorm(2, channels)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        y = self.norm2(self.conv2(y))
        y += x
        return self.act(y)


class ResNet(nn.Module):
    """A residual network with group norm, strides, an in-place sum and a BatchNorm."""

    def __init__(self, act: nn.Module | None = None) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.block = ResBlock(4, nn.GELU() if act is None else act)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.block(F.relu_(self.norm(self.stem(x))))
        return self.head(F.adaptive_avg_pool2d(F.max_pool2d(y, 2), 1).flatten(1))


class GPTBlock(nn.Module):
    def __init__(self, width: int, heads: int, act: nn.Module) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(self.act(self.up(self.norm2(x))))


class GPT(nn.Module):
    """A small language model whose embedding is its head, too."""

    def __init__(self, act: nn.Module | None = None, vocabulary: int = 11, width: int = 8) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.randn(16, width) / 4)
        self.blocks = nn.ModuleList([GPTBlock(width, 2, nn.GELU() if act is None else act) for _ in range(2)])
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        self.register_buffer("scale", torch.tensor(math.sqrt(width)))

    def forward(self, tokens: Tensor) -> Tensor:
        assert tokens.shape[1] <= 16, "too long"
        x = self.tokens(tokens) * self.scale + self.positions[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class ViT(nn.Module):
    """A vision transformer of PyTorch's own layers, with a class token."""

    def __init__(self, act: nn.Module | None = None) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 8, 4, stride=4)
        self.token = nn.Parameter(torch.zeros(1, 1, 8))
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU() if act is None else act, nn.Linear(16, 8))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patch(x).flatten(2).transpose(1, 2)
        y = torch.cat([self.token.expand(len(x), -1, -1), patches], 1)
        z = self.norm(y)
        y = y + self.attention(z, z, z, need_weights=False)[0]
        y = y + self.mlp(self.norm(y))
        return self.head(y[:, 0])


class UNet(nn.Module):
    """Two levels, a transposed convolution, an upsampling and skip connections."""

    def __init__(self, act: nn.Module | None = None) -> None:
        super().__init__()
        self.act = nn.SiLU() if act is None else act
        self.down1 = nn.Conv2d(3, 4, 3, padding=1)
        self.down2 = nn.Conv2d(4, 8, 3, padding=2, dilation=2)
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.merge = nn.Conv2d(11, 2, 1)
        self.norm = nn.InstanceNorm2d(8, affine=True)

    def forward(self, x: Tensor) -> Tensor:
        a = self.act(self.down1(x))
        b = self.act(self.norm(self.down2(F.avg_pool2d(a, 2))))
        c = F.interpolate(b, scale_factor=2, mode="bilinear", align_corners=False)
        return self.merge(torch.cat([a, self.up(b), c[:, :3]], 1))
