"""Fused kernels compute what plain operations do: on a GPU, or on the CPU through Triton's interpreter."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import hullo
from hullo.population import SGD, Adam, AdamW, AugmentedImages, Optimizer, Population, RMSprop, kernels

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def _exact_convolutions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    def choose(served: bool) -> None:
        monkeypatch.setattr(kernels, "support", lambda x: served and x.dtype != torch.float64)

    return choose


class Pooled(nn.Module):
    """Convolution, activation, pool and dropout, twice; then features with channels last."""

    def __init__(self, act: Callable[[int], nn.Module], rate: float = 0.25) -> None:
        super().__init__()
        self.conv1, self.act1 = nn.Conv2d(3, 4, 3, padding=1), act(4)
        self.conv2, self.act2 = nn.Conv2d(4, 18, 3), act(18)
        self.drop, self.last = nn.Dropout(rate), nn.Dropout(0.5)
        self.linear, self.act3, self.out = nn.Linear(18, 8), act(1), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.drop(nn.functional.max_pool2d(self.act1(self.conv1(x)), 2))
        y = nn.functional.max_pool2d(self.act2(self.conv2(y)), 2)
        return self.out(self.last(self.act3(self.linear(y.permute(0, 2, 3, 1).flatten(1)))))


class Residual(nn.Module):
    """Batch norm, residuals and activations; a block's input goes two ways."""

    def __init__(self, act: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.conv0, self.norm0, self.act0 = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4, 1e-3, 0.01), act(4)
        self.conv1, self.norm1, self.act1 = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), act(4)
        self.conv2, self.norm2, self.act2 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), act(4)
        self.out = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.act0(self.norm0(self.conv0(x)))
        z = self.norm2(self.conv2(self.act1(self.norm1(self.conv1(y)))))
        return self.out(self.act2(z + y).mean((2, 3)))


class Normed(nn.Module):
    def __init__(self, act: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.conv, self.act, self.norm = nn.Conv2d(3, 6, 3, stride=2), act(6), nn.LocalResponseNorm(5)
        self.out = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(nn.functional.max_pool2d(self.norm(self.act(self.conv(x))), 3, 2, ceil_mode=True).mean((2, 3)))


def hulls(channels: int) -> nn.Module:
    return hullo.AffineHull("identity", "relu", "tanh")


ACTIVATIONS: list[Callable[[int], nn.Module]] = [
    hulls,
    lambda channels: hullo.ConvexHull("relu", "tanh"),
    lambda channels: nn.PReLU(),
    lambda channels: nn.ReLU(inplace=True),
    lambda channels: hullo.ConvexHull("identity", "relu", groups=min(2, channels)),
]
OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "sgd": lambda population, **more: SGD(population, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.1, **more),
    "plain": lambda population, **more: SGD(population, lr=[0.1, 0.05, 0.01, 0.2, 0.1], **more),
    "rmsprop": lambda population, **more: RMSprop(
        population, lr=1e-3, eps=1e-3, schedule=lambda updates: 1 / (1 + updates), **more
    ),
    "adam": lambda population, **more: Adam(population, lr=1e-2, eps=1e-2, weight_decay=0.1, max_norm=0.5, **more),
    "adamw": lambda population, **more: AdamW(population, lr=1e-2, eps=1e-2, max_norm=[1, 2, 0.1, 3, 0.2], **more),
}


def hull() -> nn.Module:
    return hullo.AffineHull("identity", "relu", "tanh")


def members(kind: Callable[..., nn.Module]) -> list[nn.Module]:
    made = []
    for seed, act in enumerate(ACTIVATIONS):
        torch.manual_seed(seed)
        made.append(kind(act))
    return made


def batches(count: int = 2) -> list[AugmentedImages]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (9, 3, 8, 8), generator=generator, dtype=torch.uint8).to(DEVICE)
    shape = count, len(ACTIVATIONS), 2
    index, shifts = torch.randint(9, shape, generator=generator), torch.randint(-1, 2, (*shape, 3), generator=generator)
    shifts[..., 0] = shifts[..., 0].clamp_min(0)
    return [AugmentedImages(images, i.to(DEVICE), m.to(DEVICE)) for i, m in zip(index, shifts, strict=True)]


def train(population: Population, optimizer: Optimizer) -> Tensor:
    losses = []
    for batch in batches():
        optimizer.zero_grad()
        loss = population(batch).square().flatten(1).mean(1)
        loss.sum().backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


@pytest.mark.parametrize(("kind", "name"), [(Pooled, "adam"), (Residual, "sgd"), (Normed, "adam")])
def test_fused_steps_are_the_plain_ones(kind: type[nn.Module], name: str, fused: Callable[[bool], None]) -> None:
    networks = members(kind)
    actual = []
    for served in (False, True):
        fused(served)
        population = Population(copy.deepcopy(networks)).to(DEVICE)
        optimizer = OPTIMIZERS[name](population)
        losses = train(population, optimizer)
        (program,) = population._programs.values()
        assert bool(program.fusions) == (served and kind is not Normed)
        population.eval()
        actual.append((losses, population(batches()[0]), dict(population.state_dict())))
    (plain_losses, plain_outputs, plain), (losses, outputs, state) = actual
    torch.testing.assert_close(losses, plain_losses, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(outputs, plain_outputs, rtol=1e-3, atol=1e-3)
    for key, tensor in plain.items():
        if "conv" in key and "bias" in key and kind is Residual:
            continue  # the plain form has rounding for a gradient there, the fused one zero
        torch.testing.assert_close(state[key], tensor, rtol=1e-3, atol=2e-4, msg=key)


def test_an_activation_that_overflows_leaves_other_members_alone(fused: Callable[[bool], None]) -> None:
    fused(True)
    networks = [nn.Sequential(hullo.ConicHull("relu", "relu3")), nn.Sequential(nn.ReLU())]
    y = Population(networks).to(DEVICE)(torch.full((3, 4), 1e20, device=DEVICE), in_dims=None)
    assert bool((y[1] == 1e20).all())
    assert bool(y[0].isinf().all())


@pytest.mark.parametrize("moves", [True, False])
def test_parameters_that_left_the_optimizer_are_not_forgotten(moves: bool, fused: Callable[[bool], None]) -> None:
    fused(True)
    population = Population([nn.Linear(3, 2) for _ in range(2)]).to(DEVICE)
    optimizer = SGD(population, lr=0.1)
    if moves:
        population._apply(torch.clone)  # as to another device and back
    else:
        SGD(population, lr=0.1)
    population(torch.randn(2, 4, 3, device=DEVICE)).sum().backward()
    with pytest.raises(RuntimeError, match="elsewhere"):
        optimizer.step()


@pytest.mark.parametrize("shape", [(65, 3), (4, 5)])
def test_a_first_layer_that_no_program_holds_reads_images(
    shape: tuple[int, int], fused: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    from hullo.population.kernels import input_conv

    fused(True)
    monkeypatch.setattr(input_conv, "convolve", None)
    networks = [nn.Sequential(nn.Conv2d(3, *shape), nn.ReLU()) for _ in ACTIVATIONS]
    batch = batches()[0]
    found, images = Population(networks).to(DEVICE)(batch), batch.tensor()
    for k, network in enumerate(networks):
        torch.testing.assert_close(found[k], network.to(DEVICE)(images[k]), rtol=1e-4, atol=1e-5)


def test_members_in_half_precision_stay_in_it(fused: Callable[[bool], None]) -> None:
    results = []
    networks = [nn.Sequential(nn.Linear(3, 8), act, nn.Linear(8, 2)).half() for act in (hull(), nn.PReLU())]
    x = torch.randn(2, 5, 3).half().to(DEVICE)
    for served in (False, True):
        fused(served)
        population = Population(copy.deepcopy(networks)).to(DEVICE)
        optimizer = SGD(population, lr=0.1, momentum=0.9)
        for _ in range(3):
            optimizer.zero_grad()
            population(x).square().sum().backward()
            optimizer.step()
        assert population.stacked.get_parameter("0.weight").dtype == torch.float16
        results.append(population(x).detach())
    torch.testing.assert_close(*results, rtol=0.01, atol=0.01)


def test_networks_without_activations_are_computed_too(fused: Callable[[bool], None]) -> None:
    fused(True)
    layers = [nn.Linear(3, 2) for _ in range(2)]
    x = torch.randn(2, 4, 3, device=DEVICE)
    actual = Population(layers).to(DEVICE)(x)
    torch.testing.assert_close(actual.cpu(), torch.stack([layer(x[k].cpu()) for k, layer in enumerate(layers)]))


def test_copies_in_bfloat16_follow_the_parameters(fused: Callable[[bool], None]) -> None:
    fused(True)
    population = Population(members(Pooled)).to(DEVICE)
    optimizer = SGD(population, lr=0.1, copies=torch.bfloat16)
    names = {name for name, _ in population.named_parameters()} - {"activations.raw", "activations.slopes"}
    assert {f"stacked.{name}" for name in population.copies} == names
    before = {name: copied.detach().clone() for name, copied in population.copies.items()}
    for leaf in optimizer.leaves.values():
        leaf.grad = torch.ones_like(leaf)
    optimizer.step()
    for name, leaf in population.copies.items():
        value = optimizer.parameters[f"stacked.{name}"].detach()
        assert not leaf.equal(before[name])
        # the interpreter cuts off instead of rounding
        assert bool(((leaf.float() - value).abs() <= value.abs() * 2.0**-7).all())
    state = {name: torch.zeros_like(tensor) for name, tensor in population.state_dict().items()}
    fixed = {f"activations.{name}": getattr(population.activations, name) for name in ("codes", "digests", "fixed")}
    population.load_state_dict(state | fixed)
    assert not any(copied.any() for copied in population.copies.values())
    ones = {f"inner.{name}": torch.ones_like(t) for name, t in population.state_dict().items()}
    nn.ModuleDict({"inner": population}).load_state_dict(ones | {f"inner.{name}": fixed[name] for name in fixed})
    assert all(bool((copied == 1).all()) for copied in population.copies.values())
    assert not copy.deepcopy(population).copies  # nobody would update them


def test_kept_members_have_their_state_and_copies(fused: Callable[[bool], None]) -> None:
    fused(True)
    networks, kept = (
        [nn.Sequential(nn.Linear(3, 4), act(), nn.Linear(4, 2)) for act in (nn.PReLU, nn.Tanh, hull)],
        [2, 0],
    )
    x, results = torch.randn(4, 5, 3, device=DEVICE), []
    for dropped in (False, True):
        population = Population(copy.deepcopy(networks)).to(DEVICE)
        optimizer = Adam(population, lr=[0.1, 0.2, 0.3], coefficient_lr_scale=2.0)
        for step, batch in enumerate(x):
            if dropped and step == 2:
                population.keep(kept)
            optimizer.zero_grad()
            population(batch, in_dims=None).square().sum().backward()
            optimizer.step()
        results.append([population[k].state_dict() for k in (range(2) if dropped else kept)])
    for whole, part in zip(*results, strict=True):
        for name, tensor in whole.items():
            torch.testing.assert_close(part[name], tensor, rtol=1e-5, atol=1e-6)
    optimizer = SGD(population, lr=0.1, copies=torch.bfloat16)
    population.keep([1])
    for name, copied in population.copies.items():
        torch.testing.assert_close(copied, optimizer.parameters[f"stacked.{name}"].bfloat16())


@pytest.mark.parametrize("served", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_parameters_with_gradients_in_some_steps_are_updated_as_by_pytorch(
    name: str, served: bool, fused: Callable[[bool], None]
) -> None:
    fused(served)
    kind, settings = {
        "sgd": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
        "plain": (torch.optim.SGD, {"lr": 0.05}),
        "rmsprop": (torch.optim.RMSprop, {"lr": 1e-3, "eps": 1e-3}),
        "adam": (torch.optim.Adam, {"lr": 1e-2, "eps": 1e-2, "weight_decay": 0.1}),
        "adamw": (torch.optim.AdamW, {"lr": 1e-2, "eps": 1e-2, "betas": (0.0, 0.9)}),
    }[name]
    networks = [nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)) for _ in range(2)]
    population = Population(networks).to(DEVICE)
    own = {"sgd": SGD, "plain": SGD, "rmsprop": RMSprop, "adam": Adam, "adamw": AdamW}[name](population, **settings)
    alone = [kind(network.parameters(), **settings) for network in networks]
    late, later = "stacked.0.weight", "stacked.1.bias"
    for step in range(6):
        used = own.parameters.keys() - ({late} if step < 2 else {later} if step < 4 else set())
        for key, parameter in own.parameters.items():
            parameter.grad = torch.randn_like(parameter) if key in used else None
            for k, network in enumerate(networks):
                gradient = None if parameter.grad is None else parameter.grad[k].cpu()
                network.get_parameter(key.removeprefix("stacked.")).grad = gradient
        for optimizer in (own, *alone):
            optimizer.step()
    for k, network in enumerate(networks):
        torch.testing.assert_close(population[k].cpu().state_dict(), network.state_dict(), rtol=1e-5, atol=1e-5)


def narrow() -> nn.Module:
    layers = [nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 32, 3, stride=2)]
    return nn.Sequential(*(part for conv in layers for part in (conv, nn.BatchNorm2d(conv.out_channels), nn.Tanh())))


def test_statistics_that_convolutions_compute_in_16_bits_are_near_those_of_float32(
    fused: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    from hullo.population.kernels import channel_stats

    fused(True)
    launched, launch = [], channel_stats.launch
    monkeypatch.setattr(channel_stats, "launch", lambda k, *a, **o: (launched.append(k.__name__), launch(k, *a, **o)))
    networks, x = [narrow() for _ in range(2)], torch.rand(2, 3, 3, 8, 8)
    population = Population(copy.deepcopy(networks)).to(DEVICE)
    with torch.autocast(DEVICE, torch.bfloat16 if DEVICE == "cuda" else torch.float16):
        y = population(x.to(DEVICE))
    y.float().mean((3, 4)).square().sum().backward()
    assert launched.count("_merge_statistics") == 3
    assert "partial_statistics" not in launched
    for k, network in enumerate(networks):
        expected = network(x[k])
        expected.mean((2, 3)).square().sum().backward()
        torch.testing.assert_close(y[k].float().cpu(), expected, rtol=0.1, atol=0.1)
        torch.testing.assert_close(
            dict(population[k].cpu().named_buffers()), dict(network.named_buffers()), rtol=0.02, atol=1e-3
        )
        for name, parameter in network.named_parameters():
            if parameter.grad.norm() > 1e-3:  # that of a bias before a norm is zero
                found = population.stacked.get_parameter(name).grad[k].cpu()
                assert (found - parameter.grad).norm() <= 0.1 * parameter.grad.norm(), name


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [Pooled, Residual, Normed])
def test_a_gpu_in_bfloat16_is_near_float32(kind: type[nn.Module]) -> None:
    networks = members(kind)
    losses = []
    for enabled in (False, True):
        population = Population(copy.deepcopy(networks)).to(DEVICE)
        optimizer = SGD(population, lr=0.01, copies=torch.bfloat16 if enabled else None)
        with torch.autocast(DEVICE, torch.bfloat16, enabled=enabled):
            losses.append(train(population, optimizer))
    torch.testing.assert_close(losses[0], losses[1].float(), rtol=0.1, atol=0.1)
