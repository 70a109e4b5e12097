# SPDX-License-Identifier: Apache-2.0
"""Modifiers of lane-wise instructions: every combination of the table loads, all others do not."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from snippets import run

from cufmha.emu import forms, registry
from cufmha.errors import CufmhaError, IllegalInstruction, UnsupportedInstruction
from cufmha.isa import nodes


def instruction(name: str) -> nodes.Instruction:
    opcode, *modifiers = name.split(".")
    return nodes.Instruction(opcode=opcode, modifiers=tuple(modifiers), operands=())


def test_the_table_and_the_registered_operations_name_the_same_instructions():
    import cufmha.emu.ops  # noqa: F401  registers

    listed = {name.split(".")[0] for name in forms.spellings()}
    registered = {
        name.split(".")[0]
        for name, found in registry.OPERATIONS.items()
        if found.build.__module__.rsplit(".", 1)[1]
        in ("integer", "floats", "logic", "compare", "convert", "approx")
    }
    assert listed == registered


def test_every_listed_form_is_taken_as_it_stands():
    names = forms.spellings()
    assert len(set(names)) > 4000
    for name in names:
        inst = instruction(name)
        assert forms.ordered(inst) is inst, name


def test_order_of_modifiers_is_free_but_for_types():
    given = instruction("fma.ftz.rn.sat.f32")
    assert forms.ordered(given).modifiers == ("rn", "ftz", "sat", "f32")
    assert forms.ordered(instruction("cvt.f32.rn.s32")).modifiers == ("rn", "f32", "s32")
    with pytest.raises(IllegalInstruction):
        forms.ordered(instruction("cvt.rn.s32.f32"))


def test_a_foreign_modifier_is_named_and_a_wrong_combination_gets_examples():
    with pytest.raises(UnsupportedInstruction, match=r"cvt\.rs\.bf16x2\.f32: modifier \.rs"):
        forms.ordered(instruction("cvt.rs.bf16x2.f32"))
    with pytest.raises(IllegalInstruction, match=r"fma\.rn\.bf16\b"):
        forms.ordered(instruction("fma.rz.bf16"))


@pytest.mark.parametrize(
    "statement",
    [
        "and.foo.b32 %r0, %r1, %r2;",
        "and %r0, %r1, %r2;",
        "not.b32.b16 %r0, %r1;",
        "shl.f32 %r0, %r1, %r2;",
        "shf.l.b32 %r0, %r1, %r2, %r3;",
        "prmt.b32.foo %r0, %r1, %r2, %r3;",
        "setp.lt %p0, %r1, %r2;",
        "setp.lt.ftz.s32 %p0, %r1, %r2;",
        "slct.u32 %r0, %r1, %r2, %r3;",
        "testp.foo.f32 %p0, %r1;",
        "mul.wide.u64 %d0, %d1, %d1;",
        "dp4a.u32 %r0, %r1, %r2, %r3;",
        "cvt.pack.sat.u4.s32.b32 %r0, %r1, %r2, %r3;",
        "cvt.pack %r0, %r1, %r2;",
        "sin.approx.f16 %r0, %r1;",
        "ex2.f32 %r0, %r1;",
        "add.cc.foo.u32 %r0, %r1, %r2;",
        "vadd.s32.s32.s32 %r0, %r1, %r2;",
    ],
)
def test_malformed_instructions_are_refused_with_their_line(statement):
    ready = "mov.b32 %r1, 1; mov.b32 %r2, 1; mov.b32 %r3, 1; mov.b64 %d1, 1;\n"
    with pytest.raises((IllegalInstruction, UnsupportedInstruction)) as raised:
        run(ready + statement)
    assert "line" in str(raised.value)
    assert statement.split()[0] in str(raised.value)


def test_random_modifiers_end_in_a_form_or_in_the_projects_own_errors():
    rng = random.Random(4)
    by_opcode: dict[str, list[str]] = {}
    for name in forms.spellings():
        by_opcode.setdefault(name.split(".")[0], []).append(name)
    outcomes: Counter[bool] = Counter()
    for opcode, names in by_opcode.items():
        words = sorted({word for name in names for word in name.split(".")[1:]} | {"", "x", "b128"})
        for _ in range(15):
            modifiers = rng.choice(names).split(".")[1:]
            place = rng.randrange(len(modifiers))
            modifiers[place : place + rng.randrange(2)] = [rng.choice(words)]
            try:
                found = forms.ordered(instruction(".".join([opcode, *modifiers])))
            except CufmhaError:
                outcomes[False] += 1
            else:
                outcomes[True] += 1
                assert f"{opcode}.{'.'.join(found.modifiers)}" in names
    assert min(outcomes.values()) > 50
