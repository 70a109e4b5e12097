# SPDX-License-Identifier: Apache-2.0
"""Shared, global and local memory: bytes, bounds, and the shadow that tells who touched them.

Address windows of the 64-bit generic space: global memory is at its real host addresses; shared
memory at SHARED | rank << 24 | offset; a lane's local memory at LOCAL | offset; kernel parameters
at PARAM | offset. The low 32 bits of a shared address are what `.shared` instructions use; offsets
start at 1024, so 0 is never a valid address.
"""

from __future__ import annotations

import bisect
import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import OutOfBounds, ReadOnly
from .shadow import Shadow, zeros

if TYPE_CHECKING:
    from .lanes import Cta

SHARED, LOCAL, PARAM = 1 << 56, 2 << 56, 3 << 56
WINDOW = 0xFF << 56
SHARED_START = 1024


class SharedMemory:
    """A block's shared memory. Offsets are window addresses without the rank."""

    def __init__(self, cta: Cta, size: int, *, hazards: bool) -> None:
        self.cta = cta
        self.size = size
        self.end = SHARED_START + size
        self.base = cta.rank << 24
        padded = -(-self.end // 16) * 16
        self.data = zeros(padded, np.uint8)
        self.views = {1: self.data, 2: self.data.view("u2"), 4: self.data.view("u4"),
                      8: self.data.view("u8")}  # fmt: skip
        warps = cta.cluster.size * cta.warp_count
        self.shadow = (
            Shadow("shared memory", padded, warps, row=1 + cta.rank, start=self.base,
                   uninitialized=True)
            if hazards else None
        )  # fmt: skip

    def release(self) -> None:
        """The block has ended."""
        self.data = np.zeros(0, np.uint8)
        self.views, self.shadow = {}, None

    def offset(self, address: int) -> int:
        return address - self.base

    def view(self, lo: int, n: int) -> np.ndarray:
        """Bytes at offset lo; OutOfBounds beyond the block's own memory."""
        if lo < SHARED_START or lo + n > self.end:
            raise OutOfBounds(
                f"{n} bytes at shared memory offset {lo}, which holds {SHARED_START} to "
                f"{self.end - 1}",
                address=self.base + lo,
            )
        return self.data[lo : lo + n]

    def begin(self, op: Any, lo: int, hi: int, *, write: bool, proxy: bool = True) -> None:
        self.view(lo, hi - lo)
        if self.shadow:
            relaxed = self.cta.machine.rules == "hardware"
            self.shadow.begin(op, lo, hi, write=write, proxy=proxy, relaxed=relaxed)


class Range:
    """Host memory [lo, hi) that a launch may touch; `writable` or read only."""

    def __init__(
        self, lo: int, size: int, *, writable: bool, name: str = "", keep: object = None
    ) -> None:
        self.lo = lo
        self.hi = lo + size
        self.writable = writable
        self.name = name or f"global memory {lo:#x} to {lo + size:#x}"
        self.keep = keep
        self.data = _bytes_at(lo, size)
        self.shadow: Shadow | None = None
        self.origin = lo - lo % 16
        self.views: dict[int, tuple[int, np.ndarray]] = {}

    @classmethod
    def of(cls, array: np.ndarray, *, writable: bool, name: str = "") -> Range:
        """The bytes between an array's first and last element, whatever its strides."""
        lo, hi = np.lib.array_utils.byte_bounds(array)
        return cls(lo, hi - lo, writable=writable, name=name, keep=array)

    def elements(self, size: int) -> tuple[int, np.ndarray]:
        """(address of element 0, the range as elements of `size` bytes), aligned to `size`."""
        found = self.views.get(size)
        if found is None:
            start = self.lo - self.lo % size
            count = -(-(self.hi - start) // size)
            raw = _bytes_at(start, count * size).view(f"u{size}")
            found = self.views[size] = (start, raw)
        return found

    def offsets(self, addresses: np.ndarray) -> np.ndarray:
        """Addresses as the shadow counts them, which holds for all ranges that overlap."""
        return (addresses - np.uint64(self.origin)).astype(np.int64)


def _bytes_at(address: int, size: int) -> np.ndarray:
    if size == 0:
        return np.zeros(0, np.uint8)
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))


class GlobalMemory:
    """All ranges of a launch, found by address."""

    def __init__(self, ranges: list[Range], warps: int, *, hazards: bool, rules: str) -> None:
        self.ranges = sorted((r for r in ranges if r.hi > r.lo), key=lambda r: r.lo)
        self.starts = [r.lo for r in self.ranges]
        self.rules = rules
        if hazards:
            self._shade(warps)

    def _shade(self, warps: int) -> None:
        """Ranges that overlap share a shadow; what nobody may write needs none."""
        groups: list[list[Range]] = []
        end = 0
        for r in self.ranges:
            if r.lo >= end:
                groups.append([])
            groups[-1].append(r)
            end = max(end, r.hi)
        for group in groups:
            if not any(r.writable for r in group):
                continue
            lo, hi = group[0].lo, max(r.hi for r in group)
            origin = lo - lo % 16
            shadow = Shadow(
                " and ".join(r.name for r in group), hi - origin, warps, row=0, start=origin,
                skew=lo - origin,
            )  # fmt: skip
            for r in group:
                r.shadow, r.origin = shadow, origin

    def find(self, lo: int, n: int, *, write: bool = False) -> Range:
        """The range that holds all of [lo, lo + n)."""
        at = bisect.bisect_right(self.starts, lo) - 1
        while at >= 0:
            found = self.ranges[at]
            if lo + n <= found.hi:
                if write and not found.writable:
                    alternative = self._writable(lo, n)
                    if alternative is None:
                        raise ReadOnly(f"write to {found.name}, given for reading", address=lo)
                    return alternative
                return found
            at -= 1
            if at >= 0 and self.ranges[at].hi <= lo:
                break
        raise OutOfBounds(f"{n} bytes of global memory outside every array", address=lo)

    def _writable(self, lo: int, n: int) -> Range | None:
        return next((r for r in self.ranges if r.writable and r.lo <= lo and lo + n <= r.hi), None)

    def view(self, lo: int, n: int, *, write: bool = False) -> np.ndarray:
        found = self.find(lo, n, write=write)
        return found.data[lo - found.lo : lo - found.lo + n]


class LocalMemory:
    """Every lane's own bytes: `data[lane, offset]`."""

    def __init__(self, size: int) -> None:
        self.data = np.zeros((32, size), np.uint8)
        self.initialized = np.zeros((32, size), bool)
