"""Hulls as Keras 3 layers, for its PyTorch, JAX and TensorFlow backends, and tools for existing models.

>>> import hullo.keras
>>> hullo.keras.AffineHull(["identity", "relu", "tanh"])
AffineHull(['identity', 'relu', 'tanh'])
"""

try:
    import keras.ops  # noqa: F401
except ImportError as error:
    raise type(error)(
        f"hullo.keras needs Keras 3 and its backend ({error}): run pip install '.[keras]' in a clone of hullo, and "
        "set the environment variable KERAS_BACKEND to 'torch', 'jax' or 'tensorflow', whichever you have",
        name=error.name,
    ) from None

from hullo.keras.layers import AffineHull, ConicHull, ConvexHull, LinearHull
from hullo.keras.models import fold, replace_activations, summary

__all__ = ["AffineHull", "ConicHull", "ConvexHull", "LinearHull", "fold", "replace_activations", "summary"]
