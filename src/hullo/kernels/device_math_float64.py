"""The functions that a formula may call, in Triton and float64: errors are a few units in the last place.

They use operations that Triton's interpreter supports as well; see :mod:`hullo.kernels.device_math`.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

from hullo.kernels import device_math


@triton.jit
def widen(x):
    return x.to(tl.float64)


@triton.jit
def step(x):
    return (x > 0).to(tl.float64)


@triton.jit
def exp(x):
    return tl.exp(x)


@triton.jit
def divide(a, b):
    return a / b


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def normal_pdf(x):
    return 0.3989422804014327 * tl.exp(-0.5 * x * x)


@triton.jit
def normal_tail(x):
    """Compute exp(-x^2 / 2) times a polynomial in t = 1 / (1 + 0.3 |x|), fitted for |x| up to 163."""
    t = 1.0 / (1.0 + 0.3 * tl.abs(x))
    p = 0.0021349910823693706 * t - 0.01958557275040627
    p = p * t + 0.07312889814500854
    p = p * t - 0.11830226066711295
    p = p * t - 0.05429683127635767
    p = p * t + 0.6917589944132264
    p = p * t - 1.6675462757668387
    p = p * t + 2.3600523379930105
    p = p * t - 2.2559474766009466
    p = p * t + 1.5469626968997
    p = p * t - 0.8140905478174311
    p = p * t + 0.3440696387798882
    p = p * t - 0.09860971986338628
    p = p * t + 0.022195823787912516
    p = p * t - 0.019262341178405255
    p = p * t - 0.01312663901501807
    p = p * t + 0.0003404717333398108
    p = p * t + 0.026516933803578488
    p = p * t + 0.057961890796167086
    p = p * t + 0.0873683771680097
    p = p * t + 0.10891124208606935
    p = p * t + 0.1196826841272352
    p = p * t + 0.11968268412038775
    return p * t * tl.exp(-0.5 * x * x)


@triton.jit
def expm1(x):
    """Compute (u - 1) x / log(u) with u = exp(x), in which the rounding errors of u cancel."""
    u = tl.exp(x)
    is_near = tl.abs(x) < 1
    v = tl.where(is_near & (u != 1), u, 2.0)
    return tl.where(is_near, tl.where(u == 1, x, (v - 1.0) * x / tl.log(v)), u - 1.0)


@triton.jit
def log1p(x):
    """Compute log(u) x / (u - 1) with u = 1 + x, in which the rounding errors of u cancel."""
    u = 1.0 + x
    is_near = tl.abs(x) < 1
    v = tl.where(is_near & (u != 1), u, 2.0)
    return tl.where(is_near, tl.where(u == 1, x, tl.log(v) * x / (v - 1.0)), tl.log(u))


@triton.jit
def tanh(x):
    e = expm1(-2.0 * tl.abs(x))
    size = -e / (e + 2.0)
    return tl.where(x < 0, -size, size)


@triton.jit
def asinh(x):
    size = tl.abs(x)
    inner = size + x * x / (1.0 + tl.sqrt(1.0 + x * x))
    value = tl.where(size > 1e150, tl.log(size) + 0.6931471805599453, log1p(inner))
    return tl.where(x < 0, -value, value)


@triton.jit
def atan(x):
    """Reduce to |t| < tan(pi / 8): atan(s) = pi / 4 + atan((s - 1) / (s + 1)) and atan(s) = pi / 2 - atan(1 / s)."""
    size = tl.abs(x)
    s = tl.where(size > 1, 1.0 / size, size)
    is_large = s > 0.41421356237309503
    t = tl.where(is_large, (s - 1.0) / (s + 1.0), s)
    z = t * t  # below: (atan(t) / t - 1) / t^2
    p = 0.01628357235648259 * z - 0.0345685906686069
    p = p * z + 0.045515165635903104
    p = p * z - 0.052304374642516874
    p = p * z + 0.05878926715756726
    p = p * z - 0.066664246872465
    p = p * z + 0.07692296363979952
    p = p * z - 0.09090908753118594
    p = p * z + 0.11111111105147764
    p = p * z - 0.14285714285659748
    p = p * z + 0.19999999999999804
    p = p * z - 0.3333333333333333
    value = t + t * z * p
    value = tl.where(is_large, 0.7853981633974483 + value, value)
    value = tl.where(size > 1, 1.5707963267948966 - value, value)
    return tl.where(x < 0, -value, value)


FLOAT64 = device_math.PRECISE | {
    "asinh": asinh,
    "atan": atan,
    "divide": divide,
    "exp": exp,
    "expm1": expm1,
    "log1p": log1p,
    "normal_pdf": normal_pdf,
    "normal_tail": normal_tail,
    "sigmoid": sigmoid,
    "step": step,
    "tanh": tanh,
    "widen": widen,
}
