# SPDX-License-Identifier: Apache-2.0
"""Binary floating formats: bits to float64, and float64 back under every rounding mode.

float64 holds every value of the narrower formats exactly. An operation is computed in float64
rounded to odd (`odd_sum`): at least two more bits than any target, with the last one standing for
all that was lost, so that the second rounding, to the target, is as good as a single one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

F64, F32, F16 = np.dtype("float64"), np.dtype("float32"), np.dtype("float16")
U64, U32, U16, U8 = (np.dtype(f"uint{w}") for w in (64, 32, 16, 8))


@dataclass(frozen=True)
class Format:
    """`precision` counts the hidden bit; the smallest normal number is 2^minimum.

    `infinite`: has infinities; else the largest finite value is followed by NaN alone.
    """

    name: str
    bits: int
    precision: int
    minimum: int
    largest: float
    nan: int
    infinite: bool = True

    @property
    def smallest_normal(self) -> float:
        return 2.0**self.minimum


BF16 = Format("bf16", 16, 8, -126, (2 - 2.0**-7) * 2.0**127, 0x7FFF)
HALF = Format("f16", 16, 11, -14, 65504.0, 0x7FFF)
SINGLE = Format("f32", 32, 24, -126, (2 - 2.0**-23) * 2.0**127, 0x7FFFFFFF)
DOUBLE = Format("f64", 64, 53, -1022, float(np.finfo(np.float64).max), 0x7FF8000000000000)
TF32 = Format("tf32", 32, 11, -126, (2 - 2.0**-10) * 2.0**127, 0x7FFFFFFF)
E4M3 = Format("e4m3", 8, 4, -6, 448.0, 0x7F, infinite=False)
E5M2 = Format("e5m2", 8, 3, -14, 57344.0, 0x7F)
FORMATS = {f.name: f for f in (BF16, HALF, SINGLE, DOUBLE, TF32, E4M3, E5M2)}


def _table(form: Format) -> np.ndarray:
    """Every value of an 8-bit format."""
    codes = np.arange(256)
    mantissa = form.precision - 1
    exponent = (codes & 0x7F) >> mantissa
    fraction = (codes & ((1 << mantissa) - 1)) / (1 << mantissa)
    values = np.where(
        exponent == 0,
        fraction * 2.0**form.minimum,
        (1 + fraction) * 2.0 ** (exponent - 1 + form.minimum),
    )
    if form.infinite:
        top = exponent == (1 << (7 - mantissa)) - 1
        values = np.where(top, np.where(fraction == 0, np.inf, np.nan), values)
    else:
        values = np.where((codes & 0x7F) == 0x7F, np.nan, values)
    return np.where(codes & 0x80, -values, values)


_TABLES = {"e4m3": _table(E4M3), "e5m2": _table(E5M2)}


def decode(bits: np.ndarray, form: Format) -> np.ndarray:
    """Bits (any dtype of the width) as float64."""
    if form.bits == 8:
        return _TABLES[form.name][bits.view(U8)]
    if form is BF16:
        return (bits.view(U16).astype(U32) << U32.type(16)).view(F32).astype(F64)
    kind: np.dtype = F64 if form.bits == 64 else F32 if form.bits == 32 else F16
    return bits.view(kind).astype(F64)


def quantize(x: np.ndarray, form: Format, mode: str) -> np.ndarray:
    """float64 rounded to the format's values, as float64; overflow by the mode; NaN stays.

    Modes: rn (ties to even), rna (ties away), rz, rm (down), rp (up).
    """
    _, exponent = np.frexp(x)
    scale = np.maximum(exponent - form.precision, form.minimum - form.precision + 1)
    q = np.ldexp(x, -scale)
    if mode == "rn":
        q = np.rint(q)
    elif mode == "rz":
        q = np.trunc(q)
    elif mode == "rm":
        q = np.floor(q)
    elif mode == "rp":
        q = np.ceil(q)
    else:
        whole = np.floor(np.abs(q))  # adding 1/2 could itself round
        q = np.copysign(whole + (np.abs(q) - whole >= 0.5), q)
    rounded = np.copysign(np.ldexp(q, scale), x)
    over = np.abs(rounded) > form.largest
    if over.any():
        toward_infinity = (
            np.ones(x.shape, bool)
            if mode in ("rn", "rna")
            else (x > 0 if mode == "rp" else x < 0 if mode == "rm" else np.zeros(x.shape, bool))
        )
        limit = np.where(toward_infinity | np.isinf(x), np.inf, form.largest)
        rounded = np.where(over, np.copysign(limit, x), rounded)
    return np.where(np.isfinite(x), rounded, x)


def encode(x: np.ndarray, form: Format) -> np.ndarray:
    """float64 values that the format holds exactly -> bits; NaN becomes the canonical one."""
    if form.bits == 8:
        return _encode8(x, form)
    if form is DOUBLE:
        bits = x.view(U64)
    elif form is HALF:
        bits = x.astype(F16).view(U16)
    elif form is BF16:
        bits = (x.astype(F32).view(U32) >> U32.type(16)).astype(U16)
    else:
        bits = x.astype(F32).view(U32)
    return np.where(np.isnan(x), bits.dtype.type(form.nan), bits)


def _encode8(x: np.ndarray, form: Format) -> np.ndarray:
    mantissa = form.precision - 1
    size = np.abs(x)
    _, exponent = np.frexp(size)
    exponent = np.where(size == 0, form.minimum, exponent)
    biased = np.maximum(exponent - form.minimum, 0)
    fraction = np.where(
        biased > 0,
        np.ldexp(size, mantissa + 1 - exponent) - (1 << mantissa),
        np.ldexp(size, mantissa - form.minimum),
    )
    finite = np.isfinite(x)
    code = np.where(finite, biased * (1 << mantissa) + np.where(finite, fraction, 0), 0)
    code = np.where(np.isinf(x), ((1 << (7 - mantissa)) - 1) << mantissa, code)
    code = code.astype(U8) | (np.signbit(x).astype(U8) << U8.type(7))
    return np.where(np.isnan(x), U8.type(form.nan), code)


def to_format(x: np.ndarray, form: Format, mode: str = "rn") -> np.ndarray:
    """float64 -> bits of the format under a rounding mode."""
    if mode == "rn" and form in (SINGLE, HALF):
        return encode(x, form)
    if form is DOUBLE:
        return encode(x, form)
    return encode(quantize(x, form, mode), form)


def odd_sum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a + b in float64, rounded to odd: exact, or the neighbor whose last bit is 1."""
    s = a + b
    t = s - a
    error = (a - (s - t)) + (b - t)
    inexact = (error != 0) & np.isfinite(s)
    if not inexact.any():
        return s
    bits = s.view(np.int64)
    step = np.where((error > 0) == (s > 0), 1, -1)
    fix = inexact & ((bits & 1) == 0)
    return np.where(fix, bits + step, bits).view(F64)


def flush(x: np.ndarray, form: Format) -> np.ndarray:
    """Subnormals to zero of the same sign (float64 values)."""
    return np.where(np.abs(x) < form.smallest_normal, np.copysign(0.0, x), x)


def saturate(x: np.ndarray) -> np.ndarray:
    """To [0, 1]; NaN and negative zero to 0."""
    return np.where(x > 0, np.minimum(x, 1.0), 0.0)


def relu(x: np.ndarray) -> np.ndarray:
    """Negative to +0; NaN stays."""
    return np.where((x > 0) | np.isnan(x), x, 0.0)


def halves(x: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """(low, high) of packed pairs, each `bits` wide."""
    part = np.dtype(f"uint{bits}")
    both = np.ascontiguousarray(x).view(part)
    return both[0::2], both[1::2]


def packed(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The inverse of `halves`."""
    both = np.empty(2 * len(low), low.dtype)
    both[0::2], both[1::2] = low, high
    return both.view(f"uint{2 * low.dtype.itemsize * 8}")
