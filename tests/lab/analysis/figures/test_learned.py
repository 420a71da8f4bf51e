"""Runs are put side by side by what they have in common, and those that diverged are left out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from runs_to_draw import experiment, learned, run

from hullo.lab.analysis.experiments import experiments
from hullo.lab.analysis.figures.learned import find_learned, spell_seeds, spell_time

TWO, THREE = "(identity,relu)", "(identity,relu,tanh)"


def test_the_two_hulls_of_the_same_bases_are_a_pair_and_options_set_pairs_apart() -> None:
    rows = [f"convex{TWO}", f"affine{THREE}", f"affine{TWO}", "affine(identity,relu,tanh,parametrization=free)"]
    pairs = find_learned(experiment(run("relu"), *map(learned, rows)))
    assert [(pair.about, set(pair.runs)) for pair in pairs] == [
        ("identity,relu", {"convex", "affine"}),
        ("identity,relu,tanh", {"affine"}),
        ("identity,relu,tanh,parametrization=free", {"affine"}),
    ]
    assert [pair.bases for pair in pairs] == [("identity", "relu"), *[("identity", "relu", "tanh")] * 2]
    for pair in pairs:
        for kind, found in pair.runs.items():
            assert found.record.spec.activation.startswith(kind)
            assert find_learned(experiment(found.record))[0].runs[kind].record == found.record


def test_each_hull_has_the_run_of_the_first_seed_that_did_not_diverge_or_of_the_one_asked_for() -> None:
    row, other = f"affine{TWO}", f"convex{TWO}"
    runs = [learned(row, 2), learned(row, 1), learned(row, 0, ended="diverged in epoch 1"), learned(other, 0)]
    everything = experiment(*runs)
    (pair,) = find_learned(everything)
    assert {kind: found.record.spec.seed for kind, found in pair.runs.items()} == {"affine": 1, "convex": 0}
    assert spell_seeds([pair]) == "seeds 0 and 1"
    (asked,) = find_learned(everything, seed=2)
    assert {kind: found.record for kind, found in asked.runs.items()} == {"affine": runs[0]}
    assert spell_seeds([asked]) == "seed 2"
    (left,) = find_learned(everything, seed=0)
    assert set(left.runs) == {"convex"}


def test_coefficients_are_those_up_to_the_epoch_and_those_of_channels_only_of_the_end() -> None:
    row = "affine(identity,relu,per=channel)"
    record = learned(row, channels=[[[0.5, 0.5]], [[0.0, 1.0], [1.0, 0.0]], [[2.0, -1.0]]])
    (whole,), (half,) = (find_learned(experiment(record, epoch=epoch)) for epoch in (2, 1))
    np.testing.assert_array_equal(whole.runs["affine"].paths, record.coefficients)
    assert [channels.shape for channels in whole.runs["affine"].channels] == [(1, 2), (2, 2), (1, 2)]
    np.testing.assert_array_equal(half.runs["affine"].paths, record.coefficients[:2])
    assert half.runs["affine"].channels == []


def test_fixed_activations_and_runs_that_diverged_have_learned_nothing() -> None:
    assert find_learned(experiment(run("relu"), learned(f"affine{TWO}", ended="diverged in epoch 2"))) == []


def test_with_a_chosen_epoch_coefficients_are_those_up_to_it() -> None:
    record = learned(f"affine{TWO}", accuracies=[50.0, 60.0, 70.0])
    record = replace(record, spec=replace(record.spec, val_size=9), val_accuracy=[1.0, 3.0, 2.0], val_loss=[1.0] * 3)
    (found,) = experiments([record])
    (pair,) = find_learned(found)
    np.testing.assert_array_equal(pair.runs["affine"].paths, record.coefficients[:3])
    assert spell_time(found) == "3 epochs (chosen epoch)"
    (last,) = experiments([record], reading="last")
    assert spell_time(last) == "3 epochs"


def test_prelu_is_a_kind_of_its_own_and_a_mean_over_channels() -> None:
    pairs = find_learned(experiment(*map(learned, ["prelu", "affine(identity,relu)"])))
    assert {pair.about: (list(pair.runs), pair.of_channels) for pair in pairs} == {
        "prelu": (["prelu"], "mean over channels"),
        "identity,relu": (["affine"], ""),
    }
