"""AlexNet is Caffe's: counted, measured layer by layer, and compared with the same network in plain PyTorch."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from hullo.lab import networks
from hullo.lab.networks import Network, stack
from hullo.lab.networks.alexnet import _pool
from hullo.lab.recipes import SGD

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
def full() -> Network:
    return networks.build("alexnet", activation="relu", image_size=227, num_classes=1000)


@pytest.fixture
def pair() -> Network:
    rows = ["relu", "affine(identity,relu,tanh)"]
    return networks.build("alexnet", activation=rows, members=2, seeds=[5, 6], **SMALLEST)


def pictures(members: int = 1, side: int = 39, dtype: torch.dtype = torch.float32) -> Tensor:
    """Bright enough for local response normalisation to matter."""
    return 600 * torch.randn(2, 3 * members, side, side, dtype=dtype)


class TestSizes:
    def test_parameters_are_as_many_as_in_caffe(self, full: Network) -> None:
        assert sum(p.numel() for p in full.parameters()) == 60_965_224
        assert full.parameter_counts() == [60_965_224]

    def test_a_hull_adds_its_coefficients(self, pair: Network) -> None:
        fixed, learned = pair.parameter_counts()
        assert learned - fixed == 7 * 3

    def test_every_layer_has_the_shape_that_it_has_in_caffe(self, full: Network) -> None:
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
            "linear6": (1, 9216, 1, 4096),
            "linear7": (1, 4096, 1, 4096),
            "linear8": (1, 4096, 1, 1000),
        }

    @pytest.mark.parametrize("side", range(2, 60))
    def test_pools_are_as_large_as_caffes(self, side: int) -> None:
        pooled = _pool(torch.zeros(1, 1, side, side)).shape[-1]
        assert pooled == math.ceil((side - 3) / 2) + 1 == side // 2

    def test_the_smallest_pictures_leave_a_pixel_at_the_end(self) -> None:
        with pytest.raises(ValueError, match=r"image_size=38: pictures for AlexNet have at least 39 pixels"):
            networks.build("alexnet", activation="relu", image_size=38)
        network = networks.build("alexnet", activation="relu", in_channels=1, image_size=39, num_classes=3)
        assert network.linear6.weight.shape == (1, 256, 4096)
        assert network(torch.zeros(1, 1, 39, 39)).shape == (1, 1, 3)


class TestStart:
    def test_weights_are_normal_with_caffes_deviations_and_biases_are_caffes(self, full: Network) -> None:
        for name, (deviation, bias) in STARTS.items():
            layer = full.get_submodule(name)
            unit = layer.weight.detach().flatten() / deviation
            count = unit.numel()
            assert abs(unit.mean()) < 5 / count**0.5
            assert abs(unit.square().mean() - 1) < 5 * (2 / count) ** 0.5
            beyond = math.erfc(2 / 2**0.5)  # the share of a normal distribution beyond two deviations
            assert abs((unit.abs() > 2).double().mean() - beyond) < 5 * (beyond / count) ** 0.5
            assert (layer.bias == bias).all()

    def test_a_member_starts_alike_alone_and_in_a_population(self, pair: Network) -> None:
        alone = networks.build("alexnet", activation="affine(identity,relu,tanh)", seeds=[6], **SMALLEST).state_dict()
        taken = pair.member(1).state_dict()
        assert alone.keys() == taken.keys()
        assert all(torch.equal(alone[key], taken[key]) for key in alone)


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
    """A parameter of ours, or its gradient, as PyTorch's own layers hold it."""
    if name == "linear6.weight":
        tensor = tensor.view(side, side, 256, 4096).permute(2, 0, 1, 3).reshape(1, -1, 4096)
    if name.startswith("linear"):
        tensor = tensor[0].T if name.endswith("weight") else tensor[0, 0]
    return tensor


def test_the_same_weights_give_the_same_logits_and_gradients_in_plain_pytorch() -> None:
    ours = networks.build("alexnet", activation="relu", **SMALL).double().eval()
    plain = PlainAlexNet(side=2, classes=10).double().eval()
    with torch.no_grad():
        for (name, parameter), other in zip(ours.named_parameters(), plain.parameters(), strict=True):
            other.copy_(in_plain_form(name, parameter, side=2))
    shown = pictures(side=71, dtype=torch.float64)
    normalised = ours.conv1(shown).relu()
    assert (plain[2](normalised) - normalised).norm() > 0.1 * normalised.norm()  # it matters here
    logits, expected = ours(shown)[0], plain(shown)
    torch.testing.assert_close(logits, expected, rtol=1e-10, atol=1e-10 * expected.abs().max().item())
    for outputs in (logits, expected):
        outputs.square().mean().backward()
    for (name, parameter), other in zip(ours.named_parameters(), plain.parameters(), strict=True):
        found = in_plain_form(name, parameter.grad, side=2)
        torch.testing.assert_close(found, other.grad, rtol=1e-9, atol=1e-10 * other.grad.abs().max().item())


class TestPopulation:
    @pytest.mark.parametrize("training", [True, False])
    def test_a_member_taken_out_computes_and_learns_the_same(self, pair: Network, training: bool) -> None:
        pair.train(training)
        alone = [pair.member(k) for k in range(2)]
        shown = pictures(members=2)
        together = pair(shown)
        together.square().mean((1, 2)).sum().backward()
        SGD(pair).step()
        for k, network in enumerate(alone):
            own = network(shown[:, 3 * k : 3 * k + 3])
            torch.testing.assert_close(together[k : k + 1], own, rtol=1e-4, atol=1e-5 * own.abs().max().item())
            own.square().mean().backward()
            SGD(network).step()
            taken = pair.member(k).state_dict()
            for key, tensor in network.state_dict().items():
                torch.testing.assert_close(taken[key], tensor, rtol=1e-3, atol=1e-5 * tensor.abs().max().item())

    def test_stacking_members_gives_the_population_back_to_the_bit(self, pair: Network) -> None:
        again = stack([pair.member(k) for k in range(2)]).state_dict()
        assert all(torch.equal(again[key], tensor) for key, tensor in pair.state_dict().items())

    def test_pictures_shown_to_all_are_as_good_as_copies_of_them(self, pair: Network) -> None:
        shown = pictures()
        with torch.inference_mode():
            shared, copied = (pair.eval()(given) for given in (shown, shown.repeat(1, 2, 1, 1)))
        torch.testing.assert_close(shared, copied, rtol=1e-4, atol=1e-5 * copied.abs().max().item())

    def test_a_member_that_diverges_leaves_the_other_unchanged_to_the_bit(self, pair: Network) -> None:
        shown = pictures(members=2)
        with torch.inference_mode():
            healthy = pair.eval()(shown)[0]
            pair.conv1.weight[96:] = math.nan  # member 1's: its channels are beside those of member 0
            beside_it = pair(shown)
        assert torch.equal(beside_it[0], healthy)
        assert beside_it[1].isnan().all()


def test_dropout_zeroes_half_of_what_the_last_two_layers_see_and_doubles_the_rest() -> None:
    network = networks.build("alexnet", activation="tanh", **SMALLEST)
    seen: list[Tensor] = []
    for layer in (network.linear7, network.linear8):
        layer.register_forward_hook(lambda _, given, y: seen.append(given[0]))
    shown = pictures()
    with torch.inference_mode():
        network.train()(shown)
        dropped, _ = seen
        seen.clear()
        network.eval()(shown)
    kept = dropped != 0
    assert abs(kept.double().mean() - 0.5) < 5 * 0.5 / kept.numel() ** 0.5
    torch.testing.assert_close(dropped[kept], 2 * seen[0][kept])
    assert (seen[1] != 0).all()
