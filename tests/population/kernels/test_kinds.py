"""In fused kernels each member computes its own bases alone, and its results are those of all bases."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from hullo.bases import get_base

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

from hullo.population.kernels.act_pool_drop import combine_pool_drop  # noqa: E402
from hullo.population.kernels.bias_act import combine_biased  # noqa: E402
from hullo.population.kernels.bn_act import normalize_combine  # noqa: E402
from hullo.population.kernels.dropout import Dropout  # noqa: E402
from hullo.population.kernels.gn_act import group_norm_combine  # noqa: E402
from hullo.population.kernels.kinds import Kinds  # noqa: E402

BASES = tuple(map(get_base, ("identity", "relu", "tanh", "silu")))
MEMBERS, LEARNED = (1, 0, 2, 1), (True, False, True)
COLUMNS = ((3,), (1, 2), (0, 2, 3))


def kinds() -> Kinds:
    return Kinds(tuple(zip(COLUMNS, LEARNED, strict=True)), torch.tensor(MEMBERS, dtype=torch.int32).to(DEVICE))


def biased(x: Tensor, rows: Tensor, given: Kinds | None) -> Tensor:
    return combine_biased(x, torch.linspace(-1, 1, 4 * x.shape[2]).view(4, -1).to(DEVICE), rows, BASES, given)


def normed(x: Tensor, rows: Tensor, given: Kinds | None) -> Tensor:
    channels = x.shape[0] * x.shape[2] if x.dim() == 5 else x.shape[1]
    running = [torch.zeros(channels).to(DEVICE), torch.ones(channels).to(DEVICE)]
    scale, shift = (torch.linspace(low, 1, channels).to(DEVICE) for low in (0.5, -1))
    one, other = normalize_combine(x, *running, scale, shift, rows, BASES, True, momentum=0.1, eps=1e-5, kinds=given)
    return one + 2 * other


def group_normed(x: Tensor, rows: Tensor, given: Kinds | None) -> Tensor:
    one, other = group_norm_combine(x, None, None, rows, BASES, width=2, eps=1e-5, kinds=given)
    return one + 2 * other


def pooled(x: Tensor, rows: Tensor, given: Kinds | None) -> Tensor:
    none = torch.zeros(4, dtype=torch.int64).to(DEVICE)
    return combine_pool_drop(x, rows, BASES, Dropout(none, none, 0, 0.0), kinds=given)


CASES: dict[str, tuple[Callable[[Tensor, Tensor, Kinds | None], Tensor], tuple[int, ...]]] = {
    "features": (biased, (4, 37, 9)),
    "stacked images": (normed, (4, 2, 5, 3, 3)),
    "wide images side by side": (normed, (2, 4 * 128, 2, 2)),
    "stacked images in groups": (group_normed, (4, 2, 6, 3, 3)),
    "pooled": (pooled, (2, 4 * 96, 4, 4)),
}


@pytest.mark.parametrize(("call", "shape"), CASES.values(), ids=CASES)
def test_members_compute_their_own_bases(call: Callable[..., Tensor], shape: tuple[int, ...]) -> None:
    own = torch.tensor([[i in COLUMNS[kind] for i in range(4)] for kind in MEMBERS])
    learned = torch.tensor([LEARNED[kind] for kind in MEMBERS])[:, None]
    x, rows = torch.randn(shape), torch.randn(4, 4)
    found = []
    for given, other in ((None, 0.0), (kinds(), torch.nan)):  # what a member does not use is not read
        leaves = [x.clone().to(DEVICE).requires_grad_(), rows.where(own, other).to(DEVICE).requires_grad_()]
        y = call(*leaves, given)
        gradients = torch.autograd.grad(y, leaves, torch.linspace(-1, 1, y.numel()).view(y.shape).to(y))
        found.append(
            [
                y,
                gradients[0],
                gradients[1].where(own.to(DEVICE) & learned.to(DEVICE), 0.0) if given is None else gradients[1],
            ]
        )
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("call", "shape"), [(normed, (2, 4 * 5, 2, 2)), (pooled, (2, 4 * 5, 4, 4))])
def test_programs_with_channels_of_several_members_compute_all_bases(
    call: Callable[..., Tensor], shape: tuple[int, ...]
) -> None:
    x, rows = torch.randn(shape).to(DEVICE), torch.zeros(4, 4).to(DEVICE)
    for k, kind in enumerate(MEMBERS):
        rows[k, list(COLUMNS[kind])] = torch.randn(len(COLUMNS[kind])).to(DEVICE)
    torch.testing.assert_close(call(x, rows, kinds()), call(x, rows, None))


def test_gradients_of_gradients_of_coefficients() -> None:
    own = torch.tensor([[i in COLUMNS[kind] for i in range(4)] for kind in MEMBERS])
    learned = torch.tensor([LEARNED[kind] for kind in MEMBERS])[:, None]
    x, rows = torch.randn(4, 5, 3), torch.randn(4, 4).where(own, 0.0)
    found = []
    for given in (None, kinds()):
        leaves = [item.clone().to(DEVICE).requires_grad_() for item in (x, rows)]
        (first,) = torch.autograd.grad(biased(*leaves, given).square().sum(), leaves[1], create_graph=True)
        first = first.where((own & learned).to(DEVICE), 0.0) if given is None else first
        found.append([first, torch.autograd.grad(first.square().sum(), leaves[0])[0]])
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-5)
