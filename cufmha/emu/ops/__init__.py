# SPDX-License-Identifier: Apache-2.0
"""One file per family of instructions; importing this package registers all operations."""

from __future__ import annotations

from importlib import import_module

FAMILIES = ("control", "loadstore", "sync", "warpwide", "atomic", "alu", "convert", "approx", "mbarrier", "bulk",
            "tensormap", "clc", "wgmma", "tcgen05", "mma", "ldmatrix")  # fmt: skip

for _family in FAMILIES:
    import_module(f"{__name__}.{_family}")
