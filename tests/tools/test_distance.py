"""Distances from the paper: of each reading, of the best of fewer epochs, and of single runs; and late falls."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pages.columns import (
    best_of,
    cost_of_holding_out,
    distance_table,
    measure_distance,
    prediction_part,
    readings_tables,
)
from pages.course import RISE, find_late_loss, late_loss_table

from hullo.lab.analysis.experiments import Experiment, experiments
from hullo.lab.analysis.readings import BEST, CHOSEN, LAST, LAST10
from hullo.lab.analysis.statistics import Interval
from hullo.lab.spec.records import Record
from made_records import make_record, make_records


def only(found: list[Experiment]) -> Experiment:
    (experiment,) = found
    return experiment


def test_a_distance_by_hand() -> None:
    # the paper has 79.97, 82.86 and 78.53
    runs = {"relu": [76.97, 76.97], "tanh": [86.86, 86.86], "convex(identity,tanh)": [78.53, 88.53], "gelu": [1.0, 1.0]}
    experiment = only(experiments(make_records(runs)))
    found = measure_distance(experiment)
    assert found is not None
    assert found.root_mean_square == pytest.approx(math.sqrt((9 + 16 + 25) / 3))
    assert found.scatter == pytest.approx(math.sqrt(50 / 3) * math.sqrt(1.5))
    assert (found.inside, found.count) == (1, 3)
    apart = measure_distance(experiment, ["convex(identity,tanh)"])
    assert apart is not None
    assert apart.root_mean_square == pytest.approx(math.sqrt(12.5))
    assert measure_distance(only(experiments(make_records({"gelu": [1.0]})))) is None


def test_a_published_figure_is_one_run() -> None:
    experiment = only(experiments(make_records({"relu": [78.9, 79.2, 79.5, 79.7, 79.2]})))  # the paper has 79.97
    assert not experiment.cells["relu"].accuracy.covers(79.97)
    found = measure_distance(experiment)
    assert found is not None
    assert (found.inside, found.count) == (1, 1)


@given(st.lists(st.floats(0.0, 100.0), min_size=1, max_size=30), st.data())
def test_the_best_of_the_first_epochs_is_their_maximum(curve: list[float], data: st.DataObject) -> None:
    epochs = data.draw(st.integers(1, len(curve)))
    found = best_of(only(experiments([make_record("relu", curve)])), epochs)
    assert found.accuracies["relu"][0] == max(curve[:epochs])


def test_readings_that_runs_do_not_have_are_left_out() -> None:
    plain = only(experiments([make_record("relu", [50.0] * 20)]))
    assert list(plain.by_reading) == [LAST, LAST10, BEST]
    both = only(experiments([make_record("relu", [50.0] * 20, held_out=[50.0] * 20)]))
    assert list(both.by_reading) == [LAST, LAST10, CHOSEN, BEST]


def test_pages_have_the_distance_of_the_best_of_fewer_epochs() -> None:
    late = [make_record("relu", [60.0] * 60 + [79.97] * 40, seed=seed) for seed in range(2)]
    short = [make_record("relu", [80.97] * 50, seed=seed, column="lenet5/cifar10") for seed in range(2)]
    text = distance_table(experiments(late + short))
    assert cells(text, "last epoch")[-2:] == ["best of 50 (not a result)", "best of 100 (not a result)"]
    assert cells(text, "kerasnet/cifar10 | all rows")[2:] == ["0.00", "0.00", "", "19.97", "0.00"]
    assert cells(text, "lenet5/cifar10 | all rows")[2:] == ["0.60", "0.60", "", "0.60", ""]


def cells(text: str, words: str) -> list[str]:
    (line,) = (line for line in text.splitlines() if words in line)
    return [cell.strip() for cell in line.strip("|").split("|")]


CURVE = [60.0] * 5 + [79.97] + [61.0] * 13 + [70.0]
RUNS = [make_record("relu", CURVE, seed=seed, held_out=[*[1.0] * 19, 2.0]) for seed in range(2)]
RUNS += [make_record("convex(identity,tanh)", CURVE, seed=seed, held_out=[2.0, *[1.0] * 19]) for seed in range(2)]


def test_pages_have_the_distance_of_every_reading() -> None:
    found = experiments(RUNS)
    text = distance_table(found)
    assert cells(text, "all rows")[2:] == [
        f"{math.sqrt(((79.97 - a) ** 2 + (78.53 - b) ** 2) / 2):.2f}"
        for a, b in ((70.0, 70.0), (61.9, 61.9), (70.0, 60.0))
    ]
    assert cells(text, "without convex")[2:] == ["9.97", "18.07", "9.97"]
    assert cells(prediction_part(found, found), "kerasnet")[1:] == ["1.02", "", "0.00", "1 of 2"]
    assert "1 of 2 published figures" in prediction_part(found, found)
    table = cells(readings_tables(found), "| relu |")
    assert table[1:] == ["**70.00 ± 0.00**", "**61.90 ± 0.00**", "**70.00 ± 0.00**", "**79.97 ± 0.00**", "79.97"]


def test_holding_images_out_costs_what_shorter_runs_with_all_images_gain() -> None:
    """After as many epochs, averaged over activations seed by seed."""

    def run(row: str, curve: list[float], seed: int, val_size: int = 0) -> Record:
        held_out = curve if val_size else []
        return make_record(row, curve, held_out=held_out, seed=seed, val_size=val_size)

    held = [run("relu", [70.0, 72.0, 90.0], s, 500) for s in range(2)] + [run("tanh", [60.0, 60.0, 99.0], 0, 500)]
    held += [run("tanh", [60.0, 61.0, 99.0], 1, 500)]
    whole = [run("relu", [71.0, 75.0], s) for s in range(2)] + [run("tanh", [62.0, 61.0], s) for s in range(2)]
    shorter, longer = sorted(experiments(held + whole), key=lambda e: e.epoch)
    assert cost_of_holding_out(longer, [longer, shorter]) == Interval.of([(3 + 2) / 2, (3 + 1) / 2])
    assert cost_of_holding_out(longer, [longer]) is None
    assert cost_of_holding_out(shorter, [longer, shorter]) is None


def test_a_late_fall_is_a_rise_of_the_training_loss() -> None:
    losses = [2.0 - 0.1 * epoch for epoch in range(15)] + [0.6 + 0.1 * epoch for epoch in range(15)]
    accuracy = [50.0 + epoch for epoch in range(15)] + [65.0 - epoch for epoch in range(15)]
    record = make_record("relu", accuracy, train_loss=losses)
    late = find_late_loss(record, 30)
    assert late is not None
    assert late.lowest_at == 20  # the ten epochs from 11 to 20, around the lowest loss
    lowest, last = sum(losses[10:20]) / 10, sum(losses[20:]) / 10
    assert late.rise == pytest.approx(last / lowest - 1)
    assert late.accuracy_then == pytest.approx(sum(accuracy[10:20]) / 10)
    assert late.accuracy_last == pytest.approx(sum(accuracy[20:]) / 10)
    assert late.rises
    falling = find_late_loss(replace(record, train_loss=sorted(losses, reverse=True)), 30)
    assert falling is not None
    assert (falling.lowest_at, falling.rise, falling.rises) == (30, 0.0, False)


@pytest.mark.parametrize(("rise", "rises"), [(RISE - 0.001, False), (RISE + 0.001, True)])
def test_small_rises_are_scatter(rise: float, rises: bool) -> None:
    losses = [2.0] * 10 + [1.0] * 10 + [1.0 + rise] * 10
    late = find_late_loss(make_record("relu", [50.0] * 30, train_loss=losses), 30)
    assert late is not None
    assert late.rises == rises


def test_short_runs_and_those_that_diverged_are_not_followed() -> None:
    losses = [1.0] * 10 + [2.0] * 10
    record = make_record("relu", [50.0] * 20, train_loss=losses)
    assert find_late_loss(record, 19) is None
    assert find_late_loss(record, 20) is not None
    assert find_late_loss(replace(record, ended="diverged in epoch 20"), 20) is None
    longer = make_record("relu", [50.0] * 21, train_loss=[*losses, 2.0])
    assert find_late_loss(replace(longer, ended="diverged in epoch 21"), 20) is not None
    assert find_late_loss(replace(record, train_loss=[*losses[:-1], None]), 20) is None


def test_the_page_lists_activations_whose_training_loss_rises_and_counts_the_others() -> None:
    up, down = [1.0] * 10 + [2.0] * 10, [2.0] * 10 + [1.0] * 10
    accuracy = [80.0] * 10 + [70.0] * 10
    runs = [make_record("relu", accuracy, seed=seed, train_loss=up if seed else down) for seed in range(3)]
    runs += [make_record("tanh", accuracy, train_loss=down)]
    text = late_loss_table(experiments(runs))
    assert cells(text, "| relu |")[2:] == ["2 of 3", "10", "+100 %", "80.00", "70.00", "-10.00"]
    assert "| tanh |" not in text
    assert "in the other 1 cells" in text
