"""Terms that bases share: sums of them are the bases."""

from __future__ import annotations

import pytest
import torch

import hullo
from hullo.bases.formulas import FUNCTIONS
from hullo.kernels.linear_terms import slope_terms, value_terms

X = torch.cat([torch.linspace(-9, 9, 721, dtype=torch.float64), torch.tensor([0.0, 1e-3, -1e-3], dtype=torch.float64)])
WORDS = FUNCTIONS | {
    "flip": lambda w: torch.where(X > 0, w, -w),
    "logistic_tail": lambda m: torch.sigmoid(-m),
    "magnitude": torch.abs,
    "normal_slope": lambda m: FUNCTIONS["normal_tail"](m) - m * FUNCTIONS["normal_pdf"](m),
    "normal_tail_of_magnitude": FUNCTIONS["normal_tail"],
    "x": X,
}


@pytest.mark.parametrize("names", [hullo.list_bases(), ("gelu", "silu", "tanh", "elu"), ("unit_gelu", "gelu", "relu")])
def test_sums_of_terms_are_the_bases(names: tuple[str, ...]) -> None:
    bases = [hullo.get_base(name) for name in names]
    values, slopes = value_terms(bases), slope_terms(bases)
    for base, *rows in zip(bases, values, slopes, strict=True):
        expected = (base.function(X), base.derivative(X))
        for terms, right in zip(rows, expected, strict=True):
            found = sum(factor * eval(term, dict(WORDS)) for term, factor in terms.items())
            torch.testing.assert_close(found + torch.zeros_like(X), right, rtol=1e-9, atol=1e-9)
    assert len({term for terms in values for term in terms}) <= len(bases)


def test_relu_is_computed_once_for_gelu_and_silu() -> None:
    bases = [hullo.get_base(name) for name in ("unit_silu", "relu", "gelu")]
    found = [terms.get("positive_part(x)") for terms in value_terms(bases)]
    assert found == [2.0, 1.0, 1.0]
