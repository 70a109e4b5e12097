# SPDX-License-Identifier: Apache-2.0
"""float64 arithmetic in all four rounding modes: NumPy's result, moved by the sign of its error."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np

F64 = np.dtype("float64")
NAN = np.array(0xFFF8000000000000, np.uint64).view(F64)
_QUIET = np.uint64(0x0008000000000000)


def canonical(x: np.ndarray, *operands: np.ndarray) -> np.ndarray:
    """NaN results: the first NaN operand, made quiet; where there is none, a fixed negative one."""
    nan = np.isnan(x)
    if not nan.any():
        return x
    out = np.where(nan, NAN, x)
    for operand in reversed(operands):
        quiet = (operand.view(np.uint64) | _QUIET).view(F64)
        out = np.where(nan & np.isnan(operand), quiet, out)
    return out


def directed(nearest: np.ndarray, exact: Callable[[int], Fraction | None], mode: str) -> np.ndarray:
    """`nearest` moved so that it lies on the right side of the exact value, lane by lane."""
    out = nearest.copy()
    for lane in range(len(out)):
        value = exact(lane)
        if value is not None:
            out[lane] = round_fraction(value, mode, float(out[lane]))
    return out


def round_fraction(value: Fraction, mode: str, zero: float = 0.0) -> float:
    """A fraction to float64; `zero` gives the sign where the result is an exact zero."""
    if value == 0:
        return zero
    try:
        near = float(value)  # Python rounds to nearest, ties to even, subnormals included
    except OverflowError:
        near = float("inf") if value > 0 else float("-inf")
    if mode == "rn":
        return near
    if np.isinf(near):
        up = near > 0
        near_exact = None
    else:
        near_exact = Fraction(near)
        up = near_exact > value
        if near_exact == value:
            return near
    if near_exact is None:
        too_large = True
        above = up
    else:
        above = near_exact > value
        too_large = abs(near_exact) > abs(value)
    if mode == "rz" and too_large:
        near = float(np.nextafter(near, 0.0))
    elif mode == "rm" and above:
        near = float(np.nextafter(near, -np.inf))
    elif mode == "rp" and not above:
        near = float(np.nextafter(near, np.inf))
    if near == 0:
        return -0.0 if value < 0 else 0.0
    return near


def _fractions(*operands: np.ndarray) -> Callable[[int], list[Fraction] | None]:
    def at(lane: int) -> list[Fraction] | None:
        values = [float(x[lane]) for x in operands]
        if not all(np.isfinite(v) for v in values):
            return None
        return [Fraction(v) for v in values]

    return at


def binary(form: str, mode: str) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    plain = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}[form]
    if mode == "rn":
        return lambda a, b: canonical(plain(a, b), a, b)
    exact = {
        "add": lambda a, b: a + b,
        "sub": lambda a, b: a - b,
        "mul": lambda a, b: a * b,
        "div": lambda a, b: a / b if b else None,
    }[form]

    def run(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        at = _fractions(a, b)

        def value(lane: int) -> Fraction | None:
            both = at(lane)
            return None if both is None else exact(*both)

        result = directed(plain(a, b), value, mode)
        if mode == "rm" and form in ("add", "sub"):
            result = _negative_zero_sums(result, a, b if form == "add" else -b)
        return canonical(result, a, b)

    return run


def _negative_zero_sums(result: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Rounding down, x + (−x) is −0."""
    cancelled = (result == 0) & ~((a == 0) & (b == 0) & ~np.signbit(a) & ~np.signbit(b))
    return np.where(cancelled, -0.0, result)


def fma(mode: str) -> Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]:
    def run(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        at = _fractions(a, b, c)
        sign = a * b
        result = np.where(np.isinf(sign) & np.isfinite(a) & np.isfinite(b), c, sign + c)
        for lane in range(len(result)):
            three = at(lane)
            if three is None:
                continue
            x, y, z = three
            total = x * y + z
            if total:
                result[lane] = round_fraction(total, mode)
                continue
            product = np.copysign(0.0, a[lane]) * np.copysign(1.0, b[lane])
            same = np.signbit(product) == np.signbit(c[lane])
            if x * y == 0 and z == 0 and same:
                result[lane] = product
            else:
                result[lane] = -0.0 if mode == "rm" else 0.0
        return canonical(result, a, b, c)

    return run


def reciprocal(mode: str) -> Callable[[np.ndarray], np.ndarray]:
    divide = binary("div", mode)
    return lambda a: divide(np.ones(a.shape), a)


def square_root(mode: str) -> Callable[[np.ndarray], np.ndarray]:
    def run(a: np.ndarray) -> np.ndarray:
        result = np.sqrt(a)
        if mode == "rn":
            return canonical(result, a)
        out = result.copy()
        for lane, value in enumerate(result):
            if not np.isfinite(value) or value == 0:
                continue
            square, wanted = Fraction(float(value)) ** 2, Fraction(float(a[lane]))
            if square > wanted and mode in ("rz", "rm"):
                out[lane] = np.nextafter(value, 0.0)
            elif square < wanted and mode == "rp":
                out[lane] = np.nextafter(value, np.inf)
        return canonical(out, a)

    return run
