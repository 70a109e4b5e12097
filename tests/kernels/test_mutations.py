# SPDX-License-Identifier: Apache-2.0
"""Kernels with one fence, wait, arrival, commit or barrier broken are caught by the emulator.

docs/mutations-*.json hold what became of every mutant; here a sample is caught again.
"""

from __future__ import annotations

import importlib.util
import json
import random
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = {"sm_90a": "mutations-sm90.json", "sm_100a": "mutations-sm100.json"}
SAMPLE = 5  # of either architecture


@cache
def mutate() -> ModuleType:
    """scripts/mutate.py as a module."""
    spec = importlib.util.spec_from_file_location("mutate", ROOT / "scripts" / "mutate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutate"] = module
    spec.loader.exec_module(module)
    return module


@cache
def bench(arch: str) -> Any:
    return mutate().Bench(arch, head_dim=64, dtype="bf16", causal=True)


@cache
def recorded(arch: str) -> list[dict[str, Any]]:
    return json.loads((ROOT / "docs" / FILES[arch]).read_text())["mutants"]


def sample() -> list[Any]:
    chosen = []
    for arch in FILES:
        caught = [row for row in recorded(arch) if row["caught"]]
        for row in random.Random(1).sample(caught, SAMPLE):
            name = f"{arch}-{row['kind']}-{row['text']}-{row['line']}"
            chosen.append(pytest.param(arch, row, id=name))
    return chosen


def as_mutation(row: dict[str, Any]) -> Any:
    return mutate().Mutation(row["kind"], tuple(row["path"]), row["line"], row["text"])


@pytest.mark.parametrize("arch, row", sample())
def test_a_mutant_is_caught_again(arch, row):
    caught = row["caught"]
    assert mutate().attempt(bench(arch), as_mutation(row), caught["case"], caught["seed"])


@pytest.mark.parametrize("arch", FILES)
def test_the_results_are_those_of_the_kernel_as_it_is(arch):
    """Else: python scripts/mutate.py --arch … --out docs/mutations-….json"""
    now = {(m.kind, m.path, m.text) for m in mutate().mutations(bench(arch).module)}
    assert {(r["kind"], tuple(r["path"]), r["text"]) for r in recorded(arch)} == now


@pytest.mark.parametrize("arch", FILES)
def test_what_is_not_caught_has_its_reason(arch):
    assert all(row.get("reason") for row in recorded(arch) if not row["caught"])


@pytest.mark.parametrize("arch", FILES)
def test_most_mutants_that_leave_something_out_are_caught(arch):
    dropped = [row for row in recorded(arch) if row["kind"] == "drop"]
    assert sum(bool(row["caught"]) for row in dropped) > len(dropped) / 2


def test_the_unbroken_kernels_pass_when_printed_from_their_nodes():
    from cufmha.isa import print_module

    for arch in FILES:
        case = mutate().CASES[1]
        bench(arch).run(print_module(bench(arch).module), case, 1)


def test_a_mutant_differs_in_one_place():
    from cufmha.isa import print_module

    module = bench("sm_90a").module
    before = print_module(module).splitlines()
    drop = next(m for m in mutate().mutations(module) if m.kind == "drop")
    after = print_module(mutate().mutated(module, drop)).splitlines()
    assert 0 < len(before) - len(after) <= 8
