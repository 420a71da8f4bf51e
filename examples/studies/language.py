"""Does a learned activation help a language model? A character GPT on a text, or on Python source.

    python examples/studies/language.py shakespeare.txt --seeds 5 --output runs/language.jsonl
    python examples/studies/language.py /usr/lib/python3.12 --dropout 0 --output runs/language-source.jsonl

Six layers of width 384, context 256, batches of 64, 5,000 steps of AdamW with warm-up and cosine, gradients clipped. Of
the text, 90 % train, 5 % validate and 5 % test; the evaluation that is best on validation data counts. Scores are
losses in nats per byte. With the defaults this is nanoGPT's setting for Shakespeare.

Gated MLPs, down(act(gate(x)) * up(x)), have two thirds of the width, and so as many weights. A shared hull is one for
all layers.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import own_bases  # noqa: F401  (adds them)
import torch
import torch.nn.functional as F
from study import (
    Candidate,
    Make,
    Run,
    Scores,
    Train,
    UserError,
    at_rates,
    fixed,
    in_groups,
    main,
    populate,
    results,
    settings,
)
from torch import Tensor, nn

from hullo import AffineHull, LinearHull, presets
from hullo.population import AdamW, Population, capture
from hullo.population.schedules import cosine, warm_up

RATES = (5e-4, 1e-3, 2e-3)
AFFINE = partial(AffineHull, "identity", "tanh", "gelu", init="gelu", strict=False)
GATE = partial(AffineHull, "identity", "tanh", "silu", init="silu", strict=False)


CANDIDATES = {
    **fixed("gelu", "relu", "silu", "relu2", "leaky_relu2"),
    **fixed("silu", "gelu", form="gated"),
    **at_rates("xielu", lambda width: presets.xielu(), 10),
    **at_rates("affine from gelu", lambda width: AFFINE(), 10),
    "affine from gelu per channel": Candidate(lambda width: AFFINE(groups=width, channel_dim=-1)),
    **at_rates("shared affine from gelu", lambda width: AFFINE(), 10, form="shared"),
    "linear from relu2": Candidate(lambda width: LinearHull("identity", "relu", "relu2", init="relu2", strict=False)),
    "linear from leaky_relu2": Candidate(
        lambda width: LinearHull("identity", "tanh", "leaky_relu2", init="leaky_relu2")
    ),
    **at_rates("gated affine from silu", lambda width: GATE(), 10, form="gated"),
    "gated control": Candidate(lambda width: LinearHull("constant", "silu", init="silu"), form="gated"),
    **settings("gelu", -1),
}


class MLP(nn.Module):
    def __init__(self, width: int, make: Make, *, is_gated: bool) -> None:
        super().__init__()
        hidden = 8 * width // 3 if is_gated else 4 * width
        self.up, self.act, self.down = (
            nn.Linear(width, hidden, bias=False),
            make(hidden),
            nn.Linear(hidden, width, bias=False),
        )
        self.gate = nn.Linear(width, hidden, bias=False) if is_gated else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.up(x)) if self.gate is None else self.act(self.gate(x)) * self.up(x)
        return self.down(y)


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float, mlp: nn.Module) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.qkv, self.proj = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.mlp, self.drop = mlp, nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*parts, dropout_p=self.dropout if self.training else 0.0, is_causal=True)
        x = x + self.drop(self.proj(y.transpose(1, 2).reshape(batch, length, width)))
        return x + self.drop(self.mlp(self.norm2(x)))


class GPT(nn.Module):
    def __init__(
        self, vocabulary: int, length: int, layers: int, width: int, dropout: float, make: Make, form: str = ""
    ) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.drop = nn.Dropout(dropout)
        mlps = [MLP(width, make, is_gated=form == "gated") for _ in range(layers)]
        if form == "shared":
            for mlp in mlps:
                mlp.act = mlps[0].act
        self.blocks = nn.Sequential(*(Block(width, width // 64 or 1, dropout, mlp) for mlp in mlps))
        self.norm, self.head = nn.LayerNorm(width, bias=False), nn.Linear(width, vocabulary, bias=False)
        for name, p in self.named_parameters():
            if p.dim() == 2 and "act" not in name:
                nn.init.normal_(
                    p, std=0.02 / (2 * layers) ** 0.5 if name.endswith(("proj.weight", "down.weight")) else 0.02
                )
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.drop(self.tokens(tokens) + self.positions.weight[: tokens.shape[1]])
        return self.head(self.norm(self.blocks(x)))


def read(given: argparse.Namespace) -> Tensor:
    """Return the bytes of a file, or of all Python files in a directory, as tokens from 0 on."""
    files = sorted(given.text.rglob("*.py")) if given.text.is_dir() else [given.text]
    text = b"".join(file.read_bytes() for file in files)
    if len(text) < (least := 20 * (given.length + 1)):  # a sequence validates
        raise UserError(f"{given.text} has {len(text)} bytes of text: give {least} or more, or a smaller --length")
    found = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    known = found.unique()
    return torch.searchsorted(known, found)


def train(
    runs: Sequence[Run],
    text: Tensor,
    given: argparse.Namespace,
    steps: int,
    candidates: Mapping[str, Candidate] = CANDIDATES,
    trained: Mapping[int, Mapping[str, Tensor]] | None = None,
) -> tuple[Population, list[Scores]]:
    """Train runs of one form side by side on the same batches; return the losses where that of validation is lowest."""
    start, device, length, is_gpu = time.perf_counter(), text.device, given.length, text.device.type == "cuda"
    vocabulary, form = int(text.max()) + 1, candidates[runs[0].candidate].form

    def network(make: Make) -> nn.Module:
        return GPT(vocabulary, length, given.layers, given.width, given.dropout, make, form)

    population, settings = populate(runs, candidates, network, device, trained)
    vectors = [p for name, p in population.named_parameters() if name.startswith("stacked.") and p.dim() == 2]
    settings["groups"].append({"params": vectors, "weight_decay": 0.0})  # those of norms, of all members
    warm = max(1, steps // 50)
    optimizer = AdamW(
        population,
        weight_decay=0.1,
        betas=(0.9, 0.99),
        max_norm=1.0,
        schedule=warm_up(warm, then=cosine(max(1, steps - warm), end=0.1)),
        copies=torch.bfloat16 if is_gpu else None,
        **settings,
    )
    ends = len(text) * 9 // 10, len(text) * 19 // 20
    parts = {"train": text[: ends[0]], "val": text[ends[0] : ends[1]], "test": text[ends[1] :]}

    def losses(tokens: Tensor) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=is_gpu):
            logits = population(tokens[:, :-1], in_dims=None)
        return torch.vmap(F.cross_entropy, in_dims=(0, None))(logits.float().flatten(1, 2), tokens[:, 1:].flatten())

    def step(tokens: Tensor) -> None:
        optimizer.zero_grad()
        losses(tokens).sum().backward()
        optimizer.step()

    @torch.no_grad()
    def loss(part: Tensor) -> Tensor:
        population.eval()
        rows = part[: len(part) // (length + 1) * (length + 1)].view(-1, length + 1)
        rows = rows[:: max(1, len(rows) // given.evaluated)][: given.evaluated]  # from all of the part
        found = sum(losses(batch) * len(batch) for batch in rows.split(given.batch)) / len(rows)
        population.train()
        return found

    take = capture(step, population, optimizer)
    generator = torch.Generator().manual_seed(0)
    best = torch.full((2, len(runs)), torch.inf, device=device)
    window = torch.arange(length + 1)
    for number in range(steps + 1):
        if number:
            starts = torch.randint(len(parts["train"]) - length - 1, (given.batch, 1), generator=generator)
            take(parts["train"][(starts + window).to(device)])
        if number % given.every == 0 or number == steps:
            now = torch.stack([loss(parts[name]) for name in ("val", "test")])
            best = torch.where(now[0] < best[0], now, best)
    return population, results(population, best.T, start)


def open_train(given: argparse.Namespace, device: torch.device) -> Train:
    text = read(given).to(device)
    return lambda runs: in_groups(
        runs, lambda run: CANDIDATES[run.candidate].form, lambda group: train(group, text, given, given.steps)[1]
    )


def add_network_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the text and the network."""
    parser.add_argument("text", type=Path, help="a file, or a directory of Python files")
    for name, default in {"layers": 6, "width": 384, "length": 256, "batch": 64, "every": 250}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--evaluated", type=int, default=192, help="sequences of an evaluation")
    parser.add_argument("--dropout", type=float, default=0.2)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    add_network_arguments(parser)
    parser.add_argument("--steps", type=int, default=5000)
    main(parser, CANDIDATES, RATES, open_train)
