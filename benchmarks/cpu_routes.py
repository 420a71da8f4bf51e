"""Compare hulls on a CPU, which hullo computes in blocks, with plain PyTorch, torch.compile and fixed activations.

    python benchmarks/cpu_routes.py > benchmarks/results/cpu_routes.txt

All run in turn in one process; a cell is the shortest time of all rounds over the shortest of nn.GELU, for the forward
pass without gradients / for forward and backward. The rows mlp and cnn are whole training steps of small
networks, as multiples of the step with nn.GELU.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable

import torch
import torch._dynamo
import torch.nn.functional as F
from torch import Tensor, nn

import hullo
from hullo.lab.bench.clocks import Clock
from hullo.lab.spec.environment import environment

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


def compiled_by_torch(bases: str) -> nn.Module:
    module = hull(bases)
    module.compile()
    return module


ROUTES: dict[str, Callable[[str], nn.Module]] = {
    "ReLU": lambda bases: nn.ReLU(),
    "GELU": lambda bases: nn.GELU(),
    "Tanh": lambda bases: nn.Tanh(),
    "hullo": hull,
    "plain": Plain,
    "torch.compile": compiled_by_torch,
}


def run_pass(module: nn.Module, x: Tensor, gradient: Tensor, backward: bool) -> None:
    if backward:
        module(x).backward(gradient)
        x.grad = None
        module.zero_grad()
    else:
        with torch.no_grad():
            module(x)


def timed(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def ratios(calls: dict[str, Callable[[], None]], rounds: int, repeats: int) -> dict[str, float]:
    """Return the shortest time of each call over that of GELU; other work on the machine makes all but these longer."""
    best = dict.fromkeys(calls, float("inf"))
    for index in range(rounds + 2):
        for name, call in calls.items():
            seconds = min(timed(call) for _ in range(repeats))
            best[name] = min(best[name], seconds) if index > 1 else best[name]
    return {name: seconds / best["GELU"] for name, seconds in best.items()}


def mlp(act: Callable[[], nn.Module]) -> tuple[nn.Module, Tensor]:
    layers = [nn.Linear(784, 256), act(), nn.Linear(256, 256), act(), nn.Linear(256, 10)]
    return nn.Sequential(*layers), torch.randn(128, 784)


def cnn(act: Callable[[], nn.Module]) -> tuple[nn.Module, Tensor]:
    layers = [nn.Conv2d(3, 32, 3, padding=1), act(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), act()]
    return nn.Sequential(*layers, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4096, 10)), torch.randn(32, 3, 32, 32)


def step(network: nn.Module, x: Tensor, labels: Tensor, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    F.cross_entropy(network(x), labels).backward()
    optimizer.step()


def training(make: Callable[..., tuple[nn.Module, Tensor]], bases: str, rounds: int) -> dict[str, float]:
    calls = {}
    for route, build in ROUTES.items():
        network, x = make(functools.partial(build, bases))
        labels = torch.randint(10, (len(x),))
        optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
        calls[route] = functools.partial(step, network, x, labels, optimizer)
    return ratios(calls, rounds, 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--sizes", default="14,16,18,20,22,24")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    torch._dynamo.config.recompile_limit = 64
    print(environment(Clock(torch.device("cpu")).device_name), f"{given.threads} thread")
    print(f"{'':44}" + "".join(f"{name:>16}" for name in ROUTES))
    for bases in SETS:
        modules = {name: build(bases) for name, build in ROUTES.items()}
        for power in map(int, given.sizes.split(",")):
            x, gradient = torch.randn(2**power, requires_grad=True), torch.randn(2**power)
            repeats = max(1, min(20, 2 ** (20 - power)))
            both = [
                ratios(
                    {
                        name: functools.partial(run_pass, module, x, gradient, backward)
                        for name, module in modules.items()
                    },
                    given.rounds,
                    repeats,
                )
                for backward in (False, True)
            ]
            cells = [f"{both[0][name]:.2f} / {both[1][name]:.2f}" for name in ROUTES]
            print(f"{bases:36}{f'2^{power}':>8}" + "".join(f"{cell:>16}" for cell in cells), flush=True)
        for make in (mlp, cnn):
            row = training(make, bases, given.rounds)
            cells = [f"{row[name]:.2f}" for name in ROUTES]
            print(f"{bases:36}{make.__name__:>8}" + "".join(f"{cell:>16}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
