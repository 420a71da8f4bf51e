"""Measure hulls of up to four bases on the CPU, as multiples of the time of nn.GELU.

    python benchmarks/cpu_sets.py > benchmarks/results/cpu_sets.txt

Every base of the catalogue alone, and every set of two to four of the bases whose functions differ and cost most. GELU
and the hull run in turn; the time of each is the shortest of all.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence

import torch
from torch import nn

import hullo
from hullo.lab.bench.clocks import CpuClock, wall_laps
from hullo.lab.bench.measure import passes
from hullo.lab.spec.environment import environment

COSTLY = ("asinh", "gelu", "softplus", "mish", "sin", "erf", "gelu_tanh")
"""One base for each function that takes about as long as GELU; other bases share these functions or are cheaper."""


def ratios(names: Sequence[str], size: int, rounds: int) -> tuple[float, float]:
    """Return the times of a hull over those of GELU, forward and backward, on inputs that are not in a cache."""
    inputs = [(torch.randn(size, requires_grad=True), torch.randn(size)) for _ in range(max(1, 2**24 // size))]
    modules = (nn.GELU(), hullo.LinearHull(*names, strict=False))
    for module in modules:
        wall_laps(*passes(module, inputs[:1]))  # compiles
    laps = [[wall_laps(*passes(module, [pair])) for module in modules] for _ in range(rounds) for pair in inputs]
    gelu, hull = ([min(lap[m][way] for lap in laps) for way in (0, 1)] for m in (0, 1))
    return hull[0] / gelu[0], hull[1] / gelu[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="18,24", help="powers of two, the numbers of elements")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=7, help="passes over all inputs")
    given = parser.parse_args()
    sizes, threads = ([int(part) for part in text.split(",")] for text in (given.sizes, given.threads))
    columns = list(itertools.product(sizes, threads))
    singles = [(name,) for name in hullo.list_bases()]
    sets = singles + [names for n in (2, 3, 4) for names in itertools.combinations(COSTLY, n)]
    found: dict[tuple[str, ...], list[tuple[float, float]]] = {names: [] for names in sets}
    for size, count in columns:
        torch.set_num_threads(count)
        for done, names in enumerate(sets):
            found[names].append(ratios(names, 2**size, given.rounds))
            print(f"\r2^{size}, {count} threads: {done + 1} of {len(sets)}", end="", file=sys.stderr)
    print(environment(CpuClock(torch.device("cpu")).device_name))
    print("forward / backward, as multiples of nn.GELU\n")
    heads = [f"2^{size}, {count} thread{'s' * (count > 1)}" for size, count in columns]
    print(f"{'bases':36}" + "".join(f"{head:>18}" for head in heads))
    for names in sets:
        print(f"{' '.join(names):36}" + "".join(f"{a:10.2f} / {b:5.2f}" for a, b in found[names]))
    print(
        f"\n{'the largest':36}"
        + "".join(f"{a:10.2f} / {b:5.2f}" for a, b in map(largest, zip(*found.values(), strict=True)))
    )


def largest(pairs: Sequence[tuple[float, float]]) -> tuple[float, ...]:
    return tuple(max(ways) for ways in zip(*pairs, strict=True))


if __name__ == "__main__":
    main()
