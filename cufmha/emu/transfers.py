# SPDX-License-Identifier: Apache-2.0
"""Asynchronous transfers as pieces of work: tensor and bulk copies, reductions, cp.async."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..errors import IllegalInstruction, Misaligned, MissingProxyFence, OutOfBounds
from ..tma import TensorMapSpec
from . import tma
from .asyncwork import AsyncOp
from .copies import Reading
from .memory import Range, SharedMemory
from .reduction import combine

if TYPE_CHECKING:
    from .lanes import Cta, Warp
    from .mbarrier import Mbarrier

BOX_ALIGNMENT = 128
BULK_ALIGNMENT = 16


def visible_barrier(warp: Warp, barrier: Mbarrier, kind: str) -> None:
    """The async proxy signals only barriers whose initialization it can see."""
    machine = warp.machine
    if not machine.hazards or barrier.proxied or machine.rules == "hardware":
        return
    if warp.knowledge.proxied[1 + barrier.cta.rank, barrier.initializer] < barrier.epoch:
        raise MissingProxyFence(
            f"{kind} signals the mbarrier initialized in line {barrier.line} with no "
            "fence.proxy.async after the initialization"
        )
    barrier.proxied = True


class BoxTransfer(AsyncOp):
    """What tensor loads and stores share: the box, its rows and its place in shared memory."""

    def __init__(
        self,
        warp: Warp,
        spec: TensorMapSpec,
        address: int,
        coordinates: Sequence[int],
        shared: int,
    ) -> None:
        super().__init__(warp)
        self.spec = spec
        if shared % BOX_ALIGNMENT:
            raise Misaligned(
                f"a box in shared memory must lie at a multiple of {BOX_ALIGNMENT}", address=shared
            )
        if coordinates[0] * spec.itemsize % 16:
            raise IllegalInstruction(
                f"the inner coordinate must be a multiple of 16 bytes, got {coordinates[0]} "
                f"elements of {spec.itemsize} bytes (hardware refuses the instruction)"
            )
        self.box = tma.place(spec, address, coordinates)
        self.row_bytes = (self.box.last - self.box.first) * spec.itemsize
        self.skip = self.box.first * spec.itemsize
        inside = self.box.inside if self.row_bytes else self.box.inside & False
        self.inside = inside
        self.rows = self.box.rows[inside] + np.uint64(self.skip)
        self.address = address
        if min(coordinates) < 0:  # hardware touches the base for elements in front
            warp.machine.global_memory.find(address, 1)

    def ranges(self, *, write: bool) -> list[tuple[np.ndarray, Range]]:
        """(which of the rows, the memory that holds them), in bounds or OutOfBounds."""
        if not len(self.rows):
            return []
        memory = self.warp.machine.global_memory
        lo, hi = int(self.rows.min()), int(self.rows.max())
        try:
            found = memory.find(lo, hi - lo + self.row_bytes, write=write)
            return [(np.arange(len(self.rows)), found)]
        except OutOfBounds:
            pass
        groups: dict[int, tuple[list[int], Range]] = {}
        for number, row in enumerate(self.rows.tolist()):
            found = memory.find(row, self.row_bytes, write=write)
            groups.setdefault(id(found), ([], found))[0].append(number)
        return [(np.array(numbers), found) for numbers, found in groups.values()]

    def gather(self) -> np.ndarray:
        """The box's bytes, (rows, bytes of a row), out-of-bounds elements filled."""
        spec, box = self.spec, self.box
        pattern = np.full(
            box.row_bytes // spec.itemsize, tma.filler(spec), f"u{spec.itemsize}"
        ).view(np.uint8)
        data = np.broadcast_to(pattern, (len(box.rows), box.row_bytes)).copy()
        targets = np.flatnonzero(self.inside)
        for numbers, found in self.ranges(write=False):
            part = _take(found, self.rows[numbers], self.row_bytes)
            data[targets[numbers], self.skip : self.skip + self.row_bytes] = part
        return data


def _take(found: Range, rows: np.ndarray, nbytes: int) -> np.ndarray:
    """Rows of bytes out of a range; by words where everything is a multiple of 8."""
    size = 8 if not nbytes % 8 and not (rows & np.uint64(7)).any() else 1
    start, view = found.elements(size)
    index = ((rows - np.uint64(start)) // np.uint64(size)).astype(np.int64)
    return view[index[:, None] + np.arange(nbytes // size)].view(np.uint8)


def _put(found: Range, rows: np.ndarray, data: np.ndarray) -> None:
    nbytes = data.shape[1]
    size = 8 if not nbytes % 8 and not (rows & np.uint64(7)).any() else 1
    start, view = found.elements(size)
    index = ((rows - np.uint64(start)) // np.uint64(size)).astype(np.int64)
    view[index[:, None] + np.arange(nbytes // size)] = np.ascontiguousarray(data).view(f"u{size}")


class TensorLoad(BoxTransfer):
    """cp.async.bulk.tensor from global memory, to one block or (multicast) several."""

    kind = "cp.async.bulk.tensor load"

    def __init__(
        self,
        warp: Warp,
        spec: TensorMapSpec,
        address: int,
        coordinates: Sequence[int],
        shared: int,
        targets: list[tuple[Cta, Mbarrier]],
    ) -> None:
        super().__init__(warp, spec, address, coordinates, shared)
        self.shared = shared
        self.targets = targets
        for cta, barrier in targets:
            cta.shared.begin(self, shared, shared + spec.shared_bytes, write=True)
            visible_barrier(warp, barrier, self.kind)
        for numbers, found in self.ranges(write=False):
            if found.shadow:
                at = found.offsets(self.rows[numbers])
                found.shadow.visible_to_async(self, at, self.row_bytes)

    def run(self) -> None:
        data = self.gather().view(np.uint64).reshape(-1, 2)
        words = tma.shared_chunks(self.spec, self.shared) // 8
        for cta, barrier in self.targets:
            cta.shared.views[8][words[:, None] + np.arange(2)] = data
            barrier.complete_transaction(self.spec.box_bytes, self.id)


class TensorStore(BoxTransfer):
    """cp.async.bulk.tensor to global memory, or its reducing form."""

    kind = "cp.async.bulk.tensor store"

    def __init__(
        self,
        warp: Warp,
        spec: TensorMapSpec,
        address: int,
        coordinates: Sequence[int],
        shared: int,
        *,
        reduce: str = "",
    ) -> None:
        if min(coordinates) < 0:
            raise IllegalInstruction(
                f"a tensor store at negative coordinates {tuple(coordinates)} (hardware refuses "
                "the instruction)"
            )
        super().__init__(warp, spec, address, coordinates, shared)
        self.reduce = reduce
        self.shared = shared
        self.reading = Reading(self)
        memory: SharedMemory = warp.cta.shared
        memory.begin(self.reading_op(), shared, shared + spec.shared_bytes, write=False)
        relaxed = warp.machine.rules == "hardware"
        for numbers, found in self.ranges(write=True):
            if found.shadow:
                at = found.offsets(self.rows[numbers])
                if reduce:
                    found.shadow.visible_to_async(self, at, self.row_bytes)
                else:
                    found.shadow.begin_scattered(self, at, self.row_bytes, relaxed=relaxed)

    def reading_op(self) -> Reading:
        self.reading.warp = self.warp  # type: ignore[attr-defined]
        return self.reading

    def run(self) -> None:
        spec = self.spec
        words = tma.shared_chunks(spec, self.shared) // 8
        data = self.warp.cta.shared.views[8][words[:, None] + np.arange(2)]
        rows = data.view(np.uint8).reshape(len(self.box.rows), self.box.row_bytes)
        rows = rows[self.inside, self.skip : self.skip + self.row_bytes]
        for numbers, found in self.ranges(write=True):
            part, at = rows[numbers], self.rows[numbers]
            if self.reduce:
                old = _take(found, at, self.row_bytes)
                part = combine(self.reduce, spec.dtype, old, part)
            _put(found, at, part)


class BulkLoad(AsyncOp):
    """cp.async.bulk into shared memory, from global memory or another block's shared memory."""

    kind = "cp.async.bulk load"

    def __init__(
        self,
        warp: Warp,
        source: tuple[str, int],
        nbytes: int,
        shared: int,
        targets: list[tuple[Cta, Mbarrier]],
    ) -> None:
        super().__init__(warp)
        require_bulk(nbytes, shared, source[1])
        self.source, self.nbytes, self.shared, self.targets = source, nbytes, shared, targets
        space, at = source
        if space == "shared":
            warp.cta.shared.begin(self, at, at + nbytes, write=False)
        else:
            self.range = warp.machine.global_memory.find(at, nbytes)
            if self.range.shadow:
                first = np.array([at - self.range.origin])
                self.range.shadow.visible_to_async(self, first, nbytes)
        for cta, barrier in targets:
            cta.shared.begin(self, shared, shared + nbytes, write=True)
            visible_barrier(warp, barrier, self.kind)

    def run(self) -> None:
        space, at = self.source
        if space == "shared":
            data = self.warp.cta.shared.view(at, self.nbytes).copy()
        else:
            data = self.range.data[at - self.range.lo : at - self.range.lo + self.nbytes]
        for cta, barrier in self.targets:
            cta.shared.view(self.shared, self.nbytes)[:] = data
            barrier.complete_transaction(self.nbytes, self.id)


class BulkStore(AsyncOp):
    """cp.async.bulk or cp.reduce.async.bulk from shared to global memory."""

    kind = "cp.async.bulk store"

    def __init__(
        self, warp: Warp, target: int, shared: int, nbytes: int, *, reduce: str, dtype: str
    ) -> None:
        super().__init__(warp)
        require_bulk(nbytes, shared, target)
        self.target, self.shared, self.nbytes = target, shared, nbytes
        self.reduce, self.dtype = reduce, dtype
        self.reading = Reading(self)
        self.reading.warp = warp  # type: ignore[attr-defined]
        warp.cta.shared.begin(self.reading, shared, shared + nbytes, write=False)
        self.range = warp.machine.global_memory.find(target, nbytes, write=True)
        if self.range.shadow:
            first = np.array([target - self.range.origin])
            if reduce:
                self.range.shadow.visible_to_async(self, first, nbytes)
            else:
                relaxed = warp.machine.rules == "hardware"
                self.range.shadow.begin_scattered(self, first, nbytes, relaxed=relaxed)

    def run(self) -> None:
        data = self.warp.cta.shared.view(self.shared, self.nbytes).copy()
        lo = self.target - self.range.lo
        there = self.range.data[lo : lo + self.nbytes]
        if self.reduce:
            data = combine(self.reduce, self.dtype, there.copy(), data)
        there[:] = data


class PeerReduction(AsyncOp):
    """cp.reduce.async.bulk into another block's shared memory."""

    kind = "cp.reduce.async.bulk to shared memory"

    def __init__(
        self, warp: Warp, peer: Cta, target: int, shared: int, nbytes: int, barrier: Mbarrier,
        *, reduce: str, dtype: str,
    ) -> None:  # fmt: skip
        super().__init__(warp)
        require_bulk(nbytes, shared, target)
        self.peer, self.target, self.shared, self.nbytes = peer, target, shared, nbytes
        self.barrier, self.reduce, self.dtype = barrier, reduce, dtype
        warp.cta.shared.begin(self, shared, shared + nbytes, write=False)
        visible_barrier(warp, barrier, self.kind)

    def run(self) -> None:
        data = self.warp.cta.shared.view(self.shared, self.nbytes).copy()
        there = self.peer.shared.view(self.target, self.nbytes)
        there[:] = combine(self.reduce, self.dtype, there.copy(), data)
        self.barrier.complete_transaction(self.nbytes, self.id)


class ThreadCopy(AsyncOp):
    """cp.async of one lane: `source_bytes` from global memory, zeros up to `nbytes`."""

    kind = "cp.async"

    def __init__(
        self, warp: Warp, target: int, source: int, nbytes: int, source_bytes: int
    ) -> None:
        super().__init__(warp)
        for name, at in (("shared", target), ("global", source)):
            if at % nbytes:
                raise Misaligned(f"the {name} address must be a multiple of {nbytes}", address=at)
        self.target, self.source, self.nbytes = target, source, nbytes
        self.source_bytes = source_bytes
        shared: SharedMemory = warp.cta.shared
        shared.view(target, nbytes)
        if shared.shadow:
            start = np.array([target])
            shared.shadow.begin_scattered(self, start, nbytes, relaxed=True, proxy=False)
        if source_bytes:
            warp.machine.global_memory.view(source, source_bytes)

    def run(self) -> None:
        data = np.zeros(self.nbytes, np.uint8)
        if self.source_bytes:
            data[: self.source_bytes] = self.warp.machine.global_memory.view(
                self.source, self.source_bytes
            )
        self.warp.cta.shared.view(self.target, self.nbytes)[:] = data


def require_bulk(nbytes: int, *addresses: int) -> None:
    if nbytes % BULK_ALIGNMENT or nbytes <= 0:
        raise Misaligned(f"a bulk copy's size must be a multiple of 16 above 0, got {nbytes}")
    for address in addresses:
        if address % BULK_ALIGNMENT:
            raise Misaligned("a bulk copy's addresses must be multiples of 16", address=address)
