# SPDX-License-Identifier: Apache-2.0
"""What the pinned ptxas makes of every variant, against the table in docs/resources.json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cufmha.kernels import build, catalog, resources

TABLE = Path(__file__).parents[2] / "docs" / "resources.json"
RECORDED = json.loads(TABLE.read_text())
KERNELS = RECORDED["kernels"]


def test_every_variant_of_every_chip_is_in_the_table():
    expected = {f"{v.name}@{chip}" for chip in catalog.CHIPS for v in catalog.variants(chip)}
    assert set(KERNELS) == expected


@pytest.mark.parametrize("name", KERNELS)
def test_nothing_is_spilled_and_nothing_asked_for_is_dropped(name):
    entry = KERNELS[name]
    assert entry["spill_bytes"] == entry["stack_bytes"] == 0
    assert not entry["dropped_setmaxnreg"] and not entry["serialized_wgmma"]
    assert entry["warnings"] == []


@pytest.mark.parametrize("name", KERNELS)
def test_the_roles_share_out_no_more_registers_than_the_block_starts_with(name):
    variant = next(v for v in catalog.variants() if v.name == name.split("@")[0])
    wanted = sum(registers * threads for registers, threads in variant.roles)
    assert wanted <= KERNELS[name]["registers"] * variant.threads


def test_assembling_afresh_gives_the_table():
    """With the ptxas that the table names; the extra `test` pins its wheel."""
    if build.find_ptxas() is None:
        pytest.skip("no ptxas: install the extra `test`")
    if build.assembler_name() != RECORDED["assembler"]:
        pytest.skip(f"the table is by {RECORDED['assembler']}, here is {build.assembler_name()}")
    assert resources.measure() == RECORDED
