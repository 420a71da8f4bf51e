"""Base functions of recent models, each as one formula; the rest of the catalogue is in :mod:`hullo.catalogue`.

They are the parts of activations that are learned today: powers of ReLU (ReLU squared, StarReLU, PolyReLU), the two
branches of xIELU, and Snake. Powers have slopes without bound. :mod:`hullo.named` puts them together.
"""

from __future__ import annotations

import math

from hullo.bases import Base, family, spell
from hullo.catalogue import check_parameter, make_base


@family
def constant() -> Base:
    """1 everywhere: the learned offset of StarReLU and PolyReLU."""
    return make_base("constant", "1.0 + minimum(abs(x), 0.0)", "0.0", at_zero=(1.0, 0.0, 0.0), bounds=(0.0, 0.0))


@family
def relu2() -> Base:
    """ReLU squared, as in Primer and nanochat."""
    return make_base(
        "relu2", "square(positive_part(x))", "2 * positive_part(x)", at_zero=(0.0, 0.0, 0.0), bounds=(0.0, math.inf)
    )


@family
def relu3() -> Base:
    """ReLU cubed, the highest power of PolyReLU."""
    return make_base(
        "relu3",
        "square(positive_part(x)) * positive_part(x)",
        "3 * square(positive_part(x))",
        at_zero=(0.0, 0.0, 0.0),
        bounds=(0.0, math.inf),
    )


@family
def xielu_negative() -> Base:
    """xIELU's negative branch, exp(x) - 1 - x for x < 0, and 0 for x > 0."""
    return make_base(
        "xielu_negative",
        "expm1(minimum(x, 0.0)) - minimum(x, 0.0)",
        "expm1(minimum(x, 0.0))",
        at_zero=(0.0, 0.0, 0.0),
        bounds=(-1.0, 0.0),
    )


@family
def snake(frequency: float = 1.0) -> Base:
    """x + sin(frequency * x)^2 / frequency, as in neural vocoders and audio codecs."""
    check_parameter("snake", "frequency", frequency, positive=True)
    return make_base(
        spell("snake", {"frequency": frequency}),
        f"x + square(sin({frequency} * x)) * {1 / frequency!r}",
        f"1 + sin({2 * frequency} * x)",
        bounds=(0.0, 2.0),
    )
