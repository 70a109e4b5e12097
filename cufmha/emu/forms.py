# SPDX-License-Identifier: Apache-2.0
"""The spellings of lane-wise instructions: which modifiers each takes, and in which order.

Written as the PTX ISA writes its syntax: braces hold what may be left out, parentheses choices.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import replace
from functools import cache

from ..errors import IllegalInstruction, UnsupportedInstruction
from ..isa import nodes

_NAMES = {
    "INT": "(u16|s16|u32|s32|u64|s64)",
    "ANY": "(u8|s8|u16|s16|u32|s32|u64|s64)",
    "BITS": "(b16|b32|b64)",
    "RND": "(rn|rz|rm|rp)",
    "IRND": "(rni|rzi|rmi|rpi)",
    "HALF": "(f16|f16x2)",
    "BHALF": "(bf16|bf16x2)",
    "BOOL": "(and|or|xor)",
    "CMP": "(eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan)",
    "DEST": "(u32|s32|f32)",
    "VALUE": "(b16|b32|b64|u16|u32|u64|s16|s32|s64|f32|f64)",
}
_TEXT = """
(add|sub).INT    (add|sub).sat.s32    add.(u16x2|s16x2)
(add|sub|mul){.RND}{.ftz}{.sat}.f32    (add|sub|mul){.RND}.f64    (add|sub|mul){.RND}{.ftz}.f32x2
(add|sub|mul){.rn}{.ftz}{.sat}.HALF    (add|sub|mul){.rn}.BHALF
(add|sub){.RND}{.sat}.f32.(f16|bf16)
(mul|mad).(lo|hi).INT    (mul|mad).wide.(u16|s16|u32|s32)    mad.hi.sat.s32
(mul24|mad24).(lo|hi).(u32|s32)    sad.INT    (div|rem).INT
mad.RND{.ftz}{.sat}.f32    mad.RND.f64
fma.RND{.ftz}{.sat}.f32    fma.RND.f64    fma.RND{.ftz}.f32x2    fma.RND{.sat}.f32.(f16|bf16)
fma.rn{.ftz}{.sat}.HALF    fma.rn{.ftz}{.relu}.HALF    fma.rn{.relu}.BHALF
fma.rn.oob{.relu}.(f16|f16x2|bf16|bf16x2)
div.(approx|full|rn|rz|rm|rp){.ftz}.f32    div.RND.f64
(abs|neg).(s16|s32|s64|f64|bf16|bf16x2)    (abs|neg){.ftz}.(f32|f16|f16x2)
(min|max).(u16|s16|u32|u64|s64|u16x2|f64)    (min|max){.relu}.(s32|s16x2)
(min|max){.ftz}{.NaN}{.abs}.f32    (min|max){.ftz}{.NaN}{.xorsign.abs}.(f32|f16|f16x2)
(min|max){.NaN}{.xorsign.abs}.BHALF
dp4a.(u32|s32).(u32|s32)    dp2a.(lo|hi).(u32|s32).(u32|s32)
(add|sub).cc.(u32|s32|u64|s64)    (addc|subc){.cc}.(u32|s32|u64|s64)
mad.(lo|hi).cc.(u32|s32|u64|s64)    madc.(lo|hi){.cc}.(u32|s32|u64|s64)
(and|or|xor|not).(pred|b16|b32|b64)    cnot.BITS    shl.BITS
shr.(b16|b32|b64|u16|u32|u64|s16|s32|s64)
lop3{.(or|and)}.b32    shf.(l|r).(clamp|wrap).b32    prmt.b32{.(f4e|b4e|rc8|ecl|ecr|rc16)}
bfe.(u32|u64|s32|s64)    bfi.(b32|b64)    bmsk.(clamp|wrap).b32    szext.(clamp|wrap).(u32|s32)
bfind{.shiftamt}.(u32|u64|s32|s64)    (clz|popc|brev).(b32|b64)    fns.b32
setp.(eq|ne){.BOOL}.BITS    setp.(eq|ne|lt|le|gt|ge){.BOOL}.INT
setp.(lo|ls|hi|hs){.BOOL}.(u16|u32|u64)
setp.CMP{.BOOL}{.ftz}.(f32|f16|f16x2)    setp.CMP{.BOOL}.(f64|bf16|bf16x2)
set.(eq|ne){.BOOL}.DEST.BITS    set.(eq|ne|lt|le|gt|ge){.BOOL}.DEST.INT
set.(lo|ls|hi|hs){.BOOL}.DEST.(u16|u32|u64)
set.CMP{.BOOL}{.ftz}.DEST.f32    set.CMP{.BOOL}.DEST.f64
set.CMP{.BOOL}{.ftz}.(u16|s16|u32|s32|f16).f16    set.CMP{.BOOL}.(u16|s16|u32|s32|bf16).bf16
set.CMP{.BOOL}{.ftz}.(u32|s32|f16x2).f16x2    set.CMP{.BOOL}.(u32|s32|bf16x2).bf16x2
selp.VALUE    slct.VALUE.s32    slct{.ftz}.VALUE.f32
copysign.(f32|f64)    testp.(finite|infinite|number|notanumber|normal|subnormal).(f32|f64)
(ex2|lg2|rsqrt|sin|cos).approx{.ftz}.f32    (rcp|sqrt).(approx|rn|rz|rm|rp){.ftz}.f32
ex2.approx.HALF    ex2.approx.ftz.BHALF    tanh.approx.(f32|f16|f16x2|bf16|bf16x2)
(rcp|sqrt).RND.f64    rcp.approx.ftz.f64    rsqrt.approx{.ftz}.f64
cvt{.sat}.ANY.ANY    cvt.IRND{.sat}.ANY.(f16|f64)    cvt.IRND{.ftz}{.sat}.ANY.f32
cvt.IRND.INT.bf16    cvt.RND{.sat}.(f16|f64).ANY    cvt.RND{.ftz}{.sat}.f32.ANY    cvt.RND.bf16.INT
cvt{.IRND}{.ftz}{.sat}.f32.f32    cvt{.IRND}{.sat}.(f16.f16|f64.f64)    cvt{.IRND}.bf16.bf16
cvt{.ftz}{.sat}.(f32.f16|f64.f32)    cvt{.sat}.f64.f16    cvt.(f32|f64).bf16
cvt.RND{.ftz}{.sat}.(f32.f64|f16.f32)    cvt.RND{.sat}.f16.f64
cvt.(rn|rz){.relu}{.satfinite}.(f16|bf16).f32    cvt.RND.bf16.(f16|f32|f64)
cvt.(rn|rz){.relu}{.satfinite}.(f16x2|bf16x2).f32
cvt.(rn|rz){.satfinite}{.relu}.tf32.f32    cvt.rna{.satfinite}.tf32.f32
cvt.rn.satfinite{.relu}.(e4m3x2|e5m2x2).(f32|f16x2)    cvt.rn{.relu}.f16x2.(e4m3x2|e5m2x2)
cvt.pack.sat.(u16|s16).s32    cvt.pack.sat.(u8|s8).s32.b32
"""


_TYPE = re.compile(r"pred|[busf](8|16|32|64)|bf16|(bf16|[fus]16|f32|e[45]m[32])x2|tf32")
_CHOICE = re.compile(r"\{([^{}()]*)\}|\(([^{}()]*)\)")
Key = tuple[frozenset[str], tuple[str, ...]]


def spellings() -> list[str]:
    """Every form in full, as `add.rn.ftz.f32`."""
    text = re.sub(r"\b[A-Z]+\b", lambda m: _NAMES[m.group()], _TEXT)
    return [full for form in text.split() for full in _expanded(form)]


def _expanded(form: str) -> list[str]:
    """Innermost braces and parentheses first; what they hold may bring further ones to the top."""
    found = _CHOICE.search(form)
    if found is None:
        return [form]
    optional, choices = found.groups()
    options = ["", optional] if choices is None else choices.split("|")
    before, after = form[: found.start()], form[found.end() :]
    return [full for option in options for full in _expanded(before + option + after)]


def _key(modifiers: tuple[str, ...]) -> Key:
    """Assemblers care for the order of types alone, and not for words written twice."""
    words = [word for word in modifiers if not _TYPE.fullmatch(word)]
    return frozenset(words), tuple(word for word in modifiers if _TYPE.fullmatch(word))


@cache
def _table() -> dict[str, dict[Key, tuple[str, ...]]]:
    """Opcode -> its forms, in the order in which the ISA writes them."""
    found: dict[str, dict[Key, tuple[str, ...]]] = {}
    for form in spellings():
        opcode, *modifiers = form.split(".")
        found.setdefault(opcode, {})[_key(tuple(modifiers))] = tuple(modifiers)
    return found


def ordered(inst: nodes.Instruction) -> nodes.Instruction:
    """The instruction with its modifiers as the ISA orders them; refuses what it does not take."""
    forms = _table().get(inst.opcode)
    if forms is None:
        return inst
    written = forms.get(_key(inst.modifiers))
    if written is not None:
        return inst if written == inst.modifiers else replace(inst, modifiers=written)
    words = {word for form in forms.values() for word in form}
    for word in inst.modifiers:
        if word not in words:
            raise UnsupportedInstruction(f"{inst.name}: modifier .{word}")
    near = difflib.get_close_matches(
        ".".join(inst.modifiers), [".".join(form) for form in forms.values()], 3, 0
    )
    examples = ", ".join(f"{inst.opcode}.{form}" for form in near)
    raise IllegalInstruction(f"{inst.name}: no such form; there are {examples}")
