"""Models of other packages, at most three of each, in small configurations: those of other.txt."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from checks import Case
from table import evaluate, make, read_table
from torch import nn
from torch import randn as some

TABLE = lambda: (torch.randint(0, 4, (5, 2)), some(5, 3))  # noqa: E731  (of categories and of numbers)
_NNUNET = {
    "input_channels": 3, "n_stages": 3, "features_per_stage": (4, 8, 8), "conv_op": nn.Conv2d, "kernel_sizes": 3,
    "strides": (1, 2, 2), "num_classes": 2, "n_conv_per_stage_decoder": 1, "norm_op": nn.InstanceNorm2d,
}  # fmt: skip


def _graph(features: int = 4) -> tuple[Any, ...]:
    """Return the nodes of a graph, a ring with chords, and its edges."""
    nodes = torch.arange(6)
    edges = torch.stack([torch.cat([nodes, nodes]), torch.cat([(nodes + 1) % 6, (nodes + 2) % 6])])
    return some(6, features), torch.cat([edges, edges.flip(0)], 1)


def cases() -> Iterator[Case]:
    for key, model, inputs in read_table("other.txt"):
        library, name = key.split("/")
        yield Case(library, name, partial(make, model, globals()), partial(evaluate, inputs, globals()))
