# SPDX-License-Identifier: Apache-2.0
"""Matrix products of the tensor units: operand formats to float32, and the sum.

Products of two operands are exact in float32 for every format here. Their sum is taken in float32
in no promised order, as on hardware, which aligns the terms and cuts: for k terms and the addend c
both stay within (k + 1)·2^-22 · (Σ|a·b| + |c|) of the exact value. Small integers come out exact.
"""

from __future__ import annotations

import numpy as np

from .numerics import formats

F32 = np.dtype("float32")
_E4M3 = formats.decode(np.arange(256, dtype=np.uint8), formats.E4M3).astype(F32)
_E5M2 = formats.decode(np.arange(256, dtype=np.uint8), formats.E5M2).astype(F32)
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], F32)

SIZES = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "e2m3": 1, "e3m2": 1, "e2m1": 1,
         "s8": 1, "u8": 1}  # fmt: skip
"""Bytes of one element in memory; narrower floats lie in one byte each."""


def _narrow_table(mantissa: int, exponent: int, bias: int) -> np.ndarray:
    """Values of a 6-bit or 4-bit float by its byte, upper bits ignored."""
    codes = np.arange(1 << (mantissa + exponent))
    e, m = codes >> mantissa, (codes & ((1 << mantissa) - 1)) / (1 << mantissa)
    values = np.where(e == 0, m * 2.0 ** (1 - bias), (1 + m) * 2.0 ** (e - bias))
    signed = np.concatenate([values, -values])
    return np.tile(signed, 256 // len(signed)).astype(F32)


_TABLES = {
    "e4m3": _E4M3,
    "e5m2": _E5M2,
    "e2m3": _narrow_table(3, 2, 1),
    "e3m2": _narrow_table(2, 3, 3),
    "e2m1": _narrow_table(1, 2, 1),
    "s8": np.arange(256, dtype=np.uint8).view(np.int8).astype(F32),
    "u8": np.arange(256, dtype=F32),
}


def decode(raw: np.ndarray, kind: str) -> np.ndarray:
    """Unsigned elements of the format's size -> float32."""
    if kind == "bf16":
        return (raw.astype(np.uint32) << np.uint32(16)).view(F32)
    if kind == "f16":
        return raw.view(np.float16).astype(F32)
    if kind == "tf32":
        return (raw & np.uint32(0xFFFFE000)).view(F32)
    return _TABLES[kind][raw]


def multiply(a: np.ndarray, b: np.ndarray, c: np.ndarray | None, accumulator: str) -> np.ndarray:
    """a (m, k) times b (k, n), plus c where there is one; float32, or values f16 can hold."""
    product = a @ b
    if c is not None:
        product += c
    if accumulator == "f16":
        return product.astype(np.float16).astype(F32)
    return product
