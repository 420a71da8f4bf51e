"""hullo: activation functions that learn, as convex or affine combinations of base functions."""

from hullo.bases import Base, add_base, base, names
from hullo.coefficients import Hyperplane, Simplex
from hullo.functional import combine
from hullo.modules import AffineHull, ConvexHull
from hullo.properties import approximates_identity, is_monotone, known_as, slope_bounds
from hullo.surgery import parameter_groups

__version__ = "0.1.0"

__all__ = [
    "AffineHull",
    "Base",
    "ConvexHull",
    "Hyperplane",
    "Simplex",
    "add_base",
    "approximates_identity",
    "base",
    "combine",
    "is_monotone",
    "known_as",
    "names",
    "parameter_groups",
    "slope_bounds",
]
