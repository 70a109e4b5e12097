# SPDX-License-Identifier: Apache-2.0
"""tcgen05 of sm_100: allocation, loads, stores, waits and fences (PTX ISA 9.7.16.7, .8, .11)."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from ...errors import (
    IllegalInstruction,
    MissingTcgen05Wait,
    TmemAccess,
    TmemAllocation,
    UnsupportedTarget,
)
from ...isa import nodes
from .. import access
from ..context import Context
from ..lanes import Cta, Warp
from ..ordering import publish_to_async_proxy
from ..registers import Locked
from ..registry import Wait, operation
from ..tmem import TensorState, Tmem, TmemLoad, TmemStore
from ..types import LANES, some

Run = Callable[[Warp, np.ndarray], Wait | None]
_LANE = np.arange(LANES)


def require_target(inst: nodes.Instruction, ctx: Context) -> None:
    if ctx.arch == "sm_90a":
        raise UnsupportedTarget(f"{inst.name} does not exist on {ctx.arch}")


def group_of(inst: nodes.Instruction, ctx: Context) -> int:
    groups = [m for m in inst.modifiers if m.startswith("cta_group::")]
    if groups not in (["cta_group::1"], ["cta_group::2"]):
        ctx.fail(IllegalInstruction, "must name .cta_group::1 or .cta_group::2")
    return int(groups[0][-1])


def same(values: np.ndarray, mask: np.ndarray, what: str) -> int:
    active = values[mask]
    if some(active != active[0]):
        raise IllegalInstruction(f"{what} differs between lanes of the warp")
    return int(active[0])


class GroupUse:
    """Per block: all tcgen05 instructions of a kernel must name one .cta_group."""

    def __init__(self, cta: Cta) -> None:
        self.cta = cta
        self.group = 0

    def use(self, group: int) -> None:
        if self.group not in (0, group):
            raise IllegalInstruction(
                f".cta_group::{group} in a kernel that used .cta_group::{self.group}"
            )
        if group == 2 and (self.cta.cluster.size % 2 or self.cta.cluster.size < 2):
            raise IllegalInstruction(".cta_group::2 needs a cluster of an even number of blocks")
        self.group = group


# ---- allocation


def _columns(count: int) -> int:
    if count not in (32, 64, 128, 256, 512):
        raise TmemAllocation(f"columns must be a power of two from 32 to 512, got {count}")
    return count


@operation("tcgen05.alloc", kind="warp", isa="9.7.16.7.1", uniform=True)
def allocate(inst: nodes.Instruction, ctx: Context) -> Run:
    """Writes the address of `n` columns to shared memory; waits until they are free."""
    require_target(inst, ctx)
    group = group_of(inst, ctx)
    space = "shared" if any(m.startswith("shared") for m in inst.modifiers) else ""
    address, count = ctx.address(inst.operands[0], space), ctx.source(inst.operands[1], "u32")
    one = _LANE == 0
    one.setflags(write=False)

    def run(w: Warp, mask: np.ndarray) -> Wait | None:
        w.cta.state(GroupUse).use(group)
        tmem, columns = w.cta.state(Tmem), _columns(same(count(w), mask, "the column count"))
        if tmem.relinquished:
            raise TmemAllocation("alloc after tcgen05.relinquish_alloc_permit")
        start = tmem.place(columns)
        if start is None:
            return Wait(
                lambda: tmem.place(columns) is not None,
                lambda: (
                    f"{columns} free columns of tensor memory; allocated are "
                    f"{sum(tmem.allocations.values())} of 512"
                ),
            )
        tmem.allocate(start, columns, w.line)
        values = [np.full(LANES, start, np.uint32)]
        access.store(w, one, address(w), "shared" if space else "", 4, values)
        if w.machine.rules == "hardware":
            publish_to_async_proxy(w)
        return None

    return run


@operation("tcgen05.dealloc", kind="warp", isa="9.7.16.7.1", uniform=True)
def deallocate(inst: nodes.Instruction, ctx: Context) -> Run:
    require_target(inst, ctx)
    group = group_of(inst, ctx)
    address, count = (ctx.source(o, "u32") for o in inst.operands)

    def run(w: Warp, mask: np.ndarray) -> None:
        w.cta.state(GroupUse).use(group)
        tmem, columns = w.cta.state(Tmem), _columns(same(count(w), mask, "the column count"))
        start = same(address(w), mask, "the address")
        if w.machine.hazards:
            tmem.require_quiet(w, start, start + columns)
        tmem.free(start, columns)

    return run


@operation("tcgen05.relinquish_alloc_permit", kind="warp", isa="9.7.16.7.1", uniform=True)
def relinquish(inst: nodes.Instruction, ctx: Context) -> Run:
    require_target(inst, ctx)
    group = group_of(inst, ctx)

    def run(w: Warp, mask: np.ndarray) -> None:
        w.cta.state(GroupUse).use(group)
        w.cta.state(Tmem).relinquished = True

    return run


# ---- loads and stores

# shape -> registers for .x1, largest .xN, rows
_SHAPES = {"32x32b": (1, 128, 32), "16x64b": (1, 128, 16), "16x128b": (2, 64, 16),
           "16x256b": (4, 32, 16), "16x32bx2": (1, 128, 16)}  # fmt: skip


@lru_cache(maxsize=128)
def placement(shape: str, count: int, second: int) -> tuple[np.ndarray, np.ndarray]:
    """(lane, column) of every register and thread, relative to the address; registers x 32."""
    j = np.arange(count)[:, None]
    t, q, g = _LANE[None, :], _LANE[None, :] % 4, _LANE[None, :] // 4
    if shape == "32x32b":
        lanes, columns = t + 0 * j, j + 0 * t
    elif shape == "16x64b":
        lanes, columns = 8 * (t & 1) + g + 0 * j, 2 * j + (t >> 1 & 1)
    elif shape == "16x128b":
        lanes, columns = g + 8 * (j % 2), 4 * (j // 2) + q
    elif shape == "16x256b":
        lanes, columns = g + 8 * (j // 2 % 2), 8 * (j // 4) + 2 * q + j % 2
    else:
        lanes, columns = t % 16 + 0 * j, np.where(t < 16, j, second + j)
    for found in (lanes, columns):
        found.setflags(write=False)
    return lanes, columns


class Form:
    """The parsed modifiers of tcgen05.ld and .st, and its registers."""

    def __init__(
        self, inst: nodes.Instruction, ctx: Context, registers: Any, offset: Any, half: str
    ) -> None:
        self.shape = next((m for m in inst.modifiers if m in _SHAPES), "")
        number = next((m for m in inst.modifiers if m[0] == "x" and m[1:].isdigit()), "")
        if not self.shape or not number or "aligned" not in inst.modifiers:
            ctx.fail(IllegalInstruction, "must name .sync.aligned, a shape and a count")
        per, most, self.rows = _SHAPES[self.shape]
        times = int(number[1:])
        if times & (times - 1) or not 1 <= times <= most:
            ctx.fail(IllegalInstruction, f".{number} does not exist for .{self.shape}")
        self.count = per * times
        self.packed = half in inst.modifiers
        self.second = ctx.immediate(offset) if offset is not None else 0
        if (self.shape == "16x32bx2") != (offset is not None):
            ctx.fail(IllegalInstruction, ".16x32bx2 takes an offset, other shapes none")
        self.slots = ctx.slots(registers)
        if len(self.slots) != self.count:
            ctx.fail(IllegalInstruction, f"{self.count} registers wanted, got {len(self.slots)}")

    def locate(self, w: Warp, taddr: int) -> tuple[np.ndarray, np.ndarray]:
        """Absolute lanes and columns; TmemAccess for lanes that belong to other warps."""
        lane, column = taddr >> 16, taddr & 0xFFFF
        quarter = 32 * (w.index % 4)
        allowed = (quarter,) if self.rows == 32 else (quarter, quarter + 16)
        if lane not in allowed:
            raise TmemAccess(
                f"lane {lane} of tensor memory by warp {w.index}, which may touch lanes {quarter} "
                f"to {quarter + 31} (.{self.shape} from lane {' or '.join(map(str, allowed))})",
                address=taddr,
            )
        lanes, columns = placement(self.shape, self.count, self.second)
        return lanes + lane, columns + column


def _touch(
    w: Warp, op: Any, lanes: np.ndarray, columns: np.ndarray, form: Form, *, write: bool
) -> None:
    rows = np.arange(int(lanes.min()), int(lanes.min()) + form.rows)
    lo, hi = int(columns.min()), int(columns.max()) + 1
    if form.packed:
        hi = lo + 2 * (hi - lo)
    spans = [(lo, hi)]
    if form.shape == "16x32bx2":
        first = lo if form.second >= 0 else lo - form.second
        spans = [
            (first, first + form.count),
            (first + form.second, first + form.second + form.count),
        ]
    for start, end in spans:
        w.cta.state(Tmem).begin(op, rows, start, end, write=write, hazards=w.machine.hazards)


class LoadTicket:
    reason = MissingTcgen05Wait
    what = "tcgen05.ld"


class Pending:
    """Per warp: loads and stores that no tcgen05.wait has covered yet."""

    def __init__(self, warp: Warp) -> None:
        self.loads: list[tuple[TmemLoad, list[int], Any, Any]] = []
        self.stores: list[TmemStore] = []


@operation("tcgen05.ld", kind="warp", isa="9.7.16.8.1", uniform=True)
def load(inst: nodes.Instruction, ctx: Context) -> Run:
    """Registers are locked until tcgen05.wait::ld."""
    require_target(inst, ctx)
    offset = inst.operands[2] if len(inst.operands) > 2 else None
    form = Form(inst, ctx, inst.operands[0], offset, "pack::16b")
    return _load(ctx, form, inst.operands[1], form.slots, lambda values: list(values))


def _load(
    ctx: Context, form: Form, where: Any, slots: list[int], finish: Callable[..., Any]
) -> Run:
    address = ctx.address(where, "tmem")

    def run(w: Warp, mask: np.ndarray) -> None:
        lanes, columns = form.locate(w, same(address(w), mask, "the address"))
        op = TmemLoad(w, lanes, columns, form.packed)
        _touch(w, op, lanes, columns, form, write=False)
        if w.machine.hazards:
            for slot in slots:
                if isinstance(w.R[slot], Locked):
                    w.R[slot].view(None)
        if w.machine.rules == "hardware":  # the registers are interlocked
            w.machine.queue.submit(op)
            w.machine.queue.finish([op])
            for slot, values in zip(slots, finish(op.values), strict=True):
                w.write(slot, values)
            w.state(Pending).loads.append((op, [], None, None))
            return
        ticket = LoadTicket()
        w.lock_registers(slots, MissingTcgen05Wait, ticket, ticket.what)
        w.state(Pending).loads.append((op, slots, ticket, finish))
        w.machine.queue.submit(op)

    return run


@operation("tcgen05.ld.red", kind="warp", isa="9.7.16.8.2", uniform=True)
def load_and_reduce(inst: nodes.Instruction, ctx: Context) -> Run:
    """As ld, and per thread the smallest or largest of what it loaded; sm_103a."""
    if ctx.arch != "sm_103a":
        raise UnsupportedTarget(f"{inst.name} needs sm_103a, not {ctx.arch}")
    words = inst.modifiers
    name = next((m for m in words if m in ("min", "max")), "")
    kind = words[-1]
    offset = inst.operands[3] if len(inst.operands) > 3 else None
    form = Form(inst, ctx, inst.operands[0], offset, "pack::16b")
    if not name or kind not in ("f32", "u32", "s32") or form.shape not in ("32x32b", "16x32bx2"):
        ctx.fail(IllegalInstruction, "is no form of tcgen05.ld.red")
    result = ctx.slot(inst.operands[1])
    dtype = {"f32": np.float32, "u32": np.uint32, "s32": np.int32}[kind]

    def finish(values: np.ndarray) -> list[np.ndarray]:
        x = values.view(dtype)
        if "abs" in words:
            x = np.abs(x)
        if kind != "f32" or "NaN" in words:
            folded = x.max(axis=0) if name == "max" else x.min(axis=0)
        else:
            folded = (np.fmax if name == "max" else np.fmin).reduce(x, axis=0)
        return [*values, folded.view(np.uint32)]

    return _load(ctx, form, inst.operands[2], [*form.slots, result], finish)


@operation("tcgen05.st", kind="warp", isa="9.7.16.8.3", uniform=True)
def store(inst: nodes.Instruction, ctx: Context) -> Run:
    require_target(inst, ctx)
    offset = inst.operands[1] if len(inst.operands) > 2 else None
    registers = inst.operands[-1]
    form = Form(inst, ctx, registers, offset, "unpack::16b")
    items = registers.items if isinstance(registers, nodes.Vector) else (registers,)
    sources = [ctx.source(item, "b32") for item in items]
    address = ctx.address(inst.operands[0], "tmem")

    def run(w: Warp, mask: np.ndarray) -> None:
        lanes, columns = form.locate(w, same(address(w), mask, "the address"))
        values = np.stack([read(w) for read in sources])
        op = TmemStore(w, lanes, columns, form.packed, values)
        _touch(w, op, lanes, columns, form, write=True)
        w.state(Pending).stores.append(op)
        w.machine.queue.submit(op)

    return run


@operation("tcgen05.wait::ld", "tcgen05.wait::st", kind="warp", isa="9.7.16.8.5", uniform=True)
def wait(inst: nodes.Instruction, ctx: Context) -> Run:
    """wait::ld gives the registers their values; wait::st ends the stores."""
    require_target(inst, ctx)
    return _wait_loads if inst.modifiers[0] == "wait::ld" else _wait_stores


def _wait_loads(w: Warp, mask: np.ndarray) -> None:
    pending, state = w.state(Pending), w.state(TensorState)
    w.machine.queue.finish([op for op, *_ in pending.loads])
    for op, slots, ticket, finish in pending.loads:
        if finish is not None:
            w.unlock_registers(slots, ticket, finish(op.values))
            op.values = None
        state.waited(op)
    pending.loads.clear()


def _wait_stores(w: Warp, mask: np.ndarray) -> None:
    pending, state = w.state(Pending), w.state(TensorState)
    w.machine.queue.finish(list(pending.stores))
    for op in pending.stores:
        state.waited(op)
    pending.stores.clear()


@operation("tcgen05.fence::before_thread_sync", kind="warp", isa="9.7.16.11")
def fence_before(inst: nodes.Instruction, ctx: Context) -> Run:
    require_target(inst, ctx)
    return lambda w, mask: w.state(TensorState).fence_before()


@operation("tcgen05.fence::after_thread_sync", kind="warp", isa="9.7.16.11")
def fence_after(inst: nodes.Instruction, ctx: Context) -> Run:
    require_target(inst, ctx)
    return lambda w, mask: w.state(TensorState).fence_after()
