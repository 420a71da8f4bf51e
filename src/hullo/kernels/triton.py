"""`combine` on a GPU: one fused kernel forward, two backward, built for each set of bases on first use.

The kernels' text is made by :mod:`hullo.kernels.codegen`; here they are compiled, tiled and launched. With
``TRITON_INTERPRET=1`` in the environment they run on the CPU, slowly, for tests.
"""

from __future__ import annotations

import functools
import linecache
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from hullo._compat import current_cuda_device, current_cuda_stream, empty_cuda
from hullo.bases import Base
from hullo.kernels import device_math, slope_table
from hullo.kernels.codegen import kernel_source
from hullo.kernels.linear_terms import kernel_parts
from hullo.kernels.spec import CombineSpec, dense, extents, laid_out_like
from hullo.parametrizations import BuiltInParametrization

_is_contiguous = Tensor.is_contiguous
_HOOKS = triton.knobs.runtime.launch_enter_hook
# Of four and more bases, forward and backward: the size of a tile, warps, programs per multiprocessor (0: one for each
# tile) and stages, as measured on an H200.
MANY = {
    torch.bfloat16: ((1024, 4, 128, 1), (1024, 4, 30, 1)),
    torch.float16: ((1024, 4, 128, 1), (1024, 4, 27, 1)),
    torch.float32: ((2048, 4, 0, 1), (1024, 4, 56, 3)),
}
INTERPRETED = bool(triton.knobs.runtime.interpret)


def forward(x: Tensor, raw: Tensor, spec: CombineSpec) -> Tensor:
    launches, raw, x = _arrange(spec, False, raw, x)
    y = torch.empty_like(x)
    if launches is not None:
        launches.forward(x, raw, y)
    return y


def backward(gradient: Tensor, x: Tensor, raw: Tensor, spec: CombineSpec) -> tuple[Tensor, Tensor]:
    launches, raw, x, gradient = _arrange(spec, False, raw, x, gradient)
    dx, draw = torch.empty_like(x), torch.empty_like(raw)
    if launches is None:
        return dx, draw.zero_()
    partial = launches.partials(x)
    launches.backward(gradient, x, raw, dx, partial)
    launches.reduce(partial, raw, draw)
    return dx, draw


def gated_forward(gate: Tensor, up: Tensor, raw: Tensor, spec: CombineSpec) -> Tensor:
    """Return hull(gate) * up."""
    launches, raw, gate, up = _arrange(spec, True, raw, gate, up)
    y = torch.empty_like(gate)
    if launches is not None:
        launches.forward(gate, up, raw, y)
    return y


def gated_backward(
    gradient: Tensor, gate: Tensor, up: Tensor, raw: Tensor, spec: CombineSpec
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of the gate, of `up` and of the raw parameters."""
    launches, raw, gate, up, gradient = _arrange(spec, True, raw, gate, up, gradient)
    dgate, dup, draw = torch.empty_like(gate), torch.empty_like(gate), torch.empty_like(raw)
    if launches is None:
        return dgate, dup, draw.zero_()
    partial = launches.partials(gate)
    launches.backward(gradient, gate, up, raw, dgate, dup, partial)
    launches.reduce(partial, raw, draw)
    return dgate, dup, draw


@dataclass
class _Launch:
    """Hold a kernel and all its arguments except tensors.

    After the first call it runs the compiled kernel: `kernel[grid]` binds and inspects every argument again, and that
    takes longer than a small kernel.
    """

    kernel: Any
    device: int | None
    programs: int
    sizes: tuple[int, ...]
    constants: dict[str, Any]
    options: dict[str, Any]
    compiled: Any = None  # for aligned tensors

    def __call__(self, *tensors: Tensor) -> None:
        compiled = self.compiled
        if self.device != current_cuda_device() and not INTERPRETED:
            with torch.cuda.device(self.device):  # Triton launches on the current device
                self(*tensors)
        elif compiled is None or _HOOKS.calls or not _are_aligned(tensors):
            made = self.kernel[self.programs,](*tensors, *self.sizes, **self.constants, **self.options)
            if _are_aligned(tensors):
                self.compiled = made  # None in the interpreter
        else:
            compiled.run(
                self.programs, 1, 1, current_cuda_stream(self.device), compiled.function, compiled.packed_metadata,
                None, None, None, *tensors, *self.sizes, *self.constants.values(),
            )  # fmt: skip


def _are_aligned(tensors: Sequence[Tensor]) -> bool:
    """Return whether all addresses are divisible by 16, as they must be for kernels compiled for such ones."""
    return not functools.reduce(operator.or_, map(Tensor.data_ptr, tensors)) & 15


class _Launches(NamedTuple):
    forward: _Launch
    backward: _Launch
    reduce: _Launch
    sums: int

    def partials(self, x: Tensor) -> Tensor:
        """Allocate memory for the sums of every program."""
        if x.get_device() == current_cuda_device():  # in less time
            return empty_cuda((self.sums,), (1,), torch.float32)
        return x.new_empty(self.sums, dtype=torch.float32)


def _arrange(spec: CombineSpec, gated: bool, raw: Tensor, x: Tensor, *others: Tensor) -> tuple[Any, ...]:
    """Return the launches for x, None if it is empty; and all tensors without gaps, in the memory layout of x."""
    if raw.dim() == 1 and all(map(_is_contiguous, (raw, x, *others))):  # in the least time
        arranged, sizes = (raw, x, *others), (1, 1, x.numel())
    else:
        x, order = dense(x)
        arranged = raw.contiguous(), x, *(laid_out_like(t, x, order) for t in others)
        sizes = extents(x, order, raw, spec)
    if not x.numel():
        return None, *arranged
    key = (spec.bases, spec.parametrization, x.dtype, raw.dtype, x.get_device(), gated, spec.order)
    return _launches(sizes, *key), *arranged


@functools.lru_cache(maxsize=4096)
def _launches(
    sizes: tuple[int, int, int],
    bases: tuple[Base, ...],
    parametrization: BuiltInParametrization,
    dtype: torch.dtype,
    raw_dtype: torch.dtype,  # of the kernel that a launch runs again, as the dtype of x
    device: int | None,
    gated: bool,
    order: int,
) -> _Launches:
    """Return the launches for a tensor of sizes (outer, groups, inner)."""
    outer, groups, inner = sizes
    kernels = kernels_for(bases, parametrization, dtype, gated, order)
    units = 4 if INTERPRETED else torch.cuda.get_device_properties(device).multi_processor_count
    programs = 8 * units
    early = device_math.HARDWARE.value and torch.cuda.get_device_capability(device) >= (9, 0)
    precise, many = dtype == torch.float32, len(bases) > 3
    # Runs that begin anywhere in memory are loaded element by element; rows of all groups may begin at multiples of 16.
    is_apart = inner % slope_table.WIDTH != 0 and groups * inner % slope_table.WIDTH == 0
    by_column = groups > 1 and (inner < 64 or ((inner < 512 or is_apart) and outer >= 64))
    # As measured on an H200: tiles large enough to keep memory busy, and small enough to leave registers.
    warps, limits = [4, 8 if many else 4], {}
    if by_column:
        forward_tiling = tile(outer, groups, inner, 128, 2048 if precise else 4096, None)
        if precise or many:
            backward_tiling = tile(outer, groups, inner, 64, 512 if precise else 1024, programs)
        else:
            backward_tiling = tile(outer, groups, inner, 64, 2048, programs // 2)
    elif many:
        (size, warps[0], share, stages), backward_choice = MANY[dtype]
        forward_tiling = tile(outer, groups, inner, None, size, share * units or None, stages)
        size, warps[1], share, stages = backward_choice
        backward_tiling = tile(outer, groups, inner, None, size, share * units, stages)
        has_table = may_have_table(bases, dtype, gated, order)
        if has_table and (early or INTERPRETED) and inner % slope_table.WIDTH == 0:
            wide = tile(outer, groups, inner, None, slope_table.TILE, slope_table.SHARE * units)
            if wide.elements_per_program >= slope_table.LEAST_TILES * slope_table.TILE:
                backward_tiling, warps[1], limits = wide, slope_table.WARPS, {"maxnreg": slope_table.REGISTERS}
                kernels = kernels | kernels_by_table(bases, parametrization)
    else:
        forward_tiling = tile(outer, groups, inner, None, 2048, None)
        backward_tiling = tile(outer, groups, inner, None, 1024, 6 * units if gated else programs)
        if precise and backward_tiling.constants["ROWS"] > 1:
            warps[1] = 8
    sums = backward_tiling.splits * (groups * inner if by_column else groups)  # of each base
    sums_of_group = sums // groups
    constants, options = backward_tiling.constants | {"EARLY": early}, {"num_warps": warps[1]}
    # columns that a thread loads with one instruction, of which it keeps one sum
    constants["PER_SUM"] = 1 if by_column else min(16 // dtype.itemsize, backward_tiling.constants["COLUMNS"])
    return _Launches(
        forward=_Launch(
            kernels["forward"],
            device,
            forward_tiling.programs,
            forward_tiling.sizes,
            forward_tiling.constants,
            {"num_warps": warps[0]},
        ),
        backward=_Launch(
            kernels["backward"],
            device,
            backward_tiling.programs,
            (*backward_tiling.sizes, sums),
            constants,
            options | limits,
        ),
        reduce=_Launch(
            kernels["reduce"],
            device,
            groups,
            (sums_of_group, backward_tiling.splits, inner, groups * inner, sums),
            {"BLOCK": min(1024, _power_of_two(sums_of_group)), "BY_COLUMN": by_column, "EARLY": early},
            {"num_warps": 4} | ({"launch_pdl": True} if early else {}),
        ),
        sums=len(bases) * sums,
    )


class Tiling(NamedTuple):
    """Describe how a launch divides a tensor into tiles; see :mod:`hullo.kernels.codegen` for the terms."""

    programs: int
    splits: int
    sizes: tuple[int, ...]
    constants: dict[str, Any]

    @property
    def elements_per_program(self) -> int:
        return int(self.sizes[-3] // self.splits * self.constants["ROWS"] * self.constants["COLUMNS"])


def tile(
    outer: int, groups: int, inner: int, by_column: int | None, size: int, programs: int | None, stages: int = 1
) -> Tiling:
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
        "FLAT": outer <= rows,
        "SINGLE": lanes == rows == 1 and outer == 1 and span % columns != 0,
        "BIG": outer * width + size >= 2**31,
        "STAGES": stages,
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
    bases: tuple[Base, ...],
    parametrization: BuiltInParametrization,
    dtype: torch.dtype,
    gated: bool = False,
    order: int = 0,
) -> dict[str, Any]:
    """Return the kernels of a set of bases: see :func:`hullo.kernels.codegen.kernel_source`."""
    names = ",".join(base.name + "'" * order for base in bases)
    label = f"{'gated ' * gated}{parametrization.name}({names}) on {dtype}"
    if shares_terms(bases, dtype, gated, order):
        text = kernel_source(bases, parametrization, gated, order, kernel_parts(bases))
        shared = device_math.SHARED_TERMS if dtype == torch.bfloat16 else device_math.SHARED_TERMS_FLOAT16
        return build(text, label, dtype, **shared)
    return build(kernel_source(bases, parametrization, gated, order), label, dtype)


@functools.cache
def kernels_by_table(bases: tuple[Base, ...], parametrization: BuiltInParametrization) -> dict[str, Any]:
    """Return the kernel `backward` for bfloat16 with slopes from a table: see :mod:`hullo.kernels.slope_table`."""
    label = f"{parametrization.name}({','.join(base.name for base in bases)}) by table"
    table = build(slope_table.source(bases), f"the table of {label}", torch.float32, **slope_table.WORDS)
    known = {name: table[name] for name in ("make_table", "slope_by_table")}
    text = kernel_source(bases, parametrization, changes=kernel_parts(bases, by_table=True))
    return {"backward": build(text, label, torch.bfloat16, **device_math.SHARED_TERMS, **known)["backward"]}


def may_have_table(bases: tuple[Base, ...], dtype: torch.dtype, gated: bool, order: int) -> bool:
    """Return whether a table can hold the slopes, and saves time."""
    is_measured = dtype == torch.bfloat16 and len(bases) <= slope_table.MOST_BASES
    return is_measured and shares_terms(bases, dtype, gated, order) and all(map(slope_table.fits, bases))


def shares_terms(bases: tuple[Base, ...], dtype: torch.dtype, gated: bool, order: int) -> bool:
    """Return whether the kernels compute with terms that bases share: see :mod:`hullo.kernels.linear_terms`."""
    return len(bases) > 3 and dtype in (torch.bfloat16, torch.float16) and not gated and order == 0


def build(text: str, label: str, dtype: torch.dtype, **known: Any) -> dict[str, Any]:
    """Return the kernels of a source, compiled in a scope with the functions of device_math and the given names."""
    name = f"<hullo kernels for {label}>"
    linecache.cache[name] = (
        len(text),
        None,
        text.splitlines(keepends=True),
        name,
    )  # Triton reads its functions' source
    scope: dict[str, Any] = {
        "__name__": name,
        "tl": tl,
        "triton": triton,
        **_words(dtype),
        **known,
    }
    exec(compile(text, name, "exec"), scope)  # noqa: S102  (the text is our own)
    return scope


def _words(dtype: torch.dtype) -> dict[str, Any]:
    if dtype == torch.float32:
        return device_math.PRECISE
    if dtype == torch.bfloat16 and not INTERPRETED and torch.version.cuda is not None:
        return device_math.BFLOAT16
    return device_math.FLOAT16
