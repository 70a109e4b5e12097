# SPDX-License-Identifier: Apache-2.0
"""Cluster launch control (PTX ISA 9.7.13.17): running clusters take over blocks not yet started."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import IllegalInstruction, UnsupportedTarget
from ...isa import nodes
from ..asyncwork import AsyncOp
from ..context import Context
from ..lanes import Warp
from ..mbarrier import Mbarrier
from ..registry import operation
from ..transfers import visible_barrier
from ..types import LANES
from .mbarrier import locate

_CANCELED = 1 << 63


class Cancellation(AsyncOp):
    """Takes the next cluster off the grid and writes 16 bytes about it; tells the mbarrier."""

    kind = "clusterlaunchcontrol.try_cancel"

    def __init__(self, warp: Warp, offset: int, barrier: Mbarrier) -> None:
        super().__init__(warp)
        self.offset, self.barrier = offset, barrier
        warp.cta.shared.begin(self, offset, offset + 16, write=True)
        visible_barrier(warp, barrier, self.kind)

    def run(self) -> None:
        taken = self.warp.machine.take_cluster()
        words = [0, 0]
        if taken is not None:
            x, y, z = taken
            words = [x | y << 32, z | _CANCELED]
        view = self.warp.cta.shared.views[8]
        view[self.offset // 8 : self.offset // 8 + 2] = np.array(words, np.uint64)
        self.barrier.complete_transaction(16, self.id)


@operation("clusterlaunchcontrol.try_cancel", kind="warp", isa="9.7.13.17.1")
def try_cancel(inst: nodes.Instruction, ctx: Context) -> Any:
    if ctx.arch == "sm_90a":
        ctx.fail(UnsupportedTarget, "needs sm_100 or later")
    if "multicast::cluster::all" in inst.modifiers:
        from ...errors import UnsupportedInstruction

        ctx.fail(UnsupportedInstruction, "multicast is not executed")
    answer = ctx.address(inst.operands[0], "shared")
    barrier = ctx.address(inst.operands[1], "shared")

    def run(w: Warp, mask: np.ndarray) -> None:
        to, bars = answer(w), barrier(w)
        for lane in np.flatnonzero(mask).tolist():
            bar = locate(w, int(bars[lane]), remote=False)
            w.machine.queue.submit(Cancellation(w, int(to[lane]) & 0xFFFFFF, bar))

    return run


@operation("clusterlaunchcontrol.query_cancel", kind="warp", isa="9.7.13.17.2")
def query_cancel(inst: nodes.Instruction, ctx: Context) -> Any:
    """What a response says: is_canceled, or get_first_ctaid (::x, ::y, ::z or a vector of four)."""
    if ctx.arch == "sm_90a":
        ctx.fail(UnsupportedTarget, "needs sm_100 or later")
    what = inst.modifiers[1]
    source = ctx.slot(inst.operands[-1])
    low = np.uint64(0xFFFFFFFF)

    def parts(w: Warp) -> list[np.ndarray]:
        halves = w.R[source]
        x, y = halves[:, 0] & low, halves[:, 0] >> np.uint64(32)
        z = halves[:, 1] & low
        return [v.astype(np.uint32) for v in (x, y, z)]

    if what == "is_canceled":
        sink = ctx.sink(inst.operands[0], "pred")
        return lambda w, mask: sink(w, w.R[source][:, 1] >> np.uint64(63) == 1, mask)
    if what == "get_first_ctaid":
        sinks = [ctx.sink(o, "b32") for o in ctx.flat_operands()[:4]]

        def every(w: Warp, mask: np.ndarray) -> None:
            values = [*parts(w), np.zeros(LANES, np.uint32)]
            for sink, value in zip(sinks, values, strict=True):
                sink(w, value, mask)

        return every
    axis = {"get_first_ctaid::x": 0, "get_first_ctaid::y": 1, "get_first_ctaid::z": 2}.get(what)
    if axis is None:
        ctx.fail(IllegalInstruction, f"question .{what}")
    sink = ctx.sink(inst.operands[0], "b32")
    return lambda w, mask: sink(w, parts(w)[axis], mask)
