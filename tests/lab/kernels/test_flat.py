"""The fused step moves parameters as the plain one does; on the CPU it runs in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch

from hullo.lab.networks.layers import by_member
from hullo.lab.recipes import SGD, Optimiser, RMSprop

pytest.importorskip("triton")

from pairs import DEVICE, Pair

from hullo.lab.kernels.flat import Layout

Recipe = Callable[..., Optimiser]

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")  # by the interpreter
every_recipe = pytest.mark.parametrize(
    ("recipe", "size"),
    # RMSprop takes steps of one length, whatever the size of gradients
    [(partial(RMSprop, decay=0.5), 1e3), (partial(SGD, every=2, gamma=0.25, weight_decay=0.05), 1.0)],
    ids=["rms", "sgd"],
)


@every_recipe
@pytest.mark.parametrize(
    ("copies", "dtype", "slack"), [(torch.float32, torch.float32, 3e-7), (torch.bfloat16, torch.float64, 2e-6)]
)
def test_five_steps_equal_the_plain_ones(
    recipe: Recipe, size: float, copies: torch.dtype, dtype: torch.dtype, slack: float
) -> None:
    """To the last bits where plain operations are of float32 too; a GPU rounds once less than a CPU does."""
    pair = Pair(recipe, copies, dtype)
    for _ in range(5):
        pair.give(size)
        pair.step()
        pair.check(slack)


@every_recipe
def test_copies_are_the_new_values_rounded(recipe: Recipe, size: float) -> None:
    fused = Pair(recipe, torch.bfloat16).fused
    before = {name: leaf.detach().clone() for name, leaf in fused.leaves.items()}
    for leaf in fused.leaves.values():
        leaf.grad = torch.ones_like(leaf)
    fused.step()
    for name, leaf in fused.leaves.items():
        value = fused.parameters[name].detach()
        assert not torch.equal(leaf, before[name])
        if DEVICE == "cuda" or leaf.dtype == torch.float32:
            assert torch.equal(leaf, value.to(leaf.dtype))
        else:  # the interpreter cuts off
            assert bool(((leaf.float() - value).abs() <= value.abs() * 2.0**-7).all())


@every_recipe
def test_a_gradient_in_another_order_or_at_an_odd_address_serves(recipe: Recipe, size: float) -> None:
    pair = Pair(recipe)
    pair.give(size)
    for name, leaf in pair.fused.leaves.items():
        assert leaf.grad is not None
        odd = torch.empty(leaf.numel() + 1, device=DEVICE)[1:].view(leaf.shape)
        leaf.grad = odd.copy_(leaf.grad) if name.endswith("bias") else leaf.grad.contiguous()
    pair.step()
    pair.check(3e-7)


@every_recipe
def test_a_member_that_is_not_finite_leaves_the_others_as_they_are(recipe: Recipe, size: float) -> None:
    alone, beside = Pair(recipe).fused, Pair(recipe).fused
    for (name, leaf), other in zip(alone.leaves.items(), beside.leaves.values(), strict=True):
        leaf.grad, other.grad = torch.randn_like(leaf), torch.empty_like(leaf)
        other.grad.copy_(leaf.grad)
        by_member(other.grad, 3)[1] = torch.nan
        assert not by_member(other.grad, 3)[0].isnan().any(), name
    alone.step()
    beside.step()
    for name, parameter in alone.parameters.items():
        own, with_it = by_member(parameter, 3), by_member(beside.parameters[name], 3)
        assert torch.equal(own[0], with_it[0])
        assert torch.equal(own[2], with_it[2])
        assert bool(with_it[1].isnan().all())


def test_what_does_not_fit_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"parameter 1 of shape \(4, 2\) .* call \.contiguous\(\)"):
        Layout([torch.zeros(4, 3), torch.zeros(2, 4).t()], members=2)


@pytest.mark.gpu
@every_recipe
def test_a_cuda_graph_replays_the_step(recipe: Recipe, size: float) -> None:
    eager, graphed = (Pair(recipe, torch.bfloat16).fused for _ in range(2))
    for one, other in zip(eager.leaves.values(), graphed.leaves.values(), strict=True):
        one.grad = torch.randn_like(one)
        other.grad = one.grad.clone()
    eager.step()
    graphed.step()  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        graphed.step()
    for _ in range(4):
        graph.replay()
        eager.step()
    assert eager.updates.item() == graphed.updates.item() == 5
    for name, leaf in eager.leaves.items():
        assert torch.equal(leaf, graphed.leaves[name])
        assert torch.equal(eager.parameters[name], graphed.parameters[name])
