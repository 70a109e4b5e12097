# SPDX-License-Identifier: Apache-2.0
"""The README's code runs, and what it lists is what there is."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from cufmha import _env

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def test_the_first_example_runs_without_a_card():
    names: dict[str, object] = {}
    exec(compile(BLOCKS[0], "README.md", "exec"), names)
    assert names["out"].shape == (1, 200, 4, 64)
    assert names["lse"].shape == (1, 4, 200)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_every_example_compiles(number):
    compile(BLOCKS[number], "README.md", "exec")


def test_the_jax_example_runs_on_the_emulator():
    pytest.importorskip("jax", reason="JAX is not installed")
    import jax

    import cufmha

    block = next(b for b in BLOCKS if "jax" in b)
    names: dict[str, object] = {"cufmha": cufmha}
    with jax.default_device(jax.devices("cpu")[0]), cufmha.use_device("emulator", arch="sm_90a"):
        exec(compile(block, "README.md", "exec"), names)
    assert names["out"].shape == (1, 256, 4, 64)


@pytest.mark.parametrize("page", ["varlen", "memory"])
def test_the_first_example_of_a_page_runs_without_a_card(page):
    text = (ROOT / "docs" / f"{page}.md").read_text()
    block = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    names: dict[str, object] = {}
    exec(compile(block, f"docs/{page}.md", "exec"), names)
    assert not np.asarray(names["out"])[:3].any()


@pytest.mark.card
@pytest.mark.parametrize("framework", ["torch", "cupy", "jax"])
def test_the_examples_for_a_card_run_there(framework):
    pytest.importorskip(framework, reason=f"{framework} is not installed")
    import cufmha

    block = next(b for b in BLOCKS if f"import {framework}" in b)
    with cufmha.use_device("cuda"):
        exec(compile(block, "README.md", "exec"), {"cufmha": cufmha})


def test_the_table_of_environment_variables_is_complete():
    listed = dict(re.findall(r"^\| `(CUFMHA_\w+)` \| (.*) \|$", TEXT, re.MULTILINE))
    assert {name: text.replace("`", "") for name, text in listed.items()} == {
        name: text.replace('"', "").replace("`", "") for name, text in _env.VARIABLES.items()
    }


def test_every_link_leads_to_a_file():
    for target in re.findall(r"\]\(([^)#]+)\)", TEXT):
        assert (ROOT / target).exists(), target
