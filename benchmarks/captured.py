"""Steps of benchmarks as CUDA graphs."""

from __future__ import annotations

import torch

from hullo.lab.bench.clocks import Step
from hullo.population.graphs import pause_collection


def capture_steps(device: torch.device, *steps: Step) -> list[Step]:
    """Capture steps as CUDA graphs, in one memory pool: a step reads what an earlier one has written.

    Calling one replays it. Without a GPU, they are returned as they are.
    """
    if device.type != "cuda":
        return list(steps)
    # All on one stream: autograd accumulates gradients on the stream where their tensor was first used in a graph
    # that is still alive, from a warm-up or from an earlier capture with the same inputs.
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # one-time work such as compiling a kernel cannot be captured
        for _ in range(3):
            for step in steps:
                step()
    graphs: list[torch.cuda.CUDAGraph] = []
    with pause_collection():
        for step in steps:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=graphs[0].pool() if graphs else None, stream=stream):
                step()
            graphs.append(graph)
    return [graph.replay for graph in graphs]
