"""Compare populations with other ways to train K networks on one device, in one run, on the same work.

    python benchmarks/population_work.py --csv benchmarks/results/population_work.csv [--work nanogpt pinn]
    python benchmarks/population_work.py --csv rows.csv --work lenet5 resnet20 mlp gpt --members 1 8 60 --contenders all
    python benchmarks/population_work.py --csv rows.csv --tiny --device cpu     # a test of a minute

The workloads are in work_networks.py: a step is a forward and a backward pass, in bfloat16 by autocast except where
there is a table or an equation, and an update by SGD with momentum. Each network has data of its own. The contenders:

    graph                  one network, its step in a CUDA graph; K of them take K times as long
    compile, graph         the same under torch.compile
    graph, side by side    K networks on up to 16 streams, all their steps in one CUDA graph
    vmap, compile, graph   torch.func: K stacked networks under torch.compile, its step in a CUDA graph; networks with
                           different activations are stacked separately
    hullo, graph           hullo.population, its step captured
    eager loop             K networks, one after the other
    compile                one network under torch.compile(mode="reduce-overhead")
    vmap; vmap, graph; vmap, compile; hullo
                           the same without a graph, without torch.compile

The first five by default. A row holds milliseconds per network and step, the median over rounds of many steps, and
memory per network: the most that a step allocates, or what stays reserved for a graph, if that is more. A contender
that cannot be made, or not within --limit seconds, has a row with the reason. Rows are written one by one, of hullo and
of one compiled network for all workloads first, those without a record before others; rows that the file has are
skipped. After --minutes the measurement of that moment is cut off, and the same command goes on with it. Without a GPU
nothing is captured.
"""

from __future__ import annotations

import argparse
import gc
import math
import signal
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from harness import capture_steps
from peer_rows import PeerRow, add_peers, read_peers
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state
from torch.nn.attention import SDPBackend, sdpa_kernel
from work_networks import TUNED, Work, workloads

from hullo.lab.spec.environment import device_name, environment
from hullo.population import SGD, Population, capture

STREAMS, WARM_UP = 16, 3
ATTENTION = [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH]
"""All but memory-efficient attention, which torch.compile chooses under vmap, where its backward pass fails."""
Step = Callable[[Tensor, Tensor], Any]


def training_step(work: Work, loss: Callable[[Tensor, Tensor], Tensor], optimizer: Any, device: torch.device) -> Step:
    """Return a step: passes and an update."""

    def step(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=work.half and device.type == "cuda"):
            total = loss(x, y)
        total.backward()
        optimizer.step()

    return step


def sgd(parameters: Any) -> torch.optim.SGD:
    return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, fused=True)


def single(work: Work, device: torch.device, k: int = 0, compiled: str = "") -> Step:
    """Return the step of network k, under torch.compile if its mode is given."""
    network = work.make(k).to(device)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        chosen = (work.compiled_loss or work.loss) if compiled else work.loss
        return chosen(network, x, y, 1).sum()

    called = torch.compile(loss, mode=compiled, dynamic=False) if compiled else loss
    return training_step(work, called, sgd(network.parameters()), device)


def loop(work: Work, device: torch.device) -> Step:
    """Return the step of K networks, one after the other."""
    steps = [single(work, device, k) for k in range(work.members)]
    return lambda x, y: [step(x[k], y[k]) for k, step in enumerate(steps)]


def side_by_side(work: Work, device: torch.device) -> Step:
    """Return the step of K networks on several streams; one after the other without a GPU."""
    if device.type != "cuda":
        return loop(work, device)
    steps = [single(work, device, k) for k in range(work.members)]
    lanes = [torch.cuda.Stream() for _ in range(min(work.members, STREAMS))]

    def step(x: Tensor, y: Tensor) -> None:
        current = torch.cuda.current_stream()
        for lane in lanes:
            lane.wait_stream(current)
        for k, one in enumerate(steps):
            with torch.cuda.stream(lanes[k % len(lanes)]):
                one(x[k], y[k])
        for lane in lanes:
            current.wait_stream(lane)

    return step


def vmapped(work: Work, device: torch.device, is_compiled: bool = True) -> Step:
    """Return the step of stacked networks by torch.func."""
    alike: dict[str, list[int]] = defaultdict(list)
    networks = [work.make(k).to(device) for k in range(work.members)]
    for k, network in enumerate(networks):
        alike[repr(network)].append(k)
    parts = []
    for indices in alike.values():
        parameters, buffers = stack_module_state([networks[k] for k in indices])
        call = _stacked(work, networks[indices[0]])
        call = torch.compile(call, dynamic=False) if is_compiled else call
        parts.append((torch.tensor(indices, device=device), parameters, buffers, call))

    def loss(x: Tensor, y: Tensor) -> Tensor:
        with sdpa_kernel(ATTENTION):
            losses = [call(parameters, buffers, x[k], y[k]) for k, parameters, buffers, call in parts]
        return torch.cat(losses).sum()

    trained = [parameter for _, parameters, _, _ in parts for parameter in parameters.values()]
    return training_step(work, loss, sgd(trained), device)


def _stacked(work: Work, network: nn.Module) -> Callable[..., Tensor]:
    """Return the function of stacked parameters, buffers, inputs and targets to losses."""

    def one(parameters: Any, buffers: Any, x: Tensor, y: Tensor) -> Tensor:
        def forward(inputs: Tensor) -> Tensor:
            outputs: Tensor = functional_call(network, (parameters, buffers), (inputs,))
            return outputs

        return (work.compiled_loss or work.loss)(forward, x, y, 1).sum()

    return torch.func.vmap(one, randomness="different")


def population(work: Work, device: torch.device, is_captured: bool = True) -> Step:
    """Return the step of K networks by hullo.population."""
    networks = Population([work.make(k) for k in range(work.members)]).to(device)
    copies = torch.bfloat16 if work.half and device.type == "cuda" else None
    optimizer = SGD(networks, lr=1e-3, momentum=0.9, copies=copies)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return work.loss(networks, x, y, work.members).sum()

    step = training_step(work, loss, optimizer, device)
    return capture(step, networks, optimizer, check=False) if is_captured else step


def graphed(step: Step, x: Tensor, y: Tensor) -> Step:
    """Return a step as a CUDA graph, which copies its inputs; without a GPU, as it is."""
    if not x.is_cuda:
        return step
    inputs = x.clone(), y.clone()
    (replay,) = capture_steps(x.device, lambda: step(*inputs))

    def copy_and_replay(*new: Tensor) -> None:
        for captured, tensor in zip(inputs, new, strict=True):
            captured.copy_(tensor)
        replay()

    copy_and_replay.step = step  # type: ignore[attr-defined]  # keeps the tensors of the graph alive
    return copy_and_replay


Make = Callable[[Work, Tensor, Tensor], Step]
ALONE: dict[str, Make] = {
    "graph": lambda work, x, y: graphed(single(work, x.device), x, y),
    "compile, graph": lambda work, x, y: graphed(single(work, x.device, compiled="default"), x, y),
    "compile": lambda work, x, y: single(work, x.device, compiled="reduce-overhead"),
}
"""Contenders of one network alone."""
TOGETHER: dict[str, Make] = {
    "graph, side by side": lambda work, x, y: graphed(side_by_side(work, x.device), x, y),
    "vmap, compile, graph": lambda work, x, y: graphed(vmapped(work, x.device), x, y),
    "hullo, graph": lambda work, x, y: population(work, x.device),
    "eager loop": lambda work, x, y: loop(work, x.device),
    "vmap": lambda work, x, y: vmapped(work, x.device, is_compiled=False),
    "vmap, graph": lambda work, x, y: graphed(vmapped(work, x.device, is_compiled=False), x, y),
    "vmap, compile": lambda work, x, y: vmapped(work, x.device),
    "hullo": lambda work, x, y: population(work, x.device, is_captured=False),
}
CONTENDERS = ALONE | TOGETHER
FIRST = ("hullo, graph", "compile, graph")
"""Contenders that are measured for all workloads before others."""
DEFAULT = (*FIRST, "vmap, compile, graph", "graph, side by side", "graph")


class TimeUp(BaseException):
    """The time for a contender is over; no Exception, which torch.compile would take for an error of its own."""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise TimeUp in the block after some seconds."""

    def stop(*_: Any) -> None:
        raise TimeUp

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def measure(work: Work, contender: str, device: torch.device, rounds: int, seconds: float) -> tuple[float, float]:
    """Return milliseconds and MiB per network and step."""
    members = 1 if contender in ALONE else work.members
    x, y = (tensor[0] if contender in ALONE else tensor for tensor in work.data(members, device))
    allocated, reserved = _clear(device)
    step = CONTENDERS[contender](work, x, y)
    for _ in range(WARM_UP):
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        step(x, y)
    steps = max(1, round(seconds / _time(step, x, y, 1, device)))
    times = [_time(step, x, y, steps, device) for _ in range(rounds)]
    held = math.nan
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated() - allocated
        gc.collect()
        torch.cuda.empty_cache()
        held = max(peak, torch.cuda.memory_reserved() - reserved) / 2**20
    return 1e3 * statistics.median(times) / members, held / members


def _time(step: Step, x: Tensor, y: Tensor, steps: int, device: torch.device) -> float:
    """Return the seconds of a step, the mean of several."""
    start = time.perf_counter()
    for _ in range(steps):
        step(x, y)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / steps


def _clear(device: torch.device) -> tuple[int, int]:
    """Forget compiled code and free memory of other contenders; return the bytes that stay allocated and reserved."""
    torch.compiler.reset()
    gc.collect()
    if device.type != "cuda":
        return 0, 0
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path, required=True)
    parser.add_argument("--work", nargs="+", choices=workloads(), help=f"all but {', '.join(TUNED)} by default")
    parser.add_argument("--members", nargs="+", type=int, help="numbers of networks; by default that of each workload")
    parser.add_argument("--contenders", nargs="+", choices=[*CONTENDERS, "all"], default=DEFAULT)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.2, help="of a round")
    parser.add_argument("--minutes", type=float, default=1e4, help="of the whole command")
    parser.add_argument("--limit", type=float, default=200.0, help="seconds of a contender")
    parser.add_argument("--commit", help="the commit to record, where this is no checkout")
    parser.add_argument("--tiny", action="store_true", help="small networks, one step a round")
    options = parser.parse_args(given)
    device = torch.device(options.device)
    torch.backends.cudnn.benchmark = True
    where, works = environment(device_name(device), options.commit), workloads(options.tiny)
    print(where, flush=True)
    contenders = CONTENDERS if "all" in options.contenders else options.contenders
    cells = [
        (replace(works[name], members=members), contender)
        for name in options.work or [name for name in works if name not in TUNED]
        for members in options.members or [works[name].members]
        for contender in contenders
    ]
    done = {(row.network, row.members, row.contender) for row in read_peers(options.csv)}
    end = time.monotonic() + 60 * options.minutes
    for work, contender in sorted(cells, key=lambda cell: cell[1] not in FIRST):
        if (work.name, work.members, contender) in done:
            continue
        left, ms, mib, note = end - time.monotonic(), math.nan, math.nan, ""
        try:
            with at_most(min(left, options.limit)):
                ms, mib = measure(work, contender, device, options.rounds, 0.0 if options.tiny else options.seconds)
        except Exception as error:  # such as no rule of vmap, or no memory
            note = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        except TimeUp:
            if left <= options.limit:
                print(f"the time is over during {work.name}, {contender}; the same command goes on", flush=True)
                break
            note = f"not ready within {options.limit:g} seconds"
        ms, mib = (float(f"{value:.4g}") for value in (ms, mib))
        row = PeerRow(
            **vars(where), network=work.name, members=work.members, contender=contender, ms=ms, mib=mib, note=note
        )
        add_peers(options.csv, [row])
        print(f"{work.name:10} K={work.members:3} {contender:21} {ms:9} ms {mib:9} MiB {note}", flush=True)


if __name__ == "__main__":
    main()
