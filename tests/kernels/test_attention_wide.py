# SPDX-License-Identifier: Apache-2.0
"""Queries and keys of up to 192 columns with values of up to 128."""

from __future__ import annotations

import numpy as np
import pytest

import cufmha
from cufmha import testing

SHAPES = [
    # head_dim, head_dim_v, seqlen_q, seqlen_k, heads_q, heads_kv
    (192, 128, 130, 300, 2, 1),
    (192, 128, 300, 120, 1, 1),
    (136, 72, 40, 420, 2, 2),
    (192, 64, 1, 257, 3, 1),
]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values_may_be_narrower_than_keys(device, shape, causal):
    head_dim, head_dim_v, seqlen_q, seqlen_k, heads_q, heads_kv = shape
    dtype = testing.numpy_dtype("f16" if head_dim_v == 72 else "bf16")
    rng = np.random.default_rng(0)

    def draw(heads: int, rows: int, columns: int) -> np.ndarray:
        return rng.standard_normal((1, heads, rows, columns), np.float32).astype(dtype)

    q = draw(heads_q, seqlen_q, head_dim)
    k, v = draw(heads_kv, seqlen_k, head_dim), draw(heads_kv, seqlen_k, head_dim_v)
    out = testing.poison((1, heads_q, seqlen_q, head_dim_v), dtype)
    out = device.put(out)
    result, lse = cufmha.attention(
        device.put(q), device.put(k), device.put(v), causal=causal, layout="bhsd", out=out,
        return_lse=True,
    )  # fmt: skip
    testing.assert_attention_close(device.get(result), device.get(lse), q, k, v, causal=causal)


def test_no_key_at_all_gives_zeros(device):
    dtype = testing.numpy_dtype("bf16")
    q, k, v = (np.zeros((1, 2, n, d), dtype) for n, d in ((300, 192), (0, 192), (0, 128)))
    out = device.put(testing.poison((1, 2, 300, 128), dtype))
    result, lse = cufmha.attention(
        device.put(q), device.put(k), device.put(v), layout="bhsd", out=out, return_lse=True
    )
    assert (device.get(result).astype(np.float32) == 0).all()
    assert (device.get(lse) == -np.inf).all()
