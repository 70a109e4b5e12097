# SPDX-License-Identifier: Apache-2.0
"""The chips that can be emulated."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ArgumentError


@dataclass(frozen=True)
class Target:
    """A chip: shared memory a block may use, processors."""

    name: str
    max_shared_bytes: int
    processors: int


TARGETS = {
    "sm_90a": Target("sm_90a", 227 * 1024, 132),
    "sm_100a": Target("sm_100a", 227 * 1024, 148),
    "sm_103a": Target("sm_103a", 227 * 1024, 148),
}


def target(arch: str) -> Target:
    if arch not in TARGETS:
        raise ArgumentError(f"arch: must be one of {', '.join(TARGETS)}, got {arch!r}")
    return TARGETS[arch]
