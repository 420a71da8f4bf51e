"""Compare hulls on a CPU, which hullo computes in blocks, with plain PyTorch, torch.compile and fixed activations.

    python benchmarks/cpu_routes.py [--csv rows.csv]

All run in turn in one process; a row has the time of a route over that of nn.GELU, for the forward pass without
gradients and for forward and backward. The rows mlp and cnn are whole training steps of small networks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch._dynamo
import torch.nn.functional as F
from torch import Tensor, nn

import hullo
from hullo.lab.bench.clocks import Step
from hullo.lab.bench.harness import Harness, ratios

SETS = ("identity,relu,tanh", "identity,tanh,silu", "identity,relu,tanh,gelu,silu,elu")


def hull(bases: str) -> nn.Module:
    return hullo.AffineHull(*bases.split(","), strict=False)


class Plain(nn.Module):
    """Run a hull by plain PyTorch operations."""

    def __init__(self, bases: str) -> None:
        super().__init__()
        self.hull = hull(bases)

    def forward(self, x: Tensor) -> Tensor:
        c = self.hull.coefficients
        return sum((c[i] * base.function(x) for i, base in enumerate(self.hull.bases)), torch.zeros(()))


def compiled(bases: str) -> nn.Module:
    module = hull(bases)
    module.compile()
    return module


ROUTES: dict[str, Callable[[str], nn.Module]] = {
    "ReLU": lambda bases: nn.ReLU(),
    "GELU": lambda bases: nn.GELU(),
    "Tanh": lambda bases: nn.Tanh(),
    "hullo": hull,
    "plain": Plain,
    "torch.compile": compiled,
}


@torch.no_grad()
def forward(module: nn.Module, x: Tensor) -> None:
    module(x)


def both(module: nn.Module, x: Tensor, gradient: Tensor) -> None:
    module(x).backward(gradient)
    x.grad = None
    module.zero_grad()


def mlp(act: Callable[[], nn.Module]) -> tuple[nn.Module, Tensor]:
    layers = [nn.Linear(784, 256), act(), nn.Linear(256, 256), act(), nn.Linear(256, 10)]
    return nn.Sequential(*layers), torch.randn(128, 784)


def cnn(act: Callable[[], nn.Module]) -> tuple[nn.Module, Tensor]:
    layers = [nn.Conv2d(3, 32, 3, padding=1), act(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), act()]
    return nn.Sequential(*layers, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4096, 10)), torch.randn(32, 3, 32, 32)


def training_step(network: nn.Module, x: Tensor) -> Step:
    labels = torch.randint(10, (len(x),))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(network(x), labels).backward()
        optimizer.step()

    return step


def main(arguments: list[str] | None = None) -> None:
    harness = Harness(__doc__)
    harness.parser.add_argument("--threads", type=int, default=1)
    harness.parser.add_argument("--sizes", default="14,16,18,20,22,24", help="powers of two")
    harness.parser.add_argument("--routes", nargs="+", default=list(ROUTES), choices=ROUTES, help="GELU among them")
    options = harness.start([*(arguments or []), "--device", "cpu"])
    torch.set_num_threads(options.threads)
    torch._dynamo.config.recompile_limit = 64
    routes = {name: ROUTES[name] for name in options.routes}
    for bases in SETS:
        modules = {name: build(bases) for name, build in routes.items()}
        for power in map(int, options.sizes.split(",")):
            x, gradient = torch.randn(2**power, requires_grad=True), torch.randn(2**power)
            calls = max(1, min(20, 2 ** (20 - power)))
            forwards = {name: partial(forward, module, x) for name, module in modules.items()}
            boths = {name: partial(both, module, x, gradient) for name, module in modules.items()}
            passes = [ratios(harness.compare(steps, calls=calls), "GELU") for steps in (forwards, boths)]
            for name in routes:
                harness.add(bases=bases, case=f"2^{power}", route=name, forward=passes[0][name], both=passes[1][name])
        for make in (mlp, cnn):
            steps = {name: training_step(*make(partial(build, bases))) for name, build in routes.items()}
            for name, ratio in ratios(harness.compare(steps), "GELU").items():
                harness.add(bases=bases, case=make.__name__, route=name, forward="", both=ratio)


if __name__ == "__main__":
    main()
