# SPDX-License-Identifier: Apache-2.0
"""One-instruction and small PTX programs whose answers a card has given (tests/emu/golden).

`scripts/record_golden.py` runs them on a card and stores what came out; the tests run them on the
emulator and compare. Each family is a module with a list `PROBES`; `every()` gathers them.
"""

from __future__ import annotations

from importlib import import_module

from .base import Probe

FAMILIES = ("integers", "logic", "floats", "conversions", "approximations", "warps", "atomics",
            "matrices", "tensors", "barriers")  # fmt: skip


def family(name: str) -> list[Probe]:
    probes: list[Probe] = import_module(f"probes.{name}").PROBES
    names = [probe.name for probe in probes]
    if len(set(names)) != len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"probes of one name in {name}: {twice}")
    return probes


def every() -> dict[str, list[Probe]]:
    return {name: family(name) for name in FAMILIES}
