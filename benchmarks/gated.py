"""Measure a gated hull beside SwiGLU: PyTorch's own, torch.compile's and Liger's, where liger_kernel is installed.

    python benchmarks/gated.py

Both passes of gate, up -> act(gate) * up in bfloat16, on the shapes of Llama's MLPs: 4 sequences of 1,024 to 8,192
tokens and 11,008 or 14,336 hidden features. Contenders take turns; medians of rounds, between CUDA events. Prints
milliseconds, the multiple of Liger's time, and the most memory that is allocated in both passes, inputs apart.
Needs a GPU.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

import hullo
from hullo.lab.spec.environment import environment

SHAPES = ((4096, 11008), (16384, 11008), (4096, 14336), (16384, 14336), (32768, 14336))
ROUNDS, CALLS = 15, 10
Gate = Callable[[Tensor, Tensor], Tensor]


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def contenders() -> dict[str, Gate]:
    """Return the functions to compare, by name."""
    three = hullo.AffineHull("identity", "relu", "tanh")
    silu = hullo.AffineHull("identity", "relu", "silu", start="silu", strict=False)
    found: dict[str, Gate] = {
        "SwiGLU, PyTorch": swiglu,
        "SwiGLU, torch.compile": torch.compile(swiglu, dynamic=False),
        "hull {identity, relu, silu}": hullo.GatedHull(silu).cuda(),
        "hull {identity, relu, tanh}": hullo.GatedHull(three).cuda(),
    }
    try:
        from liger_kernel.ops.swiglu import LigerSiLUMulFunction
    except ImportError as error:
        print(f"without Liger: {error}")
        return found
    return {"SwiGLU, Liger": LigerSiLUMulFunction.apply} | found


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


def main() -> None:
    print(environment(torch.cuda.get_device_name()))
    for shape in SHAPES:
        functions, inputs, memory = contenders(), {}, {}
        for name, function in functions.items():  # inputs of their own: Liger's backward pass overwrites them
            gate, up, slope = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3))
            inputs[name] = gate.requires_grad_(), up.requires_grad_(), slope
            measure(function, *inputs[name])
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            both_passes(function, *inputs[name])
            memory[name] = torch.cuda.max_memory_allocated() - before
        rounds = [
            {name: measure(function, *inputs[name]) for name, function in functions.items()} for _ in range(ROUNDS)
        ]
        times = {name: statistics.median(times[name] for times in rounds) for name in functions}
        for name, time in times.items():
            over = f"{time / times['SwiGLU, Liger']:.3f}" if "SwiGLU, Liger" in times else ""
            mib = memory[name] / 2**20
            print(f"{'x'.join(map(str, shape)):>12}  {name:28} {time:8.4f} ms {over:>6} {mib:8.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
