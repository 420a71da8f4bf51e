"""A population that is saved and loaded goes on as if it had never stopped; a bad file is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from trained_alone import OPTIMIZERS

import hullo
from hullo.population import SGD, Adam, Population, checkpoint
from hullo.population.kernels import choice
from hullo.population.schedules import cosine

ACTS: list[Any] = [nn.ReLU, nn.PReLU, lambda: hullo.AffineHull("relu", "tanh"), lambda: hullo.ConvexHull("relu", "sin")]


def make(width: int = 6) -> Population:
    torch.manual_seed(0)
    return Population(
        [
            nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), act(), nn.Dropout(), nn.Linear(width, 2)).double()
            for act in ACTS
        ]
    )


def train(population: Population, optimizer: Any, batches: Tensor) -> None:
    for x in batches:
        optimizer.zero_grad()
        population(x, in_dims=None).square().flatten(1).mean(1).sum().backward()
        optimizer.step()


def states(*parts: Any) -> list[dict[str, Tensor]]:
    return [{name: tensor.clone() for name, tensor in part.state_dict().items()} for part in parts]


def assert_equal(one: list[dict[str, Tensor]], other: list[dict[str, Tensor]]) -> None:
    for state, wanted in zip(one, other, strict=True):
        assert state.keys() == wanted.keys()
        assert all(torch.equal(tensor, wanted[name]) for name, tensor in state.items())


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("kept", [None, [3, 1]])
def test_training_goes_on_to_the_bit(name: str, kept: list[int] | None, tmp_path: Path) -> None:
    kind, _, options = OPTIMIZERS[name]
    batches = torch.randn(6, 8, 4, dtype=torch.float64)
    whole, first, second = (make() for _ in range(3))
    optimizers = [kind(item, **options, schedule=cosine(10)) for item in (whole, first, second)]
    for population, optimizer in zip((whole, first), optimizers[:2], strict=True):
        train(population, optimizer, batches[:3])
        if kept:
            population.keep(kept)
    first.save(tmp_path / "run.pt", optimizers[1])
    second.load(tmp_path / "run.pt", optimizers[2])
    assert second.numbers == (kept or [0, 1, 2, 3])
    for population, optimizer in ((whole, optimizers[0]), (second, optimizers[2])):
        train(population, optimizer, batches[3:])
    assert_equal(states(second, optimizers[2]), states(whole, optimizers[0]))


def test_kernels_that_were_chosen_are_taken_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "_chosen", {"('forward', 3)": "rows"})
    make().save(tmp_path / "run.pt")
    monkeypatch.setattr(choice, "_chosen", {})
    make().load(tmp_path / "run.pt")
    assert choice.choices() == {"('forward', 3)": "rows"}


def test_a_file_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    path, population = tmp_path / "run.pt", make()
    optimizer = SGD(population, lr=0.1)
    make(width=5).save(path)
    with pytest.raises(RuntimeError, match="size mismatch"):
        population.load(path)
    with pytest.raises(ValueError, match=r"run\.pt is not a file of population\.save\(path, optimizer\)"):
        population.load(path, optimizer)
    saver = make()
    saver.save(path, Adam(saver))
    with pytest.raises(ValueError, match="another population or optimizer"):
        population.load(path, optimizer)
    torch.save({"something": 1}, path)
    with pytest.raises(ValueError, match=r"run\.pt is not"):
        population.load(path)
    population.keep([0, 1])
    saver.save(path)
    with pytest.raises(ValueError, match="member 2"):
        population.load(path)


def test_a_file_that_is_cut_off_or_of_other_activations_is_refused(tmp_path: Path) -> None:
    path, population = tmp_path / "run.pt", make()
    population.save(path)
    before, whole = states(population), path.read_bytes()
    for part in (b"", b"text", whole[: len(whole) // 2]):
        path.write_bytes(part)
        with pytest.raises(ValueError, match=r"run\.pt is cut off"):
            population.load(path)
    assert_equal(states(population), before)
    other = Population(lambda: nn.Sequential(nn.Linear(3, 2), nn.Tanh()), seeds=range(2))
    saved = Population(lambda: nn.Sequential(nn.Linear(3, 2), nn.ReLU()), seeds=range(2))
    saved.keep([0])
    saved.save(path)
    with pytest.raises(ValueError, match="other activations"):
        other.load(path)
    assert len(other) == 2


def test_an_optimizer_of_another_population_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="another population"):
        make().save(tmp_path / "run.pt", SGD(make(), lr=0.1))


def test_a_write_that_fails_leaves_the_file_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, population = tmp_path / "run.pt", make()
    population.save(path)
    before = path.read_bytes()

    def fail(parts: Any, file: Path) -> None:
        file.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint.torch, "save", fail)
    with pytest.raises(OSError, match="No space"):
        population.save(path)
    assert path.read_bytes() == before


def test_explain_counts_what_a_backward_pass_needs() -> None:
    population = Population(lambda: nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1)), seeds=range(4))
    explained = population.explain(torch.randn(4, 128, 16))
    assert "4.5 KiB of parameters" in explained  # 16 * 64 + 64 + 64 + 1 numbers of 4 bytes
    assert "32.0 KiB for a backward pass" in explained  # the output of tanh, 128 * 64 numbers
    with torch.no_grad():
        assert " 0.0 KiB for a backward pass" in population.explain(torch.randn(4, 128, 16))
