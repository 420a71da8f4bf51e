"""Measure what folding saves: inference with a hull before and after `hullo.fold`, interleaved, in one process.

    python benchmarks/fold.py > benchmarks/results/fold_cpu.txt

Prints, for hulls that became a known function and for one that did not: the median time of a forward pass before and
after, their ratio, and what it was folded to. 64 x 64 x 28 x 28 float32; on a GPU where there is one.
"""

from __future__ import annotations

import statistics
import time

import torch
from torch import Tensor, nn

import hullo
from hullo.lab.spec.environment import device_name, environment

HULLS = {
    "a ReLU": {"init": "relu"},
    "a leaky ReLU": {"init": [0.1, 0.9, 0.0]},
    "a tanh": {"init": "tanh"},
    "a leaky ReLU per channel": {
        "init": torch.stack([torch.tensor([k / 64, 1 - k / 64, 0.0]) for k in range(64)]),
        "groups": 64,
    },
    "a mixture": {},
    "a mixture per channel": {"groups": 64},
}


def seconds(module: nn.Module, x: Tensor) -> float:
    start = time.perf_counter()
    module(x)
    if x.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


@torch.inference_mode()
def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.randn(64, 64, 28, 28, device=device)
    print(environment(device_name(x.device)))
    for title, options in HULLS.items():
        hull = nn.Sequential(hullo.AffineHull("identity", "relu", "tanh", **options)).to(device)
        folded = hullo.fold(hull, example_inputs=x)
        torch.testing.assert_close(folded(x), hull(x))
        before, after = [], []
        for _ in range(33):
            before.append(seconds(hull, x))
            after.append(seconds(folded, x))
        before_ms, after_ms = (1e3 * statistics.median(times[3:]) for times in (before, after))
        ratio, kind = after_ms / before_ms, type(folded[0]).__name__
        print(f"{title:26s} {before_ms:7.2f} ms -> {after_ms:7.2f} ms ({ratio:4.2f} x) {kind}")


if __name__ == "__main__":
    main()
