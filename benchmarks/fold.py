"""Measure what folding saves: inference with a hull before and after `hullo.fold`, in turns.

    python benchmarks/fold.py [--csv rows.csv]

A row, for hulls that became a known function and for some that did not: the median time of a forward pass before and
after, their ratio, and what the hull was folded to. 64 x 64 x 28 x 28 float32.
"""

from __future__ import annotations

import torch
from harness import Harness
from torch import nn

import hullo

HULLS = {
    "a ReLU": {"init": "relu"},
    "a leaky ReLU": {"init": [0.1, 0.9, 0.0]},
    "a tanh": {"init": "tanh"},
    "a leaky ReLU per channel": {
        "init": torch.stack([torch.tensor([k / 64, 1 - k / 64, 0.0]) for k in range(64)]),
        "groups": 64,
    },
    "a mixture": {},
    "a mixture per channel": {"groups": 64},
}


@torch.inference_mode()
def main(arguments: list[str] | None = None) -> None:
    harness = Harness(__doc__, rounds=30)
    harness.start(arguments)
    x = torch.randn(64, 64, 28, 28, device=harness.device)
    for title, options in HULLS.items():
        hull = nn.Sequential(hullo.AffineHull("identity", "relu", "tanh", **options)).to(x.device)
        folded = hullo.fold(hull, example_inputs=x)
        torch.testing.assert_close(folded(x), hull(x))
        times = harness.compare({"before": lambda hull=hull: hull(x), "after": lambda folded=folded: folded(x)})
        before, after = (1e3 * times[name].median for name in ("before", "after"))
        harness.add(
            hull=title, before_ms=before, after_ms=after, ratio=after / before, folded_to=type(folded[0]).__name__
        )


if __name__ == "__main__":
    main()
