# SPDX-License-Identifier: Apache-2.0
"""The forward against float64 over lengths, head counts, head_dims, dtypes, masks and layouts."""

from __future__ import annotations

import itertools

import pytest
from forward import Case, check

MASKS = (False, True, "top_left")

SMALL = [
    Case(seqlen_q=128, seqlen_k=128, head_dim=64),
    Case(seqlen_q=128, seqlen_k=128, head_dim=128, dtype="f16"),
    Case(seqlen_q=1, seqlen_k=1, head_dim=128),
    Case(seqlen_q=1, seqlen_k=300, head_dim=64, dtype="f16", causal=True),
    Case(seqlen_q=200, seqlen_k=77, head_dim=128, causal=True),
    Case(seqlen_q=77, seqlen_k=200, head_dim=128, causal=True, dtype="f16"),
    Case(seqlen_q=130, seqlen_k=259, head_dim=64, causal="top_left"),
    Case(seqlen_q=259, seqlen_k=130, head_dim=64, causal="top_left", layout="bhsd"),
    Case(seqlen_q=129, seqlen_k=385, head_dim=128, batch=2, heads_q=4, heads_kv=2, layout="bhsd"),
    Case(seqlen_q=65, seqlen_k=130, head_dim=64, batch=2, heads_q=6, heads_kv=1, causal=True),
    Case(seqlen_q=300, seqlen_k=300, head_dim=128, heads_q=2, heads_kv=2, causal=True),
    Case(seqlen_q=513, seqlen_k=700, head_dim=64, causal=True),
]
HEAD_DIMS = [
    Case(seqlen_q=70, seqlen_k=150, head_dim=d, dtype=("bf16", "f16")[d // 8 % 2], heads_q=2)
    for d in range(8, 129, 8)
]
OTHER_HEAD_DIMS_OF_V = [
    Case(seqlen_q=70, seqlen_k=150, head_dim=64, head_dim_v=128, causal=True),
    Case(seqlen_q=150, seqlen_k=70, head_dim=128, head_dim_v=40, dtype="f16", heads_q=2),
    Case(seqlen_q=70, seqlen_k=150, head_dim=72, head_dim_v=64, layout="bhsd"),
    Case(seqlen_q=130, seqlen_k=300, head_dim=192, head_dim_v=128, causal=True),
    Case(
        seqlen_q=257, seqlen_k=113, head_dim=192, head_dim_v=128, dtype="f16", heads_q=4, heads_kv=2
    ),
    Case(seqlen_q=70, seqlen_k=230, head_dim=136, head_dim_v=72, causal="top_left", layout="bhsd"),
]
OTHER_HEAD_DIMS_OF_V_FOR_THE_CARD = [
    Case(
        seqlen_q=q, seqlen_k=k, head_dim=192, head_dim_v=128, dtype=dtype, causal=mask, batch=2,
        heads_q=4, heads_kv=2, layout=layout, seed=q,
    )
    for (q, k), dtype, mask, layout in itertools.product(
        [(113, 203), (1024, 1000), (799, 2048), (2000, 500)],
        ["bf16", "f16"],
        MASKS,
        ["bshd", "bhsd"],
    )
]  # fmt: skip
ODD_LENGTHS = [
    Case(seqlen_q=q, seqlen_k=k, head_dim=64, causal=True)
    for q, k in [(63, 64), (64, 65), (127, 129), (128, 127), (2, 257), (192, 193)]
]
FOR_THE_CARD = [
    Case(
        seqlen_q=q,
        seqlen_k=k,
        head_dim=d,
        dtype=dtype,
        causal=mask,
        batch=batch,
        heads_q=heads[0],
        heads_kv=heads[1],
        layout=layout,
        seed=q + k,
    )
    for (q, k), (d, dtype), mask, (batch, heads, layout) in itertools.product(
        [(1, 1000), (113, 203), (256, 256), (1024, 1000), (799, 2048), (2000, 500)],
        [(64, "bf16"), (128, "bf16"), (64, "f16"), (128, "f16"), (40, "bf16"), (96, "f16")],
        MASKS,
        [(1, (4, 4), "bshd"), (2, (6, 2), "bhsd")],
    )
]


@pytest.mark.parametrize("case", SMALL, ids=str)
def test_forward_is_as_exact_as_float64_allows(device, case):
    check(device, case)


@pytest.mark.parametrize("case", HEAD_DIMS, ids=str)
def test_every_head_dim_that_is_a_multiple_of_eight(device, case):
    check(device, case)


@pytest.mark.parametrize("case", OTHER_HEAD_DIMS_OF_V, ids=str)
def test_v_may_have_another_head_dim_than_q_and_k(device, case):
    check(device, case)


@pytest.mark.parametrize("case", ODD_LENGTHS, ids=str)
def test_lengths_around_tile_edges(device, case):
    check(device, case)


@pytest.mark.card
@pytest.mark.parametrize("case", FOR_THE_CARD + OTHER_HEAD_DIMS_OF_V_FOR_THE_CARD, ids=str)
def test_forward_at_sizes_for_the_card(device, case):
    check(device, case)
