# SPDX-License-Identifier: Apache-2.0
"""What reducing stores do to each element (PTX ISA 9.7.9.25.5)."""

from __future__ import annotations

import numpy as np

from ..errors import IllegalInstruction
from .numerics import formats, single
from .numerics.formats import F64

_INTEGERS = {"u8": "u1", "u16": "u2", "u32": "u4", "s32": "i4", "u64": "u8", "s64": "i8",
             "b32": "u4", "b64": "u8"}  # fmt: skip
_BITWISE = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


def combine(operation: str, dtype: str, old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Bytes of any shape; rounding to nearest even, NaN as the ISA's min and max treat it."""
    shape = old.shape
    a, b = (np.ascontiguousarray(x).ravel() for x in (old, new))
    if dtype in _INTEGERS:
        kind = _INTEGERS[dtype]
        result = _integer(operation, a.view(kind), b.view(kind))
    elif operation in _BITWISE:
        kind = f"u{formats.FORMATS[dtype].bits // 8}"
        result = _BITWISE[operation](a.view(kind), b.view(kind))
    else:
        result = _floating(operation, dtype, a, b)
    return np.ascontiguousarray(result).view(np.uint8).reshape(shape)


def _integer(operation: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if operation == "add":
        return a + b
    if operation in ("min", "max"):
        return np.minimum(a, b) if operation == "min" else np.maximum(a, b)
    if operation == "inc":
        return np.where(a >= b, a.dtype.type(0), a + a.dtype.type(1))
    if operation == "dec":
        return np.where((a == 0) | (a > b), b, a - a.dtype.type(1))
    return _BITWISE[operation](a, b)


def _floating(operation: str, dtype: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    base = dtype.removesuffix("_ftz")
    form = formats.FORMATS[base]
    x, y = (
        formats.decode(a.view(f"u{form.bits // 8}"), form),
        formats.decode(b.view(f"u{form.bits // 8}"), form),
    )
    if operation == "add":
        if form is formats.DOUBLE:
            return formats.encode(x + y, form)
        return formats.to_format(formats.odd_sum(x, y), form)
    if operation in ("min", "max"):
        pick = single.minimum if operation == "min" else single.maximum
        result = pick(x.astype(np.float32), y.astype(np.float32)).astype(F64)
        return formats.encode(result, form)
    raise IllegalInstruction(f"reduction .{operation} of {dtype}")
