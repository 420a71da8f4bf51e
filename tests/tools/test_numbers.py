"""Numbers in sentences are those of the records and rows that they come from."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from statistics import mean, median

import pytest
from pages import controls
from pages.columns import best_of, measure_distance
from pages.models import SEVERAL
from pages.verdicts import FIXED, HULLS, published_gain

from hullo.lab.analysis.experiments import Experiment, experiments, published_figures
from hullo.lab.analysis.inference import compare
from hullo.lab.analysis.power import detectable_difference
from hullo.lab.analysis.readings import CHOSEN, LAST10, Reading
from hullo.lab.analysis.sources import read_records
from hullo.lab.spec import paper

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
sys.path.append(str(ROOT / "benchmarks"))
import peer_rows  # noqa: E402

HULL = "affine(identity,relu,tanh)"
CLAIMS, APPENDIX = "docs/results/claims.md", "docs/results/appendix.md"


@cache
def read(*folders: str) -> list[Experiment]:
    return experiments(read_records(ROOT / "results" / folder for folder in folders))


def control(reading: Reading = CHOSEN, **setting: object) -> tuple[Experiment, Experiment]:
    """Return the runs of a control and those of the table, on the same seeds."""
    (pair,) = (
        pair
        for pair in controls.find_pairs(read("controls", "table", "columns"))
        if all(getattr(pair[0].setting, name) == value for name, value in setting.items())
    )
    one, other = controls.on_shared_seeds(*(replace(e, reading=reading) for e in pair))
    return one, other


def change(row: str, reading: Reading = CHOSEN, **setting: object) -> float:
    """Return how much an activation gains in a control over the table."""
    one, other = (e.accuracies[row] for e in control(reading, **setting))
    return mean(one[seed] - other[seed] for seed in one)


def relu() -> float:
    return change("relu", optimizer="adam")


def gain(**setting: object) -> float:
    """Return what the hull gains over the best fixed activation in a control."""
    reached = control(**setting)[0].accuracies
    means = {row: mean(reached[row].values()) for row in [*FIXED, HULL] if row in reached}
    return means.pop(HULL) - max(means.values())


def table_gain(others: Sequence[str] = FIXED) -> float:
    experiment = read("table")[0]
    assert str(experiment.setting.column) == "kerasnet/cifar10"
    found = compare(experiment.accuracies, HULLS, others)
    return found.interval.mean


def extremes(reading: Reading = CHOSEN, skip: tuple[str, ...] = (), **setting: object) -> tuple[float, float]:
    """Return by how much activations of a control are below the table, at least and at most."""
    rows = control(reading, **setting)[0].accuracies
    below = [-change(row, reading, **setting) for row in rows if row not in skip]
    return min(below), max(below)


def published(column: str) -> float:
    """Return the paper's gain of its best hull over its best fixed activation."""
    return published_gain(published_figures(paper.parse_column(column)), HULLS, FIXED)


def times_as_fast(network: str, members: int = 60, file: str = "population_peers") -> float:
    rows = peer_rows.read_measured(RESULTS / f"{file}.csv")
    single = peer_rows.SINGLE
    cell = [row for row in rows if row.network == network and (row.members == members or row.contender in single)]
    (own,) = (row.ms for row in cell if row.contender == "hullo, graph")
    return min(row.ms for row in cell if "hullo" not in row.contender) / own


def version_of(network: str, file: str) -> float:
    """Return the version of hullo that measured its own time: 0.2 of 0.2.0."""
    rows = csv.DictReader((RESULTS / f"{file}.csv").read_text().splitlines())
    (found,) = {r["hullo"] for r in rows if (r["network"], r["contender"]) == (network, "hullo, graph")}
    return float(found.rpartition(".")[0])


def version_in(file: str) -> float:
    """Return the version of hullo in the first line of a measurement."""
    found = re.search(r"hullo (\d+\.\d+)\.", (RESULTS / file).read_text())
    assert found
    return float(found[1])


def resnet50() -> tuple[float, float, float]:
    """Return the time and the memory of a step of ResNet-50, as multiples of those with ReLU, and the version."""
    lines = [line.split() for line in (RESULTS / "resnet50_step.txt").read_text().splitlines()]
    time, memory = ({line[1]: float(line[i]) for line in lines if line[0] == "bfloat16"} for i in (2, 7))
    return time["swapped"] / time["original"], memory["swapped"] / memory["original"], version_in("resnet50_step.txt")


def on_a_cpu() -> tuple[float, float, float]:
    """Return how many times as fast as a loop populations are, at least and at most, and the version."""
    lines = [line.split() for line in (RESULTS / "population_cpu.txt").read_text().splitlines()]
    factors = [float(line[-1]) for line in lines if len(line) == 6 and line[1] in ("8", "20")]
    return min(factors), max(factors), version_in("population_cpu.txt")


def other_packages() -> float:
    models = map(json.loads, (ROOT / "results" / "models.jsonl").read_text().splitlines())
    return len({model["library"] for model in models} - {*SEVERAL})


def minutes(comparison: str) -> tuple[float, ...]:
    return (json.loads((ROOT / f"results/compare/{comparison}/comparison.json").read_text())["seconds"] / 60,)


Values = Callable[[], tuple[float, ...]]
SENTENCES: list[tuple[str, str, Values]] = [
    ("README.md", r"After (\S+) minutes on a CPU core", partial(minutes, "housing")),
    *(
        (
            "docs/trials.md",
            rf"took (\S+) minutes \(\[its files\]\(\.\./results/compare/{name}/",
            partial(minutes, name),
        )
        for name in ("clothes", "housing", "gpu-housing", "gpu-shakespeare", "gpu-images")
    ),
    ("README.md", r"\*\*Accuracy: \+(\S+) points\*\* for KerasNet on CIFAR-10", lambda: (table_gain(),)),
    ("README.md", r"\(\+(\S+) over\s+`leaky_relu\(0\.3\)`\)", lambda: (table_gain(["leaky_relu(0.3)"]),)),
    (
        "README.md",
        r"Adam makes ReLU (\S+) points better, and \*\*\+(\S+)\*\* remain",
        lambda: (relu(), gain(optimizer="adam")),
    ),
    (
        "README.md",
        r"\*\*Cost: (\S+) times\*\* the step time and (\S+) times the memory .*?, hullo (\S+?)\]",
        resnet50,
    ),
    (
        "README.md",
        r"\*\*Populations: (\S+) times\*\* the speed of the fastest alternative for 60 ResNet-20 \(hullo (\S+?)\)",
        lambda: (times_as_fast("resnet20"), version_of("resnet20", "population_peers")),
    ),
    (
        "README.md",
        r"(\S+) times for 8 nanoGPT with dropout, (\S+) for 8 BERT \(hullo (\S+?);",
        lambda: (
            *(times_as_fast(name, 8, "population_work") for name in ("nanogpt", "bert")),
            *{version_of(name, "population_work") for name in ("nanogpt", "bert")},
        ),
    ),
    ("README.md", r"they gain little: (\S+) to (\S+) times the speed of .*? \(hullo (\S+?)\)", on_a_cpu),
    ("README.md", r"diffusers and (\S+) other packages", lambda: (other_packages(),)),
    ("README.md", r"the paper's gain of (\S+) points is excluded", lambda: (published("lenet5/fashion-mnist"),)),
    (CLAIMS, r"three bases gains (\S+) points over", lambda: (table_gain(),)),
    (
        CLAIMS,
        r"and (\S+) with Adam .*? itself is (\S+) points better, tanh (\S+) and the hull (\S+)\. ",
        lambda: (gain(optimizer="adam"), relu(), change("tanh", optimizer="adam"), change(HULL, optimizer="adam")),
    ),
    (CLAIMS, r"the same hull is ahead by (\S+) points", lambda: (gain(schedule="inverse:3e-05"),)),
    (
        CLAIMS,
        r"hulls are (\S+) to (\S+) points below the table",
        lambda: extremes(skip=("relu",), schedule="inverse:3e-05"),
    ),
    (CLAIMS, r"is (\S+) to (\S+) points below the first 90 epochs", lambda: extremes(network="resnet56_he")),
    (CLAIMS, r"chosen epoch, and (\S+) to (\S+) over the last ten", lambda: extremes(LAST10, network="resnet56_he")),
    (CLAIMS, r"less than half of the (\S+) points that", lambda: (published("lenet5/fashion-mnist"),)),
    (
        CLAIMS,
        r"show a difference of (\S+) times .*? eight seeds one of (\S+) times",
        lambda: (detectable_difference(1.0, 20), detectable_difference(1.0, 8)),
    ),
    (APPENDIX, r"fixed activation by (\S+) points\. ", lambda: (published("alexnet/ilsvrc2012"),)),
    (
        APPENDIX,
        r"median accuracy of these runs is (\S+) %",
        lambda: (median(r.test_accuracy[9] for r in read("imagewoof")[0].records),),
    ),
    (APPENDIX, r"with (\S+) training and (\S+) validation images", lambda: tuple(read("imagewoof")[0].part)),
    (
        "benchmarks/README.md",
        r"The GPT is (\S+) times as fast at K = 60, the MLP (\S+) times",
        lambda: (times_as_fast("gpt"), times_as_fast("mlp")),
    ),
]


@pytest.mark.parametrize(("page", "sentence", "values"), SENTENCES, ids=[text for _, text, _ in SENTENCES])
def test_a_sentence_states_what_was_measured(page: str, sentence: str, values: Values) -> None:
    text = " ".join((ROOT / page).read_text().split())
    found = re.search(sentence, text)
    assert found, f"{page} has no such sentence any more; change it here, too, or remove it"
    said = [number.replace(",", "").rstrip(".") for number in found.groups()]
    assert said == [f"{value:.{len(n.partition('.')[2])}f}" for n, value in zip(said, values(), strict=True)]


def test_relu_trails_itself_with_adam_before_its_training_loss_rises_and_keeps_its_accuracy_with_other_settings() -> (
    None
):
    adam, table = control(optimizer="adam")
    for epoch in (20, 50):
        ours, usual = (mean(r.test_accuracy[epoch - 1] for r in e.runs["relu"]) for e in (adam, table))
        assert ours > usual + 2
    for setting in ({"optimizer": "adam"}, {"schedule": "inverse:3e-05"}):
        chosen, last = (control(reading, **setting)[0].cells["relu"].accuracy.mean for reading in (CHOSEN, LAST10))
        assert abs(chosen - last) < 0.3
    slow = control(schedule="inverse:3e-05")[0].records
    assert all(mean(r.test_accuracy[190:]) > mean(r.test_accuracy[140:150]) + 0.3 for r in slow)


def test_in_all_columns_but_one_the_distance_from_the_paper_still_falls_at_the_end() -> None:
    falling = []
    for experiment in read("table"):
        before, after = (
            measure_distance(e).root_mean_square for e in (best_of(experiment, 150), best_of(experiment, 200))
        )
        falling.append(after < before)
    assert falling.count(False) == 1
