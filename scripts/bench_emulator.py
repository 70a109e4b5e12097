#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How fast the emulator runs attention forward: instructions and lane-operations a second, memory.

python scripts/bench_emulator.py --arch sm_90a --shape 1x512x2x128
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import resource
import time
from collections import Counter
from pathlib import Path

import ml_dtypes
import numpy as np
from rich.console import Console
from rich.table import Table

from cufmha.emu import Module
from cufmha.kernels.catalog import KernelVariant, variants
from cufmha.kernels.render import render
from cufmha.tma import TensorMapSpec

TARGETS = {"sm_90a": "sm_90a", "sm_100a": "sm_100f", "sm_103a": "sm_100f"}
SHARES = {
    "operations": ("ops", "numerics"),
    "dispatch": ("program.py", "lanes.py", "context.py", "registers.py"),
    "memory and its checks": ("memory.py", "access.py", "shadow.py", "modify.py"),
    "matrix products": ("product.py", "warpgroup.py", "tensorcore.py", "tmem.py", "fragments.py"),
    "copies": ("tma.py", "transfers.py", "copies.py", "maps.py", "tensormap.py"),
    "scheduling": ("machine.py", "asyncwork.py", "barriers.py", "mbarrier.py", "knowledge.py"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", choices=list(TARGETS), default="sm_90a")
    parser.add_argument("--shape", default="1x512x2x128", help="batch x tokens x heads x head_dim")
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-hazards", action="store_true")
    options = parser.parse_args()
    shape = tuple(int(x) for x in options.shape.split("x"))
    variant = next(
        v for v in variants(TARGETS[options.arch])
        if v.head_dim == shape[3] and v.dtype == "bf16" and v.causal == options.causal
        and not (v.strategy or v.split_kv)
    )  # fmt: skip
    start = time.perf_counter()
    module = Module(
        render(variant).text, arch=options.arch, seed=options.seed, hazards=not options.no_hazards
    )
    module.program("fmha_fwd")
    loaded = time.perf_counter() - start
    arrays = make_arrays(shape)
    before = peak_memory()
    start = time.perf_counter()
    executed = launch(module, variant, arrays)
    seconds = time.perf_counter() - start
    memory = peak_memory() - before
    profiler = cProfile.Profile()
    profiler.runcall(launch, module, variant, arrays)
    report(options, arrays, executed, loaded, seconds, memory, shares(profiler))


def make_arrays(shape: tuple[int, ...]) -> list[np.ndarray]:
    batch, tokens, heads, width = shape
    rng = np.random.default_rng(0)
    full = (batch, heads, tokens, width)
    return [rng.standard_normal(full).astype(ml_dtypes.bfloat16) for _ in range(3)] + [
        np.zeros(full, ml_dtypes.bfloat16)
    ]


def launch(module: Module, variant: KernelVariant, arrays: list[np.ndarray]) -> int:
    batch, heads, tokens, width = arrays[0].shape
    lse = np.zeros((batch, heads, tokens), np.float32)
    tiles = -(-tokens // variant.tile_q)
    items = tiles * heads * batch
    maps = [
        (tensor_map(array, rows), array)
        for array, rows in zip(
            arrays,
            (variant.box_rows_q, variant.box_rows_kv, variant.box_rows_kv, variant.box_rows_o),
            strict=True,
        )
    ]
    scalars = [
        np.uint64(heads * tokens), np.uint64(tokens), np.uint32(tokens), np.uint32(tokens),
        np.uint32(heads), np.uint32(1), np.float32(width**-0.5 * np.log2(np.e)), np.int32(0),
        np.uint32(tiles), np.uint32(items),
    ]  # fmt: skip
    machine = module.launch(
        "fmha_fwd", grid=(items, 1, 1), block=(variant.threads, 1, 1), args=[*maps, lse, *scalars],
        dynamic_smem_bytes=variant.smem_bytes,
    )  # fmt: skip
    return machine.executed


def tensor_map(array: np.ndarray, rows: int) -> TensorMapSpec:
    return TensorMapSpec(
        dtype="bf16", dims=tuple(reversed(array.shape)),
        strides=tuple(reversed(array.strides[:-1])),
        box=(64, rows, 1, 1), swizzle="128B",
    )  # fmt: skip


def peak_memory() -> float:
    """MiB that the process has held at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def shares(profiler: cProfile.Profile) -> Counter[str]:
    """Seconds by part of the emulator; NumPy's own functions count where they are called."""
    found: Counter[str] = Counter()
    stats = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    for (file, _, _), (_, _, own, _, callers) in stats.items():
        if "emu" in file:
            found[part_of(file)] += own
        else:
            for (caller, _, _), (_, _, spent, _) in callers.items():
                found[part_of(caller)] += spent
    return found


def part_of(file: str) -> str:
    path = Path(file)
    for part, names in SHARES.items():
        if path.name in names or path.parent.name in names:
            return part
    return "other"


def report(
    options: argparse.Namespace, arrays: list[np.ndarray], executed: int, loaded: float,
    seconds: float, memory: float, parts: Counter[str],
) -> None:  # fmt: skip
    table = Table(title=f"{options.arch}, {options.shape}, seed {options.seed}")
    table.add_column("what")
    table.add_column("value", justify="right")
    table.add_row("parse and compile", f"{loaded:.2f} s")
    table.add_row("run", f"{seconds:.2f} s")
    table.add_row("warp instructions", f"{executed:,}")
    table.add_row("warp instructions a second", f"{executed / seconds:,.0f}")
    table.add_row("lane operations a second", f"{32 * executed / seconds:,.0f}")
    table.add_row("arrays", f"{sum(a.nbytes for a in arrays) / 2**20:.1f} MiB")
    table.add_row("memory grown by", f"{memory:.0f} MiB")
    table.add_section()
    whole = sum(parts.values())
    for part, spent in parts.most_common():
        table.add_row(part, f"{100 * spent / whole:.0f} %")
    Console().print(table)


if __name__ == "__main__":
    main()
