"""Schedules of learning rates: functions from the number of updates so far to a factor of the learning rates.

Each equals the one in :mod:`torch.optim.lr_scheduler` that steps after every update. It computes on tensors, so a
captured step follows it, and it needs no state: an optimizer counts its updates. Arguments are one number or one per
member; a length is a number of updates.

Example:
    >>> import torch
    >>> from torch import nn
    >>> from hullo.population import AdamW, Population
    >>> from hullo.population.schedules import cosine, warm_up
    >>> population = Population(lambda: nn.Linear(4, 2), seeds=range(2))
    >>> optimizer = AdamW(population, lr=1e-3, schedule=warm_up(100, then=cosine(900)))
    >>> [round(float(optimizer.schedule(torch.tensor(updates))), 3) for updates in (0, 50, 100, 550, 1000)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Numbers = float | Sequence[float] | Tensor
Schedule = Callable[[Tensor], Tensor | float]


def cosine(length: Numbers, *, end: Numbers = 0.0) -> Schedule:
    """Lower the factor from 1 to `end` along half a cosine, and keep it there.

    The same as :class:`torch.optim.lr_scheduler.CosineAnnealingLR` with ``T_max=length`` and ``eta_min=end * lr``.
    """
    lengths, ends = _Constant("length", length, least=1), _Constant("end", end)
    return lambda updates: _anneal(torch.ones_like(updates), ends(updates), _progress(updates, lengths))


def one_cycle(
    length: Numbers, *, pct_start: Numbers = 0.3, div_factor: Numbers = 25.0, final_div_factor: Numbers = 1e4
) -> Schedule:
    """Raise the factor to 1 and lower it again, each along half a cosine.

    The same as :class:`torch.optim.lr_scheduler.OneCycleLR` with ``total_steps=length``, ``cycle_momentum=False`` and
    the learning rate of the optimizer as ``max_lr``.
    """
    lengths, rises = _Constant("length", length, least=1), _Constant("pct_start", pct_start, most=1)
    starts = _Constant("div_factor", div_factor, least=1)
    ends = _Constant("final_div_factor", final_div_factor, least=1)

    def factor(updates: Tensor) -> Tensor:
        last, start = lengths(updates) - 1, 1 / starts(updates)
        peak = (rises(updates) * lengths(updates) - 1).clamp_min(0)
        one = torch.ones_like(start)
        rise = _anneal(start, one, (updates / peak).clamp(0, 1))
        fall = _anneal(one, start / ends(updates), ((updates - peak) / (last - peak)).nan_to_num(0).clamp(0, 1))
        return torch.where(updates < peak, rise, fall)

    return factor


def warm_up(length: Numbers, then: Schedule, *, start: Numbers = 0.0) -> Schedule:
    """Raise the factor linearly from `start` to 1, then follow another schedule, which counts from there.

    The same as :class:`torch.optim.lr_scheduler.SequentialLR` of a `LinearLR` and another scheduler.
    """
    lengths, starts = _Constant("length", length, least=1), _Constant("start", start)

    def factor(updates: Tensor) -> Tensor:
        later = torch.as_tensor(then((updates - lengths(updates)).clamp_min(0)), device=updates.device)
        rise = starts(updates) + (1 - starts(updates)) * _progress(updates, lengths)
        return torch.where(updates < lengths(updates), rise, later)

    return factor


class _Constant:
    """Hold one number, or one per member, on each device on which it was used: a capture cannot copy it there."""

    def __init__(self, name: str, given: Numbers, *, least: float = 0.0, most: float = math.inf) -> None:
        self.on: dict[torch.device, Tensor] = {}
        self.numbers = torch.as_tensor(given, dtype=torch.float64)
        if self.numbers.dim() > 1 or not bool(((self.numbers >= least) & (self.numbers <= most)).all()):
            raise ValueError(f"{name}={given!r}: give a number from {least:g} to {most:g}, or one for each member")

    def __call__(self, updates: Tensor) -> Tensor:
        if updates.device not in self.on:
            self.on[updates.device] = self.numbers.to(updates.device)
        return self.on[updates.device]


def _progress(updates: Tensor, length: _Constant) -> Tensor:
    """Return the part of a length that is over, from 0 to 1."""
    return (updates / length(updates)).clamp_max(1)


def _anneal(start: Tensor, end: Tensor, progress: Tensor) -> Tensor:
    """Return a number between two others, along half a cosine."""
    return end + (start - end) * (1 + torch.cos(math.pi * progress)) / 2
