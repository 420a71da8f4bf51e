"""Infer the channel dimension of a tensor from its autograd graph.

The channels are dimension 1 after a convolution or a batch norm, and the last one after a linear layer, a layer norm or
an embedding. Operations in between move the dimension (permute, reshape) or keep it (sums, pooling, dropout).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

_MAX_DEPTH = 64

_SECOND = ("Convolution", "NativeBatchNorm", "CudnnBatchNorm", "MiopenBatchNorm", "NativeGroupNorm", "Mkldnn")
_LAST = ("Addmm", "Mm", "Linear", "NativeLayerNorm", "FusedRmsNorm", "RmsNorm", "Embedding", "Baddbmm")
_SAME = (
    "Add", "Sub", "Mul", "Div", "Neg", "Pow", "Sqrt", "Rsqrt", "Exp", "Clamp", "Where", "MaskedFill", "Lerp", "Clone",
    "ToCopy", "Copy", "Alias", "Contiguous", "Dropout", "NativeDropout", "Bernoulli", "Slice", "Split", "Chunk", "Cat",
    "Relu", "Gelu", "Silu", "Tanh", "Sigmoid", "Hardswish", "Hardsigmoid", "Hardtanh", "LeakyRelu", "Elu", "Mish",
    "Softplus", "Erf", "Sin", "Cos", "Max", "Avg", "Adaptive", "Upsample", "ConstantPad", "Reflection", "Replication",
    "_Combine", "_TransformedCombine", "_ShareMemory", "_ReplaceData", "Roll", "Flip", "PixelUnshuffle",
)  # fmt: skip


def channel_dim_of(x: Tensor) -> int | None:
    """Return the channel dimension of x: 1, -1 or another; None if it cannot be inferred."""
    dim = None if x.grad_fn is None else _dim(x.grad_fn, tuple(x.shape), _MAX_DEPTH)
    return -1 if dim == x.dim() - 1 and dim != 1 else dim


def _dim(node: Any, shape: tuple[int, ...], depth: int) -> int | None:
    """Return the non-negative channel dimension of the output of a node of the autograd graph."""
    name, rank = type(node).__name__, len(shape)
    if name in ("AccumulateGrad", "NoneType") or depth == 0 or rank < 2:
        return None
    kind = name.removesuffix("0").removesuffix("1").removesuffix("2").removesuffix("Backward")
    if kind.startswith(_SECOND):
        return 1
    if kind.startswith(_LAST):
        return rank - 1
    if kind in _MOVES:
        sizes, origins = _MOVES[kind](node, shape)
        before = _dim(node.next_functions[0][0], tuple(sizes), depth - 1)
        candidates = [dim for dim, origin in enumerate(origins) if before is not None and before in origin]
        return candidates[0] if len(candidates) == 1 else None
    if kind.startswith(_SAME):
        before_shape = tuple(getattr(node, "_saved_self_sym_sizes", shape))  # for a slice, the shape of its input
        dims = {_dim(parent, before_shape, depth - 1) for parent, _ in node.next_functions} - {None}
        return dims.pop() if len(dims) == 1 else None
    return None


# Each function returns the shape of the input and, per output dimension, the input dimensions it may correspond to.
_Move = tuple[Sequence[int], list[set[int]]]


def _positive(dim: int, rank: int) -> int:
    """Return a dimension as a number from 0; autograd saves negative ones as unsigned 64-bit numbers."""
    return (dim - 2**64 if dim >= 2**63 else dim) % rank


def _permuted(node: Any, shape: tuple[int, ...]) -> _Move:
    order = [_positive(dim, len(shape)) for dim in node._saved_dims]
    return [shape[order.index(dim)] for dim in range(len(shape))], [{dim} for dim in order]


def _transposed(node: Any, shape: tuple[int, ...]) -> _Move:
    swapped = (0, 1) if type(node).__name__.startswith("TB") else (node._saved_dim0, node._saved_dim1)
    a, b = (_positive(dim, len(shape)) for dim in swapped)
    order = list(range(len(shape)))
    order[a], order[b] = b, a
    return [shape[dim] for dim in order], [{dim} for dim in order]


def _reshaped(node: Any, shape: tuple[int, ...]) -> _Move:
    """Match dimensions of the same size and stride, in elements."""
    sizes = tuple(node._saved_self_sym_sizes)
    input_dims, output_dims = (
        [(n, math.prod(part[dim + 1 :])) for dim, n in enumerate(part)] for part in (sizes, shape)
    )
    return sizes, [{dim for dim, item in enumerate(input_dims) if item == new} for new in output_dims]


def _averaged(node: Any, shape: tuple[int, ...]) -> _Move:
    sizes = tuple(node._saved_self_sym_sizes)
    removed = {_positive(dim, len(sizes)) for dim in node._saved_dim}
    return sizes, [{dim} - removed for dim in range(len(sizes)) if node._saved_keepdim or dim not in removed]


def _unsqueezed(node: Any, shape: tuple[int, ...]) -> _Move:
    new, dims = _positive(node._saved_dim, len(shape)), range(len(shape))
    return [shape[dim] for dim in dims if dim != new], [{dim - (dim > new)} if dim != new else set() for dim in dims]


def _selected(node: Any, shape: tuple[int, ...]) -> _Move:
    removed = _positive(node._saved_dim, len(shape) + 1)
    return node._saved_self_sym_sizes, [{dim + (dim >= removed)} for dim in range(len(shape))]


_MOVES: dict[str, Callable[[Any, tuple[int, ...]], _Move]] = {
    "Permute": _permuted, "Transpose": _transposed, "T": _transposed, "View": _reshaped, "UnsafeView": _reshaped,
    "ReshapeAlias": _reshaped, "Mean": _averaged, "Unsqueeze": _unsqueezed, "Select": _selected,
}  # fmt: skip
