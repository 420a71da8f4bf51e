"""Does a swap help a language model that is trained already? A GPT with GELU, trained on.

    python examples/studies/trained_language.py shakespeare.txt --seeds 5 --output runs/trained_language.jsonl

As trained.py does for a residual network, by the recipe of language.py: for every seed, a GPT with GELU is trained.
Each candidate starts with its weights, computes what it computes, and trains on for a fifth of the steps. Shakespeare
is short: a GPT that has trained for many more than 2,000 steps only gets worse.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
from language import AFFINE, add_network_arguments, read
from language import train as train_networks
from study import Candidate, Run, Scores, Train, at_rates, fixed, main
from torch import nn
from trained import STILL, States, add_swap_arguments, train_after

from hullo import LinearHull
from hullo.population import Population

RATES = (1e-4, 3e-4, 1e-3)
CANDIDATES = {
    **fixed("gelu"),
    "frozen hull": Candidate(lambda width: AFFINE().requires_grad_(False), is_fixed=True),
    STILL: Candidate(lambda width: nn.GELU()),
    "control": Candidate(lambda width: LinearHull("constant", "gelu", init="gelu")),
    **at_rates("affine from gelu", lambda width: AFFINE(), 10, 30),
    "affine from gelu per channel": Candidate(lambda width: AFFINE(groups=width, channel_dim=-1)),
}


def open_train(given: argparse.Namespace, device: torch.device) -> Train:
    text = read(given).to(device)

    def train_before(runs: Sequence[Run]) -> Population:
        return train_networks(runs, text, given, given.before, {"before": CANDIDATES["gelu"]})[0]

    def train_on(runs: Sequence[Run], states: States, steps: int) -> Sequence[Scores]:
        return train_networks(runs, text, given, steps, CANDIDATES, states)[1]

    return train_after(given, given.steps, train_before, train_on)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    add_network_arguments(parser)
    add_swap_arguments(parser, "steps", before=2000, after=400, before_lr=1e-3)
    main(parser, CANDIDATES, RATES, open_train)
