# SPDX-License-Identifier: Apache-2.0
"""What lanes of one warp do together (PTX ISA 9.7.9, 9.7.13): shfl, vote, match, redux, elect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...errors import ConvergenceError, IllegalInstruction, UnsupportedTarget
from ...isa.nodes import Instruction, Pair
from ..context import Context
from ..lanes import Warp
from ..registry import Wait, operation
from ..types import LANES

_LANE = np.arange(LANES, dtype=np.int64)
_BITS = (np.uint32(1) << np.arange(LANES, dtype=np.uint32)).astype(np.uint32)
Run = Callable[[Warp, np.ndarray], Wait | None]
Body = Callable[[Warp, np.ndarray, int], None]


def lanes_of(member: int) -> np.ndarray:
    """A member mask as 32 booleans."""
    return (_BITS & np.uint32(member)) != 0


def bits_of(lanes: np.ndarray) -> int:
    return int(_BITS[lanes].sum())


def together(ctx: Context, operand: Any, body: Body) -> Run:
    """Runs `body(w, active lanes, member mask)` once all members that live have arrived.

    Lanes may name different masks; each set of lanes that share one is a group of its own.
    """
    members = ctx.source(operand, "b32")

    def run(w: Warp, mask: np.ndarray) -> Wait | None:
        named = members(w)
        groups = []
        for member in np.unique(named[mask]).tolist():
            wanted, active = lanes_of(member), mask & (named == member)
            outside = active & ~wanted
            if outside.any():
                raise IllegalInstruction(
                    f"executed by lanes outside its member mask {member:#x}",
                    lanes=np.flatnonzero(outside).tolist(),
                )
            wait = w.require_converged(wanted)
            if wait:
                return wait
            if (wanted & w.alive & ~active).any():
                raise ConvergenceError(
                    f"lanes of member mask {member:#x} name another mask, or their guard is false",
                    lanes=np.flatnonzero(wanted & w.alive & ~active).tolist(),
                )
            groups.append((active, member))
        for active, member in groups:
            body(w, active, member)
        return None

    return run


def _modifiers(inst: Instruction) -> list[str]:
    return [m for m in inst.modifiers if m != "sync"]


def _result(ctx: Context, operand: Any, kind: str) -> tuple[Any, Any]:
    """Sinks of `d` or `d|p`; the second is None where there is no predicate."""
    if isinstance(operand, Pair):
        return ctx.sink(operand.first, kind), ctx.sink(operand.second, "pred")
    return ctx.sink(operand, kind), None


def _require_sync(inst: Instruction, ctx: Context) -> None:
    if "sync" not in inst.modifiers:
        raise UnsupportedTarget(f"{inst.name}: without .sync it ended with sm_6x")


def _require_operands(inst: Instruction, ctx: Context, count: int) -> None:
    if len(inst.operands) != count:
        ctx.fail(IllegalInstruction, f"takes {count} operands, got {len(inst.operands)}")


def shuffle_sources(
    mode: str, lane: np.ndarray, b: np.ndarray, c: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(source lane, whether it is within the segment) of every lane."""
    b, clamp, segment = b & 31, c & 31, c >> 8 & 31
    highest = (lane & segment) | (clamp & ~segment & 31)
    if mode == "up":
        source = lane - b
        inside = source >= highest
    else:
        if mode == "down":
            source = lane + b
        elif mode == "bfly":
            source = lane ^ b
        else:
            source = (lane & segment) | (b & ~segment & 31)
        inside = source <= highest
    return np.where(inside, source, lane), inside


@operation("shfl", kind="warp", isa="9.7.9.6")
def shuffle(inst: Instruction, ctx: Context) -> Run:
    """shfl.sync.mode.b32 d|p, a, b, c, member mask."""
    _require_sync(inst, ctx)
    _require_operands(inst, ctx, 5)
    mode, kind = _modifiers(inst)
    if mode not in ("up", "down", "bfly", "idx") or kind != "b32":
        ctx.fail(IllegalInstruction, "needs a mode up, down, bfly or idx, and .b32")
    sink, flag = _result(ctx, inst.operands[0], "b32")
    value, b, c = (ctx.source(o, "b32") for o in inst.operands[1:4])

    def body(w: Warp, active: np.ndarray, member: int) -> None:
        source, inside = shuffle_sources(mode, _LANE, b(w).astype(np.int64), c(w).astype(np.int64))
        absent = active & ~active[source]
        if absent.any():
            first = int(np.flatnonzero(absent)[0])
            raise ConvergenceError(
                f"reads lane {int(source[first])}, which does not take part",
                lanes=np.flatnonzero(absent).tolist(),
            )
        sink(w, value(w)[source], active)
        if flag:
            flag(w, inside, active)

    return together(ctx, inst.operands[4], body)


@operation("vote", kind="warp", isa="9.7.13.8")
def vote(inst: Instruction, ctx: Context) -> Run:
    """vote.sync.{all,any,uni}.pred and vote.sync.ballot.b32."""
    _require_sync(inst, ctx)
    _require_operands(inst, ctx, 3)
    mode, kind = _modifiers(inst)
    if (mode, kind) != ("ballot", "b32") and (mode not in ("all", "any", "uni") or kind != "pred"):
        ctx.fail(IllegalInstruction, "is no form of vote")
    sink, predicate = ctx.sink(inst.operands[0], kind), ctx.source(inst.operands[1], "pred")

    def body(w: Warp, active: np.ndarray, member: int) -> None:
        votes = predicate(w) & active
        if mode == "ballot":
            sink(w, np.full(LANES, bits_of(votes), np.uint32), active)
            return
        every, some = bool((votes == active).all()), bool(votes.any())
        answer = {"all": every, "any": some, "uni": every or not some}[mode]
        sink(w, np.full(LANES, answer), active)

    return together(ctx, inst.operands[2], body)


@operation("match", kind="warp", isa="9.7.13.9")
def match(inst: Instruction, ctx: Context) -> Run:
    """match.any.sync.type d, a, mask; match.all.sync.type d|p, a, mask."""
    _require_sync(inst, ctx)
    _require_operands(inst, ctx, 3)
    mode, kind = _modifiers(inst)
    if mode not in ("any", "all") or kind not in ("b32", "b64"):
        ctx.fail(IllegalInstruction, "is no form of match")
    sink, flag = _result(ctx, inst.operands[0], "b32")
    value = ctx.source(inst.operands[1], kind)

    def body(w: Warp, active: np.ndarray, member: int) -> None:
        values = value(w)
        answer = np.zeros(LANES, np.uint32)
        if mode == "any":
            for one in np.unique(values[active]):
                same = active & (values == one)
                answer[same] = bits_of(same)
            sink(w, answer, active)
            return
        held = values[active]
        equal = bool((held == held[0]).all())
        answer[:] = bits_of(active) if equal else 0
        sink(w, answer, active)
        if flag:
            flag(w, np.full(LANES, equal), active)

    return together(ctx, inst.operands[2], body)


_INTEGER_REDUCTIONS: dict[str, Callable[[np.ndarray], Any]] = {
    "add": lambda x: x.sum(dtype=x.dtype),
    "min": np.min,
    "max": np.max,
    "and": np.bitwise_and.reduce,
    "or": np.bitwise_or.reduce,
    "xor": np.bitwise_xor.reduce,
}


@operation("redux", kind="warp", isa="9.7.13.11")
def reduce(inst: Instruction, ctx: Context) -> Run:
    """redux.sync.op.type d, a, mask; .f32 with .abs and .NaN on sm_100 and later."""
    _require_sync(inst, ctx)
    _require_operands(inst, ctx, 3)
    parts = _modifiers(inst)
    name, kind, extras = parts[0], parts[-1], set(parts[1:-1])
    bitwise = name in ("and", "or", "xor")
    allowed = ("b32",) if bitwise else ("u32", "s32") + (("f32",) if name != "add" else ())
    if name not in _INTEGER_REDUCTIONS or kind not in allowed:
        ctx.fail(IllegalInstruction, "is no form of redux")
    if kind == "f32" and ctx.arch == "sm_90a":
        raise UnsupportedTarget(f"{inst.name} does not exist on sm_90a")
    sink, value = ctx.sink(inst.operands[0], kind), ctx.source(inst.operands[1], kind)
    fold = _float_fold(name, extras) if kind == "f32" else _INTEGER_REDUCTIONS[name]

    def body(w: Warp, active: np.ndarray, member: int) -> None:
        values = value(w)
        sink(w, np.full(LANES, fold(values[active]), values.dtype), active)

    return together(ctx, inst.operands[2], body)


def _float_fold(name: str, extras: set[str]) -> Callable[[np.ndarray], Any]:
    """min or max that passes numbers over NaN, or with .NaN any NaN; NaN is the canonical one."""
    canonical = np.array(0x7FFFFFFF, np.uint32).view(np.float32)[()]

    def fold(values: np.ndarray) -> Any:
        if "abs" in extras:
            values = np.abs(values)
        missing = np.isnan(values)
        if missing.all() or ("NaN" in extras and missing.any()):
            return canonical
        numbers = values[~missing]
        keys = numbers.view(np.int32)
        ordered = np.where(keys < 0, keys ^ 0x7FFFFFFF, keys)  # -0 below +0
        return numbers[np.argmax(ordered) if name == "max" else np.argmin(ordered)]

    return fold


@operation("elect", kind="warp", isa="9.7.13.12")
def elect(inst: Instruction, ctx: Context) -> Run:
    """elect.sync d|p, mask: the lowest member leads."""
    _require_operands(inst, ctx, 2)
    if not isinstance(inst.operands[0], Pair):
        ctx.fail(IllegalInstruction, "a destination d|p is required")
    sink, flag = _result(ctx, inst.operands[0], "b32")

    def body(w: Warp, active: np.ndarray, member: int) -> None:
        leader = int(np.argmax(active))
        sink(w, np.full(LANES, leader, np.uint32), active)
        flag(w, leader == _LANE, active)

    return together(ctx, inst.operands[1], body)


@operation("activemask", kind="warp", isa="9.7.13.10")
def active_mask(inst: Instruction, ctx: Context) -> Run:
    sink = ctx.sink(inst.operands[0], "b32")

    def run(w: Warp, mask: np.ndarray) -> None:
        sink(w, np.full(LANES, bits_of(mask), np.uint32), mask)

    return run


@operation("bar.warp.sync", kind="warp", isa="9.7.13.2")
def warp_barrier(inst: Instruction, ctx: Context) -> Run:
    _require_operands(inst, ctx, 1)
    return together(ctx, inst.operands[0], lambda w, active, member: None)
