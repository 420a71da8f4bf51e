"""What an optimiser is told about hulls."""

from __future__ import annotations

from typing import Any

from torch import nn

from hullo.modules import Hull
from hullo.surgery.survey import expect_model


def parameter_groups(
    model: nn.Module, *, lr: float, weight_decay: float = 0.0, coefficient_lr_scale: float = 1.0
) -> list[dict[str, Any]]:
    """Parameter groups for an optimiser: coefficients without weight decay, and with their own learning rate.

    Weight decay would pull raw numbers towards zero, which means nothing for coefficients that sum to one.

    Args:
        model: any module; its hulls are found wherever they are.
        lr: the learning rate of all other parameters.
        weight_decay: the weight decay of all other parameters.
        coefficient_lr_scale: the coefficients' learning rate is `lr` times this.

    Example:
        >>> import torch, hullo
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), hullo.AffineHull("identity", "relu"))
        >>> groups = hullo.parameter_groups(model, lr=1e-3, weight_decay=1e-2, coefficient_lr_scale=10)
        >>> optimiser = torch.optim.AdamW(groups)
        >>> [(group["lr"], group["weight_decay"]) for group in optimiser.param_groups]
        [(0.001, 0.01), (0.01, 0.0)]
    """
    expect_model("parameter_groups", model)
    for name, value in (("lr", lr), ("weight_decay", weight_decay), ("coefficient_lr_scale", coefficient_lr_scale)):
        if not value >= 0:
            raise ValueError(f"{name}={value!r}: give a number that is not negative")
    coefficients = {module.raw: None for module in model.modules() if isinstance(module, Hull)}
    others = [parameter for parameter in model.parameters() if parameter not in coefficients]
    groups = [
        {"params": others, "lr": lr, "weight_decay": weight_decay},
        {"params": list(coefficients), "lr": lr * coefficient_lr_scale, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
