"""The playground in a real browser says of a combination what the library says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from browsing import MINUS

import hullo


@pytest.mark.parametrize(
    "coefficients",
    [
        {"identity": 0.25, "relu": 0.75},
        {"identity": -1.0, "tanh": 2.0},
        {"unit_gelu": 0.4, "softsign": 0.5, "selu": 0.3},
    ],
    ids=str,
)
def test_the_playground_says_what_the_library_says(visit: Any, report: Path, coefficients: dict[str, float]) -> None:
    page = visit(report, "#playground?base=identity:1")
    for name, value in coefficients.items():
        if name != "identity":
            page.select_option("#add", name)
        page.get_by_label(f"coefficient of {name}, as a number").fill(str(value))
    if "identity" not in coefficients:
        page.get_by_role("button", name="remove identity").click()
    numbers, names = list(coefficients.values()), list(coefficients)
    said = page.locator("[data-fact=monotone]").inner_text()
    assert said.startswith("Monotone") == hullo.is_monotone(numbers, names)
    low, high = (f"{bound:.4g}".replace("-", MINUS) for bound in hullo.slope_bounds(numbers, names))
    assert f"from {low} to {high}" in page.locator("[data-fact=slopes]").inner_text()
    place = page.locator("[data-fact=place]").inner_text()
    total = sum(numbers)
    assert ("In the convex hull" in place) == (min(numbers) >= 0 and abs(total - 1) < 1e-5)
    assert ("In the affine hull" in place) == (min(numbers) < 0 and abs(total - 1) < 1e-5)


def test_the_playground_obeys_the_keyboard(visit: Any, report: Path) -> None:
    page = visit(report, "#playground?base=identity:0.5&base=relu:0.5")
    before = page.locator("[data-kind=value]").get_attribute("d")
    page.get_by_label("coefficient of relu", exact=True).focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert page.get_by_label("coefficient of relu, as a number").input_value() == "0.53"
    assert page.locator("[data-kind=value]").get_attribute("d") != before
    assert "not sum to one" in page.locator("[data-fact=place]").inner_text()
    page.get_by_role("button", name="make them sum to one").press("Enter")
    assert "In the convex hull" in page.locator("[data-fact=place]").inner_text()


def test_the_playgrounds_python_makes_the_same_function(visit: Any, report: Path) -> None:
    page = visit(report, "#playground?base=identity:-0.5&base=unit_silu:1.5")
    hull = eval(page.locator("#playground code").inner_text(), {"hullo": hullo})
    assert isinstance(hull, hullo.AffineHull)
    x = torch.linspace(-3, 3, 7)
    shown = page.evaluate("x => combine('value', [-0.5, 1.5], ['identity', 'unit_silu'], x)", x.tolist())
    torch.testing.assert_close(hull(x), torch.tensor(shown), rtol=1e-5, atol=1e-6)
