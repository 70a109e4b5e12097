# SPDX-License-Identifier: Apache-2.0
"""Texts load wherever they claim to: assemblers take them, and no version is asked in vain."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
from kernel_sample import sampled

import cufmha
from cufmha import errors
from cufmha.device import cuda
from cufmha.isa import nodes, parse
from cufmha.isa.check import require_target
from cufmha.kernels import build, catalog
from cufmha.kernels.render import render

PAIRS = [(variant, chip) for chip in catalog.CHIPS for variant in sampled(chip)]
NAMES = [f"{variant}@{chip}" for variant, chip in PAIRS]
VERSIONS = ((7, 8), (8, 0), (8, 1), (8, 2), (8, 3), (8, 4), (8, 5), (8, 6), (8, 7), (8, 8), (9, 0))


@cache
def module_of(variant: catalog.KernelVariant) -> nodes.Module:
    return parse(render(variant).text, variant.file)


@pytest.mark.parametrize(("variant", "chip"), PAIRS, ids=NAMES)
def test_ptxas_takes_a_variant_for_every_chip_it_is_meant_for(variant, chip, tmp_path):
    tool = build.find_ptxas()
    if tool is None:
        pytest.skip("needs ptxas, which the extra `test` brings")
    source, cubin = tmp_path / "kernel.ptx", tmp_path / "kernel.cubin"
    source.write_text(render(variant).text)
    # What it makes of them at full effort is for the tests of the resources.
    command = [tool, "-O1", f"-arch={chip}", str(source), "-o", str(cubin)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert cubin.read_bytes()[:4] == b"\x7fELF"


@pytest.mark.parametrize("chip", catalog.CHIPS)
def test_nvjitlink_takes_the_variants_of_a_chip(chip):
    linker = pytest.importorskip("cuda.bindings.nvjitlink", reason="needs nvJitLink's bindings")
    try:
        linker.version()
    except RuntimeError as error:
        pytest.skip(f"needs the library nvJitLink: {error}")
    for variant in sampled(chip):
        assert linked(linker, render(variant).text.encode(), chip)[:4] == b"\x7fELF", str(variant)


def linked(linker: Any, text: bytes, chip: str) -> bytes:
    """The cubin. nvJitLink compiles relocatably, where registers are handed out otherwise and may
    be spilled: nothing but that it assembles is asked."""
    options = [f"-arch={chip}"]
    handle = linker.create(len(options), options)
    try:
        linker.add_data(handle, linker.InputType.PTX, text, len(text), "kernel.ptx")
        linker.complete(handle)
        cubin = bytearray(linker.get_linked_cubin_size(handle))
        linker.get_linked_cubin(handle, cubin)
        return bytes(cubin)
    finally:
        linker.destroy(handle)


@pytest.mark.parametrize(("variant", "chip"), PAIRS, ids=NAMES)
def test_a_text_loads_on_its_chips_with_the_version_it_states(variant, chip):
    require_target(module_of(variant), chip)


@pytest.mark.parametrize("variant", sampled(), ids=str)
def test_a_text_states_the_lowest_version_that_its_instructions_need(variant):
    module = module_of(variant)
    before = VERSIONS[VERSIONS.index(module.version) - 1]
    lowered = replace(module, version=before)
    needed = f"needs .version {module.version[0]}.{module.version[1]}"
    with pytest.raises(errors.UnsupportedTarget, match=needed):
        require_target(lowered, next(c for c, t in catalog.CHIPS.items() if t == variant.arch))


@pytest.mark.parametrize("variant", sampled(), ids=str)
def test_a_text_is_refused_by_name_on_a_chip_of_another_kind(variant):
    for chip in (c for c, target in catalog.CHIPS.items() if target != variant.arch):
        refusal = f"{variant.arch} does not load on {chip}"
        with pytest.raises(errors.UnsupportedTarget, match=refusal):
            require_target(module_of(variant), chip)


class Names:
    """Stands for any enum: each name is its own value."""

    def __getattr__(self, name):
        return name


@pytest.mark.parametrize(("major", "minor"), [(8, 0), (8, 9), (10, 1), (12, 0)])
def test_a_card_without_kernels_is_refused_by_its_name_and_capability(major, minor, monkeypatch):
    def attribute(name, handle):
        return 0, major if "MAJOR" in name else minor if "MINOR" in name else 100

    bindings = SimpleNamespace(
        CUdevice_attribute=Names(),
        cuDeviceGet=lambda ordinal: (0, ordinal),
        cuDeviceGetAttribute=attribute,
        cuDeviceGetName=lambda size, handle: (0, b"Card of cards\0"),
    )
    monkeypatch.setattr(cuda, "driver", lambda: bindings)
    refusal = (
        "there are kernels for compute capability 9.0, 10.0 and 10.3; "
        rf"card 3 \(Card of cards\) has {major}\.{minor}"
    )
    with pytest.raises(errors.UnsupportedError, match=refusal):
        cuda.Card(3)


@pytest.mark.parametrize("chip", ["sm_80", "sm_90", "sm_100", "sm_120a"])
def test_an_emulated_chip_without_kernels_is_refused_by_name(chip):
    with (
        pytest.raises(errors.ArgumentError, match=f"sm_90a, sm_100a, sm_103a, got '{chip}'"),
        cufmha.use_device("emulator", arch=chip),
    ):
        pass
