"""The cost of a candidate as a single network: time and memory of a training step."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

REPEATS = 15


@dataclass(frozen=True)
class StepCost:
    """The seconds of a training step, and the bytes that it holds: parameters, and tensors for the backward pass."""

    seconds: float
    memory: int


def measure_costs(networks: Sequence[nn.Module], inputs: Tensor, loss: Callable[[Any], Tensor]) -> list[StepCost]:
    """Return the costs of networks, measured in turns, so that a busy machine slows all of them alike."""
    steps = [_step(network.to(inputs.device).train(), inputs, loss) for network in networks]
    memory = [_measure_memory(network, step, inputs.device) for network, step in zip(networks, steps, strict=True)]
    times: list[list[float]] = [[] for _ in steps]
    for _ in range(REPEATS):
        for step, own in zip(steps, times, strict=True):
            started = _now(inputs.device)
            step()
            own.append(_now(inputs.device) - started)
    return [StepCost(median(own), held) for own, held in zip(times, memory, strict=True)]


def _step(network: nn.Module, inputs: Tensor, loss: Callable[[Any], Tensor]) -> Callable[[], None]:
    def step() -> None:
        network.zero_grad()
        loss(network(inputs)).backward()  # type: ignore[no-untyped-call]

    return step


def _measure_memory(network: nn.Module, step: Callable[[], None], device: torch.device) -> int:
    """Return the peak memory of a step on a GPU; on a CPU, parameters and what the backward pass needs."""
    step()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        step()
        return int(torch.cuda.max_memory_allocated(device))
    held: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        held[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        step()
    for parameter in network.parameters():
        held[parameter.untyped_storage().data_ptr()] = parameter.untyped_storage().nbytes()
    return sum(held.values())


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
