# SPDX-License-Identifier: Apache-2.0
"""Release and acquire: fences, and the knowledge that strong accesses leave in memory cells.

A release attaches what the warp knows to the cell it writes; an acquire of that cell takes it over.
A relaxed access does the same together with a fence: before it (releasing) or after it (acquiring).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .knowledge import Knowledge
    from .lanes import Warp
    from .machine import Machine

RELEASING = frozenset({"release", "acq_rel", "sc"})
ACQUIRING = frozenset({"acquire", "acq_rel", "sc"})


class Fences:
    """Per warp: what its last fence published, and what its relaxed reads saw since."""

    def __init__(self, warp: Warp) -> None:
        self.warp = warp
        self.published: Knowledge | None = None
        self.seen: list[tuple[int, Knowledge]] = []

    def fence(self) -> None:
        machine = self.warp.machine
        for cluster, knowledge in self.seen:
            machine.acquire(self.warp, knowledge, cluster)
        self.seen.clear()
        self.published = machine.publish(self.warp)


class Cells:
    """Per launch: knowledge attached to memory cells, by address and by the releasing cluster."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.attached: dict[tuple[int, int], dict[int, Knowledge]] = {}

    def release(self, warp: Warp, addresses: Iterable[tuple[int, int]], *, sem: str) -> None:
        """Attaches the warp's knowledge (relaxed: as of its last fence) to cells it writes.

        A cell is (home, address): cluster number for shared memory, -1 for global.
        """
        knowledge = self.machine.publish(warp) if sem in RELEASING else warp.state(Fences).published
        if knowledge is None:
            return
        number = warp.cta.cluster.number
        for cell in addresses:
            here = self.attached.setdefault(cell, {})
            known = here.get(number)
            if known is None:
                here[number] = knowledge.copy()
            else:
                known.join(knowledge)

    def acquire(self, warp: Warp, addresses: Iterable[tuple[int, int]], *, sem: str) -> None:
        """Takes over what cells carry, at once or (relaxed) with the warp's next fence."""
        if not self.attached:
            return
        for cell in addresses:
            for number, knowledge in self.attached.get(cell, {}).items():
                if sem in ACQUIRING:
                    self.machine.acquire(warp, knowledge, number)
                else:
                    warp.state(Fences).seen.append((number, knowledge.copy()))


def publish_to_async_proxy(warp: Warp, space: str = "") -> None:
    """fence.proxy.async: what the warp knows of is visible to the async proxy from here on.

    `space`: only what was done to that memory; "" stands for all of it.
    """
    rank = warp.cta.rank
    rows = {"global": slice(0, 1), "shared::cta": slice(1 + rank, 2 + rank),
            "shared::cluster": slice(1, None), "": slice(None)}[space]  # fmt: skip
    proxied = warp.knowledge.proxied[rows]
    np.maximum(proxied, warp.knowledge.clock, out=proxied)
    warp.bump()
