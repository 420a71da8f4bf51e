"""A table of a hull's slope in shared memory, for backward kernels in bfloat16 that compute more than memory lets them.

Every program computes the slope at 8,192 numbers, in float32, and then looks slopes up. The place of a number is its
float16, cut off after the 7 bits of mantissa that a bfloat16 has. From 2^-14 to 65504 there is a place for every
bfloat16; smaller numbers share places that are 2^-21 apart, and larger ones share that of 65536, so that a slope must
not change beyond.
"""

# mypy: ignore-errors
from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from hullo.bases import Base
from hullo.kernels.codegen import fill, formulas
from hullo.kernels.device_math import HARDWARE, clamp

TILE, WARPS, SHARE, REGISTERS = 8192, 16, 2, 64
"""The size of a tile, warps, programs per multiprocessor and registers per thread, as measured on an H200."""
LEAST_TILES = 6
"""Programs with fewer elements than so many tiles lose more time on a table than they gain from it."""
MOST_BASES = 6
"""Sets of up to so many bases were measured; the registers of larger ones spill."""
WIDTH = 16
"""Runs whose length is no multiple of this are loaded element by element, for which tiles are too large."""


@functools.cache
def fits(base: Base) -> bool:
    """Return whether a table has the slope of a base: it is constant beyond it, and changes little near zero."""
    near = torch.cat([torch.tensor([0.0, 1e-30, 1e-9]), torch.arange(1, 129) / 2**21]).double()
    far = torch.tensor([2.0**16, 1e5, 1e20, 3.3e38], dtype=torch.float64)
    sides = torch.stack([near.clamp_min(1e-30), -near]), torch.stack([far, -far])  # zero shares a negative place
    of_near, of_far = (base.derivative(x).diff().abs().max().item() for x in sides)
    return of_near < 2.0**-12 and of_far < 1e-9


def source(bases: tuple[Base, ...]) -> str:
    """Return the text of `make_table`, which returns the table's address, and `slope_by_table`."""
    c = ", ".join(f"c{i}" for i in range(len(bases)))
    values, slopes = formulas(bases)
    slope = " + ".join(f"c{i} * s{i}" for i in range(len(bases)))
    return fill(_SOURCE.replace("COEFFICIENTS", c), {"FORMULAS": [*values, *slopes, f"return {slope}"]})


_SOURCE = """
@triton.jit
def slope(x, COEFFICIENTS):
    $FORMULAS


@triton.jit
def make_table(COEFFICIENTS):
    table = allocate()
    if HARDWARE:
        for start in range(0, 32768, 2048):
            place = start + 4 * tl.arange(0, 512)
            write(table, place, slope(number_at(place), COEFFICIENTS))
        tl.debug_barrier()
    return table


@triton.jit
def slope_by_table(table, x, COEFFICIENTS):
    if HARDWARE:
        return read(table, place_of(x))
    return slope(number_at(place_of(x)), COEFFICIENTS)
"""


@triton.jit
def place_of(x):
    """Compute the place of numbers in the table, in bytes. Zero has that of the smallest negative number, since steps
    are zero there: therefore the smallest number is subtracted."""
    if not HARDWARE:
        bits = (x - 1.401298464324817e-45).to(tl.float16).to(tl.uint16, bitcast=True)
        return (bits >> 1).to(tl.int32) & 0x7FFC
    text: tl.constexpr = """{.reg .f32 a, b; .reg .b32 bits; add.f32 a, $2, 0f80000001; add.f32 b, $3, 0f80000001;
        cvt.rn.f16x2.f32 bits, b, a; shr.u32 bits, bits, 1; and.b32 bits, bits, 0x7ffc7ffc;
        and.b32 $0, bits, 0xffff; shr.u32 $1, bits, 16;}"""
    return tl.inline_asm_elementwise(text, "=r,=r,f,f", [x], dtype=tl.int32, is_pure=True, pack=2)


@triton.jit
def number_at(place):
    """Compute the number at a place, at most 65536; that at the first place stands for small positive ones."""
    number = (2 * place).to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)
    return tl.where(place == 0, 1e-30, clamp(number, -65536.0, 65536.0))


@triton.jit
def allocate():
    """Return the address of the table."""
    if not HARDWARE:
        return 0
    text: tl.constexpr = "{.shared .align 4 .b8 table[32768]; mov.u32 $0, table;}"
    return tl.inline_asm_elementwise(text, "=r", [], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def write(table, place, value):
    text: tl.constexpr = "st.shared.f32 [$1], $2; mov.u32 $0, 0;"
    tl.inline_asm_elementwise(text, "=r,r,f", [table + place, value], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def read(table, place):
    text: tl.constexpr = "ld.shared.f32 $0, [$1];"
    return tl.inline_asm_elementwise(text, "=f,r", [table + place], dtype=tl.float32, is_pure=False, pack=1)


WORDS = {
    "HARDWARE": HARDWARE,
    "allocate": allocate,
    "number_at": number_at,
    "place_of": place_of,
    "read": read,
    "write": write,
}
