#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs kernels on the emulator with many seeds of time: every one must be right, without a hazard.

    python scripts/seeds.py --arch sm_100a --out docs/seeds-sm100.json

The problem is the smallest that goes round every ring of the kernel. Three variants run with
--deep-seeds seeds, all others with --seeds.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

DEEP = ("d128-bf16-causal", "d64-f16-full", "d192x128-bf16-causal")


def main(argv: list[str] | None = None) -> int:
    import mutate

    from cufmha.errors import CufmhaError
    from cufmha.isa import print_module
    from cufmha.kernels import catalog

    arguments = parse(argv)
    rows: list[dict[str, Any]] = []
    case = mutate.Case(20, 400)
    for variant in catalog.variants(arguments.arch):
        if variant.operation != "fmha_fwd" or variant.strategy or variant.split_kv:
            continue
        deep = variant.name.endswith(DEEP)
        bench = mutate.Bench(
            arguments.arch, head_dim=variant.head_dim, dtype=variant.dtype, causal=variant.causal,
            cases=(case,),
        )  # fmt: skip
        text, failed, start = print_module(bench.module), {}, time.monotonic()
        seeds = arguments.deep_seeds if deep else arguments.seeds
        for seed in range(seeds):
            try:
                bench.run(text, case, seed)
            except (CufmhaError, AssertionError) as error:
                failed[seed] = f"{type(error).__name__}: {str(error)[:300]}"
        seconds = round(time.monotonic() - start, 1)
        row = {"variant": variant.name, "seeds": seeds, "failed": failed, "seconds": seconds}
        print(row, flush=True)
        rows.append(row)
        if arguments.out:
            report = {"arch": arguments.arch, "case": str(case), "variants": rows}
            arguments.out.write_text(json.dumps(report, indent=1) + "\n")
    return 1 if any(row["failed"] for row in rows) else 0


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--arch", choices=("sm_90a", "sm_100a", "sm_103a"), default="sm_100a")
    add("--seeds", type=int, default=10)
    add("--deep-seeds", type=int, default=200)
    add("--out", type=Path, help="a JSON file for the result")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    raise SystemExit(main())
