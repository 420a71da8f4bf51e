"""hullo: activation functions that learn, as combinations of base functions."""

import hullo._signals  # imported first: handles Ctrl-C while PyTorch is imported
import hullo.catalogue
import hullo.presets  # noqa: F401
from hullo.bases import Base, get_base, list_bases
from hullo.custom_bases import add_base
from hullo.functional import combine
from hullo.gating import GatedHull
from hullo.modules import AffineHull, ConicHull, ConvexHull, Hull, LinearHull
from hullo.properties import identify, is_monotone, slope_bounds
from hullo.surgery import (
    coefficient_parameters,
    fold,
    fuse_gates,
    parameter_groups,
    plot,
    replace_activations,
    restore,
    summary,
)

__version__ = "0.2.0"

__all__ = [
    "AffineHull",
    "Base",
    "ConicHull",
    "ConvexHull",
    "GatedHull",
    "Hull",
    "LinearHull",
    "add_base",
    "coefficient_parameters",
    "combine",
    "fold",
    "fuse_gates",
    "get_base",
    "identify",
    "is_monotone",
    "list_bases",
    "parameter_groups",
    "plot",
    "replace_activations",
    "restore",
    "slope_bounds",
    "summary",
]


def __dir__() -> list[str]:
    return __all__
