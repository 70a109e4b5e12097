#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What padding costs on a card, by the driver's own count of free memory, and how long it takes.

    python scripts/guard_cost.py [--out docs/bench/h200-guard.json]

Each row allocates through a fresh start of a pool: guarded memory (`cufmha.memory`), CuPy's plain
pool with no guard, and CuPy's plain pool asked for the guard as real memory. "after" is what is
still missing once the pool has freed its blocks. Needs CuPy.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MIB = 1 << 20
# name, arrays, bytes of each, bytes of guard in front of each
CASES = (
    ("2 MiB behind 1 GiB", 1, 2 * MIB, 1024 * MIB),
    ("1,000 of 4 KiB behind 1 MiB", 1000, 4096, MIB),
    ("1,000 of 4 KiB behind 64 MiB", 1000, 4096, 64 * MIB),
    ("100 of 8 MiB behind 64 MiB", 100, 8 * MIB, 64 * MIB),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="write the numbers as JSON")
    out = parser.parse_args().out
    import cupy

    from cufmha.device import cuda
    from cufmha.memory import guard_bytes, pool

    card, driver = cuda.device(0), cuda.driver()
    heading = (
        f"{card.name}, driver of CUDA {cuda.driver_version() // 1000}."
        f"{cuda.driver_version() % 1000 // 10}, CuPy {cupy.__version__}, "
        f"{datetime.datetime.now(datetime.UTC).date()}"
    )
    print(heading)
    print("\n| arrays | memory from | MiB taken | MiB after | first ms | again ms |")
    print("|---|---|---|---|---|---|")

    def free() -> int:
        with card.current():
            cuda.check("cuCtxSynchronize", driver.cuCtxSynchronize())
            return int(cuda.check("cuMemGetInfo", driver.cuMemGetInfo())[0])

    def measured(own: Any, count: int, size: int) -> dict[str, float]:
        """Memory taken by `count` blocks, and the time for all of them, anew and from the pool."""

        def timed() -> tuple[list[Any], float]:
            start = time.perf_counter()
            blocks = [own.malloc(size) for _ in range(count)]
            return blocks, 1e3 * (time.perf_counter() - start)

        before = free()
        blocks, first = timed()
        taken = before - free()
        blocks.clear()
        blocks, again = timed()
        blocks.clear()
        gc.collect()
        own.free_all_blocks()
        after = before - free()
        return {"taken": taken / MIB, "after": after / MIB, "first_ms": first, "again_ms": again}

    rows = []
    # The first use of a card takes memory for itself.
    for warm in (cupy.cuda.MemoryPool(), pool(1)):
        warm.malloc(4096)
        warm.free_all_blocks()
    for name, count, size, guard in CASES:
        ways: tuple[tuple[str, Callable[[], Any], int], ...] = (
            ("cufmha.memory", lambda guard=guard: pool(guard), size),
            ("plain pool, no guard", cupy.cuda.MemoryPool, size),
            ("plain pool, guard as memory", cupy.cuda.MemoryPool, size + guard),
        )
        for way, make, each in ways:
            row: dict[str, Any] = {"arrays": name, "way": way}
            try:
                row |= measured(make(), count, each)
            except MemoryError as error:
                row["error"] = str(error)
                print(f"| {name} | {way} | out of memory | | | |")
            else:
                print(
                    f"| {name} | {way} | {row['taken']:.1f} | {row['after']:.1f} "
                    f"| {row['first_ms']:.2f} | {row['again_ms']:.2f} |"
                )
            rows.append(row)
    probe = pool(1024 * MIB).malloc(2 * MIB)
    print(f"\nguard of the 2 MiB block: {guard_bytes(probe.ptr) / MIB:.0f} MiB")
    if out:
        out.write_text(json.dumps({"card": heading, "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
