# SPDX-License-Identifier: Apache-2.0
"""What the pinned ptxas makes of the kernels, against the table in docs/resources.json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kernel_sample import sampled

from cufmha.kernels import build, catalog, resources

TABLE = Path(__file__).parents[2] / "docs" / "resources.json"
RECORDED = json.loads(TABLE.read_text())
NAMES = [f"{v.name}@{chip}" for chip in catalog.CHIPS for v in catalog.variants(chip)]
SAMPLE = [(v, chip) for chip in catalog.CHIPS for v in sampled(chip)]
SAMPLED = [f"{variant.name}@{chip}" for variant, chip in SAMPLE]
POOL = 65536  # registers of a processor


@pytest.fixture(scope="module")
def assembled(tmp_path_factory):
    """The sample, assembled now: the folder of assembled kernels starts empty."""
    tool = build.find_ptxas()
    assert tool is not None, "no ptxas: the extra `test` brings it"
    if build.assembler_name() != RECORDED["assembler"]:
        pytest.skip(f"the table is by {RECORDED['assembler']}, here is {build.assembler_name()}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUFMHA_CACHE_DIR", str(tmp_path_factory.mktemp("assembled")))
        return resources.measure(SAMPLE)["kernels"]


def test_every_variant_of_every_chip_is_in_the_table_and_no_other():
    assert sorted(RECORDED["kernels"]) == sorted(NAMES)


def test_the_table_for_people_is_made_from_the_other():
    assert TABLE.with_suffix(".md").read_text() == resources.markdown(RECORDED)


@pytest.mark.parametrize("name", SAMPLED)
def test_assembling_afresh_gives_the_table(assembled, name):
    assert assembled[name] == RECORDED["kernels"][name]


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_spilled_and_nothing_asked_for_is_dropped(name):
    entry = RECORDED["kernels"][name]
    assert entry["spill_bytes"] == entry["stack_bytes"] == 0
    assert not entry["dropped_setmaxnreg"] and not entry["serialized_wgmma"]
    assert entry["warnings"] == []


@pytest.mark.parametrize("name", NAMES)
def test_the_roles_share_out_no_more_registers_than_the_block_starts_with(name):
    variant = next(v for v in catalog.variants() if v.name == name.split("@")[0])
    wanted = sum(registers * threads for registers, threads in variant.roles)
    assert wanted <= RECORDED["kernels"][name]["registers"] * variant.threads <= POOL


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("    16 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads", "stack_bytes"),
        ("    0 bytes stack frame, 8 bytes spill stores, 0 bytes spill loads", "spill_bytes"),
        ("    0 bytes stack frame, 0 bytes spill stores, 8 bytes spill loads", "spill_bytes"),
        (
            "ptxas info : (C7508) Potential Performance Loss: 'setmaxnreg' ignored; unable to "
            "determine register count at entry.",
            "dropped_setmaxnreg",
        ),
        (
            "ptxas info : (C7510) Potential Performance Loss: wgmma.mma_async instructions are "
            "serialized due to insufficient register resources for the wgmma pipeline",
            "serialized_wgmma",
        ),
    ],
)
def test_each_of_the_assemblers_complaints_is_seen(line, field):
    assert getattr(build.read_log(line), field)
    assert not getattr(build.read_log("ptxas info : Used 168 registers, used 16 barriers"), field)
