# SPDX-License-Identifier: Apache-2.0
"""mov, ld, st and address arithmetic (PTX ISA 9.7.9): every type, vector and state space."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ...errors import IllegalInstruction, UnsupportedInstruction
from ...isa import nodes
from .. import access, types
from ..context import Context
from ..lanes import Warp
from ..memory import LOCAL, PARAM, SHARED
from ..registry import LaneFn, operation
from ..types import LANES, UNSIGNED

_SPACES = ("global", "shared", "shared::cta", "shared::cluster", "local", "param", "const",
           "param::entry", "param::func")  # fmt: skip
# What says how fast or how ordered, not what: caches, eviction, scopes.
_HINT_WORDS = (
    "ca cg cs lu cv wb wt nc weak cta cluster gpu sys unified "
    "L1::evict_normal L1::evict_unchanged L1::evict_first L1::evict_last L1::no_allocate "
    "L2::evict_normal L2::evict_first L2::evict_last L2::64B L2::128B L2::256B"
)
_HINTS = frozenset(_HINT_WORDS.split())
_STRONG = frozenset(("volatile", "relaxed", "mmio", "acquire", "release"))


class Form:
    """The parsed modifiers of a ld or st."""

    def __init__(self, inst: nodes.Instruction, ctx: Context) -> None:
        self.space, self.vector, self.kind = "", 1, ""
        self.hint, self.sem = False, ""
        for word in inst.modifiers:
            if word in _SPACES:
                self.space = word.split("::")[0] if word != "shared::cluster" else word
            elif word in ("v2", "v4", "v8"):
                self.vector = int(word[1:])
            elif word in _STRONG:
                self.sem = self.sem or word
            elif word == "L2::cache_hint":
                self.hint = True
            elif types.known(word) and word != "pred":
                self.kind = word
            elif word not in _HINTS:
                ctx.fail(UnsupportedInstruction, f"modifier .{word}")
        if not self.kind:
            ctx.fail(IllegalInstruction, "has no type")
        self.bytes = types.width(self.kind) // 8


def _parts(operand: Any, form: Form, ctx: Context) -> list[Any]:
    items = list(operand.items) if isinstance(operand, nodes.Vector) else [operand]
    if len(items) != form.vector:
        ctx.fail(IllegalInstruction, f".v{form.vector} with {len(items)} registers")
    return items


@operation("ld", "ldu", kind="warp", isa="9.7.9.8")
def load(inst: nodes.Instruction, ctx: Context) -> Any:
    form = Form(inst, ctx)
    items = _parts(inst.operands[0], form, ctx)
    if form.space == "param" and not _is_local(inst.operands[1], ctx):
        return _load_parameter(inst, ctx, form, items)
    space = _space(inst.operands[1], form, ctx)
    address = ctx.address(inst.operands[1], "shared" if "shared" in space else space)
    if form.bytes == 16:
        return _load_wide(ctx, items, address, space, form)
    sinks = [ctx.sink(item, form.kind) for item in items]
    size, count, strong = form.bytes, form.vector, bool(form.sem)
    dtype = types.dtype(form.kind)

    def run(w: Warp, mask: np.ndarray) -> None:
        found = access.load(w, mask, address(w), space, size, count, strong=strong)
        if strong:
            access.acquire(w, mask, address(w), space, sem=form.sem)
        for sink, values in zip(sinks, found, strict=True):
            sink(w, values.view(dtype), mask)

    return run


def _load_wide(
    ctx: Context, items: list[Any], address: Any, space: str, form: Form
) -> Callable[[Warp, np.ndarray], None]:
    """128-bit registers: two 64-bit halves a lane."""
    slots = [ctx.slot(item) for item in items]

    def run(w: Warp, mask: np.ndarray) -> None:
        halves = access.load(w, mask, address(w), space, 8, 2 * len(slots), align=16)
        for number, slot in enumerate(slots):
            w.write(slot, np.stack(halves[2 * number : 2 * number + 2], axis=1))

    return run


def _is_local(operand: Any, ctx: Context) -> bool:
    """.param variables of calls live in local memory."""
    base = getattr(operand, "base", None)
    variable = ctx.program.variable(base.name, ctx.scope) if base else None
    return variable is not None and variable.space == "local"


def _space(operand: Any, form: Form, ctx: Context) -> str:
    if form.space in ("param",):
        return "local"
    if form.space == "const":
        return "global"
    return form.space


def _load_parameter(inst: nodes.Instruction, ctx: Context, form: Form, items: list[Any]) -> Any:
    """Kernel parameters are the same for every thread."""
    sinks = [ctx.sink(item, form.kind) for item in items]
    address = ctx.address(inst.operands[1], "param")
    dtype = UNSIGNED[form.bytes * 8]

    def run(w: Warp, mask: np.ndarray) -> None:
        at = int(address(w)[int(np.argmax(mask))])
        at = at - PARAM if at >= PARAM else at
        data = w.machine.params
        access.check_parameter(at, form.bytes * form.vector, form.bytes * form.vector, len(data))
        for number, sink in enumerate(sinks):
            start = at + number * form.bytes
            value = data[start : start + form.bytes].view(dtype)
            sink(w, np.repeat(value, LANES).view(types.dtype(form.kind)), mask)

    return run


@operation("st", kind="warp", isa="9.7.9.11")
def store(inst: nodes.Instruction, ctx: Context) -> Any:
    form = Form(inst, ctx)
    items = _parts(inst.operands[1], form, ctx)
    space = _space(inst.operands[0], form, ctx)
    if space == "global" and form.space == "const":
        ctx.fail(IllegalInstruction, "constant memory cannot be written")
    address = ctx.address(inst.operands[0], "shared" if "shared" in space else space)
    size = form.bytes
    if size == 16:
        slots = [ctx.slot(item) for item in items]

        def wide(w: Warp, mask: np.ndarray) -> None:
            halves = [w.R[slot][:, half] for slot in slots for half in (0, 1)]
            access.store(w, mask, address(w), space, 8, halves, align=16)

        return wide
    sources = [ctx.source(item, f"b{8 * size}") for item in items]

    def run(w: Warp, mask: np.ndarray) -> None:
        if form.sem:
            access.release(w, mask, address(w), space, sem=form.sem)
        values = [read(w) for read in sources]
        access.store(w, mask, address(w), space, size, values, strong=bool(form.sem))

    return run


# ---- mov


@operation("mov", kind="control", isa="9.7.9.2")
def move(inst: nodes.Instruction, ctx: Context) -> Any:
    """Registers, constants, special registers, addresses; packs and unpacks vectors."""
    from ..program import guarded, lane_step

    kind = inst.modifiers[-1] if inst.modifiers else ""
    if not types.known(kind):
        ctx.fail(IllegalInstruction, f"type .{kind}")
    target, source = inst.operands
    if isinstance(target, nodes.Vector):
        step = _unpack(ctx, target, source, kind)
    elif isinstance(source, nodes.Vector):
        step = _pack(ctx, target, source, kind)
    elif types.width(kind) == 128:
        to, of = ctx.slot(target), ctx.slot(source)
        step = lambda w: w.write(to, w.R[of])  # noqa: E731
    else:
        step = lane_step(inst, ctx, LaneFn(_same, (kind,), (kind,)))
    return guarded(step, ctx) if inst.guard else step


def _same(x: np.ndarray) -> np.ndarray:
    return x


def _pack(ctx: Context, target: Any, source: nodes.Vector, kind: str) -> Any:
    """First element in the lowest bits."""
    count, bits = len(source.items), types.width(kind)
    part = bits // count
    readers = [ctx.source(item, f"b{part}") for item in source.items]
    if bits == 128:
        slot = ctx.slot(target)
        if part == 64:
            return lambda w: w.write(slot, np.stack([r(w) for r in readers], axis=1))

        def quads(w: Warp) -> None:
            words = np.stack([r(w) for r in readers], axis=1)
            w.write(slot, np.ascontiguousarray(words).view(np.uint64))

        return quads
    sink, narrow, wide = ctx.sink(target, f"b{bits}"), UNSIGNED[part], UNSIGNED[bits]

    def run(w: Warp) -> None:
        together = np.empty((LANES, count), narrow)
        for number, read in enumerate(readers):
            together[:, number] = read(w)
        sink(w, together.view(wide)[:, 0], w.mask)

    return run


def _whole(w: Warp, *, slot: int) -> np.ndarray:
    return w.R[slot]


def _unpack(ctx: Context, target: nodes.Vector, source: Any, kind: str) -> Any:
    count, bits = len(target.items), types.width(kind)
    part = bits // count
    sinks = [ctx.sink(item, f"b{part}") for item in target.items]
    narrow = UNSIGNED[part]
    if bits == 128:
        read: Any = partial(_whole, slot=ctx.slot(source))
    else:
        read = ctx.source(source, f"b{bits}")

    def run(w: Warp) -> None:
        parts = np.ascontiguousarray(read(w)).view(narrow).reshape(LANES, count)
        for number, sink in enumerate(sinks):
            sink(w, np.ascontiguousarray(parts[:, number]), w.mask)

    return run


# ---- addresses


@operation("cvta", kind="lane", isa="9.7.9.20")
def convert_address(inst: nodes.Instruction, ctx: Context) -> LaneFn:
    """Between generic addresses and those of a state space."""
    kind = inst.modifiers[-1]
    to_space = inst.modifiers[0] == "to"
    space = inst.modifiers[1 if to_space else 0].split("::")[0]
    window = {"shared": SHARED, "local": LOCAL, "param": PARAM, "global": 0, "const": 0}.get(space)
    if window is None:
        ctx.fail(UnsupportedInstruction, f"state space .{space}")
    if kind not in ("u64", "b64"):
        ctx.fail(UnsupportedInstruction, "32-bit generic addresses")
    base = np.uint64(window)
    if to_space:
        return LaneFn(lambda a: a - base, (kind,), (kind,))
    return LaneFn(lambda a: a + base, (kind,), (kind,))


@operation("isspacep", kind="lane", isa="9.7.9.19")
def is_space(inst: nodes.Instruction, ctx: Context) -> LaneFn:
    space = inst.modifiers[0].split("::")[0]
    windows = {"shared": 1, "local": 2, "param": 3}
    if space in windows:
        number = np.uint64(windows[space])
        return LaneFn(lambda a: a >> np.uint64(56) == number, ("pred",), ("u64",))
    if space == "global":
        return LaneFn(lambda a: a >> np.uint64(56) == 0, ("pred",), ("u64",))
    ctx.fail(UnsupportedInstruction, f"state space .{space}")


@operation("mapa", kind="lane", isa="9.7.9.23")
def map_address(inst: nodes.Instruction, ctx: Context) -> LaneFn:
    """The same offset in another block of the cluster."""
    kind = inst.modifiers[-1]
    low = UNSIGNED[types.width(kind)].type(0xFFFFFF)
    window = types.dtype(kind).type(0 if "shared::cluster" in inst.modifiers else SHARED)
    shift = low.dtype.type(24)

    def fn(address: np.ndarray, rank: np.ndarray) -> np.ndarray:
        return (address & low) | rank.astype(low.dtype) << shift | window

    return LaneFn(fn, (kind,), (kind, "u32"))


@operation("getctarank", kind="lane", isa="9.7.9.24")
def get_rank(inst: nodes.Instruction, ctx: Context) -> LaneFn:
    kind = inst.modifiers[-1]
    shift = types.dtype(kind).type(24)
    return LaneFn(lambda a: (a >> shift).astype(np.uint32) & np.uint32(0xFF), ("u32",), (kind,))


@operation("prefetch", "prefetchu", "applypriority", "discard", kind="warp", isa="9.7.9.15")
def prefetch(inst: nodes.Instruction, ctx: Context) -> Any:
    """Hints: nothing happens, but the address is computed, so its registers must be written."""
    address = ctx.address(inst.operands[0], "")

    def run(w: Warp, mask: np.ndarray) -> None:
        address(w)

    return run


@operation("createpolicy", kind="lane", isa="9.7.9.18")
def create_policy(inst: nodes.Instruction, ctx: Context) -> LaneFn:
    """Cache policies are opaque and change no result."""
    count = len(ctx.flat_operands()) - 1
    policy = np.full(LANES, 0x12F0000000000000, np.uint64)
    sources = {0: (), 1: ("f32",), 2: ("f32", "f32"), 3: ("b64", "u32", "u32")}[count]
    return LaneFn(lambda *_: policy, ("b64",), sources)
