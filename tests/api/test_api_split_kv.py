# SPDX-License-Identifier: Apache-2.0
"""Split keys as plans see them: how many parts, their workspace and launches, what is refused."""

from __future__ import annotations

import threading
import time
from itertools import pairwise

import ml_dtypes
import numpy as np
import pytest
from fake_device import FakeDevice, FakeKernel

import cufmha
from cufmha.errors import ArgumentError, DTypeError, UnsupportedError
from cufmha.kernels.catalog import MAX_SPLITS, TARGETS

BF16 = np.dtype(ml_dtypes.bfloat16)
CHIPS = (("sm_90a", 132), ("sm_100a", 148))


def operands(*, batch=1, rows=5, keys=900, heads=2, heads_kv=1, dim=64):
    return (
        np.zeros((batch, rows, heads, dim), BF16),
        np.zeros((batch, keys, heads_kv, dim), BF16),
        np.zeros((batch, keys, heads_kv, dim), BF16),
    )


def plan_for(rows, keys, *, heads=1, batch=1, dim=128, causal=False, chip=CHIPS[0], splits=None):
    spec = cufmha.AttentionSpec(
        num_heads_q=heads, num_heads_kv=1, head_dim=dim, mask=cufmha.Mask.of(causal), lse=True
    )
    shape = cufmha.ProblemShape(batch=batch, seqlen_q=rows, seqlen_k=keys)
    arch, processors = chip
    return cufmha.plan(spec, shape, device=FakeDevice(arch, processors), num_splits=splits)


@pytest.fixture
def fake():
    device = FakeDevice()
    with cufmha.use_device(device):
        yield device


# ---- how many


@pytest.mark.parametrize("chip", CHIPS, ids=str)
@pytest.mark.parametrize(
    "rows, keys, heads", [(128, 16384, 4), (1, 100_000, 1), (1, 16384, 8), (700, 8192, 2)]
)
def test_a_problem_with_few_query_tiles_occupies_most_processors(chip, rows, keys, heads):
    plan = plan_for(rows, keys, heads=heads, chip=chip)
    assert plan.num_splits > 1 and plan.variant.split_kv
    assert 0.75 * chip[1] < plan.grid <= chip[1]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("chip", CHIPS, ids=str)
def test_nothing_is_split_where_there_is_work_for_every_processor(chip, causal):
    tile_q = plan_for(1, 1, chip=chip).variant.tile_q
    tiles = 2 * tile_q if causal else tile_q  # a block takes pairs of them under the mask
    for heads in (chip[1], chip[1] + 1, 10 * chip[1]):
        plan = plan_for(tiles, 65536, heads=heads, chip=chip, causal=causal)
        assert plan.num_splits == 1 and not plan.variant.split_kv and plan.workspace_bytes == 0
    assert plan_for(tiles, 65536, heads=chip[1] // 4, chip=chip, causal=causal).num_splits > 1


@pytest.mark.parametrize("chip", CHIPS, ids=str)
def test_a_share_has_two_tiles_at_least_and_few_keys_are_not_split(chip):
    for keys in range(0, 40_000, 777):
        plan = plan_for(64, keys, chip=chip)
        tiles = -(-keys // plan.variant.tile_k)
        assert plan.num_splits == 1 or tiles // plan.num_splits >= 2
        assert plan.num_splits == 1 or tiles > 4
    assert plan_for(64, 3 * plan.variant.tile_k, chip=chip).num_splits == 1


@pytest.mark.parametrize("causal", [False, True])
def test_the_workspace_has_room_for_four_tiles_a_processor_at_most(causal):
    for heads in range(1, 132, 9):
        for rows in (1, 128, 256, 1000, 4096):
            plan = plan_for(rows, 1 << 20, heads=heads, causal=causal)
            assert plan.workspace_bytes <= 4 * 132 * plan.variant.tile_q * (128 + 2) * 4


def test_more_keys_are_never_split_into_fewer_parts_on_an_empty_chip():
    counts = [plan_for(1, keys).num_splits for keys in (256, 1024, 4096, 16384, 65536)]
    assert counts[0] == 1 and counts[-1] > 1
    assert all(few <= more for few, more in pairwise(counts))


def test_a_causal_problem_is_split_by_the_keys_that_it_sees():
    """With "top_left" and one query, whatever the keys, one is seen."""
    assert plan_for(1, 65536, causal="top_left").num_splits == 1
    assert plan_for(1, 65536, causal=True).num_splits > 1


def test_the_number_asked_for_is_taken():
    for splits in (1, 2, 7, MAX_SPLITS):
        plan = plan_for(64, 100, splits=splits)
        assert plan.num_splits == splits and plan.variant.split_kv == (splits > 1)
    assert plan_for(0, 100, splits=4).num_splits == 1  # there is nothing to do


# ---- refusals


@pytest.mark.parametrize(
    "value, error, message",
    [
        (0, ArgumentError, "num_splits: must be 1 to 256, or None, got 0"),
        (-3, ArgumentError, "num_splits: must be 1 to 256, or None, got -3"),
        (257, ArgumentError, "num_splits: must be 1 to 256, or None, got 257"),
        (True, DTypeError, "num_splits: must be a whole number or None, got bool"),
        (2.0, DTypeError, "num_splits: must be a whole number or None, got float"),
        ("2", DTypeError, "num_splits: must be a whole number or None, got str"),
        ([2], DTypeError, "num_splits: must be a whole number or None, got list"),
    ],
)
def test_a_bad_number_is_refused_by_name_and_nothing_runs(fake, value, error, message):
    q, k, v = operands()
    cufmha.attention(q, k, v, num_splits=1)  # equal to True, but not the same
    before = len(fake.launches)
    with pytest.raises(error, match=message):
        cufmha.attention(q, k, v, num_splits=value)
    spec, shape = cufmha.AttentionSpec.of(q, k, v), cufmha.ProblemShape.of(q, k, v)
    with pytest.raises(error, match=message):
        cufmha.plan(spec, shape, num_splits=value)
    assert len(fake.launches) == before


def test_a_number_may_be_of_any_integer_type(fake):
    q, k, v = operands()
    cufmha.attention(q, k, v, num_splits=np.int64(2))
    assert fake.launches[0][2]["num_splits"] == 2


def test_packed_sequences_are_not_split(fake):
    spec = cufmha.AttentionSpec(num_heads_q=1, num_heads_kv=1, head_dim=64, layout="thd")
    shape = cufmha.PackedShape(batch=1, total_q=5, total_k=5)
    cufmha.plan(spec, shape, num_splits=1)
    with pytest.raises(ArgumentError, match=r"num_splits: must be 1 or None with .* got 2"):
        cufmha.plan(spec, shape, num_splits=2)


def test_parts_beyond_a_grid_are_refused():
    with pytest.raises(UnsupportedError, match="num_splits must be at most 2147483647, got"):
        plan_for(1, 64, heads=1 << 16, batch=1 << 14, splits=2)
    with pytest.raises(UnsupportedError, match="batch x heads x seqlen_q of at most"):
        plan_for(1 << 30, 64, heads=4, splits=2)


# ---- launches


def test_a_launch_computes_the_parts_and_then_merges_them(fake):
    q, k, v = operands(batch=2, heads=4, heads_kv=2)
    out = np.zeros((2, 9, 4, 64), BF16)[:, 2:7]
    lse = np.zeros((2, 6, 10), np.float32)[:, 1:5, :5]
    cufmha.attention(q, k, v, causal=True, num_splits=3, out=out, lse=lse, stream=9)
    (forward, grid, given, stream), (merge, blocks, values, other) = fake.launches
    assert forward.split_kv and forward.causal and stream == other == 9
    assert merge.operation == "merge_splits" and merge.head_dim_v == 64
    assert given["num_tiles"] == 8 * 3 and 1 <= grid <= fake.processors
    assert blocks * (merge.threads // 32) >= 2 * 4 * 5 == values["num_rows"]
    assert "o_map" not in given and "lse" not in given
    for name in ("partial_o", "partial_sums", "num_splits", "num_heads_q", "seqlen_q"):
        assert given[name] == values[name]
    assert given["num_splits"] == 3 and given["scale_log2"] == values["scale_log2"]
    assert values["out"] == out.__array_interface__["data"][0]
    strides = tuple(values[f"out_stride_{name}"] for name in ("batch", "row", "head"))
    assert strides == tuple(stride // 2 for stride in out.strides[:3])
    assert values["lse"] == lse.__array_interface__["data"][0]
    assert (values["lse_stride_batch"], values["lse_stride_head"]) == (60, 10)


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_the_merge_follows_the_layout_and_needs_no_lse(fake, layout):
    q, k, v = operands()
    if layout == "bhsd":
        q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
    cufmha.attention(q, k, v, num_splits=2, layout=layout)
    values = fake.launches[1][2]
    assert values["lse"] == 0
    assert values["out_stride_row"] == (2 * 64 if layout == "bshd" else 64)
    assert values["out_stride_head"] == (64 if layout == "bshd" else 5 * 64)


def test_the_workspace_is_stated_and_holds_every_part(fake):
    """A float32 of each column, m and l for each part, batch, head and query."""
    q, k, v = operands(batch=3, heads=4, heads_kv=2, rows=7, dim=72)
    spec, shape = cufmha.AttentionSpec.of(q, k, v), cufmha.ProblemShape.of(q, k, v)
    plan = cufmha.plan(spec, shape, num_splits=5)
    parts = 5 * 3 * 4 * 7
    assert plan.workspace_bytes == parts * (128 + 2) * 4
    assert str(plan.workspace_bytes) in str(plan.explain()) and "5 of the keys" in str(
        plan.explain()
    )
    plan.run(q, k, v)
    given = fake.launches[0][2]
    assert given["partial_sums"] - given["partial_o"] == parts * 128 * 4
    assert fake.workspaces[0] >= plan.workspace_bytes


def test_plans_share_the_workspace_of_a_stream_and_no_other(fake):
    for keys in range(900, 1000, 10):  # as when one key more is kept at each step
        cufmha.attention(*operands(keys=keys), num_splits=2)
    assert len(fake.workspaces) == 1
    cufmha.attention(*operands(), num_splits=2, stream=7)
    assert len(fake.workspaces) == 2
    places = [values["partial_o"] for _, _, values, _ in fake.launches]
    assert len(set(places[:-2])) == 1 and places[-1] != places[0]


def test_a_workspace_grows_by_powers_of_two_and_what_was_outgrown_stays_in_use(fake):
    few, many = operands(rows=4), operands(rows=1000, heads=20)
    for given in (few, many, few, many):
        cufmha.attention(*given, num_splits=4)
    assert len(fake.workspaces) == 2 and fake.workspaces[1] & (fake.workspaces[1] - 1) == 0
    places = [values["partial_o"] for _, _, values, _ in fake.launches[::2]]
    assert places[0] == places[2] != places[1] == places[3]


def test_the_stream_of_each_thread_has_its_own_workspace():
    """Handle 2 is another stream in every thread."""
    plan = plan_for(1, 900, dim=64, splits=2)
    q, k, v = operands(rows=1, heads=1)

    def work():
        plan.run(q, k, v, stream=2)

    for thread in [threading.Thread(target=work) for _ in range(2)]:
        thread.start()
        thread.join()
    work()
    work()
    assert len(plan.device.workspaces) == 3


def test_no_launch_of_another_thread_comes_between_the_two(monkeypatch):
    prepare = FakeKernel.prepare

    def slow(self, **given):
        launch = prepare(self, **given)

        def launch_slowly(stream):
            launch(stream)
            time.sleep(0.001)

        return launch_slowly

    monkeypatch.setattr(FakeKernel, "prepare", slow)
    plan = plan_for(1, 900, dim=64, splits=2)
    q, k, v = operands(rows=1, heads=1)

    def work():
        for _ in range(20):
            plan.run(q, k, v)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    operations = [launch[0].operation for launch in plan.device.launches]
    assert operations == ["fmha_fwd", "merge_splits"] * 40


def test_a_bound_launch_has_its_own_workspace_and_allocates_no_more(fake):
    q, k, v = operands()
    spec, shape = cufmha.AttentionSpec.of(q, k, v), cufmha.ProblemShape.of(q, k, v)
    plan = cufmha.plan(spec, shape, num_splits=2)
    plan.run(q, k, v)
    bound = plan.bind(q, k, v, np.zeros_like(q))
    workspaces, encoded = len(fake.workspaces), len(fake.encoded)
    bound()
    bound(stream=5)
    other = np.zeros_like(q)
    bound.rebind(out=other)
    bound()
    assert (len(fake.workspaces), len(fake.encoded)) == (workspaces, encoded)
    assert fake.workspaces[-1] == plan.workspace_bytes
    (_, _, run, _), *_ = fake.launches
    bindings = fake.launches[2:]
    assert len(bindings) == 6
    assert len({values["partial_o"] for _, _, values, _ in bindings} | {run["partial_o"]}) == 2
    assert bindings[-1][2]["out"] == other.__array_interface__["data"][0]


def test_results_are_held_to_the_rules(fake):
    q, k, v = operands()
    with pytest.raises(ArgumentError, match="out: must share no element with q"):
        cufmha.attention(q, k, v, out=q, num_splits=2)
    assert fake.launches == []


def test_every_dense_kernel_has_its_twin_and_a_merge():
    for target in TARGETS:
        kernels = cufmha.list_kernels(target)
        whole = [v for v in kernels if v.operation == "fmha_fwd" and not (v.strategy or v.split_kv)]
        parts = [v for v in kernels if v.split_kv]
        merges = {(v.head_dim_v, v.dtype) for v in kernels if v.operation == "merge_splits"}
        key = lambda v: (v.head_dim, v.head_dim_v, v.dtype, v.causal)  # noqa: E731
        assert sorted(map(key, whole)) == sorted(map(key, parts))
        assert {(v.head_dim_v, v.dtype) for v in parts} == merges
