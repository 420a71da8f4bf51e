"""hullo: activation functions that learn, as combinations of base functions."""

import importlib
from typing import TYPE_CHECKING, Any

from hullo.bases import Base, add_base, get_base, list_bases
from hullo.functional import combine
from hullo.gating import GatedHull
from hullo.modules import AffineHull, ConicHull, ConvexHull, Hull, LinearHull

if TYPE_CHECKING:
    from hullo import presets, properties, surgery  # noqa: F401
    from hullo.properties import identify, is_monotone, slope_bounds
    from hullo.surgery import (
        coefficient_parameters,
        fold,
        parameter_groups,
        plot,
        replace_activations,
        restore,
        summary,
    )

__version__ = "0.3.0"

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


def __getattr__(name: str) -> Any:
    """Import functions for whole models, and submodules, on first use."""
    if name in ("presets", "properties", "surgery"):
        return importlib.import_module(f"hullo.{name}")
    if name in __all__:
        room = "properties" if name in ("identify", "is_monotone", "slope_bounds") else "surgery"
        found = getattr(importlib.import_module(f"hullo.{room}"), name)
        return getattr(found, name, found)  # an import of the file by its path puts a module in place of the function
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
