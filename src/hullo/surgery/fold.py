"""fold: hulls become modules of PyTorch that compute the same, for inference and export."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn

from hullo.bases import Base
from hullo.gating import GatedHull
from hullo.modules import Hull
from hullo.properties import identify
from hullo.surgery.compare import Comparison
from hullo.surgery.copies import copied
from hullo.surgery.encoders import fast_encoders
from hullo.surgery.inplace import InPlace
from hullo.surgery.sites import put
from hullo.surgery.survey import expect_model
from hullo.surgery.swap import take_hooks
from hullo.surgery.untouched import Inputs

_COARSEST = 1e-4  # coefficients that are dropped move outputs by about as much as float32 rounds them
_TOLERANCE = 1e-6  # coefficients closer to zero are taken for zero, as in `identify`

_NATIVE: dict[str, Callable[..., nn.Module]] = {
    "identity": nn.Identity,
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "leaky_relu": nn.LeakyReLU,
    "elu": nn.ELU,
    "celu": nn.CELU,
    "softsign": nn.Softsign,
    "hardtanh": nn.Hardtanh,
    "relu6": nn.ReLU6,
    "gelu": nn.GELU,
    "gelu_tanh": lambda: nn.GELU(approximate="tanh"),
    "silu": nn.SiLU,
    "mish": nn.Mish,
    "softplus": nn.Softplus,
    "sigmoid": nn.Sigmoid,
    "selu": nn.SELU,
    "hardswish": nn.Hardswish,
    "hardsigmoid": nn.Hardsigmoid,
}

# As in the CPU kernel: to an absolute error of 2e-7 in float32, and there in half of torch.tanh's time.
_FASTER: dict[str, Callable[[Any], Any]] = {"tanh": lambda x: 2 * torch.sigmoid(2 * x) - 1}


def fold(model: nn.Module, *, example_inputs: Inputs | None = None) -> nn.Module:
    """Make the hulls of a model constant: each becomes a module of PyTorch that computes the same.

    A hull that is one of PyTorch's activations, to 1e-6 in its coefficients, becomes that: ReLU, LeakyReLU, Tanh,
    Identity, GELU, ... or, with one leaky ReLU a channel, PReLU. Any other becomes a :class:`torch.fx.GraphModule` of
    PyTorch's operations that combines the bases with coefficients above 1e-6 in magnitude, with the numbers written
    in. None of them needs hullo, to run or to load a state_dict; neither does the model once exported. Only unpickling
    a whole model whose code `replace_activations` wrote anew takes hullo. What this saves in time depends: on a CPU
    ReLU, LeakyReLU and PReLU are faster than the hull, but Tanh and a graph run as it is are slower, since they do
    without its kernels; torch.compile or an exported runtime fuses a graph.

    Args:
        model: left as it is.
        example_inputs: what the model is given, as a tensor, a tuple or a dict. With it, the outputs of the model and
            of the folded copy are compared, in training and in evaluation mode. PReLU takes it too: only then is it
            known that a hull with several groups has one per channel.

    Returns:
        A copy of the model in evaluation mode, folded.

    Raises:
        ValueError: the model has no hulls, or a base cannot be written as a graph of operations.
        TypeError: the model cannot be copied.
        RuntimeError: the folded model does not compute what the model does for `example_inputs`.

    Example:
        >>> import torch, hullo
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), hullo.ConvexHull("identity", "relu", init=[0.25, 0.75]))
        >>> hullo.fold(model)[1]
        LeakyReLU(negative_slope=0.25)
    """
    expect_model("fold", model)
    if not any(isinstance(module, Hull) for module in model.modules()):
        raise ValueError("the model has no hulls to fold")
    net = None if example_inputs is None else Comparison(model, example_inputs, coarsest=_COARSEST)
    folded = copied(model).eval()
    seen = {} if net is None else net.shapes
    made: dict[Hull, nn.Module] = {}  # a hull used in two places is folded once, and used in both
    for name, module in folded.named_modules():
        if isinstance(module, Hull):
            made[module] = _folded(module, seen.get(name)).eval()
            take_hooks(made[module], module)
    for keeper in list(folded.modules()):
        for name, child in list(keeper._modules.items()):
            if isinstance(child, Hull):
                put(keeper, name, made[child])
    folded = _ungated(folded)
    fast_encoders(folded)
    result = made[folded] if isinstance(folded, Hull) else folded
    if net is not None:
        net.check(result)
    return result


def _folded(hull: Hull, seen: Tensor | None) -> nn.Module:
    rows = hull.coefficients.detach().double().reshape(hull.groups, -1)
    if hull.inner_scale is not None:
        return _graph(hull, rows)
    if bool((rows - rows[0]).abs().max() <= _TOLERANCE):
        rows = rows[:1]
    known = [_native(item) for item in identify(rows.cpu(), hull.bases)]  # type: ignore[union-attr]
    native = known[0] if len(known) == 1 else _prelu(known, hull, seen)
    if native is None:
        return _graph(hull, rows)
    if isinstance(hull, InPlace) and not isinstance(native, nn.Identity):
        if not hasattr(native, "inplace"):
            return _graph(hull, rows)
        vars(native)["inplace"] = True
    return native


def _ungated(folded: nn.Module) -> nn.Module:
    """Write what multiplies with a gate as a product of PyTorch."""
    made = {module: _product(module) for module in folded.modules() if isinstance(module, GatedHull)}
    for keeper in [module for module in folded.modules() if not isinstance(module, GatedHull)]:
        for name, child in list(keeper._modules.items()):
            if isinstance(child, GatedHull):
                put(keeper, name, made[child])
    return made.get(folded, folded)  # type: ignore[call-overload, no-any-return]


def _product(gated: GatedHull) -> fx.GraphModule:
    graph = fx.Graph()
    gate, up = graph.placeholder("gate"), graph.placeholder("up")
    graph.output(graph.call_function(torch.mul, (graph.call_module("act", (gate,)), up)))
    root = nn.ModuleDict({"act": gated.hull})
    made = fx.GraphModule(root, graph, class_name="FoldedGate")
    take_hooks(made, gated)
    return made.eval()


def _native(known: Base | None) -> nn.Module | None:
    """Return PyTorch's module for a base, or None where there is none."""
    if known is None:
        return None
    name, _, parameters = known.name.rstrip(")").partition("(")
    return _NATIVE[name](*map(float, parameters.split(",")) if parameters else ()) if name in _NATIVE else None


def _prelu(known: list[nn.Module | None], hull: Hull, seen: Tensor | None) -> nn.PReLU | None:
    """Return a PReLU for a hull with one group per channel of its input, where the channels are those of PReLU."""
    slopes = [_slope(item) for item in known]
    if seen is None or None in slopes or hull.spec.channel_dim % seen.dim() != 1 or seen.shape[1] != hull.groups:
        return None
    made = nn.PReLU(hull.groups, device=hull.raw.device, dtype=seen.dtype)
    made.weight = nn.Parameter(torch.tensor(slopes).to(made.weight), requires_grad=False)
    return made


def _slope(module: nn.Module | None) -> float | None:
    """Return the slope on the left of a function that is the identity on the right."""
    match module:
        case nn.LeakyReLU():
            return module.negative_slope
        case nn.ReLU():
            return 0.0
        case nn.Identity():
            return 1.0
    return None


def _graph(hull: Hull, rows: Tensor) -> fx.GraphModule:
    """Return the hull in PyTorch's operations: y = sum of c_i f_i(x) over the coefficients that are not zero.

    It computes in float32 at least. Several rows are a buffer; their channels are moved to the end, where they meet
    each channel's coefficient.
    """
    root, graph = nn.Module(), fx.Graph()
    x = graph.placeholder("x")
    dtype = graph.call_function(getattr, (x, "dtype"))
    wide_dtype = graph.call_function(torch.promote_types, (dtype, torch.float32))
    wide = graph.call_method("to", (x, wide_dtype))
    used = [n for n in range(rows.shape[1]) if bool(rows[:, n].abs().max() > _TOLERANCE)]
    coefficients: list[Any] = rows[0, used].tolist()
    if len(rows) > 1:
        root.register_buffer("coefficients", rows[:, used].T.to(hull.raw.dtype).contiguous())
        wide = graph.call_method("movedim", (wide, hull.spec.channel_dim, -1))
        channels = graph.call_method("size", (wide, -1))
        repeats = graph.call_function(operator.floordiv, (channels, len(rows)))
        columns = graph.call_method("repeat_interleave", (graph.get_attr("coefficients"), repeats, -1))
        columns = graph.call_method("to", (columns, wide_dtype))
        coefficients = [graph.call_function(operator.getitem, (columns, n)) for n in range(len(used))]
    inputs = _scaled_inputs(hull, root, graph, wide, wide_dtype, used)
    values = [_inlined(graph, hull.bases[n], x) for n, x in zip(used, inputs, strict=True)]
    total = graph.call_function(torch.mul, (values[0], coefficients[0]))
    for value, c in zip(values[1:], coefficients[1:], strict=True):
        if len(rows) > 1:
            total = graph.call_method("addcmul_", (total, value, c))
        else:
            total = graph.call_method("add_", (total, value), {"alpha": c})
    if len(rows) > 1:
        total = graph.call_method("movedim", (total, -1, hull.spec.channel_dim))
    y = graph.call_method("to", (total, dtype))
    graph.output(graph.call_method("copy_", (x, y)) if isinstance(hull, InPlace) else y)
    return fx.GraphModule(root, graph, class_name="FoldedHull")


def _scaled_inputs(
    hull: Hull, root: nn.Module, graph: fx.Graph, wide: fx.Node, dtype: fx.Node, used: list[int]
) -> list[fx.Node]:
    """Write the inner scales of a hull into a graph, for the bases that are used; channels are last."""
    if hull.inner_scale is None:
        return [wide] * len(used)
    scales = hull.inner_scale.detach().reshape(hull.groups, -1).expand(-1, len(hull.bases))[:, used]
    if len(scales) == 1:
        return [graph.call_function(torch.mul, (wide, scale)) for scale in scales[0].tolist()]
    root.register_buffer("scales", scales.T.contiguous())
    channels = graph.call_method("size", (wide, -1))
    repeats = graph.call_function(operator.floordiv, (channels, len(scales)))
    columns = graph.call_method("repeat_interleave", (graph.get_attr("scales"), repeats, -1))
    columns = graph.call_method("to", (columns, dtype))
    rows = [graph.call_function(operator.getitem, (columns, n)) for n in range(len(used))]
    return [graph.call_function(torch.mul, (wide, row)) for row in rows]


def _inlined(graph: fx.Graph, base: Base, x: fx.Node) -> fx.Node:
    """Return the operations of a base function, in a graph."""
    function = _FASTER.get(base.name, base.function)
    try:
        operations = fx.Tracer().trace(lambda value: function(value))
    except Exception as error:
        raise ValueError(f"base function {base.name!r} cannot be written as a graph of operations: {error}") from error
    given = next(node for node in operations.nodes if node.op == "placeholder")
    return graph.graph_copy(operations, {given: x})  # type: ignore[return-value]
