# SPDX-License-Identifier: Apache-2.0
"""Comparisons and selections (PTX ISA 9.7.5 to 9.7.7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...errors import IllegalInstruction
from ...isa import nodes
from .. import types
from ..context import Context
from ..numerics import formats, single
from ..registry import LaneFn, operation

Compare = Callable[[np.ndarray, np.ndarray], np.ndarray]


def _or_nan(plain: Compare) -> Compare:
    return lambda a, b: plain(a, b) | np.isnan(a) | np.isnan(b)


def _ordered_unequal(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a < b) | (a > b)


COMPARISONS: dict[str, Compare] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
    "equ": _or_nan(np.equal),
    "neu": _or_nan(np.not_equal),
    "ltu": _or_nan(np.less),
    "leu": _or_nan(np.less_equal),
    "gtu": _or_nan(np.greater),
    "geu": _or_nan(np.greater_equal),
    "num": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "nan": lambda a, b: np.isnan(a) | np.isnan(b),
}
_ONES = {"f32": 0x3F800000, "f16": 0x3C00, "bf16": 0x3F80}
COMBINE = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}
SMALL = {"f16": "b16", "bf16": "b16", "f16x2": "b32", "bf16x2": "b32"}


def comparison(name: str, kind: str, *, ftz: bool, ctx: Context) -> Compare:
    """A comparison over arrays of the type; for packed types over both halves, interleaved."""
    if name not in COMPARISONS:
        ctx.fail(IllegalInstruction, f"comparison .{name}")
    floating = kind in SMALL or kind in ("f32", "f64")
    if name in ("lo", "ls", "hi", "hs") and kind[0] != "u":
        ctx.fail(IllegalInstruction, f".{name} is for unsigned types, not .{kind}")
    if not floating and (name in ("num", "nan") or len(name) == 3):
        ctx.fail(IllegalInstruction, f".{name} is for floats, not .{kind}")
    plain = COMPARISONS[name]
    if floating and name == "ne":
        plain = _ordered_unequal
    if kind in SMALL:
        form = formats.HALF if kind.startswith("f16") else formats.BF16

        def small(a: np.ndarray, b: np.ndarray) -> np.ndarray:
            x, y = (formats.decode(np.ascontiguousarray(v).view("u2"), form) for v in (a, b))
            if ftz:
                x, y = formats.flush(x, form), formats.flush(y, form)
            return plain(x, y)

        return small
    if ftz:
        return lambda a, b: plain(single.flush(a), single.flush(b))
    return plain


@operation("setp", kind="lane", isa="9.7.6.2")
def set_predicate(inst: nodes.Instruction, ctx: Context) -> LaneFn:
    words = list(inst.modifiers)
    kind, ftz = words[-1], "ftz" in words
    combine = next((COMBINE[w] for w in words[1:-1] if w in COMBINE), None)
    compare = comparison(words[0], kind, ftz=ftz, ctx=ctx)
    register = SMALL.get(kind, kind)
    pair = isinstance(inst.operands[0], nodes.Pair)
    packed = kind.endswith("x2")

    def fn(a: np.ndarray, b: np.ndarray, *c: np.ndarray) -> Any:
        result = compare(a, b)
        if packed:
            low, high = result[0::2], result[1::2]
            if combine:
                low, high = combine(low, c[0]), combine(high, c[0])
            return low, high
        if combine is None:
            return (result, ~result) if pair else result
        first = combine(result, c[0])
        return (first, combine(~result, c[0])) if pair else first

    targets = ("pred", "pred") if pair or packed else ("pred",)
    return LaneFn(fn, targets, (register, register) + (("pred",) if combine else ()))


@operation("set", kind="lane", isa="9.7.6.1")
def set_value(inst: nodes.Instruction, ctx: Context) -> LaneFn:
    """All ones or 1.0 where the comparison holds."""
    words = list(inst.modifiers)
    target, kind, ftz = words[-2], words[-1], "ftz" in words
    combine = next((COMBINE[w] for w in words[1:-2] if w in COMBINE), None)
    compare = comparison(words[0], kind, ftz=ftz, ctx=ctx)
    register = SMALL.get(kind, kind)
    part = np.dtype(f"uint{types.width(SMALL.get(target, target))}")
    packed = kind.endswith("x2")
    if packed:
        part = np.dtype("uint16")
    yes = part.type(_ONES.get(target.removesuffix("x2"), 2 ** (8 * part.itemsize) - 1))

    def fn(a: np.ndarray, b: np.ndarray, *c: np.ndarray) -> np.ndarray:
        result = compare(a, b)
        if combine:
            result = combine(result, np.repeat(c[0], len(result) // len(c[0])))
        found = np.where(result, yes, part.type(0))
        return found.view(np.uint32) if packed else found

    destination = f"b{types.width(SMALL.get(target, target))}"
    return LaneFn(fn, (destination,), (register, register) + (("pred",) if combine else ()))


@operation("selp", kind="lane", isa="9.7.6.3")
def select(inst: nodes.Instruction, ctx: Context) -> LaneFn:
    (kind,) = inst.modifiers
    raw = f"b{types.width(kind)}"
    bits = types.dtype(raw)
    return LaneFn(
        lambda a, b, p: np.where(p, a.view(bits), b.view(bits)),
        (raw,),
        (_immediate(inst.operands[1], kind, raw), _immediate(inst.operands[2], kind, raw), "pred"),
    )


def _immediate(operand: Any, kind: str, raw: str) -> str:
    """Constants keep their type (1.0 must become float bits); registers are bits."""
    return kind if isinstance(operand, nodes.Float) else raw


@operation("slct", kind="lane", isa="9.7.6.4")
def select_by_sign(inst: nodes.Instruction, ctx: Context) -> LaneFn:
    """a where c ≥ 0, else b; NaN selects b."""
    kind, test = inst.modifiers[-2:]
    raw, ftz = f"b{types.width(kind)}", "ftz" in inst.modifiers

    def fn(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        c = single.flush(c) if ftz else c
        return np.where(c >= 0, a, b)

    return LaneFn(fn, (raw,), (raw, raw, test))
