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
DENSE = {"sm_90a": "mutations-sm90.json", "sm_100a": "mutations-sm100.json"}
PACKED = "mutations-varlen.json"
SAMPLE = 5  # of dense and of packed kernels, of either architecture


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
def bench(name: str) -> Any:
    """By a name of `recorded`."""
    arch, _, kernel = name.partition(" ")
    if kernel:
        return mutate().PackedBench(arch, kernel)
    return mutate().Bench(arch, head_dim=64, dtype="bf16", causal=True)


@cache
def recorded() -> dict[str, list[dict[str, Any]]]:
    """Mutants by "sm_90a" for the dense kernel, "sm_90a split" for a packed one."""

    def read(file: str) -> Any:
        return json.loads((ROOT / "docs" / file).read_text())

    packed = {f"{r['arch']} {r['kernel']}": r["mutants"] for r in read(PACKED)}
    return {arch: read(file)["mutants"] for arch, file in DENSE.items()} | packed


@cache
def groups() -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """Kernels' names and mutants: dense and packed ones of each architecture."""
    found: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for name, rows in recorded().items():
        arch, _, kernel = name.partition(" ")
        group = found.setdefault(f"{arch} packed" if kernel else arch, [])
        group += [(name, row) for row in rows]
    return found


def sample() -> list[Any]:
    chosen = []
    for rows in groups().values():
        caught = [(name, row) for name, row in rows if row["caught"]]
        for name, row in random.Random(1).sample(caught, SAMPLE):
            label = f"{name}-{row['kind']}-{row['text']}-{row['line']}"
            chosen.append(pytest.param(name, row, id=label.replace(" ", "-")))
    return chosen


def as_mutation(row: dict[str, Any]) -> Any:
    return mutate().Mutation(row["kind"], tuple(row["path"]), row["line"], row["text"])


@pytest.mark.parametrize("name, row", sample())
def test_a_mutant_is_caught_again(name, row):
    caught = row["caught"]
    assert mutate().attempt(bench(name), as_mutation(row), caught["case"], caught["seed"])


@pytest.mark.parametrize("name", recorded())
def test_the_results_are_those_of_the_kernel_as_it_is(name):
    """Else: python scripts/mutate.py --arch … (or --packed) --out docs/mutations-….json"""
    now = {(m.kind, m.path, m.text) for m in bench(name).mutations}
    assert {(r["kind"], tuple(r["path"]), r["text"]) for r in recorded()[name]} == now


def test_every_kernel_for_packed_sequences_is_there():
    wanted = {f"{a} {k}" for a in DENSE for k in mutate().PACKED_KERNELS}
    assert recorded().keys() - DENSE.keys() == wanted


@pytest.mark.parametrize("name", recorded())
def test_what_is_not_caught_has_its_reason(name):
    assert all(row.get("reason") for row in recorded()[name] if not row["caught"])


@pytest.mark.parametrize("group", groups())
def test_most_mutants_that_leave_something_out_are_caught(group):
    dropped = [row for _, row in groups()[group] if row["kind"] == "drop"]
    assert sum(bool(row["caught"]) for row in dropped) > len(dropped) / 2


@pytest.mark.parametrize("name", [*DENSE, "sm_90a replace", "sm_100a varlen_schedule"])
def test_the_unbroken_kernels_pass_when_printed_from_their_nodes(name):
    from cufmha.isa import print_module

    bench(name).run(print_module(bench(name).module), bench(name).cases[-1], 1)


def test_a_mutant_differs_in_one_place():
    from cufmha.isa import print_module

    module = bench("sm_90a").module
    before = print_module(module).splitlines()
    drop = next(m for m in bench("sm_90a").mutations if m.kind == "drop")
    after = print_module(mutate().mutated(module, drop)).splitlines()
    assert 0 < len(before) - len(after) <= 8


def test_of_packed_kernels_only_what_the_dense_one_does_not_have_is_broken():
    """Strategies share the hand-over of work with "split", which has its softmax from the dense."""
    texts = {m.text.split(".")[0] for m in bench("sm_90a offset").mutations}
    assert texts == {"cp"}
    assert not any("wgmma" in m.text for m in bench("sm_90a split").mutations)
    assert any("tensormap" in m.text for m in bench("sm_90a replace").mutations)
