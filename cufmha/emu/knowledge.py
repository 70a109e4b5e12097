# SPDX-License-Identifier: Apache-2.0
"""What a warp may rely on: vector clocks over the warps of its cluster, and finished async work.

Every warp counts epochs. It starts a new one whenever it publishes (arrives at a barrier, fences),
so "warp i, epoch e" names all that i did before its (e+1)-th publication. `clock[i] >= e` means:
ordered before me. `proxied[i] >= e`: also made visible to the async proxy by a proxy fence.
`foreign` holds the clocks of other clusters learned through global atomics.
"""

from __future__ import annotations

import numpy as np


class Knowledge:
    __slots__ = ("clock", "done", "foreign", "proxied", "tensor")

    def __init__(self, warps: int) -> None:
        self.clock = np.zeros(warps, np.int32)
        self.proxied = np.zeros(warps, np.int32)
        self.tensor = np.zeros(warps, np.int32)
        self.done: set[int] = set()
        self.foreign: dict[int, Knowledge] = {}

    def join(self, other: Knowledge) -> None:
        """Learn all that `other` holds (of the same cluster)."""
        np.maximum(self.clock, other.clock, out=self.clock)
        np.maximum(self.proxied, other.proxied, out=self.proxied)
        np.maximum(self.tensor, other.tensor, out=self.tensor)
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
        twin = Knowledge(len(self.clock))
        twin.clock[:] = self.clock
        twin.proxied[:] = self.proxied
        twin.tensor[:] = self.tensor
        twin.done = set(self.done)
        twin.foreign = dict(self.foreign)
        return twin
