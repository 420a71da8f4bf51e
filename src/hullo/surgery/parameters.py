"""Hand coefficients to optimizers and loggers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from hullo.modules import Hull
from hullo.surgery.survey import expect_model

Group = dict[str, Any]


def parameter_groups(
    model: nn.Module,
    groups: Iterable[Group] | Iterable[nn.Parameter] | None = None,
    *,
    lr: float | None = None,
    weight_decay: float = 0.0,
    coefficient_lr_scale: float = 1.0,
) -> list[Group]:
    """Return parameter groups for an optimizer: coefficients without weight decay, and with their own learning rate.

    Weight decay would pull raw numbers towards zero, which means nothing for coefficients that sum to one.

    Args:
        model: any module; its hulls are found wherever they are.
        groups: parameters, or groups of them, that exist already, such as those of ``timm.optim``. Coefficients are
            taken out of each and form a group beside it, with the same options, without weight decay and at their own
            learning rate. By default there are two groups beside the coefficients: weights, and parameters of one
            dimension (biases, weights of normalisations), which do not decay either.
        lr: the learning rate of all other parameters; with `groups`, of those that have none of their own.
        weight_decay: the weight decay of weights; with `groups` their own counts.
        coefficient_lr_scale: the coefficients' learning rate is that of the other parameters times this.

    Example:
        >>> import torch, hullo
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), hullo.AffineHull("identity", "relu"))
        >>> groups = hullo.parameter_groups(model, lr=1e-3, weight_decay=1e-2, coefficient_lr_scale=10)
        >>> optimizer = torch.optim.AdamW(groups)
        >>> [(len(group["params"]), group["lr"], group["weight_decay"]) for group in optimizer.param_groups]
        [(1, 0.001, 0.01), (1, 0.001, 0.0), (1, 0.01, 0.0)]
    """
    expect_model("parameter_groups", model)
    for name, value in (("lr", lr), ("weight_decay", weight_decay), ("coefficient_lr_scale", coefficient_lr_scale)):
        if value is not None and not value >= 0:
            raise ValueError(f"{name}={value!r}: give a number that is not negative")
    if groups is None and lr is None:
        raise TypeError("parameter_groups needs lr, the learning rate, or groups that have one")
    coefficients = coefficient_parameters(model)
    own = {id(parameter) for parameter in coefficients}
    if groups is None:
        others = [parameter for parameter in model.parameters() if id(parameter) not in own]
        given: list[Group] = [
            {"params": [p for p in others if p.dim() > 1 or not weight_decay], "lr": lr, "weight_decay": weight_decay},
            {"params": [p for p in others if p.dim() <= 1 and weight_decay], "lr": lr, "weight_decay": 0.0},
        ]
    else:
        given = [({} if lr is None else {"lr": lr}) | group for group in _as_groups(groups)]
    listed = {id(parameter) for group in given for parameter in group["params"]}
    beside: list[Group] = [{**group, "params": [p for p in group["params"] if id(p) in own]} for group in given]
    beside.append({"params": [p for p in coefficients if id(p) not in listed]} | ({} if lr is None else {"lr": lr}))
    made = [{**group, "params": [p for p in group["params"] if id(p) not in own]} for group in given]
    for group in (group for group in beside if group["params"]):
        if "lr" in group:
            group["lr"] *= coefficient_lr_scale
        elif coefficient_lr_scale != 1:
            raise TypeError(f"coefficient_lr_scale={coefficient_lr_scale}: give lr too, or groups that have one")
        made.append(group | {"weight_decay": 0.0})
    return [group for group in made if group["params"]]


def _as_groups(given: Iterable[Any]) -> list[Group]:
    """Return parameter groups with lists of parameters, as optimizers understand what they are given."""
    items = list(given)
    groups = items if items and isinstance(items[0], dict) else [{"params": items}]
    return [
        {**group, "params": [group["params"]] if isinstance(group["params"], nn.Parameter) else list(group["params"])}
        for group in groups
    ]


def coefficient_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that hold coefficients and inner scales, to exempt them from what is done to weights.

    Example:
        >>> import torch, hullo
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), hullo.AffineHull("identity", "relu"))
        >>> [tuple(parameter.shape) for parameter in hullo.coefficient_parameters(model)]
        [(2,)]
    """
    expect_model("coefficient_parameters", model)
    hulls = [module for module in model.modules() if isinstance(module, Hull)]
    return list({item: None for hull in hulls for item in (hull.raw, hull.inner_scale) if item is not None})


def coefficient_dict(model: nn.Module) -> dict[str, float]:
    """Return a model's coefficients by name, as loggers take them: TensorBoard, Weights & Biases, MLflow.

    A hull with several groups has the mean, the least and the largest of their coefficients.

    Example:
        >>> import torch, hullo
        >>> hullo.coefficient_dict(torch.nn.Sequential(torch.nn.Linear(4, 4), hullo.AffineHull("identity", "relu")))
        {'1/identity': 0.5, '1/relu': 0.5}
    """
    expect_model("coefficient_dict", model)
    found: dict[str, float] = {}
    for name, hull in model.named_modules():
        if not isinstance(hull, Hull):
            continue
        rows = hull.coefficients.detach().double().reshape(hull.groups, -1)
        for base, column in zip(hull.bases, rows.T.tolist(), strict=True):
            key = f"{name}/{base.name}" if name else base.name
            if hull.groups == 1:
                found[key] = column[0]
            else:
                found |= {
                    f"{key}/mean": sum(column) / len(column),
                    f"{key}/min": min(column),
                    f"{key}/max": max(column),
                }
    return found
