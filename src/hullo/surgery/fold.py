"""Replace hulls by PyTorch modules with constant coefficients, for inference and export."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from hullo.bases import Base
from hullo.gating import GatedHull
from hullo.modules import Hull
from hullo.properties import identify
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
    LeakyReLU, Tanh, Identity, GELU, ... or PReLU for one leaky ReLU per channel. Any other hull becomes a
    :class:`torch.fx.GraphModule` with the coefficients above 1e-6 of the largest as constants. The result needs hullo
    neither to run nor to load a state_dict nor to be exported; only unpickling a whole model with rewritten methods
    needs it. On a CPU, ReLU, LeakyReLU and PReLU are faster than the hull, but Tanh and an eager graph are slower,
    since they do not use its kernels; torch.compile or the runtime of an exported model fuses a graph.

    Args:
        model: not changed.
        example_inputs: arguments of the model, as a tensor, a tuple or a dict. With them, the outputs of the model and
            of the folded copy are compared, in training and in evaluation mode. Folding to PReLU needs them to count
            channels.

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
    inputs = {} if comparison is None else comparison.shapes
    folded_modules: dict[nn.Module, nn.Module] = {}  # a hull at several sites is folded once
    for name, hull in named_hulls("fold", folded).items():
        folded_modules[hull] = _fold_hull(hull, inputs.get(name)).eval()
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


def _fold_hull(hull: Hull, inputs: Tensor | None) -> nn.Module:
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
    natives = [_native(item) for item in identify(rows.cpu(), hull.bases)]  # type: ignore[union-attr]
    native = natives[0] if len(natives) == 1 else _prelu(natives, hull, inputs)
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


def _prelu(natives: list[nn.Module | None], hull: Hull, inputs: Tensor | None) -> nn.PReLU | None:
    """Return a PReLU for a hull with one group per channel in dimension 1; None for other hulls."""
    slopes = [_slope(item) for item in natives]
    if inputs is None or None in slopes or hull.spec.channel_dim % inputs.dim() != 1 or inputs.shape[1] != hull.groups:
        return None
    prelu = nn.PReLU(hull.groups, device=hull.raw.device, dtype=inputs.dtype)
    prelu.weight = nn.Parameter(torch.tensor(slopes).to(prelu.weight), requires_grad=False)
    return prelu


def _slope(module: nn.Module | None) -> float | None:
    """Return the slope for negative inputs of a function that is the identity for positive ones."""
    match module:
        case nn.LeakyReLU():
            return module.negative_slope
        case nn.ReLU():
            return 0.0
        case nn.Identity():
            return 1.0
    return None


def _graph(hull: Hull, rows: Tensor) -> fx.GraphModule:
    """Return a graph of y = sum of c_i f_i(s_i x) over the nonzero coefficients c_i, computed in float32 at least.

    Several rows of coefficients are a buffer; the channels are then moved to the last dimension to multiply with it.
    """
    root, graph = nn.Module(), fx.Graph()
    x = graph.placeholder("x")
    dtype = graph.call_function(getattr, (x, "dtype"))
    wide_dtype = graph.call_function(torch.promote_types, (dtype, torch.float32))
    wide = graph.call_method("to", (x, wide_dtype))
    used = (rows.abs() > _tolerances(rows, hull.bases)).any(0).nonzero()[:, 0].tolist()
    if len(rows) > 1:
        wide = graph.call_method("movedim", (wide, hull.spec.channel_dim, -1))

    def constants(name: str, table: Tensor) -> list[Any]:
        """Return the numbers of each used base: one, or a tensor with one per channel."""
        if len(table) == 1:
            return table[0, used].tolist()
        root.register_buffer(name, table[:, used].T.to(hull.raw.dtype).contiguous())
        channels = graph.call_method("size", (wide, -1))
        repeats = graph.call_function(operator.floordiv, (channels, len(table)))
        columns = graph.call_method("repeat_interleave", (graph.get_attr(name), repeats, -1))
        columns = graph.call_method("to", (columns, wide_dtype))
        return [graph.call_function(operator.getitem, (columns, n)) for n in range(len(used))]

    coefficients, inputs = constants("coefficients", rows), [wide] * len(used)
    if hull.inner_scale is not None:
        scales = hull.inner_scale.detach().reshape(hull.groups, -1).expand(-1, len(hull.bases))
        inputs = [graph.call_function(torch.mul, (wide, scale)) for scale in constants("scales", scales)]
    values = [_inlined(graph, hull.bases[n], x) for n, x in zip(used, inputs, strict=True)]
    if used:
        total = graph.call_function(torch.mul, (values[0], coefficients[0]))
    else:
        total = graph.call_function(torch.zeros_like, (wide,))
    for value, c in zip(values[1:], coefficients[1:], strict=True):
        if len(rows) > 1:
            total = graph.call_method("addcmul_", (total, value, c))
        else:
            total = graph.call_method("add_", (total, value), {"alpha": c})
    if len(rows) > 1:
        total = graph.call_method("movedim", (total, -1, hull.spec.channel_dim))
    graph.output(graph.call_method("to", (total, dtype)))
    return fx.GraphModule(root, graph, class_name="FoldedHull")


def _inlined(graph: fx.Graph, base: Base, x: fx.Node) -> fx.Node:
    """Add the operations of a base to a graph."""
    function = base.function
    try:
        operations = fx.Tracer().trace(lambda value: function(value))
    except Exception as error:
        raise ValueError(f"base function {base.name!r} cannot be traced into a graph of operations: {error}") from error
    placeholder = next(node for node in operations.nodes if node.op == "placeholder")
    return graph.graph_copy(operations, {placeholder: x})  # type: ignore[return-value]
