"""Compare populations with other ways to train K networks on one GPU, in one run, on the same work.

    python benchmarks/population_peers.py [--networks lenet5 gpt] [--members 1 8 60] [--csv rows.csv] [--profile]

A step is a forward and a backward pass in bfloat16 by autocast and an update by SGD with momentum, on data on
the device: LeNet-5 and ResNet-20 on images of CIFAR-10's size and an MLP on 784 features at batch 32, a GPT of 4 layers
and width 256 on 8 sequences of 128 tokens. Each network has data of its own. The contenders:

    eager loop             K networks, one after the other
    graph                  one network, its step in a CUDA graph; K of them take K times as long
    graph, channels last   the same with images and filters in that order in memory
    graph, side by side    K networks on up to 16 streams, all their steps in one CUDA graph
    compile                one network under torch.compile(mode="reduce-overhead")
    compile, graph         one network under torch.compile, its step in a CUDA graph
    vmap                   torch.func: K stacked networks, vmap over functional_call
    vmap, graph            the same, its step in a CUDA graph
    vmap, compile          vmap under torch.compile
    vmap, compile, graph   the same, its step in a CUDA graph
    ModelBatch             modelbatch.ModelBatch with its own optimizer, where it is installed
    HFTA                   LeNet-5 and the MLP of HFTA's fused layers, where it is installed
    HFTA, graph            the same, its step in a CUDA graph
    hullo                  hullo.population, eager
    hullo, graph           hullo.population, its step in a CUDA graph

Optimizers are fused; cuDNN chooses its algorithms by measurement; a graph copies its inputs before it is replayed.
ModelBatch reads the state of the generator in every step, which a CUDA graph cannot hold. HFTA has no SGD, so its
parameters are updated by torch.optim's.

After a warm-up the contenders of a cell take turns; a row holds the median over rounds of the time per network and step
and memory per network: the most that is allocated in a step, or what stays reserved for a graph, if that is more.
Rows are written after every cell; cells that the file already has are skipped. Contenders that take longer than
--limit seconds to build are skipped with a note. Without a GPU, small networks take one step each, as a test.
"""

from __future__ import annotations

import argparse
import copy
import functools
import gc
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from peer_networks import CONVOLUTIONAL, DEVICE, NETWORKS, FusedLeNet5, fused_mlp, make_batch
from peer_rows import SINGLE, PeerRow, add_peers, read_peers
from torch import Tensor
from torch.func import functional_call, stack_module_state
from torch.func import vmap as vectorize
from torch.nn.attention import SDPBackend, sdpa_kernel

from hullo.lab.spec.environment import environment
from hullo.population import SGD, Population, capture

GPU = torch.cuda.is_available()
ROUNDS, SECONDS, WARM_UP, STREAMS = (7, 0.03, 3, 16) if GPU else (1, 0.0, 1, 16)
ATTENTION = [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH]
"""All but memory-efficient attention, which torch.compile chooses under vmap, where its backward pass fails."""
Step = Callable[[Tensor, Tensor], Any]


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, -2).float(), targets.flatten())


def losses_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the sum of all members' losses: members are one more dimension of the batch."""
    each = F.cross_entropy(logits.flatten(0, -2).float(), targets.flatten(), reduction="none")
    return each.view(len(logits), -1).mean(1).sum()


def training_step(forward: Callable[[Tensor], Tensor], optimizer: Any, loss: Step = losses_of) -> Step:
    """Return a step: passes, in bfloat16 on a GPU, and an update."""

    def step(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        with torch.autocast(DEVICE, torch.bfloat16, enabled=GPU):
            total = loss(forward(x), y)
        total.backward()
        optimizer.step()

    return step


def sgd(parameters: Any) -> torch.optim.SGD:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, fused=True)


def single(name: str, layout: torch.memory_format = torch.contiguous_format, compiled: str = "") -> Step:
    """Return the step of one network."""
    network = NETWORKS[name]().to(DEVICE, memory_format=layout)
    forward = torch.compile(network, mode=compiled, dynamic=False) if compiled else network
    step = training_step(forward, sgd(network.parameters()), loss_of)
    if layout is torch.contiguous_format:
        return step
    return lambda x, y: step(x.contiguous(memory_format=layout), y)


def loop(name: str, members: int) -> Step:
    """Return the step of K networks, one after the other."""
    steps = [single(name) for _ in range(members)]

    def step(x: Tensor, y: Tensor) -> None:
        for single_step, images, targets in zip(steps, x, y, strict=True):
            single_step(images, targets)

    return step


def side_by_side(name: str, members: int) -> Step:
    """Return the step of K networks on several streams."""
    steps, streams = [single(name) for _ in range(members)], [torch.cuda.Stream() for _ in range(min(members, STREAMS))]

    def step(x: Tensor, y: Tensor) -> None:
        current = torch.cuda.current_stream()
        for stream in streams:
            stream.wait_stream(current)
        for k, single_step in enumerate(steps):
            with torch.cuda.stream(streams[k % len(streams)]):
                single_step(x[k], y[k])
        for stream in streams:
            current.wait_stream(stream)

    return step


def vmapped(name: str, members: int, compiled: bool = False) -> Step:
    """Return the step of K stacked networks by torch.func."""
    networks = [NETWORKS[name]().to(DEVICE) for _ in range(members)]
    parameters, buffers = stack_module_state(networks)
    template = copy.deepcopy(networks[0]).to("meta")

    def one(parameters: Any, buffers: Any, x: Tensor, y: Tensor) -> Tensor:
        return loss_of(functional_call(template, (parameters, buffers), (x,)), y)

    losses = vectorize(one)
    losses = torch.compile(losses, dynamic=False) if compiled else losses

    def total(x: Tensor, y: Tensor) -> Tensor:
        with sdpa_kernel(ATTENTION):
            return losses(parameters, buffers, x, y).sum()

    return training_step(lambda x: x, sgd(parameters.values()), total)


def model_batch(name: str, members: int) -> Step:
    """Return the step of K networks by ModelBatch."""
    from modelbatch import ModelBatch, OptimizerFactory

    batch = ModelBatch([NETWORKS[name]().to(DEVICE) for _ in range(members)], shared_input=False)
    factory = OptimizerFactory(torch.optim.SGD, {"lr": 0.01, "momentum": 0.9})
    optimizer = factory.create_optimizer(batch, [{"lr": 0.01} for _ in range(members)])
    return training_step(batch, optimizer, lambda logits, y: batch.compute_loss(logits, y, loss_of))


def hfta(name: str, members: int) -> Step:
    """Return the step of K networks of HFTA's fused layers."""
    from hfta import ops

    network = (FusedLeNet5 if name == "lenet5" else fused_mlp)(ops, members).to(DEVICE)
    return training_step(network, sgd(network.parameters()))


def population(name: str, members: int, graph: bool = False) -> Step:
    """Return the step of K networks by hullo.population."""
    networks = Population(NETWORKS[name], seeds=range(members)).to(DEVICE)
    optimizer = SGD(networks, lr=0.01, momentum=0.9, copies=torch.bfloat16)
    step = training_step(networks, optimizer)
    return capture(step, networks, optimizer, check=False) if graph else step


@functools.cache
def side_stream() -> torch.cuda.Stream:
    """Return the stream of all warm-ups: libraries keep memory for every stream that they have used."""
    return torch.cuda.Stream()


def graphed(step: Step, x: Tensor, y: Tensor) -> Step:
    """Return a step as a CUDA graph, which copies its inputs; without a GPU, as it is."""
    if not GPU:
        return step
    inputs, side = (x.clone(), y.clone()), side_stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            step(*inputs)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(*inputs)

    def replay(*new: Tensor) -> None:
        for captured, tensor in zip(inputs, new, strict=True):
            captured.copy_(tensor)
        graph.replay()

    replay.step = step  # type: ignore[attr-defined]  # keeps the tensors of the graph alive
    return replay


def contenders(name: str, members: int, x: Tensor, y: Tensor) -> dict[str, Callable[[], Step]]:
    """Return functions that make the step of each contender; single networks only for one member."""
    makers: dict[str, Callable[[], Step]] = {"eager loop": lambda: loop(name, members)}
    if members == 1:
        makers["graph"] = lambda: graphed(single(name), x[0], y[0])
        if name in CONVOLUTIONAL:
            makers["graph, channels last"] = lambda: graphed(single(name, torch.channels_last), x[0], y[0])
        makers["compile"] = lambda: single(name, compiled="reduce-overhead")
        makers["compile, graph"] = lambda: graphed(single(name, compiled="default"), x[0], y[0])
    elif GPU:
        makers["graph, side by side"] = lambda: graphed(side_by_side(name, members), x, y)
    makers["vmap"] = lambda: vmapped(name, members)
    makers["vmap, graph"] = lambda: graphed(vmapped(name, members), x, y)
    makers["vmap, compile"] = lambda: vmapped(name, members, compiled=True)
    makers["vmap, compile, graph"] = lambda: graphed(vmapped(name, members, compiled=True), x, y)
    makers["ModelBatch"] = lambda: model_batch(name, members)
    if name in ("lenet5", "mlp"):
        makers["HFTA"] = lambda: hfta(name, members)
        makers["HFTA, graph"] = lambda: graphed(hfta(name, members), x, y)
    makers["hullo"] = lambda: population(name, members)
    makers["hullo, graph"] = lambda: population(name, members, graph=True)
    return makers


@dataclass
class Entry:
    """A contender: its step and inputs, its memory in MiB, the steps per round, and their times."""

    step: Step
    x: Tensor
    y: Tensor
    memory: float
    steps: int = 1
    times: list[float] = field(default_factory=list)

    def run(self) -> float:
        """Return the milliseconds of a step, from as many as make a round."""
        start = time.perf_counter()
        for _ in range(self.steps):
            self.step(self.x, self.y)
        synchronize()
        return 1e3 * (time.perf_counter() - start) / self.steps


def synchronize() -> None:
    if GPU:
        torch.cuda.synchronize()


def build(make: Callable[[], Step], x: Tensor, y: Tensor) -> Entry:
    """Make a contender and warm it up."""
    before = memory()
    step = make()
    for _ in range(WARM_UP):
        if GPU:
            torch.cuda.reset_peak_memory_stats()
        step(x, y)
        synchronize()
    peak = torch.cuda.max_memory_allocated() if GPU else 0
    held = memory()
    entry = Entry(step, x, y, max(peak - before[0], held[1] - before[1]) / 2**20 if GPU else float("nan"))
    entry.steps = min(200, max(1, round(SECONDS / (1e-3 * entry.run()))))
    return entry


def memory() -> tuple[int, int]:
    """Return the bytes of all tensors, and the bytes that are kept for them and for CUDA graphs."""
    gc.collect()
    if not GPU:
        return 0, 0
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TimeoutError(f"not made within {seconds} s")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def measure_cell(name: str, members: int, chosen: list[str] | None, limit: int, rounds: int) -> dict[str, Entry]:
    """Make the contenders of a cell, and let them take turns; return those that could be made."""
    x, y = make_batch(name, members)
    entries: dict[str, Entry] = {}
    for contender, make in contenders(name, members, x, y).items():
        if chosen and contender not in chosen:
            continue
        inputs = (x[0], y[0]) if contender in SINGLE else (x, y)
        start = time.perf_counter()
        try:
            with time_limit(limit):
                entries[contender] = build(make, *inputs)
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
            print(f"{name:9} K={members:3} {contender:21} left out: {reason}", flush=True)
            synchronize()
        else:
            print(f"{name:9} K={members:3} {contender:21} made in {time.perf_counter() - start:5.1f} s", flush=True)
    for _ in range(rounds):
        for entry in entries.values():
            entry.times.append(entry.run())
    return entries


def show_profile(contender: str, entry: Entry, steps: int = 3) -> None:
    """Print the kernels of a step that take the most time."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(steps):
            entry.step(entry.x, entry.y)
        synchronize()
    events = sorted(profile.key_averages(), key=lambda item: -item.self_device_time_total)
    total = sum(item.self_device_time_total for item in events)
    print(f"{contender}: {total / steps / 1e3:.3f} ms of kernels in a step", flush=True)
    for item in events[:25]:
        print(f"{item.self_device_time_total / steps:10.1f} us {item.count // steps:5} x  {item.key[:130]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=NETWORKS)
    parser.add_argument("--members", nargs="+", type=int, default=[1, 8, 60] if GPU else [1, 2])
    parser.add_argument("--contenders", nargs="+", help="names as above; all by default")
    parser.add_argument("--limit", type=int, default=90, help="seconds for making a contender")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--profile", action="store_true", help="print the kernels of each contender's step")
    parser.add_argument("--csv", type=Path)
    arguments = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    where = asdict(environment(torch.cuda.get_device_name() if GPU else "cpu"))
    done = {(row.network, row.members) for row in read_peers(arguments.csv)} if arguments.csv else set()
    for name, members in ((n, k) for n in arguments.networks for k in arguments.members if (n, k) not in done):
        torch.compiler.reset()
        entries = measure_cell(name, members, arguments.contenders, arguments.limit, arguments.rounds)
        rows = []
        for contender, entry in entries.items():
            ms, mib = (f"{value / members:.4g}" for value in (statistics.median(entry.times), entry.memory))
            rows.append(
                PeerRow(**where, network=name, members=members, contender=contender, ms=float(ms), mib=float(mib))
            )
            print(f"{name:9} K={members:3} {contender:21} {ms:>9} ms {mib:>9} MiB", flush=True)
            if arguments.profile:
                show_profile(contender, entry)
        if arguments.csv and rows:
            add_peers(arguments.csv, rows)
        entries.clear()


if __name__ == "__main__":
    main()
