"""Plot the learned functions of a model."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hullo._compat import real_tensors
from hullo.modules import Hull
from hullo.surgery.sites import named_hulls
from hullo.surgery.state import Inputs, hook_inputs, restored, run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_POINTS = 401
_BINS = 60
_MAX_INPUTS = 2**16  # inputs per hull, for a histogram


def plot(
    model: nn.Module, *, example_inputs: Inputs | None = None, limits: tuple[float, float] = (-4.0, 4.0)
) -> Figure:
    """Draw the function of every hull of a model, one panel per hull.

    The solid line is the current function, the dashed one the initial function. For a hull with several groups, the
    line is the mean over groups, and a band shows minimum and maximum. With `example_inputs`, a histogram shows the
    inputs of the hull within `limits`, and the panel says how many are outside.

    Args:
        model: any module with hulls, or a single hull; not changed.
        example_inputs: arguments of the model, as a tensor, a tuple or a dict; it runs in evaluation mode.
        limits: the range of inputs to draw.

    Returns:
        A matplotlib figure; ``figure.savefig("hulls.png")`` writes it. Needs matplotlib.

    Raises:
        ValueError: the model has no hulls, or the limits are not increasing.

    Example:
        >>> import torch, hullo
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), hullo.AffineHull("identity", "relu"))
        >>> figure = hullo.plot(model, example_inputs=torch.randn(16, 4))
        >>> [axes.get_title() for axes in figure.axes][0]
        '1: affine(identity,relu)'
    """
    hulls = named_hulls("plot", model, required=True)
    low, high = limits
    if not -math.inf < low < high < math.inf:
        raise ValueError(f"limits={limits!r}: give two finite increasing numbers")
    if any(hull.raw.is_meta for hull in hulls.values()):
        raise ValueError("the coefficients of a hull have no values, on the meta device; load a state first")
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("hullo.plot needs matplotlib; run: pip install matplotlib") from error
    inputs = {} if example_inputs is None else _inputs(model, example_inputs)
    columns = min(4, len(hulls))
    rows = -(-len(hulls) // columns)
    figure = Figure(figsize=(3.2 * columns, 2.6 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes, (name, hull) in zip(panels, hulls.items(), strict=False):
        _draw(axes, hull, limits, inputs.get(name))
        axes.set_title(f"{name}: {hull.spelling}" if name else hull.spelling, fontsize="small")
    for axes in panels[len(hulls) :]:
        axes.remove()
    shown = {text: line for axes in figure.axes for line, text in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=len(shown), fontsize="small")
    return figure


def _draw(axes: Any, hull: Hull, limits: tuple[float, float], inputs: Tensor | None) -> None:
    if inputs is not None and inputs.numel():
        histogram = axes.twinx()
        histogram.hist(inputs.numpy(), bins=_BINS, range=limits, color="0.85", label="inputs")
        histogram.set_yticks([])
        outside = ((inputs < limits[0]) | (inputs > limits[1])).double().mean().item()
        if outside:
            axes.annotate(
                f"{outside:.1%} of inputs outside",
                (0.98, 0.02),
                xycoords="axes fraction",
                ha="right",
                fontsize="x-small",
            )
        axes.set_zorder(histogram.get_zorder() + 1)
        axes.patch.set_visible(False)
    scales = None if hull.inner_scale is None else hull.inner_scale.detach()
    x = torch.linspace(*limits, _POINTS, dtype=torch.float64, device="cpu")
    learned, initial = _values(hull, hull.coefficients.detach(), scales, x), _values(hull, hull.init, None, x)
    axes.plot(x, initial.mean(0), "--", color="0.5", linewidth=1, label="start")
    if len(learned) > 1:
        axes.fill_between(x, learned.amin(0), learned.amax(0), alpha=0.3, label="all groups")
    axes.plot(x, learned.mean(0), label="mean of the groups" if len(learned) > 1 else "learned")
    axes.set_xlim(*limits)


@real_tensors()
def _values(hull: Hull, coefficients: Tensor, scales: Tensor | None, x: Tensor) -> Tensor:
    """Return the values of combinations at points, one row per group."""
    rows = coefficients.double().cpu().reshape(hull.groups, -1)
    factors = torch.ones(1, 1) if scales is None else scales.double().cpu().reshape(hull.groups, -1)
    functions = [base.function for base in hull.bases]
    return torch.stack(
        [
            torch.stack([c * f(s * x) for c, s, f in zip(row, own, functions, strict=True)]).sum(0)
            for row, own in zip(rows, factors.expand_as(rows), strict=True)
        ]
    )


def _inputs(model: nn.Module, given: Inputs) -> dict[str, Tensor]:
    """Return the inputs of each hull, at most `_MAX_INPUTS` numbers per call."""
    inputs: dict[str, list[Tensor]] = defaultdict(list)

    def record(name: str, x: Tensor) -> None:
        flat = x.detach().reshape(-1)
        inputs[name].append(flat[:: -(-flat.numel() // _MAX_INPUTS) or 1].double().cpu())

    with restored(model), torch.no_grad():
        hook_inputs(model, record)
        run(model.eval(), given)
    return {name: torch.cat(parts) for name, parts in inputs.items()}
