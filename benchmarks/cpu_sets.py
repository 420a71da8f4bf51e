"""Measure hulls of up to four bases on the CPU, as multiples of the time of nn.GELU.

    python benchmarks/cpu_sets.py > benchmarks/results/cpu_sets.txt

Every base of the catalogue alone, and every set of two to four of the bases whose functions differ and cost most. GELU
and the hull run in turn; the time of each is the shortest of all. The largest size comes first: memory that small
inputs leave would spare GELU the clearing of new pages, which takes most of its time at 2^24.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterable, Sequence

import torch
from torch import nn

import hullo
from hullo.lab.bench.clocks import CpuClock, wall_laps
from hullo.lab.bench.measure import Inputs, passes
from hullo.lab.spec.environment import environment

COSTLY = ("asinh", "gelu", "softplus", "mish", "arctan", "erf", "gelu_tanh", "quick_gelu")
"""One base for each function that takes about as long as GELU; other bases share these functions or are cheaper."""


def ratios(names: Sequence[str], inputs: Inputs, repeats: int) -> tuple[float, float, float]:
    """Return the times of a hull over those of GELU, forward, backward and both."""
    modules = (nn.GELU(), hullo.LinearHull(*names, strict=False))
    laps = [
        [wall_laps(*passes(module, [pair])) for module in modules]
        for pair in itertools.islice(itertools.cycle(inputs), repeats + 1)
    ][1:]  # the first call compiles
    gelu, hull = ([min(lap[m][way] for lap in laps) for way in (0, 1)] for m in (0, 1))
    return hull[0] / gelu[0], hull[1] / gelu[1], sum(hull) / sum(gelu)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="24,18", help="powers of two, the numbers of elements")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--repeats", type=int, default=6, help="calls at the largest size; more at others")
    given = parser.parse_args()
    sizes, threads = ([int(part) for part in text.split(",")] for text in (given.sizes, given.threads))
    columns = list(itertools.product(sizes, threads))
    singles = [(name,) for name in hullo.list_bases()]
    sets = singles + [names for n in (2, 3, 4) for names in itertools.combinations(COSTLY, n)]
    found: dict[tuple[str, ...], list[tuple[float, ...]]] = {names: [] for names in sets}
    for size, count in columns:
        torch.set_num_threads(count)
        several = max(1, min(64, 2**24 >> size))  # so many that none is in a cache
        inputs = [(torch.randn(2**size, requires_grad=True), torch.randn(2**size)) for _ in range(several)]
        repeats = given.repeats * min(8, several)
        for done, names in enumerate(sets):
            found[names].append(ratios(names, inputs, repeats))
            print(f"\r2^{size}, {count} threads: {done + 1} of {len(sets)}", end="", file=sys.stderr)
    print(environment(CpuClock(torch.device("cpu")).device_name))
    print("forward / backward / both, as multiples of nn.GELU\n")
    heads = [f"2^{size}, {count} thread{'s' * (count > 1)}" for size, count in columns]
    print_row("bases", heads)
    for names in sets:
        print_row(" ".join(names), map(spell, found[names]))
    for n in (1, 2, 3, 4):
        of_size = [rows for names, rows in found.items() if len(names) == n]
        print_row(f"the largest of {n}", [spell(largest(column)) for column in zip(*of_size, strict=True)])


def print_row(head: str, cells: Iterable[str]) -> None:
    print(f"{head:36}" + "".join(f"{cell:>22}" for cell in cells))


def spell(row: Iterable[float]) -> str:
    return " / ".join(f"{ratio:.2f}" for ratio in row)


def largest(rows: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    return tuple(max(ways) for ways in zip(*rows, strict=True))


if __name__ == "__main__":
    main()
