"""Activations of recent models, as hulls with their usual bases and initial coefficients.

Each function takes the arguments of its hull, such as `groups`, and `init` for other coefficients to start at.
"""

from __future__ import annotations

from typing import Any

from hullo.modules import ConicHull, LinearHull


def xielu(**options: Any) -> ConicHull:
    """Return xIELU (Huang and Schlag, 2024), the activation of Apertus, as a conic hull.

    It is beta x + alpha_p x^2 for x > 0 and beta x + alpha_n (exp(x) - 1 - x) for x < 0. All three coefficients are
    learned and stay above zero; the original keeps `beta` constant and `alpha_n` above `beta`.

    Example:
        >>> import hullo
        >>> hullo.presets.xielu()
        ConicHull(identity=0.5, relu2=0.8, xielu_negative=0.8, parametrization='softplus')
    """
    given = {"init": [0.5, 0.8, 0.8], "parametrization": "softplus"} | options
    return ConicHull("identity", "relu2", "xielu_negative", **given)


def poly_relu(**options: Any) -> LinearHull:
    """Return PolyReLU (Zhuo et al., 2024), a polynomial of ReLU, as a linear hull.

    Example:
        >>> import hullo
        >>> hullo.presets.poly_relu()
        LinearHull(constant=0, relu=0.33, relu2=0.33, relu3=0.33)
    """
    given = {"init": [0.0, 1 / 3, 1 / 3, 1 / 3]} | options
    return LinearHull("constant", "relu", "relu2", "relu3", **given)


def star_relu(**options: Any) -> LinearHull:
    """Return StarReLU (Yu et al., 2022), 0.8944 relu(x)^2 - 0.4472, the activation of CAFormer, as a linear hull.

    Example:
        >>> import hullo
        >>> hullo.presets.star_relu()
        LinearHull(constant=-0.45, relu2=0.89)
    """
    return LinearHull("constant", "relu2", **{"init": [-0.4472, 0.8944]} | options)


def blending_unit(**options: Any) -> LinearHull:
    """Return an adaptive blending unit (Sütfeld et al., 2018): five functions with 1/5 each, as a linear hull.

    Example:
        >>> import hullo
        >>> hullo.presets.blending_unit()
        LinearHull(tanh=0.2, elu=0.2, relu=0.2, identity=0.2, silu=0.2)
    """
    return LinearHull("tanh", "elu", "relu", "identity", "silu", **options)
