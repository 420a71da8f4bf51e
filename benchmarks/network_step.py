"""Measure what hulls cost in real networks: a training step beside the same step with other activations, in turns.

    python benchmarks/network_step.py resnet56 resnet50 alexnet [--csv rows.csv]

    resnet56   batch 128 of 32 x 32 images, bfloat16 autocast, channels last, SGD with momentum, in a CUDA graph
    resnet50   timm's, as it is and with its activations replaced, batch 256 of 224 x 224 images, eager
    gpt2       GPT-2 small, 12 layers of 768, batch 16 of 1,024 tokens, bfloat16 autocast, AdamW, under torch.compile;
               ReLU squared is the first row
    nanogpt    6 layers of 384, batch 64 of 256 tokens, the same in a CUDA graph
    siren      three layers of 256 and omega 30, 256 x 256 pixels, float32, Adam, in a CUDA graph; sin is the first row
    alexnet    a population of one, batch 256 of 227 x 227 images, with three local response normalizations, in a graph

A row has the median time of a step, its ratio to the first row of its network, and the peak memory of a step beyond
what was allocated before. Weights and data are the same for all. Without a GPU, networks take a step of a tiny batch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from harness import Harness, Step, capture_steps, ratios
from torch import Tensor, nn
from work_networks import GPT

import hullo
from hullo.lab import networks
from hullo.lab.networks.resnet56 import ResNet
from hullo.population import SGD, Population

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "prelu": nn.PReLU,
    "affine(identity,relu,tanh)": lambda: hullo.AffineHull("identity", "relu", "tanh"),
    "convex(identity,relu,tanh)": lambda: hullo.ConvexHull("identity", "relu", "tanh"),
}


class PlainNorm(nn.LocalResponseNorm):
    """PyTorch's module under another class: a population computes it operation by operation."""


NORMS: dict[str, Callable[[], nn.Module]] = {
    "none": nn.Identity,
    "hullo": lambda: nn.LocalResponseNorm(5, alpha=1e-4, beta=0.75, k=1.0),
    "torch": lambda: PlainNorm(5, alpha=1e-4, beta=0.75, k=1.0),
}


def training_step(harness: Harness, model: nn.Module, batch: int, side: int, classes: int, *, half: bool) -> Step:
    """Return a step of a plain network on fixed images."""
    device = harness.device
    model = model.to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(hullo.parameter_groups(model, lr=1e-4), momentum=0.9, foreach=True)
    x = torch.randn(batch, 3, side, side, device=device).to(memory_format=torch.channels_last)
    labels = torch.randint(classes, (batch,), device=device)
    return plain_step(optimizer, lambda: F.cross_entropy(model(x).float(), labels), device, half=half)


def plain_step(
    optimizer: torch.optim.Optimizer, compute_loss: Callable[[], Tensor], device: torch.device, *, half: bool
) -> Step:
    """Return a step by an optimizer."""

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=half, cache_enabled=False):
            loss = compute_loss()
        loss.backward()
        optimizer.step()

    return step


def resnet56_steps(harness: Harness) -> dict[str, Callable[[], Step]]:
    batch = 2 if harness.tiny else 128
    return {
        name: lambda act=act: training_step(harness, ResNet(lambda _: act()), batch, 32, 10, half=True)
        for name, act in ACTIVATIONS.items()
    }


def resnet50_steps(harness: Harness) -> dict[str, Callable[[], Step]]:
    import timm

    models: dict[str, Callable[[], nn.Module]] = {
        "original": lambda: timm.create_model("resnet50"),
        "swapped": lambda: hullo.replace_activations(timm.create_model("resnet50")),
        "act_layer": lambda: timm.create_model("resnet50", act_layer=lambda **_: ACTIVATIONS[hull]()),
    }
    hull, (batch, side) = "affine(identity,relu,tanh)", (2, 32) if harness.tiny else (256, 224)
    return {
        f"{name}, {'bfloat16' if half else 'float32'}": lambda build=build, half=half: training_step(
            harness, build(), batch, side, 1000, half=half
        )
        for half in (True, False)
        for name, build in models.items()
    }


def alexnet_steps(harness: Harness) -> dict[str, Callable[[], Step]]:
    return {
        f"{activation}, normalization {name}": lambda a=activation, norm=norm: alexnet_step(harness, a, norm())
        for activation in ("relu", "affine(identity,relu,tanh)")
        for name, norm in NORMS.items()
    }


def alexnet_step(harness: Harness, activation: str, norm: nn.Module) -> Step:
    """Return the laboratory's step of AlexNet, with images and copies of weights in bfloat16."""
    batch, side = (2, 39) if harness.tiny else (256, 227)
    network = networks.build("alexnet", activation=activation, image_size=side, num_classes=1000)
    network.norm = norm
    population = Population([network]).to(harness.device)
    optimizer = SGD(population, lr=0.01, momentum=0.9, weight_decay=5e-4, copies=torch.bfloat16)
    x = 60 * torch.randn(batch, 3, side, side, device=harness.device)
    x = x.to(torch.bfloat16, memory_format=torch.channels_last)
    labels = torch.randint(1000, (batch,), device=harness.device)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(harness.device.type, torch.bfloat16):
            logits = population(x, in_dims=None)[0]
        F.cross_entropy(logits.float(), labels).backward()
        optimizer.step()

    return step


class ReLUSquared(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x).square()


class LeakyReLUSquared(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.leaky_relu(x, 0.5).square()


LANGUAGE: dict[str, Callable[[], nn.Module]] = {
    "relu squared": ReLUSquared,
    "linear(identity,relu,relu2) from relu2": lambda: hullo.LinearHull(
        "identity", "relu", "relu2", init="relu2", strict=False
    ),
    "affine(identity,tanh,gelu) from gelu": lambda: hullo.AffineHull(
        "identity", "tanh", "gelu", init="gelu", strict=False
    ),
    "gelu": nn.GELU,
    "leaky relu squared": LeakyReLUSquared,
    "xielu": hullo.presets.xielu,
}


def language_steps(harness: Harness, name: str) -> dict[str, Callable[[], Step]]:
    """Return steps of GPT-2 small, compiled, or of nanoGPT."""
    is_large, device = name == "gpt2", harness.device
    layers, width, length, batch, words = (12, 768, 1024, 16, 50_304) if is_large else (6, 384, 256, 64, 65)
    if harness.tiny:
        layers, width, length, batch, words = 1, 64, 8, 2, 65

    def make(act: Callable[[], nn.Module]) -> Step:
        model = GPT(layers, width, width // 64, length, 0.0 if is_large else 0.2, words, act).to(device)
        groups = hullo.parameter_groups(model, lr=1e-4, weight_decay=0.1)
        tokens = torch.randint(words, (batch, length + 1), device=device)

        def compute_loss() -> Tensor:
            return F.cross_entropy(model(tokens[:, :-1]).float().flatten(0, 1), tokens[:, 1:].flatten())

        if is_large and not harness.tiny:
            compute_loss = torch.compile(compute_loss, dynamic=False)
        optimizer = torch.optim.AdamW(groups, fused=True, capturable=device.type == "cuda")
        return plain_step(optimizer, compute_loss, device, half=True)

    return {name: lambda act=act: make(act) for name, act in LANGUAGE.items()}


class Sin(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(x)


SINES: dict[str, Callable[[], nn.Module]] = {
    "sin": Sin,
    "linear(sin,sin(2))": lambda: hullo.LinearHull("sin", "sin(2)", init="sin", strict=False),
    "linear(sin,sin(0.5),sin(2))": lambda: hullo.LinearHull("sin", "sin(0.5)", "sin(2)", init="sin", strict=False),
    "linear(sin), learned frequency": lambda: hullo.LinearHull("sin", init="sin", inner_scale="hull"),
    "linear(sin,sin(2)) per channel": lambda: hullo.LinearHull(
        "sin", "sin(2)", init="sin", strict=False, groups=256, channel_dim=-1
    ),
}


class Siren(nn.Module):
    def __init__(self, act: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(inputs, 256) for inputs in (2, 256, 256))
        self.acts, self.out = nn.ModuleList(act() for _ in self.layers), nn.Linear(256, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer, act in zip(self.layers, self.acts, strict=True):
            x = act(30 * layer(x))
        return self.out(x)


def siren_steps(harness: Harness) -> dict[str, Callable[[], Step]]:
    pixels, device = (64 if harness.tiny else 256 * 256), harness.device

    def make(act: Callable[[], nn.Module]) -> Step:
        model = Siren(act).to(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True, capturable=device.type == "cuda")
        x, y = torch.rand(pixels, 2, device=device), torch.rand(pixels, 3, device=device)
        return plain_step(optimizer, lambda: F.mse_loss(model(x), y), device, half=False)

    return {name: lambda act=act: make(act) for name, act in SINES.items()}


NETWORKS = {
    "resnet56": resnet56_steps,
    "resnet50": resnet50_steps,
    "alexnet": alexnet_steps,
    "gpt2": lambda harness: language_steps(harness, "gpt2"),
    "nanogpt": lambda harness: language_steps(harness, "nanogpt"),
    "siren": siren_steps,
}
EAGER = ("resnet50", "gpt2")
"""Networks whose step is no CUDA graph."""


def main(arguments: list[str] | None = None) -> None:
    harness = Harness(__doc__, rounds=40)
    harness.parser.add_argument("networks", nargs="*", metavar="NETWORK", help=f"{', '.join(NETWORKS)}; all by default")
    options = harness.start(arguments)
    torch.backends.cudnn.benchmark = True
    for network in options.networks or NETWORKS:
        steps: dict[str, Step] = {}
        owners, memory = [], {}  # a graph replays what its step owns
        for name, make in NETWORKS[network](harness).items():
            with harness.report_failure(f"{network}, {name}"):
                torch.manual_seed(0)
                owners.append(step := make())
                for _ in range(2):
                    step()
                memory[name] = harness.peak_mib(step)
                (steps[name],) = [step] if network in EAGER else capture_steps(harness.device, step)
        times = harness.compare(steps)
        for name, ratio in ratios(times, next(iter(times))).items():
            ms = 1e3 * times[name].median
            harness.add(network=network, activation=name, median_ms=ms, ratio=ratio, peak_mib=memory[name])


if __name__ == "__main__":
    main()
