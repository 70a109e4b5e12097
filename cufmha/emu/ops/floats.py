# SPDX-License-Identifier: Apache-2.0
"""Floating arithmetic (PTX ISA 9.7.3, 9.7.4): the builders that the shared opcodes call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...errors import IllegalInstruction, UnsupportedInstruction, UnsupportedTarget
from ...isa import nodes
from ..context import Context
from ..numerics import double, formats, single
from ..numerics.formats import F32, F64, U16, U32, U64
from ..registry import LaneFn, operation

ROUNDINGS = ("rn", "rz", "rm", "rp")
Fn = Callable[..., Any]


class Modifiers:
    """What stands between opcode and type: rounding, ftz, sat, relu, NaN rules."""

    def __init__(self, inst: nodes.Instruction, ctx: Context, *allowed: str) -> None:
        self.words = set(inst.modifiers)
        self.kinds = [m for m in inst.modifiers if m in KINDS]
        if not self.kinds:
            ctx.fail(IllegalInstruction, "has no type that it takes")
        for word in inst.modifiers:
            if word not in KINDS and word not in allowed and word not in ROUNDINGS:
                ctx.fail(UnsupportedInstruction, f"modifier .{word}")
        self.kind = self.kinds[-1]
        self.mode = next((m for m in inst.modifiers if m in ROUNDINGS), "rn")
        self.ftz, self.sat, self.relu = ("ftz" in self.words, "sat" in self.words,
                                         "relu" in self.words)  # fmt: skip


KINDS = frozenset(("f16", "f16x2", "bf16", "bf16x2", "f32", "f32x2", "f64"))


def _registers(kind: str) -> str:
    return {"f16": "b16", "bf16": "b16", "f16x2": "b32", "bf16x2": "b32", "f32x2": "b64"}.get(
        kind, kind
    )


def _small(kind: str) -> formats.Format:
    return formats.HALF if kind.startswith("f16") else formats.BF16


def through_double(
    fn: Callable[..., np.ndarray], kind: str, *, ftz: bool, sat: bool, relu: bool
) -> Fn:
    """A function of float64 made one over 16-bit bits (single or packed), rounded to nearest."""
    form = _small(kind)

    def halves(*operands: np.ndarray) -> np.ndarray:
        values = [formats.decode(np.ascontiguousarray(x).view(U16), form) for x in operands]
        if ftz:
            values = [formats.flush(v, form) for v in values]
        result = fn(*values)
        bits = formats.to_format(result, form)
        if ftz or sat or relu:
            wide = formats.decode(bits, form)
            wide = formats.flush(wide, form) if ftz else wide
            wide = formats.saturate(wide) if sat else wide
            wide = formats.relu(wide) if relu else wide
            bits = formats.encode(wide, form)
        return bits

    if kind.endswith("x2"):
        return lambda *x: np.ascontiguousarray(halves(*x)).view(U32)
    return halves


def flushed(fn: Fn, *, ftz: bool, sat: bool) -> Fn:
    """A float32 function with subnormals flushed on both sides and the result saturated."""
    if not (ftz or sat):
        return fn

    def run(*operands: np.ndarray) -> np.ndarray:
        result = fn(*[single.flush(x) for x in operands] if ftz else operands)
        if ftz:
            result = single.flush(result)
        if sat:
            result = np.where(result > 0, np.minimum(result, F32.type(1)), F32.type(0))
        return result

    return run


def both(fn: Fn) -> Fn:
    """A float32 function over f32x2 words."""

    def run(*operands: np.ndarray) -> np.ndarray:
        parts = [np.ascontiguousarray(x).view(F32) for x in operands]
        return np.ascontiguousarray(fn(*parts)).view(U64)

    return run


def _needs_blackwell(ctx: Context, what: str) -> None:
    if ctx.arch == "sm_90a":
        ctx.fail(UnsupportedTarget, f"{what} needs sm_100 or later, not {ctx.arch}")


def _rounded(form: str, mode: str, plain: Fn, *, ftz: bool) -> Fn:
    """The plain function where it will do. With .ftz a result that rounding lifts to the smallest
    normal number still counts as subnormal if it was below at the number's own precision."""
    fn = plain if mode == "rn" else single.rounded(form, mode)
    if not ftz:
        return fn
    careful = single.rounded(form, mode, unbounded=True)
    smallest = F32.type(formats.SINGLE.smallest_normal)

    def run(*operands: np.ndarray) -> np.ndarray:
        result = fn(*operands)
        if (np.abs(result) == smallest).any():
            return careful(*operands)
        return result

    return run


def arithmetic(inst: nodes.Instruction, ctx: Context) -> LaneFn:
    """add, sub, mul of any float type, and add/sub.f32 with a 16-bit addend."""
    m = Modifiers(inst, ctx, "ftz", "sat")
    plain = {"add": single.add, "sub": single.subtract, "mul": single.multiply}[inst.opcode]
    kind = m.kind
    if len(m.kinds) == 2:
        return _mixed(inst, ctx, m, plain)
    if kind == "f64":
        if m.ftz or m.sat:
            ctx.fail(IllegalInstruction, ".f64 takes no .ftz and no .sat")
        return LaneFn(double.binary(inst.opcode, m.mode), ("f64",), ("f64", "f64"))
    if kind in ("f32", "f32x2"):
        fn = _rounded(inst.opcode, m.mode, plain, ftz=m.ftz)
        fn = flushed(fn, ftz=m.ftz, sat=m.sat)
        if kind == "f32x2":
            _needs_blackwell(ctx, ".f32x2")
            return LaneFn(both(fn), ("b64",), ("b64", "b64"))
        return LaneFn(fn, ("f32",), ("f32", "f32"))
    if m.mode != "rn":
        ctx.fail(IllegalInstruction, f".{m.mode} with .{kind}")
    wide: Any = {"add": formats.odd_sum, "sub": lambda a, b: formats.odd_sum(a, -b),
            "mul": np.multiply}[inst.opcode]  # fmt: skip
    registers = _registers(kind)
    fn = through_double(wide, kind, ftz=m.ftz, sat=m.sat, relu=False)
    return LaneFn(fn, (registers,), (registers, registers))


def _mixed(inst: nodes.Instruction, ctx: Context, m: Modifiers, plain: Fn) -> LaneFn:
    """add{.rnd}.f32.bf16 d, a, c: a in 16 bits, c and d in f32."""
    _needs_blackwell(ctx, "a mixed-precision addition")
    form = _small(m.kinds[1])
    fn = plain if m.mode == "rn" else single.rounded(inst.opcode, m.mode)
    fn = flushed(fn, ftz=False, sat=m.sat)
    return LaneFn(lambda a, c: fn(formats.decode(a, form).astype(F32), c), ("f32",), ("b16", "f32"))


@operation("fma", kind="lane", isa="9.7.3.6")
def fused(inst: nodes.Instruction, ctx: Context) -> LaneFn:
    m = Modifiers(inst, ctx, "ftz", "sat", "relu", "oob")
    kind = m.kind
    if len(m.kinds) == 2:
        return _mixed_fused(inst, ctx, m)
    if kind == "f64":
        return LaneFn(double.fma(m.mode), ("f64",), ("f64",) * 3)
    if kind in ("f32", "f32x2"):
        fn: Fn = _rounded("fma", m.mode, single.fma, ftz=m.ftz)
        fn = flushed(fn, ftz=m.ftz, sat=m.sat)
        if kind == "f32x2":
            _needs_blackwell(ctx, ".f32x2")
            return LaneFn(both(fn), ("b64",), ("b64",) * 3)
        return LaneFn(fn, ("f32",), ("f32",) * 3)
    registers = _registers(kind)

    def wide(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        return formats.odd_sum(a * b, c)

    fn = through_double(wide, kind, ftz=m.ftz, sat=m.sat, relu=m.relu)
    if "oob" in m.words:
        fn = _out_of_bounds(fn, kind)
    return LaneFn(fn, (registers,), (registers,) * 3)


def _out_of_bounds(fn: Fn, kind: str) -> Fn:
    """.oob: an operand that is the out-of-bounds NaN (0xffff) makes the result 0."""

    def run(*operands: np.ndarray) -> np.ndarray:
        result = fn(*operands)
        parts = [np.ascontiguousarray(x).view(U16) for x in operands[:2]]
        outside = (parts[0] == 0xFFFF) | (parts[1] == 0xFFFF)
        bits = np.ascontiguousarray(result).view(U16)
        return np.where(outside, U16.type(0), bits).view(result.dtype)

    return run


def _mixed_fused(inst: nodes.Instruction, ctx: Context, m: Modifiers) -> LaneFn:
    """fma.rn.f32.bf16 d, a, b, c: a and b in 16 bits, c and d in f32."""
    _needs_blackwell(ctx, "a mixed-precision fma")
    form = _small(m.kinds[1])
    fn: Fn = single.fma if m.mode == "rn" else single.rounded("fma", m.mode)
    fn = flushed(fn, ftz=False, sat=m.sat)

    def run(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        return fn(formats.decode(a, form).astype(F32), formats.decode(b, form).astype(F32), c)

    return LaneFn(run, ("f32",), ("b16", "b16", "f32"))


def division(inst: nodes.Instruction, ctx: Context) -> LaneFn:
    m = Modifiers(inst, ctx, "ftz", "approx", "full")
    if m.kind == "f64":
        return LaneFn(double.binary("div", m.mode), ("f64",), ("f64", "f64"))
    if m.kind != "f32":
        ctx.fail(IllegalInstruction, f"type .{m.kind}")

    def plain(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return single.canonical(a / b)

    if "approx" in m.words:
        fn: Fn = _approximate_quotient
    elif "full" in m.words:
        fn = plain
    else:
        fn = _rounded("div", m.mode, plain, ftz=m.ftz)
    return LaneFn(flushed(fn, ftz=m.ftz, sat=False), ("f32",), ("f32", "f32"))


def _approximate_quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a times the reciprocal of b, which is 0 where b is above 2^126."""
    quotient = np.where(np.abs(b) > F32.type(2.0**126), a * np.copysign(F32.type(0), b), a / b)
    return single.canonical(quotient)


def sign(inst: nodes.Instruction, ctx: Context) -> LaneFn:
    """abs and neg act on the sign bit; a NaN becomes the canonical one in 16 and 32 bits."""
    m = Modifiers(inst, ctx, "ftz")
    kind, clear = m.kind, inst.opcode == "abs"
    if kind == "f64":
        return LaneFn(_sign64(clear), ("f64",), ("f64",))
    if kind == "f32":
        return LaneFn(flushed(_sign32(clear), ftz=m.ftz, sat=False), ("f32",), ("f32",))
    form, registers = _small(kind), _registers(kind)

    def run(x: np.ndarray) -> np.ndarray:
        bits = np.ascontiguousarray(x).view(U16)
        changed = bits & U16.type(0x7FFF) if clear else bits ^ U16.type(0x8000)
        values = formats.decode(bits, form)
        changed = np.where(np.isnan(values), U16.type(form.nan), changed)
        if m.ftz:
            changed = formats.encode(formats.flush(formats.decode(changed, form), form), form)
        return changed.view(x.dtype)

    return LaneFn(run, (registers,), (registers,))


def _sign64(clear: bool) -> Fn:
    """A NaN keeps its sign."""
    change = np.abs if clear else np.negative
    return lambda x: np.where(np.isnan(x), x, change(x))


def _sign32(clear: bool) -> Fn:
    def run(x: np.ndarray) -> np.ndarray:
        bits = x.view(U32)
        changed = bits & U32.type(0x7FFFFFFF) if clear else bits ^ U32.type(0x80000000)
        return single.canonical(changed.view(F32))

    return run


def extreme(inst: nodes.Instruction, ctx: Context) -> LaneFn:
    """min, max: NaN loses unless .NaN; .xorsign.abs; three operands for f32 on sm_100."""
    m = Modifiers(inst, ctx, "ftz", "NaN", "xorsign", "abs")
    pick = single.minimum if inst.opcode == "min" else single.maximum
    kind = m.kind
    if kind == "f64":
        wide = np.fmin if inst.opcode == "min" else np.fmax
        return LaneFn(_double_extreme(wide, inst.opcode), ("f64",), ("f64", "f64"))
    propagate, xorsign = "NaN" in m.words, "xorsign" in m.words
    if kind == "f32":
        fn = flushed(_extreme32(pick, propagate, xorsign), ftz=m.ftz, sat=False)
        magnitudes = "abs" in m.words and not xorsign
        if len(inst.operands) == 4:
            _needs_blackwell(ctx, f"three-input {inst.opcode}")
            if xorsign:
                ctx.fail(IllegalInstruction, ".xorsign is for two inputs")
            return LaneFn(_three(fn, magnitudes), ("f32",), ("f32",) * 3)
        if magnitudes:
            ctx.fail(IllegalInstruction, ".abs without .xorsign is for three inputs")
        return LaneFn(fn, ("f32",), ("f32", "f32"))
    form, registers = _small(kind), _registers(kind)
    inner = _extreme32(pick, propagate, xorsign)

    def run(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        x, y = (formats.decode(np.ascontiguousarray(v).view(U16), form) for v in (a, b))
        if m.ftz:
            x, y = formats.flush(x, form), formats.flush(y, form)
        result = inner(x.astype(F32), y.astype(F32)).astype(F64)
        return formats.encode(result, form).view(a.dtype)

    return LaneFn(run, (registers,), (registers, registers))


def _three(fn: Fn, magnitudes: bool) -> Fn:
    if magnitudes:
        return lambda a, b, c: fn(fn(np.abs(a), np.abs(b)), np.abs(c))
    return lambda a, b, c: fn(fn(a, b), c)


def _extreme32(pick: Fn, propagate: bool, xorsign: bool) -> Fn:
    if not (propagate or xorsign):
        return pick

    def run(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        x, y = (np.abs(a), np.abs(b)) if xorsign else (a, b)
        result = pick(x, y)
        if xorsign:
            signs = (a.view(U32) ^ b.view(U32)) & U32.type(0x80000000)
            negated = (result.view(U32) | signs).view(F32)
            result = np.where(np.isnan(result), result, negated)
        if propagate:
            result = np.where(np.isnan(a) | np.isnan(b), single.NAN, result)
        return result

    return run


def _double_extreme(pick: np.ufunc, name: str) -> Fn:
    def run(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        result = pick(a, b)
        both_zero = (a == 0) & (b == 0)
        if both_zero.any():
            merge = np.bitwise_or if name == "min" else np.bitwise_and
            result = np.where(both_zero, merge(a.view(U64), b.view(U64)).view(F64), result)
        return double.canonical(result, a, b)

    return run


@operation("copysign", kind="lane", isa="9.7.3.2")
def copy_sign(inst: nodes.Instruction, ctx: Context) -> LaneFn:
    """copysign d, a, b: a's sign on b's magnitude."""
    kind = inst.modifiers[-1]
    return LaneFn(lambda a, b: np.copysign(b, a), (kind,), (kind, kind))


@operation("testp", kind="lane", isa="9.7.3.1")
def test_property(inst: nodes.Instruction, ctx: Context) -> LaneFn:
    check, kind = inst.modifiers
    smallest = np.finfo(np.float32 if kind == "f32" else np.float64).smallest_normal
    tests: dict[str, Fn] = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda x: ~np.isnan(x),
        "notanumber": np.isnan,
        "normal": lambda x: np.isfinite(x) & ((np.abs(x) >= smallest) | (x == 0)),
        "subnormal": lambda x: (np.abs(x) < smallest) & (x != 0),
    }
    return LaneFn(tests[check], ("pred",), (kind,))
