# SPDX-License-Identifier: Apache-2.0
"""Packed sequences: every strategy, every kind of length, whatever lies around them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packed import CANARY, Batch, check, run

import cufmha
from cufmha import testing
from cufmha.emu.module import Module
from cufmha.emu.profile import Profile
from cufmha.kernels.catalog import HEAD_DIMS, STRATEGIES, variants

EXACT = tuple(s for s in STRATEGIES if s != "mask")
MIXED = Batch(lengths=((5, 3), (0, 7), (130, 200), (200, 130), (0, 0), (1, 1), (300, 64), (7, 0)))


def poison_for(strategy: str) -> float:
    """What rows of no sequence hold: "mask" asks for finite values."""
    return 1000.0 if strategy == "mask" else np.nan


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("head_dims", "causal"), list(zip(HEAD_DIMS, (True, False, True), strict=True))
)
def test_sequences_of_every_kind(device, strategy, head_dims, causal):
    head_dim, head_dim_v = head_dims
    check(
        device,
        replace(
            MIXED, head_dim=head_dim, head_dim_v=head_dim_v, causal=causal,
            poison=poison_for(strategy),
        ),
        strategy=strategy,
    )  # fmt: skip


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_head_dims_between_the_kernels(device, strategy):
    batch = Batch(
        lengths=((70, 131), (129, 3)), head_dim=72, head_dim_v=40, heads_q=3, dtype="f16",
        causal="top_left", poison=poison_for(strategy),
    )  # fmt: skip
    check(device, batch, strategy=strategy)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_only_so_many_keys_as_are_used(device, strategy):
    """Keys past `seqused_k` are poison, also those of the sequence in the middle."""
    batch = Batch(
        lengths=((1, 128), (4, 128), (130, 200), (9, 10)), used=(32, 64, 131, 0), causal=True,
        poison=poison_for(strategy),
    )  # fmt: skip
    check(device, batch, strategy=strategy)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_result_is_the_same_bits_whatever_else_is_in_the_batch(device, strategy):
    batch = replace(MIXED, causal=True, poison=poison_for(strategy))
    q, k, v = batch.arrays()
    out, lse = run(device, batch, (q, k, v), strategy=strategy)
    rows, keys = slice(*batch.cu_q[2:4]), slice(*batch.cu_k[2:4])
    alone = replace(batch, lengths=(batch.lengths[2],), lead=0, tail=0)
    out_alone, lse_alone = run(device, alone, (q[rows], k[keys], v[keys]), strategy=strategy)
    testing.assert_bitwise_equal(out[rows], out_alone)
    testing.assert_bitwise_equal(lse[:, rows], lse_alone)


@pytest.mark.parametrize("strategy", EXACT)
@pytest.mark.parametrize("poison", [np.inf, -np.inf])
def test_infinities_in_a_neighbor_stay_there(device, strategy, poison):
    """The first and the last of three sequences hold infinities, and get NaN for it."""
    batch = Batch(lengths=((20, 70), (140, 150), (30, 131)), poison=poison)
    clean = batch.arrays()
    out, lse = run(device, batch, clean, strategy=strategy)
    dirty = tuple(x.copy() for x in clean)
    for array, offsets in zip(dirty, (batch.cu_q, batch.cu_k, batch.cu_k), strict=True):
        array[offsets[0] : offsets[1]] = array[offsets[2] : offsets[3]] = poison
    out_dirty, lse_dirty = run(device, batch, dirty, strategy=strategy)
    rows = slice(*batch.cu_q[1:3])
    testing.assert_bitwise_equal(out_dirty[rows], out[rows])
    testing.assert_bitwise_equal(lse_dirty[:, rows], lse[:, rows])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_needles_at_both_ends_of_every_sequence(device, strategy):
    """Each sequence's first and last key dominates for one head; its neighbors' keys would too."""
    batch = Batch(lengths=((3, 64), (130, 129), (2, 1), (65, 200)), heads_kv=2, lead=1, tail=1)
    batch = replace(batch, poison=poison_for(strategy))
    q, k, v = batch.arrays()
    cu_q, cu_k = batch.cu_q, batch.cu_k
    q[cu_q[0] : cu_q[-1]] = 0
    q[cu_q[0] : cu_q[-1], :, 0] = 64
    k[cu_k[0] : cu_k[-1]] = 0
    for start, end in pairwise(cu_k):
        k[start, 0, 0] = k[end - 1, 1, 0] = 64
    out, _ = run(device, batch, (q, k, v), strategy=strategy)
    for index in range(len(batch.lengths)):
        rows = out[cu_q[index] : cu_q[index + 1]]
        assert (rows[:, 0] == v[cu_k[index], 0]).all(), f"first key of sequence {index}"
        assert (rows[:, 1] == v[cu_k[index + 1] - 1, 1]).all(), f"last key of sequence {index}"


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    "offsets", [(9, -5, 70, 40, 500), (-(2**31), 2**31 - 1, 0, 7, 7)], ids=["mixed", "far"]
)
def test_wild_offsets_never_leave_the_arrays(device, strategy, offsets):
    """Each counts as the greatest of 0 and of those up to it, cut to the total."""
    batch = Batch(lengths=((40, 90), (60, 10), (20, 20), (10, 30)), lead=0, tail=0)
    arrays = batch.arrays()
    wild = np.array(offsets, np.int32)

    def tame(total: int) -> np.ndarray:
        return np.clip(np.maximum.accumulate(wild), 0, total).astype(np.int32)

    got = run(device, batch, arrays, strategy=strategy, cu_seqlens_q=wild, cu_seqlens_k=wild)
    meant = run(
        device, batch, arrays, strategy=strategy, cu_seqlens_q=tame(len(arrays[0])),
        cu_seqlens_k=tame(len(arrays[1])),
    )  # fmt: skip
    testing.assert_bitwise_equal(got[0], meant[0])
    testing.assert_bitwise_equal(got[1], meant[1])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_longest_sequence_given_wrong_changes_nothing(device, strategy):
    batch = Batch(lengths=((100, 90), (9, 300), (4, 4)), poison=poison_for(strategy))
    out, lse = run(device, batch, strategy=strategy)
    for longest in (2, 10_000):
        got = run(device, batch, strategy=strategy, max_seqlen_q=longest, max_seqlen_k=longest)
        testing.assert_bitwise_equal(got[0], out)
        testing.assert_bitwise_equal(got[1], lse)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_nothing_to_do(device, strategy):
    nothing = run(device, Batch(lengths=()), strategy=strategy)
    assert (nothing[0].astype(np.float32) == CANARY).all()
    check(device, Batch(lengths=((0, 0), (0, 0)), lead=0, tail=0), strategy=strategy)
    check(device, Batch(lengths=((5, 0), (9, 0)), lead=0, tail=0), strategy=strategy)


@pytest.mark.parametrize("count", [40, 1030], ids=["sorted", "in_order"])
def test_many_short_sequences_beside_a_long_one(device, count):
    """Of 1 to 7 rows. Beyond 1,024 sequences they are taken as they come; a card gets it whole."""
    rows = 100_000 if device.name == "cuda" else 400
    short = count if device.name == "cuda" or count < 100 else 1030
    lengths = [(1 + i % 7, 1 + i % 7) if i < 60 or device.name == "cuda" else (0, 0)
               for i in range(short)]  # fmt: skip
    lengths.insert(17, (rows, 200) if device.name != "cuda" else (rows, 1000))
    check(device, Batch(lengths=tuple(lengths), heads_q=1, causal=True))


@settings(max_examples=12, deadline=None, derandomize=True,
          suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip
@given(data=st.data())
def test_any_batch(device, data):
    lengths = data.draw(st.lists(st.tuples(st.integers(0, 270), st.integers(0, 270)), max_size=5))
    head_dim, head_dim_v = data.draw(st.sampled_from([(64, 64), (32, 32), (128, 96), (192, 128)]))
    heads_kv = data.draw(st.sampled_from([1, 2]))
    strategy = data.draw(st.sampled_from(STRATEGIES))
    poison = 7.0 if strategy == "mask" else data.draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    used = None
    if data.draw(st.booleans()):
        used = tuple(data.draw(st.integers(0, keys)) for _, keys in lengths)
    batch = Batch(
        lengths=tuple(lengths), head_dim=head_dim, head_dim_v=head_dim_v,
        heads_q=heads_kv * data.draw(st.sampled_from([1, 2])), heads_kv=heads_kv, used=used,
        dtype=data.draw(st.sampled_from(["bf16", "f16"])), poison=poison,
        causal=data.draw(st.sampled_from([False, True, "top_left"])),
        lead=data.draw(st.integers(0, 3)), tail=data.draw(st.integers(0, 300)),
    )  # fmt: skip
    check(device, batch, strategy=strategy)


@pytest.fixture
def profiles(monkeypatch: pytest.MonkeyPatch) -> list[Profile]:
    """Profiles of the forward kernels that the emulator launches from now on."""
    made: list[Profile] = []
    launch = Module.launch_raw

    def profiled(self: Module, entry: str, **shape: Any) -> Any:
        if entry == "fmha_fwd":
            made.append(Profile(self.program(entry), shape["block"][0] // 32))
        return launch(self, entry, **shape)

    monkeypatch.setattr(Module, "launch_raw", profiled)
    return made


def executed(profile: Profile) -> Counter[str]:
    counts: Counter[str] = Counter()
    for inst, row in zip(profile.program.instructions, profile.rows, strict=True):
        if sum(row):
            counts[".".join((inst.opcode, *inst.modifiers))] += sum(row)
    return counts


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_each_strategy_runs_its_own_instructions(arch, strategy, profiles):
    batch = Batch(lengths=((70, 100), (300, 90)), lead=0, tail=0)
    q, k, v = batch.arrays()
    with cufmha.use_device("emulator", arch=arch):
        cufmha.attention_varlen(q, k, v, batch.cu_q, batch.cu_k, strategy=strategy)
    (profile,) = profiles
    counts = executed(profile)

    def total(begins: str) -> int:
        return sum(count for name, count in counts.items() if name.startswith(begins))

    assert bool(total("tensormap.replace")) == (strategy == "replace")
    assert bool(total("tensormap.cp_fenceproxy")) == (strategy == "replace")
    by_tma, by_threads = total("cp.async.bulk.tensor"), total("st.global")
    tensor = [name for name in counts if name.startswith("cp.async.bulk.tensor")]
    dimensions = {name.split(".")[4] for name in tensor}
    stores = sum(counts[name] for name in tensor if ".bulk_group" in name)
    assert by_tma
    if strategy == "mask":
        assert stores == 0 and by_threads > 0
    else:
        assert stores > 0 and by_threads == 0  # no lse was asked for
    assert dimensions >= {{"ragged": "5d", "offset": "4d"}.get(strategy, "3d")}
    assert ("5d" in dimensions) == (strategy == "ragged")
    assert ("4d" in dimensions) == (strategy == "offset")


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_tiles_that_no_sequence_has_are_never_drawn(arch, profiles):
    """flashinfer#1103, flash-attention#2333: tiles in surplus, where lengths are uneven.

    What draws is the same for every strategy. Each block draws once more, to see that it is over.
    """
    tile = next(v.tile_q for v in variants(arch) if v.strategy == "split" and v.head_dim == 64)
    queries = (70, 0, tile + 1, 1, tile, 0)
    batch = Batch(lengths=tuple((n, 9) for n in queries), lead=0, tail=3 * tile)
    q, k, v = batch.arrays()
    with cufmha.use_device("emulator", arch=arch) as chip:
        cufmha.attention_varlen(q, k, v, batch.cu_q, batch.cu_k)
    (profile,) = profiles
    items = batch.heads_q * sum(-(-n // tile) for n in queries)
    assert executed(profile)["atom.global.add.u32"] == items + chip.processors
