# SPDX-License-Identifier: Apache-2.0
"""Keys split among processors and merged: right, repeatable, within its memory, and spread."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from forward import Case, check, run

import cufmha
from cufmha import testing
from cufmha.device import emulator
from cufmha.device.emulator import Emulator
from cufmha.emu.transfers import BoxTransfer

CASES = [
    # the last share is the shortest, and its last tile partial
    Case(seqlen_q=5, seqlen_k=450, head_dim=64, batch=2, heads_q=2, heads_kv=1, num_splits=3),
    Case(
        seqlen_q=20, seqlen_k=420, head_dim=128, dtype="f16", causal=True, layout="bhsd",
        num_splits=2,
    ),
    Case(seqlen_q=20, seqlen_k=300, head_dim=192, head_dim_v=128, causal=True, num_splits=3),
    Case(seqlen_q=9, seqlen_k=260, head_dim=72, head_dim_v=40, dtype="f16", num_splits=2),
    # the first query tile sees fewer key tiles than there are splits
    Case(seqlen_q=300, seqlen_k=300, head_dim=64, causal="top_left", num_splits=4),
    # rows, and a whole tile, that see no key
    Case(seqlen_q=280, seqlen_k=40, head_dim=64, dtype="f16", causal=True, num_splits=2),
    Case(seqlen_q=1, seqlen_k=130, head_dim=128, num_splits=37),
    Case(
        seqlen_q=3, seqlen_k=200, head_dim=64, softmax_scale=0.0, causal="top_left", num_splits=2
    ),
    Case(seqlen_q=3, seqlen_k=200, head_dim=64, softmax_scale=-0.5, causal=True, num_splits=2),
]  # fmt: skip
FOR_THE_CARD = [
    Case(
        seqlen_q=q, seqlen_k=k, head_dim=d, head_dim_v=dv, dtype=dtype, causal=mask, batch=batch,
        heads_q=heads_q, heads_kv=heads_kv, num_splits=splits, seed=q + k,
    )
    for (q, k, batch, heads_q, heads_kv) in (
        (128, 16384, 1, 4, 4), (1, 100_000, 1, 1, 1), (1, 4096, 2, 8, 2), (700, 3000, 1, 2, 1)
    )
    for d, dv in ((64, 64), (128, 128), (192, 128), (40, 24))
    for dtype, mask in (("bf16", False), ("f16", True), ("bf16", "top_left"))
    for splits in (None, 1, 2, 7, 32, 256)
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_split_keys_give_what_float64_allows(device, case):
    check(device, case)


@pytest.mark.card
@pytest.mark.parametrize("case", FOR_THE_CARD, ids=str)
def test_split_keys_at_sizes_for_the_card(device, case):
    check(device, case)


def test_huge_equal_scores_in_shares_of_other_length_still_average_v(device):
    """The weight of a share is its number of keys, which such a log-sum-exp would not show."""
    q, k, v = testing.make_qkv(seqlen_q=2, seqlen_k=300, head_dim=64)
    q[:], k[:] = 0, 0
    q[..., 0], k[..., 0] = 1, 1e30
    out, lse = run(device, q, k, v, softmax_scale=1.0, num_splits=2)
    testing.assert_attention_close(out, lse, q, k, v, softmax_scale=1.0)


def test_no_keys_at_all(device):
    q, k, v = testing.make_qkv(seqlen_q=3, seqlen_k=0, head_dim=64, batch=2, heads_q=2)
    out, lse = run(device, q, k, v, num_splits=3)
    assert (out == 0).all() and np.isneginf(lse).all()


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_one_number_of_splits_gives_the_same_bits_on_any_chip_at_any_time(arch):
    q, k, v = testing.make_qkv(seqlen_q=7, seqlen_k=400, head_dim=64)
    results = []
    for processors, seed in ((3, 0), (1, 1)):
        with cufmha.use_device(Emulator(arch, processors=processors, seed=seed)):
            results.append(cufmha.attention(q, k, v, layout="bhsd", num_splits=3, return_lse=True))
    for one, other in zip(*results, strict=True):
        testing.assert_bitwise_equal(one, other)


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_nothing_is_read_that_was_not_written_nor_written_elsewhere(arch, monkeypatch):
    """The workspace begins as NaN; out and lse are slices, with canaries on every side.

    No query sees a key of the second part, which costs m and l and no row of O.
    """
    workspaces = []

    class Poisoned(emulator.HostMemory):
        def __init__(self, size: int) -> None:
            super().__init__(size)
            self._raw[:] = 0xFF
            workspaces.append(self._raw[self.address - self._raw.ctypes.data :])

    monkeypatch.setattr(emulator, "HostMemory", Poisoned)
    batch, rows, heads = 2, 11, 2
    q, k, v = testing.make_qkv(
        batch=batch, seqlen_q=rows, seqlen_k=130, head_dim=72, head_dim_v=40, heads_q=heads,
    )  # fmt: skip
    wide = np.full((batch + 2, heads + 2, rows + 2, 56), 1.5, q.dtype)
    wide_lse = np.full((batch + 2, heads + 2, rows + 2), 1.5, np.float32)
    inner = (slice(1, -1),) * 3
    with cufmha.use_device(Emulator(arch, processors=4, seed=0)):
        cufmha.attention(
            q, k, v, layout="bhsd", causal="top_left", num_splits=2,
            out=wide[inner][..., 8:48], lse=wide_lse[inner],
        )  # fmt: skip
    testing.assert_attention_close(
        wide[inner][..., 8:48], wide_lse[inner], q, k, v, causal="top_left"
    )
    wide[inner][..., 8:48] = wide_lse[inner] = 1.5
    assert (wide == 1.5).all() and (wide_lse == 1.5).all()
    count = batch * 2 * heads * rows
    floats = workspaces[0][: count * 130 * 4].view(np.float32)
    partial = floats[: count * 128].reshape(batch, 2, heads, rows, 128)
    sums = floats[count * 128 :].reshape(batch, 2, heads, rows, 2)
    assert np.isfinite(partial[:, 0]).all() and (sums[:, 0, ..., 1] > 0.5).all()
    assert np.isnan(partial[:, 1]).all() and (sums[:, 1, ..., 1] == 0).all()


def test_strided_operands_and_no_lse(device):
    """q, k and v interleaved in one buffer, heads of stride 0."""
    rng = np.random.default_rng(3)
    packed = rng.standard_normal((1, 260, 2, 3, 64)).astype(testing.numpy_dtype("bf16"))
    if device.name == "cuda":
        buffer = device.put(packed)
        q, k, v = buffer[:, :4, :, 0], buffer[:, :, :1, 1].expand(1, 260, 2, 64), buffer[..., 2, :]
    else:
        q, v = packed[:, :4, :, 0], packed[..., 2, :]
        k = np.broadcast_to(packed[:, :, :1, 1], (1, 260, 2, 64))
    out = cufmha.attention(q, k, v, num_splits=2)
    k = np.broadcast_to(packed[:, :, :1, 1], (1, 260, 2, 64))
    exact = (x.swapaxes(1, 2) for x in (packed[:, :4, :, 0], k, packed[..., 2, :]))
    testing.assert_attention_close(device.get(out).swapaxes(1, 2), None, *exact)


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_the_keys_of_a_small_problem_are_shared_out_among_all_processors(arch, monkeypatch):
    """Which block loads which rows of k: each its own, all together all of them, once."""
    loads: dict[int, list[int]] = defaultdict(list)
    made = BoxTransfer.__init__
    q, k, v = testing.make_qkv(seqlen_q=4, seqlen_k=2048, head_dim=64)

    def recorded(
        self: Any, warp: Any, spec: Any, address: int, coordinates: Any, shared: int
    ) -> None:
        made(self, warp, spec, address, coordinates, shared)
        if address == k.__array_interface__["data"][0]:
            rows = range(coordinates[1], coordinates[1] + spec.box[1])
            loads[warp.cta.linear].extend(row for row in rows if row < 2048)

    monkeypatch.setattr(BoxTransfer, "__init__", recorded)
    with cufmha.use_device(Emulator(arch, processors=8, seed=0)):
        out, lse = cufmha.attention(q, k, v, layout="bhsd", return_lse=True)
    assert sorted(loads) == list(range(8))
    assert max(map(len, loads.values())) <= 2 * 2048 // 8
    assert sorted(row for rows in loads.values() for row in rows) == list(range(2048))
    testing.assert_attention_close(out, lse, q, k, v)
