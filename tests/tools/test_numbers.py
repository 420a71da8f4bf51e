"""Numbers in sentences are those of the records and rows that they come from."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from statistics import mean, median

import pytest
from pages import controls, plans, studies
from pages.answers import FAILS, HOLDS
from pages.claims import judge
from pages.columns import best_of, measure_distance
from pages.models import SEVERAL
from pages.verdicts import AFFINE, CONVEX, FIXED, HULLS, published_gain

from hullo.lab.analysis.experiments import Experiment, experiments, published_figures
from hullo.lab.analysis.inference import compare
from hullo.lab.analysis.power import detectable_difference
from hullo.lab.analysis.readings import CHOSEN, LAST10, Reading
from hullo.lab.analysis.sources import read_records
from hullo.lab.analysis.statistics import Interval, paired
from hullo.lab.spec import paper
from hullo.lab.spec.records import Record

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
sys.path.append(str(ROOT / "benchmarks"))
import peer_rows  # noqa: E402

HULL = "affine(identity,relu,tanh)"
INDEX, CLAIMS, CONTROLS, APPENDIX = (f"docs/results/{name}.md" for name in ("index", "claims", "controls", "appendix"))
STUDIES = "docs/studies.md"


@cache
def read(*folders: str) -> list[Experiment]:
    return experiments(read_records(ROOT / "results" / folder for folder in folders))


def control(reading: Reading = CHOSEN, **setting: object) -> tuple[Experiment, Experiment]:
    """Return the runs of a control and those of the table, on the same seeds."""
    (pair,) = (
        pair
        for pair in controls.find_pairs(read("controls", "table", "columns", "batch"))
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


def gain(**setting: object) -> tuple[float, float]:
    """Return what the hull gains over the best fixed activation in a control, with half its interval."""
    reached = control(**setting)[0].accuracies
    best = max((row for row in FIXED if row in reached), key=lambda row: mean(reached[row].values()))
    found = paired(reached[HULL], reached[best])
    return found.mean, found.half


def table_gain(
    others: Sequence[str] = FIXED, column: str = "kerasnet/cifar10", folder: str = "table"
) -> tuple[float, float]:
    """Return what the best hull gains over the best of others, with half its interval."""
    (experiment,) = (e for e in read(folder) if str(e.setting.column) == column)
    found = compare(experiment.accuracies, HULLS, others).interval
    return found.mean, found.half


def support(words: str) -> tuple[int, int, int]:
    """Return how many answers to a claim hold, of how many, and how many do not."""
    (claim,) = (claim for claim in judge(read("table")) if words in claim.statement)
    return claim.verdicts.count(HOLDS), len(claim.verdicts), claim.verdicts.count(FAILS)


def distances() -> tuple[float, float]:
    found = [measure_distance(best_of(e, e.epoch)).root_mean_square for e in read("table")]
    return min(found), max(found)


def equivalence() -> tuple[int, float]:
    """Return the fresh seeds and the margin of the planned run that has shown activations to be equivalent."""
    (plan,) = (plan for plan in plans.PLANS if plan.margin)
    (experiment,) = (e for e in read("table") if e.setting.column == plan.column)
    assert plan.judge(experiment).endswith(": equivalent")
    return len(plan.seeds), plan.margin


def hulls_of_resnet56() -> Iterator[tuple[Record, Record]]:
    """Yield the runs of the affine and of the convex hull of the same bases and seed."""
    (experiment,) = (e for e in read("table") if e.setting.network == "resnet56")
    for affine, convex in zip(AFFINE, CONVEX, strict=True):
        yield from zip(experiment.runs[affine], experiment.runs[convex], strict=True)


def first_zeros() -> tuple[int, int]:
    """Return after how many epochs the first coefficient of a convex hull is zero, at least and at most."""
    found = [
        next(epoch for epoch, layers in enumerate(convex.coefficients) if min(map(min, layers)) == 0)
        for _, convex in hulls_of_resnet56()
    ]
    return min(found), max(found)


def differences_at_the_end() -> tuple[float, float]:
    """Return the mean difference between the coefficients of affine and of convex hulls, at least and at most."""
    found = [
        mean(
            abs(a - b)
            for one, other in zip(affine.coefficients[-1], convex.coefficients[-1], strict=True)
            for a, b in zip(one, other, strict=True)
        )
        for affine, convex in hulls_of_resnet56()
    ]
    return min(found), max(found)


@cache
def study_changes(file: str, base: str, words: str = "") -> tuple[Interval, ...]:
    """Return the changes of the hulls of a study against another candidate; lower scores are better."""
    tests, _ = studies.read_tests(ROOT / "results" / "studies" / file)
    names = (name for name in tests if name.startswith(("hull", "affine")) and words in name)
    return tuple(paired(tests[name], tests[base]) for name in names)


def ahead(base: str, words: str = "") -> int:
    return sum(change.high < 0 for change in study_changes("tables.jsonl", base, words))


def behind_gelu() -> tuple[int, int]:
    changes = study_changes("tables.jsonl", "gelu")
    assert ahead("gelu") == 0
    return sum(change.low > 0 for change in changes), len(changes)


def ahead_per_feature() -> int:
    """Return how many hulls per feature, all of which are ahead of PReLU per feature, there are."""
    counts = [
        (ahead("prelu per feature", words), len(study_changes("tables.jsonl", "prelu per feature", words)))
        for words in ("per feature", "per channel")
    ]
    assert all(found == count for found, count in counts)
    return sum(count for _, count in counts)


def fast_hull() -> tuple[float, float]:
    (found,) = study_changes("tables-settings.jsonl", "gelu", "rate x30")
    return -found.mean, found.half


def second_sine() -> tuple[float]:
    tests, _ = studies.read_tests(ROOT / "results" / "studies" / "images.jsonl")
    change = paired(tests["linear of two sines"], tests["sin"])
    assert change
    return (-change.low,)


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
    ("README.md", r"\*\*Accuracy: \+(\S+) points\*\* for KerasNet on CIFAR-10", lambda: table_gain()[:1]),
    ("README.md", r"\(\+(\S+) over\s+`leaky_relu\(0\.3\)`\)", lambda: table_gain(["leaky_relu(0.3)"])[:1]),
    (
        "README.md",
        r"With Adam, ReLU itself is (\S+) points better, and the gain is \*\*\+(\S+)\*\*",
        lambda: (relu(), gain(optimizer="adam")[0]),
    ),
    (
        "README.md",
        r"\*\*Cost: (\S+) times\*\* the step time and (\S+) times the memory .*?, hullo (\S+?)\]",
        resnet50,
    ),
    (
        "README.md",
        r"\*\*Populations: (\S+) times\*\* the speed of the fastest .*? for 60 ResNet-20 \(H200, hullo (\S+?)\)",
        lambda: (times_as_fast("resnet20"), version_of("resnet20", "population_peers")),
    ),
    (
        "README.md",
        r"(\S+) times for 8 BERT, (\S+) times for 8 nanoGPT .*? (\S+) times, .*? for 8 U-Nets \(H200, hullo (\S+?);",
        lambda: (
            *(times_as_fast(name, 8, "population_work") for name in ("bert", "nanogpt", "unet")),
            *{version_of(name, "population_work") for name in ("bert", "nanogpt", "unet")},
        ),
    ),
    ("README.md", r"they gain little: (\S+) to (\S+) times the speed of .*? \(hullo (\S+?)\)", on_a_cpu),
    ("README.md", r"diffusers and (\S+) other packages", lambda: (other_packages(),)),
    ("README.md", r"the paper's gain of (\S+) points is excluded", lambda: (published("lenet5/fashion-mnist"),)),
    (
        INDEX,
        r"ahead of the paper's best fixed activation by (\S+) ± (\S+) points on CIFAR-10 and by (\S+) ± (\S+) on",
        lambda: (*table_gain(), *table_gain(column="kerasnet/fashion-mnist")),
    ),
    (
        INDEX,
        r"ReLU is (\S+) points better then, and the hull (\S+) ± (\S+) ahead of it",
        lambda: (relu(), *gain(optimizer="adam")),
    ),
    (INDEX, r"On Fashion-MNIST, (\S+) fresh seeds .*? equivalent within (\S+) points", equivalence),
    (INDEX, r"the (\S+) points of the paper lie outside", lambda: (published("lenet5/fashion-mnist"),)),
    (
        INDEX,
        r"ahead of the best hull by (\S+) ± (\S+) points",
        lambda: tuple(map(abs, table_gain(["leaky_relu(0.3)"], "lenet5/cifar10"))),
    ),
    (
        INDEX,
        r"PReLU is (\S+) ± (\S+) points better than the best hull",
        lambda: tuple(map(abs, table_gain(["prelu"], "lenet5/fashion-mnist"))),
    ),
    (INDEX, r"is open\*\*: (\S+) ± (\S+) points on two seeds", lambda: table_gain(column="resnet56/cifar10")),
    (
        INDEX,
        r"a hull gains (\S+) ± (\S+) points on two seeds",
        lambda: table_gain(column="alexnet/imagewoof", folder="imagewoof"),
    ),
    (INDEX, r"on average, in (\S+) of (\S+) columns, and lose to them in (\S+)", lambda: support("of the same bases")),
    (INDEX, r"own figures\*\* are (\S+) to (\S+) points from", distances),
    (CONTROLS, r"three bases gains (\S+) points over", lambda: table_gain()[:1]),
    (
        CONTROLS,
        r"and (\S+) with Adam .*? itself is (\S+) points better, tanh (\S+) and the hull (\S+)\. ",
        lambda: (gain(optimizer="adam")[0], relu(), change("tanh", optimizer="adam"), change(HULL, optimizer="adam")),
    ),
    (CONTROLS, r"the same hull is ahead by (\S+) points", lambda: gain(schedule="inverse:3e-05")[:1]),
    (
        CONTROLS,
        r"hulls are (\S+) to (\S+) points below the table",
        lambda: extremes(skip=("relu",), schedule="inverse:3e-05"),
    ),
    (CONTROLS, r"affine hull are (\S+) to (\S+) points lower", lambda: extremes(LAST10, batch_size=128)),
    (CONTROLS, r"is (\S+) to (\S+) points below the first 90 epochs", lambda: extremes(network="resnet56_he")),
    (
        CONTROLS,
        r"chosen epoch, and (\S+) to (\S+) over the last ten",
        lambda: extremes(LAST10, network="resnet56_he"),
    ),
    (APPENDIX, r"is zero after (\S+) to (\S+) epochs", first_zeros),
    (APPENDIX, r"hulls differ by (\S+) to (\S+) in the mean", differences_at_the_end),
    (STUDIES, r"and (\S+) of the (\S+) are behind", behind_gelu),
    (
        STUDIES,
        r"(\S+) hulls are ahead of ReLU, (\S+) of PReLU, and all (\S+) per feature",
        lambda: (ahead("relu"), ahead("prelu"), ahead_per_feature()),
    ),
    (STUDIES, r"x30 is (\S+) ± (\S+) ahead of GELU", fast_hull),
    (STUDIES, r"excludes a gain of more than (\S+) dB", second_sine),
    (CLAIMS, r"The margin of (\S+) points", lambda: equivalence()[1:]),
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
