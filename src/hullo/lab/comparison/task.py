"""The task: the loss of a sample, and the metric that networks are compared by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from hullo.lab.spec.records import ACCURACY

Loss = Callable[[Tensor, Tensor], Tensor]
Whole = Callable[[Tensor, Tensor], Any]


def _cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of each sample; classes are the last dimension of outputs, or the second."""
    if outputs.shape[:-1] == targets.shape:
        outputs, targets = outputs.flatten(0, -2), targets.flatten()
    return F.cross_entropy(outputs, targets, reduction="none")


def _binary(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(outputs.reshape(targets.shape), targets.to(outputs), reduction="none")


def _square(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.reshape(targets.shape) - targets).square()


def _absolute(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.reshape(targets.shape) - targets).abs()


LOSSES: dict[str, Loss] = {"cross_entropy": _cross_entropy, "bce": _binary, "mse": _square, "mae": _absolute}
TARGET = "the target"
METRICS = (ACCURACY, "loss", "rmse", "mae")


@dataclass(frozen=True)
class Task:
    """Hold how networks are trained, and the metric that compares them."""

    loss: Loss  # of each sample
    name: str  # of the metric
    higher: bool = False  # whether higher is better
    whole: Whole | None = None  # the metric as a function; else it is the mean of a score of each sample
    scale: float = 1.0  # of the targets, which errors of regression are multiplied by
    target: str = TARGET  # their name

    @property
    def sign(self) -> float:
        """Return 1 if higher is better, else -1."""
        return 1.0 if self.higher else -1.0

    @property
    def has_classes(self) -> bool:
        return self.loss is _cross_entropy

    @property
    def title(self) -> str:
        """Return the metric and what it is measured in."""
        units = {ACCURACY: " in percent", "rmse": f" in units of {self.target}", "mae": f" in units of {self.target}"}
        return self.name + units.get(self.name, "")

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each sample, (B); of several numbers of a sample, their mean."""
        losses = self.loss(outputs, targets)
        count = len(targets)
        if not isinstance(losses, Tensor) or losses.dim() == 0 or losses.numel() % count:
            found = f"shape {tuple(losses.shape)}" if isinstance(losses, Tensor) else type(losses).__name__
            raise ValueError(
                f"loss returned {found} for {count} samples; return one number per sample, as with reduction='none'"
            )
        return losses.reshape(count, -1).mean(1)

    def score(self, outputs: Tensor, targets: Tensor, losses: Tensor) -> Tensor:
        """Return the score of each sample, (B), the mean of several; `finish` makes the metric of their mean."""
        scores = losses
        if self.name == ACCURACY:
            scores = 100 * _hits(outputs, targets) * losses.isfinite().view(-1, *[1] * (targets.dim() - 1))
        elif self.name == "mae":
            scores = self.scale * _absolute(outputs, targets)
        elif self.name == "rmse":
            scores = self.scale**2 * _square(outputs, targets)
        return scores.reshape(len(targets), -1).double().mean(1)

    def finish(self, mean: float) -> float:
        """Return the metric, given the mean score."""
        return mean**0.5 if self.name == "rmse" else mean

    def slope(self, mean: float) -> float:
        """Return the derivative of `finish`."""
        return 0.5 / mean**0.5 if self.name == "rmse" and mean > 0 else 1.0

    def default_worth(self, value: float) -> float:
        """Return the gain that is worth a change if a user does not say: 0.3 points of accuracy, else 1 % of a value.

        >>> Task(_cross_entropy, "accuracy").default_worth(90.0), Task(_square, "rmse").default_worth(50.0)
        (0.3, 0.5)
        """
        return 0.3 if self.name == ACCURACY else abs(value) / 100

    def spell(self, value: float) -> str:
        """Return a difference with its unit."""
        return spell_number(value) + " points" * (self.name == ACCURACY)

    def check(self, outputs: Any, targets: Tensor, known: Tensor | None) -> None:
        """Raise a ValueError if outputs for some samples do not fit their targets, or all targets that are known."""
        if not isinstance(outputs, Tensor):
            given = type(outputs).__name__
            raise ValueError(f"the network returned {given}; return a tensor, or give a step of your own")
        if known is not None and bool((known == known[0]).all()):
            raise ValueError("all targets are the same; give at least two classes, or numbers that differ")
        if self.has_classes and known is not None and outputs.dim() > 1:
            count = outputs.shape[-1 if outputs.shape[:-1] == targets.shape else 1]
            low, high = int(known.min()), int(known.max())
            if low < 0 or high >= count:
                advice = "return one for each class, numbered from 0" + ", or choose the loss bce" * (count == 1)
                advice += ", or another column with --target" * (self.target != TARGET)
                given = f"the network has {count} output{'s' * (count > 1)}"
                raise ValueError(f"{given}, but {self.target} has classes {low} to {high}; {advice}")
        try:
            self.score(outputs, targets, self.losses(outputs, targets))
        except (RuntimeError, IndexError) as error:
            kind = "numbers" if targets.is_floating_point() else "classes"
            shapes = f"outputs of shape {tuple(outputs.shape)} do not fit {kind} of shape {tuple(targets.shape)}"
            advice = "classes are whole numbers, one for each sample or position"
            raise ValueError(f"{shapes}: {' '.join(str(error).split())}; {advice}") from error


def make_task(
    targets: Tensor | None,
    loss: str | Loss | None,
    metric: str | Whole | None,
    *,
    higher_is_better: bool = True,
    **more: Any,
) -> Task:
    """Return the task; by default, whole numbers are classes and other numbers are regressed.

    Some targets say which; they are None if only the user's step knows them.
    """
    for given in (loss, metric):
        if isinstance(given, type):
            raise ValueError(f"{given.__name__} is a class; give a function or a module, as {given.__name__}()")
    if loss is None:
        loss = "mse" if targets is None or targets.is_floating_point() else "cross_entropy"
    if isinstance(loss, str) and loss not in LOSSES:
        raise ValueError(f"unknown loss {loss!r}; available: {', '.join(LOSSES)}, or in Python a function")
    if metric is None:
        metric = "loss"
        if targets is not None and isinstance(loss, str):
            metric = {"mse": "rmse", "mae": "mae"}.get(loss, ACCURACY if targets[0].numel() == 1 else "loss")
    if not callable(metric) and metric not in METRICS:
        raise ValueError(f"unknown metric {metric!r}; available: {', '.join(METRICS)}, or in Python a function")
    is_numbers = targets is not None and targets.is_floating_point() and targets[0].numel() == 1
    if is_numbers and (loss == "cross_entropy" or (metric == ACCURACY and loss != "bce")):
        raise ValueError("cross_entropy and accuracy need classes, as whole numbers; these targets are other numbers")
    function = LOSSES[loss] if isinstance(loss, str) else loss
    if not callable(metric):
        return Task(function, metric, metric == ACCURACY, **more)
    name = getattr(metric, "__name__", "")
    name = f"own_{name}" if name in METRICS else name if name.isidentifier() else "metric"
    return Task(function, name, higher_is_better, metric, **more)


def measure(whole: Whole, outputs: Tensor, targets: Tensor) -> float:
    """Return the metric by a function of the user's."""
    value = whole(outputs, targets)
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"the metric returned {value!r:.80}; return one number") from None


def _hits(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return whether samples, or their positions, are classified correctly."""
    if outputs.shape[:-1] == targets.shape and outputs.shape[-1] > 1:
        classes = outputs.argmax(-1)
    elif outputs.numel() == targets.numel():
        classes = (outputs.reshape(targets.shape) > 0).to(targets.dtype)
    else:
        classes = outputs.argmax(1)
    return classes == targets


def spell_number(value: float, digits: str = ".3g") -> str:
    """Return a number with the digits that matter: three, as for differences, or all of its whole part.

    >>> [spell_number(v) for v in (91.234, 0.0123456, 49213.7, -0.0)], spell_number(70.5, "#.5g")
    (['91.2', '0.0123', '49214', '0'], '70.500')
    """
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value + 0.0:{digits}}"
