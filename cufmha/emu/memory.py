# SPDX-License-Identifier: Apache-2.0
"""Shared and global memory with their shadows: bounds, initialization, races, async regions.

Shadows work on granules of 4 bytes: who wrote last and in which epoch, who read since, and whether
anything was written at all. Accesses narrower than a granule are not checked for races, because
neighbors in one granule would look like one.

Address windows of the 64-bit generic space: global memory is at its real host addresses; shared
memory at SHARED | rank << 24 | offset; a lane's local memory at LOCAL | offset; kernel parameters
at PARAM | offset. The low 32 bits of a shared address are what `.shared` instructions use; offsets
start at 1024, so 0 is never a valid address.
"""

from __future__ import annotations

import bisect
import ctypes
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import (
    AsyncReuse,
    DataRace,
    IllegalInstruction,
    MissingProxyFence,
    OutOfBounds,
    ReadOnly,
    Uninitialized,
)

if TYPE_CHECKING:
    from .lanes import Cta, Warp

SHARED, LOCAL, PARAM = 1 << 56, 2 << 56, 3 << 56
WINDOW = 0xFF << 56
SHARED_START = 1024
GRANULE = 4


@dataclass(eq=False)
class Region:
    """Bytes that asynchronous work touches.

    `followers`: ids of reads that were issued after this write was known to be over; whoever knows
    one of them to be over knows the write to be.
    """

    op: Any
    lo: int
    hi: int
    write: bool
    followers: set[int] = field(default_factory=set)

    def known_over(self, done: set[int]) -> bool:
        return self.op.id in done or not done.isdisjoint(self.followers)


class Shadow:
    """Who touched each granule of `size` bytes, for warps of `clusters` of `warps` each."""

    def __init__(self, name: str, size: int, warps: int, *, initialized: bool) -> None:
        granules = -(-size // GRANULE)
        self.name = name
        self.initialized = np.full(granules, initialized)
        self.writer = np.zeros(granules, np.int32)
        self.epoch = np.zeros(granules, np.int32)
        self.owner = np.full(granules, -1, np.int32)
        self.reads = np.zeros((warps, granules), np.int32)
        self.readers = np.full(granules, -1, np.int32)
        self.strong_epoch: np.ndarray | None = None  # epoch of the last indivisible write
        self.regions: list[Region] = []
        self.last_reads: dict[tuple[int, int, int], Region] = {}
        self.scattered: np.ndarray | None = None  # id of the async write to each granule
        self.kinds: dict[int, Any] = {}
        self.objects: dict[int, int] = {}  # granule of a live mbarrier -> line of its init
        self.objects_lo, self.objects_hi = 1 << 62, -1

    def live_ids(self) -> set[int]:
        """Ids of the asynchronous work that is on record here."""
        found = {region.op.id for region in self.regions}
        found.update(*(region.followers for region in self.regions))
        return found | set(self.kinds)

    def forget_settled(self) -> None:
        """Drops the records of work that is over with its block, and the block with them."""
        self.kinds = {i: op for i, op in self.kinds.items() if not op.settled()}
        self.regions = [r for r in self.regions if not r.op.settled()]
        self.last_reads = {k: r for k, r in self.last_reads.items() if not r.op.settled()}

    # ---- mbarriers, which only their own instructions may touch

    def add_object(self, lo: int, line: int) -> None:
        for granule in (lo // GRANULE, lo // GRANULE + 1):
            self.objects[granule] = line
        self.objects_lo, self.objects_hi = min(self.objects_lo, lo), max(self.objects_hi, lo + 8)

    def remove_object(self, lo: int) -> None:
        for granule in (lo // GRANULE, lo // GRANULE + 1):
            self.objects.pop(granule, None)

    def _against_objects(self, g: np.ndarray | slice) -> None:
        touched = range(g.start, g.stop) if isinstance(g, slice) else g.tolist()
        for granule in touched:
            if granule in self.objects:
                raise IllegalInstruction(
                    f"{self.name}: byte {granule * GRANULE} belongs to the mbarrier initialized in "
                    f"line {self.objects[granule]}, which only mbarrier instructions may touch",
                    address=granule * GRANULE,
                )

    # ---- generic accesses; g: granules touched, one or more per lane

    def read(self, warp: Warp, g: np.ndarray, lo: int, hi: int) -> None:
        if lo < self.objects_hi and hi > self.objects_lo:
            self._against_objects(g)
        if not self.initialized[g].all():
            bad = int(g[~self.initialized[g]].min()) * GRANULE
            raise Uninitialized(
                f"{self.name} is read at byte {bad}, where nothing was written", address=bad
            )
        self._ordered_after_writes(warp, g)
        home = warp.cta.cluster.number
        strange = self.readers[g] != home
        if strange.any():  # epochs of another cluster's warps mean nothing here
            self.reads[:, g[strange]] = 0
            self.readers[g] = home
        self.reads[warp.uid, g] = warp.knowledge.clock[warp.uid]
        if self.regions:
            self._against_regions(warp, lo, hi, g, write=False)
        if self.scattered is not None:
            self._against_scattered(warp, g)

    def write(self, warp: Warp, g: np.ndarray, lo: int, hi: int) -> None:
        if lo < self.objects_hi and hi > self.objects_lo:
            self._against_objects(g)
        self._ordered_after_writes(warp, g)
        self._ordered_after_reads(warp, g)
        self.writer[g] = warp.uid
        self.epoch[g] = warp.knowledge.clock[warp.uid]
        self.owner[g] = warp.cta.cluster.number
        self.initialized[g] = True
        if self.regions:
            self._against_regions(warp, lo, hi, g, write=True)
        if self.scattered is not None:
            self._against_scattered(warp, g)

    def strong(self, warp: Warp, g: np.ndarray, lo: int, hi: int, *, write: bool) -> None:
        """Indivisible accesses (atomics, volatile, relaxed, …): they race with plain ones only."""
        if not self.initialized[g].all():
            self.read(warp, g, lo, hi)
        if self.strong_epoch is None:
            self.strong_epoch = np.zeros(len(self.epoch), np.int32)
        plain = g[self.strong_epoch[g] != self.epoch[g]]
        if plain.size:
            self._ordered_after_writes(warp, plain)
        if write:
            self._ordered_after_reads(warp, g)
            self.writer[g] = warp.uid
            self.epoch[g] = self.strong_epoch[g] = warp.knowledge.clock[warp.uid]
            self.owner[g] = warp.cta.cluster.number
        if self.regions:
            self._against_regions(warp, lo, hi, g, write=write)
        if self.scattered is not None:
            self._against_scattered(warp, g)

    def _ordered_after_writes(self, warp: Warp, g: Any) -> None:
        clock = warp.knowledge.clock
        writer = self.writer[g]
        late = self.epoch[g] > clock[writer]
        home = warp.cta.cluster.number
        abroad = (self.owner[g] != home) & (self.owner[g] >= 0)
        if abroad.any():
            late = self._abroad_late(warp, g, abroad, late)
        if late.any():
            at = int(np.flatnonzero(late)[0])
            raise DataRace(
                f"{self.name}: byte {self._byte(g, at)} was written by warp "
                f"{int(writer[at])} and no barrier orders that before this access",
                address=self._byte(g, at),
            )

    def _abroad_late(self, warp: Warp, g: Any, abroad: np.ndarray, late: np.ndarray) -> np.ndarray:
        """For granules another cluster wrote: is its epoch among what we learned of it?"""
        late = late & ~abroad
        owners, writers, epochs = self.owner[g], self.writer[g], self.epoch[g]
        for at in np.flatnonzero(abroad):
            known = warp.knowledge.foreign.get(int(owners[at]))
            late[at] = known is None or epochs[at] > known.clock[writers[at]]
        return late

    def _ordered_after_reads(self, warp: Warp, g: Any) -> None:
        reads = self.reads[:, g]
        late = reads > warp.knowledge.clock[:, None]
        late[warp.uid] = False
        if late.any():
            late &= self.readers[g] == warp.cta.cluster.number
        if late.any():
            reader, at = (int(x[0]) for x in np.nonzero(late))
            raise DataRace(
                f"{self.name}: byte {self._byte(g, at)} is still being read by warp {reader}; "
                "no barrier orders that before this write",
                address=self._byte(g, at),
            )

    def _byte(self, g: Any, at: int) -> int:
        return (int(g[at]) if isinstance(g, np.ndarray) else g.start + at) * GRANULE

    def _against_regions(
        self, warp: Warp, lo: int, hi: int, g: np.ndarray | slice, *, write: bool
    ) -> None:
        done = warp.knowledge.done
        for region in self.regions:
            if (
                region.lo < hi
                and lo < region.hi
                and (write or region.write)
                and not region.known_over(done)
                and self._touches(region, g)
            ):
                verb = "writes" if region.write else "reads"
                raise AsyncReuse(
                    f"{self.name}: bytes {region.lo} to {region.hi - 1}, which {region.op.kind} "
                    f"of line {region.op.line} {verb}, are touched before its completion was "
                    "waited for",
                    address=region.lo,
                )

    def _touches(self, region: Region, g: np.ndarray | slice) -> bool:
        if isinstance(g, slice):
            return True
        first, last = region.lo // GRANULE, (region.hi - 1) // GRANULE
        return bool(((g >= first) & (g <= last)).any())

    # ---- asynchronous accesses

    def begin(self, op: Any, lo: int, hi: int, *, write: bool, proxy: bool, relaxed: bool) -> None:
        """Async work that touches [lo, hi) is issued: earlier accesses must be ordered before it.

        `proxy`: it runs in the async proxy, so generic writes (and, unless `relaxed`, reads before
        an async write) must have been followed by a proxy fence that the issuer knows of.
        """
        warp, g = op.warp, slice(lo // GRANULE, -(-hi // GRANULE))
        if lo < self.objects_hi and hi > self.objects_lo:
            self._against_objects(g)
        if not write and not self.initialized[g].all():
            bad = (g.start + int(np.argmin(self.initialized[g]))) * GRANULE
            raise Uninitialized(f"{self.name}: {op.kind} reads byte {bad}, never written")
        self._ordered_after_writes(warp, g)
        if write:
            self._ordered_after_reads(warp, g)
        if proxy:
            self._proxied(op, g, write=write, relaxed=relaxed)
        if self.regions:
            self._against_regions(warp, lo, hi, g, write=write)
            done = warp.knowledge.done
            if write:
                self.regions = [
                    r
                    for r in self.regions
                    if not (lo <= r.lo and r.hi <= hi and r.known_over(done))
                ]
            else:
                for r in self.regions:
                    if r.write and r.lo < hi and lo < r.hi:
                        r.followers.add(op.id)
        if write:
            self.regions.append(Region(op, lo, hi, write))
            self.initialized[g] = True
            self.epoch[g] = 0
            self.reads[:, g] = 0
        else:
            self._record_read(op, lo, hi)

    def _record_read(self, op: Any, lo: int, hi: int) -> None:
        """Takes the place of the same warp's read of the same bytes, once that one is over."""
        key = (lo, hi, op.warp.uid)
        last = self.last_reads.get(key)
        if last is not None and last.op.id in op.warp.knowledge.done:
            last.op = op
            if last in self.regions:
                return
        self.last_reads[key] = Region(op, lo, hi, write=False)
        self.regions.append(self.last_reads[key])

    def visible_to_async(self, op: Any, g: np.ndarray) -> None:
        """Async-proxy work reads the granules g: generic writes must be ordered and fenced."""
        self._ordered_after_writes(op.warp, g)
        self._proxied(op, g, write=False, relaxed=False)
        if self.scattered is not None:
            self._against_scattered(op.warp, g)

    def begin_scattered(self, op: Any, g: np.ndarray, *, relaxed: bool, proxy: bool = True) -> None:
        """An async write to the granules g, such as the rows of a tile in a larger array."""
        self._ordered_after_writes(op.warp, g)
        self._ordered_after_reads(op.warp, g)
        if proxy:
            self._proxied(op, g, write=True, relaxed=relaxed)
        if self.scattered is None:
            self.scattered = np.zeros(len(self.epoch), np.int64)
        self._against_scattered(op.warp, g)
        self.scattered[g] = op.id
        self.kinds[op.id] = op
        self.epoch[g] = 0

    def _against_scattered(self, warp: Warp, g: np.ndarray) -> None:
        ids = self.scattered[g]  # type: ignore[index]
        if not ids.any():
            return
        for number in np.unique(ids[ids != 0]).tolist():
            op = self.kinds.get(number)
            if op is None:
                continue
            if number not in warp.knowledge.done and not op.settled():
                raise AsyncReuse(
                    f"{self.name}: bytes that {op.kind} of line {op.line} writes are touched "
                    "before its completion was waited for"
                )

    def _proxied(self, op: Any, g: Any, *, write: bool, relaxed: bool) -> None:
        proxied = op.warp.knowledge.proxied
        home = self.owner[g] == op.warp.cta.cluster.number
        late = (self.epoch[g] > proxied[self.writer[g]]) & home
        if late.any():
            at = int(np.flatnonzero(late)[0])
            raise MissingProxyFence(
                f"{self.name}: byte {self._byte(g, at)}, written by warp "
                f"{int(self.writer[g][at])} in the generic proxy, is used by {op.kind} with no "
                "fence.proxy.async between",
                address=self._byte(g, at),
            )
        if write and not relaxed:
            reads = (self.reads[:, g] > proxied[:, None]).any(axis=1)
            if reads.any():
                raise MissingProxyFence(
                    f"{self.name}: bytes from {self._byte(g, 0)} on, read by warp "
                    f"{int(np.flatnonzero(reads)[0])} in the generic proxy, are overwritten by "
                    f"{op.kind} with no fence.proxy.async between"
                )


class SharedMemory:
    """A block's shared memory. Offsets are window addresses without the rank."""

    def __init__(self, cta: Cta, size: int, *, hazards: bool) -> None:
        self.cta = cta
        self.size = size
        self.end = SHARED_START + size
        self.base = cta.rank << 24
        padded = -(-self.end // 16) * 16
        self.data = np.zeros(padded, np.uint8)
        self.views = {1: self.data, 2: self.data.view("u2"), 4: self.data.view("u4"),
                      8: self.data.view("u8")}  # fmt: skip
        warps = cta.cluster.size * cta.warp_count
        self.shadow = Shadow("shared memory", padded, warps, initialized=False) if hazards else None

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

    def mark_initialized(self, lo: int, hi: int) -> None:
        if self.shadow:
            self.shadow.initialized[lo // GRANULE : -(-hi // GRANULE)] = True

    def require_initialized(self, lo: int, hi: int) -> None:
        if self.shadow and not self.shadow.initialized[lo // GRANULE : -(-hi // GRANULE)].all():
            raise Uninitialized(f"shared memory bytes {lo} to {hi - 1} were not all written")


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

    def shade(self, warps: int) -> None:
        if self.writable:
            self.shadow = Shadow(self.name, self.hi - self.lo, warps, initialized=True)


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
            for r in self.ranges:
                r.shade(warps)

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

    def begin(self, op: Any, lo: int, hi: int, *, write: bool, proxy: bool = True) -> None:
        found = self.find(lo, hi - lo, write=write)
        if found.shadow:
            found.shadow.begin(
                op, lo - found.lo, hi - found.lo, write=write, proxy=proxy,
                relaxed=self.rules == "hardware",
            )  # fmt: skip


class LocalMemory:
    """Every lane's own bytes: `data[lane, offset]`."""

    def __init__(self, size: int) -> None:
        self.data = np.zeros((32, size), np.uint8)
        self.initialized = np.zeros((32, size), bool)
