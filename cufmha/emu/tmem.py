# SPDX-License-Identifier: Apache-2.0
"""Tensor memory of a block: 128 lanes x 512 columns of 32 bits, its allocation, and its hazards.

All accesses are asynchronous work on record here. A later one that touches the same cells, one of
both writing, must be ordered after it (PTX ISA 9.7.16.6):

- products and copies of one thread into the same accumulator follow each other by themselves;
- otherwise loads and stores must have been waited for (`tcgen05.wait`), products and copies through
  a commit and its mbarrier, and between threads `tcgen05.fence::before_thread_sync` goes before the
  barrier and `::after_thread_sync` behind it.

Under the rules "hardware" the fences are not asked for, and products of one thread are in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..errors import (
    AsyncReuse,
    DataRace,
    MissingTcgen05Fence,
    MissingTcgen05Wait,
    TmemAccess,
    TmemAllocation,
    Uninitialized,
)
from .asyncwork import AsyncOp
from .shadow import zeros

if TYPE_CHECKING:
    from .lanes import Cta, Warp

ROWS, COLUMNS = 128, 512


def lane_bits(lanes: np.ndarray) -> int:
    """Lanes, in ascending order, as a set of bits."""
    first, count = int(lanes[0]), len(lanes)
    if int(lanes[-1]) - first == count - 1:
        return ((1 << count) - 1) << first
    return sum(1 << lane for lane in lanes.tolist())


class TmemOp(AsyncOp):
    """Work on tensor memory. `thread` names warp and lane; loads and stores have lane −1."""

    moves_registers = False

    def __init__(self, warp: Warp, lane: int, *, after: list[AsyncOp] | None = None) -> None:
        super().__init__(warp, after=after)
        self.thread = (warp.cta.cluster.number, warp.uid, lane)
        self.waited = False
        self.wait_epoch = 0
        self.shape: tuple[int, ...] = ()


class TensorState:
    """Per warp: what its tcgen05 instructions may rely on, and what it waits for."""

    def __init__(self, warp: Warp) -> None:
        self.warp = warp
        self.adopted: set[int] = set()
        self.unpublished: set[int] = set()

    def fence_before(self) -> None:
        self.warp.knowledge.done |= self.unpublished
        self.unpublished.clear()

    def fence_after(self) -> None:
        self.adopted |= self.warp.knowledge.done
        self.warp.machine.queue.prune(self.adopted)

    def waited(self, op: TmemOp) -> None:
        """The warp itself saw the end of its load or store."""
        op.waited = True
        op.wait_epoch = int(self.warp.knowledge.clock[self.warp.uid])
        self.adopted.add(op.id)
        self.unpublished.add(op.id)


@dataclass(eq=False)
class Access:
    op: TmemOp
    lanes: int
    lo: int
    hi: int
    write: bool


class Tmem:
    """One block's tensor memory."""

    def __init__(self, cta: Cta) -> None:
        self.cta = cta
        self.cells = zeros(ROWS * COLUMNS, np.uint32).reshape(ROWS, COLUMNS)
        self.written = zeros(ROWS * COLUMNS, bool).reshape(ROWS, COLUMNS)
        self.allocations: dict[int, int] = {}
        self.lines: dict[int, int] = {}
        self.relinquished = False
        self.accesses: list[Access] = []

    # ---- allocation

    def place(self, count: int) -> int | None:
        """The first column where `count` columns are free, or None."""
        taken = np.zeros(COLUMNS, bool)
        for start, size in self.allocations.items():
            taken[start : start + size] = True
        for start in range(0, COLUMNS - count + 1, count):
            if not taken[start : start + count].any():
                return start
        return None

    def allocate(self, start: int, count: int, line: int) -> None:
        self.allocations[start] = count
        self.lines[start] = line
        self.written[:, start : start + count] = False

    def free(self, address: int, count: int) -> None:
        if self.allocations.get(address) != count:
            held = ", ".join(f"{n} at column {c}" for c, n in self.allocations.items()) or "nothing"
            raise TmemAllocation(
                f"dealloc of {count} columns at {address:#x}; allocated are {held}"
            )
        del self.allocations[address]
        self.accesses = [a for a in self.accesses if a.hi <= address or a.lo >= address + count]

    def at_exit(self) -> None:
        for start, count in self.allocations.items():
            raise TmemAllocation(
                f"the block ends with {count} columns at {start} still allocated "
                f"(line {self.lines[start]})"
            )

    def live_ids(self) -> set[int]:
        return {access.op.id for access in self.accesses}

    # ---- accesses

    def require_allocated(self, lo: int, hi: int) -> None:
        """All of columns [lo, hi) belong to allocations."""
        column = lo
        while column < hi:
            ends = [s + n for s, n in self.allocations.items() if s <= column < s + n]
            if not ends:
                raise TmemAccess(
                    f"column {column} of tensor memory is not allocated", address=column
                )
            column = ends[0]

    def begin(
        self, op: TmemOp, lanes: np.ndarray, lo: int, hi: int, *, write: bool, hazards: bool
    ) -> None:
        """An access to all cells of `lanes` x [lo, hi) is issued."""
        self.require_allocated(lo, hi)
        rows = slice(int(lanes[0]), int(lanes[-1]) + 1)
        if len(lanes) != rows.stop - rows.start:
            block = self.written[lanes, lo:hi]
        else:
            block = self.written[rows, lo:hi]
        if hazards and not write and not block.all():
            where = np.argwhere(~block)[0]
            lane, column = int(lanes[where[0]]), lo + int(where[1])
            raise Uninitialized(
                f"tensor memory lane {lane}, column {column} is read and was never written",
                address=lane << 16 | column,
            )
        if hazards:
            self._order(op, lane_bits(lanes), lo, hi, write=write)
        if write:
            self.written[lanes[:, None], np.arange(lo, hi)] = True

    def _order(self, op: TmemOp, bits: int, lo: int, hi: int, *, write: bool) -> None:
        kept = []
        for old in self.accesses:
            if old.lo < hi and lo < old.hi and old.lanes & bits and (write or old.write):
                require_order(op, old)
                if not old.lanes & ~bits and lo <= old.lo and old.hi <= hi:
                    continue  # whoever conflicts with it later conflicts with this one too
            elif old.lanes == bits and (old.lo, old.hi) == (lo, hi) and old.op.thread == op.thread:
                continue  # both read, and this one ends later
            kept.append(old)
        kept.append(Access(op, bits, lo, hi, write))
        self.accesses = kept

    def require_quiet(self, warp: Warp, lo: int, hi: int) -> None:
        """Before dealloc: all that was done there must be over, and known to be."""
        for old in self.accesses:
            if old.lo < hi and lo < old.hi:
                op = old.op
                known = op.id in warp.knowledge.done or _barrier_knows(warp, op)
                if not (known or op.id in warp.state(TensorState).adopted):
                    raise (AsyncReuse if not op.moves_registers else DataRace)(
                        f"columns {old.lo} to {old.hi - 1} are deallocated while {op.kind} of "
                        f"line {op.line} may still use them"
                    )


def _barrier_knows(warp: Warp, op: TmemOp) -> bool:
    """The op was waited for by its warp, and barriers order that before now."""
    return op.waited and (
        op.warp is warp or bool(warp.knowledge.clock[op.warp.uid] >= op.wait_epoch)
    )


def require_order(op: TmemOp, old: Access) -> None:
    """Raises unless `op`, being issued, is ordered after `old`."""
    earlier, warp = old.op, op.warp
    state = warp.state(TensorState)
    if earlier.id in state.adopted:
        return
    known = earlier.id in warp.knowledge.done
    if earlier.warp is warp:
        if earlier.waited or known:
            return
        if earlier.thread == op.thread and not op.moves_registers:
            in_order = warp.machine.rules == "hardware" or _pipelined(earlier, op)
            if in_order:
                return
    elif warp.machine.rules == "hardware" and (known or _barrier_knows(warp, earlier)):
        return
    what = (
        f"{op.kind} touches columns {old.lo} to {old.hi - 1} of tensor memory, which "
        f"{earlier.kind} of line {earlier.line} (warp {earlier.warp.index}) "
        f"{'writes' if old.write else 'reads'}"
    )
    if earlier.moves_registers and not earlier.waited:
        which = "ld" if not old.write else "st"
        raise MissingTcgen05Wait(f"{what}, with no tcgen05.wait::{which} between")
    if known:
        raise MissingTcgen05Fence(f"{what}: tcgen05.fence::after_thread_sync is missing here")
    if earlier.moves_registers and _barrier_knows(warp, earlier):
        raise MissingTcgen05Fence(
            f"{what}: tcgen05.fence::before_thread_sync is missing there, before the barrier, or "
            "::after_thread_sync here"
        )
    if earlier.moves_registers:
        raise DataRace(f"{what}, and no barrier orders that before")
    raise AsyncReuse(f"{what}, and whose completion was not waited for")


def _pipelined(earlier: TmemOp, later: TmemOp) -> bool:
    """Products into one accumulator of one shape; copies before products."""
    if earlier.kind == "tcgen05.cp":
        return True
    return earlier.shape != () and earlier.shape == later.shape


class TmemLoad(TmemOp):
    kind = "tcgen05.ld"
    moves_registers = True

    def __init__(self, warp: Warp, lanes: np.ndarray, columns: np.ndarray, packed: bool) -> None:
        super().__init__(warp, -1)
        self.lanes, self.columns, self.packed = lanes, columns, packed
        self.values: np.ndarray | None = None

    def run(self) -> None:
        cells = self.warp.cta.state(Tmem).cells
        if self.packed:
            low = cells[self.lanes, 2 * self.columns - self.columns.min()]
            high = cells[self.lanes, 2 * self.columns - self.columns.min() + 1]
            self.values = low & np.uint32(0xFFFF) | high << np.uint32(16)
        else:
            self.values = cells[self.lanes, self.columns]
        del self.lanes, self.columns


class TmemStore(TmemOp):
    kind = "tcgen05.st"
    moves_registers = True

    def __init__(
        self, warp: Warp, lanes: np.ndarray, columns: np.ndarray, packed: bool, values: np.ndarray
    ) -> None:
        super().__init__(warp, -1)
        self.lanes, self.columns, self.packed, self.values = lanes, columns, packed, values

    def run(self) -> None:
        cells = self.warp.cta.state(Tmem).cells
        if self.packed:
            first = 2 * self.columns - self.columns.min()
            cells[self.lanes, first] = self.values & np.uint32(0xFFFF)
            cells[self.lanes, first + 1] = self.values >> np.uint32(16)
        else:
            cells[self.lanes, self.columns] = self.values
        del self.lanes, self.columns, self.values
