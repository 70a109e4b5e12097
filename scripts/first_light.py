#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What to run once on a card that nobody here had: one command, one report file.

    python scripts/first_light.py --out first-light.json        # about five minutes

Each step is a process of its own, since a fault on a card ends every later call of the process
that met it. The steps: what the card and driver say of themselves; the recorded probes of an H200,
run on this card (without what only Hopper has); every kernel variant and strategy on small problems
against float64; the tests; the sheet of times beside the rivals that are installed. Nothing is
written but the report.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
HOPPER_ONLY = {"matrices"}
PROBLEMS = (["--seqlen-q", "300", "--seqlen-k", "515", "--heads-q", "4", "--heads-kv", "2"],
            ["--seqlen-q", "1", "--seqlen-k", "77"])  # fmt: skip


def step(report: dict[str, Any], name: str, command: list[str], *, timeout: int) -> bool:
    """Runs a command and keeps its status, time and the end of its output."""
    start = time.monotonic()
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    try:
        done = subprocess.run(
            [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True,
            timeout=timeout, check=False,
        )  # fmt: skip
        status, output = done.returncode, done.stdout + done.stderr
    except subprocess.TimeoutExpired as error:
        status, output = -1, f"no end after {timeout} s: {error.stdout or ''}"
    report["steps"].append(
        {
            "name": name,
            "command": " ".join(["python", *command]),
            "status": status,
            "seconds": round(time.monotonic() - start, 1),
            "output": output[-4000:],
        }
    )
    seconds = report["steps"][-1]["seconds"]
    print(f"{'ok  ' if status == 0 else 'FAIL'} {name} ({seconds} s)", flush=True)
    return status == 0


def facts() -> dict[str, Any]:
    """What the driver says of the card, beside what the kernels count on."""
    from cuda.bindings import driver

    driver.cuInit(0)
    _, card = driver.cuDeviceGet(0)
    _, name = driver.cuDeviceGetName(128, card)
    _, version = driver.cuDriverGetVersion()
    names = driver.CUdevice_attribute
    wanted = ("COMPUTE_CAPABILITY_MAJOR", "COMPUTE_CAPABILITY_MINOR", "MULTIPROCESSOR_COUNT",
              "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN", "MAX_REGISTERS_PER_BLOCK",
              "TENSOR_MAP_ACCESS_SUPPORTED", "L2_CACHE_SIZE", "CLOCK_RATE")  # fmt: skip
    found: dict[str, Any] = {"card": name.split(b"\0")[0].decode(), "cuda": version}
    for each in wanted:
        attribute = getattr(names, f"CU_DEVICE_ATTRIBUTE_{each}", None)
        if attribute is not None:
            found[each.lower()] = int(driver.cuDeviceGetAttribute(attribute, card)[1])
    return found


def variants(report: dict[str, Any], arch: str) -> bool:
    """Every kernel and strategy of the chip, each in a process of its own, a few at a time."""
    from cufmha.kernels.catalog import variants as catalog

    commands: list[tuple[str, list[str]]] = []
    for variant in catalog(arch):
        if variant.operation != "fmha_fwd":
            continue
        shape = ["--head-dim", str(variant.head_dim), "--head-dim-v", str(variant.head_dim_v)]
        shape += ["--dtype", variant.dtype, *(["--causal"] if variant.causal else [])]
        if variant.strategy:
            command = ["scripts/attention_varlen.py", "--strategy", variant.strategy]
            commands.append((variant.name, [*command, "--device", "cuda", *shape]))
            continue
        for number, problem in enumerate(PROBLEMS):
            command = ["scripts/attention.py", "--device", "cuda", *problem, *shape]
            command += ["--num-splits", "3" if variant.split_kv else "1"]
            commands.append((f"{variant.name}, problem {number}", command))
    with ThreadPoolExecutor(4) as pool:
        passed = pool.map(lambda each: step(report, *each, timeout=120), commands)
    return all(passed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("first-light.json"))
    parser.add_argument("--skip-times", action="store_true", help="leave out the sheet of times")
    arguments = parser.parse_args()
    sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "emu")]
    found = facts()
    capability = found["compute_capability_major"] * 10 + found["compute_capability_minor"]
    arch = f"sm_{capability}a"
    report: dict[str, Any] = {"facts": found, "arch": arch, "steps": []}
    print(json.dumps(found), flush=True)
    good = step(report, "info", ["-m", "cufmha", "info", "--json"], timeout=60)
    from probes import FAMILIES

    families = [f for f in FAMILIES if arch == "sm_90a" or f not in HOPPER_ONLY]
    for family in families:
        command = ["scripts/record_golden.py", "--compare", "tests/emu/golden", "--target", arch]
        good &= step(report, f"probes: {family}", [*command, "--family", family], timeout=120)
    good &= variants(report, arch)
    tests = ["-m", "pytest", "-q", "--device", "cuda", "tests/kernels", "tests/memory"]
    tests += ["-p", "no:cacheprovider"]
    tests += ["-n", "4"] if find_spec("xdist") else []
    good &= step(report, "tests", [*tests, "-p", "no:benchmark"], timeout=900)
    if not arguments.skip_times:
        times = arguments.out.with_suffix(".times.json").resolve()
        command = ["scripts/bench.py", "device", "--rounds", "3", "--out", str(times)]
        good &= step(report, "times", command, timeout=600)
        if times.exists():
            report["times"] = json.loads(times.read_text())
            times.unlink()
    report["passed"] = good
    arguments.out.write_text(json.dumps(report, indent=1) + "\n")
    print(f"{'passed' if good else 'FAILED'}: {arguments.out}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
