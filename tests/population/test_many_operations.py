"""Operations as people write them: each network returns many results, all of which are those of a member alone.

Members, batch and features have one size, three, so that a wrong dimension shows in numbers alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from function_networks import numbers
from torch import Tensor, nn

from hullo.population import Population

SIZE = 3


class Many(nn.Module):
    def __init__(self, compute: Callable[[Any, Tensor, Tensor], Sequence[Tensor]]) -> None:
        super().__init__()
        self.layer, self.compute = nn.Linear(SIZE, SIZE), compute
        self.vector, self.matrix = nn.Parameter(torch.randn(SIZE)), nn.Parameter(torch.randn(SIZE, SIZE))
        self.cube, self.scalar = nn.Parameter(torch.randn(SIZE, 1, SIZE)), nn.Parameter(torch.tensor(0.7))
        self.double()
        self.single = nn.Parameter(torch.randn(SIZE))
        self.register_buffer("constant", torch.arange(float(SIZE)).double())
        self.register_buffer("index", torch.tensor([2, 0, 0]))

    def forward(self, x: Tensor) -> Sequence[Tensor]:
        return self.compute(self, x, self.layer(x))


def broadcast(net: Any, x: Tensor, y: Tensor) -> Sequence[Tensor]:
    v, m, u, c = net.vector, net.matrix, net.cube, net.constant
    return (
        *(y * v, y + m, y * c, y * u, u * v, m.T + c, y - v.mean(), y * net.scalar, net.scalar * c, net.scalar * v),
        *(torch.where(y > c, v, y), torch.maximum(m, v), torch.lerp(c, v, y), y.clamp(c - 2, v.abs() + 1)),
        *(torch.addcdiv(c, v, y.abs() + 1), torch.addcmul(y, v, u, value=0.5), torch.cat([m, y]), torch.stack([c, v])),
        *(net.single * net.scalar, net.single * y, torch.cat([net.single, v]), net.single * net.scalar.detach() + 1),
    )


def products(net: Any, x: Tensor, y: Tensor) -> Sequence[Tensor]:
    v, m, u, c = net.vector, net.matrix, net.cube, net.constant
    wide = u.expand(3, 3, 3)
    return (
        *(torch.outer(v, c), m @ v, v @ m, v @ c, torch.dot(v, c), torch.mv(m, c), y @ c, c @ y, u @ m, m @ wide),
        *(torch.addmv(c, m, v), F.linear(c, m, v), F.linear(y, m), torch.addmm(v, y, m, beta=0.5, alpha=2.0)),
        *(torch.baddbmm(m.expand(3, 3, 3), wide, wide), torch.einsum("bi,ij,kj->bk", y, m, m), torch.kron(m, v)),
        *(torch.einsum("ii->i", m), torch.tensordot(y, wide, dims=([1], [0])), F.bilinear(y, y, wide, v)),
        *(torch.cdist(y, m), torch.cross(y, m, dim=1), torch.linalg.solve(m @ m.T + torch.eye(3), y), m.T.inverse()),
        *(torch.linalg.slogdet(m)[1], F.cosine_similarity(y, v, dim=-1), F.pairwise_distance(y, m)),
        *(F.layer_norm(y, (3,), v, c), F.prelu(y, v), F.rms_norm(y, (3,), v), F.group_norm(y, 3, c, v)),
    )


def indexed(net: Any, x: Tensor, y: Tensor) -> Sequence[Tensor]:
    v, m, c, i = net.vector, net.matrix, net.constant, net.index
    row, all_rows, part, added = y.clone(), y.clone(), y.clone(), y.clone()
    row[i] = 0.0
    all_rows[:, i] += v[i]
    part[1:, ::2].mul_(v[:2])
    added.index_put_((i, i), v, accumulate=True)
    masked = y.clone()
    masked[x > 0] = 0.0
    return (
        *(row, all_rows, part, added, masked, y[i], m[:, i], y[i[:, None], i], m[y.argmax(1)], y[..., None, :2], y[-1]),
        *(y.gather(1, y.argsort(1)), y.scatter(1, i[:, None], 5.0), y.index_select(0, i), m.index_select(1, i)),
        *(torch.zeros_like(y).index_add_(0, i, y), torch.zeros_like(y).scatter_add_(0, i.expand(3, 3), m), y.take(i)),
        *(torch.select_scatter(y, v, 0, 1), torch.slice_scatter(y, m[:, :2], 1, 1), torch.diagonal_scatter(y, v)),
        *(F.embedding(i, m), F.embedding(i, m, padding_idx=0), F.embedding(i, m, padding_idx=2), y.index_copy(0, i, m)),
        *(torch.take_along_dim(y, i[:, None], 1), y.masked_fill(x > 0, 2.0), y.diagonal(), y.tril(), y.roll(1, 0)),
        *(torch.searchsorted(c, y), F.one_hot(i, 3) * y, y.repeat_interleave(2, 0), y.unfold(0, 2, 1), y.flip(0)),
    )


def reduced(net: Any, x: Tensor, y: Tensor) -> Sequence[Tensor]:
    v, z = net.vector, y.float()
    return (
        *(y.sum(), y.sum(0), y.sum((0, 1)), y.mean(), y.mean(1), y.mean((0, 1), keepdim=True), y.var(0), y.std(1)),
        *(y.amax(), y.amax(0), y.amin(1), y.max(1).values, y.max(0)[1], y.median(), y.sort(0)[0], y.topk(2)[0]),
        *(y.norm(), y.norm(dim=0), v.norm(), y.prod(1), y.logsumexp((0, 1)), y.cumsum(0), y.cumprod(1), y.argmax()),
        *(y.softmax(0), y.log_softmax(1), F.normalize(y, dim=0), v.softmax(0), v.mean(), v.sum(), v.cumsum(0)),
        *(z.mean(0, dtype=torch.float64), z.sum(1, dtype=torch.float64), torch.var_mean(y, 1)[0], y.quantile(0.3, 1)),
        *((y > 0).any(0), (y > 0).sum(), (y > 0).all(), y.count_nonzero(1), torch.trapezoid(y), y.unbind(1)[2]),
        *(*y.chunk(2, 1), *y.split([1, 2]), y.t().reshape(-1), y.unflatten(1, (3, 1)), y.expand(2, 3, 3), y.ravel()),
        *(F.cross_entropy(y, x.argmax(1)), F.cross_entropy(y, x.argmax(1), weight=net.constant + 1), F.mse_loss(y, x)),
        *(
            F.kl_div(y.log_softmax(1), x.softmax(1), reduction="batchmean"),
            F.huber_loss(y, x),
            F.gelu(v),
            F.glu(y[:, :2]),
        ),
    )


def padded(net: Any, x: Tensor, y: Tensor) -> Sequence[Tensor]:
    images, kernel, thin = y.expand(3, 3, 3, 3) * net.cube, net.matrix.expand(3, 3, 3, 3), net.matrix[:, :, None]
    line, even = images[0], net.matrix.expand(3, 3, 3, 3)[:, :, :2, :2]
    return (
        *(F.conv2d(images, kernel, net.vector, padding=1), F.conv2d(images, kernel, padding=(1, 0), stride=(1, 2))),
        *(F.conv2d(images, even, padding="same"), F.conv2d(images, kernel[..., :2], net.vector, padding="same")),
        *(F.conv2d(images, kernel, padding="same", dilation=2), F.conv2d(images, even[:, :1], groups=3)),
        *(
            F.conv2d(images[0], kernel, padding=1),
            F.conv1d(line, thin, net.vector),
            F.conv1d(line, net.matrix.expand(4, 3, 3), padding=1),
        ),
        *(F.conv_transpose2d(images, even, stride=2), F.conv_transpose1d(line, thin, stride=2, output_padding=1)),
        *(F.conv2d(F.pad(images, (1, 1, 1, 1)), kernel), F.conv2d(F.pad(images, (0, 2, 1, 0)), kernel)),
        *(F.pad(images, (1, 1, 0, 0), "circular"), F.pad(images, (1, 1, 0, 1), "reflect"), F.pad(y, (1, 0), value=2.0)),
        *(F.max_pool2d(images, 2), F.avg_pool2d(images, 2, ceil_mode=True), F.adaptive_avg_pool2d(images, (2, 1))),
        *(F.interpolate(images, scale_factor=2), F.interpolate(images, (4, 4), mode="bilinear"), F.unfold(images, 2)),
        *(F.batch_norm(images, None, None, net.vector, net.constant, True), F.instance_norm(images), line.mean(2)),
        *(F.local_response_norm(images, 3), F.pixel_shuffle(images.repeat(1, 4, 1, 1), 2), images.flatten(2).mT),
    )


def complex_numbers(net: Any, x: Tensor, y: Tensor) -> Sequence[Tensor]:
    z = torch.complex(y, net.matrix)
    frequencies = torch.fft.rfft(y, norm="ortho")
    return (
        *(
            z.abs(),
            z.angle(),
            (z * z.conj()).real,
            (z @ z.mH).imag,
            torch.view_as_real(z * net.vector),
            z.real + z.imag,
        ),
        *(frequencies.abs(), torch.fft.irfft(frequencies * net.vector[:2], n=3), torch.fft.fft2(y).imag, z.sum().real),
        torch.view_as_real(F.linear(z, torch.complex(net.matrix, net.matrix.T), z[0])),
    )


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("dim", [0, 1, None])
@pytest.mark.parametrize("compute", [broadcast, products, indexed, reduced, padded, complex_numbers])
def test_many_operations_are_those_of_each_network(
    compute: Callable[[Any, Tensor, Tensor], Sequence[Tensor]], dim: int | None
) -> None:
    networks = [Many(compute) for _ in range(SIZE)]
    population, x = Population(networks), numbers(SIZE, SIZE) if dim is None else numbers(SIZE, SIZE, SIZE)
    inputs = [x if dim is None else x.select(dim, k) for k in range(SIZE)]
    found = population(x, in_dims=dim)
    expected = [network(own) for network, own in zip(networks, inputs, strict=True)]
    assert len(found) == len(expected[0])
    for y, *alone in zip(found, *expected, strict=True):
        torch.testing.assert_close(y, torch.stack(alone), rtol=1e-7, atol=1e-7)
    for results in (found, *expected):
        real = [y.double() * (1 + i % 5) for i, y in enumerate(results) if y.requires_grad]
        torch.cat([y.flatten() for y in real]).sin().sum().backward()
    for name, parameter in population.stacked.named_parameters():
        alone = [network.get_parameter(name).grad for network in networks]
        if parameter.grad is None:
            assert alone == [None] * SIZE
        else:
            torch.testing.assert_close(parameter.grad, torch.stack(alone), rtol=1e-5, atol=1e-6)
