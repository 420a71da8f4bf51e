"""Pass coefficients to optimizers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from hullo.surgery.sites import named_hulls

Group = dict[str, Any]


def parameter_groups(
    model: nn.Module,
    groups: Iterable[Group] | Iterable[nn.Parameter] | Iterable[tuple[str, nn.Parameter]] | None = None,
    *,
    lr: float | None = None,
    weight_decay: float | None = None,
    coefficient_lr_scale: float = 1.0,
) -> list[Group]:
    """Return parameter groups for an optimizer: coefficients without weight decay, and with their own learning rate.

    Weight decay would pull the raw parameters towards zero, which has no meaning for coefficients that sum to one.

    Args:
        model: any module with hulls, or a population.
        groups: existing parameters or parameter groups, such as those of ``timm.optim``. Coefficients are moved from
            each group to a new one with the same options, but without weight decay and with their own learning rate.
            Coefficients that are not among them are not added; a warning says so if all are missing. By default these
            are all parameters of the model.
        lr: learning rate of the other parameters; with `groups`, of the groups without their own.
        weight_decay: weight decay of the weights; one-dimensional parameters (biases, weights of normalizations) are
            then a group without weight decay. By default the optimizer's own applies to all but the coefficients.
            Ignored for `groups`, which have their own.
        coefficient_lr_scale: ratio of the learning rate of the coefficients to that of the other parameters.

    Example:
        >>> import torch, hullo
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), hullo.AffineHull("identity", "relu"))
        >>> groups = hullo.parameter_groups(model, lr=1e-3, weight_decay=1e-2, coefficient_lr_scale=10)
        >>> optimizer = torch.optim.AdamW(groups)
        >>> [(len(group["params"]), group["lr"], group["weight_decay"]) for group in optimizer.param_groups]
        [(1, 0.001, 0.01), (1, 0.001, 0.0), (1, 0.01, 0.0)]
    """
    dims_of_members = 1 if _is_population(model) else 0
    if not dims_of_members:
        named_hulls("parameter_groups", model)
    if groups is not None and (isinstance(groups, str) or not isinstance(groups, Iterable)):
        raise TypeError(f"groups={groups!r}: give parameters or parameter groups; the learning rate is lr={groups!r}")
    if groups is None and lr is None:
        raise TypeError("parameter_groups needs lr, the learning rate, or groups that have one")
    coefficients = coefficient_parameters(model)
    own = {id(parameter) for parameter in coefficients}
    if groups is None:
        decay = {} if weight_decay is None else {"weight_decay": weight_decay}
        weights = [{"params": list(model.parameters()), **decay}]
        if weight_decay:
            small = {id(p) for p in model.parameters() if p.dim() - dims_of_members <= 1} - own
            others = _only(weights[0], lambda p: id(p) not in small)
            weights = [others, {**_only(weights[0], lambda p: id(p) in small), "weight_decay": 0.0}]
    else:
        weights = _as_groups(groups)
    given = [group if lr is None else {"lr": lr, **group} for group in weights]
    moved = [_only(group, lambda p: id(p) in own) for group in given]
    given = [_only(group, lambda p: id(p) not in own) for group in given]
    if any(p.requires_grad for p in coefficients) and not any(group["params"] for group in moved):
        warnings.warn(
            "the given parameters have no coefficients, which an optimizer of them does not train; give "
            "model.parameters(), listed after replace_activations, or add hullo.coefficient_parameters(model)",
            stacklevel=2,
        )
    for group in (group for group in moved if group["params"]):
        if "lr" in group:
            group["lr"] = group["lr"] * coefficient_lr_scale  # a tensor stays as it is
        elif coefficient_lr_scale != 1:
            raise TypeError(f"coefficient_lr_scale={coefficient_lr_scale}: give lr too, or groups that have one")
        group["weight_decay"] = 0.0
    return [group for group in (*given, *moved) if group["params"]]


def _is_population(model: nn.Module) -> bool:
    return hasattr(type(model), "coefficient_parameters")


def _only(group: Group, keep: Callable[[nn.Parameter], bool]) -> Group:
    """Return a group of the parameters to keep, each of which may have a name."""
    parameters = [item for item in group["params"] if keep(item[1] if isinstance(item, tuple) else item)]
    return {**group, "params": parameters}


def _as_groups(given: Iterable[Any]) -> list[Group]:
    """Return parameter groups with lists of parameters, from the first argument of an optimizer."""
    items = list(given)
    groups = items if items and isinstance(items[0], dict) else [{"params": items}]
    return [
        {**group, "params": [group["params"]] if isinstance(group["params"], nn.Parameter) else list(group["params"])}
        for group in groups
    ]


def coefficient_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of coefficients and inner scales, for example to exempt them from weight decay.

    Example:
        >>> import torch, hullo
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), hullo.AffineHull("identity", "relu"))
        >>> [tuple(parameter.shape) for parameter in hullo.coefficient_parameters(model)]
        [(2,)]
    """
    if _is_population(model):
        parameters: list[nn.Parameter] = model.coefficient_parameters()  # type: ignore[operator]
        return parameters
    hulls = named_hulls("coefficient_parameters", model).values()
    return list(dict.fromkeys(parameter for hull in hulls for parameter in hull.parameters()))
