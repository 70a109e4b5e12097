# SPDX-License-Identifier: Apache-2.0
"""Bits: logic, shifts, fields, permutes, counts, comparisons, selections and packing."""

from __future__ import annotations

import numpy as np

from .base import lanewise, random_bits

ORDERED = ("eq", "ne", "lt", "le", "gt", "ge")
FLOATING = (*ORDERED, "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")
SHIFTS = np.array([0, 1, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 255, 2**31, 2**32 - 1], "uint32")


def shifts():
    """Amounts at and past the width, which clamp."""
    for form in ("shl.b16", "shl.b32", "shl.b64", "shr.u16", "shr.s16", "shr.u32", "shr.s32",
                 "shr.u64", "shr.s64"):  # fmt: skip
        kind = "b" + form[5:]
        values = random_bits(16 * len(SHIFTS), 5).astype(f"uint{kind[1:]}")
        yield lanewise(form, [kind], [kind, "u32"], values=[values, np.tile(SHIFTS, 16)])
    for form in ("shf.l.clamp.b32", "shf.l.wrap.b32", "shf.r.clamp.b32", "shf.r.wrap.b32"):
        values = [random_bits(256, seed).astype("uint32") for seed in (1, 2)]
        yield lanewise(form, ["b32"], ["b32", "b32", "u32"], values=[*values, np.tile(SHIFTS, 16)])


def fields():
    """Positions and lengths of bit fields up to and past the end."""
    position = np.repeat(np.array([0, 1, 5, 16, 31, 32, 63, 64, 255, 256 + 3], "uint32"), 10)
    length = np.tile(np.array([0, 1, 5, 16, 31, 32, 33, 64, 255, 256 + 2], "uint32"), 10)
    for size in ("32", "64"):
        values = [random_bits(100, seed).astype(f"uint{size}") for seed in (3, 4)]
        kind = f"b{size}"
        for sign in "us":
            yield lanewise(
                f"bfe.{sign}{size}",
                [kind],
                [kind, "u32", "u32"],
                values=[values[0], position, length],
            )
        yield lanewise(
            f"bfi.{kind}",
            [kind],
            [kind, kind, "u32", "u32"],
            values=[*values, position, length],
        )
    for mode in ("clamp", "wrap"):
        yield lanewise(f"bmsk.{mode}.b32", ["b32"], ["u32", "u32"], values=[position, length])
        for sign in "us":
            values = random_bits(100, 6).astype("uint32")
            yield lanewise(
                f"szext.{mode}.{sign}32", ["b32"], ["b32", "u32"], values=[values, length]
            )


def permutes():
    selectors = np.concatenate(
        [np.array([0x3210, 0x7654, 0x89AB, 0xFEDC, 0x0F1E], "uint32"),
         random_bits(123, 9).astype("uint32")]
    )  # fmt: skip
    data = [random_bits(128, seed).astype("uint32") for seed in (7, 8)]
    yield lanewise("prmt.b32", ["b32"], ["b32", "b32", "b32"], values=[*data, selectors])
    for mode in ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16"):
        yield lanewise(
            f"prmt.b32.{mode}",
            ["b32"],
            ["b32", "b32", "b32"],
            values=[*data, np.arange(128, dtype="uint32")],
        )


def counts():
    for size in ("32", "64"):
        for form in ("popc", "clz"):
            yield lanewise(f"{form}.b{size}", ["u32"], [f"b{size}"], count=128)
        yield lanewise(f"brev.b{size}", [f"b{size}"], [f"b{size}"], count=64)
        for sign in "us":
            yield lanewise(f"bfind.{sign}{size}", ["u32"], [f"b{size}"], count=128)
            yield lanewise(f"bfind.shiftamt.{sign}{size}", ["u32"], [f"b{size}"], count=128)
    offsets = np.tile(np.array([1, 2, 5, -1, -2, -5, 0, 33], "int32"), 16).view("uint32")
    bases = np.repeat(np.array([0, 1, 15, 31] * 4, "uint32"), 8)
    masks = random_bits(128, 11).astype("uint32")
    yield lanewise("fns.b32", ["b32"], ["b32", "u32", "s32"], values=[masks, bases, offsets])


def logic():
    for size in ("16", "32", "64"):
        for form in ("and", "or", "xor"):
            yield lanewise(f"{form}.b{size}", [f"b{size}"], [f"b{size}"] * 2, count=128)
        for form in ("not", "cnot"):
            yield lanewise(f"{form}.b{size}", [f"b{size}"], [f"b{size}"], count=64)
    for form in ("and", "or", "xor"):
        yield lanewise(f"{form}.pred", ["pred"], ["pred", "pred"], count=32)
    yield lanewise("not.pred", ["pred"], ["pred"], count=32)
    for table in (0x00, 0x80, 0xF8, 0x96, 0xE8, 0xCA, 0x1B, 0xFF):
        yield lanewise(
            "lop3.b32",
            ["b32"],
            ["b32"] * 3,
            template=f"lop3.b32 {{d0}}, {{a}}, {{b}}, {{c}}, {table};",
            count=128,
            note=f"table {table:#04x}",
        )
    for merge in ("or", "and"):
        yield lanewise(
            f"lop3.{merge}.b32",
            ["b32", "pred"],
            ["b32", "b32", "b32", "pred"],
            template=f"lop3.{merge}.b32 {{d0}}|{{d1}}, {{a}}, {{b}}, {{c}}, 0xE8, {{d}};",
            count=128,
        )


def comparisons():
    for kind in ("u16", "s16", "u32", "s32", "u64", "s64"):
        names = ORDERED if kind[0] == "s" else (*ORDERED, "lo", "ls", "hi", "hs")
        for name in names:
            yield lanewise(f"setp.{name}.{kind}", ["pred"], [kind] * 2, count=256)
    for kind in ("f16", "bf16", "f32", "f64"):
        for name in FLOATING:
            yield lanewise(f"setp.{name}.{kind}", ["pred"], [kind] * 2)
    yield lanewise("setp.lt.ftz.f32", ["pred"], ["f32"] * 2)
    for kind in ("f16x2", "bf16x2"):
        yield lanewise(
            f"setp.lt.{kind}",
            ["pred", "pred"],
            [kind] * 2,
            template=f"setp.lt.{kind} {{d0}}|{{d1}}, {{a}}, {{b}};",
        )
    for combine in ("and", "or", "xor"):
        yield lanewise(
            f"setp.lt.{combine}.s32",
            ["pred", "pred"],
            ["s32", "s32", "pred"],
            template=f"setp.lt.{combine}.s32 {{d0}}|{{d1}}, {{a}}, {{b}}, {{c}};",
            count=128,
        )
        yield lanewise(
            f"setp.lt.{combine}.s32 negated",
            ["pred"],
            ["s32", "s32", "pred"],
            template=f"setp.lt.{combine}.s32 {{d0}}, {{a}}, {{b}}, !{{c}};",
            count=128,
        )
    for form, kind in (("set.gt.u32.f32", "f32"), ("set.gt.f32.f32", "f32"),
                       ("set.le.s32.s32", "s32"), ("set.gtu.u32.f32", "f32")):  # fmt: skip
        yield lanewise(form, ["b32"], [kind] * 2)


def selections():
    for kind in ("b16", "b32", "b64", "f32", "f64"):
        yield lanewise(f"selp.{kind}", [kind], [kind, kind, "pred"], count=128)
    yield lanewise("slct.u32.s32", ["u32"], ["u32", "u32", "s32"], count=128)
    yield lanewise("slct.u32.f32", ["u32"], ["u32", "u32", "f32"], count=128)
    yield lanewise("slct.ftz.f32.f32", ["f32"], ["f32"] * 3, count=256)
    for check in ("finite", "infinite", "number", "notanumber", "normal", "subnormal"):
        for kind in ("f32", "f64"):
            yield lanewise(f"testp.{check}.{kind}", ["pred"], [kind], count=64)
    yield lanewise("copysign.f32", ["f32"], ["f32"] * 2)
    yield lanewise("copysign.f64", ["f64"], ["f64"] * 2)


def packing():
    yield lanewise(
        "mov.b32 pack", ["b32"], ["b16", "b16"], template="mov.b32 {d0}, {{{a}, {b}}};", count=64
    )
    yield lanewise(
        "mov.b64 unpack",
        ["b32", "b32"],
        ["b64"],
        template="mov.b64 {{{d0}, {d1}}}, {a};",
        count=64,
    )
    yield lanewise(
        "mov.b64 pack of four",
        ["b64"],
        ["b16"] * 4,
        template="mov.b64 {d0}, {{{a}, {b}, {c}, {d}}};",
        count=64,
    )


PROBES = [
    *logic(),
    *shifts(),
    *fields(),
    *permutes(),
    *counts(),
    *comparisons(),
    *selections(),
    *packing(),
]
