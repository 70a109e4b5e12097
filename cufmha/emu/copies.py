# SPDX-License-Identifier: Apache-2.0
"""Groups of asynchronous copies that a thread commits and waits for: cp.async and bulk copies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import BulkStoreAtExit
from .asyncwork import AsyncOp
from .registry import Wait
from .types import LANES

if TYPE_CHECKING:
    from .lanes import Warp
    from .mbarrier import Mbarrier


class Reading:
    """The half of a bulk store that reads shared memory; `wait_group.read` ends with it."""

    def __init__(self, op: AsyncOp) -> None:
        self.op = op
        self.id = next(op.warp.machine.ids)
        self.kind, self.line = op.kind, op.line

    def settled(self) -> bool:
        return self.op.settled()


class Groups:
    """Per lane: operations not yet committed, and committed groups, oldest first."""

    def __init__(self, warp: Warp) -> None:
        self.warp = warp
        self.open: list[list[AsyncOp]] = [[] for _ in range(LANES)]
        self.groups: list[list[list[AsyncOp]]] = [[] for _ in range(LANES)]

    def add(self, lane: int, op: AsyncOp) -> None:
        self.open[lane].append(op)

    def commit(self, lanes: list[int]) -> None:
        for lane in lanes:
            self.groups[lane].append(self.open[lane])
            self.open[lane] = []

    def older(self, lane: int, pending: int) -> list[AsyncOp]:
        """All operations of the lane but those of its newest `pending` groups."""
        groups = self.groups[lane]
        return [op for group in groups[: len(groups) - pending] for op in group]

    def wait(self, lanes: list[int], pending: int, what: str) -> Wait | None:
        """None once the older groups are complete (then known to be so), else a Wait for them."""
        ops = [op for lane in lanes for op in self.older(lane, pending)]
        if not all(op.complete for op in ops):
            line = next(op.line for op in ops if not op.complete)
            return Wait(
                lambda: all(op.complete for op in ops),
                lambda: f"{what} issued in line {line} to complete",
            )
        self.know(ops)
        for lane in lanes:
            groups = self.groups[lane]
            self.groups[lane] = groups[len(groups) - pending :] if pending else []
        return None

    def know(self, ops: list[AsyncOp]) -> None:
        self.warp.knowledge.done.update(op.id for op in ops)


class ThreadCopies(Groups):
    """cp.async, whose completion may also be an arrival on an mbarrier."""

    def arrive_when_done(self, lane: int, barrier: Mbarrier) -> None:
        earlier = [op for group in self.groups[lane] for op in group] + self.open[lane]
        op = CopiesArrive(self.warp, barrier, [op for op in earlier if not op.complete])
        op.learned = [op.id for op in earlier]
        self.warp.machine.queue.submit(op)


class CopiesArrive(AsyncOp):
    kind = "cp.async.mbarrier.arrive"

    def __init__(self, warp: Warp, barrier: Mbarrier, after: list[AsyncOp]) -> None:
        super().__init__(warp, after=after)
        self.barrier = barrier
        self.learned: list[int] = []

    def run(self) -> None:
        self.barrier.gathered().done.update(self.learned)
        self.barrier.arrive(1, None)


class BulkGroups(Groups):
    """Bulk stores and reductions. `reads_waited`: how many leading groups had their reads ended."""

    def __init__(self, warp: Warp) -> None:
        super().__init__(warp)
        self.read_over: set[int] = set()

    def wait_reads(self, lanes: list[int], pending: int) -> Wait | None:
        ops = [op for lane in lanes for op in self.older(lane, pending)]
        if not all(op.complete for op in ops):
            line = next(op.line for op in ops if not op.complete)
            return Wait(
                lambda: all(op.complete for op in ops),
                lambda: f"the bulk store of line {line} to have read shared memory",
            )
        for op in ops:
            self.read_over.add(op.id)
            reading = getattr(op, "reading", None)
            if reading is not None:
                self.warp.knowledge.done.add(reading.id)
        return None

    def know(self, ops: list[AsyncOp]) -> None:
        for op in ops:
            self.warp.knowledge.done.add(op.id)
            reading = getattr(op, "reading", None)
            if reading is not None:
                self.warp.knowledge.done.add(reading.id)

    def at_exit(self) -> None:
        """A thread that ends gives up its block's shared memory, so all reads must be over."""
        for lane in range(LANES):
            ops = [op for group in self.groups[lane] for op in group] + self.open[lane]
            for op in ops:
                if op.id not in self.read_over and getattr(op, "reading", None) is not None:
                    raise BulkStoreAtExit(
                        f"the thread exits while {op.kind} of line {op.line} may still read shared "
                        "memory: no cp.async.bulk.wait_group covers it",
                        lanes=(lane,),
                    )
