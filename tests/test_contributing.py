"""Test that the steps in CONTRIBUTING.md give a working base and network, and that every file it names exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import hullo
from hullo.bases import base as bases
from hullo.bases.catalogue import make_base
from hullo.keras.arithmetic import FUNCTIONS
from hullo.lab.cli import app
from hullo.lab.networks import NETWORKS, Entry
from hullo.lab.networks.init import MakeActivation
from hullo.lab.spec.recipes import RECIPES, Recipe
from hullo.lab.spec.records import Records

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()


def test_every_path_exists() -> None:
    paths = re.findall(r"`((?:src|tests|docs|tools|benchmarks)(?:/[\w./]+)?)`", TEXT)
    assert len(paths) > 15
    assert [path for path in paths if not (ROOT / path).exists()] == []
    tree = re.search(r"```text\n(.*?)```", TEXT, re.DOTALL)
    assert tree is not None
    rooms = re.findall(r"(?:^ {2}|; )([\w/]+/)(?= )", tree[1], re.MULTILINE)
    assert len(rooms) > 8
    assert [room for room in rooms if not (ROOT / "src" / "hullo" / room).is_dir()] == []


@pytest.fixture
def softer() -> Iterator[str]:
    """Yield a base of the catalogue, as its first step says: x / sqrt(1 + x^2)."""
    name = "softer"

    def softer() -> bases.Base:
        return make_base(name, "x / sqrt(1 + square(x))", "1 / ((1 + square(x)) * sqrt(1 + square(x)))")

    bases.family(softer)
    yield name
    del bases._families[name], bases._cache[name]


def test_a_base_in_three_steps(softer: str) -> None:
    def oracle(x: Tensor) -> Tensor:
        return x * (1 + x**2) ** -0.5

    x = torch.linspace(-5, 5, 101, dtype=torch.float64, requires_grad=True)
    hull = hullo.AffineHull("identity", softer, init=softer).double()
    torch.testing.assert_close(hull(x), oracle(x))
    torch.testing.assert_close(*(torch.autograd.grad(f(x).sum(), x)[0] for f in (hull, oracle)))
    assert hullo.slope_bounds(hull) == pytest.approx((0.0, 1.0), abs=1e-6)
    formula = hullo.get_base(softer).formula
    assert formula is not None
    in_keras, _ = formula.functions(FUNCTIONS)
    torch.testing.assert_close(in_keras(x.detach()), oracle(x.detach()))


class Tiny(nn.Module):
    """A network as the first step describes it."""

    def __init__(
        self, activation: MakeActivation, *, in_channels: int = 3, image_size: int = 32, num_classes: int = 10
    ) -> None:
        super().__init__()
        self.pool, self.act = nn.AvgPool2d(7), activation(1)
        self.first = nn.Linear(in_channels * (image_size // 7) ** 2, 8)
        self.last = nn.Linear(8, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.act(self.first(self.pool(x).flatten(1))))


def test_a_network_in_three_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NETWORKS, "tiny", Entry(Tiny, 7))
    monkeypatch.setitem(RECIPES, "tiny", Recipe(epochs=1, batch_size=50, optimizer="adam", lr=0.01))
    words = ["train", "tiny", "fashion-mnist-sample", "--activation", "affine(identity,relu)", "--device", "cpu"]
    outcome = CliRunner().invoke(app, [*words, "--output", str(tmp_path)])
    assert outcome.exit_code == 0, outcome.output
    (record,) = Records(tmp_path / "records.jsonl").read()
    assert (record.spec.network, record.spec.optimizer) == ("tiny", "adam")
    assert record.test_accuracy[-1] > 20  # ten classes
