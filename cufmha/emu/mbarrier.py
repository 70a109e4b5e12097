# SPDX-License-Identifier: Apache-2.0
"""mbarrier objects (PTX ISA 9.7.13.15): counts, phases, transactions, and what they pass on.

The object keeps its state beside shared memory; its 8 bytes are taken, so that whatever else
touches them while it lives is caught.

Each phase collects the knowledge of those who arrive. When it completes, that becomes what a
successful wait takes over. A warp that waits on a barrier is expected to see every phase: a wait
for a phase that is already two phases back cannot be told from the next one by its parity, and
raises PhaseError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..errors import IllegalInstruction, PhaseError, TransactionCount, Uninitialized
from .knowledge import Knowledge

if TYPE_CHECKING:
    from .lanes import Cta, Warp

MOST = (1 << 20) - 1


class Mbarrier:
    def __init__(self, cta: Cta, offset: int, count: int, initializer: Warp) -> None:
        self.cta = cta
        self.offset = offset
        self.expected = count
        self.pending = count
        self.transactions = 0
        self.phase = 0
        self.line = initializer.line
        self.proxied = False
        self.initializer = initializer.uid
        self.epoch = int(initializer.knowledge.clock[initializer.uid])
        self.gathering: Knowledge | None = None
        self.passed: Knowledge | None = None
        self.passed_done: set[int] = set()
        self.observed: dict[int, int] = {}

    # ---- arriving

    def arrive(self, count: int, knowledge: Knowledge | None, *, drop: bool = False) -> int:
        """`count` arrivals; returns the state before them, as `encode` writes it."""
        state = self.encode()
        if count > self.pending:
            raise PhaseError(
                f"{count} arrivals at the mbarrier of line {self.line}, whose phase {self.phase} "
                f"waits for {self.pending} more of {self.expected}"
            )
        if drop:
            self.expected -= count
            if self.expected < 0:
                raise PhaseError(f"arrive_drop below zero at the mbarrier of line {self.line}")
        if knowledge is not None:
            self._gather(knowledge)
        self.pending -= count
        self._complete()
        return state

    def arrive_async(self, op_id: int, count: int = 1) -> None:
        """An arrival by asynchronous work, which passes on only its own completion."""
        self.gathered().done.add(op_id)
        self.arrive(count, None)

    def expect(self, nbytes: int) -> None:
        self._transact(nbytes)

    def complete_transaction(self, nbytes: int, op_id: int | None = None) -> None:
        if op_id is not None:
            self.gathered().done.add(op_id)
        self._transact(-nbytes)
        self._complete()

    def _transact(self, nbytes: int) -> None:
        self.transactions += nbytes
        if abs(self.transactions) > MOST:
            raise TransactionCount(
                f"transaction count {self.transactions} of the mbarrier of line {self.line} leaves "
                f"-{MOST} to {MOST}"
            )

    def gathered(self) -> Knowledge:
        if self.gathering is None:
            self.gathering = self.cta.cluster.new_knowledge()
        return self.gathering

    def _gather(self, knowledge: Knowledge) -> None:
        self.gathered().join(knowledge)

    def _complete(self) -> None:
        if self.pending == 0 and self.transactions == 0:
            self.phase += 1
            self.pending = self.expected
            gathered, self.gathering = self.gathering, None
            if self.passed is None:
                self.passed = gathered
            elif gathered is not None:
                self.passed.join(gathered)
                self.cta.machine.queue.prune(self.passed.done)

    # ---- waiting

    def is_over(self, parity: int) -> bool:
        """Whether the phase of that parity is the one that completed last."""
        return (self.phase - 1) & 1 == parity

    def test(self, warp: Warp, parity: int) -> bool:
        over = self.is_over(parity)
        if warp.machine.rules == "isa" and warp.machine.hazards:
            self._follow(warp, parity, over)
        return over

    def _follow(self, warp: Warp, parity: int, over: bool) -> None:
        """A warp that has waited here before must not have missed a phase since."""
        last = self.observed.get(warp.uid)
        if last is not None:
            wanted = last if last & 1 == parity else last + 1
            if wanted < self.phase - 1 and wanted != last:
                raise PhaseError(
                    f"waits for parity {parity}, phase {wanted}, of the mbarrier of line "
                    f"{self.line}, which has completed phase {self.phase - 1} already"
                )
        if over:
            self.observed[warp.uid] = self.phase - 1

    # ---- state operands

    def encode(self) -> int:
        """The opaque 64-bit state: phase and pending count."""
        return (self.phase & 0xFFFFFFFF) << 32 | self.pending

    def describe(self, parity: int) -> str:
        return (
            f"parity {parity} of the mbarrier at shared offset {self.offset} (line {self.line}), "
            f"which is in phase {self.phase} and lacks {self.pending} of {self.expected} arrivals "
            f"and {self.transactions} transaction bytes"
        )


class Mbarriers:
    """The barriers that live in one block's shared memory, by offset."""

    def __init__(self, cta: Cta) -> None:
        self.cta = cta
        self.at: dict[int, Mbarrier] = {}

    def init(self, warp: Warp, offset: int, count: int) -> None:
        if not 1 <= count <= MOST:
            raise IllegalInstruction(f"mbarrier count must be 1 to {MOST}, got {count}")
        if offset in self.at:
            raise IllegalInstruction(
                f"mbarrier at shared offset {offset} is initialized again without mbarrier.inval "
                f"(first in line {self.at[offset].line})"
            )
        self._write(warp, offset)
        self.at[offset] = Mbarrier(self.cta, offset, count, warp)

    def invalidate(self, warp: Warp, offset: int) -> None:
        self.get(offset)
        del self.at[offset]
        if self.cta.shared.shadow:
            self.cta.shared.shadow.remove_object(offset)

    def get(self, offset: int) -> Mbarrier:
        found = self.at.get(offset)
        if found is None:
            raise Uninitialized(
                f"no mbarrier was initialized at shared offset {offset}", address=offset
            )
        return found

    def _write(self, warp: Warp, offset: int) -> None:
        """The object's bytes are written as by an ordinary store, then out of bounds for loads."""
        self.cta.shared.view(offset, 8)
        shadow = self.cta.shared.shadow
        if shadow:
            shadow.access(warp, np.array([offset]), 8, write=True)
            shadow.add_object(offset, warp.line)

    def at_exit(self) -> None:
        for barrier in self.at.values():
            if barrier.transactions:
                raise TransactionCount(
                    f"the block ends with {barrier.transactions} bytes outstanding on the mbarrier "
                    f"of line {barrier.line}"
                )
