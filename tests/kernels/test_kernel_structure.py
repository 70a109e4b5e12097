# SPDX-License-Identifier: Apache-2.0
"""Texts of the kernels: what the lint says, and that header and catalog agree."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from kernel_sample import sampled

from cufmha.isa import parse
from cufmha.isa.check import lint
from cufmha.kernels import catalog, render

HOPPER = catalog.variants("sm_90a")
FORWARD = [v for v in catalog.variants() if v.operation == "fmha_fwd"]
CHIP = {"sm_90a": "sm_90a", "sm_100f": "sm_100a"}


def ptxas() -> str:
    found = shutil.which("ptxas")
    if found is None:
        pathfinder = pytest.importorskip("cuda.pathfinder", reason="needs ptxas")
        found = pathfinder.find_nvidia_binary_utility("ptxas")
    if found is None:
        pytest.skip("needs ptxas")
    return found


def assemble(text: str, arch: str, folder: Path) -> str:
    """What ptxas says about it, failures included."""
    source = folder / "kernel.ptx"
    source.write_text(text)
    command = [ptxas(), f"-arch={arch}", "-v", str(source), "-o", str(folder / "kernel.cubin")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("variant", sampled(), ids=str)
def test_lint_finds_nothing(variant: catalog.KernelVariant) -> None:
    module = parse(render.render(variant).text, variant.file)
    assert [str(finding) for finding in lint(module, CHIP[variant.arch])] == []


@pytest.mark.parametrize("variant", FORWARD, ids=str)
def test_shared_memory_map_ends_where_the_catalog_says(variant: catalog.KernelVariant) -> None:
    text = render.render(variant).annotated
    stated = re.search(r"(\d+) B in all", text)
    assert stated is not None
    assert int(stated[1]) == variant.smem_bytes
    assert variant.smem_bytes <= 232448


def test_a_dropped_setmaxnreg_would_show(tmp_path: Path) -> None:
    lines = render.render(HOPPER[0]).text.splitlines()
    kept = [line for line in lines if not line.startswith((".reqntid", ".minnctapersm"))]
    assert "C7508" in assemble("\n".join(kept) + "\n", "sm_90a", tmp_path)
