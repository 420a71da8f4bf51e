"""Choose between several ways to compute the same, by measurement.

Which kernel is the fastest depends on sizes, on the GPU and on versions of libraries. While a step that is to be tuned
warms up, every way to compute something is called, compared with the first one and timed; from then on the fastest of
those that agree is taken. Elsewhere the default is taken. A choice decides how numbers are rounded, so it is saved with
a run, and taken again by one that goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from statistics import median
from typing import Any

import torch
from torch import Tensor

Outputs = tuple[Tensor | None, ...]
Way = Callable[[], Outputs]

ROUNDS, CALLS = 3, 4
MOST_APART = 2.0**-6
"""The largest difference of a way from the first one, relative to the norm of the result: a few roundings."""

_chosen: dict[str, str] = {}
_is_tuning = False


def compute(key: tuple[Any, ...], ways: Mapping[str, Way], default: str) -> Outputs:
    """Return what the chosen way computes.

    Args:
        key: what decides how fast the ways are: an operation, sizes and types.
        ways: by name; the first is the one that the others have to agree with.
        default: the way to take where nothing was measured.
    """
    name = repr(key)
    if _is_tuning and name not in _chosen and not _is_capturing():
        _chosen[name] = _measure(ways, default)
    return ways.get(_chosen.get(name, default), ways[default])()


def is_tuning() -> bool:
    """Return whether ways are measured."""
    return _is_tuning


@contextmanager
def tuning(enabled: bool) -> Iterator[None]:
    """Measure, within the block, whatever was not chosen before; not while a graph is captured."""
    global _is_tuning
    _is_tuning = enabled
    try:
        yield
    finally:
        _is_tuning = False


def choices() -> dict[str, str]:
    """Return what was chosen so far, to be saved with a run."""
    return dict(_chosen)


def take(saved: Mapping[str, str]) -> None:
    """Take the choices of a run that goes on."""
    _chosen.update(saved)


def _is_capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def _measure(ways: Mapping[str, Way], default: str) -> str:
    """Return the name of the fastest way that agrees with the first one."""
    from triton.errors import TritonError  # type: ignore[import-untyped]

    names = list(ways)
    expected = ways[names[0]]()
    seconds = {}
    for name in names:
        try:
            found = ways[name]()
        except (RuntimeError, TritonError):  # such as one that needs more shared memory than this GPU has
            continue
        if name == names[0] or _agree(found, expected):
            seconds[name] = _time(ways[name])
    fastest = min(seconds, key=seconds.__getitem__)
    # noise does not replace the default
    return default if default in seconds and seconds[default] <= 1.03 * seconds[fastest] else fastest


def _agree(found: Outputs, expected: Outputs) -> bool:
    """Return whether results are the same up to rounding; moments, (2, parts, channels), have any number of parts."""
    pairs = [(_summed(a), _summed(b)) for a, b in zip(found, expected, strict=True) if a is not None and b is not None]
    return all(bool((a - b).norm() <= MOST_APART * b.norm()) for a, b in pairs)


def _summed(x: Tensor) -> Tensor:
    return x.float().sum(1) if x.dim() == 3 else x.float()


def _time(way: Way) -> float:
    """Return the milliseconds of a call, on the current stream."""
    taken: list[float] = []
    for _ in range(ROUNDS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        for _ in range(CALLS):
            way()
        end.record()
        end.synchronize()
        taken.append(start.elapsed_time(end) / CALLS)
    return median(taken)
