"""The workloads of population_work.py: plain networks as people write them, their data and their losses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

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
    def __init__(
        self,
        width: int,
        heads: int,
        dropout: float,
        drop_path: float,
        is_causal: bool,
        act: Callable[[], nn.Module] = nn.GELU,
    ) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout, is_causal)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), act(), nn.Linear(4 * width, width))
        self.drop = DropPath(drop_path) if drop_path else nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.attention(self.norm1(x)))
        return x + self.drop(self.mlp(self.norm2(x)))


class GPT(nn.Module):
    """nanoGPT, by default for characters, with its published dropout of 0.2."""

    def __init__(
        self,
        layers: int,
        width: int,
        heads: int,
        length: int,
        dropout: float = 0.2,
        vocabulary: int = 65,
        act: Callable[[], nn.Module] = nn.GELU,
    ) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Parameter(torch.zeros(length, width))
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout, 0.0, True, act) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
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


class LlamaBlock(nn.Module):
    """Rotary attention and a gated MLP, each after a root mean square norm."""

    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.norm1, self.norm2, self.heads = nn.RMSNorm(width), nn.RMSNorm(width), heads
        self.qkv, self.proj = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        hidden = 8 * width // 3
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)
        features = width // heads
        angles = torch.arange(length)[:, None] * 10_000 ** (-torch.arange(0, features, 2) / features)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def turn(self, x: Tensor) -> Tensor:
        one, two = x.chunk(2, -1)
        return torch.cat([one * self.cos - two * self.sin, one * self.sin + two * self.cos], -1)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(self.turn(q).type_as(v), self.turn(k).type_as(v), v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, length, width))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def llama(layers: int, width: int, heads: int, length: int) -> nn.Module:
    blocks = [LlamaBlock(width, heads, length) for _ in range(layers)]
    return nn.Sequential(nn.Embedding(256, width), *blocks, nn.RMSNorm(width), nn.Linear(width, 256, bias=False))


class MixerBlock(nn.Module):
    def __init__(self, places: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = nn.Sequential(nn.Linear(places, 2 * places), nn.GELU(), nn.Linear(2 * places, places))
        self.within = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.across(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.within(self.norm2(x))


class Mixer(nn.Module):
    def __init__(self, layers: int, width: int, size: int, patch: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.blocks = nn.Sequential(*(MixerBlock((size // patch) ** 2, width) for _ in range(layers)))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.patches(x).flatten(2).transpose(1, 2)).mean(1))


class DenseBlock(nn.Module):
    """Layers that read the outputs of all layers before them."""

    def __init__(self, channels: int, growth: int, layers: int) -> None:
        super().__init__()
        inputs = [channels + growth * number for number in range(layers)]
        self.norms = nn.ModuleList(nn.BatchNorm2d(own) for own in inputs)
        self.convs = nn.ModuleList(nn.Conv2d(own, growth, 3, padding=1, bias=False) for own in inputs)

    def forward(self, x: Tensor) -> Tensor:
        for norm, conv in zip(self.norms, self.convs, strict=True):
            x = torch.cat([x, conv(F.relu(norm(x)))], 1)
        return x


def densenet(growth: int, layers: int, blocks: int) -> nn.Module:
    channels, body = 2 * growth, []
    for _ in range(blocks):
        wide = channels + growth * layers
        body += [DenseBlock(channels, growth, layers), nn.BatchNorm2d(wide), nn.ReLU()]
        body += [nn.Conv2d(wide, wide // 2, 1, bias=False), nn.AvgPool2d(2)]
        channels = wide // 2
    stem = nn.Conv2d(3, 2 * growth, 3, padding=1, bias=False)
    return nn.Sequential(stem, *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def autoencoder(width: int) -> nn.Module:
    """Return convolutions down to an eighth of the size, and transposed ones back."""
    widths = [3, width, 2 * width, 4 * width]
    down = [m for a, b in pairwise(widths) for m in (nn.Conv2d(a, b, 4, 2, 1), nn.BatchNorm2d(b), nn.LeakyReLU(0.2))]
    up = [
        m for a, b in pairwise(widths[:0:-1]) for m in (nn.ConvTranspose2d(a, b, 4, 2, 1), nn.BatchNorm2d(b), nn.ReLU())
    ]
    return nn.Sequential(*down, *up, nn.ConvTranspose2d(width, 3, 4, 2, 1))


class VAE(nn.Module):
    """Return the image, and the mean and the logarithm of the variance of its code, side by side."""

    def __init__(self, pixels: int, width: int, code: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(pixels, width), nn.SiLU(), nn.Linear(width, 2 * code))
        self.decoder = nn.Sequential(nn.Linear(code, width), nn.SiLU(), nn.Linear(width, pixels))

    def forward(self, x: Tensor) -> Tensor:
        mean, spread = self.encoder(x).chunk(2, -1)
        noise = torch.randn_like(mean) if self.training else torch.zeros_like(mean)
        return torch.cat([self.decoder(mean + noise * (spread / 2).exp()), mean, spread], -1)


def lower_bound(forward: Callable[[Tensor], Tensor], x: Tensor, y: Tensor, members: int) -> Tensor:
    """Return the squared error of each member, and the divergence of its codes from a normal distribution."""
    found = forward(x).float()
    code = (found.shape[-1] - x.shape[-1]) // 2
    image, mean, spread = found.split([x.shape[-1], code, code], -1)
    divergence = (mean.square() + spread.exp() - spread - 1) / 2
    return per_member((image - y).square(), members) + 1e-3 * per_member(divergence, members)


class CharGRU(nn.Module):
    """Classify a sequence by the last output of a recurrent network that reads it in both directions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(65, width), nn.Linear(2 * width, 10)
        self.gru = nn.GRU(width, width, batch_first=True, bidirectional=True)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.gru(self.tokens(tokens))[0][:, -1])


class WaveBlock(nn.Module):
    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.wide = nn.Conv1d(width, 2 * width, 2, dilation=dilation)
        self.narrow, self.dilation = nn.Conv1d(width, width, 1), dilation

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.wide(F.pad(x, (self.dilation, 0))).chunk(2, 1)
        return x + self.narrow(value.tanh() * gate.sigmoid())


def wavenet(width: int, layers: int) -> nn.Module:
    """Return a causal network of dilated convolutions."""
    body = [WaveBlock(width, 2**number) for number in range(layers)]
    return nn.Sequential(nn.Conv1d(1, width, 1), *body, nn.ReLU(), nn.Conv1d(width, 1, 1))


class Sine(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(30 * x)


def siren(width: int) -> nn.Module:
    hidden = [m for a, b in pairwise([2, width, width, width]) for m in (nn.Linear(a, b), Sine())]
    return nn.Sequential(*hidden, nn.Linear(width, 3))


class PointNet(nn.Module):
    """Classify a cloud of points: an MLP for each, the maximum over them, another MLP."""

    def __init__(self, width: int) -> None:
        super().__init__()
        widths = [3, width, 2 * width, 8 * width]
        layers = [m for a, b in pairwise(widths) for m in (nn.Conv1d(a, b, 1), nn.BatchNorm1d(b), nn.ReLU())]
        self.points = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.Linear(8 * width, width), nn.ReLU(), nn.Dropout(0.3), nn.Linear(width, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.points(x.transpose(1, 2)).amax(2))


class GraphNet(nn.Module):
    """Label the nodes of a graph, whose edges are a dense matrix."""

    def __init__(self, nodes: int, width: int) -> None:
        super().__init__()
        edges = (torch.rand(nodes, nodes, generator=torch.Generator().manual_seed(0)) < 0.1).float()
        self.register_buffer("edges", edges / edges.sum(1, keepdim=True).clamp_min(1))
        self.layers = nn.ModuleList([nn.Linear(32, width), nn.Linear(width, width), nn.Linear(width, 10)])
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = self.drop(F.elu(self.edges @ layer(x)))
        return self.edges @ self.layers[-1](x)


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
        Work("mobilenet", members, lambda k: mobilenet(8, 2), (image, (2,))),
        Work("resnet20_batch128", members, lambda k: ResNet(relu, n=1), (image, (2,))),
        Work("tabular", members, lambda k: tabular((8, 8)), ((4, 54), (4,)), 7, half=False),
        Work("lstm", members, lambda k: CharLSTM(8), ((2, 5), (2, 5)), 65, 65),
        Work("llama", members, lambda k: llama(1, 16, 2, 8), ((2, 8), (2, 8)), 256, 256),
        Work("mixer", members, lambda k: Mixer(1, 16, 16, 8), (image, (2,))),
        Work("densenet", members, lambda k: densenet(4, 2, 2), (image, (2,))),
        Work("autoencoder", members, lambda k: autoencoder(4), (image, image), 0, loss=regress),
        Work("vae", members, lambda k: VAE(12, 8, 4), ((3, 12), (3, 12)), 0, loss=lower_bound, half=False),
        Work("gru", members, lambda k: CharGRU(8), ((2, 5), (2,)), tokens=65),
        Work("wavenet", members, lambda k: wavenet(4, 3), ((2, 1, 9), (2, 1, 9)), 0, loss=regress),
        Work("siren", members, lambda k: siren(8), ((6, 2), (6, 3)), 0, loss=regress, half=False),
        Work("pointnet", members, lambda k: PointNet(4), ((2, 7, 3), (2,))),
        Work("graph", members, lambda k: GraphNet(9, 8), ((9, 32), (9,)), half=False),
        Work("unet", members, lambda k: UNet(8, 2), (image, image), 0, loss=regress),
        Work("vit", members, lambda k: ViT(1, 16, 2, 16, 8), (image, (2,))),
        Work("convnext", members, lambda k: convnext((8, 8), (1, 1)), (image, (2,))),
        Work("vgg", members, lambda k: vgg((8, 8)), (image, (2,))),
        Work("pinn", 5, lambda k: pinn(k, 8), ((6, 2), (6, 1)), 0, 0, burgers, burgers_by_func, half=False),
        Work("bert", members, lambda k: Bert(1, 16, 2, 8), ((2, 8), (2,)), tokens=1000),
        Work("nanogpt", members, lambda k: GPT(1, 16, 2, 8), ((2, 8), (2, 8)), 65, 65),
        Work("lenet5", members, lambda k: LeNet5(relu), ((2, 3, 32, 32), (2,))),
        Work("resnet20", members, lambda k: ResNet(relu, n=1), (image, (2,))),
        Work("mlp", members, lambda k: mlp(), ((2, 784), (2,))),
        Work("gpt", members, lambda k: PlainGPT(1, 16, 2, 8), ((2, 8), (2, 8)), 256, 256),
    ]


def _full() -> list[Work]:
    """Return the workloads, those that have no record yet first."""
    image, small = (64, 3, 64, 64), (32, 3, 32, 32)
    return [
        Work("mobilenet", 8, lambda k: mobilenet(16, 8), (image, (64,))),
        Work("resnet20_batch128", 16, lambda k: ResNet(relu, n=3), ((128, 3, 32, 32), (128,))),
        Work("tabular", 60, lambda k: tabular((510, 263, 363)), ((256, 54), (256,)), 7, half=False),
        Work("lstm", 8, lambda k: CharLSTM(256), ((64, 128), (64, 128)), 65, 65),
        Work("llama", 8, lambda k: llama(6, 384, 6, 256), ((32, 256), (32, 256)), 256, 256),
        Work("mixer", 8, lambda k: Mixer(8, 256, 64, 8), (image, (64,))),
        Work("densenet", 8, lambda k: densenet(12, 6, 3), ((64, 3, 32, 32), (64,))),
        Work("autoencoder", 8, lambda k: autoencoder(32), (image, image), 0, loss=regress),
        Work("vae", 60, lambda k: VAE(784, 400, 20), ((128, 784), (128, 784)), 0, loss=lower_bound, half=False),
        Work("gru", 8, lambda k: CharGRU(256), ((64, 128), (64,)), tokens=65),
        Work("wavenet", 8, lambda k: wavenet(64, 10), ((16, 1, 2048), (16, 1, 2048)), 0, loss=regress),
        Work("siren", 16, lambda k: siren(256), ((16_384, 2), (16_384, 3)), 0, loss=regress, half=False),
        Work("pointnet", 8, lambda k: PointNet(64), ((32, 1024, 3), (32,))),
        Work("graph", 16, lambda k: GraphNet(1024, 128), ((1024, 32), (1024,)), half=False),
        Work("unet", 8, lambda k: UNet(32, 4), ((16, 3, 64, 64), (16, 3, 64, 64)), 0, loss=regress),
        Work("vit", 8, lambda k: ViT(12, 192, 3, 64, 8), (image, (64,))),
        Work("convnext", 8, lambda k: convnext((40, 80, 160, 320), (2, 2, 6, 2)), (image, (64,))),
        Work("vgg", 8, lambda k: vgg((64, 128, 256)), ((128, 3, 32, 32), (128,))),
        Work("pinn", 25, lambda k: pinn(k, 64), ((6400, 2), (6400, 1)), 0, 0, burgers, burgers_by_func, half=False),
        Work("bert", 8, lambda k: Bert(4, 256, 4, 128), ((32, 128), (32,)), tokens=1000),
        Work("nanogpt", 8, lambda k: GPT(6, 384, 6, 256), ((64, 256), (64, 256)), 65, 65),
        Work("lenet5", 60, lambda k: LeNet5(relu), (small, (32,))),
        Work("resnet20", 60, lambda k: ResNet(relu, n=3), (small, (32,))),
        Work("mlp", 60, lambda k: mlp(), ((32, 784), (32,))),
        Work("gpt", 60, lambda k: PlainGPT(4, 256, 4, 128), ((8, 128), (8, 128)), 256, 256),
    ]
