"""Find operations that one kernel computes together, and choose where it does.

These patterns are found in a graph, on a GPU; the first two for images or sequences, the third for images:

    [convolution ->] batch norm [-> + residual] -> activation
    [convolution ->] group norm [-> + residual] [-> activation]
    [convolution ->] [activation ->] max pool 2x2 [-> dropout] [-> flatten with channels last]
    linear layer -> activation
    [[linear layer ->] [dropout ->] + residual ->] layer norm or RMS norm

The activation is a site, or a function that is the same for all members. The bias of the convolution or linear layer is
added by the fused kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from hullo.bases import Base, get_base
from hullo.population import kernels
from hullo.population.images import ImagesValue
from hullo.population.rules import Context, arguments
from hullo.population.rules.convolutions import (
    as_images,
    as_line,
    convolve_batch,
    flat_parameter,
    split_channels,
    split_images,
)
from hullo.population.rules.layers import as_rows, multiply
from hullo.population.sites import ActivationCall
from hullo.population.trace.graph import SITE
from hullo.population.trace.in_place import RUNNING
from hullo.population.values import Value
from hullo.recognition.table import read_call

aten = torch.ops.aten
LookUp = Callable[[Any], Any]
Sites = Mapping[int, ActivationCall]
MOST_COLUMNS = 8192
"""The most features whose norm a kernel takes: a program holds whole rows in its registers."""
MOST_CHANNELS = 2048
"""The most channels of a group: a program merges the sums of all of them."""
_PRODUCTS = (
    *(aten.linear.default, aten.matmul.default, aten.bmm.default, aten.mm.default),
    *(aten.conv2d.default, aten.conv2d.padding, aten.conv_transpose2d.input),
)
_MOVES = (
    *(aten.view.default, aten.reshape.default, aten.transpose.int, aten.permute.default, aten.flatten.using_ints),
    *(aten.cat.default, aten.max_pool2d.default, aten.upsample_nearest2d.vec, aten.chunk.default),
)
"""Operators that only move numbers, or choose among them."""


@dataclass(frozen=True)
class Fusion:
    """Hold nodes that are computed together.

    Args:
        last: the node whose value they make, and in whose place they are computed.
        inner: the other nodes, which nothing else uses.
        compute: the function that computes them from a lookup of values and the context. It returns the value, or two
            of them: of `last` and `second`, or of `last` for different users, so that the kernel adds up their
            gradients.
        dropout: the dropout node among them, whose number the context has.
        second: the node among `inner` whose value is made, too.
    """

    last: fx.Node
    inner: frozenset[fx.Node]
    compute: Callable[[LookUp, Context], tuple[Value, ...]]
    dropout: fx.Node | None = None
    second: fx.Node | None = None


def find_fusions(nodes: Sequence[fx.Node], sites: Sites, written: Container[fx.Node]) -> Iterator[Fusion]:
    """Yield the groups of nodes in a graph that one kernel computes.

    `sites` has the calls of activations by the number of their site, of those that take one call. `written` has the
    placeholders of tensors that change: a group is not computed at the place of each of its nodes.
    """
    taken: set[fx.Node] = set()
    for find in (_find_norm, _find_group_norm, _find_pool, _find_linear, _find_sum, _find_layer_norm):
        for node in nodes:
            if (found := find(node, sites)) is None:
                continue
            group = {found.last, *found.inner}
            read = {item for member in group for item in member.all_input_nodes if not _updates(member, item)}
            regions = {member.meta.get("regions") for member in group}
            if taken.isdisjoint(group) and len(regions) == 1 and not any(item in written for item in read):
                taken |= group
                yield found


def _updates(node: fx.Node, item: fx.Node) -> bool:
    """Return whether a node is a norm, and an item its running statistics alone."""
    return node.target in RUNNING and item in node.args[3:5] and len(item.users) == 1


def _all_equal(sizes: Any, number: int) -> bool:
    return all(size == number for size in (sizes if isinstance(sizes, (list, tuple)) else [sizes]))


def _only_user(node: Any) -> Any:
    return next(iter(node.users)) if isinstance(node, fx.Node) and len(node.users) == 1 else None


def _is_image(node: Any, dims: Container[int] = (4,)) -> bool:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return isinstance(value, Tensor) and value.dim() in dims and kernels.support(value)


def _has_channels(node: Any) -> bool:
    """Return whether a node computes images or sequences."""
    return _is_image(node, (3, 4))


def _is_inner(node: Any, *targets: Any) -> bool:
    """Return whether a node computes images or sequences by an operator, for one other node alone."""
    return _has_channels(node) and node.target in targets and _only_user(node) is not None


def _read_act(node: Any, sites: Sites) -> ActivationCall | None:
    """Return the activation that a node is, if kernels can compute it."""
    act = None
    if isinstance(node, fx.Node) and node.target is SITE:
        site: Any = node.args[1]
        act = sites.get(site)
    elif isinstance(node, fx.Node) and isinstance(node.target, torch._ops.OpOverload):
        known = read_call(node.target.overloadpacket, node.args, node.kwargs).known
        act = None if known is None else _as_constant(known.bases, known.rows[0], node)
    return None if act is None or any(item.formula is None for item in act.bases) else act


def _as_constant(bases: tuple[Base, ...], numbers: Sequence[float], node: fx.Node) -> ActivationCall:
    """Return an activation that is the same for all members, and is no site."""
    return ActivationCall(bases, coefficients=torch.tensor(numbers, device=node.meta["val"].device))


def _convolve(
    get: LookUp,
    source: Any,
    convolution: fx.Node | None,
    context: Context,
    *,
    normed: bool,
    stacked: bool = False,
    measured: bool = False,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return images as kernels take them, the bias that is still to be added, and perhaps moments.

    A batch norm subtracts the bias again, so that its gradient is zero. Elsewhere the kernel that reads augmented
    images from their bytes adds it.
    """
    if convolution is None:
        return as_images(as_line(get(source)), context), None, None
    given = {name: get(item) for name, item in arguments(convolution).items()}
    bias = None
    if normed or not isinstance(given["input"], ImagesValue):
        bias, given["bias"] = flat_parameter(given["bias"], context), None
    y, moments = convolve_batch(context, *given.values(), stacked=stacked, measured=measured)
    return y, bias, moments


def _find_pool(pool: fx.Node, sites: Sites) -> Fusion | None:
    if pool.target is not aten.max_pool2d.default or not _is_image(pool):
        return None
    given = arguments(pool)
    usual = {"kernel_size": 2, "stride": 2, "padding": 0, "dilation": 1, "ceil_mode": False}
    if not all(_all_equal(given[name], number) for name, number in usual.items()):
        return None
    source, inner = given["self"], []
    is_alone = _only_user(source) is None or _find_norm(source, sites) is not None  # or is computed with a norm
    act = None if is_alone else _read_act(source, sites)
    if act is not None:
        inner, source = [source], source.args[0]
    convolution = source if _is_inner(source, aten.conv2d.default) else None
    if convolution is not None:
        inner.append(convolution)
    act = act or _as_constant((get_base("identity"),), (1.0,), pool)
    inner, last, dropout, flat = [*inner, pool], pool, None, False
    rate, user = 0.0, _only_user(last)
    is_dropout = user is not None and user.target is aten.dropout.default and pool.meta["val"].shape[1] % 4 == 0
    if is_dropout and user.args[2] and 0 < user.args[1] < 1:
        inner, last, dropout, rate = [*inner, user], user, user, user.args[1]
        user = _only_user(last)
    if user is not None and user.target is aten.permute.default and list(user.args[1]) == [0, 2, 3, 1]:
        flatten = _only_user(user)
        if flatten is not None and flatten.target is aten.flatten.using_ints and list(flatten.args[1:]) == [1]:
            inner, last, flat = [*inner, user, flatten], flatten, True

    def compute(get: LookUp, context: Context) -> tuple[Value, ...]:
        from hullo.population.kernels.act_pool_drop import combine_pool_drop
        from hullo.population.kernels.dropout import Dropout

        x, bias, _ = _convolve(get, source, convolution, context, normed=False)
        x = as_images(split_images(x, context), context, stacked=False)
        drop = Dropout(context.seeds, context.steps, context.number, rate, context.first)
        y = combine_pool_drop(x, context.rows_of(act), act.bases, drop, bias=bias, flat=flat, kinds=act.kinds)
        return (Value(y, 0) if flat else split_channels(y, context),)

    return Fusion(last, frozenset(inner) - {last}, compute, dropout)


def _find_norm(site: fx.Node, sites: Sites) -> Fusion | None:
    act = _read_act(site, sites)
    if act is None or not _has_channels(site):
        return None
    norm: Any = site.args[0]
    residual, inner = None, [site]
    if _is_inner(norm, aten.add.Tensor) and not norm.kwargs:
        one, other = norm.args
        inner, (norm, residual) = [site, norm], (one, other) if _is_norm(one) else (other, one)
        if not _has_channels(residual) or residual is norm or residual.meta["val"].shape != site.meta["val"].shape:
            return None
    if not _is_norm(norm):
        return None
    return _fuse_norm(site, [*inner, norm], norm, residual, act)


def _find_group_norm(norm: fx.Node, sites: Sites) -> Fusion | None:
    """Find a norm of groups without an activation."""
    if norm.target is aten.batch_norm.default or not _normalizes(norm):
        return None
    return _fuse_norm(norm, [norm], norm, None, _as_constant((get_base("identity"),), (1.0,), norm))


def _fuse_norm(last: fx.Node, inner: list[fx.Node], norm: fx.Node, residual: Any, act: ActivationCall) -> Fusion | None:
    given = arguments(norm)
    is_batch_norm = norm.target is aten.batch_norm.default
    names = ("running_mean", "running_var", "weight", "bias") if is_batch_norm else ("weight", "bias")
    parameters = [given[name] for name in names]
    known = (item is not None and item.op == "placeholder" for item in parameters)
    if not all(known) and (is_batch_norm or parameters != [None, None]):  # computed ones are not the kernel's
        return None
    source = given["input"]
    convolution = source if _is_inner(source, aten.conv1d.default, aten.conv2d.default) else None
    line = last.meta["val"].dim() == 3
    inner = inner if convolution is None else [*inner, convolution]
    feeds_convolutions = any(
        user.target is aten.conv2d.default and arguments(user)["groups"] == 1 for user in last.users
    )

    def compute(get: LookUp, context: Context) -> tuple[Value, ...]:
        stacked, measured = feeds_convolutions and is_batch_norm, is_batch_norm and given["training"]
        x, bias, moments = _convolve(get, source, convolution, context, normed=True, stacked=stacked, measured=measured)
        past = None
        if residual is not None:
            past = as_images(as_line(get(residual)), context, stacked=x.dim() == 5).to(x.dtype)
        if not is_batch_norm:
            affine = [None if item is None else flat_parameter(get(item), context) for item in parameters]
            both = _normalize_groups(norm, last, context, x, affine, act, bias, past)
            return tuple(split_images(y, context, line) for y in both)
        from hullo.population.kernels.bn_act import normalize_combine

        mean, variance, scale, shift = (get(item).at(0, context.members).flatten() for item in parameters)
        both = normalize_combine(
            x,
            mean,
            variance,
            scale,
            shift,
            context.rows_of(act),
            act.bases,
            given["training"],
            momentum=given["momentum"],
            eps=given["eps"],
            bias=bias,
            residual=past,
            moments=moments,
            kinds=act.kinds,
        )
        return tuple(split_images(y, context, line) for y in both)

    return Fusion(last, frozenset(inner) - {last}, compute)


def _normalize_groups(
    norm: fx.Node,
    last: fx.Node,
    context: Context,
    x: Tensor,
    affine: Sequence[Tensor | None],
    act: ActivationCall,
    bias: Tensor | None,
    residual: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return images after a norm of groups, for two users."""
    from hullo.population.kernels.gn_act import group_norm_combine

    dtype = x.dtype
    if _feeds_products(last):
        dtype = kernels.working_dtype(x)
    elif torch.is_autocast_enabled(x.device.type):
        dtype = torch.float32  # which autocast chooses
    scale, shift = affine
    return group_norm_combine(
        x,
        scale,
        shift,
        context.rows_of(act),
        act.bases,
        width=norm.meta["val"].shape[1] // arguments(norm)["num_groups"],
        eps=arguments(norm)["eps"],
        bias=bias,
        residual=residual,
        dtype=dtype,
        kinds=act.kinds,
    )


def _is_norm(node: Any) -> bool:
    """Return whether a node normalizes images for one other node alone."""
    return _normalizes(node) and _only_user(node) is not None


def _normalizes(node: Any) -> bool:
    """Return whether a node normalizes images or sequences in a way that kernels know."""
    if not _has_channels(node):
        return False
    if node.target is aten.group_norm.default:
        channels = node.meta["val"].shape[1] // arguments(node)["num_groups"]
        return bool(channels <= MOST_CHANNELS and node.meta["val"].numel() > 0)
    return node.target is aten.batch_norm.default


def _find_linear(site: fx.Node, sites: Sites) -> Fusion | None:
    act = _read_act(site, sites)
    layer: Any = site.args[0] if act is not None else None
    if act is None or act.groups > 1 or not _is_linear(layer):
        return None

    def compute(get: LookUp, context: Context) -> tuple[Value, ...]:
        from hullo.population.kernels.bias_act import combine_biased

        product, bias = _product(get, layer, context)
        y = combine_biased(product, bias, context.rows_of(act), act.bases, act.kinds)
        return (Value(y.view(context.members, *site.meta["val"].shape), 0),)

    return Fusion(site, frozenset({layer}), compute)


def _find_sum(norm: fx.Node, sites: Sites) -> Fusion | None:
    """Find a layer norm after a sum, which is computed in the place of the sum."""
    found = _find_layer_norm(norm, sites)
    add: Any = norm.args[0] if found is not None else None
    if add is None or add.target is not aten.add.Tensor or add.kwargs:
        return None
    one, other = add.args
    if not all(_is_features(item) and item.meta["val"].shape == add.meta["val"].shape for item in (one, other)):
        return None
    if _is_linear(one) or _is_dropout(one):
        one, other = other, one
    dropout = other if _is_dropout(other) and one is not other else None
    y: Any = other if dropout is None else dropout.args[0]
    linear = y if _is_linear(y) and one is not other else None
    is_random = dropout is not None and dropout.args[2]

    def compute(get: LookUp, context: Context) -> tuple[Value, ...]:
        from hullo.population.kernels.dropout import Dropout

        product, shift = (as_rows(context, get(y)), None) if linear is None else _product(get, linear, context)
        x = as_rows(context, get(one))
        drop = None
        if is_random and dropout is not None:
            first = context.first * (x.shape[1] // add.meta["val"].shape[0])
            drop = Dropout(context.seeds, context.steps, context.number, dropout.args[1], first)
        return _normalize(norm, get, context, x, product, shift, drop)

    inner = frozenset({norm, *(item for item in (dropout, linear) if item is not None)})
    return Fusion(add, inner, compute, dropout=dropout, second=norm)


def _is_dropout(node: Any) -> bool:
    """Return whether a node drops features, for one other node alone; the mask of images has another order."""
    if not _is_features(node) or node.target is not aten.dropout.default or _only_user(node) is None:
        return False
    return len(node.meta["val"].shape) not in (1, 4) and (not node.args[2] or 0 < node.args[1] < 1)


def _find_layer_norm(norm: fx.Node, sites: Sites) -> Fusion | None:
    if norm.target not in (aten.layer_norm.default, aten.rms_norm.default) or not _is_features(norm):
        return None
    given = arguments(norm)
    parameters = [given["weight"], given.get("bias")]
    known = all(item is None or item.op == "placeholder" for item in parameters)
    if not known or len(given["normalized_shape"]) > 1 or not 0 < given["normalized_shape"][0] <= MOST_COLUMNS:
        return None

    def compute(get: LookUp, context: Context) -> tuple[Value, ...]:
        return _normalize(norm, get, context, as_rows(context, get(given["input"])))[1:]

    return Fusion(norm, frozenset(), compute)


def _normalize(
    norm: fx.Node,
    get: LookUp,
    context: Context,
    x: Tensor,
    y: Tensor | None = None,
    shift: Tensor | None = None,
    dropout: Any = None,
) -> tuple[Value, Value]:
    """Return the sum of x, y and shift, of which the latter two may be dropped, and its norm."""
    from hullo.population.kernels.layer_norm import layer_norm

    given = arguments(norm)
    weight, bias = (
        None if item is None else get(item).at(0, context.members) for item in (given["weight"], given.get("bias"))
    )
    dtype = x.dtype if y is None else torch.promote_types(x.dtype, y.dtype)
    rms, eps = norm.target is aten.rms_norm.default, given["eps"]
    eps = torch.finfo(torch.float32).eps if eps is None else eps  # as in PyTorch, for halves too
    copy = None
    if _feeds_products(norm):
        dtype = kernels.working_dtype(x)
    elif torch.is_autocast_enabled(x.device.type):
        dtype = torch.float32  # which autocast chooses
        feeds_layers = any(user.target is aten.linear.default for user in norm.users)
        copy = kernels.working_dtype(x) if feeds_layers else None
    found = layer_norm(x, y, shift, weight, bias, eps=eps, rms=rms, dtype=dtype, dropout=dropout, copy=copy)
    shape = (context.members, *norm.meta["val"].shape)
    s, n = (Value(item.view(shape), 0) for item in found[:2])
    if found[2] is not None:
        n.keep_cast(found[2].view(shape))
    return s, n


def _feeds_products(node: fx.Node) -> bool:
    """Return whether only products use a value, whose inputs autocast casts."""
    return all(user.target in _PRODUCTS or (user.target in _MOVES and _feeds_products(user)) for user in node.users)


def _product(get: LookUp, layer: fx.Node, context: Context) -> tuple[Tensor, Tensor | None]:
    """Return what a linear layer computes before its bias, (members, rows, columns), and the bias."""
    given = arguments(layer)
    bias = None if given["bias"] is None else get(given["bias"]).at(0, context.members)
    return multiply(context, get(given["input"]), get(given["weight"])), bias


def _is_linear(node: Any) -> bool:
    """Return whether a node is a linear layer, for one other node alone."""
    if not _is_features(node) or node.target is not aten.linear.default or _only_user(node) is None:
        return False
    weight: Any = node.args[1]
    return len(weight.meta["val"].shape) == 2


def _is_features(node: Any) -> bool:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    if not isinstance(value, Tensor) or not value.is_floating_point() or not kernels.support(value):
        return False
    return all(isinstance(size, int) for size in value.shape) and value.numel() > 0  # other sizes depend on values
