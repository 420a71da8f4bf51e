"""Networks as researchers write them train in a population as they do alone, in float64 to 1e-10."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint
from trained_alone import assert_equal_states

from hullo.population import SGD, Population

CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {}


def brought(*shape: int) -> Callable[[type[nn.Module]], type[nn.Module]]:
    """Register a network and the shape of its input."""

    def register(kind: type[nn.Module]) -> type[nn.Module]:
        CASES[kind.__name__] = kind, shape
        return kind

    return register


@brought(4, 1, 32)
class Audio(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Conv1d(1, 6, 9, stride=2, padding=4),
            nn.BatchNorm1d(6),
            nn.ReLU(inplace=True),
            nn.MaxPool1d(3, 2, padding=1),
            nn.Conv1d(6, 6, 3, padding="same", dilation=2),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
        )


@brought(4, 3, 9, 9)
class Norms(nn.Module):
    """Batch norms of every kind, between convolutions of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding="same", dilation=2, padding_mode="reflect", bias=False)
        self.depthwise, self.pointwise = nn.Conv2d(4, 4, 3, padding=1, groups=4), nn.Conv2d(4, 6, 1)
        self.fixed, self.untracked = nn.BatchNorm2d(4, affine=False), nn.BatchNorm2d(6, track_running_stats=False)
        self.instance = nn.InstanceNorm2d(6, affine=True, track_running_stats=True)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu6(self.fixed(self.first(x)))
        y = self.untracked(F.hardswish(self.pointwise(self.depthwise(y))))
        return self.instance(y).square().mean([2, 3])


@brought(4, 8)
class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.start, self.shape = nn.Linear(8, 32), nn.Unflatten(1, (8, 2, 2))
        self.up, self.shuffle = nn.ConvTranspose2d(8, 8, 3, 2, padding=1, output_padding=1), nn.PixelShuffle(2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.shuffle(self.up(self.shape(self.start(x)).relu()))
        return F.interpolate(F.interpolate(y, size=(5, 7), mode="nearest"), scale_factor=2, mode="bicubic")


@brought(4, 5, 8)
class Attention(nn.Module):
    """PyTorch's own attention and transformer layers, with masks."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        layer = nn.TransformerEncoderLayer(8, 2, 12, 0.0, "gelu", norm_first=True, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
        self.register_buffer("mask", torch.triu(torch.ones(5, 5, dtype=torch.bool), 1))
        self.register_buffer("table", torch.randn(9, 8), persistent=False)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        padding = torch.zeros(4, 5, dtype=torch.bool)
        padding[1, 3:] = True
        x = x + self.table[: x.shape[1]]
        y, weights = self.attention(x, x, x, attn_mask=self.mask, key_padding_mask=padding)
        return {"y": self.decoder(self.encoder(y, self.mask), x, tgt_mask=self.mask), "weights": weights}


@brought(4, 5, 3)
class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 4, 2, batch_first=True, bidirectional=True)
        self.gru, self.cell = nn.GRU(8, 4), nn.LSTMCell(4, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y, (h, _) = self.lstm(x)
        y, _ = self.gru(y)
        state = (x[:, 0], x[:, 1])
        for step in range(x.shape[1]):
            state = self.cell(y[:, step], state)
        return state[0], h


@brought(4, 5)
class Parametrized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight_norm = parametrizations.weight_norm(nn.Linear(5, 6))
        self.spectral = parametrizations.spectral_norm(nn.Linear(6, 6))
        self.orthogonal = parametrizations.orthogonal(nn.Linear(6, 6))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.orthogonal(self.spectral(F.silu(self.weight_norm(x)))))


@brought(4, 5)
class Quantized(nn.Module):
    """A codebook that follows the features, with buffers that are written in whole and in part."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 3)
        self.register_buffer("code", torch.randn(7, 3))
        self.register_buffer("size", torch.ones(7))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.linear(x)
        nearest = torch.cdist(z, self.code).argmin(1)
        y = z + (self.code[nearest] - z).detach()
        if self.training:
            self.calls += 1
            with torch.no_grad():
                one = F.one_hot(nearest, 7).to(z)
                self.size.mul_(0.9).add_(one.sum(0), alpha=0.1)
                self.code.copy_(self.code * 0.9 + 0.1 * one.t() @ z.detach())
                self.code[0] = 1.0
        return y * self.calls, nearest


@brought(4, 6, 8)
class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.heads = nn.Linear(8, 8), nn.Parameter(torch.randn(8, 2, 4) / 3)

    def forward(self, x: Tensor) -> Tensor:
        y, mask = self.linear(x), x[..., :1] > 0
        y = torch.where(mask, y, -y)
        mean = (y * mask).sum(1) / mask.sum(1).clamp(min=1)
        top = y.masked_fill(~mask, float("-inf")).max(1).values.nan_to_num(neginf=0.0)
        padded = F.pad(y, (1, 1, 0, 2), value=0.5).logsumexp(1)[:, 1:9]
        heads = torch.einsum("btd,dhe->bhte", y, self.heads)
        scores = torch.einsum("bhqe,bhke->bhqk", heads, heads).softmax(-1)
        return torch.cat([mean + top, y.cumsum(1)[:, -1] + padded, (scores @ heads).sum((1, 2))], -1)


@brought(4, 3, 6, 6)
class WrittenInPlace(nn.Module):
    """Residuals, activations and slices that are written in place, and views that see it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.conv2, self.relu = nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        first = self.conv1(x)
        y = self.norm(self.conv2(first * 1.0))
        y += first
        z = self.relu(y)
        doubled = y * 2  # of what the activation has left
        flat, swapped = doubled.flatten(1), doubled.permute(0, 2, 3, 1)
        flat.add_(1.0)
        swapped[..., 0] *= 3.0
        doubled[:, 1:3, 0] = 0.5
        doubled[doubled > 2.0] = 0.25
        copied = doubled.transpose(1, 2).reshape(4, -1)
        copied.sub_(5.0)
        return (z + doubled).mean((2, 3)) + copied.mean(1, keepdim=True) + swapped.mean()


@brought(4, 3, 9, 9)
class Pools(nn.Module):
    """Every argument of every pool that is not its default."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)
        self.pools = nn.ModuleList([
            nn.MaxPool2d(3, 2, padding=1),
            nn.MaxPool2d(2, dilation=2),
            nn.MaxPool2d(2, ceil_mode=True),
            nn.MaxPool2d((2, 3), stride=(1, 2)),
            nn.AvgPool2d(3, padding=1, count_include_pad=False),
            nn.AvgPool2d(2, ceil_mode=True),
            nn.AvgPool2d(3, stride=1, divisor_override=2),
            nn.LPPool2d(2, 2),
            nn.AdaptiveMaxPool2d((3, 2)),
            nn.AdaptiveAvgPool2d((None, 2)),
        ])  # fmt: skip

    def forward(self, x: Tensor) -> list[Tensor]:
        y = self.conv(x)
        values, indices = F.max_pool2d(y, 2, return_indices=True)
        return [*(pool(y) for pool in self.pools), F.max_unpool2d(values, indices, 2, output_size=(9, 9))]


@brought(4, 7)
class Embeddings(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.padded = nn.Embedding(11, 4, padding_idx=-1, scale_grad_by_freq=True)
        self.bounded, self.sparse = nn.Embedding(11, 4, max_norm=0.5), nn.Embedding(11, 4, sparse=True)
        self.bag = nn.EmbeddingBag(11, 4, mode="mean")

    def forward(self, x: Tensor) -> Tensor:
        tokens = (x.abs() * 4).long().clamp(max=10)
        y = self.padded(tokens) + self.bounded(tokens) + self.sparse(tokens)
        return y.square().mean(1) + self.bag(tokens)


@dataclasses.dataclass
class Output:
    logits: Tensor
    hidden: list[Tensor]
    size: int

    def __post_init__(self) -> None:
        assert isinstance(self.logits, Tensor)


@brought(4, 5)
class Structured(nn.Module):
    """Frozen and unused parameters, a checkpoint, a tie, an attribute that is only written, a dataclass."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.unused = nn.Linear(5, 4).requires_grad_(False), nn.Linear(3, 3)
        self.block, self.tied = nn.Sequential(nn.Linear(4, 5), nn.Mish()), nn.Linear(4, 5, bias=False)
        self.tied.weight = self.block[0].weight
        self.scale, self.last = nn.Parameter(torch.tensor(0.5)), None
        self.block[1].register_forward_hook(lambda module, given, made: made * 2)

    def forward(self, x: Tensor) -> Output:
        with torch.no_grad():
            h = self.frozen(x)
        y = checkpoint(self.block, h.relu(), use_reentrant=False)
        self.last = y.detach()
        return Output(F.linear(y, self.tied.weight.t()) / self.scale.exp(), [y, self.scale * 1], 3)


@brought(4, 5)
class Literals(nn.Linear):
    """Tensors that forward makes of numbers, and writes to."""

    def __init__(self) -> None:
        super().__init__(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        rows, factor = torch.tensor([i for i in range(4) for _ in range(i)]), torch.tensor([1.0, 2.0]).to(x)
        factor[0] = 3.0
        before = factor.clone()
        factor *= x.new_tensor(2.0)
        return super().forward(x)[:, rows].unflatten(1, (3, 2)) * factor + before


@brought(4, 6)
class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.phase = nn.Linear(6, 8), nn.Parameter(torch.randn(5, dtype=torch.complex128))

    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.rfft(self.linear(x)) * self.phase


def loss_of(outputs: Any) -> Tensor:
    """Return a number that depends on every entry of nested outputs in a way of its own."""
    total = torch.zeros((), dtype=torch.float64)
    for leaf in pytree.tree_leaves(outputs):
        if isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex()):
            flat = (torch.view_as_real(leaf) if leaf.is_complex() else leaf).flatten()
            total = total + (flat * torch.linspace(0.5, 1.5, len(flat)).to(flat)).mean() + flat.square().mean()
    return total


@dataclasses.dataclass(frozen=True)
class Input:
    x: Tensor
    parts: tuple[Output, ...]


class Sum(nn.Linear):
    def forward(self, given: Input) -> Output:  # type: ignore[override]
        y = super().forward(given.x) + given.parts[0].logits
        return Output(y, [y * 2], given.parts[0].size)


def test_dataclasses_are_accepted_and_returned() -> None:
    members = [Sum(3, 2) for _ in range(2)]
    x, logits = torch.randn(2, 4, 3), torch.randn(2, 4, 2)
    made = Population(members)(Input(x, (Output(logits, [], 5),)))
    assert type(made) is Output
    assert made.size == 5
    for k, member in enumerate(members):
        expected = member(Input(x[k], (Output(logits[k], [], 5),)))
        torch.testing.assert_close((made.logits[k], made.hidden[0][k]), (expected.logits, expected.hidden[0]))


def assert_close(actual: Any, expected: Any) -> None:
    for one, other in zip(pytree.tree_leaves(actual), pytree.tree_leaves(expected), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", CASES)
def test_user_networks_train_as_they_do_alone(name: str) -> None:
    kind, shape = CASES[name]
    members = []
    for seed in range(3):
        torch.manual_seed(seed)
        members.append(kind().double())
    population = Population(members)
    optimizer = SGD(population, lr=0.05, momentum=0.9)
    plain = [
        torch.optim.SGD([p for p in member.parameters() if p.requires_grad], lr=0.05, momentum=0.9)
        for member in members
    ]
    batches = torch.randn(3, 3, *shape, dtype=torch.float64)
    for x in batches:
        outputs = population(x)
        optimizer.zero_grad()
        torch.stack([loss_of(_select(outputs, k)) for k in range(3)]).sum().backward()
        optimizer.step()
        for k, (member, own) in enumerate(zip(members, plain, strict=True)):
            expected = member(x[k])
            assert_close(_select(outputs, k), expected)
            own.zero_grad()
            loss_of(expected).backward()
            own.step()
    for k, member in enumerate(members):
        assert_equal_states(population[k], member)
    population.eval()
    outputs = population(batches[0])
    for k, member in enumerate(members):
        assert_close(_select(outputs, k), member.eval()(batches[0, k]))


def _select(outputs: Any, k: int) -> Any:
    return pytree.tree_map(lambda item: item[k] if isinstance(item, Tensor) else item, outputs)


def test_any_batch_size_and_keyword_arguments_are_supported() -> None:
    class Scored(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.norm = nn.Linear(5, 4), nn.BatchNorm1d(4)

        def forward(self, x: Tensor, *, weight: Tensor, power: int = 1) -> Tensor:
            return self.norm(self.linear(x)).view(x.size(0), 2, -1).sum(1) * len(x) * weight**power

    members = [Scored().double() for _ in range(3)]
    population = Population(members)
    for size in (2, 7, 3, 2):
        x, weight = torch.randn(3, size, 5).double(), torch.randn(3, size, 1).double()
        actual = population(x, weight=weight, power=size)
        assert_close(actual, torch.stack([m(x[k], weight=weight[k], power=size) for k, m in enumerate(members)]))
    for k, member in enumerate(members):
        assert_equal_states(population[k], member)


def test_layers_of_transformers_may_differ_in_their_rates() -> None:
    layers = [nn.TransformerDecoderLayer(8, 2, 16, dropout=rate, batch_first=True) for rate in (0.1, 0.3, 0.0001)]
    report = Population(layers).check(torch.randn(4, 5, 8), torch.randn(4, 3, 8), in_dims=None)
    assert report.members == [0, 1, 2]


def test_a_compiled_network_is_the_network_inside() -> None:
    network, x = nn.Linear(3, 2), torch.randn(4, 3)
    population = Population([torch.compile(network)])
    assert type(population[0]) is nn.Linear
    torch.testing.assert_close(population(x, in_dims=None)[0], network(x))


def test_input_derivatives_match_the_members() -> None:
    members = [nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)).double() for _ in range(3)]
    population = Population(members)
    x = torch.randn(3, 5, 2, dtype=torch.float64, requires_grad=True)
    (slopes,) = torch.autograd.grad(population(x).sum(), x, create_graph=True)
    slopes.square().sum().backward()
    for k, member in enumerate(members):
        own = x[k].detach().requires_grad_()
        (expected,) = torch.autograd.grad(member(own).sum(), own, create_graph=True)
        expected.square().sum().backward()
        assert_close(slopes[k], expected)
        assert_close(population.stacked.get_parameter("0.weight").grad[k], member[0].weight.grad)
