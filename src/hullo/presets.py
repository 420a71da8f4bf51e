"""Activations of recent models, as hulls with their usual bases and initial coefficients."""

from __future__ import annotations

from typing import Any

from hullo.modules import ConicHull, LinearHull


def xielu(alpha_p: float = 0.8, alpha_n: float = 0.8, beta: float = 0.5, **options: Any) -> ConicHull:
    """Return xIELU (Huang and Schlag, 2024), the activation of Apertus, as a conic hull.

    It is beta x + alpha_p x^2 for x > 0 and beta x + alpha_n (exp(x) - 1 - x) for x < 0. All three coefficients are
    learned and stay above zero; the original keeps `beta` constant and `alpha_n` above `beta`.

    Args:
        alpha_p: the initial value of the positive branch.
        alpha_n: the initial value of the negative branch.
        beta: the slope at the origin.
        options: other arguments of :class:`hullo.ConicHull`.

    Example:
        >>> import hullo
        >>> hullo.presets.xielu()
        ConicHull(identity=0.5, relu2=0.8, xielu_negative=0.8, parametrization='softplus')
    """
    given = {"init": [beta, alpha_p, alpha_n], "parametrization": "softplus"} | options
    return ConicHull("identity", "relu2", "xielu_negative", **given)


def poly_relu(order: int = 3, **options: Any) -> LinearHull:
    """Return PolyReLU (Zhuo et al., 2024), a polynomial of ReLU, as a linear hull.

    Args:
        order: the highest power, from 1 to 3; each power starts with 1 / order, the constant with 0.
        options: other arguments of :class:`hullo.LinearHull`.

    Example:
        >>> import hullo
        >>> hullo.presets.poly_relu(2)
        LinearHull(constant=0, relu=0.5, relu2=0.5)
    """
    if order not in (1, 2, 3):
        raise ValueError(f"order={order!r}: give 1, 2 or 3, the highest power of ReLU")
    powers = ("relu", "relu2", "relu3")[:order]
    return LinearHull("constant", *powers, **{"init": [0.0] + [1 / order] * order} | options)


def star_relu(scale: float = 0.8944, bias: float = -0.4472, **options: Any) -> LinearHull:
    """Return StarReLU (Yu et al., 2022), scale * relu(x)^2 + bias, the activation of CAFormer, as a linear hull.

    Args:
        scale: the initial value of the scale.
        bias: the initial value of the bias.
        options: other arguments of :class:`hullo.LinearHull`.

    Example:
        >>> import hullo
        >>> hullo.presets.star_relu()
        LinearHull(constant=-0.45, relu2=0.89)
    """
    return LinearHull("constant", "relu2", **{"init": [bias, scale]} | options)


def blending_unit(**options: Any) -> LinearHull:
    """Return an adaptive blending unit (Sütfeld et al., 2018): five functions with 1/5 each, as a linear hull.

    Args:
        options: arguments of :class:`hullo.LinearHull`.

    Example:
        >>> import hullo
        >>> hullo.presets.blending_unit()
        LinearHull(tanh=0.2, elu=0.2, relu=0.2, identity=0.2, silu=0.2)
    """
    return LinearHull("tanh", "elu", "relu", "identity", "silu", **options)
