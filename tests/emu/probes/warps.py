# SPDX-License-Identifier: Apache-2.0
"""What lanes of a warp tell each other: shuffles, votes, matches, reductions."""

from __future__ import annotations

import numpy as np

from .base import lanewise, random_bits

FULL = "0xffffffff"
COUNT = 128


def data(seed: int, bits: int = 32) -> np.ndarray:
    return (random_bits(COUNT, seed) & np.uint64(2**bits - 1)).astype("uint32")


def shuffles():
    """Lane operands past the segment, segments of 8 and 16, and the predicate of each lane."""
    lanes = data(4, 6)
    for mode in ("up", "down", "bfly", "idx"):
        for clamp in (0x1F, 0, 0x181F if mode != "up" else 0x1800, 0x1007):
            yield lanewise(
                f"shfl.sync.{mode}.b32",
                ["b32", "pred"],
                ["b32", "b32"],
                template=f"shfl.sync.{mode}.b32 {{d0}}|{{d1}}, {{a}}, {{b}}, {clamp}, {FULL};",
                values=[data(1), lanes & (31 if mode == "idx" else 15)],
                note=f"c {clamp:#x}",
            )
    for mode, distance in (("bfly", 1), ("bfly", 2), ("down", 16), ("up", 1), ("idx", 0)):
        clamp = 0 if mode == "up" else 31
        yield lanewise(
            f"shfl.sync.{mode}.b32",
            ["b32"],
            ["b32"],
            template=f"shfl.sync.{mode}.b32 {{d0}}, {{a}}, {distance}, {clamp}, {FULL};",
            values=[data(2)],
            note=f"by {distance}",
        )
    yield lanewise(
        "shfl.sync.bfly.b32",
        ["b32"],
        ["b32"],
        setup="mov.b32 %d0, 7;\n.reg .pred %low;\nsetp.lt.u32 %low, %lane, 16;",
        template="@%low shfl.sync.bfly.b32 {d0}, {a}, 3, 31, 0xffff;",
        values=[data(3)[:32]],
        note="half of the warp",
    )


def votes():
    few = np.array([0, 1, 1, 0] * 32, "uint32")
    for name, predicate in (("mixed", few), ("none", few * 0), ("all", few * 0 + 1)):
        for mode in ("all", "any", "uni"):
            yield lanewise(
                f"vote.sync.{mode}.pred",
                ["pred"],
                ["pred"],
                template=f"vote.sync.{mode}.pred {{d0}}, {{a}}, {FULL};",
                values=[predicate],
                note=name,
            )
        yield lanewise(
            "vote.sync.ballot.b32",
            ["b32"],
            ["pred"],
            template=f"vote.sync.ballot.b32 {{d0}}, {{a}}, {FULL};",
            values=[predicate],
            note=name,
        )
    yield lanewise(
        "vote.sync.ballot.b32",
        ["b32"],
        ["pred"],
        template=f"vote.sync.ballot.b32 {{d0}}, !{{a}}, {FULL};",
        values=[few],
        note="negated",
    )
    yield lanewise(
        "activemask.b32",
        ["b32"],
        ["pred"],
        setup="mov.b32 %d0, 9;",
        template="activemask.b32 {d0};",
        values=[few],
    )


def matches():
    for kind in ("b32", "b64"):
        values = data(5, 2).astype(f"uint{kind[1:]}") << np.array(
            int(kind[1:]) - 4, f"uint{kind[1:]}"
        )
        yield lanewise(
            f"match.any.sync.{kind}",
            ["b32"],
            [kind],
            template=f"match.any.sync.{kind} {{d0}}, {{a}}, {FULL};",
            values=[values],
        )
        for name, bits in (("equal", values * 0 + 3), ("different", values)):
            yield lanewise(
                f"match.all.sync.{kind}",
                ["b32", "pred"],
                [kind],
                template=f"match.all.sync.{kind} {{d0}}|{{d1}}, {{a}}, {FULL};",
                values=[bits.astype(values.dtype)],
                note=name,
            )


def reductions():
    for form in ("add.u32", "add.s32", "min.u32", "max.u32", "min.s32", "max.s32", "and.b32",
                 "or.b32", "xor.b32"):  # fmt: skip
        yield lanewise(
            f"redux.sync.{form}",
            ["b32"],
            ["b32"],
            template=f"redux.sync.{form} {{d0}}, {{a}}, {FULL};",
            values=[data(6) | np.uint32(0x80000000)],
        )


def leaders():
    yield lanewise(
        "elect.sync",
        ["b32", "pred"],
        [],
        template=f"elect.sync {{d0}}|{{d1}}, {FULL};",
        count=64,
    )


PROBES = [*shuffles(), *votes(), *matches(), *reductions(), *leaders()]
