# SPDX-License-Identifier: Apache-2.0
"""wgmma in flight: four warps that issue one product together, its registers, its groups.

Every warp of the warpgroup issues by itself and hands in its part; the product is submitted with
the last part. From then to `wgmma.wait_group` the registers are locked. Accumulators may go from
one product to the next of the same shape without a wait; they stay a matrix meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import IllegalInstruction, MissingWgmmaFence, MissingWgmmaWait
from . import product
from .asyncwork import AsyncOp
from .descriptor import MatrixDescriptor, Operand
from .fragments import a_matrix, accumulator, accumulator_registers
from .knowledge import Knowledge
from .registers import Fresh
from .registry import Wait

if TYPE_CHECKING:
    from .lanes import Cta, Warp

_WARPS = 4


@dataclass(frozen=True)
class Shape:
    """What one wgmma.mma_async multiplies; `accumulator` is f32 or f16."""

    n: int
    k: int
    a: str
    b: str
    accumulator: str
    size: int


@dataclass(frozen=True)
class Request:
    """The operands that all four warps must agree on. `a` is None where A is in registers."""

    pc: int
    shape: Shape
    a: MatrixDescriptor | None
    b: MatrixDescriptor
    accumulate: bool
    negate_a: bool
    negate_b: bool
    a_mn_major: bool
    b_mn_major: bool


class WarpgroupView:
    """Stands for four warps where memory asks who issues: only what all of them know counts."""

    def __init__(self, warps: list[Warp], line: int) -> None:
        first = warps[-1]
        self.cta, self.machine, self.index, self.uid = (
            first.cta,
            first.machine,
            first.index,
            first.uid,
        )
        self.line = line
        known = [warp.knowledge for warp in warps]
        self.knowledge = joint = Knowledge(np.minimum.reduce([k.clocks for k in known]))
        joint.done = set.intersection(*[k.done for k in known])
        joint.foreign = known[0].foreign


class WgmmaOp(AsyncOp):
    kind = "wgmma.mma_async"

    def __init__(
        self,
        warp: Warp,
        request: Request,
        previous: WgmmaOp | None,
        slots: list[tuple[int, ...]],
    ) -> None:
        """`slots`: registers of D and, where it is in some, of A; the same in all warps."""
        super().__init__(warp)
        self.request = request
        self.previous = previous
        self.slots = slots
        self.parts: list[tuple[Warp, list[np.ndarray] | None, list[np.ndarray] | None]] = []
        self.submitted = False
        self.result: np.ndarray | None = None
        self.takers = _WARPS

    def add(self, warp: Warp, a: list[np.ndarray] | None, c: list[np.ndarray] | None) -> None:
        self.parts.append((warp, a, c))
        if len(self.parts) == _WARPS:
            self.parts.sort(key=lambda part: part[0].index)
            self._submit()

    def _submit(self) -> None:
        # memory hears of it only now: an id from before could be taken for one long forgotten
        self.id = next(self.warp.machine.ids)
        request, shape = self.request, self.request.shape
        shared = self.warp.cta.shared
        self.warp = WarpgroupView([part[0] for part in self.parts], self.line)  # type: ignore[assignment]
        if request.a is not None:
            self.a_at = request.a.operand(64, shape.k, shape.size, mn_major=request.a_mn_major)
            self._begin(shared, self.a_at)
        self.b_at = request.b.operand(shape.n, shape.k, shape.size, mn_major=request.b_mn_major)
        self._begin(shared, self.b_at)
        if self.previous is not None and not self.previous.complete:
            self.after = [self.previous]
        self.submitted = True
        self.warp.machine.queue.submit(self)

    def _begin(self, shared: Any, at: Operand) -> None:
        shared.begin(self, at.lo, at.hi, write=False)

    def run(self) -> None:
        request, shape = self.request, self.request.shape
        elements = self.warp.cta.shared.views[shape.size]
        if request.a is not None:
            raw = elements.take(self.a_at.index)
        else:
            raw = np.concatenate([a_matrix(part[1], shape.size) for part in self.parts])  # type: ignore[arg-type]
        a = product.decode(raw, shape.a)
        b = product.decode(elements.take(self.b_at.index), shape.b)
        if request.negate_a != request.negate_b:
            a = -a
        c = None
        if request.accumulate:
            if self.previous is not None:
                c, self.previous.result = self.previous.result, None
            else:
                rows = [accumulator(part[2], shape.accumulator) for part in self.parts]  # type: ignore[arg-type]
                c = np.concatenate(rows)
        self.result = product.multiply(a, b.T, c, shape.accumulator)
        self.previous = None
        self.parts = [(warp, None, None) for warp, _, _ in self.parts]


class Sequence:
    """Per warpgroup: the products its warps have begun to issue, by their number in the program."""

    def __init__(self) -> None:
        self.open: dict[int, WgmmaOp] = {}


class Sequences:
    def __init__(self, cta: Cta) -> None:
        self.of: dict[int, Sequence] = {}

    def get(self, warp: Warp) -> Sequence:
        group = warp.index // _WARPS
        if (group + 1) * _WARPS > warp.cta.warp_count:
            raise IllegalInstruction("wgmma needs a warpgroup of four warps")
        return self.of.setdefault(group, Sequence())


class Ticket:
    """The lock that all products of one warp share."""

    reason = MissingWgmmaWait
    what = "wgmma.mma_async"


class WgmmaState:
    """Per warp: registers as of the last fence, products not committed, groups not waited for."""

    def __init__(self, warp: Warp) -> None:
        self.warp = warp
        self.ticket = Ticket()
        self.fenced: list[Any] | None = None
        self.issued = 0
        self.uncommitted: list[WgmmaOp] = []
        self.groups: list[list[WgmmaOp]] = []
        # products in flight by the registers of one operand: all that use them, the last to write
        self.users: dict[tuple[int, ...], list[WgmmaOp]] = {}
        self.writer: dict[tuple[int, ...], WgmmaOp] = {}
        self.busy: dict[int, int] = {}  # register -> keys of `users` that it is part of
        self.written: set[int] = set()  # registers of all keys of `writer`

    def fence(self) -> None:
        self.fenced = list(self.warp.R)

    def issue(
        self, request: Request, d: tuple[int, ...], a: tuple[int, ...], d_kind: np.dtype
    ) -> None:
        warp = self.warp
        previous = self._previous(request, d)
        accumulators = None
        if previous is None:
            self._require_fenced(d)
            if request.accumulate:
                accumulators = [_contents(warp.R[slot], d_kind) for slot in d]
        if request.shape.accumulator == "f16" and accumulators:
            accumulators = [x.view(np.uint32) for x in accumulators]
        fragments = None
        if a:
            self._require_fenced(a)
            fragments = [_contents(self._held(slot), np.dtype(np.uint32)) for slot in a]
        slots = [d, a] if a else [d]
        sequence = warp.cta.state(Sequences).get(warp)
        op = sequence.open.get(self.issued)
        if op is None:
            op = sequence.open[self.issued] = WgmmaOp(warp, request, previous, slots)
        elif op.request != request:
            raise IllegalInstruction(
                f"operands differ from those of warp {op.parts[0][0].index} of the warpgroup "
                f"(line {op.line})"
            )
        if len(op.parts) == _WARPS - 1:
            del sequence.open[self.issued]
        self.issued += 1
        fresh = [slot for operand in slots for slot in self._enter(operand, op)]
        if warp.machine.hazards:
            warp.lock_registers(fresh, MissingWgmmaWait, self.ticket, self.ticket.what)
        self.writer[d] = op
        self.written.update(d)
        self.uncommitted.append(op)
        op.add(warp, fragments, accumulators)

    def _enter(self, slots: tuple[int, ...], op: WgmmaOp) -> list[int]:
        """The product uses these registers; those that no product in flight used yet."""
        ops = self.users.get(slots)
        if ops is not None:
            ops.append(op)
            return []
        self.users[slots] = [op]
        busy, fresh = self.busy, []
        for slot in slots:
            count = busy[slot] = busy.get(slot, 0) + 1
            if count == 1:
                fresh.append(slot)
        return fresh

    def _previous(self, request: Request, d: tuple[int, ...]) -> WgmmaOp | None:
        """The product in flight whose accumulators these are; only equal shapes may follow it."""
        previous = self.writer.get(d)
        if previous is None and self.written.isdisjoint(d):
            return None
        if previous is None or previous.request.shape.n != request.shape.n:
            raise MissingWgmmaWait(
                "accumulators of a product in flight enter one of another shape or order"
            )
        if previous.request.shape.accumulator != request.shape.accumulator:
            raise MissingWgmmaWait("accumulators of a product in flight enter one of another type")
        return previous

    def _held(self, slot: int) -> Any:
        """A register of A: it may be read by several products, but no product may be writing it."""
        if slot in self.written:
            raise MissingWgmmaWait(
                f"register {self.warp.program.register_names[slot]} holds part of A and is the "
                "accumulator of a product in flight"
            )
        held = self.warp.R[slot]
        return held.held if slot in self.busy and hasattr(held, "held") else held

    def _require_fenced(self, slots: tuple[int, ...]) -> None:
        if not self.warp.machine.hazards:
            return
        for slot in slots:
            now = self.warp.R[slot]
            if slot in self.busy or isinstance(now, Fresh):
                continue
            if self.fenced is None or self.fenced[slot] is not now:
                name = self.warp.program.register_names[slot]
                raise MissingWgmmaFence(
                    f"register {name} was touched after the last wgmma.fence, or there was none"
                )

    def commit(self) -> None:
        self.groups.append(self.uncommitted)
        self.uncommitted = []

    def wait(self, remaining: int) -> Wait | None:
        """All but the latest `remaining` groups must be complete."""
        over = self.groups[: max(len(self.groups) - remaining, 0)]
        pending = [op for group in over for op in group if not op.complete]
        if pending:
            return Wait(lambda: all(op.complete for op in pending), lambda: _describe(pending))
        self.groups = self.groups[len(over) :]
        for group in over:
            for op in group:
                self._release(op)
        return None

    def _release(self, op: WgmmaOp) -> None:
        self.warp.knowledge.done.add(op.id)
        for slots in op.slots:
            users = self.users[slots]
            users.remove(op)
            if not users:
                del self.users[slots]
                self._leave(slots)

    def _leave(self, slots: tuple[int, ...]) -> None:
        """No product in flight has this operand any more: unlocks its registers, with results."""
        warp, busy = self.warp, self.busy
        finished = []
        for slot in slots:
            busy[slot] -= 1
            if not busy[slot]:
                del busy[slot]
                finished.append(slot)
        writer = self.writer.pop(slots, None)
        values: list[Any] | None = None
        if writer is not None:
            self.written.difference_update(slots)
            results = self._results(writer, slots)
            values = [Fresh(warp, slot, results[slot]) for slot in finished]
        if warp.machine.hazards:
            warp.unlock_registers(finished, self.ticket, values)
        elif values is not None:
            for slot, value in zip(finished, values, strict=True):
                warp.R[slot] = value.values

    def _results(self, op: WgmmaOp, slots: tuple[int, ...]) -> dict[int, np.ndarray]:
        row = 16 * (self.warp.index % _WARPS)
        matrix = op.result[row : row + 16]  # type: ignore[index]
        op.takers -= 1
        if not op.takers:
            op.result = None
        registers = accumulator_registers(matrix, op.request.shape.accumulator)
        return dict(zip(slots, registers, strict=True))


def _contents(register: Any, kind: np.dtype) -> np.ndarray:
    return register if register.dtype is kind else register.view(kind)


def _describe(pending: list[WgmmaOp]) -> str:
    op = pending[0]
    if not op.submitted:
        here = sorted(part[0].index % _WARPS for part in op.parts)
        return f"wgmma.mma_async of line {op.line}, which only warps {here} of the warpgroup issued"
    return f"wgmma.mma_async of line {op.line}"
