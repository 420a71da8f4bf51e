"""Compare populations with other ways to train K networks, on work that kernels were not tuned for, in one run.

    python benchmarks/population_work.py --csv benchmarks/results/population_work.csv [--work nanogpt pinn]
    python benchmarks/population_work.py --csv rows.csv --tiny --device cpu     # a test of a minute

The workloads are in work_networks.py: a step is a forward and a backward pass, in bfloat16 by autocast except where
there is a table or an equation, and an update by SGD with momentum. Each network has data of its own. The contenders:

    compile, graph         one network under torch.compile, its step in a CUDA graph; K take K times as long
    graph                  one network, its step in a CUDA graph
    streams, graph         K networks on up to 16 streams, all their steps in one CUDA graph
    vmap, compile, graph   torch.func: K stacked networks under torch.compile, its step in a CUDA graph; networks with
                           different activations are stacked separately
    hullo                  hullo.population, its step captured

A row holds milliseconds per network and step, the median over rounds of many steps, and the most memory per network. A
contender that cannot be made has a row with the reason. Rows are written one by one; those that the file has are
skipped. The first line states the environment; a file of another one is left alone. Without a GPU nothing is captured.
"""

from __future__ import annotations

import argparse
import csv
import gc
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state
from torch.nn.attention import SDPBackend, sdpa_kernel
from work_networks import Work, workloads

from hullo.lab.spec.environment import device_name, environment
from hullo.population import SGD, Population, capture

COLUMNS = ("work", "members", "contender", "ms", "mib", "note")
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


def single(work: Work, device: torch.device, k: int = 0, is_compiled: bool = False) -> Step:
    """Return the step of network k."""
    network = work.make(k).to(device)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        chosen = (work.compiled_loss or work.loss) if is_compiled else work.loss
        return chosen(network, x, y, 1).sum()

    compiled = torch.compile(loss, dynamic=False) if is_compiled else loss
    return training_step(work, compiled, sgd(network.parameters()), device)


def streams(work: Work, device: torch.device) -> Step:
    """Return the step of K networks on several streams; one after the other without a GPU."""
    steps = [single(work, device, k) for k in range(work.members)]
    if device.type != "cuda":
        return lambda x, y: [step(x[k], y[k]) for k, step in enumerate(steps)]
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


def vmapped(work: Work, device: torch.device) -> Step:
    """Return the step of stacked networks by torch.func under torch.compile."""
    alike: dict[str, list[int]] = defaultdict(list)
    networks = [work.make(k).to(device) for k in range(work.members)]
    for k, network in enumerate(networks):
        alike[repr(network)].append(k)
    parts = []
    for indices in alike.values():
        parameters, buffers = stack_module_state([networks[k] for k in indices])
        parts.append((torch.tensor(indices, device=device), parameters, buffers, _stacked(work, networks[indices[0]])))

    def loss(x: Tensor, y: Tensor) -> Tensor:
        with sdpa_kernel(ATTENTION):
            losses = [call(parameters, buffers, x[k], y[k]) for k, parameters, buffers, call in parts]
        return torch.cat(losses).sum()

    trained = [parameter for _, parameters, _, _ in parts for parameter in parameters.values()]
    return training_step(work, loss, sgd(trained), device)


def _stacked(work: Work, network: nn.Module) -> Callable[..., Tensor]:
    """Return the compiled function of stacked parameters, buffers, inputs and targets to losses."""

    def one(parameters: Any, buffers: Any, x: Tensor, y: Tensor) -> Tensor:
        def forward(inputs: Tensor) -> Tensor:
            outputs: Tensor = functional_call(network, (parameters, buffers), (inputs,))
            return outputs

        return (work.compiled_loss or work.loss)(forward, x, y, 1).sum()

    return torch.compile(torch.func.vmap(one, randomness="different"), dynamic=False)


def population(work: Work, device: torch.device) -> Step:
    """Return the captured step of K networks by hullo.population."""
    networks = Population([work.make(k) for k in range(work.members)]).to(device)
    copies = torch.bfloat16 if work.half and device.type == "cuda" else None
    optimizer = SGD(networks, lr=1e-3, momentum=0.9, copies=copies)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return work.loss(networks, x, y, work.members).sum()

    return capture(training_step(work, loss, optimizer, device), networks, optimizer, check=False)


def graphed(step: Step, x: Tensor, y: Tensor) -> Step:
    """Return a step as a CUDA graph, which copies its inputs; without a GPU, as it is."""
    if not x.is_cuda:
        return step
    inputs, side = (x.clone(), y.clone()), torch.cuda.Stream()
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


CONTENDERS: dict[str, tuple[bool, Callable[[Work, Tensor, Tensor], Step]]] = {
    "compile, graph": (True, lambda work, x, y: graphed(single(work, x.device, is_compiled=True), x, y)),
    "graph": (True, lambda work, x, y: graphed(single(work, x.device), x, y)),
    "streams, graph": (False, lambda work, x, y: graphed(streams(work, x.device), x, y)),
    "vmap, compile, graph": (False, lambda work, x, y: graphed(vmapped(work, x.device), x, y)),
    "hullo": (False, lambda work, x, y: population(work, x.device)),
}
"""By name: whether there is one network alone, and the function that makes the step."""


def measure(work: Work, contender: str, device: torch.device, rounds: int, seconds: float) -> tuple[float, float]:
    """Return milliseconds and MiB per network and step."""
    is_single, make = CONTENDERS[contender]
    members = 1 if is_single else work.members
    x, y = (tensor[0] if is_single else tensor for tensor in work.data(members, device))
    _clear(device)
    step = make(work, x, y)
    for _ in range(WARM_UP):
        step(x, y)
    steps = max(1, round(seconds / _time(step, x, y, 1, device)))
    times = [_time(step, x, y, steps, device) for _ in range(rounds)]
    held = torch.cuda.max_memory_reserved() / 2**20 if device.type == "cuda" else float("nan")
    return 1e3 * statistics.median(times) / members, held / members


def _time(step: Step, x: Tensor, y: Tensor, steps: int, device: torch.device) -> float:
    """Return the seconds of a step, the mean of several."""
    start = time.perf_counter()
    for _ in range(steps):
        step(x, y)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / steps


def _clear(device: torch.device) -> None:
    """Forget compiled code and free memory of other contenders."""
    torch.compiler.reset()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def read_rows(path: Path, where: str) -> set[tuple[str, str]]:
    """Return the work and contender of each row of a file, which is begun if it does not exist."""
    if not path.exists():
        path.write_text(f"# {where}\n{','.join(COLUMNS)}\n")
        return set()
    first, *lines = path.read_text().splitlines()
    if first != f"# {where}":
        raise SystemExit(f"{path} was measured on {first.removeprefix('# ')}, this is {where}; give another file")
    return {(row["work"], row["contender"]) for row in csv.DictReader(lines)}


def remaining(
    chosen: Sequence[str], contenders: Sequence[str], done: set[tuple[str, str]]
) -> Iterator[tuple[str, str]]:
    """Yield what is still to be measured, all contenders of a workload one after the other."""
    return ((name, contender) for name in chosen for contender in contenders if (name, contender) not in done)


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path, required=True)
    parser.add_argument("--work", nargs="+", choices=workloads(), default=list(workloads()))
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.2, help="of a round")
    parser.add_argument("--tiny", action="store_true", help="small networks, one step a round")
    options = parser.parse_args(given)
    device = torch.device(options.device)
    torch.backends.cudnn.benchmark = True
    where, works = str(environment(device_name(device))), workloads(options.tiny)
    print(where, flush=True)
    for name, contender in remaining(options.work, options.contenders, read_rows(options.csv, where)):
        row: list[Any] = [name, works[name].members, contender]
        try:
            ms, mib = measure(works[name], contender, device, options.rounds, 0.0 if options.tiny else options.seconds)
            row += [f"{ms:.4g}", f"{mib:.4g}", ""]
        except Exception as error:  # such as no rule of vmap, or no memory
            row += ["", "", (str(error).strip() or type(error).__name__).splitlines()[0][:200]]
        with options.csv.open("a", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow(row)
        print(f"{name:10} K={row[1]:3} {contender:21} {row[3]:>9} ms {row[4]:>9} MiB {row[5]}", flush=True)


if __name__ == "__main__":
    main()
