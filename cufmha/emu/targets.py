# SPDX-License-Identifier: Apache-2.0
"""The chips that can be emulated, and which `.target` lines they run (PTX ISA 11.1.2)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import ArgumentError, UnsupportedTarget


@dataclass(frozen=True)
class Target:
    """A chip: compute capability, shared memory a block may use, processors."""

    name: str
    capability: int
    family: int
    max_shared_bytes: int
    processors: int


TARGETS = {
    "sm_90a": Target("sm_90a", 90, 90, 227 * 1024, 132),
    "sm_100a": Target("sm_100a", 100, 100, 227 * 1024, 148),
    "sm_103a": Target("sm_103a", 103, 100, 227 * 1024, 148),
}


def target(arch: str) -> Target:
    if arch not in TARGETS:
        raise ArgumentError(f"arch: must be one of {', '.join(TARGETS)}, got {arch!r}")
    return TARGETS[arch]


def require(chip: Target, written: str) -> None:
    """UnsupportedTarget unless text for `.target written` runs on the chip.

    "a" targets run on that one chip, "f" targets on their family from that chip on, plain ones on
    every later chip.
    """
    parts = re.fullmatch(r"sm_(\d+)([af]?)", written)
    if parts is None:
        raise UnsupportedTarget(f".target {written}: not a GPU architecture")
    number, suffix = int(parts[1]), parts[2]
    family = number // 10 * 10
    good = number <= chip.capability
    if suffix == "a":
        good = number == chip.capability
    elif suffix == "f":
        good = number <= chip.capability and family == chip.family
    if not good:
        raise UnsupportedTarget(f".target {written} does not run on {chip.name}")
