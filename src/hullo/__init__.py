"""hullo: activation functions that learn, as convex or affine combinations of base functions."""

from hullo.bases import Base, add_base, base, names
from hullo.coefficients import Hyperplane, Simplex
from hullo.functional import combine
from hullo.modules import AffineHull, ConvexHull

__version__ = "0.1.0"

__all__ = [
    "AffineHull",
    "Base",
    "ConvexHull",
    "Hyperplane",
    "Simplex",
    "add_base",
    "base",
    "combine",
    "names",
]
