"""Find bases that make a good hull: pairs and triples of a dozen, affine and linear, by successive halving.

    python examples/studies/bases.py --network kerasnet --output runs/bases.jsonl

Each hull starts uniform, and is trained by the recipe of convolutions.py with every learning rate. Held-out images
choose the best eighth of these for a training that is four times as long, and so on; each training starts anew. The
five best hulls are then confirmed on fresh seeds and the test images, beside the hulls of the paper and fixed functions
at learning rates of their own. Errors in percent of the images. Runs of two epochs are in runs/bases-2.jsonl.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from itertools import combinations

import torch
from convolutions import add_image_arguments, load_images
from convolutions import train as train_networks
from study import Candidate, Choice, Make, Run, Scores, Study, add_arguments, fixed, open_study, print_report

from hullo import AffineHull, LinearHull

RATES = (0.02, 0.05, 0.1)
BASES = (
    *("identity", "relu", "tanh", "sin", "relu2", "elu"),
    *("softsign", "hardtanh", "unit_gelu", "unit_silu", "unit_softplus", "unit_mish"),
)
KINDS = {"affine": AffineHull, "linear": LinearHull}


def hull(kind: str, bases: Sequence[str]) -> Make:
    return lambda width: KINDS[kind](*bases, strict=False)


def hulls(kind: str, count: int, bases: Sequence[str] = BASES) -> dict[str, Candidate]:
    """Return the hulls of all sets of so many bases."""
    found = combinations(bases, count)
    return {f"{kind}({','.join(own)})": Candidate(hull(kind, own)) for own in found}


FIXED = fixed("relu", "tanh", "gelu", "silu", "elu", "mish")
CANDIDATES = FIXED | {key: made for kind in KINDS for count in (2, 3) for key, made in hulls(kind, count).items()}
PAPER = [f"affine({bases})" for bases in ("identity,relu", "identity,tanh", "relu,tanh", "identity,relu,tanh")]


def halve(
    names: Sequence[str],
    rates: Sequence[float],
    rungs: Sequence[int],
    open_rung: Callable[[int], Study],
    choosing: Sequence[int],
    keep: int = 8,
) -> dict[str, Choice]:
    """Return the candidates and rates that remain after the last rung, each with its best rate, best first.

    Args:
        names: the candidates.
        rates: the learning rates of each.
        rungs: the epochs of each training, from short to long.
        open_rung: opens the study of trainings of so many epochs.
        choosing: the seeds.
        keep: a rung hands on one of so many.
    """
    arms = [(name, lr) for name in names for lr in rates]
    for number, epochs in enumerate(rungs):
        study = open_rung(epochs)
        study.scores([Run(*arm, seed) for arm in arms for seed in choosing])
        vals = {arm: sum(study.values("val", *arm, choosing)) / len(choosing) for arm in arms}
        arms = sorted(arms, key=vals.__getitem__)
        if number < len(rungs) - 1:
            arms = arms[: max(1, len(arms) // keep)]
    best: dict[str, Choice] = {}
    for name, lr in arms:
        best.setdefault(name, Choice(lr, vals[name, lr]))
    return best


def make_report(given: argparse.Namespace, device: torch.device) -> str:
    images = load_images(given, device)

    def open_rung(epochs: int) -> Study:
        def train(runs: Sequence[Run]) -> Sequence[Scores]:
            return train_networks(runs, images, given.network, epochs, CANDIDATES)[1]

        search = dict.fromkeys(("bases", "kinds", "sizes", "rungs", "keep"))
        return open_study(
            given, given.output.with_stem(f"{given.output.stem}-{epochs}"), train, device, epochs=epochs, **search
        )

    choosing = range(given.choosing)
    bases = [base for base in BASES if base in given.bases]
    names = [name for kind in given.kinds for count in given.sizes for name in hulls(kind, count, bases)]
    left = halve(names, given.rates, given.rungs, open_rung, choosing, given.keep)
    found = dict(list(left.items())[:5])
    study = open_rung(given.rungs[-1])
    beside = study.choose([*FIXED, *PAPER], given.rates, choosing)
    fresh = range(given.first_seed, given.first_seed + given.seeds)
    return study.confirm(found | beside, FIXED, given.rates, fresh)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    add_image_arguments(parser)
    add_arguments(parser, RATES)
    parser.add_argument("--bases", nargs="+", default=list(BASES), choices=list(BASES))
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--sizes", type=int, nargs="+", default=[2, 3], help="numbers of bases")
    parser.add_argument("--rungs", type=int, nargs="+", default=[2, 8, 32], help="epochs, from short to long")
    parser.add_argument("--keep", type=int, default=8, help="a rung hands on one of so many")
    given = parser.parse_args()
    print_report(given, lambda device: make_report(given, device))
