"""Measure a gated hull beside SwiGLU: PyTorch's own, torch.compile's and Liger's, where liger_kernel is installed.

    python benchmarks/gated.py

Time: both passes of gate, up -> act(gate) * up in bfloat16, with 4 sequences of 1,024 to 8,192 tokens and the 11,008 or
14,336 hidden features of Llama's MLPs. Contenders take turns; medians of rounds, between CUDA events. Memory: the most
that is allocated in both passes of the whole MLP (hidden size 4,096), as Liger's own benchmark measures it, without
parameters and their gradients. Needs a GPU.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hullo
from hullo.lab.spec.environment import environment

SHAPES = ((4096, 11008), (32768, 11008), (4096, 14336), (32768, 14336))
HIDDEN = 4096
ROUNDS, CALLS = 9, 10
Gate = Callable[[Tensor, Tensor], Tensor]


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def contenders() -> dict[str, Gate]:
    """Return the functions to compare, by name."""
    silu_only = hullo.LinearHull("silu")
    silu = hullo.AffineHull("identity", "tanh", "silu", init="silu", strict=False)
    three = hullo.AffineHull("identity", "relu", "tanh")
    functions: dict[str, Gate] = {
        "SwiGLU, PyTorch": swiglu,
        "SwiGLU, torch.compile": torch.compile(swiglu, dynamic=False),
        "hull {silu}": hullo.GatedHull(silu_only).cuda(),
        "hull {identity, tanh, silu}": hullo.GatedHull(silu).cuda(),
        "hull {identity, relu, tanh}": hullo.GatedHull(three).cuda(),
    }
    try:
        from liger_kernel.ops.swiglu import LigerSiLUMulFunction
    except ImportError as error:
        print(f"without Liger: {error}")
        return functions
    return {"SwiGLU, Liger": LigerSiLUMulFunction.apply} | functions


def both_passes(function: Gate, gate: Tensor, up: Tensor, slope: Tensor) -> None:
    function(gate, up).backward(slope)
    gate.grad = up.grad = None


def measure(function: Gate, *tensors: Tensor) -> float:
    """Return the milliseconds of both passes."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(CALLS):
        both_passes(function, *tensors)
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / CALLS


class MLP(nn.Module):
    """The MLP of Llama, with a function of the two projections."""

    def __init__(self, features: int, function: Gate) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(HIDDEN, features, bias=False) for _ in range(2))
        self.down = nn.Linear(features, HIDDEN, bias=False)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.function(self.gate(x), self.up(x)))


def peak(function: Gate, tokens: int, features: int) -> float:
    """Return the peak memory of both passes of the MLP in MiB, beyond its parameters, their gradients and the input."""
    mlp = MLP(features, function).cuda().bfloat16()
    x = torch.randn(tokens, HIDDEN, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    for _ in range(2):  # gradients of the parameters are allocated by the first
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        mlp(x).sum().backward()
        x.grad = None
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def main() -> None:
    print(environment(torch.cuda.get_device_name()))
    for shape in SHAPES:
        functions = contenders()
        inputs = {}
        for name, function in functions.items():  # inputs of their own: Liger's backward pass overwrites them
            gate, up, slope = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3))
            inputs[name] = gate.requires_grad_(), up.requires_grad_(), slope
            measure(function, *inputs[name])
        rounds = [
            {name: measure(function, *inputs[name]) for name, function in functions.items()} for _ in range(ROUNDS)
        ]
        inputs.clear()
        times = {name: statistics.median(times[name] for times in rounds) for name in functions}
        for name, time in times.items():
            over = f"{time / times['SwiGLU, Liger']:.3f}" if "SwiGLU, Liger" in times else ""
            mib = peak(functions[name], *shape)
            print(f"{'x'.join(map(str, shape)):>12}  {name:28} {time:8.4f} ms {over:>6} {mib:8.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
