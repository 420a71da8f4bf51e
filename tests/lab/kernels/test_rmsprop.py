"""The fused step moves parameters as the plain one does; on the CPU it runs in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hullo.lab import networks
from hullo.lab.recipes import RMSprop

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

from hullo.lab.kernels.rmsprop import Layout, move  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")  # by the interpreter

ROWS = ("affine(identity,relu)", "relu", "convex(identity,tanh)")
RATES, SCALES = (1e-3, 1e-2, 3e-4), (1.0, 3.0, 10.0)


class Pair:
    """A population that the plain optimiser moves, and its parameters in buffers, which the kernel moves alike."""

    def __init__(self, *, channels_last: bool = False) -> None:
        self.network = networks.build("lenet5", activation=ROWS, members=3, in_channels=1, image_size=16)
        if channels_last:
            self.network.to(memory_format=torch.channels_last)
        self.plain = RMSprop(self.network, lr=RATES, decay=0.5, coefficient_lr_scale=SCALES)
        self.names, self.parameters = zip(*self.network.named_parameters(), strict=True)
        self.layout = Layout([parameter.detach().to(DEVICE) for parameter in self.parameters], members=3)
        self.values, self.squares = (self.layout.buffer(torch.float32) for _ in range(2))
        self.copies = self.layout.buffer(torch.bfloat16)
        for view, parameter in zip(self.layout.views(self.values), self.parameters, strict=True):
            view.copy_(parameter.detach())
        self.scales = torch.ones(len(self.parameters), 3, device=DEVICE)
        self.scales[self.names.index("activations.raw")] = torch.tensor(SCALES)
        self.rates = torch.tensor(RATES, device=DEVICE)
        self.updates = torch.zeros((), dtype=torch.int64, device=DEVICE)

    def move(self, gradients: list[Tensor], copies: Tensor | None = None) -> None:
        move(
            self.layout,
            self.values,
            self.squares,
            gradients,
            rates=self.rates,
            scales=self.scales,
            updates=self.updates,
            decay=0.5,
            rho=0.9,
            epsilon=1e-7,
            copies=copies,
        )

    def draw(self, dtype: torch.dtype = torch.float32) -> list[Tensor]:
        """Gradients of very different sizes, given to the plain parameters too; coefficients' are always float32."""
        drawn = []
        for name, parameter in zip(self.names, self.parameters, strict=True):
            gradient = torch.randn_like(parameter) * 10 ** (3 * torch.randn(()))
            gradient = gradient.to(dtype if name != "activations.raw" else torch.float32)
            parameter.grad = gradient.float()
            drawn.append(gradient.to(DEVICE))
        return drawn

    def check(self) -> None:
        """To the last bits: a GPU fuses multiplications with additions, the interpreter does not."""
        slack = {"rtol": 3e-7, "atol": 3e-8}
        pairs = zip(self.layout.views(self.values), self.parameters, strict=True)
        for view, parameter in pairs:
            torch.testing.assert_close(view.cpu(), parameter.detach(), **slack)
        state = self.plain.state_dict()
        for view, name in zip(self.layout.views(self.squares), self.names, strict=True):
            torch.testing.assert_close(view.cpu(), state[f"squares.{name}"], **slack)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_three_steps_equal_the_plain_ones(dtype: torch.dtype, channels_last: bool) -> None:
    pair = Pair(channels_last=channels_last)
    for _ in range(3):
        gradients = pair.draw(dtype)
        pair.plain.step()
        pair.move(gradients)
    pair.check()
    assert pair.updates.item() == 3


def test_copies_are_the_new_values_rounded() -> None:
    pair = Pair()
    pair.move(pair.draw(), pair.copies)
    for copy, value in zip(pair.layout.views(pair.copies), pair.layout.views(pair.values), strict=True):
        if DEVICE == "cuda":
            assert torch.equal(copy, value.bfloat16())
        else:  # the interpreter cuts off
            assert bool(((copy.float() - value).abs() <= value.abs() * 2.0**-7).all())


def test_a_gradient_in_another_order_or_at_an_odd_address_serves() -> None:
    pair = Pair(channels_last=True)
    gradients = pair.draw()
    pair.plain.step()
    buffer = torch.empty(gradients[-1].numel() + 1, device=DEVICE)
    odd = buffer[1:].view(gradients[-1].shape)
    odd.copy_(gradients[-1])
    pair.move([*(gradient.contiguous() for gradient in gradients[:-1]), odd])
    pair.check()


def test_a_member_that_is_not_finite_leaves_the_others_as_they_are() -> None:
    alone, beside = Pair(), Pair()
    gradients = alone.draw()
    alone.move(gradients)
    for gradient in gradients:
        gradient.unflatten(0, (3, -1))[1] = torch.nan
    beside.move(gradients)
    for a, b in zip(alone.layout.views(alone.values), beside.layout.views(beside.values), strict=True):
        a, b = a.unflatten(0, (3, -1)), b.unflatten(0, (3, -1))
        assert torch.equal(a[0], b[0])
        assert torch.equal(a[2], b[2])
        assert bool(b[1].isnan().all())


def test_what_does_not_fit_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"parameter 1 of shape \(4, 2\) .* call \.contiguous\(\)"):
        Layout([torch.zeros(4, 3), torch.zeros(2, 4).t()], members=2)
    pair = Pair()
    with pytest.raises(ValueError, match="9 parameters need as many gradients, got 1"):
        pair.move(pair.draw()[:1])
    with pytest.raises(ValueError, match=r"float32 or bfloat16 of that shape, got torch\.float64"):
        pair.move([gradient.double() for gradient in pair.draw()])


@pytest.mark.gpu
def test_a_cuda_graph_replays_the_step() -> None:
    eager, graphed = Pair(), Pair()
    gradients = eager.draw()
    graphed.move(gradients, graphed.copies)  # compiles
    eager.move(gradients, eager.copies)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        graphed.move(gradients, graphed.copies)
    for _ in range(3):
        graph.replay()
        eager.move(gradients, eager.copies)
    assert torch.equal(eager.values, graphed.values)
    assert torch.equal(eager.copies, graphed.copies)
    assert eager.updates.item() == graphed.updates.item() == 4
