"""The page's functions are the library's: the same values and slopes, the same verdicts on combinations."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from report_records import make_records, write_report

import hullo
from hullo.bases import base as bases
from hullo.bases import list_bases, real_line, resolve
from hullo.lab.analysis.report.page import known_bases
from hullo.lab.spec.paper import COLUMNS

OTHERS = ("leaky_relu(-0.2)", "elu(0.5)", "celu(2)", "softplus(3)", "unit_softplus(0.25)")


@pytest.fixture
def page(visit: Any, tmp_path: Path) -> Any:
    rows = [f"affine(identity,{name})" for name in OTHERS]
    return visit(write_report(tmp_path, make_records([COLUMNS[0]], rows, seeds=1, epochs=1)), "#playground")


def test_bases_without_a_formula_or_unknown_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for registry in ("_families", "_cache"):
        monkeypatch.setattr(bases, registry, dict(getattr(bases, registry)))
    own = hullo.add_base("bent_for_the_page", lambda x: x * torch.sigmoid(x) * 2)
    found = known_bases([own.name, "nobody's", "leaky_relu(0.2)", "relu"])
    assert [item.name for item in found if item.name not in list_bases()] == ["leaky_relu(0.2)"]
    assert own not in found


def test_values_and_slopes_of_every_base_agree(page: Any) -> None:
    points = torch.tensor([*torch.linspace(-12, 12, 1003).tolist(), -1e6, -40.0, 40.0, 1e6], dtype=torch.float64)
    found = json.loads(
        page.evaluate(
            "points => JSON.stringify(Object.fromEntries(Object.entries(BASES).map(([name, base]) => "
            "[name, points.map((x) => [base.value(x), slopeOf(name, x)])])))",
            points.tolist(),
        )
    )
    expected = {item.name: item for item in known_bases(OTHERS)}
    assert found.keys() == expected.keys()
    assert len(found) >= 31 + len(OTHERS)
    for name, item in expected.items():
        values, slopes = torch.tensor(found[name], dtype=torch.float64).T
        torch.testing.assert_close(
            values, item.function(points), rtol=1e-9, atol=1e-9, msg=lambda m, n=name: f"{n} {m}"
        )
        torch.testing.assert_close(
            slopes, item.derivative(points), rtol=1e-9, atol=1e-9, msg=lambda m, n=name: f"{n} {m}"
        )


def test_the_real_line_has_the_librarys_points(page: Any) -> None:
    found = torch.tensor(page.evaluate("[...REAL_LINE]"), dtype=torch.float64)
    torch.testing.assert_close(found, real_line(), rtol=1e-15, atol=1e-15)


def random_mixtures(count: int) -> list[tuple[list[float], list[str]]]:
    """Return sets of bases that the library takes, with coefficients in the hulls and outside."""
    chance = random.Random(7)
    known = [item.name for item in known_bases(OTHERS)]
    mixtures: list[tuple[list[float], list[str]]] = []
    while len(mixtures) < count:
        chosen = chance.sample(known, chance.randint(1, 4))
        coefficients = [round(chance.uniform(-1, 2), 3) for _ in chosen]
        if chance.random() < 0.5:
            coefficients = [abs(c) for c in coefficients]
        if chance.random() < 0.7:
            coefficients[-1] = round(1 - sum(coefficients[:-1]), 3)
        try:
            resolve(chosen, strict=False)
        except ValueError:
            continue
        if hullo.slope_bounds(coefficients, chosen) is None:  # waves
            continue
        mixtures.append((coefficients, chosen))
    return mixtures


def test_slope_bounds_and_verdicts_agree(page: Any) -> None:
    mixtures = random_mixtures(70)
    found = page.evaluate(
        "all => all.map(([c, names]) => [slopeBounds(c, names), placeOf(c)]).map(([s, p]) => [s, isMonotone(s), p])",
        mixtures,
    )
    verdicts = set()
    for (coefficients, chosen), ((low, high), monotone, place) in zip(mixtures, found, strict=True):
        about = f"{coefficients} {chosen}"
        expected_low, expected_high = hullo.slope_bounds(coefficients, chosen)
        assert math.isclose(low, expected_low, abs_tol=2e-9), about
        assert math.isclose(high, expected_high, abs_tol=2e-9), about
        assert monotone == hullo.is_monotone(coefficients, chosen), about
        numbers = torch.tensor(coefficients, dtype=torch.float64)
        sets = (hullo.coefficients.SIMPLEX, hullo.coefficients.HYPERPLANE)
        convex, affine = (not allowed.describe_violation(numbers) for allowed in sets)
        assert (place == "convex", place in ("convex", "affine")) == (convex, affine), about
        verdicts.add((monotone, place))
    assert {place for _, place in verdicts} == {"convex", "affine", "cone", "span"}
    assert {monotone for monotone, _ in verdicts} == {True, False}


def test_admissible_bases_are_those_of_the_library(page: Any) -> None:
    found = page.evaluate("Object.entries(BASES).filter(([, base]) => base.admissible).map(([name]) => name)")
    assert found == [item.name for item in known_bases(OTHERS) if item.is_admissible]
