"""Models of timm: the smallest of each family, on small images, cut to few blocks where the family allows it.

A line of timm.txt has the name of a model, the size of its images, and arguments for timm.create_model.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from checks import Case
from table import evaluate

TINY = {"embed_dim": 32, "depth": 2, "num_heads": 2}
VIT = {"img_size": 32, "patch_size": 8} | TINY


def cases() -> Iterator[Case]:
    import timm

    for line in (Path(__file__).parent / "timm.txt").read_text().splitlines():
        name, size, options = (*line.split(", ", 2), "")[:3]
        build = partial(timm.create_model, name, num_classes=5, **evaluate(f"dict({options})", globals()))
        yield Case("timm", name, build, lambda size=int(size): (torch.randn(2, 3, size, size),))
