# SPDX-License-Identifier: Apache-2.0
"""Who touched which bytes of a memory, and when: races, initialization, asynchronous work.

A stamp names an access in one number: cluster << 40 | epoch << 8 | warp; the cluster is 0 in shared
memory, which no other cluster sees. -id names asynchronous work, 0 nobody.

Every granule of 4 bytes has the stamp of its last write and of the reads since. Of reads that were
ordered one after the other the last will do: whoever is ordered after it is ordered after those
before. Readers side by side form a crowd, and -number of the crowd takes the place of the stamp.

Narrower accesses split a granule: its bytes have their own stamps, until it is written as a whole.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ..errors import (
    AsyncReuse,
    DataRace,
    IllegalInstruction,
    MissingProxyFence,
    Uninitialized,
)
from .types import some

if TYPE_CHECKING:
    from .knowledge import Knowledge
    from .lanes import Warp

GRANULE = 4
Where: TypeAlias = "np.ndarray | slice"
_FILLED = np.uint32(0x01010101)
_CLUSTER = 40
_EPOCHS = (1 << _CLUSTER) - 1
_FIRST_CROWDS = 4096
_PAGED = 1 << 16


def zeros(count: int, dtype: Any) -> np.ndarray:
    """Zeros. Pages of a large array take up memory only once they are written."""
    size = count * np.dtype(dtype).itemsize
    if size < _PAGED or not hasattr(mmap, "MAP_PRIVATE"):
        return np.zeros(count, dtype)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(pages, dtype)


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


class Crowds:
    """Sets of reads that no order is known between, all of one cluster.

    `epochs[number]`: the epoch of each warp's read, 0 for warps that did not; number 0 is unused.
    """

    def __init__(self, warps: int) -> None:
        self.epochs = np.zeros((16, warps), np.int64)
        self.clusters = np.zeros(16, np.int64)
        self.count = 1
        self.limit = _FIRST_CROWDS
        self._numbers: dict[tuple[int, bytes], int] = {}
        self._joined: dict[tuple[int, int], int] = {}

    def join(self, old: int, stamp: int) -> int:
        """-number of the crowd of `old`, which is a stamp or -number, and a further reader."""
        found = self._joined.get((old, stamp))
        if found is None:
            row = np.zeros(self.epochs.shape[1], np.int64)
            if old < 0:
                row[:] = self.epochs[-old]
            else:
                row[old & 255] = (old & _EPOCHS) >> 8
            row[stamp & 255] = (stamp & _EPOCHS) >> 8
            found = self._joined[old, stamp] = -self._number(stamp >> _CLUSTER, row)
        return found

    def _number(self, cluster: int, row: np.ndarray) -> int:
        key = (cluster, row.tobytes())
        number = self._numbers.get(key)
        if number is None:
            if self.count == len(self.epochs):
                self.epochs = np.concatenate([self.epochs, np.zeros_like(self.epochs)])
                self.clusters = np.concatenate([self.clusters, np.zeros_like(self.clusters)])
            number = self._numbers[key] = self.count
            self.epochs[number], self.clusters[number] = row, cluster
            self.count += 1
        return number

    def keep(self, used: np.ndarray) -> np.ndarray:
        """Forgets all but the crowds of these numbers; new numbers by old ones."""
        numbers = np.zeros(self.count, np.int64)
        numbers[used] = np.arange(1, len(used) + 1)
        rows, clusters = self.epochs[used], self.clusters[used].tolist()
        self.__init__(self.epochs.shape[1])  # type: ignore[misc]
        for row, cluster in zip(rows, clusters, strict=True):
            self._number(cluster, row)
        self.limit = max(_FIRST_CROWDS, 2 * self.count)
        return numbers


class Stamps:
    """The last write of each unit, a granule or a byte, and the reads since."""

    def __init__(self, shadow: Shadow, count: int, unit: int) -> None:
        self.shadow = shadow
        self.count = count
        self.unit = unit
        self.write: np.ndarray | None = None
        self.read: np.ndarray | None = None
        self.strong: np.ndarray | None = None  # units whose last write was indivisible

    def note_write(self, at: Where, stamp: int, *, strong: bool = False) -> None:
        if self.write is None:
            self.write = zeros(self.count, np.int64)
        self.write[at] = stamp
        if strong and self.strong is None:
            self.strong = zeros(self.count, bool)
        if self.strong is not None:
            self.strong[at] = strong

    def note_read(self, warp: Warp, at: np.ndarray, stamp: int) -> None:
        """The reads that are ordered before this one are forgotten, and those of other clusters."""
        if self.read is None:
            self.read = zeros(self.count, np.int64)
        old = self.read.take(at)
        clock, crowds = warp.knowledge.clock, self.shadow.crowds
        home = old ^ (stamp & ~_EPOCHS)
        if not some((home >> 8) > clock.take(home & 255, mode="clip")) and (
            crowds.count == 1 or old.min() >= 0
        ):
            self.read[at] = stamp
            return
        for value in [int(old[0])] if (old == old[0]).all() else np.unique(old).tolist():
            self.read[at[old == value]] = self._beside(value, clock, stamp)
        if crowds.count > crowds.limit:
            self.shadow.forget_crowds()

    def _beside(self, old: int, clock: np.ndarray, stamp: int) -> int:
        """What stands for a read with this stamp and those of `old` that are not before it."""
        crowds = self.shadow.crowds
        if old < 0:
            foreign = crowds.clusters[-old] != stamp >> _CLUSTER
            alone = foreign or (crowds.epochs[-old] <= clock).all()
        else:
            foreign = old >> _CLUSTER != stamp >> _CLUSTER
            alone = foreign or (old & _EPOCHS) >> 8 <= clock[old & 255]
        return stamp if alone else crowds.join(old, stamp)

    # ---- checks

    def after_writes(self, warp: Warp, at: Where) -> None:
        """Raises unless the last write of each unit is ordered before what the warp does now."""
        if self.write is None:
            return
        stamps = self.write[at]
        if isinstance(at, slice) and not stamps.any():
            return
        late = self._late(warp, stamps)
        if late is not None:
            which = int(np.argmax(late))
            byte = self._byte(at, which)
            raise DataRace(
                f"{self.shadow.name}: byte {self.shadow.shown(byte)} was written by warp "
                f"{int(stamps[which]) & 255} and no barrier orders that before this access",
                address=self.shadow.start + byte,
            )
        if self.shadow.kinds and stamps.min() < 0:
            self._after_work(warp, stamps)

    def _after_work(self, warp: Warp, stamps: np.ndarray) -> None:
        done = warp.knowledge.done
        for number in (-np.unique(stamps[stamps < 0])).tolist():
            op = self.shadow.kinds.get(number)
            if op is not None and number not in done and not op.settled():
                raise AsyncReuse(
                    f"{self.shadow.name}: bytes that {op.kind} of line {op.line} writes are "
                    "touched before its completion was waited for"
                )

    def after_reads(self, warp: Warp, at: Where) -> None:
        if self.read is None:
            return
        stamps = self.read[at]
        if isinstance(at, slice) and not stamps.any():
            return
        late = self._late(warp, stamps)
        if late is not None:
            which = int(np.argmax(late))
            self._fail_read(at, which, int(stamps[which]) & 255)
        if self.shadow.crowds.count > 1 and stamps.min() < 0:
            self._after_crowds(warp, at, stamps)

    def _after_crowds(self, warp: Warp, at: Where, stamps: np.ndarray) -> None:
        crowds = self.shadow.crowds
        for value in np.unique(stamps[stamps < 0]).tolist():
            known = self._known(warp, int(crowds.clusters[-value]))
            late = crowds.epochs[-value] > (known.clock if known else 0)
            if late.any():
                self._fail_read(at, int(np.argmax(stamps == value)), int(np.argmax(late)))

    def _known(self, warp: Warp, cluster: int) -> Knowledge | None:
        """What the warp knows of the warps of a cluster."""
        if self.shadow.shared or cluster == warp.cta.cluster.number:
            return warp.knowledge
        return warp.knowledge.foreign.get(cluster)

    def _fail_read(self, at: Where, which: int, reader: int) -> None:
        byte = self._byte(at, which)
        raise DataRace(
            f"{self.shadow.name}: byte {self.shadow.shown(byte)} is still being read by warp "
            f"{reader}; no barrier orders that before this write",
            address=self.shadow.start + byte,
        )

    def _byte(self, at: Where, which: int) -> int:
        first = at.start + which if isinstance(at, slice) else int(at[which])
        return int(first) * self.unit

    def _late(self, warp: Warp, stamps: np.ndarray) -> np.ndarray | None:
        """Which stamps are not known to be over, or None if all are."""
        if self.shadow.shared:
            late = (stamps >> 8) > warp.knowledge.clock.take(stamps & 255, mode="clip")
            return late if some(late) else None
        number = warp.cta.cluster.number
        home = stamps ^ (number << _CLUSTER)
        late = (home >> 8) > warp.knowledge.clock.take(home & 255, mode="clip")
        if not some(late):
            return None
        late &= stamps > 0
        for cluster in np.unique(stamps[late] >> _CLUSTER).tolist():
            known = warp.knowledge.foreign.get(cluster)
            if cluster != number and known is not None:
                chosen = late & (stamps >> _CLUSTER == cluster)
                theirs = stamps[chosen] & _EPOCHS
                late[chosen] = (theirs >> 8) > known.clock[theirs & 255]
        return late if late.any() else None

    def proxied(self, op: Any, at: Where, *, reads: bool) -> None:
        """Raises unless fences have shown the async proxy the last writes (and `reads`)."""
        warp = op.warp
        proxied = warp.knowledge.proxied[self.shadow.row]
        number = 0 if self.shadow.shared else warp.cta.cluster.number
        if self.write is not None and self.write[at].any():
            stamps = self.write[at]
            home = stamps ^ (number << _CLUSTER)
            late = (home >> 8) > proxied.take(home & 255, mode="clip")
            late &= stamps >> _CLUSTER == number
            if late.any():
                which = int(np.argmax(late))
                byte = self._byte(at, which)
                raise MissingProxyFence(
                    f"{self.shadow.name}: byte {self.shadow.shown(byte)}, written by warp "
                    f"{int(stamps[which]) & 255} in the generic proxy, is used by {op.kind} with "
                    f"no {self.shadow.fence} between",
                    address=self.shadow.start + byte,
                )
        if reads and self.read is not None and self.read[at].any():
            self._reads_proxied(op, at, proxied, number)

    def _reads_proxied(self, op: Any, at: Where, proxied: np.ndarray, number: int) -> None:
        stamps = self.read[at]  # type: ignore[index]
        crowds = self.shadow.crowds
        for value in np.unique(stamps).tolist():
            if value < 0:
                home = crowds.clusters[-value] == number
                late = crowds.epochs[-value] > proxied
                reader = int(np.argmax(late))
            else:
                home, reader = value >> _CLUSTER == number, value & 255
                late = (value & _EPOCHS) >> 8 > proxied[reader]
            if home and np.any(late):
                byte = self._byte(at, int(np.argmax(stamps == value)))
                raise MissingProxyFence(
                    f"{self.shadow.name}: byte {self.shadow.shown(byte)}, read by warp {reader} "
                    f"in the generic proxy, is overwritten by {op.kind} with no "
                    f"{self.shadow.fence} between",
                    address=self.shadow.start + byte,
                )


class Shadow:
    """Of one memory of `size` bytes, which starts at address `start`.

    `row`: which row of `Knowledge.proxied` counts for it, 0 for global memory. `uninitialized`:
    what nobody has written must not be read. `skew`: bytes in front of what the user gave.
    """

    def __init__(
        self, name: str, size: int, warps: int, *, row: int, start: int = 0, skew: int = 0,
        uninitialized: bool = False,
    ) -> None:  # fmt: skip
        self.name, self.row, self.start, self.skew = name, row, start, skew
        self.shared = row > 0
        self.fence = f"fence.proxy.async{'' if self.shared else '.global'}"
        self.granules = -(-size // GRANULE)
        self.words = Stamps(self, self.granules, GRANULE)
        self.bytes: Stamps | None = None
        self.split: np.ndarray | None = None
        self.crowds = Crowds(warps)
        self.initialized: np.ndarray | None = None
        if uninitialized:
            self.initialized = zeros(self.granules * GRANULE, np.uint8)
            self._filled = self.initialized.view(np.uint32)
        self.regions: list[Region] = []
        self.last_reads: dict[tuple[int, int, int], Region] = {}
        self.kinds: dict[int, Any] = {}  # work that stamps name
        self.objects: dict[int, int] = {}  # granule of a live mbarrier -> line of its init
        self.objects_lo, self.objects_hi = 1 << 62, -1

    def shown(self, byte: int) -> int:
        """A byte's offset as the user counts."""
        return byte - self.skew

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

    def forget_crowds(self) -> None:
        """Drops crowds of readers that no unit refers to any more."""
        held = [s.read for s in (self.words, self.bytes) if s is not None and s.read is not None]
        places = [(read, np.flatnonzero(read < 0)) for read in held]
        used = np.unique(np.concatenate([-read[at] for read, at in places]))
        numbers = self.crowds.keep(used)
        for read, at in places:
            read[at] = -numbers[-read[at]]

    # ---- mbarriers, which only their own instructions may touch

    def add_object(self, lo: int, line: int) -> None:
        for granule in (lo // GRANULE, lo // GRANULE + 1):
            self.objects[granule] = line
        self.objects_lo, self.objects_hi = min(self.objects_lo, lo), max(self.objects_hi, lo + 8)

    def remove_object(self, lo: int) -> None:
        """Its bytes hold nothing from then on."""
        for granule in (lo // GRANULE, lo // GRANULE + 1):
            self.objects.pop(granule, None)
        if self.initialized is not None:
            self.initialized[lo : lo + 8] = 0

    def _against_objects(self, granules: Any) -> None:
        for granule in granules:
            if granule in self.objects:
                raise IllegalInstruction(
                    f"{self.name}: byte {granule * GRANULE} belongs to the mbarrier initialized in "
                    f"line {self.objects[granule]}, which only mbarrier instructions may touch",
                    address=self.start + granule * GRANULE,
                )

    # ---- generic accesses

    def access(
        self, warp: Warp, offsets: np.ndarray, nbytes: int, *, write: bool, strong: bool = False
    ) -> None:
        """Each lane's `nbytes` from its offset, a multiple of their size.

        `strong`: indivisible accesses (atomics, volatile, relaxed, …), which race with plain ones
        only.
        """
        lo, hi = int(offsets.min()), int(offsets.max()) + nbytes
        granules = self._whole(offsets, nbytes, lo, hi)
        if lo < self.objects_hi and hi > self.objects_lo:
            self._against_objects((offsets >> 2 if granules is None else granules).tolist())
        if granules is None:
            places = [self._bytes_at(offsets, nbytes)]
        elif self.split is None:
            places = [(self.words, granules)]
        else:
            places = self._split_apart(granules)
        if not write and self.initialized is not None:
            self._require_initialized(granules, places)
        stamp = warp.knowledge.clock.item(warp.uid) << 8 | warp.uid
        if not self.shared:
            stamp |= warp.cta.cluster.number << _CLUSTER
        for stamps, at in places:
            plain = at
            if strong and stamps.strong is not None:
                plain = at[~stamps.strong[at]]
            if plain.size:
                stamps.after_writes(warp, plain)
            if write:
                stamps.after_reads(warp, at)
            elif not strong:
                stamps.note_read(warp, at, stamp)
        if self.regions:
            self._against_regions(warp, lo, hi, places, write=write)
        if write:
            self._written(granules, places, stamp, strong=strong)

    def _whole(self, offsets: np.ndarray, nbytes: int, lo: int, hi: int) -> np.ndarray | None:
        """The granules of the access, or None if it touches parts of some."""
        if nbytes == GRANULE:
            return offsets >> 2
        if nbytes > GRANULE:
            return ((offsets >> 2)[:, None] + np.arange(nbytes >> 2)).ravel()
        rising = hi - lo == nbytes * len(offsets) and not (lo | hi) & 3
        if rising and (offsets[1:] - offsets[:-1] == nbytes).all():
            return np.arange(lo >> 2, hi >> 2)
        return None

    def _bytes_at(self, offsets: np.ndarray, nbytes: int) -> tuple[Stamps, np.ndarray]:
        """The bytes of accesses that lie within granules; those become split."""
        if self.bytes is None or self.split is None:
            self.bytes = Stamps(self, self.granules * GRANULE, 1)
            self.split = zeros(self.granules, bool)
        granules = offsets >> 2
        whole = granules[~self.split[granules]]
        if whole.size:
            at = _bytes_of(whole)
            for name in ("write", "read", "strong"):
                old = getattr(self.words, name)
                if old is not None:
                    new = getattr(self.bytes, name)
                    if new is None:
                        new = zeros(self.bytes.count, old.dtype)
                        setattr(self.bytes, name, new)
                    new[at] = np.repeat(old[whole], GRANULE)
                elif getattr(self.bytes, name) is not None:
                    getattr(self.bytes, name)[at] = 0
            self.split[whole] = True
        return self.bytes, offsets if nbytes == 1 else (
            offsets[:, None] + np.arange(nbytes)
        ).ravel()

    def _split_apart(self, granules: np.ndarray) -> list[tuple[Stamps, np.ndarray]]:
        """Whole granules, and the bytes of split ones."""
        split = self.split[granules]  # type: ignore[index]
        if self.bytes is None or not split.any():
            return [(self.words, granules)]
        places = [(self.bytes, _bytes_of(granules[split]))]
        if not split.all():
            places.append((self.words, granules[~split]))
        return places

    def _require_initialized(
        self, granules: np.ndarray | None, places: list[tuple[Stamps, np.ndarray]]
    ) -> None:
        if granules is not None:
            if some(self._filled.take(granules) == _FILLED) == len(granules):
                return
            at = _bytes_of(granules)
        else:
            at = places[0][1]
        good = self.initialized[at] != 0  # type: ignore[index]
        if not good.all():
            byte = int(at[~good].min())
            raise Uninitialized(
                f"{self.name} is read at byte {byte}, where nothing was written",
                address=self.start + byte,
            )

    def _written(
        self, granules: np.ndarray | None, places: list[tuple[Stamps, np.ndarray]], stamp: int,
        *, strong: bool,
    ) -> None:  # fmt: skip
        if self.initialized is not None:
            if granules is not None:
                self._filled[granules] = _FILLED
            else:
                self.initialized[places[0][1]] = 1
        if granules is None or self.split is None or strong:
            for stamps, at in places:
                stamps.note_write(at, stamp, strong=strong)
        else:
            self._unsplit(granules)
            self.words.note_write(granules, stamp)

    def _unsplit(self, granules: Where) -> None:
        """All bytes are written together; who is ordered after that is so after earlier reads."""
        if self.split is not None:
            self.split[granules] = False
            if self.words.read is not None:
                self.words.read[granules] = 0

    def _against_regions(
        self, warp: Warp, lo: int, hi: int, places: list[tuple[Stamps, np.ndarray]] | None,
        *, write: bool,
    ) -> None:  # fmt: skip
        done = warp.knowledge.done
        for region in self.regions:
            if (
                region.lo < hi
                and lo < region.hi
                and (write or region.write)
                and not region.known_over(done)
                and (places is None or _touch(region, places))
            ):
                verb = "writes" if region.write else "reads"
                raise AsyncReuse(
                    f"{self.name}: bytes {region.lo} to {region.hi - 1}, which {region.op.kind} "
                    f"of line {region.op.line} {verb}, are touched before its completion was "
                    "waited for",
                    address=self.start + region.lo,
                )

    # ---- asynchronous accesses

    def begin(self, op: Any, lo: int, hi: int, *, write: bool, proxy: bool, relaxed: bool) -> None:
        """Async work that touches [lo, hi) is issued: earlier accesses must be ordered before it.

        `proxy`: it runs in the async proxy, so generic writes (and, unless `relaxed`, reads before
        an async write) must have been followed by a proxy fence that the issuer knows of.
        """
        warp, granules = op.warp, slice(lo // GRANULE, -(-hi // GRANULE))
        if lo < self.objects_hi and hi > self.objects_lo:
            self._against_objects(range(granules.start, granules.stop))
        if not write and self.initialized is not None and not self.initialized[lo:hi].all():
            bad = lo + int(np.argmin(self.initialized[lo:hi]))
            raise Uninitialized(f"{self.name}: {op.kind} reads byte {bad}, never written")
        for stamps, at in self._span(granules):
            stamps.after_writes(warp, at)
            if write:
                stamps.after_reads(warp, at)
            if proxy:
                stamps.proxied(op, at, reads=write and not relaxed)
        if self.regions:
            self._against_regions(warp, lo, hi, None, write=write)
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
            if self.initialized is not None:
                self.initialized[lo:hi] = 1
            self._unsplit(granules)
            for held in (self.words.write, self.words.read):
                if held is not None and held[granules].any():  # else the pages stay untouched
                    held[granules] = 0
        else:
            self._record_read(op, lo, hi)

    def _span(self, granules: slice) -> list[tuple[Stamps, Any]]:
        if self.split is None or not self.split[granules].any():
            return [(self.words, granules)]
        return list(self._split_apart(np.arange(granules.start, granules.stop)))

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

    def rows(self, starts: np.ndarray, nbytes: int) -> list[tuple[Stamps, np.ndarray]]:
        """What belongs to rows of `nbytes` each; starts are multiples of 4."""
        granules = ((starts >> 2)[:, None] + np.arange(nbytes >> 2)).ravel()
        places = [(self.words, granules)] if self.split is None else self._split_apart(granules)
        rest = nbytes % GRANULE
        if rest:
            ends = starts + (nbytes - rest)
            at = (ends[:, None] + np.arange(rest)).ravel()
            places.append(self._bytes_at(at, 1))
        return places

    def visible_to_async(self, op: Any, starts: np.ndarray, nbytes: int) -> None:
        """Async-proxy work reads rows of bytes: generic writes must be ordered and fenced."""
        for stamps, at in self.rows(starts, nbytes):
            stamps.after_writes(op.warp, at)
            stamps.proxied(op, at, reads=False)

    def begin_scattered(
        self, op: Any, starts: np.ndarray, nbytes: int, *, relaxed: bool, proxy: bool = True
    ) -> None:
        """An async write to rows of bytes, such as those of a tile in a larger array."""
        places = self.rows(starts, nbytes)
        for stamps, at in places:
            stamps.after_writes(op.warp, at)
            stamps.after_reads(op.warp, at)
            if proxy:
                stamps.proxied(op, at, reads=not relaxed)
        self.kinds[op.id] = op
        for stamps, at in places:
            stamps.note_write(at, -op.id)
            if self.initialized is not None:
                self.initialized[at if stamps.unit == 1 else _bytes_of(at)] = 1


def _bytes_of(granules: np.ndarray) -> np.ndarray:
    return (granules[:, None] * GRANULE + np.arange(GRANULE)).ravel()


def _touch(region: Region, places: list[tuple[Stamps, np.ndarray]]) -> bool:
    return any(
        ((at >= region.lo // stamps.unit) & (at <= (region.hi - 1) // stamps.unit)).any()
        for stamps, at in places
    )
