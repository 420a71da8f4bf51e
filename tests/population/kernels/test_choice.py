"""Test that the fastest way that agrees with the first is taken, only where it was measured, and again later."""

from __future__ import annotations

import pytest
import torch

from hullo.population.kernels import choice

pytest.importorskip("triton")
KEY = ("product", 3)


@pytest.fixture(autouse=True)
def _nothing_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "_chosen", {})


def ways(**results: float | None) -> dict[str, choice.Way]:
    def make(value: float | None) -> choice.Way:
        def way() -> choice.Outputs:
            if value is None:
                raise RuntimeError("out of resource: shared memory")
            return torch.tensor([value, 2.0]), None

        return way

    return {name: make(value) for name, value in results.items()}


def compute(milliseconds: dict[str, float], monkeypatch: pytest.MonkeyPatch, **results: float | None) -> float:
    made = ways(**results)
    names = {id(way): name for name, way in made.items()}
    monkeypatch.setattr(choice, "_time", lambda way: milliseconds[names[id(way)]])
    found = choice.compute(KEY, made, "first")[0]
    assert found is not None
    return float(found[0])


def test_by_default_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    assert compute({"first": 9.0, "fast": 1.0}, monkeypatch, first=1.0, fast=1.001) == pytest.approx(1.0)
    assert choice.choices() == {}


def test_nothing_is_measured_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "_is_capturing", lambda: True)
    with choice.tuning(True):
        assert compute({"first": 9.0, "fast": 1.0}, monkeypatch, first=1.0, fast=1.001) == pytest.approx(1.0)
    assert choice.choices() == {}


def test_the_fastest_that_agrees_is_taken_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = {"first": 9.0, "fast": 2.0, "wrong": 1.0, "broken": 0.5}
    results = {"first": 1.0, "fast": 1.001, "wrong": 1.2, "broken": None}
    with choice.tuning(True):
        assert compute(taken, monkeypatch, **results) == pytest.approx(1.001)
    assert compute({}, monkeypatch, **results) == pytest.approx(1.001)
    saved = choice.choices()
    choice._chosen.clear()
    assert compute({}, monkeypatch, **results) == pytest.approx(1.0)
    choice.take(saved)
    with choice.tuning(True):  # what was taken is not measured again
        assert compute({}, monkeypatch, **results) == pytest.approx(1.001)


def test_a_default_that_is_as_fast_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    with choice.tuning(True):
        assert compute({"first": 1.02, "fast": 1.0}, monkeypatch, first=1.0, fast=1.001) == pytest.approx(1.0)


def test_a_way_that_there_is_not_any_more_is_replaced_by_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    choice.take({repr(KEY): "of another version"})
    assert compute({}, monkeypatch, first=1.0, fast=1.001) == pytest.approx(1.0)


def test_moments_of_other_numbers_of_parts_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def way(parts: int, total: float) -> choice.Way:
        return lambda: (torch.ones(2), torch.full((2, parts, 3), total / parts))

    made = {"first": way(4, 1.0), "wrong": way(2, 1.5), "fast": way(2, 1.0)}
    taken = {id(made[name]): time for name, time in (("first", 3.0), ("wrong", 1.0), ("fast", 2.0))}
    monkeypatch.setattr(choice, "_time", lambda way: taken[id(way)])
    with choice.tuning(True):
        moments = choice.compute(KEY, made, "first")[1]
    assert moments is not None
    assert moments.shape[1] == 2
    assert float(moments.sum()) == pytest.approx(6.0)
