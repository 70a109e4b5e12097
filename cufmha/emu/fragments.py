# SPDX-License-Identifier: Apache-2.0
"""How matrices lie in the registers of a warp (PTX ISA 9.7.14.5, 9.7.15.5.1).

Lane t = 4g + q. Registers are lists of arrays of 32 lanes. A register holds c = 4 / size
neighboring elements of a row.
"""

from __future__ import annotations

import numpy as np

_HALF, _FLOAT = np.dtype("float16"), np.dtype("float32")


def a_matrix(registers: list[np.ndarray], size: int) -> np.ndarray:
    """A of 16 rows: register 2·kh + h holds row g + 8h and columns from (4·kh + q)·c on."""
    c = 4 // size
    raw = np.stack(registers).view(f"u{size}").reshape(len(registers) // 2, 2, 8, 4, c)
    return raw.transpose(1, 2, 0, 3, 4).reshape(16, -1)


def b_matrix(registers: list[np.ndarray], size: int) -> np.ndarray:
    """B of 8 columns: register kh holds column g and rows from (4·kh + q)·c on."""
    c = 4 // size
    raw = np.stack(registers).view(f"u{size}").reshape(len(registers), 8, 4, c)
    return raw.transpose(0, 2, 3, 1).reshape(-1, 8)


def accumulator(registers: list[np.ndarray], kind: str) -> np.ndarray:
    """C or D of 16 rows as float32: register 4j + 2h + c (packed: 2j + h) holds row g + 8h and
    column 8j + 2q + c."""
    stacked = np.stack(registers)
    if kind == "f16":
        raw = stacked.view(_HALF).reshape(-1, 2, 8, 4, 2).astype(_FLOAT)
        return raw.transpose(1, 2, 0, 3, 4).reshape(16, -1)
    raw = stacked.view(_FLOAT).reshape(-1, 2, 2, 8, 4)
    return raw.transpose(1, 3, 0, 4, 2).reshape(16, -1)


def accumulator_registers(matrix: np.ndarray, kind: str) -> list[np.ndarray]:
    """The inverse: 16 rows of float32 -> registers."""
    parts = matrix.reshape(2, 8, -1, 4, 2)
    if kind == "f16":
        packed = np.ascontiguousarray(parts.transpose(2, 0, 1, 3, 4).astype(_HALF))
        return list(packed.view(np.uint32).reshape(-1, 32))
    return list(np.ascontiguousarray(parts.transpose(2, 0, 4, 1, 3)).reshape(-1, 32))
