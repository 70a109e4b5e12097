# SPDX-License-Identifier: Apache-2.0
"""Lengths and offsets that other libraries have public bugs with, each held to float64 by itself.

A card gets the sizes of the report. The emulator gets fewer heads and shorter sequences, which
keep what the bug hangs on: partial tiles, their order, ratios of heads. A mask is the softmax's
business and no strategy's, so the emulator runs all strategies under one and "split" without.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import forward
import numpy as np
import pytest
from packed import CANARY, Batch, check, judge, run, sized

import cufmha
from cufmha import testing
from cufmha.errors import ArgumentError
from cufmha.kernels.catalog import STRATEGIES


def poison_for(strategy: str) -> float:
    """What rows of no sequence hold: "mask" asks for finite values."""
    return 1000.0 if strategy == "mask" else np.nan


def masks_for(device: Any, strategy: str) -> tuple[bool, ...]:
    return sized(device, (True, False), (True, False) if strategy == "split" else (True,))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_one_token_at_most_and_sequences_without_any(device, strategy):
    """flash-attention#1537: a short cut for max_seqlen_q = 1 takes total_q for the batch size."""
    # Three query heads a K/V head either way.
    heads_q, heads_kv = sized(device, (9, 3), (3, 1))
    batch = Batch(
        lengths=((0, 0), (1, 3), (0, 0), (1, 5)), heads_q=heads_q, heads_kv=heads_kv, causal=True,
        softmax_scale=1.0, lead=0, tail=0,
    )  # fmt: skip
    check(device, batch, strategy=strategy, max_seqlen_q=1)


@pytest.mark.parametrize("strategy", ["offset", "split"])
def test_max_seqlen_of_one_is_no_case_of_its_own(device, strategy):
    """flash-attention#1537: bit for bit what other values give; only "offset" looks at it."""
    batch = Batch(
        lengths=((0, 0), (1, 3), (0, 0), (1, 5)), heads_q=3, causal=True, lead=0, tail=0
    )  # fmt: skip
    out, lse = run(device, batch, strategy=strategy, max_seqlen_q=1)
    for longest in (2, None):
        other = run(device, batch, strategy=strategy, max_seqlen_q=longest)
        testing.assert_bitwise_equal(out, other[0])
        testing.assert_bitwise_equal(lse, other[1])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_sequence_with_keys_and_no_queries(device, strategy):
    """flash-attention#1713: is it legal? It is; here it stands between two with fewer keys."""
    for causal in masks_for(device, strategy):
        # The report's lengths, which fill no tile; only the heads are fewer on the emulator.
        batch = Batch(
            lengths=((150, 100), (0, 100), (150, 100)), causal=causal, head_dim=sized(
                device, 128, 64), heads_q=sized(device, 4, 1), heads_kv=sized(device, 4, 1),
            lead=0, tail=0, poison=poison_for(strategy),
        )  # fmt: skip
        check(device, batch, strategy=strategy)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_a_dense_batch_without_any_key(device, head_dim, causal):
    """flash-attention#2470: an illegal instruction, or a division by zero on the host."""
    q, k, v = testing.make_qkv(
        batch=2, heads_q=sized(device, 8, 1), seqlen_q=128, seqlen_k=0, head_dim=head_dim
    )
    out, lse = forward.run(device, q, k, v, causal=causal)
    assert (out == 0).all() and np.isneginf(lse).all()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_packed_batch_without_any_key(device, strategy):
    """flash-attention#2470, packed: k and v have no rows at all."""
    for causal in masks_for(device, strategy):
        batch = Batch(
            lengths=((128, 0), (128, 0)), heads_q=sized(device, 8, 1), lead=0, tail=0,
            causal=causal,
        )  # fmt: skip
        out, lse = run(device, batch, batch.arrays(), strategy=strategy)
        assert (out == 0).all() and np.isneginf(lse).all()


def test_a_batch_of_zero(device):
    """flash-attention#1159: refused, though programs with a fixed graph feed zero rows."""
    q, k, v = (device.put(np.zeros((0, rows, 10, 64), np.float16)) for rows in (3952, 16, 16))
    out, lse = cufmha.attention(q, k, v, return_lse=True)
    assert tuple(out.shape) == (0, 3952, 10, 64) and tuple(lse.shape) == (0, 10, 3952)
    assert out.dtype == q.dtype and type(out) is type(q)
    assert getattr(out, "device", None) == getattr(q, "device", None)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_packed_batch_of_zero_writes_nothing(device, strategy):
    """flash-attention#1159, packed: no sequence, with and without rows that belong to none."""
    for rows in (0, 300):
        batch = Batch(lengths=(), lead=0, tail=rows, causal=True)
        out, lse = run(device, batch, strategy=strategy)
        assert out.shape == (rows, 2, 64) and lse.shape == (2, rows)
        assert (out == CANARY).all() and (lse == CANARY).all()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_rows_past_the_last_offset_are_left_as_they_are(device, strategy):
    """flash-attention#1661: rows that no sequence owns change."""
    # The tail is longer than what the last tile hangs over, at either size.
    (first, second), tail = sized(device, ((300, 400), 324), ((60, 80), 270))
    batch = Batch(
        lengths=((first, first), (second, second)), lead=0, tail=tail, causal=True,
        heads_q=sized(device, 4, 1), poison=poison_for(strategy),
    )  # fmt: skip
    check(device, batch, strategy=strategy)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_sequence_longer_than_max_seqlen_is_a_hint_and_nothing_is_cut(device, strategy):
    """flash-attention#1773: is a sequence beyond max_seqlen an error, or right by luck?"""
    # A sequence of several tiles between short ones. Only with a guard, below, is max_seqlen more
    # than a limit for `check`, so the emulator gets one value here.
    lengths, guesses = sized(device, ((100, 900, 40), (512, 128)), ((20, 300, 9), (70,)))
    batch = Batch(
        lengths=tuple((n, n) for n in lengths), causal=True, heads_q=sized(device, 4, 1),
        poison=poison_for(strategy),
    )  # fmt: skip
    for longest in guesses:
        options = {"strategy": strategy, "max_seqlen_q": longest, "max_seqlen_k": longest}
        check(device, batch, **options)
        message = rf"cu_seqlens_q\[2\]: .*max_seqlen_q is {longest}"
        with pytest.raises(ArgumentError, match=message):
            run(device, batch, check=True, **options)


def test_a_guard_for_fewer_rows_than_the_longest_sequence(device):
    """flash-attention#1773, with maps that begin max_seqlen rows in front of each array."""
    if device.name == "cuda":
        pytest.importorskip("cupy", reason="guarded memory on a card is CuPy's")
    lengths, guesses = sized(device, ((100, 900, 40), (512, 128)), ((20, 300, 9), (260, 70)))
    batch = Batch(lengths=tuple((n, n) for n in lengths), causal=True, heads_q=1, lead=0, tail=0)
    given = batch.arrays()
    wanted, _ = run(device, batch, given, strategy="split")
    arrays = [
        array_of(device, cufmha.empty(x.shape, batch.dtype, guard_rows=guesses[0]))
        for x in (*given, given[0])
    ]
    for array, x in zip(arrays, given, strict=False):
        array[:] = device.put(x)
    offsets = device.put(batch.cu_q)
    for longest in guesses:
        arrays[3][:] = CANARY
        cufmha.attention_varlen(
            *arrays[:3], offsets, offsets, longest, longest, causal=True, strategy="offset",
            out=arrays[3],
        )  # fmt: skip
        testing.assert_bitwise_equal(device.get(arrays[3]), wanted)


def array_of(device: Any, made: Any) -> Any:
    return device.torch.from_dlpack(made) if device.name == "cuda" else np.asarray(made)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_uneven_lengths_whose_last_is_far_below_the_longest(device, strategy):
    """flashinfer#1103: a scheduler takes every sequence for as long as the longest."""
    # Sequences of about ten tiles and a last one of three; small: of two and a last one of one.
    offsets = sized(device, (0, 1274, 2568, 3915, 5194, 6498, 7839, 8192), (0, 274, 560, 630))
    lengths = tuple((b - a, b - a) for a, b in pairwise(offsets))
    for causal in masks_for(device, strategy):
        batch = Batch(
            lengths=lengths, head_dim=sized(device, 128, 64), heads_q=sized(device, 32, 1),
            heads_kv=sized(device, 8, 1), causal=causal, lead=0, tail=0,
        )  # fmt: skip
        check(device, batch, strategy=strategy)


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_nothing_is_read_behind_the_offsets(device, kind):
    """flash-attention#2333: tiles in surplus look up offsets[batch + 1].

    On the emulator a read behind the array raises. Offsets are read before a strategy has a say.
    """
    lengths = tuple((1 + i % 7, 1 + i % 7) for i in range(sized(device, 64, 8)))
    batch = Batch(lengths=lengths, heads_q=sized(device, 2, 1), lead=0, tail=0, causal=True)
    q, k, v = (device.put(x) for x in batch.arrays())
    found = []
    for behind in sized(device, (0x7FFFFFFF, 0, -1), (0x7FFFFFFF, 0)):
        offsets = device.put(np.array([*batch.cu_q, behind], kind))[:-1]
        results = cufmha.attention_varlen(q, k, v, offsets, offsets, causal=True, return_lse=True)
        found.append([device.get(x) for x in results])
    judge(batch, batch.arrays(), *found[0])
    for out, lse in found[1:]:
        testing.assert_bitwise_equal(out, found[0][0])
        testing.assert_bitwise_equal(lse, found[0][1])
