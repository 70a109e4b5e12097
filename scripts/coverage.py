#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which instruction forms the emulator executes, and what proves each: docs/emulator-coverage.md.

python scripts/coverage.py            # write the table
python scripts/coverage.py --check    # exit status 1 if the file is out of date
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "emu")]

import probes  # noqa: E402

import cufmha.emu.ops  # noqa: E402, F401
from cufmha.emu.forms import ordered  # noqa: E402
from cufmha.emu.registry import OPERATIONS, find  # noqa: E402
from cufmha.errors import CufmhaError  # noqa: E402
from cufmha.isa import nodes, parse  # noqa: E402
from cufmha.kernels.catalog import variants  # noqa: E402
from cufmha.kernels.render import render  # noqa: E402

TABLE = ROOT / "docs" / "emulator-coverage.md"
HEAD = """# What proves each instruction of the emulator

Written by `scripts/coverage.py`. One row for each operation that the emulator registers; `*` stands
for what a test fills in.

- **recorded**: forms in the programs that ran on an H200 and whose answers the emulator repeats
  (`tests/emu/probes`, `tests/emu/golden`): {recorded} forms, {answers} answers.
- **by other means**: forms in tests whose expected values come from NumPy or from the text of the
  ISA, and in the attention kernels, which are right against a reference: {other} forms.
- **neither**: nothing names it.

| operation | PTX ISA | recorded | by other means only | where |
|---|---|---|---|---|
"""
_STRATEGY = re.compile(r"\bst\.\w+\(")  # of Hypothesis, not the instruction
_WORD = re.compile(r"\b(exit|trap|pmevent)\b(?=[ ;]|$)", re.MULTILINE)
_PRINTED = re.compile(r"^\s*(?:@!?%\w+ )?([a-z]\w*(?:(?:\.|::)\w+)*)(?=[ ;])", re.MULTILINE)
"""An instruction's name in text that `print_module` wrote, which rendering has parsed already."""
_TOKEN = re.compile(r"[a-z][a-z0-9]*(?:\.[A-Za-z0-9_:{}]+)+")


def instructions(block: nodes.Block) -> Iterator[nodes.Instruction]:
    for item in block.items:
        if isinstance(item, nodes.Block):
            yield from instructions(item)
        elif isinstance(item, nodes.Instruction):
            yield item


def forms_of(text: str) -> set[str]:
    """The full names of all instructions of a module."""
    return {
        inst.name
        for function in parse(text).functions.values()
        if function.body is not None
        for inst in instructions(function.body)
    }


def recorded() -> tuple[set[str], int]:
    """Forms of all probes that have answers, and the number of answers."""
    forms: set[str] = set()
    answers = 0
    for family in probes.FAMILIES:
        with np.load(ROOT / "tests" / "emu" / "golden" / f"{family}.npz") as file:
            names = {key.rsplit("|", 1)[0] for key in file.files}
            answers += len(file.files)
        for probe in probes.family(family):
            if probe.name in names:
                forms |= forms_of(probe.text)
    return forms, answers


def by_other_means() -> dict[str, set[str]]:
    """form -> where it is used, among tests and kernels."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted((ROOT / "tests" / "emu").glob("*.py")):
        if path.name == "test_numerics_forms.py":  # spellings, right and wrong ones; no values
            continue
        text = _STRATEGY.sub("", path.read_text(encoding="utf-8"))
        for token in _TOKEN.findall(text) + _WORD.findall(text):
            name = re.sub(r"\{[^}]*\}?|\b[A-Z]{4,}\b", "*", token).replace("}", "")
            if operation_of(name) and ("*" in name or is_form(name)):
                found[name].add(path.name)
    for variant in variants():
        if (variant.strategy or variant.split_kv) and not (
            variant.dtype == "bf16" and variant.causal
        ):
            continue  # has no instruction that its dense twin or this one lacks
        for name in set(_PRINTED.findall(render(variant).text)):
            found[name].add(variant.file)
    return found


def is_form(name: str) -> bool:
    opcode, *modifiers = name.split(".")
    try:
        ordered(nodes.Instruction(opcode, tuple(modifiers), ()))
    except CufmhaError:
        return False
    return True


def operation_of(name: str) -> str | None:
    opcode, *modifiers = name.split(".")
    hit = find(nodes.Instruction(opcode, tuple(modifiers), ()))
    return hit.name if hit else None


def table() -> str:
    ours, answers = recorded()
    others = by_other_means()
    rows: dict[str, list[set[str]]] = {name: [set(), set(), set()] for name in OPERATIONS}
    for form in ours:
        if name := operation_of(form):
            rows[name][0].add(form)
    for form, places in others.items():
        name = operation_of(form)
        if name and form not in ours:
            rows[name][1].add(form)
            rows[name][2] |= places
    lines = []
    for name in sorted(rows):
        first, second, places = rows[name]
        if first or second:
            told = ", ".join(f"`{form}`" for form in sorted(second)) or ""
            where = ", ".join(sorted(places))
        else:
            told, where = "**neither**", ""
        section = OPERATIONS[name].isa
        lines.append(f"| `{name}` | {section} | {len(first) or ''} | {told} | {where} |")
    other = sum(len(row[1]) for row in rows.values())
    head = HEAD.format(recorded=sum(len(row[0]) for row in rows.values()), answers=answers,
                       other=other)  # fmt: skip
    return head + "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    options = parser.parse_args()
    text = table()
    if options.check:
        return int(TABLE.read_text(encoding="utf-8") != text)
    TABLE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
