# SPDX-License-Identifier: Apache-2.0
"""Scales, scores and lengths at the edge of what the mathematics defines."""

from __future__ import annotations

import numpy as np
import pytest
from forward import Case, check, run

from cufmha import testing

SHAPE = {"seqlen_q": 70, "seqlen_k": 200}


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("scale", [0.0, -0.125, -1.0, 1e-6, 0.7])
def test_scales_of_any_sign(device, scale, causal):
    check(device, Case(head_dim=64, softmax_scale=scale, causal=causal, **SHAPE))


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("spread", [30.0, 1e4])
def test_large_scores_are_ordinary_scores(device, head_dim, spread):
    q, k, v = testing.make_qkv(head_dim=head_dim, spread=spread, **SHAPE)
    out, lse = run(device, q, k, v)
    testing.assert_attention_close(out, lse, q, k, v)


@pytest.mark.parametrize("level", [-1e30, -1e5, 1e5, 1e30])
def test_scores_that_are_all_hugely_negative_or_positive_still_average_v(device, level):
    """Equal scores, however large, weigh every key alike: out is the mean of v."""
    q, k, v = testing.make_qkv(head_dim=64, **SHAPE)
    q[:], k[:] = 0, 0
    q[..., 0], k[..., 0] = 1, level
    out, lse = run(device, q, k, v, softmax_scale=1.0)
    testing.assert_attention_close(out, lse, q, k, v, softmax_scale=1.0)


def test_huge_scores_pick_the_largest_key(device):
    """Scores 1e30·j: the last key wins everywhere and no row turns into NaN or infinity."""
    q, k, v = testing.make_qkv(head_dim=64, **SHAPE)
    q[:], k[:] = 0, 0
    q[..., 0] = 1
    k[..., 0] = (np.arange(200) * 1e30).astype(k.dtype)
    k[:, :, 190:, 0] = k[:, :, 189:190, 0]
    k[:, :, 199, 0] = k.dtype.type(3e32)
    out, lse = run(device, q, k, v, softmax_scale=1.0)
    assert np.array_equal(out, np.broadcast_to(v[:, :, 199:], out.shape))
    assert np.allclose(lse, np.float64(k[0, 0, 199, 0]), rtol=1e-6)


@pytest.mark.parametrize("head_dim", [64, 128])
def test_rows_that_see_no_key_are_zero_with_lse_minus_infinity(device, head_dim):
    q, k, v = testing.make_qkv(seqlen_q=300, seqlen_k=100, head_dim=head_dim)
    out, lse = run(device, q, k, v, causal=True)
    assert (out[:, :, :200] == 0).all() and np.isneginf(lse[:, :, :200]).all()
    testing.assert_attention_close(out, lse, q, k, v, causal=True)


@pytest.mark.parametrize("causal", [False, True, "top_left"], ids=str)
def test_no_keys_at_all(device, causal):
    q, k, v = testing.make_qkv(seqlen_q=130, seqlen_k=0, head_dim=64, batch=2, heads_q=2)
    out, lse = run(device, q, k, v, causal=causal)
    assert (out == 0).all() and np.isneginf(lse).all()


@pytest.mark.parametrize("shape", [(0, 5), (3, 0)], ids=["no batch", "no queries"])
def test_empty_results_are_empty(device, shape):
    batch, seqlen_q = shape
    q, k, v = testing.make_qkv(batch=batch, seqlen_q=seqlen_q, seqlen_k=9, head_dim=64)
    out, lse = run(device, q, k, v)
    assert out.shape == q.shape and lse.shape == q.shape[:3]


def test_a_second_run_gives_the_same_bits(device):
    case = Case(head_dim=128, heads_q=2, heads_kv=1, causal=True, **SHAPE)
    q, k, v = case.arrays()
    first, second = (run(device, q, k, v, causal=True) for _ in range(2))
    testing.assert_bitwise_equal(first[0], second[0])
    testing.assert_bitwise_equal(first[1], second[1])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_stay_in_their_own_rows_and_heads(device, bad):
    """A query row of NaN spoils its own output row alone; other heads see nothing of it."""
    q, k, v = testing.make_qkv(seqlen_q=70, seqlen_k=70, head_dim=64, heads_q=2)
    clean, _ = run(device, q, k, v)
    q[0, 0, 5] = bad
    out, lse = run(device, q, k, v)
    assert np.isnan(out[0, 0, 5].astype(np.float32)).all() and np.isnan(lse[0, 0, 5])
    others = np.ones(q.shape[:3], bool)
    others[0, 0, 5] = False
    testing.assert_bitwise_equal(out[others], clean[others])
