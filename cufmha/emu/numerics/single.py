# SPDX-License-Identifier: Apache-2.0
"""float32 arithmetic: the common forms in one or a few NumPy calls, every other one exactly.

NaN results are 0x7fffffff, as the hardware gives them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ..types import some
from . import formats
from .formats import F32, F64, SINGLE, U32, U64

NAN = np.array(0x7FFFFFFF, np.uint32).view(F32)
_INF = float("inf")
_SMALLEST = F32.type(SINGLE.smallest_normal)
_HALF_WAY, _BELOW = U64.type(0x10000000), U64.type(0x1FFFFFFF)


def canonical(x: np.ndarray) -> np.ndarray:
    """NaN to its one pattern. The squared sum is finite unless there is something to look at."""
    if x.dot(x) < _INF:
        return x
    nan = np.isnan(x)
    return np.where(nan, NAN, x) if some(nan) else x


def add(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return canonical(a + b)


def subtract(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return canonical(a - b)


def multiply(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return canonical(a * b)


def fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a·b is exact in float64; the sum is rounded twice, which shows only at half-way patterns."""
    product = a.astype(F64)
    product *= b
    wide = product + c
    close = some((wide.view(U64) & _BELOW) == _HALF_WAY)
    if close or some(np.abs(wide) < _SMALLEST):
        wide = formats.odd_sum(product, c.astype(F64))
    return canonical(wide.astype(F32))


def flush(x: np.ndarray) -> np.ndarray:
    """Subnormals to zero of the same sign."""
    tiny = np.abs(x) < _SMALLEST
    return np.where(tiny, np.copysign(F32.type(0), x), x) if some(tiny) else x


def maximum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """IEEE maximumNumber: NaN only if both are; +0 above −0."""
    return _extreme(a, b, np.fmax, np.bitwise_and)


def minimum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return _extreme(a, b, np.fmin, np.bitwise_or)


def _extreme(a: np.ndarray, b: np.ndarray, pick: np.ufunc, zeros: np.ufunc) -> np.ndarray:
    r = pick(a, b)
    if some(r) == len(r):  # no zero (NaN counts as true): signs need no care
        return canonical(r)
    both = (a == 0) & (b == 0)
    if some(both):
        signed = zeros(a.view(U32), b.view(U32)).view(F32)
        r = np.where(both, signed, r)
    return canonical(r)


def rounded(form: str, mode: str, *, unbounded: bool = False) -> Callable[..., np.ndarray]:
    """add, sub, mul, fma, div, rcp or sqrt with a rounding mode, as float32.

    `unbounded`: rounded to 24 bits as if exponents had no lower end, then flushed.
    """
    free = replace(SINGLE, minimum=-900)

    def finish(x: np.ndarray) -> np.ndarray:
        if unbounded:
            x = formats.flush(formats.quantize(x, free, mode), SINGLE)
        return formats.to_format(x, SINGLE, mode).view(F32)

    def wide(x: np.ndarray) -> np.ndarray:
        return x.astype(F64)

    def total(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        s = formats.odd_sum(x, y)
        if mode == "rm":
            cancelled = (s == 0) & ~((x == 0) & (y == 0) & ~np.signbit(x) & ~np.signbit(y))
            s = np.where(cancelled, -0.0, s)
        return s

    if form == "add":
        return lambda a, b: finish(total(wide(a), wide(b)))
    if form == "sub":
        return lambda a, b: finish(total(wide(a), -wide(b)))
    if form == "mul":
        return lambda a, b: finish(wide(a) * wide(b))
    if form == "fma":
        return lambda a, b, c: finish(total(wide(a) * wide(b), wide(c)))
    # A quotient or root of 24-bit numbers that is no number of 25 bits differs from all of them by
    # more than float64 loses: rounding it twice is as good as once, in every mode.
    if form == "div":
        return lambda a, b: finish(wide(a) / wide(b))
    if form == "rcp":
        return lambda a: finish(1 / wide(a))
    return lambda a: finish(np.sqrt(wide(a)))
