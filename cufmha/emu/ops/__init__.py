# SPDX-License-Identifier: Apache-2.0
"""One file per family of instructions; importing this package registers all operations."""

from __future__ import annotations

from importlib import import_module

FAMILIES = ("control", "loadstore", "sync", "warpwide", "atomic", "integer", "logic", "compare",
            "floats", "approx", "convert",
            "mbarrier", "bulk", "tensormap", "clc", "wgmma", "mma", "ldmatrix", "tcgen05",
            "tcgen05_mma")  # fmt: skip

for _family in FAMILIES:
    import_module(f"{__name__}.{_family}")
