"""Test AlexNet against Caffe (parameters, layer shapes) and against plain PyTorch."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from hullo.lab import networks
from hullo.lab.networks.alexnet import _pool
from hullo.population import SGD, Population

SMALL = {"image_size": 71, "num_classes": 10}  # sides 16, 8, 4, 2: every pool takes part of a window
SMALLEST = {"image_size": 39, "num_classes": 10}

STARTS = {  # the deviation of a layer's weights, and its biases
    "conv1": (0.01, 0.0),
    "conv2": (0.01, 0.1),
    "conv3": (0.01, 0.0),
    "conv4": (0.01, 0.1),
    "conv5": (0.01, 0.1),
    "linear6": (0.005, 0.1),
    "linear7": (0.005, 0.1),
    "linear8": (0.01, 0.0),
}


@pytest.fixture(scope="module")
def full() -> nn.Module:
    return networks.build("alexnet", activation="relu", image_size=227, num_classes=1000)


@pytest.fixture
def pair() -> Population:
    rows = ["relu", "affine(identity,relu,tanh)"]
    return Population([networks.build("alexnet", activation=row, seed=5 + k, **SMALLEST) for k, row in enumerate(rows)])


def images(side: int = 39, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return images that are bright enough for local response normalization to matter."""
    return 600 * torch.randn(2, 3, side, side, dtype=dtype)


class TestSizes:
    def test_number_of_parameters_matches_caffe(self, full: nn.Module) -> None:
        assert sum(p.numel() for p in full.parameters()) == 60_965_224

    def test_hull_adds_its_coefficients(self, pair: Population) -> None:
        fixed, learned = (sum(p.numel() for p in member.parameters()) for member in pair)
        assert learned - fixed == 7 * 3

    def test_layer_shapes_match_caffe(self, full: nn.Module) -> None:
        shapes: dict[str, tuple[int, ...]] = {}

        def note(name: str) -> None:
            full.get_submodule(name).register_forward_hook(
                lambda _, given, y: shapes.update({name: (*given[0].shape[1:], *y.shape[1:])})
            )

        for name in STARTS:
            note(name)
        with torch.inference_mode():
            full.eval()(torch.zeros(1, 3, 227, 227))
        assert shapes == {
            "conv1": (3, 227, 227, 96, 55, 55),
            "conv2": (96, 27, 27, 256, 27, 27),
            "conv3": (256, 13, 13, 384, 13, 13),
            "conv4": (384, 13, 13, 384, 13, 13),
            "conv5": (384, 13, 13, 256, 13, 13),
            "linear6": (9216, 4096),
            "linear7": (4096, 4096),
            "linear8": (4096, 1000),
        }

    @pytest.mark.parametrize("side", range(2, 60))
    def test_pooling_sizes_match_caffe(self, side: int) -> None:
        pooled = _pool(torch.zeros(1, 1, side, side)).shape[-1]
        assert pooled == math.ceil((side - 3) / 2) + 1 == side // 2

    def test_smallest_valid_images_leave_one_pixel(self) -> None:
        with pytest.raises(ValueError, match=r"image_size=38: .* 39 pixels"):
            networks.build("alexnet", activation="relu", image_size=38)
        network = networks.build("alexnet", activation="relu", in_channels=1, image_size=39, num_classes=3)
        assert network.linear6.weight.shape == (4096, 256)
        assert network(torch.zeros(1, 1, 39, 39)).shape == (1, 3)


class TestStart:
    def test_initialization_matches_caffe(self, full: nn.Module) -> None:
        for name, (deviation, bias) in STARTS.items():
            layer = full.get_submodule(name)
            unit = layer.weight.detach().flatten() / deviation
            count = unit.numel()
            assert abs(unit.mean()) < 5 / count**0.5
            assert abs(unit.square().mean() - 1) < 5 * (2 / count) ** 0.5
            beyond = math.erfc(2 / 2**0.5)  # the share of a normal distribution beyond two deviations
            assert abs((unit.abs() > 2).double().mean() - beyond) < 5 * (beyond / count) ** 0.5
            assert (layer.bias == bias).all()


class PlainAlexNet(nn.Sequential):
    """The network in PyTorch's own layers, with the features of the first linear layer ordered by channel first."""

    def __init__(self, side: int, classes: int) -> None:
        pool, norm = nn.MaxPool2d(3, 2, ceil_mode=True), nn.LocalResponseNorm(5, alpha=1e-4, beta=0.75, k=1.0)
        super().__init__(
            *(nn.Conv2d(3, 96, 11, stride=4), nn.ReLU(), norm, pool),
            *(nn.Conv2d(96, 256, 5, padding=2, groups=2), nn.ReLU(), norm, pool),
            *(nn.Conv2d(256, 384, 3, padding=1), nn.ReLU()),
            *(nn.Conv2d(384, 384, 3, padding=1, groups=2), nn.ReLU()),
            *(nn.Conv2d(384, 256, 3, padding=1, groups=2), nn.ReLU(), pool),
            *(nn.Flatten(), nn.Linear(256 * side**2, 4096), nn.ReLU(), nn.Dropout(0.5)),
            *(nn.Linear(4096, 4096), nn.ReLU(), nn.Dropout(0.5)),
            nn.Linear(4096, classes),
        )


def in_plain_form(name: str, tensor: Tensor, side: int) -> Tensor:
    """Return a parameter of ours as PyTorch's own layers hold it."""
    if name == "linear6.weight":
        return tensor.view(4096, side, side, 256).permute(0, 3, 1, 2).flatten(1)
    return tensor


def test_logits_match_plain_pytorch() -> None:
    ours = networks.build("alexnet", activation="relu", **SMALL).double().eval()
    plain = PlainAlexNet(side=2, classes=10).double().eval()
    with torch.no_grad():
        for (name, parameter), other in zip(ours.named_parameters(), plain.parameters(), strict=True):
            other.copy_(in_plain_form(name, parameter, side=2))
    batch = images(side=71, dtype=torch.float64)
    inputs = ours.conv1(batch).relu()
    assert (plain[2](inputs) - inputs).norm() > 0.1 * inputs.norm()  # it matters here
    logits, expected = ours(batch), plain(batch)
    torch.testing.assert_close(logits, expected, rtol=1e-10, atol=1e-10 * expected.abs().max().item())


def test_population_trains_like_its_members(pair: Population) -> None:
    members, batch = [*pair.eval()], images()
    optimizer = SGD(pair, lr=0.01)
    together = pair(batch, in_dims=None)
    together.square().mean((1, 2)).sum().backward()
    optimizer.step()
    for k, member in enumerate(members):
        own = member(batch)
        torch.testing.assert_close(together[k], own, rtol=1e-3, atol=1e-4 * own.abs().max().item())
        own.square().mean().backward()
        torch.optim.SGD(member.parameters(), lr=0.01).step()
        state = pair[k].state_dict()
        for name, tensor in member.state_dict().items():
            torch.testing.assert_close(state[name], tensor, rtol=1e-3, atol=1e-5 * tensor.abs().max().item(), msg=name)


def test_dropout_zeroes_half_of_the_last_two_inputs() -> None:
    network = networks.build("alexnet", activation="tanh", **SMALLEST)
    seen: list[Tensor] = []
    for layer in (network.linear7, network.linear8):
        layer.register_forward_hook(lambda _, given, y: seen.append(given[0]))
    batch = images()
    with torch.inference_mode():
        network.train()(batch)
        dropped, _ = seen
        seen.clear()
        network.eval()(batch)
    kept = dropped != 0
    assert abs(kept.double().mean() - 0.5) < 5 * 0.5 / kept.numel() ** 0.5
    torch.testing.assert_close(dropped[kept], 2 * seen[0][kept])
    assert (seen[1] != 0).all()
