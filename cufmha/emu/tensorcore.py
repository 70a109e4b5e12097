# SPDX-License-Identifier: Apache-2.0
"""Products of tcgen05.mma and copies of tcgen05.cp: operands, accumulators, completion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import IllegalInstruction, TmemAccess
from . import product
from .asyncwork import AsyncOp
from .descriptor import InstructionDescriptor, MatrixDescriptor, Operand
from .tmem import ROWS, Tmem, TmemOp

if TYPE_CHECKING:
    from .lanes import Cta, Warp
    from .mbarrier import Mbarrier

_HISTORY = 256
_COLUMNS_OF_A = 8


def pair_of(cta: Cta, group: int) -> list[Cta]:
    """The blocks a product works on: one, or both of a pair with the even rank first."""
    if group == 1:
        return [cta]
    first = cta.rank & ~1
    return cta.cluster.ctas[first : first + 2]


class Issuer:
    """Per warp: for each thread, its products and copies, which a commit tracks."""

    def __init__(self, warp: Warp) -> None:
        self.issued: dict[int, list[TmemOp]] = {}
        self.history: dict[int, list[int]] = {}

    def add(self, lane: int, op: TmemOp) -> None:
        running = [x for x in self.issued.get(lane, []) if not x.complete]
        self.issued[lane] = [*running, op]
        self.history[lane] = [*self.history.get(lane, [])[-_HISTORY:], op.id]

    def running(self, lane: int) -> list[TmemOp]:
        return [op for op in self.issued.get(lane, []) if not op.complete]

    def live_ids(self) -> set[int]:
        return {i for ids in self.history.values() for i in ids}


@dataclass(frozen=True)
class Placement:
    """Where the rows of an accumulator lie: per block the lanes of its rows, column halves apart.

    `split`: columns n ≥ N/2 lie on the lanes 64 further, in the same columns as the first half.
    """

    m: int
    group: int
    base_lane: int

    @property
    def split(self) -> bool:
        return self.group == 2 and self.m == 128

    @property
    def rows(self) -> int:
        """Rows per block."""
        return self.m // self.group

    def lanes(self) -> np.ndarray:
        """Lanes of the block's rows (for a split accumulator, of their first half)."""
        row = np.arange(self.rows)
        if self.m == 64:
            return row % 16 + 32 * (row // 16) + self.base_lane
        return row

    def touched(self) -> np.ndarray:
        return np.arange(ROWS) if self.split else self.lanes()

    def columns(self, n: int) -> int:
        return n // 2 if self.split else n

    def read(self, cells: np.ndarray, column: int, n: int) -> np.ndarray:
        lanes, width = self.lanes(), self.columns(n)
        block = cells[lanes, column : column + width]
        if self.split:
            block = np.concatenate([block, cells[lanes + 64, column : column + width]], axis=1)
        return block

    def write(
        self, cells: np.ndarray, column: int, values: np.ndarray, keep: np.ndarray | None
    ) -> None:
        """`keep`: lanes that are not written."""
        lanes, width = self.lanes(), self.columns(values.shape[1])
        halves = [(lanes, values[:, :width])]
        if self.split:
            halves.append((lanes + 64, values[:, width:]))
        for where, part in halves:
            chosen = slice(None) if keep is None else ~keep[where]
            cells[where[chosen], column : column + width] = part[chosen]


class TensorProduct(TmemOp):
    """D = A·B (+ D·2^-scale)."""

    kind = "tcgen05.mma"

    def __init__(
        self,
        warp: Warp,
        lane: int,
        *,
        group: int,
        instruction: InstructionDescriptor,
        d: int,
        a: MatrixDescriptor | int,
        b: MatrixDescriptor,
        accumulate: bool,
        scale: int,
        disabled: np.ndarray | None,
    ) -> None:
        super().__init__(warp, lane)
        self.ctas = pair_of(warp.cta, group)
        self.instruction, self.a, self.b = instruction, a, b
        self.accumulate, self.scale, self.disabled = accumulate, scale, disabled
        self.size = product.SIZES[instruction.a]
        self.k = 32 // self.size
        self.column = d & 0xFFFF
        self.at = Placement(instruction.m, group, d >> 16)
        if d >> 16 not in ((0, 16) if instruction.m == 64 else (0,)):
            raise TmemAccess(f"an accumulator of {instruction.m} rows at lane {d >> 16}", address=d)
        self.shape = (d, instruction.m, instruction.n, group)

    def issue(self) -> None:
        """Checks order and bounds of all operands, then hands the work in."""
        inst, hazards = self.instruction, self.warp.machine.hazards
        issuer = self.warp.state(Issuer)
        lane = self.thread[2]
        hardware = self.warp.machine.rules == "hardware"
        running = issuer.running(lane)
        self.after = [
            op for op in running if hardware or op.kind == "tcgen05.cp" or op.shape == self.shape
        ]
        width = self.at.columns(inst.n)
        b_rows = inst.n // len(self.ctas)
        self.b_at = self.b.operand(b_rows, self.k, self.size, mn_major=inst.b_mn_major)
        if isinstance(self.a, MatrixDescriptor):
            self.a_at = self.a.operand(self.at.rows, self.k, self.size, mn_major=inst.a_mn_major)
        elif inst.a_mn_major:
            raise IllegalInstruction("A in tensor memory cannot be MN-major")
        for cta in self.ctas:
            tmem = cta.state(Tmem)
            if not isinstance(self.a, MatrixDescriptor):
                column = self.a & 0xFFFF
                lanes = self._a_lanes()
                tmem.begin(
                    self, lanes, column, column + _COLUMNS_OF_A, write=False, hazards=hazards
                )
            if self.accumulate:
                tmem.begin(self, self.at.touched(), self.column, self.column + width, write=False,
                           hazards=hazards)  # fmt: skip
            tmem.begin(self, self.at.touched(), self.column, self.column + width, write=True,
                       hazards=hazards)  # fmt: skip
            if isinstance(self.a, MatrixDescriptor):
                begin_shared(self, cta, self.a_at)
            begin_shared(self, cta, self.b_at)
        issuer.add(lane, self)
        self.warp.machine.queue.submit(self)

    def _a_lanes(self) -> np.ndarray:
        assert isinstance(self.a, int)
        if self.instruction.m != 64 and self.a >> 16:
            raise TmemAccess(
                f"A of {self.instruction.m} rows at lane {self.a >> 16}", address=self.a
            )
        if self.instruction.m == 64 and self.a >> 16 != self.at.base_lane:
            raise TmemAccess("A and D must lie on the same lanes", address=self.a)
        return self.at.lanes()

    def run(self) -> None:
        inst = self.instruction
        b = np.concatenate([self._decode(cta, self.b_at, inst.b) for cta in self.ctas])
        if inst.negate_a != inst.negate_b:
            b = -b
        for cta in self.ctas:
            cells = cta.state(Tmem).cells
            c = None
            if self.accumulate:
                held = self.at.read(cells, self.column, inst.n)
                c = held.view(np.float32) if inst.accumulator == "f32" else _halves(held)
                c = c * np.float32(2.0**-self.scale) if self.scale else c
            d = product.multiply(self._a_of(cta, cells), b.T, c, inst.accumulator)
            if inst.accumulator == "f32":
                raw = np.ascontiguousarray(d).view(np.uint32)
            else:
                raw = d.astype(np.float16).view(np.uint16).astype(np.uint32)
            keep = None
            if self.disabled is not None:
                first = ROWS * self.ctas.index(cta)
                keep = self.disabled[first : first + ROWS]
            self.at.write(cells, self.column, raw, keep)

    def _a_of(self, cta: Cta, cells: np.ndarray) -> np.ndarray:
        if isinstance(self.a, MatrixDescriptor):
            return self._decode(cta, self.a_at, self.instruction.a)
        column = self.a & 0xFFFF
        block = np.ascontiguousarray(cells[self._a_lanes(), column : column + _COLUMNS_OF_A])
        return product.decode(block.view(f"u{self.size}"), self.instruction.a)

    def _decode(self, cta: Cta, at: Operand, kind: str) -> np.ndarray:
        return product.decode(cta.shared.views[self.size].take(at.index), kind)


def _halves(cells: np.ndarray) -> np.ndarray:
    return cells.astype(np.uint16).view(np.float16).astype(np.float32)


def begin_shared(op: TmemOp, cta: Cta, at: Operand) -> None:
    """Reads shared memory through the async proxy; takes the place of the thread's older reads of
    the same bytes, which end no later."""
    lo, hi = at.lo, at.hi
    shadow = cta.shared.shadow
    if shadow is not None:
        shadow.regions = [
            r for r in shadow.regions
            if r.write or (r.lo, r.hi) != (lo, hi) or getattr(r.op, "thread", None) != op.thread
        ]  # fmt: skip
    cta.shared.begin(op, lo, hi, write=False)


class TensorCopy(TmemOp):
    """tcgen05.cp: rows of shared memory to lanes of tensor memory."""

    kind = "tcgen05.cp"

    def __init__(
        self, warp: Warp, lane: int, group: int, address: int, source: MatrixDescriptor,
        rows: int, words: int, quarters: tuple[tuple[int, ...], ...],
    ) -> None:  # fmt: skip
        super().__init__(warp, lane)
        self.ctas = pair_of(warp.cta, group)
        self.column = address & 0xFFFF
        if address >> 16:
            raise TmemAccess(f"a copy to lane {address >> 16}", address=address)
        self.words = words
        self.from_ = source.operand(rows, words, 4, mn_major=False)
        self.targets = [np.concatenate([32 * q + np.arange(32) for q in turn]) for turn in quarters]

    def issue(self) -> None:
        hazards = self.warp.machine.hazards
        issuer = self.warp.state(Issuer)
        lane = self.thread[2]
        self.after = list(issuer.running(lane))
        lanes = np.unique(np.concatenate(self.targets))
        for cta in self.ctas:
            cta.state(Tmem).begin(self, lanes, self.column, self.column + self.words, write=True,
                                  hazards=hazards)  # fmt: skip
            begin_shared(self, cta, self.from_)
        issuer.add(lane, self)
        self.warp.machine.queue.submit(self)

    def run(self) -> None:
        for cta in self.ctas:
            words = cta.shared.views[4].take(self.from_.index)
            for lanes in self.targets:
                cta.state(Tmem).cells[lanes, self.column : self.column + self.words] = words


class Commit(AsyncOp):
    """tcgen05.commit: arrives once all earlier work of its thread is complete."""

    kind = "tcgen05.commit"

    def __init__(self, warp: Warp, lane: int, barriers: list[Mbarrier]) -> None:
        issuer = warp.state(Issuer)
        super().__init__(warp, after=list(issuer.running(lane)))
        self.ids = list(issuer.history.get(lane, []))
        self.barriers = barriers

    def run(self) -> None:
        for barrier in self.barriers:
            barrier.gathered().done.update(self.ids)
            barrier.arrive_async(self.id)


def lanes_disabled(words: list[Any]) -> np.ndarray:
    """The write mask of a product: bit i of the concatenated words keeps lane i."""
    return np.concatenate([np.uint32(x) >> np.arange(32, dtype=np.uint32) & 1 for x in words]) != 0
