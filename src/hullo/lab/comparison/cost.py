"""The cost of a candidate as a single network: time and memory of a training step."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

REPEATS = 30


class StepCost(NamedTuple):
    """The seconds of a training step, and the bytes that it holds: parameters, and tensors for the backward pass."""

    seconds: float
    memory: int


def measure_costs(networks: Sequence[nn.Module], inputs: Tensor, loss: Callable[[Any], Tensor]) -> list[StepCost]:
    """Return the costs of networks: the least time of steps that are measured in turns, since machines are busy."""

    def step(network: nn.Module) -> float:
        started = now(inputs.device)
        network.zero_grad()
        loss(network(inputs)).backward()  # type: ignore[no-untyped-call]
        return now(inputs.device) - started

    memory = [_measure_memory(network.to(inputs.device).train(), step, inputs.device) for network in networks]
    rounds = [[step(network) for network in networks] for _ in range(REPEATS)]
    return [StepCost(min(own), held) for own, held in zip(zip(*rounds, strict=True), memory, strict=True)]


def _measure_memory(network: nn.Module, step: Callable[[nn.Module], object], device: torch.device) -> int:
    """Return the peak memory of a step on a GPU; on a CPU, parameters and what the backward pass needs."""
    step(network)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        step(network)
        return int(torch.cuda.max_memory_allocated(device))
    held: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        held[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        step(network)
    for parameter in network.parameters():
        keep(parameter.detach())
    return sum(held.values())


def now(device: torch.device) -> float:
    """Return the time, once a GPU has done its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
