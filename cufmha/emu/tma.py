# SPDX-License-Identifier: Apache-2.0
"""The box engine of TMA: which bytes of global memory belong to which bytes of shared memory.

Element (i0, i1, …) of a box at coordinates (c0, c1, …) is in bounds iff 0 <= c + i·step < dim in
every dimension; its address is base + Σ (c + i·step)·stride, modulo 2^64. In shared memory the box
is dense with i0 fastest, and the swizzle permutes 16-byte chunks by absolute address.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ..errors import UnsupportedInstruction
from ..tma import TensorMapSpec

# swizzle -> (mask on the address, how far the source bits lie above)
_SWIZZLE_BITS = {
    "none": (0, 0),
    "32B": (0x10, 3),
    "64B": (0x30, 3),
    "128B": (0x70, 3),
    "128B_atom_32B": (0x60, 2),
}


def swizzle(offsets: np.ndarray, mode: str) -> np.ndarray:
    """Shared byte offsets after the XOR of a swizzle mode."""
    if mode not in _SWIZZLE_BITS:
        raise UnsupportedInstruction(f"swizzle mode {mode}")
    mask, shift = _SWIZZLE_BITS[mode]
    return offsets ^ ((offsets >> shift) & mask) if mask else offsets


@dataclass(frozen=True)
class Box:
    """A box placed in a tensor, row by row of its inner dimension.

    `rows`: global address of each row's first element, as if in bounds (uint64, modulo 2^64);
    `inside`: rows whose outer coordinates are in bounds; `first`, `last`: the inner elements
    [first, last) that are in bounds, the same for every row.
    """

    rows: np.ndarray
    inside: np.ndarray
    first: int
    last: int
    row_bytes: int
    itemsize: int


def place(spec: TensorMapSpec, address: int, coordinates: Sequence[int]) -> Box:
    """Where a box at these (signed) coordinates lies."""
    if spec.interleave != "none":
        raise UnsupportedInstruction(f"tensor maps with interleave {spec.interleave}")
    counts = spec.box_elements
    rows = np.array([address % 2**64], np.uint64)
    inside = np.ones(1, bool)
    for axis in range(1, spec.rank):
        at = coordinates[axis] + np.arange(counts[axis], dtype=np.int64) * spec.steps[axis]
        good = (at >= 0) & (at < spec.dims[axis])
        step = np.uint64(spec.strides[axis - 1])
        moved = at.view(np.uint64) * step
        rows = (moved[:, None] + rows[None, :]).ravel()
        inside = (good[:, None] & inside[None, :]).ravel()
    start = coordinates[0]
    rows = rows + np.uint64((start * spec.itemsize) % 2**64)
    first = min(max(-start, 0), counts[0])
    last = max(min(counts[0], spec.dims[0] - start), first)
    return Box(rows, inside, first, last, counts[0] * spec.itemsize, spec.itemsize)


def filler(spec: TensorMapSpec) -> int:
    """The bits of an out-of-bounds element; NaN is 0x7ff7 in every 16 bits, whatever the type."""
    if spec.oob_fill == "zeros":
        return 0
    return int("7ff7" * (spec.itemsize // 2), 16)


@lru_cache(maxsize=64)
def _offsets(rows: int, row_bytes: int, pitch: int, phase: int, mode: str) -> np.ndarray:
    """Shared offset of every 16-byte chunk of a box, relative to its start at `phase` mod 1024."""
    chunks = np.arange(0, row_bytes, 16, dtype=np.int64)
    dense = (np.arange(rows, dtype=np.int64)[:, None] * pitch + chunks).ravel() + phase
    return swizzle(dense, mode) - phase


def shared_chunks(spec: TensorMapSpec, offset: int) -> np.ndarray:
    """Shared byte offsets of the box's 16-byte chunks in box order, for a box at `offset`."""
    row_bytes = spec.box[0] * spec.itemsize
    rows = spec.box_bytes // row_bytes
    return _offsets(rows, row_bytes, spec.row_pitch, offset % 1024, spec.swizzle) + offset
