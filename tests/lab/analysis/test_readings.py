"""Readings: each says which epochs count, none looks at what it may not see, and the fairest is the default."""

from __future__ import annotations

from dataclasses import replace
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hullo.lab.analysis.readings import (
    BEST,
    CHOSEN,
    LAST,
    LAST10,
    fairest,
    read_accuracy,
    read_epoch,
    readings_of,
)
from made_records import make_record

CURVES = st.integers(20, 40).flatmap(
    lambda size: st.tuples(*[st.lists(st.integers(0, 100).map(float), min_size=size, max_size=size)] * 2)
)


def test_readings_by_hand() -> None:
    tested = [50.0, 90.0, 70.0, *[60.0] * 17, *range(61, 71)]
    record = make_record("relu", tested, held_out=[1.0, 2.0, 9.0, *[5.0] * 27])
    read = {r: (read_accuracy(record, r, 30), read_epoch(record, r, 30)) for r in readings_of([record], 30)}
    assert read == {LAST: (70.0, 30), LAST10: (65.5, 30), CHOSEN: (70.0, 3), BEST: (90.0, 2)}
    assert read_accuracy(record, CHOSEN, 2) == 90.0  # after two epochs the second was the best on held-out images


@given(CURVES, st.data())
def test_readings_are_what_they_say(curves: tuple[list[float], list[float]], data: st.DataObject) -> None:
    tested, held_out = curves
    epochs = data.draw(st.integers(1, len(tested)))
    record = make_record("relu", tested, held_out=held_out)
    chosen = read_epoch(record, CHOSEN, epochs)
    assert held_out[chosen - 1] == max(held_out[:epochs])
    assert max(held_out[: chosen - 1], default=-1.0) < held_out[chosen - 1]  # of several the earliest
    assert read_accuracy(record, CHOSEN, epochs) == tested[chosen - 1]
    assert read_accuracy(record, CHOSEN, epochs, "val") == max(held_out[:epochs])
    assert read_accuracy(record, LAST, epochs) == tested[epochs - 1]
    assert read_accuracy(record, BEST, epochs) == max(tested[:epochs])
    if epochs >= 20:
        assert read_accuracy(record, LAST10, epochs) == pytest.approx(mean(tested[epochs - 10 : epochs]))
    assert read_epoch(record, LAST, epochs) == read_epoch(record, LAST10, epochs) == epochs


@given(CURVES)
def test_of_an_error_the_lowest_is_chosen(curves: tuple[list[float], list[float]]) -> None:
    tested, held_out = curves
    record = make_record("relu", tested, held_out=held_out)
    record = replace(
        record,
        metric="rmse",
        lower_is_better=True,
        test_accuracy=[],
        val_accuracy=[],
        test_metric=tested,
        val_metric=held_out,
    )
    assert read_accuracy(record, BEST, len(tested)) == min(tested)
    assert read_epoch(record, CHOSEN, len(tested)) == 1 + held_out.index(min(held_out))


def test_an_epoch_from_the_divergence_on_is_never_chosen() -> None:
    record = make_record("relu", [50.0, 60.0, 99.0, 10.0], held_out=[5.0, 4.0, 9.0, 1.0], ended="diverged in epoch 3")
    read = [(read_epoch(record, r, 4), read_accuracy(record, r, 4)) for r in (LAST, CHOSEN, BEST)]
    assert read == [(4, 10.0), (1, 50.0), (2, 60.0)]
    assert read_epoch(replace(record, ended="diverged in epoch 1"), BEST, 4) == 3


@pytest.mark.parametrize(
    ("epochs", "held_out", "old", "there"),
    [
        (30, True, False, "last last10 chosen best"),
        (30, False, False, "last last10 best"),
        (19, True, False, "last chosen best"),  # more than half of the training would be in the mean
        (20, False, False, "last last10 best"),
        (30, False, True, "last last10"),  # without test images
        (1, False, True, "last"),
    ],
)
def test_which_readings_there_are_and_which_is_the_fairest(epochs: int, held_out: bool, old: bool, there: str) -> None:
    curve = [50.0] * epochs
    record = make_record("relu", curve, held_out=curve if held_out else (), val_size=500 if held_out or old else 0)
    known = readings_of([record], epochs)
    assert " ".join(map(str, known)) == there
    assert str(fairest([record], epochs)) == next(
        name for name in ("chosen", "last10", "last") if name in there.split()
    )


def test_runs_have_a_reading_if_all_of_them_do() -> None:
    both = make_record("relu", [50.0] * 30, held_out=[50.0] * 30)
    without = replace(both, val_accuracy=[])
    assert CHOSEN in readings_of([both, both], 30)
    assert CHOSEN not in readings_of([both, without], 30)


def test_the_reading_that_explains_the_paper_says_so_wherever_it_is_named() -> None:
    assert "not a result" in BEST.short
    assert "explains the paper" in BEST.meaning
    assert all("result" not in reading.short + reading.meaning for reading in (LAST, LAST10, CHOSEN))
