# SPDX-License-Identifier: Apache-2.0
"""Warps, thread blocks and clusters while they run.

A warp is 32 lanes with one set of register arrays. Lanes that took different branches are separate
`Path`s; the path with the lowest program counter runs first, so paths meet again at the first
instruction they share.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ..errors import ConvergenceError, EmulationError
from .knowledge import Knowledge
from .registers import Fresh, Locked, Partial, Unwritten
from .registry import Exit, Split, Wait
from .types import LANES, some

if TYPE_CHECKING:
    from .machine import Machine
    from .memory import SharedMemory
    from .program import Program

T = TypeVar("T")
_FAR = 1 << 60
_TURN = 400


class Owner:
    """Something that families of instructions hang their own state on, one object per class."""

    def __init__(self) -> None:
        self._states: dict[type, Any] = {}

    def state(self, kind: Callable[[Any], T]) -> T:
        """The owner's object of class `kind`, made by `kind(owner)` on first use."""
        found = self._states.get(kind)  # type: ignore[call-overload]
        if found is None:
            found = self._states[kind] = kind(self)  # type: ignore[index]
        return found

    def states(self) -> list[Any]:
        return list(self._states.values())

    def leave(self) -> None:
        """Runs `at_exit` of every state that has one."""
        for state in list(self._states.values()):
            hook = getattr(state, "at_exit", None)
            if hook:
                hook()


class Path:
    """Lanes that share a program counter."""

    __slots__ = ("mask", "pc", "wait")

    def __init__(self, pc: int, mask: np.ndarray) -> None:
        self.pc = pc
        self.mask = mask
        self.wait: Wait | None = None


class Warp(Owner):
    """32 lanes. `mask` and `full` describe the lanes that execute right now."""

    count = LANES
    cta: Cta
    machine: Machine

    def __init__(self, cta: Cta, index: int, lanes: np.ndarray) -> None:
        super().__init__()
        self.cta = cta
        self.machine = cta.machine
        self.program: Program = cta.machine.program
        self.index = index
        self.uid = cta.rank * cta.warp_count + index
        self.knowledge = cta.cluster.new_knowledge()
        self.knowledge.clock[self.uid] = 1
        self.alive = lanes
        self.mask = lanes
        self.full = bool(lanes.all())
        self.paths = [Path(0, lanes)]
        self.pc = 0
        self.R = self.program.initial_registers(self)
        self.executed = 0
        self._tired: Path | None = None

    @property
    def warp(self) -> Warp:
        return self

    @property
    def line(self) -> int:
        return self.program.lines[self.pc]

    @property
    def done(self) -> bool:
        return not self.paths

    def bump(self) -> None:
        """A new epoch: what comes now is not covered by what was published."""
        self.knowledge.clock[self.uid] += 1

    # ---- registers

    def merge(self, slot: int, values: np.ndarray) -> None:
        """Writes the active lanes of a register and keeps the others."""
        old = self.R[slot]
        if isinstance(old, Fresh):
            old = old.view(values.dtype)
        if isinstance(old, np.ndarray):
            if old.dtype is not values.dtype:
                old = old.view(values.dtype)
            keep = self.mask if values.ndim == 1 else self.mask[:, None]
            self.R[slot] = np.where(keep, values, old)
            return
        name = self.program.register_names[slot]
        if isinstance(old, Locked):
            old.view(values.dtype)
        if isinstance(old, Partial):
            kept = old.values if old.values.dtype is values.dtype else old.values.view(values.dtype)
            keep = self.mask if values.ndim == 1 else self.mask[:, None]
            merged, valid = np.where(keep, values, kept), old.valid | self.mask
        else:
            merged, valid = values.copy(), self.mask.copy()
        whole = valid[self.alive].all()
        self.R[slot] = merged if whole else Partial(self, name, merged, valid)

    def write(self, slot: int, values: np.ndarray) -> None:
        if self.full:
            self.R[slot] = values
        else:
            self.merge(slot, values)

    def lock_registers(
        self, slots: list[int], reason: type[EmulationError], ticket: Any, what: str
    ) -> None:
        """Any use of the slots raises `reason` until `unlock_registers(ticket)`."""
        names = self.program.register_names
        for slot in slots:
            self.R[slot] = Locked(names[slot], self.R[slot], reason, ticket, what)

    def unlock_registers(
        self, slots: list[int], ticket: Any, values: list[np.ndarray] | None = None
    ) -> None:
        """Gives the slots back, with new contents if `values` is given."""
        for number, slot in enumerate(slots):
            held = self.R[slot]
            if not (isinstance(held, Locked) and held.ticket is ticket):
                name = self.program.register_names[slot]
                lock = ticket
                raise lock.reason(f"register {name} was written while {lock.what} was in flight")
            self.R[slot] = held.held if values is None else values[number]

    # ---- execution

    def require_converged(self, lanes: np.ndarray | None = None) -> Wait | None:
        """None once all of `lanes` (all living ones) are active; else a wait for them."""
        wanted = self.alive if lanes is None else lanes & self.alive
        if self.full or not some(wanted & ~self.mask):
            return None
        missing = np.flatnonzero(wanted & ~self.mask).tolist()
        return Wait(lambda: False, lambda: f"lanes {missing} of the warp to arrive here")

    def run(self, budget: int) -> int:
        """Executes up to about `budget` instructions; returns how many it did."""
        steps, executed = self.program.steps, 0
        while budget > executed and self.paths:
            path = self._choose()
            if path is None:
                break
            limit, turn = _FAR, budget
            if len(self.paths) > 1:  # one may spin until another releases it
                turn = min(budget, executed + _TURN)
                limit = min((p.pc for p in self.paths if p is not path and p.pc > path.pc),
                            default=_FAR)  # fmt: skip
            pc, self.mask = path.pc, path.mask
            self.full = some(self.mask) == LANES
            result: Any = None
            while turn > executed:
                self.pc = pc
                result = steps[pc](self)
                executed += 1
                if result is None:
                    pc += 1
                elif result.__class__ is int:
                    pc = result
                else:
                    break
                if pc >= limit:
                    break
            else:
                self._tired = path
            path.pc = pc
            if result is not None and result.__class__ is not int:
                self._handle(path, result)
            if len(self.paths) > 1:
                self._join_paths()
        self.executed += executed
        return executed

    def _choose(self) -> Path | None:
        """The lowest path that can go on; one that just used up its turn comes last."""
        ready = []
        for path in self.paths:
            if path.wait is None or path.wait.ready():
                ready.append(path)
        if len(ready) > 1 and self._tired in ready:
            ready.remove(self._tired)
        self._tired = None
        if not ready:
            return None
        path = min(ready, key=lambda p: p.pc)
        path.wait = None
        return path

    def _handle(self, path: Path, result: Wait | Split | Exit) -> None:
        if isinstance(result, Wait):
            path.wait = result
        elif isinstance(result, Split):
            self.paths.append(Path(result.target, result.taken))
            path.mask = path.mask & ~result.taken
            path.pc += not result.again
        else:
            self.alive = self.alive & ~result.leaving
            rest = path.mask & ~result.leaving
            if rest.any():
                path.mask = rest
                path.pc += 1
            else:
                self.paths.remove(path)
            if not self.paths:
                self.leave()

    def _join_paths(self) -> None:
        """Paths at the same instruction become one and try it together."""
        by_pc: dict[int, Path] = {}
        for path in self.paths:
            twin = by_pc.get(path.pc)
            if twin is None:
                by_pc[path.pc] = path
            else:
                twin.mask = twin.mask | path.mask
                twin.wait = None
        self.paths = list(by_pc.values())

    def waits(self) -> list[tuple[int, str]]:
        """(source line, what for) of every path that waits."""
        return [
            (self.program.lines[p.pc], p.wait.describe()) for p in self.paths if p.wait is not None
        ]

    def unwritten(self, slot: int) -> bool:
        return isinstance(self.R[slot], Unwritten)


class Cta(Owner):
    """A thread block."""

    cluster: Cluster
    machine: Machine

    def __init__(self, cluster: Cluster, rank: int, position: tuple[int, int, int]) -> None:
        super().__init__()
        self.cluster = cluster
        self.machine = cluster.machine
        self.rank = rank
        self.position = position
        grid = self.machine.grid
        self.linear = position[0] + grid[0] * (position[1] + grid[1] * position[2])
        self.warp_count = self.machine.warps_per_cta
        self.shared: SharedMemory = self.machine.new_shared(self)
        self.warps: list[Warp] = []

    def start(self) -> None:
        threads = self.machine.threads
        for index in range(self.warp_count):
            lanes = np.arange(LANES) + LANES * index < threads
            self.warps.append(Warp(self, index, lanes))

    @property
    def done(self) -> bool:
        return all(warp.done for warp in self.warps)

    def living_threads(self) -> int:
        return sum(int(warp.alive.sum()) for warp in self.warps if warp.paths)


class Cluster(Owner):
    """Thread blocks that run together and see each other's shared memory."""

    def __init__(self, machine: Machine, number: int, size: int) -> None:
        super().__init__()
        self.machine = machine
        self.number = number
        self.size = size
        self.ctas: list[Cta] = []

    def new_knowledge(self) -> Knowledge:
        return Knowledge.nothing(self.size, self.size * self.machine.warps_per_cta)

    @property
    def done(self) -> bool:
        return all(cta.done for cta in self.ctas)

    def dissolve(self) -> None:
        """Gives memory and registers back at once; the objects refer to each other in circles."""
        for cta in self.ctas:
            for warp in cta.warps:
                warp.R = []
                warp.knowledge = self.new_knowledge()
                warp._states.clear()
            cta.shared.release()
            cta._states.clear()
        self._states.clear()


def convergence_failure(warp: Warp) -> EmulationError:
    """The error for lanes that wait for others of their warp which will never come."""
    line, what = warp.waits()[0]
    return ConvergenceError(
        f"executed by part of the warp: waits for {what}", line=line, warp=warp.index,
        block=warp.cta.linear,
    )  # fmt: skip
