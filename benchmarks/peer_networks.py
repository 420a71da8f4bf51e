"""The networks that population_peers.py trains, and their data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hullo.lab.networks.lenet5 import LeNet5
from hullo.lab.networks.resnet56 import ResNet

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BATCH, TOKENS, WIDTH, LAYERS = (32, 128, 256, 4) if DEVICE == "cuda" else (4, 8, 16, 1)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (part.view(batch, length, 4, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(256, WIDTH), nn.Parameter(torch.zeros(TOKENS, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.blocks(self.tokens(tokens) + self.positions))


def relu(channels: int) -> nn.Module:
    return nn.ReLU()


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "lenet5": lambda: LeNet5(relu),
    "resnet20": lambda: ResNet(relu, n=3),
    "mlp": mlp,
    "gpt": GPT,
}
CONVOLUTIONAL = ("lenet5", "resnet20")


class FusedLeNet5(nn.Module):
    """LeNet-5 of HFTA's layers, which take images as (N, K, C, H, W) and features as (K, N, F)."""

    def __init__(self, ops: Any, members: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = ops.Conv2d(3, 20, 5, B=members), ops.Conv2d(20, 50, 5, B=members)
        self.pool = ops.MaxPool2d(2, B=members)
        self.linear1, self.linear2 = ops.Linear(1250, 500, B=members), ops.Linear(500, 10, B=members)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.conv1(x.transpose(0, 1).contiguous()).relu())
        x = self.pool(self.conv2(x).relu()).transpose(0, 1).flatten(2)
        return self.linear2(self.linear1(x).relu())


def fused_mlp(ops: Any, members: int) -> nn.Module:
    first, second, third = (ops.Linear(*sizes, B=members) for sizes in ((784, 512), (512, 512), (512, 10)))
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), third)


def make_batch(name: str, members: int) -> tuple[Tensor, Tensor]:
    """Return inputs and targets of each member."""
    if name == "gpt":
        tokens = torch.randint(256, (members, 8, TOKENS), device=DEVICE)
        return tokens, tokens
    shape = (784,) if name == "mlp" else (3, 32, 32)
    return torch.rand(members, BATCH, *shape, device=DEVICE), torch.randint(10, (members, BATCH), device=DEVICE)
