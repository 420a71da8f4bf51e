"""`combine` on a GPU: one fused kernel forward, two backward, built for each set of bases on first use.

The kernels' text is made by :mod:`hullo.kernels.codegen`; here they are compiled, tiled and launched. With
``TRITON_INTERPRET=1`` in the environment they run on the CPU, slowly, for tests.
"""

from __future__ import annotations

import contextlib
import functools
import linecache
from typing import Any, NamedTuple

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from hullo.bases import Base
from hullo.kernels import device_math
from hullo.kernels.codegen import kernel_source
from hullo.kernels.spec import CombineSpec, dense, extents, laid_out_like
from hullo.parametrizations import BuiltInParametrization

INTERPRETED = bool(triton.knobs.runtime.interpret)


def forward(x: Tensor, raw: Tensor, spec: CombineSpec) -> Tensor:
    x, order = dense(x)
    raw = raw.contiguous()
    y = torch.empty_like(x)
    if x.numel():
        launches = _launches(*extents(x, order, raw, spec), spec.bases, spec.parametrization, x.dtype, x.device.index)
        with _current(x.device):
            launches.forward(x, raw, y)
    return y


def backward(gradient: Tensor, x: Tensor, raw: Tensor, spec: CombineSpec) -> tuple[Tensor, Tensor]:
    x, order = dense(x)
    gradient = laid_out_like(gradient, x, order)
    raw = raw.contiguous()
    dx = torch.empty_like(x)
    if not x.numel():
        return dx, torch.zeros_like(raw)
    draw = torch.empty_like(raw)
    launches = _launches(*extents(x, order, raw, spec), spec.bases, spec.parametrization, x.dtype, x.device.index)
    partial = torch.empty(launches.partials, dtype=torch.float32, device=x.device)
    with _current(x.device):
        launches.backward(gradient, x, raw, dx, partial)
        launches.reduce(partial, raw, draw)
    return dx, draw


def gated_forward(gate: Tensor, up: Tensor, raw: Tensor, spec: CombineSpec) -> Tensor:
    """Return hull(gate) * up."""
    gate, order = dense(gate)
    up, raw = laid_out_like(up, gate, order), raw.contiguous()
    y = torch.empty_like(gate)
    if gate.numel():
        launches = _launches(
            *extents(gate, order, raw, spec), spec.bases, spec.parametrization, gate.dtype, gate.device.index, True
        )
        with _current(gate.device):
            launches.forward(gate, up, raw, y)
    return y


def gated_backward(
    gradient: Tensor, gate: Tensor, up: Tensor, raw: Tensor, spec: CombineSpec
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of the gate, of `up` and of the raw parameters."""
    gate, order = dense(gate)
    up, gradient, raw = laid_out_like(up, gate, order), laid_out_like(gradient, gate, order), raw.contiguous()
    dgate, dup, draw = torch.empty_like(gate), torch.empty_like(gate), torch.empty_like(raw)
    if not gate.numel():
        return dgate, dup, draw.zero_()
    launches = _launches(
        *extents(gate, order, raw, spec), spec.bases, spec.parametrization, gate.dtype, gate.device.index, True
    )
    partial = torch.empty(launches.partials, dtype=torch.float32, device=gate.device)
    with _current(gate.device):
        launches.backward(gradient, gate, up, raw, dgate, dup, partial)
        launches.reduce(partial, raw, draw)
    return dgate, dup, draw


def _current(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which a device is the current one, on which Triton launches."""
    if INTERPRETED or device.index == torch.cuda.current_device():
        return contextlib.nullcontext()
    return torch.cuda.device(device)


class _Launch:
    """Hold a kernel and all its arguments except tensors.

    After the first call it runs the compiled kernel directly: Triton's own launcher binds and inspects every argument
    again, which takes longer than a small kernel.
    """

    def __init__(
        self, kernel: Any, programs: int, sizes: tuple[int, ...], constants: dict[str, Any], options: dict[str, Any]
    ) -> None:
        self.kernel, self.grid, self.sizes = kernel, (programs, 1, 1), sizes
        self.constants, self.options = constants, options
        self.compiled: Any = None

    def __call__(self, *tensors: Tensor) -> None:
        # A kernel that Triton compiles for addresses divisible by 16 is valid for such addresses only.
        aligned = not any(tensor.data_ptr() % 16 for tensor in tensors)
        if aligned and self.compiled is not None:
            self.compiled(*tensors, *self.sizes, *self.constants.values())
            return
        compiled = self.kernel[self.grid](*tensors, *self.sizes, **self.constants, **self.options)
        if aligned and compiled is not None:  # the interpreter compiles nothing
            self.compiled = compiled[self.grid]


class _Launches(NamedTuple):
    forward: _Launch
    backward: _Launch
    reduce: _Launch
    partials: int


@functools.lru_cache(maxsize=4096)
def _launches(
    outer: int,
    groups: int,
    inner: int,
    bases: tuple[Base, ...],
    parametrization: BuiltInParametrization,
    dtype: torch.dtype,
    device: int | None,
    gated: bool = False,
) -> _Launches:
    """Return the launches for a tensor of shape (outer, groups, inner)."""
    kernels = kernels_for(bases, parametrization, dtype, gated)
    programs = 8 * (4 if INTERPRETED else torch.cuda.get_device_properties(device).multi_processor_count)
    early = device_math.HARDWARE.value and torch.cuda.get_device_capability(device) >= (9, 0)
    precise, many = dtype == torch.float32, len(bases) > 3
    by_column = groups > 1 and (inner < 64 or (inner < 512 and outer >= 64))
    # As measured on an H200: tiles large enough to keep memory busy, and small enough to leave registers.
    if by_column:
        there = tile(outer, groups, inner, 128, 2048 if precise else 4096, None)
        if precise or many:
            back = tile(outer, groups, inner, 64, 512 if precise else 1024, programs)
        else:
            back = tile(outer, groups, inner, 64, 2048, programs // 2)
    else:
        there = tile(outer, groups, inner, None, 4096 if many and not precise else 2048, None)
        back = tile(outer, groups, inner, None, 2048 if many and precise else 1024, programs)
    warps = 8 if many or (precise and back.constants["ROWS"] > 1 and not by_column) else 4
    sums = back.splits * (groups * inner if by_column else groups)  # of each base
    sums_of_group = sums // groups
    return _Launches(
        forward=_Launch(kernels["forward"], there.programs, there.sizes, there.constants, {"num_warps": 4}),
        backward=_Launch(
            kernels["backward"],
            back.programs,
            (*back.sizes, sums),
            back.constants | {"EARLY": early},
            {"num_warps": warps},
        ),
        reduce=_Launch(
            kernels["reduce"],
            groups,
            (sums_of_group, back.splits, inner, groups * inner, sums),
            {"BLOCK": min(1024, _power_of_two(sums_of_group)), "BY_COLUMN": by_column, "EARLY": early},
            {"num_warps": 4} | ({"launch_pdl": True} if early else {}),
        ),
        partials=len(bases) * sums,
    )


class Tiling(NamedTuple):
    """Describe how a launch divides a tensor into tiles; see :mod:`hullo.kernels.codegen` for the terms."""

    programs: int
    splits: int
    sizes: tuple[int, ...]
    constants: dict[str, Any]


def tile(outer: int, groups: int, inner: int, by_column: int | None, size: int, programs: int | None) -> Tiling:
    """Divide a tensor of shape (outer, groups, inner) into tiles of about `size` elements, for about `programs`
    programs; None is one for each tile. A lane is `by_column` columns wide, or, if that is None, one group."""
    width = groups * inner
    columns = min(_power_of_two(width), by_column) if by_column else _columns(inner, size)
    rows = min(size // columns, _power_of_two(outer))
    span = columns if by_column else inner
    lanes = triton.cdiv(width, span)
    tiles_across = triton.cdiv(span, columns)
    tiles = triton.cdiv(outer, rows) * tiles_across
    splits = tiles if programs is None else min(tiles, max(1, programs // lanes))
    constants = {
        "ROWS": rows,
        "COLUMNS": columns,
        "BY_COLUMN": by_column is not None,
        "EVEN": outer % rows == span % columns == width % span == 0,
        "ONE_TILE": splits == tiles,
        "BIG": outer * width + size >= 2**31,
    }
    return Tiling(lanes * splits, splits, (outer, inner, width, span, tiles, tiles_across, splits), constants)


def _columns(inner: int, size: int) -> int:
    """Return the width of the widest tile that wastes little of a run of `inner` elements."""
    widths = [size >> k for k in range(6) if size >> k <= _power_of_two(inner)] or [_power_of_two(inner)]
    return max(widths, key=lambda width: (round(inner / (triton.cdiv(inner, width) * width), 1), width))


def _power_of_two(n: int) -> int:
    return int(triton.next_power_of_2(n))


@functools.cache
def kernels_for(
    bases: tuple[Base, ...], parametrization: BuiltInParametrization, dtype: torch.dtype, gated: bool = False
) -> dict[str, Any]:
    """Return the kernels of a set of bases, of hull(x) or, if gated, of hull(x) * up."""
    label = f"{'gated ' * gated}{parametrization.name}({','.join(base.name for base in bases)}) on {dtype}"
    return build(kernel_source(bases, parametrization, gated), label, dtype)


def build(text: str, label: str, dtype: torch.dtype, **known: Any) -> dict[str, Any]:
    """Return the kernels of a source, compiled in a scope with the functions of device_math and the given names."""
    name = f"<hullo kernels for {label}>"
    linecache.cache[name] = (
        len(text),
        None,
        text.splitlines(keepends=True),
        name,
    )  # Triton reads its functions' source
    scope: dict[str, Any] = {"__name__": name, "tl": tl, "triton": triton, **_words(dtype), **known}
    exec(compile(text, name, "exec"), scope)  # noqa: S102  (the text is our own)
    return scope


def _words(dtype: torch.dtype) -> dict[str, Any]:
    if dtype == torch.float32:
        return device_math.PRECISE
    if dtype == torch.bfloat16 and not INTERPRETED and torch.version.cuda is not None:
        return device_math.BFLOAT16
    return device_math.FLOAT16
