"""Test the studies: what chooses, what confirms, and that scores are what they are called."""

from __future__ import annotations

import argparse
import importlib
import json
import math
import re
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from hullo import Hull
from hullo.lab import data

STUDIES = Path(__file__).parent.parent / "examples" / "studies"


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(STUDIES)
    monkeypatch.delitem(sys.modules, "own_bases", raising=False)  # every test starts without bases of its own
    importlib.import_module("own_bases")
    return importlib.import_module("study")


def open_study(study: ModuleType, path: Path, scores, at_once: int = 100, **options):
    """Return a study whose runs have the scores of a function of them."""
    about = {"arguments": {"epochs": 1}, "environment": {}}
    trained = []

    def train(runs):
        trained.append(list(runs))
        return [dict(zip(("val", "test", "seconds"), scores(run), strict=True)) for run in runs]

    opened = study.Study(path, train, about, at_once, **options)
    return opened, trained


def rows(table: str) -> dict[str, list[str]]:
    cells = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    return {re.sub(r" \(reference\)", "", own[0]): own for own in cells}


def candidates(study: ModuleType, *fixed: str, learned: tuple[str, ...] = ()):
    made = {name: study.Candidate(lambda width: nn.ReLU(), is_fixed=True) for name in fixed}
    return made | {name: study.Candidate(lambda width: nn.ReLU()) for name in learned}


def test_validation_chooses_rates_and_the_reference_and_fresh_seeds_confirm(study: ModuleType, tmp_path: Path) -> None:
    vals = {("a", 0.1): 5.0, ("a", 0.2): 4.0, ("a", 0.3): 6.0, ("b", 0.1): 3.0, ("b", 0.2): 7.0, ("b", 0.3): 7.0}

    def scores(run):
        val = vals.get((run.candidate, run.lr), 9.0 - run.lr)  # the hull: best at the end of the grid
        tests = {"a": 1.0, "b": 2.0, "hull": 1.5}  # a tests better than b, which validates better
        if run.seed < study.FRESH:
            return val, -100 * val, 1.0  # test scores of these would choose otherwise
        spread = 0.1 * (run.seed % 3)
        return (
            0.0,
            tests[run.candidate] + spread + {"a": 0.3, "b": 0.0, "hull": 0.01}[run.candidate] * (run.seed % 2),
            2.0,
        )

    opened, trained = open_study(study, tmp_path / "runs.jsonl", scores)
    compared = candidates(study, "a", "b", learned=("hull",))
    table = rows(opened.compare(compared, [0.1, 0.2, 0.3], range(2), range(100, 104)))
    assert list(table) == ["b", "a", "hull"]  # by validation
    assert table["b"][:4] == ["b (reference)", "0.1 (end of the grid)", "3", "2.1000 ± 0.1299"]
    assert table["a"][:3] == ["a", "0.2", "4"]
    assert table["hull"][1] == "0.3 (end of the grid)"
    assert table["a"][4] == "-0.8500 ± 0.2756"  # paired: the spread that seeds share cancels
    assert table["hull"][4].startswith("-0.4950 ± 0.0092")
    assert float(table["hull"][5]) == pytest.approx(2 * study.p_value([-0.5, -0.49, -0.5, -0.49]), rel=0.05)
    runs = [run for part in trained for run in part]
    assert {run.seed for run in runs} == {0, 1, *range(100, 104)}
    assert {run.lr for run in runs if run.seed >= 100 and run.candidate == "a"} == {0.2}


def test_diverged_runs_are_counted_and_never_chosen(study: ModuleType, tmp_path: Path) -> None:
    def scores(run):
        if run.candidate == "hull" and run.seed == 101:
            return 1.0, math.nan, 1.0
        return (math.nan if run.lr == 0.2 and run.seed == 1 else 3.0 - run.lr), 1.0 + run.seed % 2, 1.0

    opened, _ = open_study(study, tmp_path / "runs.jsonl", scores)
    table = rows(opened.compare(candidates(study, "a", learned=("b", "hull")), [0.1, 0.2], range(2), range(100, 103)))
    assert all(own[1].startswith("0.1") for own in table.values())  # a mean without the lost seed would take 0.2
    assert table["hull"][3:6] == ["diverged: 1 of 3", "", ""]
    assert table["b"][4] == "+0.0000 ± 0.0000"
    lost, _ = open_study(
        study, tmp_path / "lost.jsonl", lambda run: (1.0, math.inf if run.candidate == "a" else 1.0, 1.0)
    )
    table = rows(lost.compare(candidates(study, "a", learned=("b",)), [0.1], range(1), range(100, 103)))
    assert table["a"][3] == "diverged: 3 of 3"
    assert table["b"][3:5] == ["1.0000 ± 0.0000", ""]


def test_without_a_fixed_activation_there_is_no_reference(study: ModuleType, tmp_path: Path) -> None:
    opened, trained = open_study(study, tmp_path / "runs.jsonl", lambda run: (1.0, 1.0, 1.0))
    with pytest.raises(study.UserError, match="fixed"):
        opened.compare(candidates(study, learned=("a",)), [0.1], range(1), range(100, 102))
    assert trained == []  # before any time is spent


def test_parts_that_would_end_late_are_left_for_the_next_call(
    study: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(study.time, "monotonic", lambda: clock[0])

    def scores(run):
        seconds = 8.0 if run.candidate == "mean of 8" else 1.0 + run.seed / 2
        clock[0] += seconds
        return 1.0, 1.0, seconds

    path, runs = tmp_path / "runs.jsonl", [study.Run("a", 0.1, seed) for seed in (1, 0, 1, 0, 1, 0)]
    runs = [study.Run(run.candidate, number, run.seed) for number, run in enumerate(runs)]
    opened, trained = open_study(study, path, scores, at_once=2, end=7.4)
    with pytest.raises(study.OutOfTime, match=r"2 of 6 runs .* next 2 would take 0.1 minutes"):
        opened.scores(runs)  # parts end at 2.5 and 5; a third would end at 8, if both runs take 1.5
    assert [len(part) for part in trained] == [2, 2]
    assert [json.loads(line)["run"]["lr"] for line in path.read_text().splitlines()] == [0, 1, 2, 3]
    late, trained = open_study(study, path, scores, at_once=2, end=clock[0] + 2.9)
    with pytest.raises(study.OutOfTime):
        late.scores(runs)  # the file tells how long runs take
    assert trained == []
    again, trained = open_study(study, path, scores, at_once=2)
    assert len(again.scores(runs)) == 6
    assert [run.lr for part in trained for run in part] == [4, 5]
    again.scores([study.Run("mean of 8", 0.1, 0)])
    mixed, trained = open_study(study, path, scores, end=clock[0] + 11.1)
    mixed.scores([study.Run("a", 0.2, 0), study.Run("a", 0.2, 1), study.Run("mean of 8", 0.2, 0)])  # 1.5 + 1.5 + 8
    assert len(trained) == 1
    with pytest.raises(study.OutOfTime):
        mixed.scores([study.Run("b", 0.2, 0)])  # unknown: perhaps as long as the slowest


def test_runs_with_other_arguments_are_not_taken(study: ModuleType, tmp_path: Path) -> None:
    given = argparse.Namespace(
        output=tmp_path / "runs.jsonl",
        commit="abc",
        at_once=2,
        minutes=5.0,
        end=math.inf,
        seeds=2,
        only=["relu"],
        steps=20,
        text=Path("/somewhere/shakespeare.txt"),
        data=None,
    )
    scores = {"val": 1.0, "test": 1.0, "seconds": 1.0}

    def open_with(**changes):
        return study.open_study(
            argparse.Namespace(**vars(given) | changes), given.output, lambda runs: [scores], torch.device("cpu")
        )

    open_with().scores([study.Run("relu", 0.1, 0)])
    (record,) = map(json.loads, given.output.read_text().splitlines())
    assert record["arguments"] == {"steps": 20, "text": "shakespeare.txt"}
    assert record["environment"]["commit"] == "abc"
    assert open_with(seeds=5, minutes=1.0, only=["gelu"], commit="abd", text=Path("shakespeare.txt")).done
    with pytest.raises(ValueError, match=r"'steps': 20.*'steps': 2000.*--output"):
        open_with(steps=2000)


def test_mistakes_are_told_without_a_traceback(study: ModuleType, tmp_path: Path) -> None:
    given = argparse.Namespace(minutes=math.inf)
    for wrong in (study.UserError("--output"), study.DataError("hullo data fetch"), FileNotFoundError("--output")):
        with pytest.raises(SystemExit, match=r"error: .*(--output|fetch)"):
            study.print_report(given, Mock(side_effect=wrong))
    with pytest.raises(ZeroDivisionError):  # not the user's
        study.print_report(given, Mock(side_effect=ZeroDivisionError))


@pytest.mark.parametrize(("option", "few"), [("--seeds", 1), ("--choosing", 0), ("--at-once", 0), ("--first-seed", 99)])
def test_too_few_seeds_are_refused(
    study: ModuleType, option: str, few: int, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = argparse.ArgumentParser()
    study.add_arguments(parser, [0.1])
    parser.parse_args(["--output", "runs.jsonl", option, str(few + 1)])
    with pytest.raises(SystemExit):
        parser.parse_args(["--output", "runs.jsonl", option, str(few)])
    assert f"give {few + 1} or more" in capsys.readouterr().err


def test_groups_keep_the_order_of_runs(study: ModuleType) -> None:
    runs = [study.Run(name, 0.1, seed) for seed in range(2) for name in "abc"]
    seen = []

    def train(group):
        seen.append({run.candidate == "b" for run in group})
        return [{"val": run.seed, "name": ord(run.candidate)} for run in group]

    found = study.in_groups(runs, lambda run: run.candidate == "b", train)
    assert [(score["name"], score["val"]) for score in found] == [(ord(run.candidate), run.seed) for run in runs]
    assert seen == [{False}, {True}]


@pytest.mark.parametrize(("replaced", "other"), [("relu", "tanh"), ("gelu", "tanh"), ("tanh", "sin")])
def test_settings_change_one_thing_and_controls_have_as_many_free_numbers(
    study: ModuleType, replaced: str, other: str
) -> None:
    found, width = study.settings(replaced, -1, other), 5
    x = torch.linspace(-3, 3, 7 * width).view(7, width)
    function = {"relu": F.relu, "gelu": F.gelu, "tanh": torch.tanh}[replaced]
    made = {name: candidate.make(width) for name, candidate in found.items()}
    for name, act in made.items():
        starts_alike = torch.allclose(act(x), function(x), atol=1e-6)
        assert starts_alike == (name not in ("hull, uniform start", "hull, convex")) or name == "hull, convex"
    plain = made["hull"]
    assert plain.bases == made["hull, convex"].bases == made["hull, linear"].bases
    free = made["hull"].raw.numel() - 1, made["hull, per channel"].raw.numel() - width
    assert free == (made["control"].raw.numel(), made["control, per channel"].raw.numel()) == (2, 2 * width)
    assert [found[f"hull, rate x{scale}"].coefficient_lr_scale for scale in (3, 10, 30)] == [3, 10, 30]
    assert {name for name in found if found[name].coefficient_decay} == {"hull, decay 0.01"}
    assert not any(candidate.is_fixed for candidate in found.values())


def test_runs_get_their_own_settings(study: ModuleType) -> None:
    from hullo.population import AdamW

    known = study.settings("relu", -1) | {"prelu": study.Candidate(nn.PReLU)}
    runs = [study.Run("hull, rate x10", 0.1, 3), study.Run("hull, decay 0.01", 0.2, 3), study.Run("prelu", 0.3, 4)]
    population, settings = study.populate(
        runs, known, lambda make: nn.Sequential(nn.Linear(3, 4), make(4)), torch.device("cpu")
    )
    optimizer = AdamW(population, weight_decay=0.5, **settings)
    names = list(optimizer.parameters)
    weight, raw = names.index("stacked.0.weight"), names.index("activations.raw")
    assert optimizer.lr.tolist() == [0.1, 0.2, 0.3]
    assert optimizer.lr_scales[raw].tolist() == [10, 1, 1]
    for name in (raw, names.index("activations.slopes")):
        assert optimizer.own_decays[name].tolist() == [0, 0.01, 0]
    assert optimizer.own_decays[weight].isnan().all()
    assert torch.equal(population[0][0].weight, population[1][0].weight)  # the same seed starts alike
    assert not torch.equal(population[0][0].weight, population[2][0].weight)
    assert population.seeds.tolist() == [3, 3, 4]


def test_halving_hands_on_the_best_rates_and_forgets_none(study: ModuleType, tmp_path: Path) -> None:
    halve = importlib.import_module("bases").halve
    names, rates, opened = [f"n{number}" for number in range(16)], [0.1, 0.2], {}

    def quality(run, epochs):
        number = int(run.candidate[1:])
        if run.lr == 0.2 and number % 2:
            return math.nan
        return number + (0.5 if run.lr == 0.1 else 0.0) + (100 if epochs == 4 and number == 0 else 0)

    def open_rung(epochs):
        opened[epochs] = open_study(
            study, tmp_path / f"{epochs}.jsonl", lambda run: (quality(run, epochs) + run.seed, 0.0, 1.0)
        )
        return opened[epochs][0]

    left = halve(names, rates, [1, 4, 16], open_rung, range(2), keep=4)
    arms = {
        epochs: {(run.candidate, run.lr) for part in trained for run in part} for epochs, (_, trained) in opened.items()
    }
    assert len(arms[1]) == 32
    # after one epoch: n0 and n2 at both rates, n1 and n3 at the first, n4 at both
    assert arms[4] == {
        ("n0", 0.2),
        ("n0", 0.1),
        ("n1", 0.1),
        ("n2", 0.2),
        ("n2", 0.1),
        ("n3", 0.1),
        ("n4", 0.2),
        ("n4", 0.1),
    }
    assert arms[16] == {("n1", 0.1), ("n2", 0.2)}  # n0 was bad in the second rung
    assert {name: choice.lr for name, choice in left.items()} == {"n1": 0.1, "n2": 0.2}
    assert list(left) == ["n1", "n2"]
    assert left["n2"].val == 2.5  # the mean of both seeds


# Scores of networks that do not learn (a learning rate of zero) are those of the networks as they were made.


def test_errors_of_tables_are_of_the_mean_prediction_and_validation_chooses_the_epoch(study: ModuleType) -> None:
    tables = importlib.import_module("tables")
    x = torch.randn(3, 40, 8)
    y = torch.randn(3, 40, 1)
    parts = [(x[k], y[k]) for k in range(3)]
    runs = [study.Run("relu", 0.0, 5), study.Run("mean of 8 relu", 0.0, 5), study.Run("gelu", 0.0, 6)]
    found = tables.train(runs, parts, 2.0, 1)

    def outputs(seed, act, inputs):
        torch.manual_seed(seed)
        return tables.network(lambda width: act()).eval()(inputs)

    with torch.no_grad():
        for name, at in (("val", 1), ("test", 2)):
            single = outputs(5, nn.ReLU, x[at])
            several = torch.stack([outputs(5 + tables.SEEDS * k, nn.ReLU, x[at]) for k in range(8)]).mean(0)
            other = outputs(6, nn.GELU, x[at])
            expected = [float((each - y[at]).square().mean().sqrt()) * 2 for each in (single, several, other)]
            assert [score[name] for score in found] == pytest.approx(expected, rel=1e-5)
    assert found[1]["seconds"] == pytest.approx(8 * found[0]["seconds"])
    alike = (x[0], x[0][:, :1])
    first, later = (
        tables.train([study.Run("relu", 3e-3, 0)], [alike, alike, (x[0], -alike[1])], 1.0, n) for n in (1, 8)
    )
    assert later[0]["val"] < first[0]["val"]
    assert later[0]["test"] > first[0]["test"]  # the epoch that is best on validation data is the worst of the test


def test_ratios_of_images_are_those_of_the_last_weights(study: ModuleType) -> None:
    images = importlib.import_module("images")
    pictures = {seed: torch.rand(5, 6, 3) * 2 - 1 for seed in (0, 100)}
    runs = [study.Run("sin", 0.0, 0), study.Run("relu", 0.0, 100), study.Run("sin", 1e-3, 0)]
    found = images.train(runs, pictures.get, lambda make: images.Siren(3, make, 8, 2), 3, torch.device("cpu"))
    rows, columns = torch.meshgrid(torch.linspace(-1, 1, 5), torch.linspace(-1, 1, 6), indexing="ij")
    for run, score in zip(runs[:2], found[:2], strict=True):
        torch.manual_seed(run.seed)
        made = images.Siren(3, images.CANDIDATES[run.candidate].make, 8, 2)
        with torch.no_grad():
            error = (made(torch.stack([rows, columns], -1)) - pictures[run.seed]).square().mean()
        assert -score["test"] == pytest.approx(float(10 * torch.log10(2**2 / error)), rel=1e-4)
    assert found[2]["test"] < found[0]["test"]


def test_activations_of_other_papers(study: ModuleType) -> None:
    images, language = importlib.import_module("images"), importlib.import_module("language")
    z = torch.linspace(-0.2, 0.2, 9)
    finer = images.CANDIDATES["finer"].make(1)
    torch.testing.assert_close(finer(30 * z), torch.sin(30 * (z.abs() + 1) * z))
    squared = language.CANDIDATES["leaky_relu2"].make(1)
    torch.testing.assert_close(squared(z), F.leaky_relu(z, 0.5).square())
    assert not [p for act in (finer, squared) for p in act.parameters() if p.requires_grad]


def test_fresh_images_never_choose(study: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = importlib.import_module("images")
    for number in range(5):
        Image.new("RGB", (8, 6), (number, number, number)).save(tmp_path / f"{number}.png")
    seen = {}

    def look(runs, read_image, *_):
        seen.update({run.seed: round(float((read_image(run.seed)[0, 0, 0] + 1) * 127.5)) for run in runs})
        return [{"test": 0.0}] * len(runs)

    monkeypatch.setattr(images, "train", look)
    options = {"folder": tmp_path, "size": 4, "width": 4, "layers": 1, "steps": 1, "first_seed": 100}
    given = argparse.Namespace(**options, choosing=2, seeds=3)
    runs = [study.Run("sin", 0.1, seed) for seed in (0, 1, 100, 101, 102)]
    found = images.open_train(given, torch.device("cpu"))(runs)
    assert seen == {0: 0, 1: 1, 100: 4, 101: 3, 102: 2}
    assert [score["image"] for score in found] == ["0.png", "1.png", "4.png", "3.png", "2.png"]
    given.seeds = 4
    with pytest.raises(ValueError, match="more than 5"):
        images.open_train(given, torch.device("cpu"))


@pytest.fixture
def gpt(study: ModuleType) -> tuple[ModuleType, argparse.Namespace, torch.Tensor]:
    language = importlib.import_module("language")
    text = torch.randint(7, (900,), generator=torch.Generator().manual_seed(0))
    sizes = {"layers": 2, "width": 16, "length": 8, "batch": 2, "every": 1, "evaluated": 4, "dropout": 0.3}
    return language, argparse.Namespace(**sizes), text


@pytest.mark.parametrize("name", ["gelu", "gated silu", "shared affine from gelu"])
def test_losses_of_language_are_of_validation_and_test_text(study: ModuleType, gpt, name: str) -> None:
    language, given, text = gpt
    (score,) = language.train([study.Run(name, 0.0, 3)], text, given, 1)[1]
    torch.manual_seed(3)
    candidate = language.CANDIDATES[name]
    made = language.GPT(7, 8, 2, 16, 0.3, candidate.make, candidate.form).eval()
    for part, (low, high) in {"val": (810, 855), "test": (855, 900)}.items():
        sequences = text[low:high][:36].view(4, 9)
        with torch.no_grad():
            expected = F.cross_entropy(made(sequences[:, :-1]).flatten(0, 1), sequences[:, 1:].flatten())
        assert score[part] == pytest.approx(float(expected), rel=1e-5)


def test_texts_are_read_as_numbers_of_their_bytes(study: ModuleType, tmp_path: Path) -> None:
    language = importlib.import_module("language")
    (tmp_path / "b.py").write_text("ca" * 30)
    (tmp_path / "a.py").write_text("b")
    (tmp_path / "c.txt").write_text("no Python")
    assert language.read(argparse.Namespace(text=tmp_path, length=2)).tolist() == [1, *[2, 0] * 30]
    with pytest.raises(study.UserError, match=r"61 bytes.*80 or more"):
        language.read(argparse.Namespace(text=tmp_path, length=3))


def test_forms_of_language_models(study: ModuleType, gpt) -> None:
    language = gpt[0]

    def make(name, width=48):
        candidate = language.CANDIDATES[name]
        return language.GPT(7, 8, 2, width, 0.0, candidate.make, candidate.form)

    plain, gated = (sum(p.numel() for p in make(name).blocks.parameters()) for name in ("gelu", "gated silu"))
    assert gated == pytest.approx(plain, rel=0.01)
    x = torch.randn(5, 48)
    mlp = make("gated silu").blocks[0].mlp
    torch.testing.assert_close(mlp(x), mlp.down(F.silu(mlp.gate(x)) * mlp.up(x)))
    hulls = [
        [module for module in make(name).modules() if isinstance(module, Hull)]  # a module that is shared counts once
        for name in ("affine from gelu", "shared affine from gelu")
    ]
    assert [len(own) for own in hulls] == [2, 1]


def test_language_models_read_the_past_alone_and_start_as_gpt_2_does(study: ModuleType, gpt) -> None:
    language, _, text = gpt
    torch.manual_seed(0)
    made = language.GPT(7, 8, 2, 64, 0.0, lambda width: nn.ReLU())
    before, after = text[:8].clone().view(1, 8), text[:8].clone().view(1, 8)
    after[0, 5] = (after[0, 5] + 1) % 7
    with torch.no_grad():
        changed = (made(before) - made(after)).abs().amax((0, 2))
    assert changed[:5].max() < 1e-6 < changed[5:].min()
    for name, p in made.named_parameters():
        if p.dim() == 2:
            residual = name.endswith(("proj.weight", "down.weight"))
            assert float(p.detach().std()) == pytest.approx(0.02 / (2 * 2) ** 0.5 if residual else 0.02, rel=0.2)
    assert not [name for name, _ in made.named_parameters() if name.endswith("bias")]
    assert made.head.weight is made.tokens.weight


def test_evaluations_of_language_are_spread_over_the_text(study: ModuleType, gpt) -> None:
    language, given, text = gpt
    given.evaluated = 2
    (score,) = language.train([study.Run("gelu", 0.0, 3)], text, given, 1)[1]
    torch.manual_seed(3)
    made = language.GPT(7, 8, 2, 16, 0.3, lambda width: nn.GELU()).eval()
    rows = text[810:855].view(5, 9)[[0, 2]]
    with torch.no_grad():
        expected = F.cross_entropy(made(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
    assert score["val"] == pytest.approx(float(expected), rel=1e-5)


def test_best_evaluation_of_language_is_that_of_validation_data(study: ModuleType, gpt) -> None:
    language, given, _ = gpt
    given.dropout, start = 0.0, torch.arange(810) % 3
    text = torch.cat([start, torch.arange(45) % 3, 2 - torch.arange(45) % 3])  # the test text runs backwards
    few, many = (language.train([study.Run("gelu", 1e-2, 0)], text, given, n)[1][0] for n in (0, 60))
    assert many["val"] < 0.5 * few["val"]
    assert many["test"] > few["test"]


def test_physics_errors_are_relative_to_the_solution(study: ModuleType) -> None:
    physics = importlib.import_module("physics")
    problem = physics.Convection(2.0)
    (score,) = physics.train([study.Run("tanh", 0.0, 1)], problem, 20, 64, torch.device("cpu"))
    torch.manual_seed(1)
    made = physics.network(lambda width: nn.Tanh())
    times, places = torch.linspace(0, 1, 101), 2 * torch.pi * torch.arange(512) / 512
    points = torch.stack(torch.meshgrid(times, places, indexing="ij"), -1)
    exact = torch.sin(points[..., 1] - 2 * points[..., 0])
    with torch.no_grad():
        error = (made(points).squeeze(-1) - exact).norm() / exact.norm()
    assert score["test"] == pytest.approx(float(error), rel=1e-4)
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.rand(68, 2, generator=generator) for _ in range(20)]
    inner, edge = drawn[-1].split((64, 4))  # of the last step, which are the last twentieth
    inner = (inner * torch.tensor([1, 2 * torch.pi])).requires_grad_()
    (slopes,) = torch.autograd.grad(made(inner).sum(), inner)
    made.requires_grad_(False)
    places = 2 * torch.pi * edge[:, 1:]
    begin = made(torch.cat([torch.zeros_like(places), places], 1)) - places.sin()
    around = made(F.pad(edge[:, :1], (0, 1))) - made(F.pad(edge[:, :1], (0, 1), value=2 * torch.pi))
    expected = sum(part.square().mean() for part in (slopes[:, 0] + 2 * slopes[:, 1], begin, around))
    assert score["val"] == pytest.approx(float(expected), rel=1e-3)


def test_a_tenth_of_the_images_validates_and_crops_are_padded_with_black(
    study: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    convolutions = importlib.import_module("convolutions")
    pixels = torch.full((60, 3, 8, 8), 255, dtype=torch.uint8)
    whole = data.Dataset("white", ("a", "b"), pixels, torch.arange(60) % 2, pixels[:10], torch.arange(10) % 2)
    monkeypatch.setattr(convolutions.data, "load", lambda *_: whole)
    held = convolutions.load_images(argparse.Namespace(name="white", data=None), torch.device("cpu"))
    assert [len(held.train_labels), len(held.eval_sets["val"][1]), len(held.eval_sets["test"][1])] == [54, 6, 10]
    index, moves = torch.zeros(1, 1, dtype=torch.int64), torch.tensor([[[0, 2, 0]]])
    shown = convolutions.AugmentedImages(pixels, index, moves, **convolutions.LOOK).tensor()[0, 0]
    black, white = (
        (tone - torch.tensor(convolutions.LOOK["mean"])) / torch.tensor(convolutions.LOOK["std"]) for tone in (0, 1)
    )
    torch.testing.assert_close(shown[:, 0, 0], black)
    torch.testing.assert_close(shown[:, -1, 0], white)


def test_errors_of_images_are_percent_of_each_set(study: ModuleType) -> None:
    convolutions = importlib.import_module("convolutions")
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (60, 3, 8, 8), dtype=torch.uint8, generator=generator)
    labels = torch.randint(10, (60,), generator=generator)
    classes = tuple("abcdefghij")
    held = data.Dataset("drawn", classes, pixels, labels, pixels[:25].flip(0), labels[:25]).split_validation(30, seed=0)
    _, (score,) = convolutions.train([study.Run("relu", 0.1, 0)], held, "resnet8", 0)
    torch.manual_seed(0)
    made = convolutions.NETWORKS["resnet8"](lambda width: nn.ReLU()).eval()
    for name in ("val", "test"):
        source, expected = held.eval_sets[name]
        mean, std = (torch.tensor(convolutions.LOOK[key]).view(3, 1, 1) for key in ("mean", "std"))
        with torch.no_grad():
            found = made((source / 255 - mean) / std).argmax(-1)
        assert score[name] == pytest.approx(100 * float((found != expected).double().mean()))
    assert score["val"] != score["test"]


@pytest.fixture
def tiny(study: ModuleType) -> data.Dataset:
    pixels = torch.randint(256, (260, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(260) % 2
    return data.Dataset("tiny", ("a", "b"), pixels, labels, pixels[:10], labels[:10]).split_validation(26, seed=0)


def test_swapped_residual_networks_start_as_the_trained_one(study: ModuleType, tiny: data.Dataset) -> None:
    convolutions, trained = (importlib.import_module(name) for name in ("convolutions", "trained"))
    before, _ = convolutions.train([study.Run("relu", 0.1, 0)], tiny, "resnet8", 1)
    runs = [study.Run(name, 0.1, 0) for name in trained.CANDIDATES]
    states = {0: before[0].state_dict()}
    after, scores = convolutions.train(runs, tiny, "resnet8", 0, trained.CANDIDATES, states)
    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        expected = before[0].eval()(x)
        for y in after.eval()(x, in_dims=None):
            torch.testing.assert_close(y, expected)
    assert len({(score["val"], score["test"]) for score in scores}) == 1


def test_swapped_language_models_start_as_the_trained_one(study: ModuleType, gpt) -> None:
    language, given, text = gpt
    trained = importlib.import_module("trained_language")
    before, scores = language.train([study.Run("gelu", 1e-2, 0)], text, given, 3)
    runs = [study.Run(name, 0.1, 0) for name in trained.CANDIDATES]
    states = {0: before[0].state_dict()}
    after, found = language.train(runs, text, given, 0, trained.CANDIDATES, states)
    x = text[:8].view(1, 8)
    with torch.no_grad():
        expected = before[0].eval()(x)
        for y in after.eval()(x, in_dims=None):
            torch.testing.assert_close(y, expected)
    assert len({round(score["val"], 5) for score in found}) == 1
    assert found[0]["val"] >= scores[0]["val"] - 1e-5  # that of training is the best of its evaluations


def test_networks_are_trained_once_before_the_swap_and_kept(study: ModuleType, tmp_path: Path) -> None:
    trained = importlib.import_module("trained")
    given = argparse.Namespace(output=tmp_path / "runs.jsonl", choosing=1, first_seed=100, seeds=2, before_lr=0.5)
    asked, went_on = [], []

    def train_before(runs):
        asked.append([(run.seed, run.lr) for run in runs])
        return [
            nn.Linear(1, 1).requires_grad_(False).apply(lambda layer, s=run.seed: layer.weight.fill_(s)) for run in runs
        ]

    def train_on(runs, states, steps):
        went_on.append((steps, [run.candidate for run in runs]))
        return [{"val": float(states[run.seed]["weight"]), "test": 0.0, "seconds": 0.0} for run in runs]

    runs = [study.Run(name, 0.1, seed) for seed in (0, 100, 101) for name in ("relu", trained.STILL)]
    for _ in range(2):  # the second time, from the file
        found = trained.train_after(given, 7, train_before, train_on)(runs)
        assert [score["val"] for score in found] == [run.seed for run in runs]
    assert asked == [[(0, 0.5), (100, 0.5), (101, 0.5)]]
    assert went_on == 2 * [(7, ["relu"] * 3), (0, [trained.STILL] * 3)]
    given.seeds = 3
    trained.train_after(given, 7, train_before, train_on)([study.Run("relu", 0.1, 102)])
    assert asked[1:] == [[(102, 0.5)]]


def test_reference_solution_of_allen_and_cahn_is_that_of_another_method(study: ModuleType) -> None:
    problem = importlib.import_module("physics").AllenCahn()
    times, places = torch.linspace(0, 1, 6, dtype=torch.float64), torch.arange(512, dtype=torch.float64) / 256 - 1
    fine = torch.arange(1024, dtype=torch.float64) / 512 - 1
    u, steps = fine**2 * torch.cos(torch.pi * fine), 1000
    expected, dt = [u], 1 / steps

    def slope(u):  # finite differences, where the study has a Fourier series
        return 1e-4 * (u.roll(1) - 2 * u + u.roll(-1)) * 512**2 - 5 * u**3 + 5 * u

    for step in range(steps):  # Runge and Kutta
        a = slope(u)
        b = slope(u + dt / 2 * a)
        c = slope(u + dt / 2 * b)
        u = u + dt / 6 * (a + 2 * b + 2 * c + slope(u + dt * c))
        if (step + 1) % 200 == 0:
            expected.append(u)
    found = problem.solution(times, places)
    assert (found - torch.stack(expected)[:, ::2]).norm() < 1e-4 * found.norm()


def test_networks_of_physics_start_as_glorot_says(study: ModuleType) -> None:
    torch.manual_seed(0)
    made = importlib.import_module("physics").network(lambda width: nn.Tanh())
    for layer in made[::2]:
        bound = (6 / (layer.in_features + layer.out_features)) ** 0.5
        assert 0.9 * bound < float(layer.weight.detach().abs().max()) <= bound
        assert not layer.bias.detach().any()


def test_residuals_are_those_of_the_equations(study: ModuleType) -> None:
    physics = importlib.import_module("physics")
    u, t, x, xx = (torch.tensor(number) for number in (2.0, 3.0, 7.0, 1e4))
    assert float(physics.AllenCahn().residual(u, t, x, xx)) == pytest.approx(3 - 1 + 5 * 2**3 - 5 * 2)
    assert float(physics.Convection(30.0).residual(u, t, x, None)) == 3 + 30 * 7


def test_studies_that_write_at_the_same_time_lose_no_runs(study: ModuleType, tmp_path: Path) -> None:
    path, start = tmp_path / "runs.jsonl", threading.Barrier(3)

    def write(first):
        opened, _ = open_study(study, path, lambda run: (1.0, 1.0, 1.0), at_once=1)
        start.wait()
        opened.scores([study.Run("a", 0.1, seed) for seed in range(first, first + 20)])

    threads = [threading.Thread(target=write, args=(first,)) for first in (0, 20, 40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(json.loads(line)["run"]["seed"] for line in path.read_text().splitlines()) == list(range(60))


def test_two_processes_of_a_study_lose_no_runs(study: ModuleType, tmp_path: Path) -> None:
    path, scores = tmp_path / "runs.jsonl", {"val": 1.0, "test": 1.0, "seconds": 1.0}
    about = {"arguments": {}, "environment": {}}
    both = [study.Study(path, lambda runs: [scores] * len(runs), about, 2) for _ in range(2)]
    for number, one in enumerate(both):
        one.scores([study.Run("relu", 0.1, number)])
    before = path.read_bytes()
    assert [json.loads(line)["run"]["seed"] for line in before.splitlines()] == [0, 1]
    with pytest.raises(TypeError):  # a score that cannot be written
        study.Study(path, lambda runs: [scores, {"val": object()}], about, 2).scores(
            [study.Run("relu", 0.1, seed) for seed in (2, 3)]
        )
    assert path.read_bytes() == before
    assert sorted(study.Study(path, None, about, 2).done, key=lambda run: run.seed) == [
        study.Run("relu", 0.1, seed) for seed in (0, 1)
    ]


class NothingFromTheHost(TorchDispatchMode):
    """Refuse what a CUDA graph cannot repeat: tensors made of numbers of the host, and numbers read from tensors."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        assert function.overloadpacket not in (torch.ops.aten.lift_fresh, torch.ops.aten._local_scalar_dense)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["tables", "images", "language", "convolutions", "convection", "allen-cahn"])
def test_steps_can_be_captured(
    study: ModuleType, gpt, tiny: data.Dataset, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, given, text = gpt
    module = importlib.import_module("physics" if name in ("convection", "allen-cahn") else name)
    calls = []

    def capture(step, *stateful):
        def take(*inputs):
            calls.append(inputs)
            with NothingFromTheHost() if len(calls) > 1 else nullcontext():  # the first call warms up
                return step(*inputs)

        return take

    monkeypatch.setattr(module, "capture", capture)
    cpu, rows = torch.device("cpu"), [(torch.randn(40, 8), torch.randn(40, 1)) for _ in range(3)]
    train = {
        "tables": lambda runs: module.train(runs, rows, 1.0, 3),
        "images": lambda runs: module.train(
            runs, lambda seed: torch.rand(4, 4, 3), lambda make: module.Siren(3, make, 8, 2), 3, cpu
        ),
        "language": lambda runs: module.train(runs, text, given, 3),
        "convolutions": lambda runs: module.train(runs, tiny, "resnet8", 3),
        "convection": lambda runs: module.train(runs, module.Convection(3.0), 3, 32, cpu),
        "allen-cahn": lambda runs: module.train(runs, module.AllenCahn(), 3, 32, cpu),
    }[name]
    fixed, *learned = module.CANDIDATES
    train([study.Run(fixed, 0.1, 0), study.Run(learned[-1], 0.1, 0)])
    assert len(calls) == 3


# Runs that learn give what a plain loop of PyTorch gives, with the optimizers and schedules of torch.optim.


def test_tables_train_as_a_plain_loop(study: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = importlib.import_module("tables")

    def network(make):
        return nn.Sequential(nn.Linear(8, 6), make(6), nn.Linear(6, 1))

    monkeypatch.setattr(tables, "network", network)
    monkeypatch.setattr(tables, "BATCH", 16)
    x, y = torch.randn(3, 40, 8), torch.randn(3, 40, 1)
    (found,) = tables.train([study.Run("gelu", 0.05, 2)], [(x[k], y[k]) for k in range(3)], 2.0, 2)
    torch.manual_seed(2)
    made = network(lambda width: nn.GELU())
    optimizer = torch.optim.AdamW(made.parameters(), lr=0.05, weight_decay=0.01)
    generator, errors = torch.Generator().manual_seed(0), []
    for _ in range(2):
        for batch in torch.randperm(40, generator=generator).split(16):
            optimizer.zero_grad()
            F.mse_loss(made(x[0][batch]), y[0][batch]).backward()
            optimizer.step()
        with torch.no_grad():
            errors.append([2 * float(F.mse_loss(made(x[k]), y[k]).sqrt()) for k in (1, 2)])
    assert [found["val"], found["test"]] == pytest.approx(min(errors), rel=1e-4)


def test_images_train_as_a_plain_loop(study: ModuleType) -> None:
    images = importlib.import_module("images")
    picture = torch.rand(5, 6, 3) * 2 - 1
    (found,) = images.train(
        [study.Run("sin", 1e-2, 1)], lambda _: picture, lambda make: images.Siren(3, make, 8, 2), 4, torch.device("cpu")
    )
    torch.manual_seed(1)
    made = images.Siren(3, images.CANDIDATES["sin"].make, 8, 2)
    optimizer = torch.optim.Adam([p for p in made.parameters() if p.requires_grad], lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    rows, columns = torch.meshgrid(torch.linspace(-1, 1, 5), torch.linspace(-1, 1, 6), indexing="ij")
    for _ in range(4):
        optimizer.zero_grad()
        F.mse_loss(made(torch.stack([rows, columns], -1)), picture).backward()
        optimizer.step()
        schedule.step()
    error = F.mse_loss(made(torch.stack([rows, columns], -1)), picture).item()
    assert found["test"] == found["val"] == pytest.approx(10 * math.log10(error / 4), rel=1e-4)


def test_language_models_train_as_a_plain_loop(study: ModuleType, gpt) -> None:
    language, given, _ = gpt
    text, given.dropout, steps = torch.arange(900) % 7, 0.0, 6
    (found,) = language.train([study.Run("relu", 3e-2, 1)], text, given, steps)[1]
    torch.manual_seed(1)
    made = language.GPT(7, 8, 2, 16, 0.0, lambda width: nn.ReLU())
    groups = [
        {"params": [p for p in made.parameters() if (p.dim() > 1) == decays], "weight_decay": 0.1 * decays}
        for decays in (True, False)
    ]
    optimizer = torch.optim.AdamW(groups, lr=3e-2, betas=(0.9, 0.99))
    rise = torch.optim.lr_scheduler.LinearLR(optimizer, 1e-9, total_iters=1)
    fall = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps - 1, eta_min=3e-3)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [rise, fall], [1])
    generator, losses = torch.Generator().manual_seed(0), []

    def loss(sequences):
        return F.cross_entropy(made(sequences[:, :-1]).flatten(0, 1), sequences[:, 1:].flatten())

    for step in range(steps + 1):
        if step:
            starts = torch.randint(810 - 9, (2, 1), generator=generator)
            optimizer.zero_grad()
            loss(text[starts + torch.arange(9)]).backward()
            nn.utils.clip_grad_norm_(made.parameters(), 1.0)
            optimizer.step()
            schedule.step()
        with torch.no_grad():
            losses.append([float(loss(text[low : low + 36].view(4, 9))) for low in (810, 855)])
    assert losses[-1][0] < losses[0][0]
    assert [found["val"], found["test"]] == pytest.approx(min(losses), rel=1e-5)


@pytest.mark.parametrize("name", ["convection", "allen-cahn"])
def test_physics_trains_as_a_plain_loop(study: ModuleType, name: str) -> None:
    physics = importlib.import_module("physics")
    problem, steps = physics.Convection(3.0) if name == "convection" else physics.AllenCahn(), 5
    (found,) = physics.train([study.Run("tanh", 1e-2, 1)], problem, steps, 48, torch.device("cpu"))
    torch.manual_seed(1)
    made = physics.network(lambda width: nn.Tanh())
    optimizer = torch.optim.Adam(made.parameters(), lr=1e-2)
    rise = torch.optim.lr_scheduler.LinearLR(optimizer, 1e-9, total_iters=1)
    fall = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps - 1)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [rise, fall], [1])
    generator = torch.Generator().manual_seed(0)
    low, width = (0, 2 * math.pi) if name == "convection" else (-1, 2)
    for _ in range(steps):
        inner, edge = torch.rand(51, 2, generator=generator).split((48, 3))
        t, x = inner[:, :1].requires_grad_(), (low + width * inner[:, 1:]).detach().requires_grad_()
        u = made(torch.cat([t, x], 1))
        ut, ux = torch.autograd.grad(u.sum(), (t, x), create_graph=True)
        if name == "convection":
            residual = ut + 3 * ux
        else:
            (uxx,) = torch.autograd.grad(ux.sum(), x, create_graph=True)
            residual = ut - 1e-4 * uxx + 5 * u**3 - 5 * u
        x = low + width * edge[:, 1:]
        begin = x.sin() if name == "convection" else x**2 * (math.pi * x).cos()
        early = made(torch.cat([torch.zeros_like(x), x], 1)) - begin
        ends = [F.pad(edge[:, :1], (0, 1), value=end).requires_grad_() for end in (low, low + width)]
        left, right = map(made, ends)
        loss = sum(part.square().mean() for part in (residual, early, left - right))
        if name == "allen-cahn":
            slopes = [torch.autograd.grad(made(end).sum(), end, create_graph=True)[0][:, 1] for end in ends]
            loss = loss + (slopes[0] - slopes[1]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(made.parameters(), 100.0)
        optimizer.step()
        schedule.step()
    assert found["val"] == pytest.approx(loss.item(), rel=1e-3)


def test_residual_networks_train_as_a_plain_loop(
    study: ModuleType, tiny: data.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    convolutions = importlib.import_module("convolutions")
    mean, std = (torch.tensor(convolutions.LOOK[key]).view(3, 1, 1) for key in ("mean", "std"))
    moved = []

    def show(source, index, moves, **look):
        moved.append(moves[0])
        return (source[index[0]] / 255 - mean).div(std).expand(len(index), -1, -1, -1, -1)

    monkeypatch.setattr(convolutions, "AugmentedImages", show)
    monkeypatch.setattr(convolutions, "BATCH", 50)
    _, (found,) = convolutions.train([study.Run("relu", 0.1, 1)], tiny, "resnet8", 2)
    torch.manual_seed(1)
    made = convolutions.NETWORKS["resnet8"](lambda width: nn.ReLU())
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, 8, cycle_momentum=False)
    generator, seen = torch.Generator().manual_seed(0), 0
    for _ in range(2):
        for index in torch.randperm(234, generator=generator).split(50):
            if len(index) == 50:
                torch.randint(2, (50, 1), generator=generator), torch.randint(-4, 5, (50, 2), generator=generator)
                optimizer.zero_grad()
                shown = (tiny.train_images[index] / 255 - mean) / std
                F.cross_entropy(made(shown), tiny.train_labels[index]).backward()
                optimizer.step()
                schedule.step()
                seen += 1
    assert seen == 8
    made.eval()
    for name in ("val", "test"):
        source, labels = tiny.eval_sets[name]
        with torch.no_grad():
            wrong = (made((source / 255 - mean) / std).argmax(-1) != labels).double().mean()
        assert found[name] == pytest.approx(100 * float(wrong))
    training = torch.cat([moves for moves in moved if moves.any()])
    assert [column.unique().tolist() for column in training.T] == [[0, 1], list(range(-4, 5)), list(range(-4, 5))]
    assert not moved[-1].any()  # evaluation shows images as they are


def test_results_have_what_hulls_learned(study: ModuleType) -> None:
    from hullo import AffineHull, LinearHull
    from hullo.population import Population

    def network(seed):
        row = torch.tensor([[0.25, 0.75], [0.5, 0.5], [0.0, 1.0]]) + seed
        channels = LinearHull("relu", "tanh", groups=3, channel_dim=-1, init=row)
        scaled = AffineHull("identity", "tanh", init=[0.2, 0.8], inner_scale=2.0)
        frozen = LinearHull("sin", init="sin").requires_grad_(False)
        return nn.Sequential(nn.Linear(3, 3), channels, scaled, frozen)

    population, start = Population([network(seed) for seed in range(3)]), study.time.perf_counter()
    scores = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    found = study.results(population, scores, start - 6, counts=[2, 1])
    assert [(score["val"], score["test"]) for score in found] == [(1.0, 2.0), (3.0, 4.0)]
    assert [score["seconds"] for score in found] == [pytest.approx(4, rel=0.1), pytest.approx(2, rel=0.1)]
    assert found[0]["learned"] == {"1": [0.25, 0.75], "2": [0.2, 0.8, 2.0]}
    assert found[1]["learned"]["1"] == [2.25, 2.75]


def test_rows_of_tables_are_split_and_scored_by_those_of_training_alone(study: ModuleType, tmp_path: Path) -> None:
    tables = importlib.import_module("tables")
    names = ["longitude", "latitude", "housing_median_age", "total_rooms", "total_bedrooms", "population", "households"]
    names += ["median_income", "median_house_value"]
    numbers = 1 + torch.rand(100, len(names), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    numbers[:, -1] *= 1e5

    def read(numbers):
        lines = [[*map(str, row), "INLAND"] for row in numbers.tolist()] + [["1"] * 4 + [""] + ["1"] * 4 + ["INLAND"]]
        (tmp_path / "table.csv").write_text("\n".join(map(",".join, [[*names, "ocean_proximity"], *lines])))
        return tables.read(tmp_path / "table.csv")

    parts, unit = read(numbers)
    assert [len(x) for x, _ in parts] == [64, 16, 20]  # the row without bedrooms is left out
    train = parts[0][1].squeeze(1) * unit
    targets = torch.cat([y.squeeze(1) * unit for _, y in parts])
    values = numbers[:, -1].float() / 1e5
    torch.testing.assert_close((targets - targets.min()).sort().values, (values - values.min()).sort().values)
    torch.testing.assert_close(train.std(), torch.tensor(unit))
    torch.testing.assert_close(train.mean(), torch.tensor(0.0), atol=1e-6, rtol=0)
    expected = torch.special.ndtri((torch.arange(64) + 0.5) / 64)
    for column in parts[0][0].T:
        torch.testing.assert_close(column.sort().values, expected)
    order = torch.randperm(100, generator=torch.Generator().manual_seed(0))
    others = numbers.clone()
    others[order[:36]] *= 1000
    torch.testing.assert_close(read(others)[0][0], parts[0])
