# SPDX-License-Identifier: Apache-2.0
"""A launch: clusters come and go, warps take turns, asynchronous work is let through by seed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..errors import Deadlock, EmulationError
from .asyncwork import AsyncQueue
from .knowledge import Knowledge
from .lanes import Cluster, Cta, Owner, Warp, convergence_failure
from .memory import GlobalMemory, Range, SharedMemory
from .program import Program
from .targets import Target

RESIDENT = 8
"""Thread blocks that run at the same time."""
_STALE = 2000
"""Passes in which every warp only polls, and nothing asynchronous is left, that make a deadlock."""


def _aligned(params: bytes) -> Range:
    """The parameter block at a multiple of 128, as memory that generic loads may read."""
    raw = np.zeros(len(params) + 128, np.uint8)
    start = -raw.ctypes.data % 128
    raw[start : start + len(params)] = np.frombuffer(params, np.uint8)
    return Range.of(raw[start : start + len(params)], writable=False, name="parameters")


class Machine(Owner):
    """Runs one grid. Attributes that instructions use: arch, rules, hazards, rng, queue, …"""

    def __init__(
        self,
        program: Program,
        target: Target,
        *,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        cluster: tuple[int, int, int],
        dynamic_smem_bytes: int,
        params: bytes,
        ranges: list[Range],
        seed: int,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        super().__init__()
        self.program, self.target = program, target
        self.arch, self.rules, self.hazards = program.arch, program.rules, program.hazards
        self.kernel = program.kernel
        self.grid, self.block, self.cluster = grid, block, cluster
        self.threads = block[0] * block[1] * block[2]
        self.warps_per_cta = -(-self.threads // 32)
        self.dynamic_smem_bytes = dynamic_smem_bytes
        align = max(program.shared_align, 16)
        self.dynamic_start = -(-program.shared_static // align) * align
        self.parameters = _aligned(params)
        self.params = self.parameters.data
        self.seed = seed
        self.rng = random.Random(seed)
        self.queue = AsyncQueue(self, seed)
        warps = cluster[0] * cluster[1] * cluster[2] * self.warps_per_cta
        self.global_memory = GlobalMemory(ranges, warps, hazards=self.hazards, rules=self.rules)
        self.processors = target.processors
        self.executed = 0
        self.polls = 0
        self.passes = 0
        self.progress = progress
        self.ids = itertools.count(1)

    def time(self) -> int:
        """A clock that only ever grows: instructions executed."""
        return self.executed + sum(w.executed for c in self.resident for a in c.ctas
                                   for w in a.warps)  # fmt: skip

    def new_shared(self, cta: Cta) -> SharedMemory:
        size = self.dynamic_start + self.dynamic_smem_bytes - 1024
        return SharedMemory(cta, size, hazards=self.hazards)

    # ---- publishing what is known

    def publish(self, warp: Warp) -> Knowledge:
        """A snapshot for others to acquire; the warp starts a new epoch."""
        snapshot = warp.knowledge.copy()
        warp.bump()
        return snapshot

    def acquire(self, warp: Warp, knowledge: Knowledge, cluster: int) -> None:
        if cluster == warp.cta.cluster.number:
            warp.knowledge.join(knowledge)
        else:
            warp.knowledge.learn(cluster, knowledge)
        self.queue.prune(warp.knowledge.done)

    def live_ids(self) -> set[int]:
        """Ids of asynchronous work that shadows, or states with `live_ids`, still refer to."""
        shadows = [r.shadow for r in self.global_memory.ranges]
        found: set[int] = set()
        for cta in (cta for cluster in self.resident for cta in cluster.ctas):
            shadows.append(cta.shared.shadow)
            for state in cta.states():
                found |= state.live_ids() if hasattr(state, "live_ids") else set()
        for shadow in shadows:
            if shadow is not None:
                found |= shadow.live_ids()
        return found

    # ---- running

    def run(self) -> None:
        with np.errstate(all="ignore"):
            self._run()

    def _run(self) -> None:
        waiting = self._waiting = self._clusters()
        self.resident: list[Cluster] = []
        self.retired: list[Cluster] = []  # ended, but some of their work has not
        size = self.cluster[0] * self.cluster[1] * self.cluster[2]
        total = self.grid[0] * self.grid[1] * self.grid[2]
        finished, stale = 0, 0
        while True:
            while len(self.resident) * size < RESIDENT and (new := next(waiting, None)):
                self.resident.append(new)
            if not self.resident:
                self.queue.drain()
                self.leave()
                return
            self.polls = 0
            self.passes += 1
            executed = self._pass()
            moved = self.queue.poll()
            for cluster in [c for c in self.resident if c.done]:
                self._retire(cluster)
                finished += size
                if self.progress:
                    self.progress(finished, total)
            idle = executed == 0 and not moved and bool(self.resident)
            if idle and not self.queue.push() and not any(c.done for c in self.resident):
                raise self._stuck()
            stale = stale + 1 if executed and self.polls and not self.queue.pending else 0
            if stale > _STALE and self.polls >= self._living():
                raise self._stuck()

    def take_cluster(self) -> tuple[int, int, int] | None:
        """Takes a cluster that has not started off the grid: its first block's position."""
        taken = next(self._waiting, None)
        return taken.ctas[0].position if taken else None

    def _clusters(self) -> Iterator[Cluster]:
        cx, cy, cz = self.cluster
        gx, gy, gz = self.grid
        corners = itertools.product(range(0, gz, cz), range(0, gy, cy), range(0, gx, cx))
        for number, (z, y, x) in enumerate(corners):
            cluster = Cluster(self, number, cx * cy * cz)
            for dz, dy, dx in itertools.product(range(cz), range(cy), range(cx)):
                cluster.ctas.append(Cta(cluster, len(cluster.ctas), (x + dx, y + dy, z + dz)))
            for cta in cluster.ctas:
                cta.start()
            yield cluster

    def _pass(self) -> int:
        """Every warp gets a turn; returns how many instructions were executed."""
        warps = [w for c in self.resident for a in c.ctas for w in a.warps if w.paths]
        budget = 4000
        if self.seed:
            self.rng.shuffle(warps)
            budget = self.rng.choice((16, 100, 500, 4000))
        executed = 0
        for warp in warps:
            try:
                executed += warp.run(budget)
            except EmulationError as error:
                raise error.locate(
                    kernel=self.kernel, line=warp.line, block=warp.cta.linear, warp=warp.index
                ) from None
        return executed

    def _living(self) -> int:
        return sum(1 for c in self.resident for a in c.ctas for w in a.warps if w.paths)

    def _retire(self, cluster: Cluster) -> None:
        try:
            for cta in cluster.ctas:
                cta.leave()
            cluster.leave()
        except EmulationError as error:
            raise error.locate(kernel=self.kernel, line=self.program.lines[-1]) from None
        self.executed += sum(w.executed for a in cluster.ctas for w in a.warps)
        self.resident.remove(cluster)
        for found in self.global_memory.ranges:
            if found.shadow is not None:
                found.shadow.forget_settled()
        self.retired.append(cluster)
        busy = {op.warp.cta.cluster for op in self.queue.waiting}
        for gone in [c for c in self.retired if c not in busy]:
            self.retired.remove(gone)
            gone.dissolve()

    def _stuck(self) -> EmulationError:
        """Who waits for what; lanes that wait for their own warp are the root of it."""
        lines = []
        for cluster in self.resident:
            for cta in cluster.ctas:
                for warp in cta.warps:
                    for line, what in warp.waits():
                        if what.startswith("lanes") and len(warp.paths) == 1:
                            return convergence_failure(warp).locate(kernel=self.kernel, line=line)
                        lines.append(
                            f"block {cta.linear}, warp {warp.index}, line {line}: waits for {what}"
                        )
        text = "nothing can go on\n  " + "\n  ".join(lines or ["every warp only polls"])
        return Deadlock(text, kernel=self.kernel)


def describe_warps(warps: list[Warp]) -> Any:
    return ", ".join(f"warp {w.index}" for w in warps)
