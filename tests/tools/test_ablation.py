"""The study says what its records say: pairs are alike in all else, a seed counts once, nothing else is averaged."""

from __future__ import annotations

import inspect
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from pages.ablation import TOP, Choice, Family, families, study_tables, study_test_tables

import hullo
from hullo.lab.analysis.statistics import Interval
from hullo.lab.spec.records import Record
from hullo.lab.spec.run_spec import Spec
from made_records import make_record

BASES = "identity,relu,tanh"
LEVELS = {
    "convex": {"parametrization": ("projection", "softmax"), "init": ("uniform", "relu")},
    "affine": {"parametrization": ("recentred", "free"), "init": ("uniform", "relu")},
}
SCALES, PER = ("1", "3", "10"), ("layer", "channel")


def runs(kind: str, choice: Choice, reached: Sequence[float], **shared: Any) -> list[Record]:
    """Return runs of one epoch: the accuracy that a choice reached, by seed."""
    parametrization, init, scale, per = choice
    row = f"{kind}({BASES},parametrization={parametrization},init={init},per={per})"
    shared = {"val_size": 5000, "coefficient_lr_scale": float(scale)} | shared
    return [make_record(row, [value], seed=seed, **shared) for seed, value in enumerate(reached)]


def test_choices_are_made_on_held_out_images_also_where_test_images_were_evaluated() -> None:
    better = AFFINE._replace(scale="3")
    records = runs("affine", AFFINE, [80.0, 81.0]) + runs("affine", better, [82.0, 83.0])
    both = [replace(record, test_accuracy=[99.0 - record.accuracy]) for record in records]
    assert next(iter(only(both).reached)) == better
    assert study_tables(both) == study_tables(records)


def everything(kind: str) -> list[Choice]:
    """Return all choices."""
    result = (Choice(*c) for c in product(LEVELS[kind]["parametrization"], LEVELS[kind]["init"], SCALES, PER))
    return [choice for choice in result if (choice.parametrization, choice.init) != ("softmax", "relu")]


def only(records: Sequence[Record]) -> Family:
    (family,) = families(records)
    return family


def tables(text: str) -> list[list[list[str]]]:
    """Return the cells of each table in Markdown, by line."""
    result: list[list[list[str]]] = []
    for token, inner in pairwise(MarkdownIt("commonmark", {"html": True}).enable("table").parse(text)):
        if token.type == "table_open":
            result.append([])
        elif token.type == "tr_open":
            result[-1].append([])
        elif token.type in ("th_open", "td_open"):
            result[-1][-1].append("".join(child.content for child in inner.children or []))
    return result


CONVEX = Choice("projection", "uniform", "1", "layer")
AFFINE = Choice("recentred", "uniform", "1", "layer")


@pytest.mark.parametrize(("kind", "module"), [("convex", hullo.ConvexHull), ("affine", hullo.AffineHull)])
def test_the_default_is_the_librarys(kind: str, module: type[hullo.ConvexHull] | type[hullo.AffineHull]) -> None:
    hull = module(*BASES.split(","))
    assert hull.coefficients.tolist() == pytest.approx([1 / 3] * 3)
    assert hull.groups == 1
    scale = inspect.signature(hullo.parameter_groups).parameters["coefficient_lr_scale"].default
    family = only(runs(kind, Choice(hull.parametrization.name, "relu", "30", "channel"), [80.0]))
    assert family.default == Choice(hull.parametrization.name, "uniform", f"{scale:g}", "layer")


@pytest.mark.parametrize("kind", ["convex", "affine"])
@settings(max_examples=10)
@given(data=st.data())
def test_effects_that_add_up_are_found_as_they_are(kind: str, data: st.DataObject) -> None:
    """Accuracy is a sum of what the seed and each level give, which may depend on the seed; each is found alone."""
    numbers = st.lists(st.floats(-3, 3), min_size=3, max_size=3)
    plain = only(runs(kind, everything(kind)[0], [0.0])).default
    levels = [(name, level) for name in Choice._fields for level in {getattr(c, name) for c in everything(kind)}]
    gives = {(name, level): data.draw(numbers) for name, level in levels if level != getattr(plain, name)}
    seeds = data.draw(numbers)
    records = []
    for choice in everything(kind):
        own = [gives.get(item, [0.0] * 3) for item in choice._asdict().items()]
        records += runs(kind, choice, [sum(each, 80 + seed) for seed, *each in zip(seeds, *own, strict=True)])
    random.Random(1).shuffle(records)
    effects = {(name, level): gain for name, level, _, gain in only(records).effects}
    assert effects.keys() == gives.keys()
    for key, gain in effects.items():
        expected = Interval.of(gives[key])
        assert (gain.mean, gain.half) == pytest.approx((expected.mean, expected.half), abs=1e-9)
        assert gain.count == 3


def test_a_seed_counts_once_however_many_settings_there_are() -> None:
    """A scale of 10 gains 0 and 2 with one seed, 1 and 3 with another: that is 1 and 2, not four witnesses."""
    records = runs("affine", AFFINE, [80.0, 90.0]) + runs("affine", AFFINE._replace(scale="10"), [80.0, 91.0])
    records += runs("affine", AFFINE._replace(parametrization="free"), [70.0, 75.0])
    records += runs("affine", AFFINE._replace(parametrization="free", scale="10"), [72.0, 78.0])
    parametrization, scale = only(records).effects
    assert scale == ("scale", "10", 2, Interval.of([1.0, 2.0]))
    assert parametrization == ("parametrization", "free", 2, Interval.of([-9.0, -14.0]))


def test_what_cannot_be_run_is_no_pair() -> None:
    """A softmax never starts as a base, so that keep is compared at the other start alone, and start with one keep."""
    records = runs("convex", CONVEX, [80.0] * 3) + runs(
        "convex", CONVEX._replace(parametrization="softmax"), [81.0] * 3
    )
    records += runs("convex", CONVEX._replace(init="relu"), [60.0] * 3)
    parametrization, start = only(records).effects
    assert parametrization[2:] == (1, Interval(1.0, 0.0, 3))
    assert start[2:] == (1, Interval(-20.0, 0.0, 3))


def test_seeds_that_not_all_pairs_have_do_not_count() -> None:
    """With them, means over different settings would be compared."""
    records = runs("affine", AFFINE, [80.0] * 4) + runs("affine", AFFINE._replace(scale="3"), [81.0, 81.0, 81.0, 99.0])
    records += runs("affine", AFFINE._replace(per="channel"), [80.0] * 2)
    records += runs("affine", AFFINE._replace(per="channel", scale="3"), [85.0] * 3)
    scale, per = only(records).effects
    assert scale[3] == Interval(3.0, 0.0, 2)
    assert per[3] == Interval(2.0, 0.0, 2)


@pytest.mark.parametrize(
    "other",
    [
        {"batch_size": 64},
        {"lr": 1e-3},
        {"val_size": 1000},
        {"precision": "bfloat16"},
        {"column": "lenet5/cifar10"},
    ],
)
def test_runs_with_other_settings_are_never_compared(other: dict[str, Any]) -> None:
    records = runs("affine", AFFINE, [80.0] * 2) + runs("affine", AFFINE._replace(scale="3"), [90.0] * 2, **other)
    assert [list(family.effects) for family in families(records)] == [[], []]


def test_runs_of_other_lengths_hulls_and_bases_are_never_compared() -> None:
    records = runs("affine", AFFINE, [80.0] * 2) + runs(
        "convex", CONVEX._replace(parametrization="softmax"), [80.0] * 2
    )
    records += [make_record(f"affine({BASES})", [70.0, 80.0], val_size=5000, coefficient_lr_scale=3.0)]
    records += [make_record("affine(identity,tanh)", [80.0], val_size=5000, coefficient_lr_scale=3.0)]
    assert [(family.plain.activation, family.plain.epochs, len(family.reached)) for family in families(records)] == [
        ("affine(identity,relu,tanh)", 1, 1),
        ("affine(identity,relu,tanh)", 2, 1),
        ("affine(identity,tanh)", 1, 1),
        ("convex(identity,relu,tanh)", 1, 1),
    ]


def test_the_best_come_first_and_the_default_is_shown_wherever_it_is() -> None:
    """Of 24 settings the default is the last: ten and the default are shown."""
    choices = everything("affine")
    assert choices[0] == AFFINE
    records = [r for i, c in enumerate(choices) for r in runs("affine", c, [50.0 + i, 51.0 + i, 52.0 + i])]
    random.Random(1).shuffle(records)
    text = study_tables(records)
    _, shown = tables(text)
    assert [line[0] for line in shown[1:]] == [*map(str, range(1, TOP + 1)), "24"]
    half = Interval.of([50.0, 51.0, 52.0]).spell().partition(" ± ")[2]
    assert shown[1] == ["1", "free", "relu", "10", "channel", f"74.00 ± {half}", "+23.00 ± 0.00", "3"]
    assert shown[-1] == ["24", "recentred", "uniform", "1", "layer", f"51.00 ± {half}", "default", "3"]


def test_the_default_is_the_best_of_equals() -> None:
    for other in (AFFINE._replace(parametrization="free"), AFFINE._replace(init="relu"), AFFINE._replace(scale="3")):
        assert (
            next(iter(only(runs("affine", other, [80.0, 81.0]) + runs("affine", AFFINE, [81.0, 80.0])).reached))
            == AFFINE
        )


def test_on_the_test_images_the_choice_is_reported_be_it_worse() -> None:
    chosen = Choice("softmax", "uniform", "10", "channel")
    records = runs("convex", CONVEX, [80.0, 81.0, 82.0], val_size=0)
    records += runs("convex", chosen, [79.0, 80.1, 80.9], val_size=0)
    text = study_test_tables(records)
    assert "1 epoch: test accuracy" in text
    assert [line[6] for line in tables(text)[0][1:]] == ["default", "-1.00 ± 0.25"]


def test_held_out_and_test_images_are_kept_apart() -> None:
    both = [AFFINE, AFFINE._replace(scale="3")]
    held_out, tested = (
        [record for choice in both for record in runs("affine", choice, [80.0, 81.0], val_size=val_size)]
        for val_size in (5000, 0)
    )
    assert study_tables(held_out + tested) == study_tables(held_out)
    assert study_test_tables(held_out + tested) == study_test_tables(tested)
    assert study_tables(tested) == study_test_tables(held_out) == ""


def test_hulls_that_were_run_by_default_alone_are_not_set_beside_choices() -> None:
    chosen = AFFINE._replace(scale="3")
    tested = [record for choice in (AFFINE, chosen) for record in runs("affine", choice, [80.0, 81.0], val_size=0)]
    by_default = runs("convex", CONVEX, [80.0, 81.0], val_size=0)
    assert study_test_tables(by_default) == ""
    assert study_test_tables(by_default + tested) == study_test_tables(tested) != ""


def test_activations_that_do_not_learn_have_no_part_in_it() -> None:
    records = runs("affine", AFFINE, [80.0, 81.0])
    fixed = [make_record("relu", [99.0], seed=seed, val_size=5000) for seed in (0, 1)]
    assert study_tables(records + fixed) == study_tables(records)
    assert study_tables(fixed) == ""


def test_a_softmax_cannot_start_as_a_base_and_no_hull_as_what_it_lacks() -> None:
    """Why the study has no such settings."""
    for row in ("convex(identity,relu,parametrization=softmax,init=relu)", "affine(identity,tanh,init=relu)"):
        with pytest.raises(ValueError, match="invalid activation"):
            Spec("kerasnet", "cifar10", row)
