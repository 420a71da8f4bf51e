"""Measure a training step of timm's ResNet-50, as it is and with hulls in the places of its activations, on a GPU.

    python benchmarks/resnet50_step.py              # in bfloat16 and in float32
    python benchmarks/resnet50_step.py bfloat16

Eager mode, channels last, batch 256 of 224 x 224 images, SGD with momentum; bfloat16 autocast, then float32. Models
take turns; medians of rounds, between CUDA events. Prints milliseconds, the ratio to the original, and the peak memory.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import timm
import torch
import torch.nn.functional as F
from torch import nn

import hullo
from hullo.lab.spec.environment import environment

BATCH, ROUNDS = 256, 8
PRECISIONS: dict[str, Callable[[], AbstractContextManager]] = {
    "bfloat16": lambda: torch.autocast("cuda", torch.bfloat16),
    "float32": nullcontext,
}
MODELS: dict[str, Callable[[], nn.Module]] = {
    "original": lambda: timm.create_model("resnet50"),
    "swapped": lambda: hullo.replace_activations(timm.create_model("resnet50")),
    "act_layer": lambda: timm.create_model(
        "resnet50", act_layer=lambda **_: hullo.AffineHull("identity", "relu", "tanh")
    ),
}


def make_step(build: Callable[[], nn.Module], autocast: Callable[[], AbstractContextManager]) -> Callable[[], None]:
    torch.manual_seed(0)
    model = build().cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(hullo.parameter_groups(model, lr=1e-3), momentum=0.9)
    x = torch.randn(BATCH, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
    labels = torch.randint(1000, (BATCH,), device="cuda")

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with autocast():
            loss = F.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()

    return step


def measure(step: Callable[[], None]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    step()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end)


def main() -> None:
    print(environment(torch.cuda.get_device_name()))
    torch.backends.cudnn.benchmark = True
    for name in sys.argv[1:] or PRECISIONS:
        steps, memory = {}, {}
        for model, build in MODELS.items():
            steps[model] = make_step(build, PRECISIONS[name])
            for _ in range(3):
                steps[model]()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            steps[model]()
            torch.cuda.synchronize()
            memory[model] = torch.cuda.max_memory_allocated() - before
        rounds = [{model: measure(step) for model, step in steps.items()} for _ in range(ROUNDS)]
        times = {model: statistics.median(times[model] for times in rounds) for model in steps}
        for model, time in times.items():
            ratio, mib = time / times["original"], memory[model] / 2**20
            print(f"{name:8}  {model:9} {time:8.2f} ms {ratio:6.3f} x original {mib:8.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
