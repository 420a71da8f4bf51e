"""The workloads of population_work.py: plain networks as people write them, their data and their losses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hullo import AffineHull
from hullo.lab.networks.lenet5 import LeNet5
from hullo.lab.networks.resnet56 import ResNet


def per_member(losses: Tensor, members: int) -> Tensor:
    """Return the mean loss of each member."""
    return losses.reshape(members, -1).mean(1)


def classify(forward: Callable[[Tensor], Tensor], x: Tensor, y: Tensor, members: int) -> Tensor:
    """Return the cross entropy of each member."""
    logits = forward(x).float()
    return per_member(F.cross_entropy(logits.flatten(0, -2), y.flatten(), reduction="none"), members)


def regress(forward: Callable[[Tensor], Tensor], x: Tensor, y: Tensor, members: int) -> Tensor:
    """Return the squared error of each member."""
    return per_member((forward(x).float() - y).square(), members)


def burgers(forward: Callable[[Tensor], Tensor], x: Tensor, y: Tensor, members: int) -> Tensor:
    """Return the residuals u_t + u u_x - 0.01 u_xx of each member at points (t, x): derivatives of derivatives."""
    points = x.detach().requires_grad_()
    u = forward(points)
    (first,) = torch.autograd.grad(u.sum(), points, create_graph=True)
    (second,) = torch.autograd.grad(first[..., 1].sum(), points, create_graph=True)
    return per_member((first[..., :1] + u * first[..., 1:] - 0.01 * second[..., 1:] - y).square(), members)


def burgers_by_func(forward: Callable[[Tensor], Tensor], x: Tensor, y: Tensor, members: int) -> Tensor:
    """Return what `burgers` does for one network by torch.func, which torch.compile can differentiate once more."""

    def residual(point: Tensor, target: Tensor) -> Tensor:
        direction = torch.tensor([0.0, 1.0], dtype=point.dtype, device=point.device)
        slope = torch.func.grad(lambda p: forward(p).squeeze(-1))
        first, second = torch.func.jvp(slope, (point,), (direction,))
        return first[:1] + forward(point) * first[1:] - 0.01 * second[1:] - target

    return per_member(torch.func.vmap(residual)(x, y).square(), members)


@dataclass(frozen=True)
class Work:
    """Describe a workload.

    Args:
        name: of the workload.
        members: number of networks in a population.
        make: the function that makes network k.
        batch: the shape of one network's inputs, and of its targets.
        classes: the number of classes; 0 for a regression.
        tokens: the number of tokens if the inputs are tokens.
        loss: the losses of all members, from a forward function, inputs and targets.
        compiled_loss: the same for one network under torch.compile, where it differs.
        half: whether autocast to bfloat16 is on.
    """

    name: str
    members: int
    make: Callable[[int], nn.Module]
    batch: tuple[tuple[int, ...], tuple[int, ...]]
    classes: int = 10
    tokens: int = 0
    loss: Callable[..., Tensor] = classify
    compiled_loss: Callable[..., Tensor] | None = None
    half: bool = True

    def data(self, members: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of each member."""
        inputs, targets = ((members, *shape) for shape in self.batch)
        x = torch.randint(self.tokens, inputs, device=device) if self.tokens else torch.randn(inputs, device=device)
        y = torch.randint(self.classes, targets, device=device) if self.classes else torch.randn(targets, device=device)
        return x, y


class DropPath(nn.Module):
    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        kept = x.new_empty(len(x), *[1] * (x.dim() - 1)).bernoulli_(1 - self.rate)
        return x * kept / (1 - self.rate)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float, is_causal: bool) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.dropout, self.is_causal = heads, dropout, is_causal

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        rate = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(*parts, dropout_p=rate, is_causal=self.is_causal)
        return self.proj(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float, drop_path: float, is_causal: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout, is_causal)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.drop = DropPath(drop_path) if drop_path else nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.attention(self.norm1(x)))
        return x + self.drop(self.mlp(self.norm2(x)))


class GPT(nn.Module):
    """nanoGPT for characters, with its published dropout of 0.2."""

    def __init__(self, layers: int, width: int, heads: int, length: int, dropout: float = 0.2) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(65, width), nn.Parameter(torch.zeros(length, width))
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout, 0.0, True) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 65, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.drop(self.tokens(tokens) + self.positions))))


class ViT(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, size: int, patch: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.positions = nn.Parameter(torch.zeros((size // patch) ** 2, width))
        self.blocks = nn.Sequential(*(Block(width, heads, 0.0, 0.1, False) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        return self.head(self.norm(self.blocks(x)).mean(1))


class Bert(nn.Module):
    """BERT of transformers, with its dropout of 0.1, for sequence classification."""

    def __init__(self, layers: int, width: int, heads: int, length: int) -> None:
        super().__init__()
        from transformers import BertConfig, BertForSequenceClassification

        sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads, "vocab_size": 1000}
        config = BertConfig(intermediate_size=4 * width, max_position_embeddings=length, num_labels=10, **sizes)
        self.bert = BertForSequenceClassification(config)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.bert(tokens).logits


def group_norm_act(channels: int, outputs: int, size: int = 3) -> nn.Sequential:
    conv = nn.Conv2d(channels, outputs, size, padding=size // 2)
    return nn.Sequential(conv, nn.GroupNorm(8, outputs), nn.SiLU())


class UNet(nn.Module):
    def __init__(self, width: int, levels: int) -> None:
        super().__init__()
        widths = [width * 2**i for i in range(levels)]
        sizes = list(zip([3, *widths], widths, strict=False))
        self.down = nn.ModuleList(nn.Sequential(group_norm_act(a, b), group_norm_act(b, b)) for a, b in sizes)
        self.up = nn.ModuleList(nn.Sequential(group_norm_act(a + b, a), group_norm_act(a, a)) for a, b in sizes[:0:-1])
        self.head = nn.Conv2d(width, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for down in self.down:
            x = down(x if not skips else F.max_pool2d(x, 2))
            skips.append(x)
        for up, skip in zip(self.up, skips[-2::-1], strict=True):
            x = up(torch.cat([skip, F.interpolate(x, scale_factor=2.0)], 1))
        return self.head(x)


class CharLSTM(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.tokens, self.lstm = nn.Embedding(65, width), nn.LSTM(width, width, 2, batch_first=True)
        self.head = nn.Linear(width, 65)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.lstm(self.tokens(tokens))[0])


def pinn(k: int, width: int) -> nn.Module:
    """Return an MLP of five hidden layers with one of four activations."""
    makers = (nn.Tanh, nn.SiLU, nn.GELU, lambda: AffineHull(["identity", "tanh", "sin"]))
    widths = [2, *[width] * 5]
    hidden = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), makers[k % 4]())]
    return nn.Sequential(*hidden, nn.Linear(width, 1))


class ConvNeXtBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(width, width, 7, padding=3, groups=width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.scale, self.drop = nn.Parameter(torch.full((width,), 1e-6)), DropPath(0.1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.mlp(self.norm(self.conv(x).permute(0, 2, 3, 1))) * self.scale
        return x + self.drop(y.permute(0, 3, 1, 2))


def convnext(widths: tuple[int, ...], depths: tuple[int, ...]) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, widths[0], 4, 4), nn.GroupNorm(1, widths[0])]
    for i, (width, depth) in enumerate(zip(widths, depths, strict=True)):
        if i:
            layers += [nn.GroupNorm(1, widths[i - 1]), nn.Conv2d(widths[i - 1], width, 2, 2)]
        layers += [ConvNeXtBlock(width) for _ in range(depth)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 10))


class InvertedResidual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        wide = 4 * inputs
        self.expand = nn.Sequential(nn.Conv2d(inputs, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.Hardswish())
        depthwise = nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False)
        self.depthwise = nn.Sequential(depthwise, nn.BatchNorm2d(wide), nn.Hardswish())
        squeeze = (nn.Conv2d(wide, wide // 4, 1), nn.ReLU(), nn.Conv2d(wide // 4, wide, 1), nn.Hardsigmoid())
        self.excite = nn.Sequential(nn.AdaptiveAvgPool2d(1), *squeeze)
        self.project = nn.Sequential(nn.Conv2d(wide, outputs, 1, bias=False), nn.BatchNorm2d(outputs))
        self.is_residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y = self.depthwise(self.expand(x))
        y = self.project(y * self.excite(y))
        return x + y if self.is_residual else y


def mobilenet(width: int, blocks: int) -> nn.Module:
    stem = (nn.Conv2d(3, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.Hardswish())
    widths = [width * (1 + i // 2) for i in range(blocks + 1)]
    strides = [1 + i % 2 for i in range(blocks)]
    body = [InvertedResidual(a, b, s) for a, b, s in zip(widths, widths[1:], strides, strict=False)]
    return nn.Sequential(*stem, *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 10))


def vgg(widths: tuple[int, ...]) -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in zip((3, *widths), widths, strict=False):
        for channels in (inputs, outputs):
            layers += [nn.Conv2d(channels, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 10))


def tabular(widths: tuple[int, ...]) -> nn.Module:
    hidden = [
        layer
        for a, b in zip((54, *widths), widths, strict=False)
        for layer in (nn.Linear(a, b), nn.ReLU(), nn.Dropout(0.2))
    ]
    return nn.Sequential(*hidden, nn.Linear(widths[-1], 7))


class PlainGPT(nn.Module):
    """A GPT without dropout."""

    def __init__(self, layers: int, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(256, width), nn.Parameter(torch.zeros(length, width))
        self.blocks = nn.Sequential(*(Block(width, heads, 0.0, 0.0, True) for _ in range(layers)))
        self.head = nn.Linear(width, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.blocks(self.tokens(tokens) + self.positions))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


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


FUSED: dict[str, Callable[[Any, int], nn.Module]] = {"lenet5": FusedLeNet5, "mlp": fused_mlp}
"""Networks of K members by HFTA's layers."""


TUNED = ("lenet5", "resnet20", "mlp", "gpt")
"""Workloads that kernels were tuned for."""


def relu(channels: int) -> nn.Module:
    return nn.ReLU()


def workloads(tiny: bool = False) -> dict[str, Work]:
    """Return all workloads by name; `tiny` ones are for tests."""
    return {work.name: work for work in (_tiny() if tiny else _full())}


def _tiny() -> list[Work]:
    image, members = (2, 3, 16, 16), 2
    return [
        Work("lenet5", members, lambda k: LeNet5(relu), ((2, 3, 32, 32), (2,))),
        Work("resnet20", members, lambda k: ResNet(relu, n=1), (image, (2,))),
        Work("mlp", members, lambda k: mlp(), ((2, 784), (2,))),
        Work("gpt", members, lambda k: PlainGPT(1, 16, 2, 8), ((2, 8), (2, 8)), 256, 256),
        Work("nanogpt", members, lambda k: GPT(1, 16, 2, 8), ((2, 8), (2, 8)), 65, 65),
        Work("bert", members, lambda k: Bert(1, 16, 2, 8), ((2, 8), (2,)), tokens=1000),
        Work("unet", members, lambda k: UNet(8, 2), (image, image), 0, loss=regress),
        Work("lstm", members, lambda k: CharLSTM(8), ((2, 5), (2, 5)), 65, 65),
        Work("pinn", 5, lambda k: pinn(k, 8), ((6, 2), (6, 1)), 0, 0, burgers, burgers_by_func, half=False),
        Work("resnet20_batch128", members, lambda k: ResNet(relu, n=1), (image, (2,))),
        Work("vit", members, lambda k: ViT(1, 16, 2, 16, 8), (image, (2,))),
        Work("convnext", members, lambda k: convnext((8, 8), (1, 1)), (image, (2,))),
        Work("mobilenet", members, lambda k: mobilenet(8, 2), (image, (2,))),
        Work("vgg", members, lambda k: vgg((8, 8)), (image, (2,))),
        Work("tabular", members, lambda k: tabular((8, 8)), ((4, 54), (4,)), 7, half=False),
    ]


def _full() -> list[Work]:
    image, small = (64, 3, 64, 64), (32, 3, 32, 32)
    return [
        Work("lenet5", 60, lambda k: LeNet5(relu), (small, (32,))),
        Work("resnet20", 60, lambda k: ResNet(relu, n=3), (small, (32,))),
        Work("mlp", 60, lambda k: mlp(), ((32, 784), (32,))),
        Work("gpt", 60, lambda k: PlainGPT(4, 256, 4, 128), ((8, 128), (8, 128)), 256, 256),
        Work("nanogpt", 8, lambda k: GPT(6, 384, 6, 256), ((64, 256), (64, 256)), 65, 65),
        Work("bert", 8, lambda k: Bert(4, 256, 4, 128), ((32, 128), (32,)), tokens=1000),
        Work("unet", 8, lambda k: UNet(32, 4), ((16, 3, 64, 64), (16, 3, 64, 64)), 0, loss=regress),
        Work("lstm", 8, lambda k: CharLSTM(256), ((64, 128), (64, 128)), 65, 65),
        Work("pinn", 25, lambda k: pinn(k, 64), ((6400, 2), (6400, 1)), 0, 0, burgers, burgers_by_func, half=False),
        Work("resnet20_batch128", 16, lambda k: ResNet(relu, n=3), ((128, 3, 32, 32), (128,))),
        Work("vit", 8, lambda k: ViT(12, 192, 3, 64, 8), (image, (64,))),
        Work("convnext", 8, lambda k: convnext((40, 80, 160, 320), (2, 2, 6, 2)), (image, (64,))),
        Work("mobilenet", 8, lambda k: mobilenet(16, 8), (image, (64,))),
        Work("vgg", 8, lambda k: vgg((64, 128, 256)), ((128, 3, 32, 32), (128,))),
        Work("tabular", 60, lambda k: tabular((510, 263, 363)), ((256, 54), (256,)), 7, half=False),
    ]
