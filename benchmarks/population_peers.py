"""How fast do populations train beside what else there is? On a GPU, in one run, on the same work.

    python benchmarks/population_peers.py [--networks lenet5 gpt] [--members 1 8 60] [--csv rows.csv]

One training step of K networks: forward and backward pass in bfloat16 by autocast, SGD with momentum; LeNet-5 and
ResNet-20 on images of CIFAR-10's size and an MLP on 784 features at batch 32, a GPT of 4 layers and width 256 on 8
sequences of 128 tokens; data on the device. The contenders:

    eager loop      K networks, one after the other
    graph           one network, its step in a CUDA graph; K of them take K times as long
    compile         one network under torch.compile(mode="reduce-overhead"); likewise
    vmap            torch.func: stacked modules, vmap over functional_call
    vmap, compile   the same under torch.compile
    vmap, graph     the same in a CUDA graph
    hullo           hullo.population, eager
    hullo, graph    hullo.population, its step in a CUDA graph

vmap cannot update running statistics, so batch norms have none there. Prints milliseconds per network and step, and
memory per network; rows are written as they come. Without a GPU it takes a step of each with two small networks, which
shows that it runs and no more.
"""

from __future__ import annotations

import argparse
import copy
import csv
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state
from torch.func import vmap as vectorize

from hullo.lab.networks.lenet5 import LeNet5
from hullo.lab.networks.resnet56 import ResNet
from hullo.population import SGD, Population, capture

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BATCH, TOKENS, WIDTH, LAYERS = (32, 128, 256, 4) if DEVICE == "cuda" else (4, 8, 16, 1)
ROUNDS, WARM_UP = (20, 4) if DEVICE == "cuda" else (1, 0)
Step = Callable[[], None]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (part.view(batch, length, 4, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(256, WIDTH), nn.Parameter(torch.zeros(TOKENS, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.blocks(self.tokens(tokens) + self.positions))


def relu(channels: int) -> nn.Module:
    return nn.ReLU()


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "lenet5": lambda: LeNet5(relu),
    "resnet20": lambda: ResNet(relu, n=3),
    "mlp": mlp,
    "gpt": GPT,
}


def batch(name: str, members: int) -> tuple[Tensor, Tensor]:
    """Return inputs and targets of each member."""
    if name == "gpt":
        tokens = torch.randint(256, (members, 8, TOKENS), device=DEVICE)
        return tokens, tokens
    shape = (784,) if name == "mlp" else (3, 32, 32)
    return torch.rand(members, BATCH, *shape, device=DEVICE), torch.randint(10, (members, BATCH), device=DEVICE)


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, -2).float(), targets.flatten())


def autocast() -> torch.autocast:
    return torch.autocast(DEVICE, torch.bfloat16)


def alone(name: str, x: Tensor, y: Tensor, compiled: bool = False) -> Step:
    """Return the step of one network."""
    network = NETWORKS[name]().to(DEVICE)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9, fused=DEVICE == "cuda")
    forward = torch.compile(network, mode="reduce-overhead") if compiled else network

    def step() -> None:
        optimizer.zero_grad()
        with autocast():
            loss = loss_of(forward(x), y)
        loss.backward()
        optimizer.step()

    return step


def vmapped(name: str, members: int, x: Tensor, y: Tensor, compiled: bool = False) -> Step:
    """Return the step of K stacked networks by torch.func."""
    networks = [NETWORKS[name]().to(DEVICE) for _ in range(members)]
    for network in networks:
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.track_running_stats = False
                module.running_mean = module.running_var = module.num_batches_tracked = None
    parameters, buffers = stack_module_state(networks)
    template = copy.deepcopy(networks[0]).to("meta")
    optimizer = torch.optim.SGD(parameters.values(), lr=0.01, momentum=0.9, fused=DEVICE == "cuda")

    def one(parameters: Any, buffers: Any, x: Tensor, y: Tensor) -> Tensor:
        return loss_of(functional_call(template, (parameters, buffers), (x,)), y)

    losses = vectorize(one, randomness="different")
    losses = torch.compile(losses) if compiled else losses

    def step() -> None:
        optimizer.zero_grad()
        with autocast():
            total = losses(parameters, buffers, x, y).sum()
        total.backward()
        optimizer.step()

    return step


def population(name: str, members: int, x: Tensor, y: Tensor, graph: bool) -> Step:
    """Return the step of K networks by hullo.population."""
    networks = Population(NETWORKS[name], seeds=range(members)).to(DEVICE)
    optimizer = SGD(networks, lr=0.01, momentum=0.9, copies=torch.bfloat16)

    def step(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        with autocast():
            logits = networks(x)
        vectorize(loss_of)(logits, y).sum().backward()
        optimizer.step()

    taken = capture(step, networks, optimizer) if graph else step
    return lambda: taken(x, y)


def graphed(step: Step) -> Step:
    """Return a step as a CUDA graph; without a GPU, as it is."""
    if DEVICE == "cpu":
        return step
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def contenders(name: str, members: int) -> dict[str, tuple[Callable[[], Step], int]]:
    """Return what makes each contender's step, and how many networks the step trains."""
    x, y = batch(name, members)

    def loop() -> Step:
        steps = [alone(name, x[k], y[k]) for k in range(members)]
        return lambda: [step() for step in steps] and None

    return {
        "eager loop": (loop, members),
        "graph": (lambda: graphed(alone(name, x[0], y[0])), 1),
        "compile": (lambda: alone(name, x[0], y[0], compiled=True), 1),
        "vmap": (lambda: vmapped(name, members, x, y), members),
        "vmap, compile": (lambda: vmapped(name, members, x, y, compiled=True), members),
        "vmap, graph": (lambda: graphed(vmapped(name, members, x, y)), members),
        "hullo": (lambda: population(name, members, x, y, graph=False), members),
        "hullo, graph": (lambda: population(name, members, x, y, graph=True), members),
    }


def measure(make: Callable[[], Step]) -> tuple[float, float]:
    """Return the median time of a step in milliseconds and the most memory that it takes, in MiB."""
    if DEVICE == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if DEVICE == "cuda" else 0
    step, times = make(), []
    for _ in range(WARM_UP + ROUNDS):
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        step()
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - began))
    peak = torch.cuda.max_memory_allocated() - before if DEVICE == "cuda" else float("nan")
    return statistics.median(times[WARM_UP:]), peak / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=NETWORKS)
    parser.add_argument("--members", nargs="+", type=int, default=[1, 8, 60] if DEVICE == "cuda" else [2])
    parser.add_argument("--contenders", nargs="+", help="names as above; all by default")
    parser.add_argument("--csv", type=Path)
    arguments = parser.parse_args()
    for name in arguments.networks:
        for members in arguments.members:
            for contender, (make, trained) in contenders(name, members).items():
                if arguments.contenders and contender not in arguments.contenders:
                    continue
                try:
                    milliseconds, memory = measure(make)
                except Exception as error:
                    print(
                        f"{name:9} K={members:3} {contender:14} failed: {str(error).splitlines()[0][:90]}", flush=True
                    )
                    continue
                row = (name, members, contender, round(milliseconds / trained, 4), round(memory / trained, 1))
                print(f"{name:9} K={members:3} {contender:14} {row[3]:9.3f} ms {row[4]:9.1f} MiB", flush=True)
                if arguments.csv:
                    with arguments.csv.open("a", newline="") as file:
                        csv.writer(file).writerow(row)


if __name__ == "__main__":
    main()
