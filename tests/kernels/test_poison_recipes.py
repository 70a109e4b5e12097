# SPDX-License-Identifier: Apache-2.0
"""Bytes that no sequence owns, and scores far from zero: public bugs of other libraries.

A card gets the sizes of the report. The emulator gets fewer heads and runs; lengths that fill no
tile, gaps and tails stay. Strategy "mask" asks for finite values of v, so it gets the largest ones
where the others get NaN and infinity; of k and of its own tails anything goes there, too.
"""

from __future__ import annotations

import forward
import numpy as np
import pytest
from litter import litter
from packed import Batch, judge, run, sized

from cufmha import testing
from cufmha.device import current_device
from cufmha.kernels.catalog import STRATEGIES

NAN, INF = float("nan"), float("inf")
# Of k and of v; None leaves zeros.
POISONS = ((NAN, NAN), (None, NAN), (NAN, None), (INF, INF))


def bearable(values: np.ndarray, strategy: str) -> np.ndarray:
    """Values for v of rows that must not count: as they are, or made finite for "mask"."""
    if strategy != "mask":
        return values
    import ml_dtypes

    largest = ml_dtypes.finfo(values.dtype).max
    return np.where(np.isfinite(values.astype(np.float32)), values, largest)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_slots_of_a_cache_past_the_used_length(device, strategy):
    """flash-attention#2374: P is 0 there, and 0 times NaN in the second product is NaN."""
    heads, slot = sized(device, 8, 1), 128
    batch = Batch(
        lengths=((1, slot),) * 4, used=(32, 64, 96, 48), heads_q=heads, heads_kv=heads, lead=0,
        tail=0, causal=True, poison=0.0,
    )  # fmt: skip
    q, k, v = clean = batch.arrays()
    out, lse = run(device, batch, clean, strategy=strategy)
    judge(batch, clean, out, lse)
    # Every kind of poison at once, by sequence and head; a card sees each with each.
    for turn in range(sized(device, len(POISONS), 1)):
        k_bad, v_bad = k.copy(), v.copy()
        for number, used in enumerate(batch.used or ()):
            past = slice(number * slot + used, (number + 1) * slot)
            for head in range(heads):
                kinds = POISONS[(number + head + turn) % len(POISONS)]
                for array, value in zip((k_bad, v_bad), kinds, strict=True):
                    array[past, head] = 0 if value is None else value
        dirty = (q, k_bad, bearable(v_bad, strategy))
        got = run(device, batch, dirty, strategy=strategy)
        testing.assert_bitwise_equal(got[0], out)
        testing.assert_bitwise_equal(got[1], lse)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_recycled_tail_behind_the_last_key(device, strategy):
    """cudnn-frontend#624: capacity beyond the last offset holds whatever was there before."""
    keys, capacity, runs = sized(device, (333, 512, 200), (133, 256, 1))
    heads = sized(device, 8, 1)
    batch = Batch(
        lengths=((keys, keys),), head_dim=sized(device, 128, 64), heads_q=heads, heads_kv=heads,
        lead=0, tail=capacity - keys, causal=True, poison=0.0,
    )  # fmt: skip
    q, k, v = clean = batch.arrays()
    out, lse = run(device, batch, clean, strategy=strategy)
    judge(batch, clean, out, lse)
    rng = np.random.default_rng(0)
    for _ in range(runs):
        for array in (k, v):
            bits = rng.integers(0, 1 << 16, array[keys:].shape, np.uint16)
            array[keys:] = bits.view(array.dtype)
        v[keys:] = bearable(v[keys:], strategy)
        got = run(device, batch, (q, k, v), strategy=strategy)
        testing.assert_bitwise_equal(got[0], out)
        testing.assert_bitwise_equal(got[1], lse)


@pytest.mark.parametrize("keys", [65, 1, 127])
def test_short_tiles_of_keys_after_a_kernel_that_left_nan(device, keys):
    """flash-attention#1395: old bytes of shared memory stand in for the keys that are missing."""
    q, k, v = testing.make_qkv(
        batch=sized(device, 132 * 2, 1), seqlen_q=64, seqlen_k=keys, head_dim=sized(device, 128, 64)
    )
    found = []
    for _ in range(sized(device, 50, 2)):
        litter(device)
        found.append(forward.run(device, q, k, v, causal=True))
    testing.assert_attention_close(*found[0], q, k, v, causal=True)
    for out, lse in found[1:]:
        testing.assert_bitwise_equal(out, found[0][0])
        testing.assert_bitwise_equal(lse, found[0][1])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_short_tiles_of_keys_after_sequences_of_nan(device, strategy):
    """flash-attention#1395, packed: the stale rows are those of the item that a block had before.

    The longest come first, so every block begins with a sequence of NaN that fills all stages. In
    memory they stand behind the short ones.
    """
    short = (65, 1, 127)
    spoiled = current_device().processors
    lengths = tuple((64, n) for n in short) + ((64, sized(device, 700, 300)),) * spoiled
    batch = Batch(
        lengths=lengths, heads_q=1, head_dim=sized(device, 128, 64), lead=0, tail=0, causal=True
    )
    q, k, v = batch.arrays()
    start = batch.cu_k[len(short)]
    k[start:], v[start:] = NAN, NAN
    v = bearable(v, strategy)
    litter(device)
    out, lse = run(device, batch, (q, k, v), strategy=strategy)
    judge(batch, (q, k, v), out, lse, range(len(short)))
    assert np.isnan(lse[:, batch.cu_q[len(short)] :]).all()


@pytest.mark.parametrize("head_dim", [40, 72, 80, 96, 104, 120])
def test_head_dims_that_fill_no_column_of_a_tile(device, head_dim):
    """exllamav3#316: columns past head_dim are read uninitialized; identical calls differ."""
    # More than one tile of keys, and a part of one, either way.
    rows, heads, calls = sized(device, (512, 16, 20), (140, 1, 2))
    q, k, v = testing.make_qkv(heads_q=heads, seqlen_q=rows, head_dim=head_dim, dtype="f16")
    found = []
    for _ in range(calls):
        litter(device)
        found.append(forward.run(device, q, k, v, softmax_scale=head_dim**-0.5))
    testing.assert_attention_close(*found[0], q, k, v)
    for out, lse in found[1:]:
        testing.assert_bitwise_equal(out, found[0][0])
        testing.assert_bitwise_equal(lse, found[0][1])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_packed_head_dims_that_fill_no_column_of_a_tile(device, strategy):
    """exllamav3#316, packed: each strategy has maps of its own that end at head_dim."""
    rows, heads, calls = sized(device, (512, 16, 20), (140, 1, 2))
    for head_dim in sized(device, (40, 72, 80, 96, 104, 120), (40,)):
        batch = Batch(
            lengths=((rows, rows), (3, 9)), head_dim=head_dim, heads_q=heads, heads_kv=heads,
            causal=True, lead=0, tail=0,
        )  # fmt: skip
        found = []
        for _ in range(calls):
            litter(device)
            found.append(run(device, batch, strategy=strategy))
        judge(batch, batch.arrays(), *found[0])
        for out, lse in found[1:]:
            testing.assert_bitwise_equal(out, found[0][0])
            testing.assert_bitwise_equal(lse, found[0][1])


def far_from_zero(q: np.ndarray, k: np.ndarray, v: np.ndarray, sign: int) -> None:
    """Scores of about sign·2.46e5 before the scale; every value of v is 1."""
    q[:] *= q.dtype.type(0.01)
    k[:] *= k.dtype.type(0.01)
    q[..., 3], k[..., 3], v[:] = 448, sign * 550, 1


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("causal", [False, True])
def test_scores_far_below_and_above_any_stand_in_for_infinity(device, sign, causal):
    """flashinfer#4267: rows whose scores are all below -5e4 come out as zeros."""
    rows, heads, head_dim = sized(device, (300, 8, 128), (70, 1, 64))
    q, k, v = testing.make_qkv(heads_q=heads, seqlen_q=rows, seqlen_k=300, head_dim=head_dim)
    far_from_zero(q, k, v, sign)
    out, lse = forward.run(device, q, k, v, causal=causal)
    testing.assert_attention_close(out, lse, q, k, v, causal=causal)
    assert (np.abs(out.astype(np.float32) - 1) <= 2.0**-8).all()
    assert (sign * lse > 2e5 * head_dim**-0.5).all()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_sequence_of_scores_far_from_zero_among_ordinary_ones(device, strategy):
    """flashinfer#4267, packed: neither it nor its neighbors come out wrong."""
    heads, head_dim = sized(device, (8, 128), (1, 64))
    batch = Batch(
        lengths=((64, 90), (64, 300), (64, 90)), heads_q=heads, heads_kv=heads, head_dim=head_dim,
        causal=True, lead=0, tail=0,
    )  # fmt: skip
    for sign in sized(device, (-1, 1), (-1,)):
        q, k, v = batch.arrays()
        rows, keys = slice(*batch.cu_q[1:3]), slice(*batch.cu_k[1:3])
        far_from_zero(q[rows], k[keys], v[keys], sign)
        out, lse = run(device, batch, (q, k, v), strategy=strategy)
        judge(batch, (q, k, v), out, lse)
        assert (np.abs(out[rows].astype(np.float32) - 1) <= 2.0**-8).all()
        assert (sign * lse[:, rows] > 2e5 * head_dim**-0.5).all()
