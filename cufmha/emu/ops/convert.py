# SPDX-License-Identifier: Apache-2.0
"""cvt (PTX ISA 9.7.9.21): between all integer and floating types, scalars and packed pairs."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import IllegalInstruction, UnsupportedInstruction
from ...isa import nodes
from .. import types
from ..context import Context
from ..numerics import formats
from ..numerics.formats import F64, U16, U32
from ..registry import LaneFn, operation
from ..types import some

INTEGERS = frozenset(f"{s}{w}" for s in "us" for w in (8, 16, 32, 64))
FLOATS = frozenset(("f16", "bf16", "f32", "f64", "tf32"))
PACKED = frozenset(("f16x2", "bf16x2", "e4m3x2", "e5m2x2", "e2m1x2", "e2m3x2", "e3m2x2",
                    "ue8m0x2"))  # fmt: skip
INTEGER_ROUNDINGS = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
FLOAT_ROUNDINGS = ("rn", "rna", "rz", "rm", "rp")
_KNOWN = {*INTEGER_ROUNDINGS, *FLOAT_ROUNDINGS, "ftz", "sat", "relu", "satfinite"}
_SIXTEEN, _ONE, _BELOW_HALF, _NAN = (U32.type(x) for x in (16, 1, 0x7FFF, 0x7FFF))
_REGISTERS = {"f16": "b16", "bf16": "b16", "tf32": "b32"}


class _Form:
    def __init__(self, inst: nodes.Instruction, ctx: Context) -> None:
        words = list(inst.modifiers)
        kinds = [w for w in words if w in INTEGERS | FLOATS | PACKED]
        if len(kinds) != 2 or words[-2:] != kinds:
            ctx.fail(IllegalInstruction, "needs a destination and a source type")
        for word in words[:-2]:
            if word not in _KNOWN:
                ctx.fail(UnsupportedInstruction, f"modifier .{word}")
        self.to, self.of = kinds
        self.ftz, self.sat = "ftz" in words, "sat" in words
        self.relu, self.satfinite = "relu" in words, "satfinite" in words
        self.integer_mode = next((w for w in words if w in INTEGER_ROUNDINGS), None)
        self.mode = next((w for w in words if w in FLOAT_ROUNDINGS), None)


@operation("cvt", kind="lane", isa="9.7.9.21")
def convert(inst: nodes.Instruction, ctx: Context) -> LaneFn:
    f = _Form(inst, ctx)
    if f.to in PACKED or f.of in PACKED:
        return _packed(f, ctx)
    if f.to in INTEGERS and f.of in INTEGERS:
        return _between_integers(f, ctx)
    if f.to in INTEGERS:
        return _float_to_integer(f, ctx)
    if f.of in INTEGERS:
        return _integer_to_float(f, ctx)
    return _float_to_float(f, ctx)


def _register(kind: str) -> str:
    return _REGISTERS.get(kind, kind)


def _limits(kind: str) -> tuple[int, int]:
    bits = types.width(kind)
    return (0, 2**bits - 1) if kind[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _between_integers(f: _Form, ctx: Context) -> LaneFn:
    to = types.dtype(f.to)
    if not f.sat:
        return LaneFn(lambda x: x.astype(to), (f.to,), (f.of,))
    low, high = _limits(f.to)
    least, most = _limits(f.of)
    if low <= least and most <= high:
        ctx.fail(IllegalInstruction, f".sat where every .{f.of} fits in .{f.to}")

    def fn(x: np.ndarray) -> np.ndarray:
        limited = np.clip(x, max(low, least), min(high, most))
        return limited.astype(to)

    return LaneFn(fn, (f.to,), (f.of,))


def _float_to_integer(f: _Form, ctx: Context) -> LaneFn:
    """Out of range goes to the nearest limit; NaN to 0, or where 64 bits are involved to the top
    bit alone."""
    if f.integer_mode is None:
        ctx.fail(IllegalInstruction, "needs a rounding such as .rzi")
    rounding = INTEGER_ROUNDINGS[f.integer_mode]
    form, to = formats.FORMATS[f.of], types.dtype(f.to)
    low, high = _limits(f.to)
    odd = types.width(f.to) == 64 or f.of == "f64"
    bits = types.width(f.to)
    missing = np.array(1 << (bits - 1) if odd else 0, f"u{bits // 8}").view(to)
    top = float(high) if types.width(f.to) < 64 else float(np.nextafter(float(high), 0))

    def fn(x: np.ndarray) -> np.ndarray:
        wide = formats.decode(x, form)
        if f.ftz:
            wide = formats.flush(wide, form)
        whole = rounding(wide)
        limited = np.clip(whole, float(low), top)
        result = np.where(np.isnan(limited), 0, limited).astype(to)
        result = np.where(whole > top, to.type(high), result)
        return np.where(np.isnan(wide), missing, result)

    return LaneFn(fn, (f.to,), (_register(f.of),))


def _integer_to_float(f: _Form, ctx: Context) -> LaneFn:
    if f.mode is None:
        ctx.fail(IllegalInstruction, "needs a rounding such as .rn")
    form, mode = formats.FORMATS[f.to], f.mode
    register = _register(f.to)

    def fn(x: np.ndarray) -> np.ndarray:
        wide = x.astype(F64) if x.dtype.itemsize < 8 else _odd_double(x)
        if f.to == "f64" and x.dtype.itemsize == 8:
            return _to_double(x, mode)
        bits = formats.to_format(wide, form, mode)
        if f.sat:
            bits = formats.encode(formats.saturate(formats.decode(bits, form)), form)
        return bits.view(types.dtype(register))

    return LaneFn(fn, (register,), (f.of,))


def _odd_double(x: np.ndarray) -> np.ndarray:
    """64-bit integers to float64 rounded to odd: high and low halves are exact."""
    high = (x >> x.dtype.type(32)).astype(F64) * 2.0**32
    low = (x & x.dtype.type(0xFFFFFFFF)).astype(F64)
    return formats.odd_sum(high, low)


def _to_double(x: np.ndarray, mode: str) -> np.ndarray:
    if mode == "rn":
        return x.astype(F64)
    from fractions import Fraction

    from ..numerics.double import round_fraction

    return np.array([round_fraction(Fraction(int(v)), mode) for v in x], F64)


def _finish(wide: np.ndarray, f: _Form, form: formats.Format, mode: str) -> np.ndarray:
    """float64 to bits with everything the modifiers ask for."""
    if f.satfinite:
        return narrow(wide, form, mode, f)
    bits = formats.to_format(wide, form, mode)
    if f.ftz or f.sat or f.relu:
        value = formats.decode(bits, form)
        value = formats.flush(value, form) if f.ftz and form is formats.SINGLE else value
        value = formats.saturate(value) if f.sat else value
        value = formats.relu(value) if f.relu else value
        bits = formats.encode(value, form)
    return bits


def _float_to_float(f: _Form, ctx: Context) -> LaneFn:
    source, target = formats.FORMATS[f.of], formats.FORMATS[f.to]
    register = _register(f.to)
    out = types.dtype(register)
    if f.integer_mode:
        whole = INTEGER_ROUNDINGS[f.integer_mode]
    else:
        whole = None
        if target.precision < source.precision and f.mode is None:
            ctx.fail(IllegalInstruction, "narrowing needs a rounding such as .rn")
    mode = f.mode or "rn"
    keeps = "f64" in (f.of, f.to) or (f.of, f.to) == ("bf16", "f32")

    def fn(x: np.ndarray) -> np.ndarray:
        wide = formats.decode(x, source)
        if f.ftz and source is formats.SINGLE:
            wide = formats.flush(wide, source)
        if whole is not None:
            wide = np.copysign(whole(wide), wide)
        result = _finish(wide, f, target, mode)
        if f.to == "tf32" and np.isnan(wide).any():
            missing = x.view(U32) & U32.type(0xFFFFE000) if mode == "rna" else U32.type(0x7FFFE000)
            result = np.where(np.isnan(wide), missing, result)
        if keeps and np.isnan(wide).any():
            result = np.where(np.isnan(wide), _same_nan(x, source, target), result)
        return result.view(out)

    return LaneFn(fn, (register,), (_register(f.of),))


def _same_nan(x: np.ndarray, source: formats.Format, target: formats.Format) -> np.ndarray:
    """NaN keeps its sign and the upper bits of its payload; quiet where 64 bits are involved."""
    bits = np.ascontiguousarray(x).view(f"u{source.bits // 8}").astype(np.uint64)
    sign = bits >> np.uint64(source.bits - 1)
    fraction = bits & np.uint64((1 << (source.precision - 1)) - 1)
    shift = target.precision - source.precision
    fraction = fraction << np.uint64(shift) if shift > 0 else fraction >> np.uint64(-shift)
    top = ((1 << (target.bits - target.precision)) - 1) << (target.precision - 1)
    if source.bits == 64 or target.bits == 64:
        top |= 1 << (target.precision - 2)
    whole = sign << np.uint64(target.bits - 1) | np.uint64(top) | fraction
    return whole.astype(f"u{target.bits // 8}")


# ---- pairs


def _packed(f: _Form, ctx: Context) -> LaneFn:
    for kind in (f.to, f.of):
        if kind in PACKED and kind[:-2] not in formats.FORMATS:
            ctx.fail(UnsupportedInstruction, f"type .{kind}")
    if f.of == "f32":
        return _pair_from_singles(f)
    if f.of in ("f16x2", "bf16x2") and f.to in ("e4m3x2", "e5m2x2"):
        return _pair_to_bytes(f)
    if f.of in ("e4m3x2", "e5m2x2") and f.to in ("f16x2", "bf16x2"):
        return _pair_from_bytes(f)
    ctx.fail(UnsupportedInstruction, f"from .{f.of} to .{f.to}")


def _pair_from_singles(f: _Form) -> LaneFn:
    """The first source goes to the high half."""
    form, mode = formats.FORMATS[f.to[:-2]], f.mode or "rn"
    register = "b32" if form.bits == 16 else "b16"
    if f.to in ("bf16x2", "f16x2") and mode == "rn" and not (f.relu or f.satfinite):
        halves = _to_half if form is formats.HALF else _to_bf16

        def fast(a: np.ndarray, b: np.ndarray) -> np.ndarray:
            both = halves(np.concatenate((b, a)))
            return both[len(b) :] << _SIXTEEN | both[: len(b)]

        return LaneFn(fast, (register,), ("f32", "f32"))

    def fn(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        high, low = (narrow(x.astype(F64), form, mode, f) for x in (a, b))
        return formats.packed(low, high)

    return LaneFn(fn, (register,), ("f32", "f32"))


def _to_half(x: np.ndarray) -> np.ndarray:
    """float32 to f16, nearest even, as 32-bit words."""
    bits = x.astype(np.float16).view(U16).astype(U32)
    nan = np.isnan(x)
    return np.where(nan, _NAN, bits) if some(nan) else bits


def _to_bf16(x: np.ndarray) -> np.ndarray:
    bits = x.view(U32)
    rounded = bits >> _SIXTEEN
    rounded &= _ONE
    rounded += _BELOW_HALF
    rounded += bits
    rounded >>= _SIXTEEN
    nan = np.isnan(x)
    return np.where(nan, _NAN, rounded) if some(nan) else rounded


def narrow(wide: np.ndarray, form: formats.Format, mode: str, f: Any) -> np.ndarray:
    """float64 to a small format; .satfinite keeps overflow finite (NaN stays NaN)."""
    if f.satfinite:
        value = formats.quantize(wide, form, mode)
        value = np.where(np.isnan(value), value, np.clip(value, -form.largest, form.largest))
        value = formats.relu(value) if f.relu else value
        return formats.encode(value, form)
    bits = formats.to_format(wide, form, mode)
    if f.relu:
        bits = formats.encode(formats.relu(formats.decode(bits, form)), form)
    return bits


def _pair_to_bytes(f: _Form) -> LaneFn:
    source, target = formats.FORMATS[f.of[:-2]], formats.FORMATS[f.to[:-2]]

    def fn(x: np.ndarray) -> np.ndarray:
        wide = formats.decode(np.ascontiguousarray(x).view(U16), source)
        return np.ascontiguousarray(narrow(wide, target, "rn", f)).view(U16)

    return LaneFn(fn, ("b16",), ("b32",))


def _pair_from_bytes(f: _Form) -> LaneFn:
    source, target = formats.FORMATS[f.of[:-2]], formats.FORMATS[f.to[:-2]]

    def fn(x: np.ndarray) -> np.ndarray:
        wide = formats.decode(np.ascontiguousarray(x).view("u1"), source)
        wide = formats.relu(wide) if f.relu else wide
        return np.ascontiguousarray(formats.to_format(wide, target)).view(U32)

    return LaneFn(fn, ("b32",), ("b16",))


@operation("cvt.pack", kind="lane", isa="9.7.9.22")
def convert_pack(inst: nodes.Instruction, ctx: Context) -> LaneFn:
    """Saturates a and b and packs them, a above b; narrow results are shifted in below c."""
    words = inst.modifiers
    kind = words[2]
    low, high = _limits(kind)
    bits = types.width(kind)

    def fn(a: np.ndarray, b: np.ndarray, *c: np.ndarray) -> np.ndarray:
        mask = U32.type((1 << bits) - 1)
        x, y = (np.clip(v.astype(np.int64), low, high).astype(np.uint64).astype(U32) & mask
                for v in (a, b))  # fmt: skip
        both = x << U32.type(bits) | y
        return c[0] << U32.type(2 * bits) | both if c else both

    third = ("b32",) if len(inst.operands) == 4 else ()
    return LaneFn(fn, ("b32",), ("s32", "s32", *third))
