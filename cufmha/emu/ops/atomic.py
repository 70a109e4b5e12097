# SPDX-License-Identifier: Apache-2.0
"""atom and red (PTX ISA 9.7.13.7): every operation, type and vector, in shared and global memory.

Lanes that hit one cell take their turns: in lane order with seed 0, else in an order by seed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...errors import IllegalInstruction, UnsupportedInstruction
from ...isa import nodes
from .. import types
from ..context import Context
from ..lanes import Warp
from ..modify import modify, modify_wide
from ..registry import operation
from ..types import UNSIGNED

Update = Callable[..., np.ndarray]
Run = Callable[[Warp, np.ndarray], None]
_SPACES = ("global", "shared", "shared::cta", "shared::cluster")
_SEMANTICS = ("relaxed", "acquire", "release", "acq_rel")
_IGNORED = frozenset(("cta", "cluster", "gpu", "sys", "noftz", "L2::cache_hint"))
_VECTORS = {"v2": 2, "v4": 4, "v8": 8}

_INTEGER = {
    "add": ("u32", "s32", "u64"),
    "min": ("u32", "s32", "u64", "s64"),
    "max": ("u32", "s32", "u64", "s64"),
    "inc": ("u32",),
    "dec": ("u32",),
    "and": ("b32", "b64"),
    "or": ("b32", "b64"),
    "xor": ("b32", "b64"),
    "exch": ("b32", "b64", "b128"),
    "cas": ("b16", "b32", "b64", "b128"),
}
_FLOAT_ADD = ("f32", "f64", "f16", "f16x2", "bf16", "bf16x2")
_FLOAT_EXTREME = ("f16", "f16x2", "bf16", "bf16x2")
_VECTOR_LENGTHS = {"f32": (2, 4), "f16": (2, 4, 8), "bf16": (2, 4, 8), "f16x2": (2, 4),
                   "bf16x2": (2, 4)}  # fmt: skip


class Form:
    """The parsed modifiers; their order is not checked."""

    def __init__(self, inst: nodes.Instruction, ctx: Context) -> None:
        self.space = self.op = self.kind = ""
        self.sem, self.vector = "relaxed", 1
        self.hint = "L2::cache_hint" in inst.modifiers
        for word in inst.modifiers:
            if word in _SPACES:
                self.space = word
            elif word in _SEMANTICS:
                self.sem = word
            elif word in _VECTORS:
                self.vector = _VECTORS[word]
            elif word in _INTEGER:
                self.op = word
            elif types.known(word):
                self.kind = word
            elif word not in _IGNORED:
                ctx.fail(UnsupportedInstruction, f"modifier .{word}")
        self._check(inst, ctx)

    def _check(self, inst: nodes.Instruction, ctx: Context) -> None:
        allowed: tuple[str, ...] = _INTEGER.get(self.op, ())
        if self.op == "add":
            allowed += _FLOAT_ADD
        elif self.op in ("min", "max") and self.vector > 1:
            allowed = _FLOAT_EXTREME
        if self.kind not in allowed:
            ctx.fail(IllegalInstruction, f"there is no .{self.op or '?'} of .{self.kind or '?'}")
        if self.vector > 1:
            if self.vector not in _VECTOR_LENGTHS.get(self.kind, ()):
                ctx.fail(IllegalInstruction, f"there is no .v{self.vector} of .{self.kind}")
            if self.space not in ("", "global"):
                ctx.fail(IllegalInstruction, "vectors exist in global memory only")
        half = self.kind in ("f16", "f16x2", "bf16", "bf16x2")
        if half and "noftz" not in inst.modifiers:
            ctx.fail(IllegalInstruction, f".{self.kind} requires .noftz")


def _update(form: Form) -> Update:
    """new = f(old, a[, b]) on unsigned arrays."""
    kind = types.dtype(form.kind)
    bits = UNSIGNED[min(types.width(form.kind), 64)]
    if form.kind in _FLOAT_ADD:
        return _float_update(form)
    simple: dict[str, Any] = {
        "add": lambda old, a: old + a,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
        "exch": lambda old, a: a,
        "cas": lambda old, b, c: np.where(old == b, c, old),
        "inc": lambda old, a: np.where(old >= a, old.dtype.type(0), old + old.dtype.type(1)),
        "dec": lambda old, a: np.where((old == 0) | (old > a), a, old - old.dtype.type(1)),
        "min": lambda old, a: np.minimum(old.view(kind), a.view(kind)).view(bits),
        "max": lambda old, a: np.maximum(old.view(kind), a.view(kind)).view(bits),
    }
    update: Update = simple[form.op]
    return update


def _float_update(form: Form) -> Update:
    base = form.kind.removesuffix("x2")
    flush = form.kind == "f32" and form.space in ("", "global")
    widen, narrow, halves = _FORMATS[base]

    def one(old: np.ndarray, a: np.ndarray) -> np.ndarray:
        x, y = widen(old), widen(a)
        if flush:
            x, y = _flushed(x), _flushed(y)
        if form.op == "add":
            total = x + y
            return narrow(_flushed(total) if flush else total)
        missing = np.isnan(x) | np.isnan(y)
        chosen = np.where(np.isnan(y), x, np.where(np.isnan(x), y, _pick(form.op, x, y)))
        return narrow(np.where(missing & np.isnan(chosen), np.nan, chosen))

    if not form.kind.endswith("x2"):
        return one

    def both(old: np.ndarray, a: np.ndarray) -> np.ndarray:
        pairs = [np.ascontiguousarray(x).view(halves) for x in (old, a)]
        return one(*pairs).view(old.dtype)

    return both


def _pick(op: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The larger or smaller of two numbers, −0 below +0."""
    less = (x < y) | ((x == y) & np.signbit(x))
    return np.where(less, y, x) if op == "max" else np.where(less, x, y)


def _flushed(x: np.ndarray) -> np.ndarray:
    """Subnormals as zeros of their sign: float adders at the L2 cache do not keep them."""
    tiny = np.abs(x) < np.finfo(np.float32).tiny
    return np.where(tiny, np.copysign(np.float32(0), x), x)


def _canonical(values: np.ndarray, bits: np.ndarray, nan: int) -> np.ndarray:
    return np.where(np.isnan(values), bits.dtype.type(nan), bits)


def _to_bf16(x: np.ndarray) -> np.ndarray:
    raw = x.astype(np.float32).view(np.uint32)
    even = (raw >> np.uint32(16)) & np.uint32(1)
    rounded = ((raw + np.uint32(0x7FFF) + even) >> np.uint32(16)).astype(np.uint16)
    return _canonical(x, rounded, 0x7FFF)


_FORMATS: dict[str, tuple[Callable[..., Any], Callable[..., Any], Any]] = {
    "f16": (
        lambda x: x.view(np.float16).astype(np.float64),
        lambda x: _canonical(x, x.astype(np.float16).view(np.uint16), 0x7FFF),
        np.uint16,
    ),
    "bf16": (
        lambda x: (x.astype(np.uint32) << np.uint32(16)).view(np.float32),
        _to_bf16,
        np.uint16,
    ),
    "f32": (
        lambda x: x.view(np.float32),
        lambda x: _canonical(x, x.view(np.uint32), 0x7FFFFFFF),
        np.uint32,
    ),
    "f64": (
        lambda x: x.view(np.float64),
        lambda x: _canonical(x, x.view(np.uint64), 0x7FF8000000000000),
        np.uint64,
    ),
}


@operation("atom", kind="warp", isa="9.7.13.7")
def atomic(inst: nodes.Instruction, ctx: Context) -> Run:
    return _build(inst, ctx, returns=True)


@operation("red", kind="warp", isa="9.7.13.8")
def reduction(inst: nodes.Instruction, ctx: Context) -> Run:
    form = Form(inst, ctx)
    if form.op in ("exch", "cas"):
        ctx.fail(IllegalInstruction, f"red has no .{form.op}")
    if form.sem in ("acquire", "acq_rel"):
        ctx.fail(IllegalInstruction, f"red has no .{form.sem}")
    return _build(inst, ctx, returns=False)


def _build(inst: nodes.Instruction, ctx: Context, *, returns: bool) -> Run:
    form = Form(inst, ctx)
    operands = list(inst.operands)
    target = operands.pop(0) if returns else None
    wanted = 2 + (form.op == "cas") + form.hint
    if len(operands) != wanted:
        ctx.fail(IllegalInstruction, f"takes {wanted + returns} operands, got {len(inst.operands)}")
    address = ctx.address(operands[0], "shared" if "shared" in form.space else form.space)
    if form.kind == "b128":
        return _build_wide(ctx, form, target, operands, address)
    size, count = types.width(form.kind) // 8, form.vector
    raw = f"b{8 * size}"
    readers = [
        [ctx.source(item, raw) for item in _items(operand, count, ctx)]
        for operand in operands[1 : 2 + (form.op == "cas")]
    ]
    sinks = [] if target is None else [ctx.sink(x, raw) for x in _items(target, count, ctx)]
    update = _update(form)

    def run(w: Warp, mask: np.ndarray) -> None:
        where = address(w)
        values = [[read(w) for read in element] for element in zip(*readers, strict=True)]
        olds = modify(w, mask, where, form.space, size, values, update, sem=form.sem)
        for sink, old in zip(sinks, olds, strict=False):
            sink(w, old, mask)

    return run


def _items(operand: Any, count: int, ctx: Context) -> list[Any]:
    items = list(operand.items) if isinstance(operand, nodes.Vector) else [operand]
    if len(items) != count:
        ctx.fail(IllegalInstruction, f"{count} registers are required, got {len(items)}")
    return items


def _build_wide(
    ctx: Context, form: Form, target: Any, operands: list[Any], address: Callable[..., Any]
) -> Run:
    """exch and cas of 128 bits: two 64-bit halves that change together."""
    out, slots = ctx.slot(target), [ctx.slot(o) for o in operands[1 : 2 + (form.op == "cas")]]

    def update(old: np.ndarray, *values: np.ndarray) -> np.ndarray:
        if form.op == "exch":
            return values[0]
        return np.where((old == values[0]).all(axis=-1, keepdims=True), values[1], old)

    def run(w: Warp, mask: np.ndarray) -> None:
        values = [w.R[slot] for slot in slots]
        old = modify_wide(w, mask, address(w), form.space, values, update, sem=form.sem)
        w.write(out, old)

    return run
