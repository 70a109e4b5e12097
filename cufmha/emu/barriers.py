# SPDX-License-Identifier: Apache-2.0
"""Named barriers of a block and the barrier of a cluster: who has arrived, who may go on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from ..errors import IllegalInstruction
from .knowledge import Knowledge
from .lanes import Cluster, Cta, Warp
from .ordering import Fences
from .registry import Wait
from .types import LANES

_BARRIERS = 16
Predicate: TypeAlias = np.ndarray | None


@dataclass
class Outcome:
    """A phase that is over: what its participants published and how they voted."""

    payload: Knowledge
    votes: int
    voters: int

    def answer(self, fold: str) -> np.ndarray:
        if fold == "popc":
            return np.full(LANES, self.votes, np.uint32)
        return np.full(LANES, self.votes == self.voters if fold == "and" else self.votes > 0)


@dataclass
class Arrival:
    """Lanes of a warp that wait for one phase, and the phase's outcome once there is one."""

    mask: np.ndarray
    outcome: Outcome | None = None


@dataclass
class _Phase:
    payload: Knowledge
    expected: int | None = None
    arrived: int = 0
    votes: int = 0
    voters: int = 0
    waiting: list[Arrival] = field(default_factory=list)
    lines: dict[int, int] = field(default_factory=dict)


class NamedBarriers:
    """Per block: its 16 barriers."""

    def __init__(self, cta: Cta) -> None:
        self.all = [NamedBarrier(cta, number) for number in range(_BARRIERS)]

    def get(self, number: int) -> NamedBarrier:
        if number >= _BARRIERS:
            raise IllegalInstruction(f"barriers are numbered 0 to {_BARRIERS - 1}, got {number}")
        return self.all[number]


class NamedBarrier:
    """One barrier. Without a thread count it waits for all threads of the block that live."""

    def __init__(self, cta: Cta, number: int) -> None:
        self.cta = cta
        self.number = number
        self.phase = self._fresh()
        self.arrivals: dict[int, list[Arrival]] = {}

    def _fresh(self) -> _Phase:
        return _Phase(self.cta.cluster.new_knowledge())

    def arrive(self, w: Warp, mask: np.ndarray, expected: int | None) -> None:
        self._enter(w, mask, expected, None)
        self.complete()

    def sync(
        self, w: Warp, mask: np.ndarray, expected: int | None, votes: Predicate
    ) -> Outcome | Wait:
        """Lanes that have not arrived yet arrive; the outcome if all of them may go on."""
        mine = self.arrivals.setdefault(w.uid, [])
        fresh = mask.copy()
        for arrival in mine:
            fresh &= ~arrival.mask
        if fresh.any():
            self._enter(w, fresh, expected, votes)
            arrival = Arrival(fresh)
            mine.append(arrival)
            self.phase.waiting.append(arrival)
            self.complete()
        concerned = [arrival for arrival in mine if (arrival.mask & mask).any()]
        if any(arrival.outcome is None for arrival in concerned):
            return Wait(lambda: self._over(concerned), self._describe)
        for arrival in concerned:
            w.machine.acquire(w, arrival.outcome.payload, w.cta.cluster.number)  # type: ignore[union-attr]
            arrival.mask = arrival.mask & ~mask
        self.arrivals[w.uid] = [arrival for arrival in mine if arrival.mask.any()]
        return concerned[-1].outcome  # type: ignore[return-value]

    def _over(self, concerned: list[Arrival]) -> bool:
        if all(arrival.outcome for arrival in concerned):
            return True
        self.complete()  # others may have ended meanwhile
        return all(arrival.outcome for arrival in concerned)

    def _enter(self, w: Warp, lanes: np.ndarray, expected: int | None, votes: Predicate) -> None:
        phase = self.phase
        if expected is not None and (expected % LANES or expected == 0):
            raise IllegalInstruction(
                f"barrier {self.number}: the thread count must be a positive multiple of {LANES}, "
                f"got {expected}"
            )
        if phase.arrived and phase.expected != expected:
            raise IllegalInstruction(
                f"barrier {self.number} is used with {_count(expected)} while others arrived with "
                f"{_count(phase.expected)} (line {next(iter(phase.lines.values()))})"
            )
        phase.expected = expected
        number = int(lanes.sum())
        if expected is not None and number == int(w.alive.sum()):
            number = LANES  # a count is in whole warps
        phase.arrived += number
        if expected is not None and phase.arrived > expected:
            raise IllegalInstruction(
                f"barrier {self.number}: {phase.arrived} threads arrive, it expects {expected}"
            )
        phase.lines[w.uid] = w.line
        _contribute(phase.payload, w)
        if votes is not None:
            phase.votes += int((votes & lanes).sum())
            phase.voters += int(lanes.sum())

    def complete(self) -> None:
        """Ends the phase if enough threads have arrived."""
        phase = self.phase
        wanted = self.cta.living_threads() if phase.expected is None else phase.expected
        if not phase.arrived or phase.arrived < wanted:
            return
        outcome = Outcome(phase.payload, phase.votes, phase.voters)
        for arrival in phase.waiting:
            arrival.outcome = outcome
        self.phase = self._fresh()

    def _describe(self) -> str:
        phase = self.phase
        wanted = self.cta.living_threads() if phase.expected is None else phase.expected
        return f"barrier {self.number}, at which {phase.arrived} of {wanted} threads have arrived"


def _contribute(payload: Knowledge, w: Warp) -> None:
    if w.machine.hazards:
        payload.join(w.knowledge)
        w.bump()


def _count(expected: int | None) -> str:
    return "all threads of the block" if expected is None else f"{expected} threads"


class ClusterBarrier:
    """Per cluster: barrier.cluster.arrive and .wait, over all its threads that live."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.payload = cluster.new_knowledge()
        self.arrived = 0
        self.open: list[Arrival] = []
        self.arrivals: dict[int, list[Arrival]] = {}

    def arrive(self, w: Warp, mask: np.ndarray, *, relaxed: bool) -> None:
        mine = self.arrivals.setdefault(w.uid, [])
        for arrival in mine:
            if (arrival.mask & mask).any():
                raise IllegalInstruction(
                    "barrier.cluster.arrive twice with no barrier.cluster.wait between",
                    lanes=np.flatnonzero(arrival.mask & mask).tolist(),
                )
        if not relaxed:
            _contribute(self.payload, w)
        else:
            published = w.state(Fences).published
            if published is not None:
                self.payload.join(published)
        arrival = Arrival(mask.copy())
        mine.append(arrival)
        self.open.append(arrival)
        self.arrived += int(mask.sum())
        self.complete()

    def wait(self, w: Warp, mask: np.ndarray) -> Wait | None:
        mine = self.arrivals.get(w.uid, [])
        missing = mask.copy()
        for arrival in mine:
            missing &= ~arrival.mask
        if missing.any():
            raise IllegalInstruction(
                "barrier.cluster.wait with no barrier.cluster.arrive before it",
                lanes=np.flatnonzero(missing).tolist(),
            )
        concerned = [arrival for arrival in mine if (arrival.mask & mask).any()]
        if any(arrival.outcome is None for arrival in concerned):
            return Wait(lambda: self._over(concerned), self._describe)
        for arrival in concerned:
            w.machine.acquire(w, arrival.outcome.payload, self.cluster.number)  # type: ignore[union-attr]
            arrival.mask = arrival.mask & ~mask
        self.arrivals[w.uid] = [arrival for arrival in mine if arrival.mask.any()]
        return None

    def _over(self, concerned: list[Arrival]) -> bool:
        self.complete()
        return all(arrival.outcome for arrival in concerned)

    def _living(self) -> int:
        """Threads that must arrive; those that ended count as arrived."""
        return sum(cta.living_threads() for cta in self.cluster.ctas)

    def complete(self) -> None:
        gone = sum(
            int((arrival.mask & ~warp.alive).sum())
            for cta in self.cluster.ctas
            for warp in cta.warps
            for arrival in self.arrivals.get(warp.uid, [])
            if arrival.outcome is None
        )
        if not self.open or self.arrived - gone < self._living():
            return
        outcome = Outcome(self.payload, 0, 0)
        for arrival in self.open:
            arrival.outcome = outcome
        self.open, self.arrived = [], 0
        self.payload = self.cluster.new_knowledge()

    def _describe(self) -> str:
        return (
            f"the cluster barrier, at which {self.arrived} of {self._living()} threads have arrived"
        )
