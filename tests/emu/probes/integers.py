# SPDX-License-Identifier: Apache-2.0
"""Integer arithmetic: every width, sign, and the carry chain."""

from __future__ import annotations

from .base import Probe, lanewise

WIDE = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}
ALL = ("u16", "s16", "u32", "s32", "u64", "s64")


def same(form: str, kinds: tuple[str, ...], sources: int, **extra) -> list[Probe]:
    """form.kind with every operand of that kind."""
    return [lanewise(f"{form}.{kind}", [kind], [kind] * sources, **extra) for kind in kinds]


def divisions() -> list[Probe]:
    """Divisors are made odd: dividing by zero is left undefined."""
    found = []
    for form in ("div", "rem"):
        for kind in ALL:
            size = kind[1:]
            found.append(
                lanewise(
                    f"{form}.{kind}",
                    [kind],
                    [kind] * 2,
                    template=f"or.b{size} {{b}}, {{b}}, 1;\n    "
                    + (
                        f"and.b{size} {{a}}, {{a}}, {2 ** (int(size) - 1) - 1};\n    "
                        if kind[0] == "s"
                        else ""
                    )
                    + f"{form}.{kind} {{d0}}, {{a}}, {{b}};",
                )
            )
    return found


def carries() -> list[Probe]:
    found = []
    for first, second in (("add.cc", "addc"), ("sub.cc", "subc")):
        for kind in ("u32", "s32", "u64"):
            found.append(
                lanewise(
                    f"{second}.{kind}",
                    [kind, kind],
                    [kind] * 3,
                    template=f"{first}.{kind} {{d0}}, {{a}}, {{b}};\n    "
                    f"{second}.{kind} {{d1}}, {{b}}, {{c}};",
                )
            )
    for part in ("lo", "hi"):
        found.append(
            lanewise(
                f"madc.{part}.u32",
                ["u32", "u32"],
                ["u32"] * 3,
                template=f"mad.lo.cc.u32 {{d0}}, {{a}}, {{b}}, {{c}};\n    "
                f"madc.{part}.u32 {{d1}}, {{a}}, {{b}}, {{c}};",
            )
        )
    return found


PROBES = [
    *same("add", ALL, 2),
    *same("sub", ALL, 2),
    *same("add.sat", ("s32",), 2),
    *same("sub.sat", ("s32",), 2),
    *same("mul.lo", ALL, 2),
    *same("mul.hi", ALL, 2),
    *(lanewise(f"mul.wide.{kind}", [wide], [kind] * 2) for kind, wide in WIDE.items()),
    *same("mad.lo", ALL, 3),
    *same("mad.hi", ALL, 3),
    *same("mad.hi.sat", ("s32",), 3),
    *(lanewise(f"mad.wide.{kind}", [wide], [kind, kind, wide]) for kind, wide in WIDE.items()),
    *same("mul24.lo", ("u32", "s32"), 2),
    *same("mul24.hi", ("u32", "s32"), 2),
    *same("mad24.lo", ("u32", "s32"), 3),
    *same("mad24.hi", ("u32", "s32"), 3),
    *(
        lanewise(f"sad.{kind}", [kind], [kind, kind, "u" + kind[1:]])
        for kind in ("u16", "s16", "u32", "s32", "u64", "s64")
    ),
    *divisions(),
    *same("abs", ("s16", "s32", "s64"), 1, count=64),
    *same("neg", ("s16", "s32", "s64"), 1, count=64),
    *same("min", ALL, 2),
    *same("max", ALL, 2),
    *same("min", ("u16x2", "s16x2"), 2),
    *same("max", ("u16x2", "s16x2"), 2),
    *same("add", ("u16x2", "s16x2"), 2),
    *same("min.relu", ("s32", "s16x2"), 2),
    *same("max.relu", ("s32", "s16x2"), 2),
    *carries(),
    *(
        lanewise(f"dp4a.{a}.{b}", ["b32"], ["b32", "b32", "b32"])
        for a in ("u32", "s32")
        for b in ("u32", "s32")
    ),
    *(
        lanewise(f"dp2a.{part}.{a}.{b}", ["b32"], ["b32", "b32", "b32"])
        for part in ("lo", "hi")
        for a in ("u32", "s32")
        for b in ("u32", "s32")
    ),
]
