"""Any network and any data: each kind is compared from end to end, in seconds."""

from __future__ import annotations

import functools
import json
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from filelock import FileLock, Timeout
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import hullo
from hullo.lab import compare
from hullo.lab.comparison import Result, engine, work
from hullo.lab.comparison.budget import MIN_PAIRS, Clock, OutOfTime, Plan, make_plan
from hullo.lab.comparison.candidates import Candidate, prepare, seeded
from hullo.lab.comparison.data import read_data
from hullo.lab.comparison.decision import FRESH, UNDECIDED, Choice, Trial, count_trials
from hullo.lab.comparison.store import score_of
from hullo.lab.comparison.task import make_task
from hullo.lab.comparison.trial import Setup, TrialLoop
from hullo.lab.spec.records import Records
from hullo.population import Population

compare_module = sys.modules["hullo.lab.comparison.compare"]  # whose name in its package is that of the function
X = torch.randn(240, 4, generator=torch.Generator().manual_seed(0))
LABELS, NUMBERS = (X[:, 0] * X[:, 1] > 0).long(), X[:, :1] * X[:, 1:2]
FAST: dict[str, Any] = {
    "minutes": 10.0,
    "epochs": 2,
    "lr": 1e-2,
    "seeds": 3,
    "quiet": True,
    "candidates": ["tanh", "hull"],
}


def mlp(outputs: int = 2, activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), activation(), nn.Linear(8, outputs))


class Branching(nn.Module):
    """A network whose control flow depends on values, which no population can take."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.act, self.out = nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.act(self.layer(x))
        return self.out(h if h.sum() > 0 else -h)


class Tokens(nn.Module):
    """A network that predicts a token at every position."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.hidden, self.out = nn.Embedding(5, 8), nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.gelu(self.hidden(self.embedding(x))))


def test_classification_has_a_table_a_finding_records_and_a_network(tmp_path: Path) -> None:
    result = compare(mlp, (X, LABELS), output=tmp_path, **FAST | {"lr": [3e-3, 1e-2, 3e-2]})
    assert {row.candidate for row in result.rows} == {"original", "tanh", "hull"}
    assert result.verdict is not None
    assert result.verdict.pairs == 3
    assert result.finding in str(result)
    assert result.best(X).shape == (240, 2)
    assert not result.best.training
    records = Records(result.folder / "records.jsonl").read()
    assert {record.spec.conditions["lr"] for record in records} == {"tuned"}
    at_their_rates = [trial for trial in result.store.records if trial.lr == result.choice.rates[trial.candidate]]
    assert len(records) == len(at_their_rates) < len(result.store.records)
    published = {(record.spec.activation, record.spec.seed): record.val_loss for record in records}
    assert published == {trial[::2]: result.store.records[trial].val_loss for trial in at_their_rates}
    assert type(result.network_of("tanh")[1]) is nn.Tanh  # type: ignore[index]
    result.to_csv(tmp_path / "rows.csv")
    head, *lines = (tmp_path / "rows.csv").read_text().splitlines()
    assert head.startswith("candidate,lr,role,validation")
    assert [line.partition(",")[0] for line in lines] == [row.candidate for row in result.rows]


def test_a_finished_comparison_is_not_trained_again_and_gives_the_same(tmp_path: Path) -> None:
    first = compare(mlp, (X, LABELS), output=tmp_path, **FAST)
    before = (first.folder / "trials.jsonl").read_bytes()
    second = compare(mlp, (X, LABELS), output=tmp_path, **FAST)
    assert (second.folder / "trials.jsonl").read_bytes() == before
    assert second.verdict == first.verdict


def test_more_minutes_and_seeds_look_again_at_a_smaller_error_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # noise, so that no look decides
    labels = torch.randint(2, (240,), generator=torch.Generator().manual_seed(1))
    options = FAST | {"candidates": ["tanh"]}
    with monkeypatch.context() as short:
        short.setattr(engine, "MAX_SEEDS", 1)
        first = compare(mlp, (X, labels), output=tmp_path, **options)
    second = compare(mlp, (X, labels), output=tmp_path, **options | {"minutes": 20.0, "seeds": 5})
    assert second.choice == first.choice  # which is not made again
    assert first.verdict is not None
    assert second.verdict is not None
    assert (first.verdict.pairs, second.verdict.pairs) == (3, 5)
    assert 1 - second.verdict.level == pytest.approx((1 - first.verdict.level) / 2)
    assert json.loads((second.folder / "comparison.json").read_text())["looks"] == [3, 5]


def test_a_confirmation_that_runs_out_of_time_counts_complete_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, fresh = work.train, []

    def stop_after_five(setup: Setup, call: tuple[list[Trial], int], **here: Any) -> work.Trained:
        fresh.extend(trial for trial in call[0] if trial.seed >= FRESH)
        if len(fresh) > 5:
            raise OutOfTime
        return train(setup, call, **here)

    monkeypatch.setattr(work, "train", stop_after_five)
    monkeypatch.setattr(compare_module, "CPU_MEMBERS", 1)
    result = compare(mlp, (X, LABELS), output=tmp_path, **FAST | {"candidates": ["tanh"], "seeds": 4})
    assert result.verdict is not None
    assert result.verdict.pairs == 2
    assert json.loads((result.folder / "comparison.json").read_text())["looks"] == [2]


def test_the_same_call_does_not_look_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    labels = torch.randint(2, (240,), generator=torch.Generator().manual_seed(1))
    options = FAST | {"candidates": ["tanh"], "seeds": None, "worth": 1e-6}
    with monkeypatch.context() as busy:  # only three seeds fit

        def predict(self: engine.Engine, runs: int) -> float:
            return math.inf if runs > 2 * 3 else 0.0

        busy.setattr(engine.Engine, "predict", predict)
        first = compare(mlp, (X, labels), output=tmp_path, **options)
    second = compare(mlp, (X, labels), output=tmp_path, **options)
    assert first.verdict is not None
    assert first.verdict.pairs == 3
    assert first.verdict.kind == UNDECIDED
    assert second.verdict == first.verdict


def test_regression_is_compared_by_an_error_that_is_better_if_lower(tmp_path: Path) -> None:
    result = compare(lambda: mlp(1), (X.numpy(), NUMBERS.numpy()), output=tmp_path, **FAST)
    assert result.task.name == "rmse"
    own = next(row for row in result.rows if row.candidate == "original")
    network = result.network_of("original")
    assert own.test > 0
    other = result.rows[1]
    assert other.validation_seeds == own.validation_seeds
    assert other.change == pytest.approx(other.validation - own.validation, abs=1e-6)
    assert network(X).shape == NUMBERS.shape
    record = Records(result.folder / "records.jsonl").read()[0]
    assert (record.metric, record.lower_is_better) == ("rmse", True)
    assert result.worth == pytest.approx(-max(result.choice.values("own").values()) / 100)
    assert result.worth > 0


def test_tokens_are_compared_by_their_loss(tmp_path: Path) -> None:
    tokens = torch.randint(5, (120, 7), generator=torch.Generator().manual_seed(0))
    pair = tokens[:, :-1], tokens[:, 1:]
    result = compare(Tokens, pair, output=tmp_path, **FAST | {"candidates": ["relu"]})
    assert result.task.name == "loss"
    assert not result.task.higher


def test_loaders_share_their_batches_with_all_members(tmp_path: Path) -> None:
    loaders = [DataLoader(TensorDataset(X, LABELS), batch_size=40, shuffle=shuffle) for shuffle in (True, False, False)]
    train, val, test = loaders
    result = compare(mlp, train, test, val, output=tmp_path, **FAST | {"candidates": ["tanh"]})
    assert result.task.name == "accuracy"
    assert result.verdict is not None


def test_a_step_of_your_own_takes_any_batch(tmp_path: Path) -> None:
    def collate(items: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
        return {"inputs": torch.stack([x for x, _ in items]), "labels": torch.stack([y for _, y in items])}

    def step(population: Any, batch: dict[str, Tensor]) -> Tensor:
        logits = population(batch["inputs"], in_dims=None)
        return torch.stack([F.cross_entropy(own, batch["labels"]) for own in logits])

    loader = DataLoader(TensorDataset(X, LABELS), batch_size=60, collate_fn=collate)
    result = compare(mlp, loader, loader, loader, step=step, output=tmp_path, **FAST | {"candidates": ["tanh"]})
    assert result.task.name == "loss"
    assert result.verdict is not None


def test_a_step_of_your_own_shows_the_inputs_of_the_network(tmp_path: Path) -> None:
    def step(population: Any, batch: list[Tensor]) -> Tensor:
        logits = population(2 * batch[0], in_dims=None)
        return torch.vmap(F.cross_entropy, in_dims=(0, None))(logits, batch[1])

    loader = DataLoader(TensorDataset(X, LABELS), batch_size=60)
    options = FAST | {"candidates": ["relu", "prelu"], "output": tmp_path}
    result = compare(mlp, loader, loader, loader, step=step, **options)
    assert [row.candidate for row in result.rows] == ["original", "prelu"]
    assert result.setup.example is not None
    assert result.setup.example[0].equal(2 * X[:8])


class Sum(nn.Module):
    """A network of two inputs that calls its activation as a function."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.out = nn.Linear(2, 8), nn.Linear(2, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.out(torch.relu(self.one(x) + self.two(y)))


def test_a_network_of_two_inputs_is_compared_by_a_step(tmp_path: Path) -> None:
    def step(population: Any, batch: list[Tensor]) -> Tensor:
        x, y, labels = batch
        return torch.vmap(F.cross_entropy, in_dims=(0, None))(population(x, y, in_dims=None), labels)

    loader = DataLoader(TensorDataset(X[:, :2], X[:, 2:], LABELS), batch_size=60)
    options = FAST | {"candidates": ["relu", "tanh"], "output": tmp_path}
    result = compare(Sum, loader, loader, loader, step=step, **options)
    assert [row.candidate for row in result.rows] == ["original", "tanh"]
    assert result.setup.example is not None
    assert [value.shape for value in result.setup.example] == [(8, 2), (8, 2)]
    assert result.network_of("tanh")(X[:, :2], X[:, 2:]).shape == (240, 2)


def test_modules_of_torch_are_candidates(tmp_path: Path) -> None:
    found, _ = prepare(seeded(mlp, (X,)), [nn.Mish, nn.ELU(), hullo.AffineHull], (X,), lambda population: None)
    assert [item.label for item in found] == ["original", "mish", "elu", "AffineHull"]


def test_one_process_at_a_time_writes_to_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = engine.Engine.run

    def run_locked(self: engine.Engine) -> Result:
        with pytest.raises(Timeout):
            FileLock(self.store.folder / ".lock").acquire(timeout=0)
        return run(self)

    monkeypatch.setattr(engine.Engine, "run", run_locked)
    assert compare(mlp, (X, LABELS), **FAST | {"candidates": ["tanh"], "output": tmp_path}).verdict is not None


class Dropping(nn.Module):
    """Dropout that PyTorch does not print."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.rate, self.training)


def test_functions_of_the_same_name_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.Engine, "run", lambda self: self)

    def folder(**changes: Any) -> Path:
        made: Any = compare(**{"network": mlp, "train": (X, LABELS), "output": tmp_path} | FAST | changes)
        return made.store.folder

    functions = (lambda x, y: (x.argmax(1) == y).double().mean(), lambda x, y: (x.argmax(1) > y).double().mean())
    losses = [functools.partial(named, reduction="none") for named in (F.cross_entropy, F.multi_margin_loss)]
    hulls = (lambda channels: hullo.AffineHull("relu", "sin"), lambda channels: hullo.AffineHull("relu", "tanh"))

    def rezero(scale: float) -> nn.Sequential:
        """Return a network whose outputs are 0 until it is trained."""
        network: Any = mlp()
        network[2].requires_grad_(False).weight.zero_()
        network[0].requires_grad_(False).weight.mul_(scale)
        return network.requires_grad_(True)

    def drop(rate: float) -> nn.Module:
        return nn.Sequential(Dropping(rate), mlp())

    def frozen(is_trained: bool) -> nn.Module:
        network: Any = mlp()
        network[0].requires_grad_(is_trained)
        return network

    networks = [functools.partial(rezero, scale) for scale in (1.0, 2.0)]
    networks += [functools.partial(frozen, is_trained) for is_trained in (True, False)]
    networks += [functools.partial(drop, rate) for rate in (0.1, 0.2)]
    folders = [folder(network=network) for network in networks]
    folders += [folder(metric=metric) for metric in functions] + [folder(metric=functions[0], higher_is_better=False)]
    folders += [folder(loss=loss) for loss in losses] + [folder(candidates=[hull]) for hull in hulls]
    assert len(set(folders)) == len(folders)
    assert folder(metric=functions[1]) == folders[len(networks) + 1]
    both: Any = compare(mlp, (X, LABELS), output=tmp_path, **FAST | {"candidates": hulls})
    assert list(both.setup.candidates) == ["own", "own:lambda", "own:lambda_2"]


def test_settings_are_told_apart_and_minutes_are_those_of_all_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.Engine, "run", lambda self: self)

    def call(**changes: Any) -> Any:
        return compare(**{"network": mlp, "train": (X, LABELS), "output": tmp_path} | FAST | changes)

    changes: list[dict[str, Any]] = [
        {},
        {"epochs": 3},
        {"lr": 3e-2},
        {"batch_size": 32},
        {"optimizer": "sgd"},
        {"weight_decay": 0.1},
        {"precision": "bfloat16"},
        {"metric": "loss"},
        {"candidates": ["tanh"]},
        {"name": "others"},
        {"train": (X + 1, LABELS)},
        {"train": (X, 1 - LABELS)},
    ]
    assert len({call(**change).store.folder for change in changes}) == len(changes)
    first = call()
    assert first.store.folder == call(minutes=20.0, seeds=5, worth=1.0).store.folder
    first.store.update(seconds=123.0)
    assert call().clock.spent > 123  # the time to prepare networks and data, too
    assert call(minutes=20.0).clock.left < 20 * 60 - 123


def test_steps_are_told_apart_and_checked_before_anything_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.Engine, "run", lambda self: self)
    loader = DataLoader(TensorDataset(X, LABELS), batch_size=60)

    def folder(function: Callable[[Tensor, Tensor], Tensor], **changes: Any) -> Path:
        def step(population: Any, batch: list[Tensor]) -> Tensor:
            return function(population(batch[0], in_dims=None), batch[1])

        options = FAST | {"candidates": ["tanh"], "output": tmp_path} | changes
        made: Any = compare(mlp, loader, loader, loader, step=step, **options)
        return made.store.folder

    def first(logits: Tensor, labels: Tensor) -> Tensor:
        return torch.vmap(F.cross_entropy, in_dims=(0, None))(logits, labels)

    assert folder(first) == folder(first) != folder(lambda logits, labels: 2 * first(logits, labels))
    with pytest.raises(ValueError, match="one loss for each"):
        folder(lambda logits, labels: first(logits, labels).mean())
    with pytest.raises(ValueError, match="leave them out"):
        folder(first, metric="accuracy")


def test_a_metric_of_your_own_sees_all_outputs(tmp_path: Path) -> None:
    def share(outputs: Tensor, targets: Tensor) -> Tensor:
        assert len(outputs) == len(targets) > 20
        return (outputs.argmax(1) == targets).double().mean()

    options = FAST | {"candidates": ["tanh"], "output": tmp_path}
    result = compare(mlp, (X, LABELS), metric=share, **options)
    assert result.task.name == "share"
    assert result.worth == pytest.approx(max(result.choice.values("own").values()) / 100)
    percent = compare(mlp, (X, LABELS), **options).store.scores()
    scores = result.store.scores()
    assert scores.keys() & percent.keys()
    for trial in scores.keys() & percent.keys():
        assert 100 * scores[trial].val == pytest.approx(percent[trial].val, abs=0.01)


def test_a_metric_may_need_all_samples(tmp_path: Path) -> None:
    """Such as one that is not defined for samples of one class, by which test data are often sorted."""

    def recall(outputs: Tensor, targets: Tensor) -> float:
        if len(targets.unique()) < 2:
            raise ValueError("one class")
        return float((outputs.argmax(1) == targets)[targets == 1].double().mean())

    x, y = torch.cat([X, X]), torch.arange(480) // 260  # more than are evaluated at once
    options = FAST | {"candidates": ["tanh"], "output": tmp_path}
    assert compare(mlp, (X, LABELS), (x, y), metric=recall, **options).verdict is not None


def test_what_a_population_cannot_take_is_trained_one_by_one_and_said(tmp_path: Path) -> None:
    result = compare(Branching, (X, LABELS), output=tmp_path, **FAST)
    assert "one by one" in str(result)
    records = [r for r in Records(result.folder / "records.jsonl").read() if r.spec.activation.startswith("affine")]
    assert records[0].coefficients[0] == [[0.0, 1.0, 0.0]]
    assert records[0].coefficients[-1] != records[0].coefficients[0]


class Counting(nn.Linear):
    """A layer that computes something else in every call, which a trace does not show."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x) / self.calls


def test_networks_that_break_the_contract_of_populations_are_trained_one_by_one() -> None:
    def network() -> nn.Module:
        return nn.Sequential(Counting(4, 8), nn.ReLU(), nn.Linear(8, 2))

    found, notes = prepare(seeded(network, (X,)), ["tanh"], (X,), lambda population: population.check(X, in_dims=None))
    assert [item.group for item in found] == [None, None]
    assert any("one by one: all networks; member 0 alone differs" in note for note in notes)


def test_candidates_that_cannot_share_a_population_get_their_own() -> None:
    def probe(population: Population) -> None:
        kinds = {type(population[k][1]) for k in range(len(population))}  # type: ignore[index]
        if nn.ReLU in kinds and len(kinds) > 1:
            raise ValueError("of another structure")

    found, notes = prepare(seeded(mlp, (X,)), ["tanh", "hull", "gelu"], (X,), probe)
    assert [item.group for item in found] == ["original", "the others", "the others", "the others"]
    assert "in 2 populations" in notes[0]


def test_populations_have_complete_pairs_first_even_if_the_original_is_apart() -> None:
    setup: Any = SimpleNamespace(candidates={"own": SimpleNamespace(group="a"), "gelu": SimpleNamespace(group="b")})
    nothing: Any = None
    plan = Plan((0.1,), members=6)
    made = engine.Engine(setup, nothing, work.Here(torch.device("cpu")), nothing, nothing, nothing, plan, 1, 1, 1.0)
    trials = Choice(rates={"own": 0.1, "gelu": 0.1}, challenger="gelu").confirmation(8)
    first, second = made._populations(trials)
    assert {trial.seed for trial in first} == {trial.seed for trial in second} == {FRESH, FRESH + 1, FRESH + 2}


@pytest.mark.parametrize("generator", [None, torch.Generator()])
def test_the_order_of_a_loader_depends_on_the_epoch_alone(generator: torch.Generator | None) -> None:
    loader = DataLoader(TensorDataset(X, LABELS), batch_size=40, shuffle=True, generator=generator)
    stream = read_data(loader, loader, loader)
    first, second, other = ([x for x, _ in stream.batches(X, epoch, 1, 0)] for epoch in (0, 0, 1))
    assert torch.cat(first).equal(torch.cat(second))
    assert not torch.cat(first).equal(torch.cat(other))


def test_memory_that_runs_out_halves_the_networks_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = TrialLoop.__init__

    def fail(self: TrialLoop, trials: Any, *args: Any) -> None:
        if len(trials) > 3:
            raise torch.OutOfMemoryError
        make(self, trials, *args)

    monkeypatch.setattr(TrialLoop, "__init__", fail)
    result = compare(mlp, (X, LABELS), output=tmp_path, **FAST | {"candidates": ["tanh"]})
    assert 1 < max(record.members for record in result.store.records.values()) <= 3
    assert result.verdict is not None


def test_probabilities_are_said_to_be_no_logits(tmp_path: Path) -> None:
    def network() -> nn.Module:
        return nn.Sequential(*mlp(), nn.Softmax(-1))

    result = compare(network, (X, LABELS), output=tmp_path, **FAST | {"candidates": ["tanh"]})
    assert "remove the softmax" in str(result)


def test_what_the_network_has_already_is_left_out(tmp_path: Path) -> None:
    result = compare(mlp, (X, LABELS), output=tmp_path, **FAST | {"candidates": ["relu", "tanh", "tanh"]})
    assert [row.candidate for row in result.rows if row.candidate != "original"] == ["tanh"]
    assert any("relu" in note for note in result.setup.notes)


class AskingItsActivation(nn.Module):
    """A network that computes something else if its activation is replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.act, self.out = nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.act(self.layer(x))
        return self.out(h if isinstance(self.act, nn.ReLU) else 2 * h)


def test_candidates_whose_swap_changes_more_than_activations_are_not_compared() -> None:
    with pytest.raises(ValueError, match="no candidate is left"):
        prepare(seeded(AskingItsActivation, (X,)), ["hull", "tanh"], (X,), lambda population: None)


def test_the_network_of_a_candidate_is_the_best_of_its_runs_after_its_best_epoch(tmp_path: Path) -> None:
    result = compare(lambda: mlp(1), (X, NUMBERS), output=tmp_path, **FAST | {"epochs": 4, "lr": 0.3})
    x, y = read_data((X, NUMBERS), None, None).parts["val"]
    for label, name in (("original", "own"), ("tanh", "tanh")):
        runs = [run for run in Records(result.folder / "trials.jsonl").read() if run.spec.activation == name]
        least = min(min(run.val_metric) for run in runs)
        error = F.mse_loss(result.network_of(label)(x), y).sqrt().item()
        assert error == pytest.approx(least, rel=1e-4)
    for run in Records(result.folder / "trials.jsonl").read():
        score = score_of(run, -1.0)
        assert score.val == -min(run.val_metric)
        assert score.test == -run.test_metric[run.val_metric.index(min(run.val_metric))]


def test_seeds_fix_weights_and_order_and_one_by_one_is_as_in_a_population() -> None:
    data = read_data((X, LABELS), None, None)
    assert data.first is not None
    inputs, targets = data.first
    found, _ = prepare(
        seeded(mlp, (inputs,)), ["tanh", "hull"], (inputs,), lambda population: population.check(inputs, in_dims=None)
    )
    task = make_task(targets, None, None)

    def curves(names: list[str], seeds: list[int], **changes: Any) -> Tensor:
        candidates = {item.name: replace(item, **changes) for item in found}
        setup = Setup("mlp", data, [], candidates, task, (inputs,), None, 32, "adamw", 0.01, "float32")
        trial = TrialLoop([Trial(name, 0.03, seed) for name, seed in zip(names, seeds, strict=True)], setup, epochs=3)
        for _ in trial.advance():
            pass
        return trial.curves["val_loss"]

    hull = found[2].name
    together = curves(["own", "own", "own", hull], [0, 1, 0, 0])
    assert [item.scale for item in found] == [1.0, 1.0, 10.0]
    assert (curves([hull], [0], scale=1.0)[:, 0] - together[:, 3]).abs().min() > 1e-5  # coefficients have a rate
    assert together[:, 0].equal(together[:, 2])
    assert (together[:, 0] - together[:, 1]).abs().min() > 1e-4
    assert (together[:, 0] - together[:, 3]).abs().max() < 0.05  # it starts as the ReLU
    for k, name in ((0, "own"), (3, hull)):
        torch.testing.assert_close(curves([name], [0], group=None)[:, 0], together[:, k], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("group", ["", None])
def test_of_several_kinds_of_hulls_those_of_most_layers_are_recorded(group: str | None) -> None:
    def network() -> nn.Module:
        layers = [nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)]
        return nn.Sequential(*layers)

    (_, hull), _ = prepare(seeded(network, (X,)), ["hull"], (X,), lambda population: None)
    data, candidates = read_data((X, LABELS), None, None), {hull.name: replace(hull, group=group)}
    setup = Setup("net", data, [], candidates, make_task(LABELS, None, None), (X[:8],), None, 32, "sgd", 0.0, "float32")
    trial = TrialLoop([Trial(hull.name, 0.1, 0)], setup, epochs=1)
    for _ in trial.advance():
        pass
    learned = trial.learned(0, hull)
    assert learned["bases"] == ["identity", "relu", "tanh"]
    assert learned["layers"] == ["1", "5"]
    assert learned["coefficients"][0] == [[0.0, 1.0, 0.0]] * 2
    assert [len(point) for point in learned["coefficients"]] == [2, 2]


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("group", [0, None])
def test_a_run_is_what_a_plain_loop_trains(optimizer: str, group: int | None) -> None:
    data = read_data((X, LABELS), None, None)
    assert data.first is not None
    candidate, task = Candidate("own", "original", seeded(mlp, (X,)), group=group), make_task(LABELS, None, None)
    setup = Setup("mlp", data, [], {"own": candidate}, task, (X[:8],), None, 32, optimizer, 0.5, "float32")
    trial = TrialLoop([Trial("own", 0.03, 3)], setup, epochs=2)
    network, orders = candidate.make(3), []
    groups = [
        {"params": [p for p in network.parameters() if p.dim() > 1], "weight_decay": 0.5},
        {"params": [p for p in network.parameters() if p.dim() == 1], "weight_decay": 0.0},
    ]
    make: Any = {"adamw": torch.optim.AdamW, "sgd": functools.partial(torch.optim.SGD, momentum=0.9)}[optimizer]
    plain = make(groups, lr=0.03)
    updates = 2 * math.ceil(data.count / 32)
    schedule = torch.optim.lr_scheduler.LambdaLR(plain, lambda done: (1 + math.cos(math.pi * done / updates)) / 2)
    for epoch in range(2):
        for (order,) in data.batches(torch.tensor([3]), epoch, 32, 0):
            x, y = data.parts["train"]
            plain.zero_grad()
            F.cross_entropy(network(x[order[0]]), y[order[0]]).backward()
            plain.step()
            schedule.step()
            orders.append(order[0])
    for _ in trial.advance():
        pass
    for one, two in zip(trial.population[0].parameters(), network.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)
    first, second = torch.cat(orders).chunk(2)
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(data.count))
    assert not first.equal(second)


def test_a_run_on_a_loader_takes_a_step_for_each_batch() -> None:
    loader = DataLoader(TensorDataset(X, LABELS), batch_size=50)  # the last batch is smaller
    make, task = seeded(mlp, (X,)), make_task(LABELS, None, None)
    setup = Setup(
        "mlp", read_data(loader, loader, loader), [], {"own": Candidate("own", "original", make)}, task, (X[:8],), None,
        50, "sgd", 0.0, "float32",
    )  # fmt: skip
    trial = TrialLoop([Trial("own", 0.1, 3)], setup, epochs=2)
    for _ in trial.advance():
        pass
    network = make(3)
    plain = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    for step in range(10):
        plain.param_groups[0]["lr"] = 0.1 * (1 + math.cos(math.pi * step / 10)) / 2
        plain.zero_grad()
        part = slice(50 * (step % 5), 50 * (step % 5) + 50)
        F.cross_entropy(network(X[part]), LABELS[part]).backward()
        plain.step()
    for one, two in zip(trial.population[0].parameters(), network.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


def test_mixed_precision_rounds_products() -> None:
    data = read_data((X, LABELS), None, None)
    candidate, task = Candidate("own", "original", seeded(mlp, (X,))), make_task(LABELS, None, None)
    losses = []
    for precision in ("float32", "bfloat16"):
        setup = Setup("mlp", data, [], {"own": candidate}, task, (X[:8],), None, 32, "adamw", 0.0, precision)
        trial = TrialLoop([Trial("own", 0.03, 0)], setup, epochs=1)
        for _ in trial.advance():
            pass
        losses.append(trial.curves["train_loss"].item())
    assert 1e-6 < abs(losses[0] - losses[1]) < 0.02


def test_costs_are_those_of_a_step_of_a_single_network_with_a_batch() -> None:
    found, _ = prepare(seeded(mlp, (X,)), ["gelu", "tanh"], (X,), lambda population: None)
    task, candidates = make_task(LABELS, None, None), {item.name: item for item in found}

    def measure(batch_size: int) -> list[work.StepCost]:
        data = read_data((X, LABELS), None, None)
        setup = Setup("mlp", data, [], candidates, task, (X[:8],), None, batch_size, "adamw", 0.0, "float32")
        return work.measure_costs(setup, ["own", "gelu", "tanh"], seconds=0.0)

    (relu, gelu, tanh), (_, more, _) = measure(32), measure(64)
    assert gelu.memory - relu.memory == 32 * 8 * 4  # its inputs, beside its outputs, which the next layer needs, too
    assert tanh.memory == relu.memory
    # inputs, those of the activation and of the next layer, probabilities and labels of each sample
    assert more.memory - gelu.memory == 32 * 4 * (4 + 8 + 8 + 2 + 2)
    assert min(relu.seconds, gelu.seconds, tanh.seconds) > 0


@pytest.mark.parametrize("is_regression", [False, True])
def test_the_interval_over_examples_adds_both_variances(is_regression: bool, tmp_path: Path) -> None:
    network, targets = (functools.partial(mlp, 1), NUMBERS) if is_regression else (mlp, LABELS)
    result = compare(network, (X, targets), output=tmp_path, **FAST | {"candidates": ["tanh"], "epochs": 4})
    found = result.verdict
    assert found is not None
    trials = result.choice.confirmation(found.pairs)
    scores = torch.stack([result.store.load_examples(trial) for trial in trials])  # type: ignore[misc]
    assert len(list((result.folder / "examples").iterdir())) == len(trials)  # those of the choice are not kept
    means = scores.mean(1)
    for trial, mean in zip(trials, means.tolist(), strict=True):
        expected = -math.sqrt(mean) if is_regression else mean
        assert result.store.score(trial).test == pytest.approx(expected, abs=0.01)
    if is_regression:  # the derivative of the root
        scores /= 2 * means.sqrt()[:, None]
    variances = found.deviation**2 / found.pairs, float((scores[::2] - scores[1::2]).mean(0).var()) / scores.shape[1]
    half = found.half * math.sqrt(sum(variances) / variances[0]) if variances[0] else 0.0
    expected_words = f"± {result.task.spell(half)} with other test examples, too"
    assert (expected_words in result.finding) == (variances[0] > 0)


def test_errors_have_the_units_of_the_targets() -> None:
    outputs, targets = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([[0.0], [4.0], [4.0]])
    for name, expected in (("mae", 7 * 1.0), ("rmse", 7 * math.sqrt(5 / 3)), ("loss", 5 / 3)):
        task = make_task(targets, "mse", name, scale=7.0)
        assert task.finish(float(task.score(outputs, targets, task.losses(outputs, targets)).mean())) == pytest.approx(
            expected
        )


def test_networks_are_made_from_their_seed_and_leave_the_random_state_as_it_was() -> None:
    make, before = seeded(mlp, (X,)), torch.get_rng_state()
    one, two, other = (make(seed).state_dict()["0.weight"] for seed in (3, 3, 4))
    assert one.equal(two)
    assert not one.equal(other)
    assert torch.get_rng_state().equal(before)


def test_coefficients_of_hulls_have_ten_times_the_rate_and_slopes_of_prelu_that_of_weights() -> None:
    names = ["prelu", "tanh", "convex(identity,relu)", "hull", lambda channels: hullo.AffineHull("relu", "sin")]
    found, _ = prepare(seeded(mlp, (X,)), names, (X,), lambda population: None)
    assert [item.scale for item in found] == [1.0, 1.0, 1.0, 10.0, 10.0, 10.0]


def test_as_many_epochs_are_planned_as_the_time_allows() -> None:
    measured = Plan((0.1, 0.01, 0.001), members=8, each=0.2)
    assert make_plan(Clock(600), measured, 7, epochs=None).epochs == 20
    with pytest.raises(ValueError, match="in all"):
        make_plan(Clock(600), measured, 7, epochs=600)
    for seconds in (25, 60, 240):  # half of them for the choice, also by one more learning rate, 0.4 for 8 pairs
        plan = make_plan(Clock(seconds), measured, 7, epochs=None)
        one_more = replace(plan, epochs=plan.epochs + 1)
        trials = count_trials(7, 4)
        assert plan.seconds(trials) <= seconds / 2
        assert plan.seconds(2 * MIN_PAIRS) <= 0.4 * seconds
        assert plan.epochs == 20 or max(one_more.seconds(trials) / 0.5, one_more.seconds(16) / 0.4) > 0.99 * seconds


def test_runs_that_diverge_are_counted_and_do_not_stop_others(tmp_path: Path) -> None:
    def network() -> nn.Sequential:
        made = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        if torch.initial_seed() == FRESH + 1:
            made[0].weight.data.fill_(1e38)
        return made

    result = compare(network, (X, LABELS), output=tmp_path, **FAST | {"candidates": ["tanh"]})
    by_name = {row.candidate: row for row in result.rows}
    assert by_name["original"].diverged == 1
    assert "1 of 6 networks diverged" in result.finding
    assert "other test examples" not in result.finding  # they have no scores of that network
    assert all(math.isfinite(row.test) and row.test_seeds == 3 for row in result.rows)


def test_epochs_after_a_divergence_have_the_metric_before_training() -> None:
    data, make = read_data((X, NUMBERS), None, None), seeded(lambda: mlp(1), (X,))
    candidate, task = Candidate("own", "original", make), make_task(NUMBERS, None, None)
    setup = Setup("mlp", data, [], {"own": candidate}, task, (X[:8],), None, 32, "sgd", 0.0, "float32")
    trial = TrialLoop([Trial("own", 1e30, 0)], setup, epochs=2)
    for _ in trial.advance():
        pass
    x, y = data.parts["val"]
    untrained = F.mse_loss(make(0)(x), y).sqrt().item()
    assert not trial.curves["finite"].any()
    assert trial.curves["val_metric"].flatten().tolist() == pytest.approx([untrained, untrained])


def test_if_all_runs_diverge_the_loss_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="diverged"):
        compare(
            mlp,
            (X, LABELS),
            loss=lambda x, y: torch.nan * F.cross_entropy(x, y, reduction="none"),
            **FAST | {"output": tmp_path},
        )


def from_numpy(network: Any) -> nn.Module:
    """Return a network whose weights do not depend on the seed of torch."""
    network[0].weight.data = torch.from_numpy(np.random.default_rng().normal(size=(8, 4))).float()
    return network


def loader(**options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(X, LABELS), batch_size=250, **options)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"minutes": 0}, "minutes"),
        ({"worth": -1.0}, "worth"),
        ({"optimizer": "lion"}, "adamw"),
        ({"epochs": 0}, "epochs=0"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"seeds": 1}, "seeds=1"),
        ({"weight_decay": -1.0}, "weight_decay"),
        ({"loss": "hinge"}, "cross_entropy"),
        ({"metric": "f1"}, "accuracy"),
        ({"lr": []}, "lr"),
        ({"candidates": ["gellu"]}, "gellu"),
        ({"candidates": ["relu"]}, "no candidate"),
        ({"loss": lambda outputs, targets: F.cross_entropy(outputs, targets)}, "per sample"),
        ({"minutes": 1e-4}, "too short"),
        ({"train": (X, NUMBERS), "loss": "cross_entropy"}, "need classes"),
        ({"train": (X, NUMBERS)}, "do not fit"),
        ({"network": lambda: nn.Sequential(nn.Flatten(), nn.ReLU())}, "no parameters"),
        ({"network": lambda: from_numpy(mlp())}, "random numbers of torch"),
        ({"candidates": []}, "candidates is empty"),
        ({"metric": lambda outputs, targets: (1, 2)}, r"returned \(1, 2\)"),
        ({"loss": nn.CrossEntropyLoss}, r"CrossEntropyLoss\(\)"),
        ({"optimizer": torch.optim.Adam}, "available: adamw"),
        ({"train": loader(), "val": loader()}, "test is NoneType"),
        ({"train": loader(), "val": loader(), "test": loader(drop_last=True)}, "test has no batches"),
        ({"train": (X, LABELS + 1)}, "classes 1 to 2"),
        ({"train": (X, 0 * LABELS)}, "at least two classes"),
        ({"network": lambda: mlp(1), "train": (X, 0 * NUMBERS)}, "numbers that differ"),
        ({"train": (X.where(X < 2, torch.nan), LABELS)}, "not finite"),
        ({"train": (X, LABELS.numpy().astype(str))}, "number classes"),
    ],
)
def test_errors_say_what_is_valid(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=words):
        compare(**{"network": mlp, "train": (X, LABELS), "output": tmp_path} | FAST | changes)


def test_data_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="as many"):
        compare(mlp, (X, LABELS[:-1]), output=tmp_path, **FAST)
    with pytest.raises(ValueError, match="differ"):
        compare(mlp, (X, LABELS), (X[:, :3], LABELS), output=tmp_path, **FAST)
    network = mlp()
    with pytest.raises(TypeError, match="class"):
        compare(network, (X, LABELS), output=tmp_path, **FAST)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="same module"):
        compare(lambda: network, (X, LABELS), output=tmp_path, **FAST)


def test_classes_and_yes_or_no_are_scored_by_their_accuracy_and_several_labels_by_their_loss() -> None:
    several = torch.stack([LABELS, LABELS], 1)
    assert make_task(LABELS, None, None).name == make_task(LABELS.float()[:, None], "bce", None).name == "accuracy"
    assert make_task(several, "bce", None).name == make_task(several, None, None).name == "loss"


def test_logits_above_zero_say_yes_and_the_largest_names_the_class_in_any_layout() -> None:
    yes, answers = torch.tensor([0.2, -0.2, 0.3, -3.0]), torch.tensor([1.0, 0.0, 0.0, 1.0])
    task = make_task(answers, "bce", "accuracy")
    for logits in (yes, yes[:, None]):
        assert task.score(logits, answers, task.losses(logits, answers)).tolist() == [100.0, 100.0, 0.0, 0.0]
    classes = torch.tensor([[0, 2, 1], [1, 1, 0]])
    logits = F.one_hot(classes, 4).float()
    task, aimed = make_task(classes, None, "accuracy"), torch.tensor([[0, 2, 3], [1, 0, 2]])
    for layout in (logits, logits.transpose(1, 2)):  # classes last, or second as in PyTorch
        assert task.score(layout, aimed, torch.zeros(2)).tolist() == pytest.approx([200 / 3, 100 / 3])


def test_a_function_with_the_name_of_a_metric_is_told_from_it() -> None:
    def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.argmax(1) == targets).double().mean()

    task = make_task(LABELS, None, accuracy)
    assert task.default_worth(0.9) == pytest.approx(0.009)
    assert "points" not in task.spell(0.1)
