"""Measure a gated hull beside SwiGLU: PyTorch's own, torch.compile's and Liger's, where liger_kernel is installed.

    python benchmarks/gated.py [--csv rows.csv]

Time: both passes of gate, up -> act(gate) * up in bfloat16, with 4 sequences of 1,024 to 8,192 tokens and the 11,008 or
14,336 hidden features of Llama's MLPs; medians of rounds of ten calls, in turns. Memory: the most that is allocated in
both passes of the whole MLP (hidden size 4,096), as Liger's own benchmark measures it, without parameters and their
gradients. Without a GPU, one small shape, as a test.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from harness import Harness, Step, ratios
from torch import Tensor, nn

import hullo

SHAPES = ((4096, 11008), (32768, 11008), (4096, 14336), (32768, 14336))
HIDDEN = 4096
Gate = Callable[[Tensor, Tensor], Tensor]


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def contenders(harness: Harness) -> dict[str, Gate]:
    """Return the functions to compare, by name; Liger's first, where it is installed."""
    silu = hullo.AffineHull("identity", "tanh", "silu", init="silu", strict=False)
    functions: dict[str, Gate] = {
        "SwiGLU, PyTorch": swiglu,
        "hull {silu}": hullo.GatedHull(hullo.LinearHull("silu")).to(harness.device),
        "hull {identity, tanh, silu}": hullo.GatedHull(silu).to(harness.device),
        "hull {identity, relu, tanh}": hullo.GatedHull(hullo.AffineHull("identity", "relu", "tanh")).to(harness.device),
    }
    if harness.tiny:
        return functions
    functions["SwiGLU, torch.compile"] = torch.compile(swiglu, dynamic=False)
    with harness.report_failure("Liger"):
        from liger_kernel.ops.swiglu import LigerSiLUMulFunction

        return {"SwiGLU, Liger": LigerSiLUMulFunction.apply} | functions
    return functions


def both_passes(function: Gate, shape: tuple[int, int], device: torch.device) -> Step:
    """Return a step with inputs of its own: Liger's backward pass overwrites them."""
    gate, up, slope = (torch.randn(shape, device=device, dtype=torch.bfloat16) for _ in range(3))
    gate.requires_grad_(), up.requires_grad_()

    def step() -> None:
        function(gate, up).backward(slope)
        gate.grad = up.grad = None

    return step


class MLP(nn.Module):
    """The MLP of Llama, with a function of the two projections."""

    def __init__(self, features: int, function: Gate) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(HIDDEN, features, bias=False) for _ in range(2))
        self.down = nn.Linear(features, HIDDEN, bias=False)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.function(self.gate(x), self.up(x)))


def peak(harness: Harness, function: Gate, tokens: int, features: int) -> float:
    """Return the peak memory of both passes of the MLP in MiB, beyond its parameters, their gradients and the input."""
    mlp = MLP(features, function).to(harness.device, torch.bfloat16)
    x = torch.randn(tokens, HIDDEN, device=harness.device, dtype=torch.bfloat16, requires_grad=True)

    def step() -> None:
        mlp(x).sum().backward()
        x.grad = None

    step()  # allocates the gradients of the parameters
    return harness.peak_mib(step)


def main(arguments: list[str] | None = None) -> None:
    harness = Harness(__doc__)
    harness.start(arguments)
    for shape in ((8, 32),) if harness.tiny else SHAPES:
        functions = contenders(harness)
        steps = {name: both_passes(function, shape, harness.device) for name, function in functions.items()}
        times = harness.compare(steps, calls=10)
        steps.clear()
        for name, ratio in ratios(times, next(iter(times))).items():
            memory = float("nan") if harness.tiny else peak(harness, functions[name], *shape)
            ms = 1e3 * times[name].median
            harness.add(shape="x".join(map(str, shape)), function=name, median_ms=ms, ratio=ratio, mlp_peak_mib=memory)


if __name__ == "__main__":
    main()
