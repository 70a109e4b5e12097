# SPDX-License-Identifier: Apache-2.0
"""Integer arithmetic (PTX ISA 9.7.1) and its carry chain (9.7.2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...errors import IllegalInstruction, UnsupportedInstruction
from ...isa import nodes
from .. import types
from ..context import Context
from ..lanes import Warp
from ..registry import LaneFn, operation
from . import floats

WIDER = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}
INTEGER = frozenset(("u16", "s16", "u32", "s32", "u64", "s64"))
PAIRS = frozenset(("u16x2", "s16x2"))


def high_product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The upper half of the double-width product."""
    size = a.dtype.itemsize
    if size < 8:
        wide = np.dtype(f"{a.dtype.kind}{2 * size}")
        product = a.astype(wide) * b.astype(wide)
        return (product >> wide.type(8 * size)).astype(a.dtype)
    u, v = a.view(np.uint64), b.view(np.uint64)
    low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    al, ah, bl, bh = u & low, u >> shift, v & low, v >> shift
    middle = ah * bl + (al * bl >> shift)
    upper = ah * bh + (middle >> shift) + (((middle & low) + al * bh) >> shift)
    if a.dtype.kind == "i":  # signed: take off what the sign bits added
        upper = upper - np.where(a < 0, v, 0).astype(np.uint64)
        upper = upper - np.where(b < 0, u, 0).astype(np.uint64)
    return upper.view(a.dtype)


def saturated(wide: np.ndarray) -> np.ndarray:
    return np.clip(wide, -(2**31), 2**31 - 1).astype(np.int32)


def _kind(inst: nodes.Instruction, ctx: Context) -> str:
    kind = inst.modifiers[-1] if inst.modifiers else ""
    if not types.known(kind):
        ctx.fail(IllegalInstruction, f"type .{kind}")
    return kind


def _only(inst: nodes.Instruction, ctx: Context, *allowed: str) -> set[str]:
    """The modifiers before the type, all of which must be among those allowed."""
    words = set(inst.modifiers[:-1])
    for word in words - set(allowed):
        ctx.fail(UnsupportedInstruction, f"modifier .{word}")
    return words


def paired(fn: Callable[..., np.ndarray], part: np.dtype) -> Callable[..., np.ndarray]:
    """Applies fn to both halves of packed words at once."""

    def run(*operands: np.ndarray) -> np.ndarray:
        parts = [np.ascontiguousarray(x).view(part) for x in operands]
        return np.ascontiguousarray(fn(*parts)).view(np.uint32)

    return run


@operation("add", "sub", kind="lane", isa="9.7.1.1")
def add(inst: nodes.Instruction, ctx: Context) -> LaneFn:
    kind = _kind(inst, ctx)
    if kind not in INTEGER | PAIRS:
        return floats.arithmetic(inst, ctx)
    words = _only(inst, ctx, "sat")
    plain = np.add if inst.opcode == "add" else np.subtract
    if kind in PAIRS:
        return LaneFn(paired(plain, np.dtype("u2")), ("b32",), ("b32", "b32"))
    if words:
        if kind != "s32":
            ctx.fail(IllegalInstruction, ".sat is for .s32 alone")
        return LaneFn(lambda a, b: saturated(plain(a.astype(np.int64), b)), (kind,), (kind, kind))
    return LaneFn(plain, (kind,), (kind, kind))


@operation("mul", kind="lane", isa="9.7.1.3")
def multiply(inst: nodes.Instruction, ctx: Context) -> LaneFn:
    kind = _kind(inst, ctx)
    if kind not in INTEGER:
        return floats.arithmetic(inst, ctx)
    words = _only(inst, ctx, "lo", "hi", "wide")
    if words == {"wide"}:
        wide = types.dtype(WIDER[kind])
        return LaneFn(lambda a, b: a.astype(wide) * b, (WIDER[kind],), (kind, kind))
    if words == {"hi"}:
        return LaneFn(high_product, (kind,), (kind, kind))
    if words != {"lo"}:
        ctx.fail(IllegalInstruction, "needs one of .lo, .hi, .wide")
    return LaneFn(np.multiply, (kind,), (kind, kind))


@operation("mad", kind="lane", isa="9.7.1.4")
def multiply_add(inst: nodes.Instruction, ctx: Context) -> LaneFn:
    kind = _kind(inst, ctx)
    if kind not in INTEGER:
        return floats.fused(inst, ctx)
    words = _only(inst, ctx, "lo", "hi", "wide", "sat")
    if "wide" in words:
        wide = types.dtype(WIDER[kind])
        return LaneFn(
            lambda a, b, c: a.astype(wide) * b + c, (WIDER[kind],), (kind, kind, WIDER[kind])
        )
    if words == {"hi", "sat"} and kind == "s32":
        return LaneFn(
            lambda a, b, c: saturated(high_product(a, b).astype(np.int64) + c),
            (kind,),
            (kind,) * 3,
        )
    if words == {"hi"}:
        return LaneFn(lambda a, b, c: high_product(a, b) + c, (kind,), (kind,) * 3)
    if words != {"lo"}:
        ctx.fail(IllegalInstruction, "needs one of .lo, .hi, .wide")
    return LaneFn(lambda a, b, c: a * b + c, (kind,), (kind,) * 3)


def _product24(kind: str, part: str) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """48-bit product of the low 24 bits: its low 32, or its bits 16 to 47."""
    wide = np.dtype("int64" if kind == "s32" else "uint64")
    shift = wide.type(40)

    def run(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        x, y = ((v.astype(wide) << shift) >> shift for v in (a, b))
        product = x * y
        if part == "hi":
            product = product >> wide.type(16)
        return product.astype(np.uint64).astype(np.uint32).view(types.dtype(kind))

    return run


@operation("mul24", "mad24", kind="lane", isa="9.7.1.5")
def multiply24(inst: nodes.Instruction, ctx: Context) -> LaneFn:
    kind, part = _kind(inst, ctx), inst.modifiers[0]
    if kind not in ("u32", "s32") or part not in ("lo", "hi") or len(inst.modifiers) > 2:
        ctx.fail(UnsupportedInstruction, "this form")
    product = _product24(kind, part)
    if inst.opcode == "mul24":
        return LaneFn(product, (kind,), (kind, kind))
    return LaneFn(lambda a, b, c: product(a, b) + c, (kind,), (kind,) * 3)


@operation("sad", kind="lane", isa="9.7.1.7")
def sum_of_differences(inst: nodes.Instruction, ctx: Context) -> LaneFn:
    """c + |a − b|, c unsigned."""
    kind = _kind(inst, ctx)
    unsigned = "u" + kind[1:]
    to = types.dtype(unsigned)

    def run(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        return (np.where(a < b, b - a, a - b)).view(to) + c

    return LaneFn(run, (unsigned,), (kind, kind, unsigned))


@operation("div", kind="lane", isa="9.7.1.8")
def divide(inst: nodes.Instruction, ctx: Context) -> LaneFn:
    """Toward zero. A zero divisor is undefined in the ISA; it gives all ones here as on cards."""
    kind = _kind(inst, ctx)
    if kind not in INTEGER:
        return floats.division(inst, ctx)
    _only(inst, ctx)
    return LaneFn(_quotient, (kind,), (kind, kind))


def _quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    safe = np.where(b == 0, 1, b).astype(b.dtype)
    if a.dtype.kind == "i":
        quotient = a // safe
        quotient = quotient + ((a % safe != 0) & ((a < 0) != (safe < 0))).astype(a.dtype)
    else:
        quotient = a // safe
    return np.where(b == 0, np.array(-1).astype(a.dtype), quotient)


@operation("rem", kind="lane", isa="9.7.1.9")
def remainder(inst: nodes.Instruction, ctx: Context) -> LaneFn:
    kind = _kind(inst, ctx)
    _only(inst, ctx)
    return LaneFn(lambda a, b: a - _quotient(a, b) * b, (kind,), (kind, kind))


@operation("abs", "neg", kind="lane", isa="9.7.1.10")
def sign(inst: nodes.Instruction, ctx: Context) -> LaneFn:
    kind = _kind(inst, ctx)
    if kind not in INTEGER:
        return floats.sign(inst, ctx)
    _only(inst, ctx)
    return LaneFn(np.abs if inst.opcode == "abs" else np.negative, (kind,), (kind,))


@operation("min", "max", kind="lane", isa="9.7.1.12")
def extreme(inst: nodes.Instruction, ctx: Context) -> LaneFn:
    kind = _kind(inst, ctx)
    if kind not in INTEGER | PAIRS:
        return floats.extreme(inst, ctx)
    relu = "relu" in _only(inst, ctx, "relu")
    pick: Callable[..., np.ndarray] = np.minimum if inst.opcode == "min" else np.maximum
    if relu:
        plain = pick
        pick = lambda a, b: np.maximum(plain(a, b), a.dtype.type(0))  # noqa: E731
    if kind in PAIRS:
        return LaneFn(
            paired(pick, np.dtype("i2" if kind[0] == "s" else "u2")), ("b32",), ("b32", "b32")
        )
    return LaneFn(pick, (kind,), (kind, kind))


@operation("dp4a", "dp2a", kind="lane", isa="9.7.1.23")
def dot_product(inst: nodes.Instruction, ctx: Context) -> LaneFn:
    """Four 8-bit by 8-bit, or two 16-bit by 8-bit products (of a half of b), added to c."""
    a_kind, b_kind = inst.modifiers[-2:]
    count = 4 if inst.opcode == "dp4a" else 2
    a_part = np.dtype(("i" if a_kind == "s32" else "u") + str(4 // count))
    b_part = np.dtype(("i" if b_kind == "s32" else "u") + "1")
    start = 2 if inst.modifiers[0] == "hi" else 0

    def run(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        x = np.ascontiguousarray(a).view(a_part).reshape(-1, count).astype(np.int64)
        y = np.ascontiguousarray(b).view(b_part).reshape(-1, 4).astype(np.int64)
        total = (x * y[:, start : start + count]).sum(axis=1) + c.astype(np.int64)
        return total.astype(np.uint64).astype(np.uint32)

    return LaneFn(run, ("b32",), ("b32", "b32", "b32"))


# ---- the carry chain


class Carry:
    """The condition code register's carry bit in every lane."""

    def __init__(self, w: Any) -> None:
        self.flag = np.zeros(32, bool)
        self.written = False


@operation("add.cc", "addc", "sub.cc", "subc", "mad.lo.cc", "mad.hi.cc", "madc", kind="warp",
           isa="9.7.2")  # fmt: skip
def with_carry(inst: nodes.Instruction, ctx: Context) -> Any:
    """`.cc` writes the carry (for subtraction: the borrow), `…c` adds it."""
    kind = _kind(inst, ctx)
    bits = types.width(kind)
    unsigned = f"u{bits}"
    sink = ctx.sink(inst.operands[0], unsigned)
    readers = [ctx.source(o, unsigned) for o in inst.operands[1:]]
    takes, gives = inst.opcode.endswith("c"), "cc" in inst.modifiers
    negative = inst.opcode.startswith("sub")
    multiplies = inst.opcode.startswith("mad")
    signed = types.dtype(kind)

    def run(w: Warp, mask: np.ndarray) -> None:
        carry = w.state(Carry)
        operands = [read(w) for read in readers]
        if multiplies:
            a, b = operands[0].view(signed), operands[1].view(signed)
            product = a * b if "lo" in inst.modifiers else high_product(a, b)
            operands = [product.view(operands[0].dtype), operands[2]]
        x, y = operands
        extra = carry.flag.astype(x.dtype) if takes else x.dtype.type(0)
        if negative:
            part = x - y
            result = part - extra
            out = (x < y) | (part < extra)
        else:
            part = x + y
            result = part + extra
            out = (part < x) | (result < part)
        sink(w, result, mask)
        if gives:
            carry.flag = np.where(mask, out, carry.flag)

    return run
