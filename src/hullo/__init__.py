"""hullo: activation functions that learn, as combinations of base functions."""

import hullo._signals  # imported first: handles Ctrl-C while PyTorch is imported
import hullo.catalogue  # noqa: F401  (registers the bases)
from hullo.bases import Base, base, list_bases
from hullo.coefficients import Hyperplane, Orthant, Simplex, Space
from hullo.custom_bases import add_base
from hullo.functional import combine
from hullo.gating import GatedHull
from hullo.modules import AffineHull, ConicHull, ConvexHull, Hull, LinearHull
from hullo.parametrizations import Parametrization
from hullo.presets import blending_unit, poly_relu, star_relu, xielu
from hullo.properties import approximates_identity, identify, is_monotone, slope_bounds
from hullo.surgery import (
    coefficient_dict,
    coefficient_parameters,
    fold,
    fuse_gates,
    load_hulls,
    parameter_groups,
    plot,
    replace_activations,
    restore,
    save_hulls,
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
    "Hyperplane",
    "LinearHull",
    "Orthant",
    "Parametrization",
    "Simplex",
    "Space",
    "add_base",
    "approximates_identity",
    "base",
    "blending_unit",
    "coefficient_dict",
    "coefficient_parameters",
    "combine",
    "fold",
    "fuse_gates",
    "identify",
    "is_monotone",
    "list_bases",
    "load_hulls",
    "parameter_groups",
    "plot",
    "poly_relu",
    "replace_activations",
    "restore",
    "save_hulls",
    "slope_bounds",
    "star_relu",
    "summary",
    "xielu",
]
