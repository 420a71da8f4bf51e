"""Save a population and its optimizer in one file, and load them again."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hullo.population.kernels import choice

if TYPE_CHECKING:
    from hullo.population.optim import Optimizer
    from hullo.population.population import Population


def save(path: str | os.PathLike[str], population: Population, optimizer: Optimizer | None) -> None:
    """Write a file; one that is there is replaced only by a complete one."""
    _check_optimizer(population, optimizer)
    parts: dict[str, Any] = {"numbers": population.numbers, "population": population.state_dict()}
    parts["choices"] = choice.choices()
    if optimizer is not None:
        parts["optimizer"] = optimizer.state_dict()
    partial = Path(f"{os.fspath(path)}.partial")
    torch.save(parts, partial)
    partial.replace(path)


def load(path: str | os.PathLike[str], population: Population, optimizer: Optimizer | None) -> None:
    """Read a file in place."""
    _check_optimizer(population, optimizer)
    with open(path, "rb") as file:
        if not zipfile.is_zipfile(file):
            raise ValueError(f"{os.fspath(path)} is cut off, or not a file of Population.save")
    parts = torch.load(path, map_location=population.seeds.device, weights_only=True)
    needed = {"numbers", "population", "choices"} | ({"optimizer"} if optimizer is not None else set())
    if not isinstance(parts, dict) or not needed <= parts.keys():
        call = "population.save(path)" if optimizer is None else "population.save(path, optimizer)"
        raise ValueError(f"{os.fspath(path)} is not a file of {call}")
    if missing := sorted(set(parts["numbers"]) - set(population.numbers)):
        raise ValueError(
            f"{os.fspath(path)} has member {missing[0]}, which this population of {len(population)} does not have; "
            "make it of the same networks"
        )
    kept = [population.numbers.index(number) for number in parts["numbers"]]
    if not torch.equal(parts["population"]["activations.digests"], population.activations.digests[kept]):
        raise ValueError(f"{os.fspath(path)} has other activations; make the population of the same networks")
    if parts["numbers"] != population.numbers:
        population.keep(kept)
    population.load_state_dict(parts["population"])
    if optimizer is not None:
        optimizer.load_state_dict(parts["optimizer"])
    choice.take(parts["choices"])


def _check_optimizer(population: Population, optimizer: Optimizer | None) -> None:
    if optimizer is not None and optimizer.population is not population:
        raise ValueError("the optimizer is that of another population; give the one that was made for this one")
