# SPDX-License-Identifier: Apache-2.0
"""What a warp may rely on: vector clocks over the warps of its cluster, and finished async work.

Every warp counts epochs. It starts a new one whenever it publishes (arrives at a barrier, fences),
so "warp i, epoch e" names all that i did before its (e+1)-th publication. `clock[i] >= e` means:
ordered before me. `proxied[m, i] >= e`: also made visible to the async proxy by a proxy fence, as
far as memory m goes: 0 is global memory, 1 + r the shared memory of the cluster's block r.
`foreign` holds the clocks of other clusters learned through global atomics.
"""

from __future__ import annotations

import numpy as np


class Knowledge:
    __slots__ = ("clock", "clocks", "done", "foreign", "proxied")

    def __init__(self, clocks: np.ndarray) -> None:
        """`clocks`: (2 + blocks of the cluster, warps of the cluster), `clock` on top."""
        self.clocks = clocks
        self.clock, self.proxied = clocks[0], clocks[1:]
        self.done: set[int] = set()
        self.foreign: dict[int, Knowledge] = {}

    @classmethod
    def nothing(cls, blocks: int, warps: int) -> Knowledge:
        """For a cluster of `blocks` blocks and `warps` warps in all."""
        return cls(np.zeros((2 + blocks, warps), np.int64))

    def join(self, other: Knowledge) -> None:
        """Learn all that `other` holds (of the same cluster)."""
        np.maximum(self.clocks, other.clocks, out=self.clocks)
        self.done |= other.done
        if other.foreign:
            for cluster, theirs in other.foreign.items():
                self.learn(cluster, theirs)

    def learn(self, cluster: int, other: Knowledge) -> None:
        """Learn what a warp of another cluster published."""
        mine = self.foreign.get(cluster)
        if mine is None:
            self.foreign[cluster] = other.copy()
        elif mine is not other:
            mine.join(other)
        self.done |= other.done

    def copy(self) -> Knowledge:
        twin = Knowledge(self.clocks.copy())
        twin.done = set(self.done)
        twin.foreign = dict(self.foreign)
        return twin
