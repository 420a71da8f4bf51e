"""Compute `combine` on the CPU, by a compiled kernel or in blocks that stay in the cache.

Plain PyTorch sweeps the whole tensor through memory once for every operation. A kernel that the system's C compiler has
made (:mod:`hullo.kernels.compiled`) reads each element once. Where there is none, each block is read once, all
operations on it find it in the cache, and the result is written once.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from hullo.bases import Base
from hullo.bases import get_base as find
from hullo.kernels import compiled
from hullo.kernels.spec import CombineSpec, compute_dtype, dense, extents, laid_out_like

BLOCK = 2**19
"""Elements a block: 2 MiB of float32. Larger ones leave the cache, smaller ones pay more for each call."""

HUGE = 2**25
"""The smallest size, in bytes, of tensors whose memory returns to the system when they are freed."""

Number = float | Tensor  # one for the whole block, or a column with one for each of its groups


def forward(x: Tensor, raw: Tensor, spec: CombineSpec) -> Tensor:
    x, order = dense(x)
    dtype = compute_dtype(x)
    coefficients = spec.parametrization.transform(_cast(raw, dtype)).contiguous()
    if kernel := compiled.library(x, spec):
        wide = _readable(x)
        out = _memory_like(wide)
        compiled.run(kernel, wide, None, coefficients, out, None, extents(x, order, raw, spec))
        return _cast(out, x.dtype)
    out = _memory_like(x)
    for rows, (block, target) in _blocks([x, out], order, raw, spec):
        wide = block.to(dtype)
        scratch = torch.empty_like(wide)
        total = target if target.dtype == dtype else torch.empty_like(wide)
        values: Number = 0.0
        for (base, factor), c in zip(_split(spec.bases), _numbers(coefficients, rows), strict=True):
            values = _add_scaled(values, _value(base, wide, scratch), factor * c, out=total)
        if total is not target:
            target.copy_(total)
    return out


def backward(gradient: Tensor, x: Tensor, raw: Tensor, spec: CombineSpec) -> tuple[Tensor, Tensor]:
    x, order = dense(x)
    gradient = laid_out_like(gradient, x, order)
    dtype = compute_dtype(x)
    coefficients = spec.parametrization.transform(_cast(raw, dtype)).contiguous()
    if kernel := compiled.library(x, spec):
        wide = _readable(x)
        out, of_coefficients = _memory_like(wide), torch.empty_like(coefficients)
        upstream = _cast(gradient, wide.dtype)
        compiled.run(kernel, wide, upstream, coefficients, out, of_coefficients, extents(x, order, raw, spec))
        return _cast(out, x.dtype), _pull_back(raw, coefficients, of_coefficients, spec)
    sums = torch.zeros_like(coefficients, dtype=torch.float64)
    out = _memory_like(x)
    for rows, (block, upstream, target) in _blocks([x, gradient, out], order, raw, spec):
        wide, above = block.to(dtype), upstream.to(dtype)
        scratch = torch.empty_like(wide)
        total = target if target.dtype == dtype else torch.empty_like(wide)
        slopes: Number = 0.0
        products, gradients = [], []
        for (base, factor), c in zip(_split(spec.bases), _numbers(coefficients, rows), strict=True):
            if base.name.partition("(")[0] in _NATIVE:
                value, gradient_of_x = _differentiated(base, wide, above)
                gradients.append((gradient_of_x, factor * c))
                products.append(_sum_of_products(above, value, rows) * factor)
            else:
                value = _value(base, wide, scratch)
                products.append(_sum_of_products(above, value, rows) * factor)
                slopes = _add_scaled(slopes, _slope(base, wide, value), factor * c, out=total)
        nothing = isinstance(slopes, float) and slopes == 0.0
        product: Number = 0.0 if nothing else torch.mul(above, slopes, out=total)
        for gradient_of_x, c in gradients:
            product = _add_scaled(product, gradient_of_x, c, out=total)
        if product is not total:
            total.zero_()  # the function is constant
        if total is not target:
            target.copy_(total)
        (sums if rows is None else sums[rows]).add_(torch.stack(products, dim=-1))
    return out, _pull_back(raw, coefficients, sums, spec)


def _cast(t: Tensor, dtype: torch.dtype) -> Tensor:
    """Return t in a dtype, in less time than `Tensor.to` where it has that dtype."""
    return t if t.dtype is dtype else t.to(dtype)


def _readable(x: Tensor) -> Tensor:
    """Return x in a dtype that compiled kernels read."""
    return x if x.dtype in (torch.float32, torch.bfloat16) else x.float()


def _pull_back(raw: Tensor, coefficients: Tensor, gradient: Tensor, spec: CombineSpec) -> Tensor:
    """Return the gradient of raw parameters from that of the coefficients."""
    dtype = coefficients.dtype
    given = spec.parametrization.pullback(_cast(raw, dtype), coefficients, _cast(gradient, dtype))
    return _cast(given, raw.dtype)


def _blocks(
    tensors: list[Tensor], order: list[int], raw: Tensor, spec: CombineSpec
) -> Iterator[tuple[slice | None, Sequence[Tensor]]]:
    """Yield blocks of tensors of one layout: the rows of coefficients that a block uses (None for the only one), and
    the block of each tensor, of shape (outer, rows, inner) if there are several rows."""
    first = tensors[0]
    if first.numel() > BLOCK:
        _keep_freed_memory()
    if raw.dim() == 1:
        if first.numel() <= BLOCK:
            yield None, tensors
        else:
            flat = [torch.split(t.permute(order).view(-1), BLOCK) for t in tensors]
            yield from ((None, parts) for parts in zip(*flat, strict=True))
        return
    outer, groups, inner = extents(first, order, raw, spec)
    views = [t.permute(order).reshape(outer, groups, inner) for t in tensors]
    # Whole runs of a group where they fit into a block, several groups and more where these fit too.
    wide = max(1, min(inner, BLOCK))
    high = min(groups, BLOCK // wide)
    deep = BLOCK // (wide * high)
    for a in range(0, outer, deep):
        for g in range(0, groups, high):
            for b in range(0, inner, wide):
                yield slice(g, g + high), [v[a : a + deep, g : g + high, b : b + wide] for v in views]


def _memory_like(x: Tensor) -> Tensor:
    """Allocate memory for a result. The system clears new pages when they are first written, which for a large tensor
    takes longer than the arithmetic; huge pages are requested where the system offers them."""
    out = torch.empty_like(x)
    if out.nbytes >= HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
        start = -(-out.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        length = (out.data_ptr() + out.nbytes - start) // mmap.PAGESIZE * mmap.PAGESIZE
        advise = ctypes.CDLL(None).madvise
        advise(
            ctypes.c_void_p(start), ctypes.c_size_t(length), mmap.MADV_HUGEPAGE
        )  # advice, which the system may ignore
    return out


@functools.cache
def _keep_freed_memory() -> None:
    """Make glibc reuse freed memory: after freeing one large allocation, it no longer returns allocations up to that
    size to the system, which would clear their pages again for every block."""
    torch.empty(2**24, dtype=torch.uint8, device="cpu")


def _numbers(coefficients: Tensor, rows: slice | None) -> Sequence[Number]:
    """Return the coefficients of a block, one item per base."""
    if rows is None:
        values: list[float] = coefficients.tolist()
        return values
    return coefficients[rows].unsqueeze(1).unbind(-1)


def _add_scaled(total: Number, value: Number, c: Number, out: Tensor) -> Number:
    """Return total + c * value, computed in one pass, in `out` as soon as that needs a whole block."""
    if not isinstance(value, Tensor):
        return torch.add(total, c * value, out=out) if total is out else total + c * value
    if isinstance(total, float):
        if total == 0.0:
            return torch.mul(value, c, out=out)
        total = torch.tensor(total, dtype=out.dtype, device="cpu")
    return (
        torch.addcmul(total, value, c, out=out) if isinstance(c, Tensor) else torch.add(total, value, alpha=c, out=out)
    )


def _sum_of_products(a: Tensor, b: Tensor, rows: slice | None) -> Tensor:
    return torch.dot(a.reshape(-1), b.reshape(-1)) if rows is None else (a * b).sum((0, 2))


# Functions that PyTorch computes in one pass each way. Not hardsigmoid, whose slope it rounds to float32 also for
# float64, and not hardswish, whose slope at 3 it takes from the other side.
_NATIVE = frozenset(
    ("celu", "elu", "gelu", "gelu_tanh", "hardtanh", "leaky_relu", "mish", "relu6", "selu", "silu", "softplus")
)


@functools.cache
def _split(bases: tuple[Base, ...]) -> list[tuple[Base, float]]:
    """Return bases and constant factors: ``unit_gelu`` of the catalogue is twice ``gelu``."""
    found = []
    for item in bases:
        try:
            raw = find(item.name.removeprefix("unit_"))
        except ValueError:  # a base of the user
            raw = item
        factor = 1 / raw.slopes_at_zero[1] if raw.slopes_at_zero[1] else 0.0
        is_multiple = raw.formula and item.formula and item.formula.value == f"({raw.formula.value}) * {factor!r}"
        found.append((raw, factor) if is_multiple else (item, 1.0))
    return found


def _differentiated(base: Base, x: Tensor, upstream: Tensor) -> tuple[Tensor, Tensor]:
    """Return the value of a base and the gradient of x, by PyTorch's own backward pass."""
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        value = base.function(leaf)
    return value.detach(), torch.autograd.grad(value, leaf, upstream)[0]


# Bases in as few passes as possible: value(x, out), and, for the paper's two nonlinear ones, when the value is no
# longer needed, the slope in its place.


def _tanh(x: Tensor, out: Tensor) -> Tensor:
    """Compute tanh(x) = 2 sigmoid(2x) - 1, to an absolute error of 2e-7 in float32, as compiled PyTorch does on a CPU;
    torch.tanh takes four times as long, and computes what needs precision or is small."""
    if x.dtype == torch.float64 or x.numel() < 1024:
        return torch.tanh(x, out=out)
    torch.mul(x, 2, out=out).sigmoid_()
    return torch.add(x.new_full((), -1.0), out, alpha=2, out=out)


def _tanh_slope_(value: Tensor) -> Tensor:
    return torch.addcmul(value.new_full((), 1.0), value, value, value=-1, out=value)


def _asinh(x: Tensor, out: Tensor) -> Tensor:
    """Compute sign(x) log1p(|x| + x^2 / (1 + sqrt(1 + x^2))); torch.asinh takes eight times as long."""
    root = torch.addcmul(x.new_full((), 1.0), x, x).sqrt_()
    if not bool(root.isfinite().all()):
        return torch.asinh(x, out=out)
    return torch.mul(x, x, out=out).div_(root.add_(1)).add_(x.abs()).log1p_().copysign_(x)


_VALUES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "relu": lambda x, out: torch.clamp_min(x, 0, out=out),
    "tanh": _tanh,
    "asinh": _asinh,
}
_SLOPES: dict[str, Callable[[Tensor], Tensor]] = {"relu": torch.Tensor.sign_, "tanh": _tanh_slope_}


def _value(base: Base, x: Tensor, scratch: Tensor) -> Tensor:
    return _VALUES[base.name](x, scratch) if base.name in _VALUES else base.function(x)


def _slope(base: Base, x: Tensor, value: Tensor) -> Number:
    slope: Number = _SLOPES[base.name](value) if base.name in _SLOPES else base.slope(x, value)
    return slope
