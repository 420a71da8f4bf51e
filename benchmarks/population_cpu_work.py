"""Compare populations on a CPU with loops over lone networks, on work that makes kernels matter little.

    OMP_NUM_THREADS=1 python benchmarks/population_cpu_work.py > benchmarks/results/population_cpu_work.txt

On one thread a step takes as long as the work in it, so a ratio below one shows work that a population multiplies, such
as bases of other members, or derivatives computed twice. Smaller versions of workloads of population_work.py, in turns;
times are of the processor, which other processes disturb less, the shortest of several steps.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

import torch
from population_work import Step, population, streams
from work_networks import GPT, CharLSTM, UNet, Work, pinn, regress, workloads

from hullo.lab.spec.environment import device_name, environment

CPU = torch.device("cpu")
PINN = workloads()["pinn"]
POINTS = ((1000, 2), (1000, 1))
WORK = {
    "LSTM 2 x 128, batch 32, 64 steps": Work(8, lambda k: CharLSTM(128), ((32, 64), (32, 64)), 65, 65),
    "PINN 5 x 64, 1,000 points, four activations": replace(PINN, batch=POINTS),
    "PINN, all tanh": replace(PINN, batch=POINTS, make=lambda k: pinn(0, 64)),
    "PINN, first derivatives, four activations": replace(PINN, batch=POINTS, loss=regress),
    "nanoGPT 2 x 128, dropout 0.2": Work(8, lambda k: GPT(2, 128, 4, 64), ((8, 64), (8, 64)), 65, 65),
    "U-Net 16, group norm": Work(8, lambda k: UNet(16, 3), ((2, 3, 32, 32), (2, 3, 32, 32)), 0, loss=regress),
}


def measure(steps: dict[str, Step], work: Work, rounds: int) -> dict[str, float]:
    """Return the shortest time of each contender in milliseconds, after a step that counts for nothing."""
    x, y = work.data(work.members, CPU)
    times: dict[str, list[float]] = {kind: [] for kind in steps}
    for _ in range(rounds + 1):
        for kind, step in steps.items():
            start = time.process_time()
            step(x, y)
            times[kind].append(1e3 * (time.process_time() - start))
    return {kind: min(each[1:]) for kind, each in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="part of a workload's name")
    given = parser.parse_args()
    print(environment(device_name(CPU)))
    print(f"milliseconds per network and step, {torch.get_num_threads()} threads\n")
    print(f"{'work':46}{'networks':>9}{'loop':>10}{'hullo':>10}{'loop / hullo':>14}")
    for name, work in WORK.items():
        if given.only in name:
            steps = {"loop": streams(work, CPU), "hullo": population(work, CPU)}
            loop, own = (ms / work.members for ms in measure(steps, work, given.rounds).values())
            print(f"{name:46}{work.members:9}{loop:10.2f}{own:10.2f}{loop / own:14.2f}", flush=True)


if __name__ == "__main__":
    main()
