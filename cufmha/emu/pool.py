# SPDX-License-Identifier: Apache-2.0
"""A block's registers and who holds them: what setmaxnreg gives back and takes (9.7.19.5)."""

from __future__ import annotations

from ..errors import IllegalInstruction, RegisterPool
from ..isa import nodes
from .lanes import Cta, Warp
from .registry import Wait
from .types import LANES

_FILE = 65536
_GROUP = 4


def registers_at_entry(entry: nodes.Function, threads: int) -> int | None:
    """Registers a thread starts with, where the entry's directives fix them.

    `.maxnreg` says so; `.minnctapersm` with a block size gives the largest multiple of 8 that fits.
    """
    given = entry.directive("maxnreg")
    if given:
        return int(given[0])
    blocks = entry.directive("minnctapersm")
    sized = entry.directive("reqntid") or entry.directive("maxntid")
    if not blocks or not sized:
        return None
    return min(256, _FILE // (threads * max(int(blocks[0]), 1)) // 8 * 8)


class RegisterAccounts:
    """Per block: registers free, and what each warp holds per thread."""

    def __init__(self, cta: Cta) -> None:
        machine = cta.machine
        self.entry = registers_at_entry(machine.program.entry, machine.threads)
        self.free = 0
        self.held = [self.entry or 0] * cta.warp_count
        self.waiting: set[int] = set()
        self.history: list[list[tuple[str, int]]] = [[] for _ in range(cta.warp_count)]
        self.total = sum(self.held) * LANES

    def change(self, w: Warp, action: str, count: int) -> Wait | None:
        if self.entry is None:
            if w.machine.rules == "hardware":
                return None
            raise RegisterPool(
                "setmaxnreg in an entry whose register count is not fixed: give .maxnreg, or "
                ".minnctapersm with .reqntid or .maxntid"
            )
        held = self.held[w.index]
        if (action == "inc" and count < held) or (action == "dec" and count > held):
            raise IllegalInstruction(
                f"setmaxnreg.{action} {count} by a warp that holds {held} registers a thread"
            )
        if w.index not in self.waiting:
            self._same_in_group(w, action, count)
        need = (count - held) * LANES
        group = [i for i in range(len(self.held)) if i // _GROUP == w.index // _GROUP]
        least = LANES * (count * len(group) + 24 * (len(self.held) - len(group)))
        if least > self.total:
            raise RegisterPool(
                f"setmaxnreg.inc {count} needs {count * len(group) * LANES} registers for its "
                f"warpgroup; the block was launched with {self.total}"
            )
        if need > self.free:
            self.waiting.add(w.index)
            return Wait(
                lambda: need <= self.free,
                lambda: f"{need} registers (setmaxnreg.inc {count}); {self.free} are free",
            )
        self.waiting.discard(w.index)
        self.free -= need
        self.held[w.index] = count
        return None

    def _same_in_group(self, w: Warp, action: str, count: int) -> None:
        """All warps of a warpgroup must execute the same setmaxnreg."""
        mine = self.history[w.index]
        mine.append((action, count))
        first = w.index - w.index % _GROUP
        for other in self.history[first : first + _GROUP]:
            if len(other) >= len(mine) and other[len(mine) - 1] != mine[-1]:
                raise IllegalInstruction(
                    f"setmaxnreg.{action} {count}, where another warp of the warpgroup executed "
                    f"setmaxnreg.{other[len(mine) - 1][0]} {other[len(mine) - 1][1]}"
                )
