"""Find the dimension of a tensor that holds channels, from the operations that made it.

A convolution or a batch norm has its channels in dimension 1, a linear layer, a layer norm or an embedding in the last
one. Operations in between move the dimension (permute, reshape) or leave it where it is (sums, pooling, dropout). The
graph that autograd keeps names them all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

_DEEPEST = 64

_SECOND = ("Convolution", "NativeBatchNorm", "CudnnBatchNorm", "MiopenBatchNorm", "NativeGroupNorm", "Mkldnn")
_LAST = ("Addmm", "Mm", "Linear", "NativeLayerNorm", "FusedRmsNorm", "RmsNorm", "Embedding", "Baddbmm")
_SAME = (
    *(
        "Add",
        "Sub",
        "Mul",
        "Div",
        "Neg",
        "Pow",
        "Sqrt",
        "Rsqrt",
        "Exp",
        "Clamp",
        "Where",
        "MaskedFill",
        "Lerp",
        "Clone",
    ),
    *(
        "ToCopy",
        "Copy",
        "Alias",
        "Contiguous",
        "Dropout",
        "NativeDropout",
        "Bernoulli",
        "Slice",
        "Split",
        "Chunk",
        "Cat",
    ),
    *("Relu", "Gelu", "Silu", "Tanh", "Sigmoid", "Hardswish", "Hardsigmoid", "Hardtanh", "LeakyRelu", "Elu", "Mish"),
    *(
        "Softplus",
        "Erf",
        "Sin",
        "Cos",
        "Max",
        "Avg",
        "Adaptive",
        "Upsample",
        "ConstantPad",
        "Reflection",
        "Replication",
    ),
    *("_Combine", "_TransformedCombine", "Roll", "Flip", "PixelUnshuffle"),
)


def channel_dim_of(x: Tensor) -> int | None:
    """Return the dimension of x that holds channels: 1, -1 or another; None if its history does not tell."""
    dim = None if x.grad_fn is None else _dim(x.grad_fn, tuple(x.shape), _DEEPEST)
    return -1 if dim == x.dim() - 1 and dim != 1 else dim


def _dim(node: Any, shape: tuple[int, ...], depth: int) -> int | None:
    """Return the channel dimension, from 0 on, of what an operation of autograd's graph returned."""
    name, rank = type(node).__name__, len(shape)
    if name in ("AccumulateGrad", "NoneType") or depth == 0 or rank < 2:
        return None
    kind = name.removesuffix("0").removesuffix("1").removesuffix("2").removesuffix("Backward")
    if kind.startswith(_SECOND):
        return 1
    if kind.startswith(_LAST):
        return rank - 1
    for start, moved in _MOVES.items():
        if kind == start:
            return moved(node, shape, depth)
    if kind.startswith(_SAME):
        before = tuple(getattr(node, "_saved_self_sym_sizes", shape))  # of a part, the shape of the whole
        found = {_dim(parent, before, depth - 1) for parent, _ in node.next_functions} - {None}
        return found.pop() if len(found) == 1 else None
    return None


def _parent(node: Any, shape: Sequence[int], depth: int) -> int | None:
    return _dim(node.next_functions[0][0], tuple(shape), depth - 1)


def _signed(number: int) -> int:
    """Undo that autograd keeps negative dimensions as numbers without a sign."""
    return number - 2**64 if number >= 2**63 else number


def _permuted(node: Any, shape: tuple[int, ...], depth: int) -> int | None:
    order = [_signed(dim) % len(shape) for dim in node._saved_dims]
    before = _parent(node, [shape[order.index(dim)] for dim in range(len(shape))], depth)
    return None if before is None else order.index(before)


def _transposed(node: Any, shape: tuple[int, ...], depth: int) -> int | None:
    swapped = (0, 1) if type(node).__name__.startswith("TB") else (node._saved_dim0, node._saved_dim1)
    a, b = (_signed(dim) % len(shape) for dim in swapped)
    order = list(range(len(shape)))
    order[a], order[b] = b, a
    before = _parent(node, [shape[dim] for dim in order], depth)
    return None if before is None else order[before]


def _reshaped(node: Any, shape: tuple[int, ...], depth: int) -> int | None:
    """Find the dimension again that has as many numbers before it, and as many in it."""
    sizes = tuple(node._saved_self_sym_sizes)
    before = _parent(node, sizes, depth)
    if before is None:
        return None
    behind = math.prod(sizes[before + 1 :])
    places = [dim for dim in range(len(shape)) if shape[dim] == sizes[before] and math.prod(shape[dim + 1 :]) == behind]
    return places[0] if len(places) == 1 else None


def _reduced(node: Any, shape: tuple[int, ...], depth: int) -> int | None:
    sizes = tuple(node._saved_self_sym_sizes)
    before = _parent(node, sizes, depth)
    gone = [_signed(dim) % len(sizes) for dim in node._saved_dim]
    if before is None or before in gone:
        return None
    return before if node._saved_keepdim else before - sum(dim < before for dim in gone)


def _unsqueezed(node: Any, shape: tuple[int, ...], depth: int) -> int | None:
    new = _signed(node._saved_dim) % len(shape)
    before = _parent(node, [size for dim, size in enumerate(shape) if dim != new], depth)
    return None if before is None else before + (before >= new)


def _selected(node: Any, shape: tuple[int, ...], depth: int) -> int | None:
    gone = _signed(node._saved_dim) % (len(shape) + 1)
    before = _parent(node, node._saved_self_sym_sizes, depth)
    return None if before is None or before == gone else before - (before > gone)


_MOVES: dict[str, Callable[[Any, tuple[int, ...], int], int | None]] = {
    "Permute": _permuted,
    "Transpose": _transposed,
    "T": _transposed,
    "View": _reshaped,
    "UnsafeView": _reshaped,
    "ReshapeAlias": _reshaped,
    "Mean": _reduced,
    "Unsqueeze": _unsqueezed,
    "Select": _selected,
}
