"""The functions that a formula may call, in Triton.

Triton's interpreter supports all operations used here, so that the same source runs on a GPU and in tests on a CPU.
Values are float32; errors are a few units in the last place. Polynomials are near-minimax fits on the interval named
beside them.
"""

# mypy: ignore-errors
# ruff: noqa: N803 (constants are in capitals, in Triton)
from __future__ import annotations

import torch
import triton
import triton.language as tl

HARDWARE = tl.constexpr(not triton.knobs.runtime.interpret and torch.version.cuda is not None)
"""True where fast, approximate instructions of NVIDIA GPUs are available."""


@triton.jit
def widen(x):
    return _widen_by_pairs(x) if HARDWARE and x.dtype == tl.bfloat16 else x.to(tl.float32)


@triton.jit
def _widen_by_pairs(x):
    """Convert bfloat16 with one instruction per element; the compiler takes three for two."""
    text: tl.constexpr = "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;"
    return tl.inline_asm_elementwise(text, "=r,=r,r", [x], dtype=tl.float32, is_pure=True, pack=2)


@triton.jit
def load(pointers, inside, whole, SINGLE: tl.constexpr):
    """Load a tile. In a single run, all tiles but the last are whole: without a mask, they are loaded 16 bytes at once
    also where the length of the run is no multiple of 16."""
    if not SINGLE:
        return tl.load(pointers, mask=inside, other=0.0)
    if whole:  # noqa: SIM108
        x = tl.load(pointers)
    else:
        x = tl.load(pointers, mask=inside, other=0.0)
    return x


@triton.jit
def store(pointers, value, inside, whole, SINGLE: tl.constexpr):
    if SINGLE:
        if whole:
            tl.store(pointers, value)
        else:
            tl.store(pointers, value, mask=inside)
    else:
        tl.store(pointers, value, mask=inside)


@triton.jit
def add_up(x, count: tl.constexpr):
    """Add up `count` adjacent columns: those of one thread, so that fewer registers hold sums."""
    if count == 1:
        return x
    return tl.sum(tl.reshape(x, [x.shape[0], x.shape[1] // count, count]), axis=2)


@triton.jit
def where(condition, a, b):
    return tl.where(condition, a, b)


@triton.jit
def absolute(x):
    return tl.abs(x)


@triton.jit
def erf(x):
    return tl.erf(x)


@triton.jit
def sin(x):
    return tl.sin(x)


@triton.jit
def cos(x):
    return tl.cos(x)


@triton.jit
def sqrt(x):
    return tl.sqrt(x)


@triton.jit
def step(x):
    return tl.where(x > 0, 1.0, 0.0)


@triton.jit
def positive_part(x):
    return tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def minimum(x, most):
    return tl.minimum(x, most, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def clamp(x, low, high):
    return tl.maximum(minimum(x, high), low, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def square(x):
    return x * x


@triton.jit
def instruction(text: tl.constexpr, x):
    return tl.inline_asm_elementwise(text, "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def reciprocal(x):
    """Compute 1 / x to one unit in the last place; Triton's own division takes eight instructions for one."""
    if HARDWARE:
        return instruction("rcp.approx.ftz.f32 $0, $1;", x)
    return 1.0 / x


@triton.jit
def exp2(x):
    """Compute 2^x to two units in the last place; handling denormal results would double the instructions."""
    if HARDWARE:
        return instruction("ex2.approx.ftz.f32 $0, $1;", x)
    return tl.exp2(x)


@triton.jit
def exp(x):
    return exp2(1.4426950408889634 * x)


@triton.jit
def divide(a, b):
    """Compute a / b for |b| >= 1; a scale prevents underflow of the reciprocal of large numbers."""
    return (0.25 * a) * reciprocal(0.25 * b)


@triton.jit
def sigmoid(x):
    return reciprocal(1.0 + exp(-x))


@triton.jit
def normal_pdf(x):
    return exp2(-0.7213475204444817 * (x * x) - 1.3257480647361593)


@triton.jit
def normal_tail(x):
    """Compute exp(-x^2 / 2) times a polynomial in t = 1 / (1 + 0.3 |x|), to a relative error of 1.5e-7."""
    t = reciprocal(1.0 + 0.3 * tl.abs(x))
    p = 0.03567477866199849 * t - 0.15720310134854062
    p = p * t + 0.20635353761700867
    p = p * t - 0.05368367187791003
    p = p * t + 0.12856164046406915
    p = p * t + 0.09991348818754177
    p = p * t + 0.12075395661183527
    p = p * t + 0.11962929879506404
    return p * t * exp2(-0.7213475204444817 * (x * x))


@triton.jit
def normal_tail_by_logarithm(x):
    """Compute the tail for 16-bit types as 2 to a polynomial in |x|, to a relative error of 8e-5."""
    a = minimum(tl.abs(x), 9.2)
    p = -9.27431868506696e-07 * a + 3.8922132192025045e-05
    p = p * a - 0.0007067362161468566
    p = p * a + 0.007407966994363265
    p = p * a - 0.05117469846615447
    p = p * a - 0.4618361711240559
    p = p * a - 1.149709331931618
    p = p * a - 1.0001133815297567
    return exp2(p)


@triton.jit
def normal_tail_of_magnitude(m):
    """Compute the tail for bfloat16 and m >= 0: relative error below 2^-10.4 up to 7, then ever closer to zero."""
    p = -0.00015158089850405876 * m + 0.0037505366861881806
    p = p * m - 0.03929410377279811
    p = p * m - 0.4797720528955615
    p = p * m - 1.1397021227610877
    p = p * m - 1.0010191523176342
    return exp2(p)


@triton.jit
def logistic_tail(m):
    """Compute sigmoid(-m) = e / (1 + e) for bfloat16 and m >= 0, where e = exp(-m): relative error below 2^-11.7."""
    e = exp2(-1.4426950408889634 * m)
    p = 0.15224496263054527 * e - 0.5328574518139836
    p = p * e + 0.8658934727996143
    p = p * e - 0.9848349531295766
    p = p * e + 0.9997026459128436
    return e * p


@triton.jit
def magnitude(x):
    """Compute |x|, at most the largest finite bfloat16; tl.abs, which masks bits, takes an instruction more."""
    if not HARDWARE:
        return minimum(tl.abs(x), 3.3895313892515355e38)
    return instruction("{.reg .f32 size; abs.f32 size, $1; min.NaN.f32 $0, size, 0f7F7F0000;}", x)


@triton.jit
def normal_slope(m, k):
    """Compute k times the slope of m * tail(m) for bfloat16."""
    return k * (normal_tail_of_magnitude(m) - m * normal_pdf(m))


@triton.jit
def magnitude_for_float16(x):
    if not HARDWARE:
        return minimum(tl.abs(x), 65504.0)
    return instruction("{.reg .f32 size; abs.f32 size, $1; min.NaN.f32 $0, size, 0f477FE000;}", x)


@triton.jit
def normal_tail_for_float16(m):
    """Compute the tail for float16 and m >= 0: relative error below 2^-13.5 where m * tail(m) is a normal number."""
    p = -0.00032021169317886233 * m + 0.005824367515742779
    p = p * m - 0.04822748526930809
    p = p * m - 0.4641338288784027
    p = p * m - 1.1491702795028687
    p = p * m - 1.000120997428894
    return exp2(p)


@triton.jit
def normal_slope_for_float16(m, k):
    """Compute k times the slope of m * tail(m), to 2^-13 of tail(m) + m * pdf(m): the tail times a polynomial."""
    p = (-0.001130454009398818 * k) * m + 0.0163955669850111 * k
    p = p * m - 0.10123247653245926 * k
    p = p * m - 0.6420443654060364 * k
    p = p * m - 0.7972435355186462 * k
    return normal_tail_for_float16(m) * (p * m + 1.000089168548584 * k)


@triton.jit
def logistic_tail_for_float16(m):
    return reciprocal(1.0 + exp2(1.4426950408889634 * m))


@triton.jit
def tanh_for_float16(x):
    """Compute tanh from exp(|x|), which the logistic tail needs, too; below 0.01 that is x itself."""
    e = exp2(1.4426950408889634 * magnitude_for_float16(x))
    far = 1.0 - 2.0 * reciprocal(e * e + 1.0)
    return tl.where(tl.abs(x) < 0.01, x, tl.where(x < 0, -far, far))


@triton.jit
def below(x, bound):
    return tl.where(x < bound, 1.0, 0.0)


@triton.jit
def select_by_sign(x, positive, negative, odd):
    """Compute positive + odd where x > 0, and negative - odd elsewhere."""
    if not HARDWARE:
        return tl.where(x > 0, positive + odd, negative - odd)
    text: tl.constexpr = """{.reg .pred p; setp.gt.f32 p, $1, 0f00000000;
        sub.f32 $0, $3, $4; @p add.f32 $0, $2, $4;}"""
    return tl.inline_asm_elementwise(
        text, "=&f,f,f,f,f", [x, positive, negative, odd], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def tanh(x):
    size = tl.abs(x)
    z = x * x  # below: (tanh(x) / x - 1) / x^2 for |x| < 0.6
    p = -0.006276390154027499 * z + 0.02111621603340401
    p = p * z - 0.053875138753713595
    p = p * z + 0.13332924012058586
    p = p * z - 0.33333330431496017
    e = exp(-2.0 * size)
    far = (1.0 - e) * reciprocal(1.0 + e)
    return tl.where(size < 0.6, x + x * z * p, tl.where(x < 0, -far, far))


@triton.jit
def tanh_by_exp(x):
    """Compute tanh for float16; below 0.01 that is x itself."""
    return tl.where(tl.abs(x) < 0.01, x, 1.0 - 2.0 * reciprocal(1.0 + exp(2.0 * x)))


@triton.jit
def tanh_by_hardware(x):
    """Compute tanh for bfloat16: relative error below 2^-10.9."""
    return instruction("tanh.approx.f32 $0, $1;", x)


@triton.jit
def expm1(x):
    # below: (expm1(x) / x - 1) / x for |x| < 0.5
    p = 0.00019962186051430045 * x + 0.0013982196861872357
    p = p * x + 0.008333182040885928
    p = p * x + 0.04166579095964892
    p = p * x + 0.1666666713968562
    p = p * x + 0.5000000121691622
    return tl.where(tl.abs(x) < 0.5, x + x * x * p, exp(x) - 1.0)


@triton.jit
def log1p(x):
    # log(1 + x) = 2 atanh(x / (2 + x)); below: (atanh(s) / s - 1) / s^2 for |s| <= 1/3
    s = x * reciprocal(2.0 + x)
    z = s * s
    p = 0.11619525343256523 * z + 0.1085165748503702
    p = p * z + 0.1429629170886251
    p = p * z + 0.19999850678093584
    p = p * z + 0.3333333366880732
    return tl.where(tl.abs(x + 0.25) <= 0.75, 2.0 * (s + s * z * p), tl.log(1.0 + x))


@triton.jit
def asinh(x):
    size = tl.abs(x)
    inner = size + divide(x * x, 1.0 + tl.sqrt(1.0 + x * x))
    value = tl.where(size > 1e8, tl.log(size) + 0.6931471805599453, log1p(inner))
    return tl.where(x < 0, -value, value)


@triton.jit
def atan(x):
    size = tl.abs(x)
    t = tl.where(size > 1, reciprocal(size), size)
    z = t * t  # below: (atan(t) / t - 1) / t^2 for 0 <= t <= 1
    p = -0.0024470312243626427 * z + 0.013750284309966155
    p = p * z - 0.036270174464537785
    p = p * z + 0.0628436093572774
    p = p * z - 0.08673170882298392
    p = p * z + 0.11037994286183468
    p = p * z - 0.14279110916415386
    p = p * z + 0.19999765998614497
    p = p * z - 0.3333333195079894
    value = t + t * z * p
    value = tl.where(size > 1, 1.5707963267948966 - value, value)
    return tl.where(x < 0, -value, value)


PRECISE = {
    "abs": absolute,
    "add_up": add_up,
    "asinh": asinh,
    "atan": atan,
    "clamp": clamp,
    "cos": cos,
    "erf": erf,
    "exp": exp,
    "expm1": expm1,
    "load": load,
    "log1p": log1p,
    "divide": divide,
    "minimum": minimum,
    "normal_pdf": normal_pdf,
    "normal_tail": normal_tail,
    "positive_part": positive_part,
    "sigmoid": sigmoid,
    "sin": sin,
    "sqrt": sqrt,
    "square": square,
    "step": step,
    "store": store,
    "tanh": tanh,
    "where": where,
    "widen": widen,
}
FLOAT16 = PRECISE | {"tanh": tanh_by_exp, "normal_tail": normal_tail_by_logarithm}
BFLOAT16 = FLOAT16 | {"tanh": tanh_by_hardware}
SHARED_TERMS = {
    "below": below,
    "logistic_tail": logistic_tail,
    "magnitude": magnitude,
    "normal_slope": normal_slope,
    "normal_tail_of_magnitude": normal_tail_of_magnitude,
    "select_by_sign": select_by_sign,
}
"""More for many bases in bfloat16: see :mod:`hullo.kernels.linear_terms`."""
SHARED_TERMS_FLOAT16 = SHARED_TERMS | {
    "logistic_tail": logistic_tail_for_float16,
    "magnitude": magnitude_for_float16,
    "normal_slope": normal_slope_for_float16,
    "normal_tail_of_magnitude": normal_tail_for_float16,
    "tanh": tanh_for_float16,
}
