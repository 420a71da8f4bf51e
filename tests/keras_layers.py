"""Keras on the backend that KERAS_BACKEND names, and helpers for tests of its layers."""

import numpy as np
import pytest

import hullo

keras = pytest.importorskip("keras")

BACKEND = keras.backend.backend()
PAPER = ["identity", "relu", "tanh"]
HULLS = ["ConvexHull", "AffineHull", "ConicHull", "LinearHull"]
PARAMETRIZATIONS = [(name, choice) for name in HULLS for choice in getattr(hullo, name).coefficient_set.choices]

# Keras turns PyTorch's tensors into arrays in a way that NumPy no longer likes.
without_array_warning = pytest.mark.filterwarnings(
    "ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"
)


def numpy(array):
    return keras.ops.convert_to_numpy(array)


def sample(shape, dtype="float32", kinks=(0.0,)):
    """Return points that include the kinks, and the upstream gradient of a mean."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-3, 3, size=shape)
    x.reshape(-1)[: len(kinks)] = kinks
    return x.astype(dtype), (rng.uniform(-1, 1, size=shape) / x.size).astype(dtype)


def network(*hulls):
    return keras.Sequential([keras.Input((4,)), *hulls])
