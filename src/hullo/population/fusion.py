"""Find operations that one kernel computes together, and choose where it does.

Two patterns are found in a graph, both around an activation and for images on a GPU:

    convolution -> activation -> max pool 2x2 [-> dropout] [-> flatten with channels last]
    [convolution ->] batch norm [-> + residual] -> activation

The convolution's bias is added by the fused kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from hullo.bases import Base
from hullo.population import kernels
from hullo.population.layers import convolve, flat_parameter, split_channels
from hullo.population.rules import Context
from hullo.population.tracing import SITE
from hullo.population.values import Value

aten = torch.ops.aten
LookUp = Callable[[Any], Any]
_CONVOLUTION = ("x", "weight", "bias", "stride", "padding", "dilation", "groups")
_CONVOLUTION_DEFAULTS = (None, None, None, 1, 0, 1, 1)


@dataclass(frozen=True)
class Fusion:
    """Hold nodes that are computed together.

    Args:
        last: the node whose value they make.
        inner: the other nodes, which nothing else uses.
        site: the activation's number.
        dropout: the dropout node among them.
        compute: the function that computes them from a lookup of values, the coefficients' rows, the bases and the
            context; it returns the value once for each of `copies` users.
        copies: how many users get a copy of the value of their own, so that the kernel adds up their gradients.
    """

    last: fx.Node
    inner: frozenset[fx.Node]
    site: int
    dropout: fx.Node | None
    compute: Callable[..., tuple[Value, ...]]
    copies: int = 1


def find_fusions(graph: fx.Graph, sites: Mapping[int, tuple[Base, ...] | None]) -> Iterator[Fusion]:
    """Yield the groups of nodes in a graph that one kernel computes.

    `sites` has the bases of the activations at each site, None if they take several calls.
    """
    for node in graph.find_nodes(op="call_function", target=SITE):
        if node.args[1] in sites:
            bases = sites[node.args[1]]
            if bases is None or any(item.formula is None for item in bases):
                continue
            if found := _find_pool(node) or _find_norm(node):
                yield found


def _input_and_number(site: fx.Node) -> tuple[Any, int]:
    """Return the input of an activation and the number of its site."""
    source, number = site.args
    assert isinstance(number, int)  # noqa: S101
    return source, number


def _only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _is_image(node: Any) -> bool:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return isinstance(value, Tensor) and value.dim() == 4 and kernels.serve(value)


def _convolution(node: Any) -> fx.Node | None:
    """Return a node if it is a convolution of images that one node alone uses."""
    if isinstance(node, fx.Node) and node.target is aten.conv2d.default and _only_user(node) and _is_image(node):
        return node
    return None


def _arguments(node: fx.Node) -> dict[str, Any]:
    given = dict(zip(_CONVOLUTION, _CONVOLUTION_DEFAULTS, strict=True))
    return given | dict(zip(_CONVOLUTION, node.args, strict=False)) | node.kwargs


def _find_pool(site: fx.Node) -> Fusion | None:
    source, number = _input_and_number(site)
    pool: Any = _only_user(site)
    if pool is None or pool.target is not aten.max_pool2d.default or not _is_image(source):
        return None
    kernel, stride, *others = (*pool.args[1:], *[None] * 5)[:6]
    if list(kernel) != [2, 2] or (stride and list(stride) != [2, 2]) or any(_is_set(item) for item in others):
        return None
    inner, last, flat = [site], pool, False
    dropout: Any = None
    user: Any = _only_user(last)
    if user is not None and user.target is aten.dropout.default and user.args[2] and 0 < user.args[1] < 1:
        inner, last, dropout = [*inner, last], user, user
        user = _only_user(last)
    if user is not None and user.target is aten.permute.default and list(user.args[1]) == [0, 2, 3, 1]:
        flatten: Any = _only_user(user)
        if flatten is not None and flatten.target is aten.flatten.using_ints and list(flatten.args[1:]) == [1]:
            inner, last, flat = [*inner, last, user], flatten, True
    convolution = _convolution(source)
    inner = [*inner, convolution] if convolution else inner
    rate = dropout.args[1] if dropout is not None else 0.0

    def compute(get: LookUp, rows: Tensor, bases: tuple[Base, ...], context: Context) -> tuple[Value, ...]:
        from hullo.population.images import ImagesValue
        from hullo.population.kernels.act_pool_drop import combine_pool_drop

        bias = None
        if convolution is None:
            x = get(source)
        else:
            arguments = {name: get(item) for name, item in _arguments(convolution).items()}
            if not isinstance(arguments["x"], ImagesValue):  # whose own kernel adds it
                bias, arguments["bias"] = flat_parameter(arguments["bias"], context), None
            x = convolve(context, **arguments)
        y = combine_pool_drop(
            x.at(1, context.members).flatten(1, 2),
            rows,
            bases,
            context.seeds,
            context.steps,
            context.dropout,
            rate,
            rate > 0,
            bias=bias,
            flat=flat,
            first=context.first,
        )
        return (Value(y, 0) if flat else split_channels(y, context),)

    return Fusion(last, frozenset(inner), number, dropout, compute)


def _is_set(item: Any) -> bool:
    """Return whether an argument of a pool is not its default."""
    return item not in (None, False, 0, 1) and any(part not in (0, 1) for part in item)


def _find_norm(site: fx.Node) -> Fusion | None:
    norm, number = _input_and_number(site)
    residual: Any = None
    inner = [site]
    if isinstance(norm, fx.Node) and norm.target in (aten.add.Tensor, aten.add_.Tensor) and not norm.kwargs:
        if not _only_user(norm):
            return None
        inner.append(norm)
        one, other = norm.args[:2]
        norm, residual = (one, other) if _is_norm(one) else (other, one)
    if not _is_norm(norm) or (residual is not None and not _is_image(residual)):
        return None
    inner.append(norm)
    source, weight, shift, mean, variance, training, momentum, eps = norm.args[:8]
    if weight is None or shift is None or mean is None:
        return None
    convolution = _convolution(source)
    inner = [*inner, convolution] if convolution else inner

    def compute(get: LookUp, rows: Tensor, bases: tuple[Base, ...], context: Context) -> tuple[Value, ...]:
        from hullo.population.kernels.bn_act import normalise_combine

        bias = None
        if convolution is None:
            x = get(source)
        else:
            arguments = {name: get(item) for name, item in _arguments(convolution).items()}
            bias, arguments["bias"] = flat_parameter(arguments["bias"], context), None
            x = convolve(context, **arguments)
        images = x.at(1, context.members).flatten(1, 2)
        past = None if residual is None else get(residual).at(1, context.members).flatten(1, 2).to(images.dtype)
        both = normalise_combine(
            images,
            get(mean).tensor.view(-1),
            get(variance).tensor.view(-1),
            get(weight).tensor.view(-1),
            get(shift).tensor.view(-1),
            rows,
            bases,
            training,
            momentum=momentum,
            eps=eps,
            bias=bias,
            residual=past,
        )
        return tuple(split_channels(y, context) for y in both)

    return Fusion(site, frozenset(inner) - {site}, number, None, compute, copies=2)


def _is_norm(node: Any) -> bool:
    """Return whether a node is a batch norm of images that one node alone uses."""
    return (
        isinstance(node, fx.Node)
        and node.target is aten.batch_norm.default
        and _only_user(node) is not None
        and _is_image(node)
    )
