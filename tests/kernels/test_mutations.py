# SPDX-License-Identifier: Apache-2.0
"""Kernels with one fence, wait, arrival, commit or barrier broken are caught by the emulator.

A sample; `scripts/mutate.py` breaks them all, docs/mutations-*.json hold its results.
"""

from __future__ import annotations

import importlib.util
import random
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from cufmha.isa import print_module

ROOT = Path(__file__).resolve().parent.parent.parent
SEEDS = 3


@cache
def mutate() -> ModuleType:
    """scripts/mutate.py as a module."""
    path = ROOT / "scripts" / "mutate.py"
    spec = importlib.util.spec_from_file_location("mutate", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutate"] = module
    spec.loader.exec_module(module)
    return module


@cache
def bench(arch: str):
    return mutate().Bench(arch, head_dim=64, dtype="bf16", causal=True)


def sample(arch: str, kind: str, families: tuple[str, ...], number: int) -> list:
    """Drops that only ever matter: none of those that the result files list as implied."""
    found = [
        m
        for m in mutate().mutations(bench(arch).module)
        if m.kind == kind and m.text.startswith(families)
    ]
    return random.Random(0).sample(found, min(number, len(found)))


CASES = [
    ("sm_90a", ("mbarrier.try_wait",), 3),
    ("sm_90a", ("mbarrier.arrive",), 3),
    ("sm_90a", ("wgmma.wait_group",), 2),
    ("sm_90a", ("cp.async.bulk.wait_group", "cp.async.bulk.commit_group"), 2),
    ("sm_100a", ("mbarrier.try_wait",), 3),
    ("sm_100a", ("mbarrier.arrive",), 3),
    ("sm_100a", ("tcgen05.wait", "tcgen05.commit"), 4),
]


@pytest.mark.parametrize("arch, families, number", CASES, ids=lambda x: str(x)[:24])
def test_a_dropped_step_is_caught(arch, families, number):
    chosen = sample(arch, "drop", families, number)
    assert chosen
    missed = [str(m) for m in chosen if mutate().verdict(bench(arch), m, SEEDS) is None]
    assert missed == []


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_the_unbroken_kernel_passes_when_printed_from_its_nodes(arch):
    for case in mutate().CASES:
        bench(arch).run(print_module(bench(arch).module), case, 1)


def test_a_mutant_differs_in_one_place():
    module = bench("sm_90a").module
    before = print_module(module).splitlines()
    drop = next(m for m in mutate().mutations(module) if m.kind == "drop")
    after = print_module(mutate().mutated(module, drop)).splitlines()
    assert 0 < len(before) - len(after) <= 8
