# SPDX-License-Identifier: Apache-2.0
"""Asynchronous work: issued now, carried out as early, as late or as shuffled as the seed wills.

Seed 0 carries work out at once. Odd seeds hold it back until nothing else can run; the other seeds
let each piece through at random. The order that the ISA promises is kept through `after`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .lanes import Warp
    from .machine import Machine


class AsyncOp:
    """One piece of asynchronous work.

    Subclasses give `kind` (for messages) and `run()`, which moves the data and signals completion.
    `after` holds work that must be complete before this may run.
    """

    kind = "asynchronous work"
    complete: bool

    def __init__(self, warp: Warp, *, after: list[AsyncOp] | None = None) -> None:
        self.warp = warp
        self.line = warp.line
        self.id = next(warp.machine.ids)
        self.after = [op for op in after or () if not op.complete]
        self.complete = False

    def run(self) -> None:
        raise NotImplementedError

    def ready(self) -> bool:
        return all(op.complete for op in self.after)

    def settled(self) -> bool:
        """Over, and its block has ended too, so nobody can rely on it wrongly any more."""
        return self.complete and self.warp.cta.done


class AsyncQueue:
    """All work in flight of a launch, in the order of issue."""

    machine: Machine

    def __init__(self, machine: Machine, seed: int) -> None:
        self.machine = machine
        self.policy = "early" if seed == 0 else "late" if seed % 2 else "shuffled"
        self.waiting: list[AsyncOp] = []
        self.observer: Callable[[AsyncOp, bool], None] | None = None  # (work, whether complete)
        self._live: set[int] = set()
        self._horizon, self._pass = 0, -1

    @property
    def pending(self) -> bool:
        return bool(self.waiting)

    def submit(self, op: AsyncOp) -> None:
        if self.observer:
            self.observer(op, False)
        if self.policy == "early" and op.ready():
            self._carry_out(op)
        else:
            self.waiting.append(op)

    def prune(self, done: set[int]) -> None:
        """Forgets work that no memory holds a record of any more; its id says nothing."""
        if len(done) < 512:
            return
        if self._pass != self.machine.passes:
            self._pass = self.machine.passes
            self._live, self._horizon = self.machine.live_ids(), next(self.machine.ids)
        live, horizon = self._live, self._horizon
        done.difference_update([i for i in done if i < horizon and i not in live])

    def poll(self) -> bool:
        """Once per scheduling pass; True if anything was carried out."""
        if not self.waiting or self.policy == "late":
            return False
        return self._sweep(1.0 if self.policy == "early" else 0.3)

    def push(self) -> bool:
        """Nothing else can run: carry out at least one piece; False if there is none."""
        ready = [op for op in self.waiting if op.ready()]
        if not ready:
            return False
        op = ready[0] if self.policy != "shuffled" else self.machine.rng.choice(ready)
        self.waiting.remove(op)
        self._carry_out(op)
        return True

    def drain(self) -> None:
        while self.push():
            pass

    def finish(self, ops: list[AsyncOp]) -> None:
        """Carries out these and whatever they come after."""
        for op in ops:
            if not op.complete:
                self.finish(op.after)
                self.waiting.remove(op)
                self._carry_out(op)

    def _sweep(self, chance: float) -> bool:
        before, progress = len(self.waiting), True
        while progress:
            progress = False
            for op in list(self.waiting):
                if op.ready() and (chance == 1 or self.machine.rng.random() < chance):
                    self.waiting.remove(op)
                    self._carry_out(op)
                    progress = chance == 1
        return len(self.waiting) != before

    def _carry_out(self, op: AsyncOp) -> None:
        from ..errors import EmulationError

        try:
            op.run()
        except EmulationError as error:
            raise error.locate(
                kernel=self.machine.kernel, line=op.line, block=op.warp.cta.linear,
                warp=op.warp.index,
            ) from None  # fmt: skip
        op.complete = True
        op.after = []
        if self.observer:
            self.observer(op, True)
