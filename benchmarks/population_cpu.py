"""Compare populations on a CPU with a loop over the networks and with torch.func, in one run, on the same work.

    python benchmarks/population_cpu.py > benchmarks/results/population_cpu.txt

A step is a forward and a backward pass in float32 and an update by SGD with momentum: LeNet-5 and ResNet-20 on images
of CIFAR-10's size and an MLP on 784 features at batch 32, a GPT of 2 layers and width 128 on 8 sequences of 64 tokens.
Each network has data of its own. Contenders take turns; the time of each is the shortest of all its steps.
"""

from __future__ import annotations

import argparse
import time
import warnings

import peer_networks
import torch
from population_peers import Step, loop, population, vmapped
from torch import Tensor

from hullo.lab.spec.environment import device_name, environment

CONTENDERS = {"loop": loop, "vmap": vmapped, "hullo": population}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=list(peer_networks.NETWORKS))
    parser.add_argument("--members", nargs="+", type=int, default=[1, 8, 20])
    parser.add_argument("--rounds", type=int, default=8)
    given = parser.parse_args()
    warnings.filterwarnings("ignore", "There is a performance drop")  # of attention under vmap
    peer_networks.BATCH, peer_networks.TOKENS, peer_networks.WIDTH, peer_networks.LAYERS = 32, 64, 128, 2
    print(environment(device_name(torch.device("cpu"))))
    print(f"milliseconds per step of all networks, {torch.get_num_threads()} threads\n")
    print(f"{'network':10}{'networks':>9}" + "".join(f"{name:>10}" for name in CONTENDERS) + f"{'loop / hullo':>14}")
    for name in given.networks:
        for members in given.members:
            x, y = peer_networks.make_batch(name, members)
            times = measure({kind: make(name, members) for kind, make in CONTENDERS.items()}, x, y, given.rounds)
            row = "".join(f"{times[kind]:10.1f}" for kind in CONTENDERS)
            print(f"{name:10}{members:9}{row}{times['loop'] / times['hullo']:14.2f}", flush=True)


def measure(steps: dict[str, Step], x: Tensor, y: Tensor, rounds: int) -> dict[str, float]:
    """Return the shortest time of each contender in milliseconds, after a step that counts for nothing."""
    times: dict[str, list[float]] = {kind: [] for kind in steps}
    for _ in range(rounds + 1):
        for kind, step in steps.items():
            start = time.perf_counter()
            step(x, y)
            times[kind].append(1e3 * (time.perf_counter() - start))
    return {kind: min(each[1:]) for kind, each in times.items()}


if __name__ == "__main__":
    main()
