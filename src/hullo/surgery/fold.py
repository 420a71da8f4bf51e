"""Replace hulls by PyTorch modules with constant coefficients, for inference and export."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from hullo.bases import Base
from hullo.gating import GatedHull
from hullo.modules import Hull
from hullo.recognition.known import same_as
from hullo.surgery.edit import transfer_hooks
from hullo.surgery.prove import Comparison
from hullo.surgery.sites import named_hulls
from hullo.surgery.state import Inputs, copied
from hullo.surgery.summary import KEPT

_MIN_TOLERANCE = 1e-4  # omitted coefficients change outputs about as much as float32 rounding
_TOLERANCE = 1e-6  # smaller coefficients, relative to the largest, count as zero

_NATIVE: dict[str, Callable[..., nn.Module]] = {
    "identity": nn.Identity, "relu": nn.ReLU, "tanh": nn.Tanh, "leaky_relu": nn.LeakyReLU, "elu": nn.ELU,
    "celu": nn.CELU, "softsign": nn.Softsign, "hardtanh": nn.Hardtanh, "relu6": nn.ReLU6, "gelu": nn.GELU,
    "gelu_tanh": lambda: nn.GELU(approximate="tanh"), "silu": nn.SiLU, "mish": nn.Mish, "softplus": nn.Softplus,
    "sigmoid": nn.Sigmoid, "selu": nn.SELU, "hardswish": nn.Hardswish, "hardsigmoid": nn.Hardsigmoid,
}  # fmt: skip


def fold(model: nn.Module, *, example_inputs: Inputs | None = None) -> nn.Module:
    """Return a copy of a model in which every hull is a PyTorch module that computes the same function.

    A hull whose coefficients are, within 1e-6, those of one of PyTorch's activations becomes that activation: ReLU,
    LeakyReLU, Tanh, Identity, GELU, ... Any other hull becomes a :class:`torch.fx.GraphModule` with the coefficients
    above 1e-6 of the largest as constants. The result needs hullo neither to run nor to load a state_dict nor to be
    exported; only unpickling a whole model with rewritten methods needs it. On a CPU, ReLU and LeakyReLU are faster
    than the hull, but Tanh and an eager graph are slower, since they do not use its kernels; torch.compile or the
    runtime of an exported model fuses a graph.

    Args:
        model: not changed.
        example_inputs: arguments of the model, as a tensor, a tuple or a dict. With them, the outputs of the model and
            of the folded copy are compared, in training and in evaluation mode.

    Returns:
        A folded copy of the model in evaluation mode.

    Raises:
        ValueError: the model has no hulls, or a base cannot be traced into a graph.
        TypeError: the model cannot be copied.
        RuntimeError: the outputs of the folded model differ for `example_inputs`.

    Example:
        >>> import torch, hullo
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), hullo.ConvexHull("identity", "relu", init=[0.25, 0.75]))
        >>> hullo.fold(model)[1]
        LeakyReLU(negative_slope=0.25)
    """
    named_hulls("fold", model, required=True)
    comparison = None if example_inputs is None else Comparison(model, example_inputs, coarsest=_MIN_TOLERANCE)
    folded: nn.Module = copied(model, "the model").eval()
    vars(folded).pop(KEPT, None)
    folded_modules: dict[nn.Module, nn.Module] = {}  # a hull at several sites is folded once
    for hull in named_hulls("fold", folded).values():
        folded_modules[hull] = _fold_hull(hull).eval()
        transfer_hooks(folded_modules[hull], hull)
    folded = _substitute(folded, folded_modules)
    gates = [module for module in folded.modules() if isinstance(module, GatedHull)]
    folded = _substitute(folded, {module: _product(module) for module in gates})
    if comparison is not None:
        comparison.check(folded)
    return folded


def _substitute(model: nn.Module, replacements: dict[nn.Module, nn.Module]) -> nn.Module:
    """Replace modules wherever they are children; return the model, or its own replacement."""
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if child in replacements:
                parent._modules[name] = replacements[child]
    return replacements.get(model, model)


def _fold_hull(hull: Hull) -> nn.Module:
    if type(hull).forward is not Hull.forward:
        raise ValueError(
            f"{type(hull).__name__} overrides forward, which fold would drop; replace it by a plain module first"
        )
    if hull.raw.is_meta:
        raise ValueError("the coefficients of a hull have no values, on the meta device; load a state first")
    rows = hull.coefficients.detach().double().reshape(hull.groups, -1)
    if hull.inner_scale is not None:
        return _graph(hull, rows)
    if bool(((rows - rows[0]).abs() <= _tolerances(rows, hull.bases)).all()):
        rows = rows[:1]
    native = _native(same_as(rows[0].tolist(), hull.bases, _TOLERANCE)) if len(rows) == 1 else None
    return _graph(hull, rows) if native is None else native


def _tolerances(rows: Tensor, bases: Sequence[Base]) -> Tensor:
    """Return which differences of each base's coefficients are negligible, relative to the largest coefficient.

    A base whose slope is unbounded matters for large inputs, so its own coefficients are the measure.
    """
    own = rows.abs().amax(0)
    bounded = torch.tensor([item.has_bounded_slope for item in bases], device=rows.device)
    return _TOLERANCE * torch.where(bounded, own.max(), own)


def _product(gated: GatedHull) -> fx.GraphModule:
    graph = fx.Graph()
    gate, up = graph.placeholder("gate"), graph.placeholder("up")
    graph.output(graph.call_function(torch.mul, (graph.call_module("act", (gate,)), up)))
    root = nn.ModuleDict({"act": gated.hull})
    product = fx.GraphModule(root, graph, class_name="FoldedGate")
    transfer_hooks(product, gated)
    return product.eval()


def _native(base: Base | None) -> nn.Module | None:
    """Return PyTorch's module for a base, or None."""
    if base is None:
        return None
    name, _, parameters = base.name.rstrip(")").partition("(")
    return _NATIVE[name](*map(float, parameters.split(",")) if parameters else ()) if name in _NATIVE else None


class _Sum(nn.Module):
    """Compute y = sum of c_i f_i(s_i x) over the nonzero coefficients c_i, by plain operations, in float32 at least.

    Several rows of coefficients and scales are buffers; the channels are then in the last two dimensions.
    """

    def __init__(self, hull: Hull, rows: Tensor) -> None:
        super().__init__()
        used = (rows.abs() > _tolerances(rows, hull.bases)).any(0).nonzero()[:, 0].tolist()
        self.bases, self.channel_dim, self.groups = [hull.bases[n] for n in used], hull.spec.channel_dim, len(rows)
        self.coefficients = self._constants("coefficient", rows[:, used], hull)
        self.scales: list[Any] = [None] * len(used)
        if hull.inner_scale is not None:
            scales = hull.inner_scale.detach().reshape(hull.groups, -1).expand(-1, len(hull.bases))
            self.scales = self._constants("scale", scales[:, used], hull)

    def _constants(self, name: str, table: Tensor, hull: Hull) -> list[Any]:
        """Return the numbers of each base: one, or a buffer with one per group."""
        if self.groups == 1:
            return table[0].tolist()
        for n, column in enumerate(table.T):
            self.register_buffer(f"{name}_{n}", column.to(hull.raw.dtype)[:, None].contiguous())
        return [getattr(self, f"{name}_{n}") for n in range(len(table.T))]

    def forward(self, x):  # type: ignore[no-untyped-def]  # a graph would import the types
        wide = x.to(x.tracer.create_proxy("call_function", torch.promote_types, (x.dtype, torch.float32), {}))
        if self.groups > 1:
            wide = wide.movedim(self.channel_dim, -1).unflatten(-1, (self.groups, -1))
        total = None
        for base, c, scale in zip(self.bases, self.coefficients, self.scales, strict=True):
            try:
                value = base.function(wide if scale is None else wide * scale)
            except Exception as error:
                raise ValueError(
                    f"base function {base.name!r} cannot be traced into a graph of operations: {error}"
                ) from error
            if total is None:
                total = value * c
            else:
                total = total.addcmul_(value, c) if self.groups > 1 else total.add_(value, alpha=c)
        total = torch.zeros_like(wide) if total is None else total
        if self.groups > 1:
            total = total.flatten(-2).movedim(-1, self.channel_dim)
        return total.to(x.dtype)


def _graph(hull: Hull, rows: Tensor) -> fx.GraphModule:
    root = _Sum(hull, rows)
    return fx.GraphModule(root, fx.Tracer().trace(root), class_name="FoldedHull")
