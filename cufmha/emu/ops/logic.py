# SPDX-License-Identifier: Apache-2.0
"""Bits (PTX ISA 9.7.1.13 to .22, 9.7.8): logic, shifts, fields, permutes and counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...errors import IllegalInstruction
from ...isa import nodes
from .. import types
from ..context import Context
from ..registry import LaneFn, operation

U8, U16, U32, U64 = (np.dtype(f"uint{w}") for w in (8, 16, 32, 64))


@operation("and", "or", "xor", kind="lane", isa="9.7.8.1")
def logic(inst: nodes.Instruction, ctx: Context) -> LaneFn:
    (kind,) = inst.modifiers
    fn = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[inst.opcode]
    return LaneFn(fn, (kind,), (kind, kind))


@operation("not", "cnot", kind="lane", isa="9.7.8.4")
def negate(inst: nodes.Instruction, ctx: Context) -> LaneFn:
    (kind,) = inst.modifiers
    if inst.opcode == "not":
        return LaneFn(np.invert, (kind,), (kind,))
    return LaneFn(lambda a: (a == 0).astype(a.dtype), (kind,), (kind,))


@operation("lop3", kind="lane", isa="9.7.8.6")
def lookup(inst: nodes.Instruction, ctx: Context) -> LaneFn:
    """Any function of three bits by its 8-entry table; BoolOp combines "not all zero" with q."""
    flat = ctx.flat_operands()
    with_predicate = inst.modifiers[0] in ("or", "and")
    table = ctx.immediate(flat[-2 if with_predicate else -1])
    if not 0 <= table <= 255:
        ctx.fail(IllegalInstruction, f"table must be 0 to 255, got {table}")

    def fn(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        result = np.zeros(a.shape, U32)
        for bit in range(8):
            if table >> bit & 1:
                x = a if bit & 4 else ~a
                y = b if bit & 2 else ~b
                z = c if bit & 1 else ~c
                result |= x & y & z
        return result

    fast = _TABLES.get(table, fn)
    if not with_predicate:
        return LaneFn(lambda a, b, c, _: fast(a, b, c), ("b32",), ("b32",) * 4)
    merge = np.logical_or if inst.modifiers[0] == "or" else np.logical_and

    def both(a: Any, b: Any, c: Any, _: Any, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        result = fast(a, b, c)
        return result, merge(result != 0, q)

    return LaneFn(both, ("b32", "pred"), ("b32",) * 4 + ("pred",))


_TABLES: dict[int, Callable[[Any, Any, Any], Any]] = {
    0x80: lambda a, b, c: a & b & c,
    0xFE: lambda a, b, c: a | b | c,
    0x96: lambda a, b, c: a ^ b ^ c,
    0xF8: lambda a, b, c: a | (b & c),
    0xEA: lambda a, b, c: (a & b) | c,
    0xCA: lambda a, b, c: (a & b) | (~a & c),
    0x78: lambda a, b, c: a ^ (b & c),
    0x6A: lambda a, b, c: (a & b) ^ c,
}


@operation("shl", "shr", kind="lane", isa="9.7.8.8")
def shift(inst: nodes.Instruction, ctx: Context) -> LaneFn:
    """Amounts beyond the width count as the width: zeros, or copies of the sign."""
    (kind,) = inst.modifiers
    bits, dtype = types.width(kind), types.dtype(kind)
    signed = dtype.kind == "i"
    most = U32.type(bits - 1 if signed else bits)
    amount = inst.operands[2]
    move = np.left_shift if inst.opcode == "shl" else np.right_shift
    if isinstance(amount, nodes.Integer) and 0 <= amount.value < bits:
        fixed = dtype.type(amount.value)
        return LaneFn(lambda a, _: move(a, fixed), (kind,), (kind, "u32"))
    last = U32.type(bits - 1)

    def fn(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        result = move(a, np.minimum(b, last).astype(dtype))
        if signed:
            return result
        return np.where(b >= most, dtype.type(0), result)

    return LaneFn(fn, (kind,), (kind, "u32"))


@operation("shf", kind="lane", isa="9.7.8.7")
def funnel(inst: nodes.Instruction, ctx: Context) -> LaneFn:
    """32 bits out of b:a, moved left (upper half) or right (lower half)."""
    direction, mode, _ = inst.modifiers
    left, wrap = direction == "l", mode == "wrap"

    def fn(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        n = (c & U32.type(31) if wrap else np.minimum(c, U32.type(32))).astype(U64)
        both = b.astype(U64) << U64.type(32) | a
        if left:
            return ((both << (n & U64.type(31))) >> U64.type(32)).astype(U32) * (n < 32) + a * (
                n == 32
            )
        return (both >> n).astype(U32)

    return LaneFn(fn, ("b32",), ("b32", "b32", "u32"))


@operation("prmt", kind="lane", isa="9.7.9.7")
def permute(inst: nodes.Instruction, ctx: Context) -> LaneFn:
    """Four bytes picked out of b:a; the top bit of a selector copies the byte's sign."""
    mode = inst.modifiers[1] if len(inst.modifiers) > 1 else ""

    def fn(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        count = len(a)
        pool = np.empty((count, 8), U8)
        pool[:, :4] = np.ascontiguousarray(a).view(U8).reshape(-1, 4)
        pool[:, 4:] = np.ascontiguousarray(b).view(U8).reshape(-1, 4)
        rows = np.arange(count)[:, None]
        if mode:
            return pool[rows, _MODES[mode][c & U32.type(3)]].view(U32)[:, 0]
        nibbles = c[:, None] >> U32.type(4) * np.arange(4, dtype=U32) & U32.type(15)
        picked = pool[rows, nibbles & U32.type(7)]
        signs = np.where(picked & U8.type(0x80), U8.type(0xFF), U8.type(0))
        return np.where(nibbles & U32.type(8), signs, picked).view(U32)[:, 0]

    return LaneFn(fn, ("b32",), ("b32", "b32", "b32"))


_MODES = {
    "f4e": np.array([[0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5], [3, 4, 5, 6]]),
    "b4e": np.array([[0, 7, 6, 5], [1, 0, 7, 6], [2, 1, 0, 7], [3, 2, 1, 0]]),
    "rc8": np.array([[0, 0, 0, 0], [1, 1, 1, 1], [2, 2, 2, 2], [3, 3, 3, 3]]),
    "ecl": np.array([[0, 1, 2, 3], [1, 1, 2, 3], [2, 2, 2, 3], [3, 3, 3, 3]]),
    "ecr": np.array([[0, 0, 0, 0], [0, 1, 1, 1], [0, 1, 2, 2], [0, 1, 2, 3]]),
    "rc16": np.array([[0, 1, 0, 1], [2, 3, 2, 3], [0, 1, 0, 1], [2, 3, 2, 3]]),
}


def _low_mask(length: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """`length` ones, for lengths up to the width."""
    bits = dtype.itemsize * 8
    last = np.minimum(length, bits - 1).astype(dtype)
    return np.where(length >= bits, ~dtype.type(0), (dtype.type(1) << last) - dtype.type(1))


def _field_limit(bits: int) -> np.uint32:
    """Bits of positions and lengths that count: eight, says the text; 64-bit fields take all."""
    return U32.type(255 if bits == 32 else 0xFFFFFFFF)


@operation("bfe", kind="lane", isa="9.7.1.19")
def extract(inst: nodes.Instruction, ctx: Context) -> LaneFn:
    """A field of `c` bits from bit `b` on, sign-extended for .s."""
    (kind,) = inst.modifiers
    bits = types.width(kind)
    unsigned, signed = types.dtype(f"u{bits}"), kind[0] == "s"
    limit = _field_limit(bits)

    def fn(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        position, length = (b & limit).astype(np.int64), (c & limit).astype(np.int64)
        inside = np.minimum(position, bits - 1).astype(unsigned)
        moved = np.where(position >= bits, unsigned.type(0), a >> inside)
        field = moved & _low_mask(length, unsigned)
        if signed:
            top = np.minimum(position + length - 1, bits - 1)
            top = np.maximum(top, 0).astype(unsigned)
            negative = (a >> top & unsigned.type(1)).astype(bool) & (length > 0)
            keep = np.clip(length, 0, bits)
            keep = np.where(
                position >= bits, 0, np.minimum(keep, bits - np.minimum(position, bits))
            )
            field = np.where(negative, field | ~_low_mask(keep, unsigned), field)
        return field

    return LaneFn(fn, (f"b{bits}",), (f"b{bits}", "u32", "u32"))


@operation("bfi", kind="lane", isa="9.7.1.20")
def insert(inst: nodes.Instruction, ctx: Context) -> LaneFn:
    """The low `d` bits of a over b from bit `c` on."""
    (kind,) = inst.modifiers
    bits, dtype = types.width(kind), types.dtype(kind)
    limit = _field_limit(bits)

    def fn(a: np.ndarray, b: np.ndarray, c: np.ndarray, d: np.ndarray) -> np.ndarray:
        position, length = (c & limit).astype(np.int64), (d & limit).astype(np.int64)
        inside = np.minimum(position, bits - 1).astype(dtype)
        mask = _low_mask(length, dtype) << inside
        result = (b & ~mask) | (a << inside & mask)
        return np.where(position >= bits, b, result)

    return LaneFn(fn, (kind,), (kind, kind, "u32", "u32"))


@operation("bmsk", kind="lane", isa="9.7.1.22")
def bit_mask(inst: nodes.Instruction, ctx: Context) -> LaneFn:
    """`b` ones from bit `a` on."""
    wrap = inst.modifiers[0] == "wrap"

    def fn(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if wrap:
            a, b = a & U32.type(31), b & U32.type(31)
        mask = _low_mask(b.astype(np.int64), U32)
        return np.where(a >= 32, U32.type(0), mask << np.minimum(a, U32.type(31)))

    return LaneFn(fn, ("b32",), ("u32", "u32"))


@operation("szext", kind="lane", isa="9.7.1.21")
def extend(inst: nodes.Instruction, ctx: Context) -> LaneFn:
    """The low `b` bits, extended by zeros or the sign."""
    mode, kind = inst.modifiers

    def fn(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        length = (b & U32.type(31) if mode == "wrap" else b).astype(np.int64)
        low = _low_mask(length, U32)
        result = a & low
        if kind[0] == "s":
            top = np.clip(length - 1, 0, 31).astype(U32)
            negative = (a >> top & U32.type(1)).astype(bool) & (length > 0)
            result = np.where(negative, result | ~low, result)
        return result

    return LaneFn(fn, ("b32",), ("b32", "u32"))


def highest_bit(x: np.ndarray) -> np.ndarray:
    """Index of the highest one, −1 for 0 (unsigned input)."""
    result = np.full(x.shape, -1, np.int64)
    rest = x.astype(U64)
    for step in (32, 16, 8, 4, 2, 1):
        large = rest >> U64.type(step) != 0
        result = np.where(large, result + step, result)
        rest = np.where(large, rest >> U64.type(step), rest)
    return np.where(rest != 0, result + 1, result)


@operation("bfind", kind="lane", isa="9.7.1.16")
def find_bit(inst: nodes.Instruction, ctx: Context) -> LaneFn:
    """The highest bit that is not a sign bit; .shiftamt: how far to shift it to the top."""
    kind = inst.modifiers[-1]
    bits = types.width(kind)

    def fn(a: np.ndarray) -> np.ndarray:
        x = np.where(a < 0, ~a, a) if kind[0] == "s" else a
        found = highest_bit(x.view(f"u{bits // 8}"))
        if "shiftamt" in inst.modifiers:
            found = np.where(found < 0, -1, bits - 1 - found)
        return found.astype(np.int32).view(U32)

    return LaneFn(fn, ("u32",), (kind,))


@operation("clz", kind="lane", isa="9.7.1.15")
def leading_zeros(inst: nodes.Instruction, ctx: Context) -> LaneFn:
    (kind,) = inst.modifiers
    top = types.width(kind) - 1
    return LaneFn(lambda a: (top - highest_bit(a)).astype(U32), ("u32",), (kind,))


@operation("popc", kind="lane", isa="9.7.1.14")
def population(inst: nodes.Instruction, ctx: Context) -> LaneFn:
    (kind,) = inst.modifiers
    return LaneFn(lambda a: np.bitwise_count(a).astype(U32), ("u32",), (kind,))


@operation("brev", kind="lane", isa="9.7.1.18")
def reverse(inst: nodes.Instruction, ctx: Context) -> LaneFn:
    (kind,) = inst.modifiers

    def fn(a: np.ndarray) -> np.ndarray:
        raw = np.ascontiguousarray(a).view(U8).reshape(len(a), -1)
        bits = np.unpackbits(raw, axis=1, bitorder="little")[:, ::-1]
        flipped = np.packbits(bits, axis=1, bitorder="little")
        return np.ascontiguousarray(flipped).view(a.dtype)[:, 0]

    return LaneFn(fn, (kind,), (kind,))


@operation("fns", kind="lane", isa="9.7.1.17")
def nth_set(inst: nodes.Instruction, ctx: Context) -> LaneFn:
    """The position of the n-th one from `base` on, counting up or down; −1 if there is none."""

    def fn(mask: np.ndarray, base: np.ndarray, offset: np.ndarray) -> np.ndarray:
        result = np.full(len(mask), 0xFFFFFFFF, U32)
        for lane, (m, b, n) in enumerate(zip(mask.tolist(), base.tolist(), offset.tolist(),
                                             strict=True)):  # fmt: skip
            if n == 0:
                if b < 32 and m >> b & 1:
                    result[lane] = b
                continue
            order = range(b, 32) if n > 0 else range(min(b, 31), -1, -1)
            ones = [i for i in order if m >> i & 1]
            if len(ones) >= abs(n):
                result[lane] = ones[abs(n) - 1]
        return result

    return LaneFn(fn, ("b32",), ("b32", "u32", "s32"))
