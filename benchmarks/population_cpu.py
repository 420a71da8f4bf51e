"""Compare populations on a CPU with a loop over the networks and with torch.func, in one run, on the same work.

    python benchmarks/population_cpu.py [--csv rows.csv]

A step is a forward and a backward pass in float32 and an update by SGD with momentum: LeNet-5 and ResNet-20 on images
of CIFAR-10's size and an MLP on 784 features at batch 32, a GPT of 2 layers and width 128 on 8 sequences of 64 tokens.
Each network has data of its own. Contenders take turns; rows have medians, in milliseconds per step of all networks.
"""

from __future__ import annotations

import warnings
from functools import partial

import peer_networks
from population_peers import loop, population, vmapped

from hullo.lab.bench.harness import Harness

CONTENDERS = {"loop": loop, "vmap": vmapped, "hullo": population}


def main(arguments: list[str] | None = None) -> None:
    harness = Harness(__doc__, rounds=8)
    harness.parser.add_argument("--networks", nargs="+", default=list(peer_networks.NETWORKS))
    harness.parser.add_argument("--members", nargs="+", type=int, default=[1, 8, 20])
    given = harness.start(arguments)
    warnings.filterwarnings("ignore", "There is a performance drop")  # of attention under vmap
    peer_networks.BATCH, peer_networks.TOKENS, peer_networks.WIDTH, peer_networks.LAYERS = 32, 64, 128, 2
    for name in given.networks:
        for members in given.members:
            batch = peer_networks.make_batch(name, members)
            steps = {kind: partial(make(name, members), *batch) for kind, make in CONTENDERS.items()}
            times = {kind: 1e3 * timing.median for kind, timing in harness.compare(steps, warm_up=1).items()}
            harness.add(network=name, members=members, **times, loop_over_hullo=times["loop"] / times["hullo"])


if __name__ == "__main__":
    main()
