"""Find operations that one kernel computes together, and choose where it does.

Two patterns are found in a graph, for images on a GPU:

    [convolution ->] [activation ->] max pool 2x2 [-> dropout] [-> flatten with channels last]
    [convolution ->] batch norm [-> + residual] -> activation

The activation is a site, or a function that is the same for all members. The convolution's bias is added by the fused
kernel.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from hullo.bases import Base, base
from hullo.population import kernels
from hullo.population.convolutions import convolve, flat_parameter, split_channels
from hullo.population.images import ImagesValue
from hullo.population.rules import Context, arguments
from hullo.population.sites import Activation
from hullo.population.tracing import SITE
from hullo.population.values import Value

aten = torch.ops.aten
LookUp = Callable[[Any], Any]
Sites = Mapping[int, tuple[Base, ...] | None]
_MODULES: dict[Any, type[nn.Module]] = {
    aten.relu.default: nn.ReLU,
    aten.relu6.default: nn.ReLU6,
    aten.leaky_relu.default: nn.LeakyReLU,
    aten.elu.default: nn.ELU,
    aten.selu.default: nn.SELU,
    aten.celu.default: nn.CELU,
    aten.gelu.default: nn.GELU,
    aten.silu.default: nn.SiLU,
    aten.mish.default: nn.Mish,
    aten.hardswish.default: nn.Hardswish,
    aten.hardtanh.default: nn.Hardtanh,
    aten.softplus.default: nn.Softplus,
    aten.sigmoid.default: nn.Sigmoid,
    aten.tanh.default: nn.Tanh,
}
"""The modules of activation functions, whose arguments have the same names."""


@dataclass(frozen=True)
class _Act:
    """Describe an activation between other operations: its bases, and its site or its coefficients."""

    bases: tuple[Base, ...]
    site: int | None = None
    coefficients: tuple[float, ...] = ()


@dataclass(frozen=True)
class Fusion:
    """Hold nodes that are computed together.

    Args:
        last: the node whose value they make.
        inner: the other nodes, which nothing else uses.
        act: the activation.
        rows: the coefficients of an activation that is not a site.
        dropout: the dropout node among them.
        compute: the function that computes them from a lookup of values, the coefficients' rows and the context. It
            returns the value, or two of them for different users, so that the kernel adds up their gradients.
    """

    last: fx.Node
    inner: frozenset[fx.Node]
    act: _Act
    rows: Tensor
    dropout: fx.Node | None
    compute: Callable[[LookUp, Tensor, Context], tuple[Value, ...]]


def find_fusions(graph: fx.Graph, sites: Sites, written: Container[fx.Node]) -> Iterator[Fusion]:
    """Yield the groups of nodes in a graph that one kernel computes.

    `sites` has the bases of the activations at each site, None if they take several calls; `written` has the nodes
    whose memory an operation writes to, which are left alone: a group is computed later than its first nodes.
    """
    taken: set[fx.Node] = set()
    for find in (_find_pool, _find_norm):
        for node in graph.nodes:
            if (found := find(node, sites)) is None:
                continue
            nodes = {found.last, *found.inner}
            touched = nodes.union(*(item.all_input_nodes for item in nodes))
            if taken.isdisjoint(nodes) and not any(item in written for item in touched):
                taken |= nodes
                yield found


def _all_equal(sizes: Any, number: int) -> bool:
    return all(size == number for size in (sizes if isinstance(sizes, (list, tuple)) else [sizes]))


def _only_user(node: Any) -> Any:
    return next(iter(node.users)) if isinstance(node, fx.Node) and len(node.users) == 1 else None


def _is_image(node: Any) -> bool:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return isinstance(value, Tensor) and value.dim() == 4 and kernels.serve(value)


def _is_inner(node: Any, target: Any) -> bool:
    """Return whether a node computes images by an operator, for one other node alone."""
    return _is_image(node) and node.target is target and _only_user(node) is not None


def _read_act(node: Any, sites: Sites) -> _Act | None:
    """Return the activation that a node is, if kernels can compute it."""
    if not isinstance(node, fx.Node):
        return None
    if node.target is SITE:
        site: Any = node.args[1]
        bases = sites.get(site)
        act = None if bases is None else _Act(bases, site=site)
    else:
        found = _read_function(node)
        act = None if found is None else _Act(found.bases, coefficients=tuple(found.raw[0].tolist()))
    return None if act is None or any(item.formula is None for item in act.bases) else act


def _read_function(node: fx.Node) -> Activation | None:
    """Return the activation that a call of a function is."""
    if node.target not in _MODULES:
        return None
    module = _MODULES[node.target]
    given = {name: item for name, item in list(arguments(node).items())[1:] if item is not None}
    known = inspect.signature(module).parameters
    changed = [name for name in given if name not in known and given[name] != 1]  # the scales of elu
    return None if changed else Activation.of(module(**{name: given[name] for name in given if name in known}))


def _make(
    node: fx.Node, inner: list[fx.Node], act: _Act, compute: Callable[..., Any], dropout: fx.Node | None = None
) -> Fusion:
    rows = torch.tensor(act.coefficients, device=node.meta["val"].device)
    return Fusion(node, frozenset(inner) - {node}, act, rows, dropout, compute)


def _convolve(
    get: LookUp, source: Any, convolution: fx.Node | None, context: Context, *, normed: bool
) -> tuple[Tensor, Tensor | None]:
    """Return images with the members beside the channels, and the bias that is still to be added.

    A batch norm subtracts the bias again, so that its gradient is zero. Elsewhere the kernel that reads augmented
    images from their bytes adds it.
    """
    if convolution is None:
        return get(source).at(1, context.members).flatten(1, 2), None
    given = {name: get(item) for name, item in arguments(convolution).items()}
    bias = None
    if normed or not isinstance(given["input"], ImagesValue):
        bias, given["bias"] = flat_parameter(given["bias"], context), None
    return convolve(context, *given.values()).at(1, context.members).flatten(1, 2), bias


def _find_pool(pool: fx.Node, sites: Sites) -> Fusion | None:
    if pool.target is not aten.max_pool2d.default or not _is_image(pool):
        return None
    given = arguments(pool)
    usual = {"kernel_size": 2, "stride": 2, "padding": 0, "dilation": 1, "ceil_mode": False}
    if not all(_all_equal(given[name], number) for name, number in usual.items()):
        return None
    source, inner = given["self"], []
    act = _read_act(source, sites) if _only_user(source) else None
    if act is not None:
        inner, source = [source], source.args[0]
    convolution = source if _is_inner(source, aten.conv2d.default) else None
    if convolution is not None:
        inner.append(convolution)
    elif act is None:
        return None
    act = act or _Act((base("identity"),), coefficients=(1.0,))
    inner, last, dropout, flat = [*inner, pool], pool, None, False
    rate, user = 0.0, _only_user(last)
    if user is not None and user.target is aten.dropout.default and user.args[2] and 0 < user.args[1] < 1:
        inner, last, dropout, rate = [*inner, user], user, user, user.args[1]
        user = _only_user(last)
    if user is not None and user.target is aten.permute.default and list(user.args[1]) == [0, 2, 3, 1]:
        flatten = _only_user(user)
        if flatten is not None and flatten.target is aten.flatten.using_ints and list(flatten.args[1:]) == [1]:
            inner, last, flat = [*inner, user, flatten], flatten, True

    def compute(get: LookUp, rows: Tensor, context: Context) -> tuple[Value, ...]:
        from hullo.population.kernels.act_pool_drop import combine_pool_drop

        x, bias = _convolve(get, source, convolution, context, normed=False)
        seeds, steps, number = context.seeds, context.steps, context.dropout
        y = combine_pool_drop(
            x, rows, act.bases, seeds, steps, number, rate, rate > 0, bias=bias, flat=flat, first=context.first
        )
        return (Value(y, 0) if flat else split_channels(y, context),)

    return _make(last, inner, act, compute, dropout)


def _find_norm(site: fx.Node, sites: Sites) -> Fusion | None:
    act = _read_act(site, sites)
    if act is None or not _is_image(site):
        return None
    norm: Any = site.args[0]
    residual, inner = None, [site]
    if _is_inner(norm, aten.add.Tensor) and not norm.kwargs:
        one, other = norm.args
        inner, (norm, residual) = [site, norm], (one, other) if _is_norm(one) else (other, one)
        if not _is_image(residual) or residual is norm or residual.meta["val"].shape != site.meta["val"].shape:
            return None
    if not _is_norm(norm):
        return None
    given = arguments(norm)
    parameters = [given[name] for name in ("running_mean", "running_var", "weight", "bias")]
    if None in parameters:
        return None
    source = given["input"]
    convolution = source if _is_inner(source, aten.conv2d.default) else None
    inner = [*inner, norm] if convolution is None else [*inner, norm, convolution]

    def compute(get: LookUp, rows: Tensor, context: Context) -> tuple[Value, ...]:
        from hullo.population.kernels.bn_act import normalise_combine

        x, bias = _convolve(get, source, convolution, context, normed=True)
        past = None if residual is None else get(residual).at(1, context.members).flatten(1, 2).to(x.dtype)
        mean, variance, scale, shift = (get(item).tensor.view(-1) for item in parameters)
        both = normalise_combine(
            x,
            mean,
            variance,
            scale,
            shift,
            rows,
            act.bases,
            given["training"],
            momentum=given["momentum"],
            eps=given["eps"],
            bias=bias,
            residual=past,
        )
        return tuple(split_channels(y, context) for y in both)

    return _make(site, inner, act, compute)


def _is_norm(node: Any) -> bool:
    return _is_inner(node, aten.batch_norm.default)
