# SPDX-License-Identifier: Apache-2.0
"""Needles: one dominant key at every tile and mask boundary, and one just outside it."""

from __future__ import annotations

import numpy as np
import pytest
from forward import run

from cufmha import reference, testing

ROWS, KEYS = 200, 389
EDGES = sorted({e + o for e in (64, 128, 176, 192, 256, 352, 384) for o in (-1, 0)} | {0, 388})


def haystack(head_dim: int, dtype: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Every q row is the same direction, every key is zero: all scores 0 until one is raised."""
    q, k, v = testing.make_qkv(
        seqlen_q=ROWS, seqlen_k=KEYS, heads_q=1, head_dim=head_dim, dtype=dtype
    )
    q[:], k[:] = 0, 0
    q[..., 0] = 8
    return q, k, v


def within_an_ulp(out: np.ndarray, row: np.ndarray) -> bool:
    """Bits apart by at most one, for rows of the same sign."""
    a, b = out.view(np.int16).astype(int), row.view(np.int16).astype(int)
    return bool((np.abs(a - b) <= 1).all())


@pytest.mark.parametrize("head_dim, dtype", [(64, "bf16"), (128, "f16")])
def test_a_dominant_key_is_found_wherever_it_stands(device, head_dim, dtype):
    """One head per needle position: head h has its needle at EDGES[h]."""
    q, k, v = (np.repeat(x, len(EDGES), axis=1) for x in haystack(head_dim, dtype))
    for head, edge in enumerate(EDGES):
        k[0, head, edge, 0] = 8
    out, _ = run(device, q, k, v, softmax_scale=1.0)
    for head, edge in enumerate(EDGES):
        assert within_an_ulp(out[0, head], np.broadcast_to(v[0, head, edge], out[0, head].shape)), (
            f"needle at key {edge}"
        )


@pytest.mark.parametrize("causal", [True, "top_left"], ids=["bottom_right", "top_left"])
@pytest.mark.parametrize("head_dim, dtype", [(64, "f16"), (128, "bf16")])
def test_a_needle_is_seen_up_to_the_diagonal_and_not_beyond(device, head_dim, dtype, causal):
    """Rows beyond it are, to the bit, those of one head without key and value of the needle."""
    hay = haystack(head_dim, dtype)
    q, k, v = (np.repeat(x, len(EDGES), axis=1) for x in hay)
    for head, edge in enumerate(EDGES):
        k[0, head, edge, 0] = 8
        v[0, head, edge] = 100
    out, lse = run(device, q, k, v, causal=causal, softmax_scale=1.0)
    mask = reference.visible(ROWS, KEYS, causal=causal)
    without, lse_without = run(device, *hay, causal=causal, softmax_scale=1.0)
    for head, edge in enumerate(EDGES):
        seen = mask[:, edge]
        assert (out[0, head, seen].astype(np.float32) == 100).all(), f"needle at key {edge}"
        testing.assert_bitwise_equal(out[0, head, ~seen], without[0, 0, ~seen])
        testing.assert_bitwise_equal(lse[0, head, ~seen], lse_without[0, 0, ~seen])


def test_what_lies_behind_the_last_key_has_no_influence(device):
    """k and v are the front of longer buffers whose rest is NaN or hugely attractive."""
    q, k, v = testing.make_qkv(seqlen_q=70, seqlen_k=131, head_dim=64)
    expected = run(device, q, k, v, layout="bhsd")
    for bad in (np.nan, 1e4):
        long_k = np.full((1, 1, 256, 64), bad, np.float32).astype(k.dtype)
        long_v = long_k.copy()
        long_k[:, :, :131], long_v[:, :, :131] = k, v
        out, lse = run_views(device, q, long_k, long_v, keys=131)
        testing.assert_bitwise_equal(out, expected[0])
        testing.assert_bitwise_equal(lse, expected[1])


def run_views(device, q, long_k, long_v, *, keys):
    """Slices are taken on the device, so that the kernel gets views of the long buffers."""
    import cufmha

    out, lse = cufmha.attention(
        device.put(q),
        device.put(long_k)[:, :, :keys],
        device.put(long_v)[:, :, :keys],
        layout="bhsd",
        return_lse=True,
    )
    return device.get(out), device.get(lse)
