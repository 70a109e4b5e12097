# SPDX-License-Identifier: Apache-2.0
"""sentryward, a static verifier of synchronization, lifetimes and races, on the sm_100 forward.

It executes one launch symbolically, so sizes are fixed and branches may not depend on data: where
the softmax branches on data, the text given to it says which way it goes.
docs/kernel-sm100-fmha-fwd.md has what it answers and what it does not see.
"""

from __future__ import annotations

import json
import re
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from cufmha.kernels import catalog, render
from cufmha.tma import TensorMapSpec

pytestmark = pytest.mark.slow
sentryward = pytest.importorskip(
    "sentryward", reason="sentryward is not installed (pip install 'cufmha[sentryward]')"
)

VARIANTS = {
    "bf16-d128-full": (128, "bf16", False),
    "bf16-d128-causal": (128, "bf16", True),
    "f16-d64-full": (64, "f16", False),
    "bf16-d192x128-causal": (192, "bf16", True),
}
# The softmax branches on data in one place: the sum of a tile's row proves the old maximum right or
# wrong, and a vote tells the whole warp. These set the vote's result.
GUESS_HOLDS = "setp.ne.u32 %failed, %tile, %tile;"
GUESS_FAILS_IN_ONE_WARP = "setp.eq.u32 %failed, %warp, 2;"
# One block takes two items of two key tiles: all rings go round, the last tiles are partial.
SEQLEN_Q, SEQLEN_K, HEADS = 200, 200, 2
SECONDS = 1800
_REGISTER = re.compile(r"%[A-Za-z_$][\w$]*")
_DECLARED = re.compile(r"(%[A-Za-z_$][\w$]*)(?:<(\d+)>)?")
_PARAMETER = re.compile(r"\.param \.(u32|s32|u64|f32) (\w+)")


@cache
def variant(name: str) -> catalog.KernelVariant:
    return next(
        v
        for v in catalog.variants("sm_100a")
        if (v.head_dim, v.dtype, v.causal, v.strategy) == (*VARIANTS[name], "")
        and v.operation == "fmha_fwd"
    )


def kernel(name: str) -> str:
    return render.render(variant(name)).text


def registers_apart(text: str) -> str:
    """The text with a name of its own for each register of an inner block, line by line the same.

    sentryward 0.1.1 takes a register of an inner block for the outer one of the same name.
    """
    scopes: list[dict[str, str]] = []
    numbers = count()
    lines = []
    for line in text.splitlines():
        word = line.strip()
        if word == "{":
            scopes.append({})
        elif word == "}":
            scopes.pop()
        elif word.startswith(".reg ") and len(scopes) > 1:
            mark = f"_{next(numbers)}"

            def declare(match: re.Match[str], mark: str = mark) -> str:
                name, rows = match.groups()
                if rows is None:
                    scopes[-1][name] = name + mark
                    return name + mark
                scopes[-1].update({f"{name}{i}": f"{name}{mark}_{i}" for i in range(int(rows))})
                return f"{name}{mark}_<{rows}>"

            line = _DECLARED.sub(declare, line)
        else:
            line = _REGISTER.sub(
                lambda match: next(
                    (s[match[0]] for s in reversed(scopes) if match[0] in s), match[0]
                ),
                line,
            )
        lines.append(line)
    return "\n".join(lines) + "\n"


def decided(text: str, guess: str) -> str:
    """The text with that instruction behind each vote on whether the guess failed, on its line."""
    vote = "vote.sync.any.pred %failed, %failed, 0xffffffff;"
    assert vote in text
    return text.replace(vote, f"{vote} {guess}")


def descriptor(name: str, kind: catalog.KernelVariant, rows: int, columns: int) -> dict[str, Any]:
    """The tensor map of an array of `rows` a head, as sentryward takes it; boxes have 128 rows."""
    pitch = columns * 2
    spec = TensorMapSpec(
        dtype=kind.dtype,
        dims=(columns, rows, HEADS, 1),
        strides=(pitch * HEADS, pitch, pitch * HEADS * rows),
        box=(64, {"q": kind.box_rows_q, "o": kind.box_rows_o}.get(name, kind.box_rows_kv), 1, 1),
        swizzle="128B",
    )
    return {
        "parameter": f"{name}_map",
        "object": name,
        "element_type": spec.dtype,
        "rank": spec.rank,
        "global_shape": spec.dims,
        "global_strides_bytes": spec.strides,
        "box_shape": spec.box,
        "element_strides": spec.steps,
        "swizzle": spec.swizzle,
        "interleave": spec.interleave,
        "oob_fill": "zero",
    }


def launch(kind: catalog.KernelVariant, text: str) -> dict[str, Any]:
    """The input configuration of a launch of one block."""
    tiles = -(-SEQLEN_Q // kind.tile_q)
    values = {
        "lse_stride_batch": HEADS * SEQLEN_Q,
        "lse_stride_head": SEQLEN_Q,
        "seqlen_q": SEQLEN_Q,
        "seqlen_k": SEQLEN_K,
        "num_heads_q": HEADS,
        "group_size": 1,
        "scale_log2": 0.125,
        "causal_offset": SEQLEN_K - SEQLEN_Q,
        "num_tiles_q": tiles,
        "num_tiles": tiles * HEADS,
    }
    types = {name: kind_ for kind_, name in _PARAMETER.findall(text)}
    return {
        "schema": "spverify.kernel-input/v1",
        "entry": kind.operation,
        "launch": {
            "grid_dim": [1, 1, 1],
            "block_dim": [kind.threads, 1, 1],
            "cluster_dim": [1, 1, 1],
            "dynamic_shared_bytes": kind.smem_bytes,
        },
        "declarations": [
            {"parameter": "lse", "type": "pointer", "space": "global", "object": "lse"}
        ],
        "arguments": [
            {"parameter": name, "type": types[name], "value": value}
            for name, value in values.items()
        ],
        "tma_descriptors": [
            descriptor("q", kind, SEQLEN_Q, kind.head_dim),
            descriptor("k", kind, SEQLEN_K, kind.head_dim),
            descriptor("v", kind, SEQLEN_K, kind.head_dim_v),
            descriptor("o", kind, SEQLEN_Q, kind.head_dim_v),
        ],
    }


def answer(name: str, text: str, folder: Path, guess: str = GUESS_HOLDS) -> dict[str, Any]:
    """What sentryward says about a text in the kernel's place."""
    ptx, settings = folder / "kernel.ptx", folder / "input.json"
    settings.write_text(json.dumps(launch(variant(name), text)))
    text = registers_apart(decided(text, guess))
    ptx.write_text(text.replace(".target sm_100f", ".target sm_100a"))
    return sentryward.verify(ptx, input=settings, timeout_seconds=SECONDS)


@pytest.mark.parametrize("name", VARIANTS)
def test_no_schedule_of_the_kernel_hangs_or_races(name, tmp_path):
    result = answer(name, kernel(name), tmp_path)
    assert result["result"] == "race_free", result["diagnostics"]


def test_tiles_that_one_warp_reads_again_are_as_well_ordered(tmp_path):
    """There each tile is read up to three times, its maximum renewed and O scaled."""
    name = "f16-d64-full"
    result = answer(name, kernel(name), tmp_path, GUESS_FAILS_IN_ONE_WARP)
    assert result["result"] == "race_free", result["diagnostics"]


WAIT = r"mbarrier\.try_wait\S+ %complete, {barrier}, {parity};\s+@!%complete bra try_again;"
# name -> (pattern, replacement, how many matches from the first on; 0 for all)
BROKEN = {
    # load: the first tile of K expects half of its bytes
    "expect_tx": (r"(expect_tx\S+ %state, \[%barrier\+\d+\], )\d+", r"\g<1>8192", 1),
    # load: the ring's stages are filled again before they are free
    "ring_wait": (WAIT.format(barrier=r"\[%barrier\+\d+\]", parity="%parity"), "", 3),
    # softmax: S is read before it is made
    "scores_wait": (WAIT.format(barrier=r"\[%bars\+\d+\]", parity="%parity"), "", 1),
    # softmax: P is written, and nobody is told
    "arrive": (r"mbarrier\.arrive\.shared::cta\.b64 %state, \[%bars\+\d+\];", "", 1),
    # products: lanes stay behind at a wait while one goes on, which the emulator cannot see
    "warp_sync": (r"bar\.warp\.sync 0xffffffff;(?=\s+@!%issues)", "", 0),
    # output: TMA reads o before every thread has written its row
    "bar_sync": (r"(fence\.proxy\.async\S*;\s+)bar\.sync 1, 128;(?=\s+@!%storer)", r"\1", 1),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_kernel_is_found_out(broken, tmp_path):
    name = "f16-d64-full"
    pattern, replacement, number = BROKEN[broken]
    text, changed = re.subn(pattern, replacement, kernel(name), count=number)
    assert changed, f"nothing in the kernel matches {pattern!r}"
    result = answer(name, text, tmp_path)
    assert result["result"] in ("not_wellsynced", "potential_race"), result["diagnostics"]


def test_registers_of_inner_blocks_are_named_apart_without_another_change():
    text = kernel("f16-d64-full")
    apart = registers_apart(text)
    declared = [
        name
        for line in apart.splitlines()
        if line.strip().startswith(".reg ")
        for name, _ in _DECLARED.findall(line)
    ]
    assert len(declared) == len(set(declared))
    assert apart.count("\n") == text.count("\n")
    assert [line.split("%")[0] for line in apart.splitlines()] == [
        line.split("%")[0] for line in text.splitlines()
    ]
