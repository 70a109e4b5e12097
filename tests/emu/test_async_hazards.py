# SPDX-License-Identifier: Apache-2.0
"""What asynchronous copies must not do: each raises its own exception, its correct twin runs."""

from __future__ import annotations

from typing import Any

import async_snippets as kit
import numpy as np
import pytest
from snippets import run

from cufmha.emu.tensormap import encode
from cufmha.errors import (
    AsyncReuse,
    BulkStoreAtExit,
    DataRace,
    Deadlock,
    DescriptorError,
    EmulationError,
    IllegalInstruction,
    Misaligned,
    MissingProxyFence,
    OutOfBounds,
    TransactionCount,
    Uninitialized,
    WrongSpace,
)
from cufmha.tma import TensorMapSpec

ROWS = TensorMapSpec(dtype="bf16", dims=(64, 12), strides=(128,), box=(64, 4), swizzle="128B")
LOAD = kit.LOAD.format(rank=2, at="0, 0")
STORE = kit.STORE.format(rank=2, at="0, 0")
EXPECT = kit.EXPECT.format(nbytes=512)
GOOD_LOAD = kit.INIT + EXPECT + LOAD + kit.WAIT + kit.copy_out(512)
FILL = kit.copy_in(512)
GOOD_STORE = FILL + kit.PROXY + STORE + kit.COMMIT + kit.WAIT_GROUP


def attempt(body: str, **options: Any) -> None:
    memory, out = kit.aligned(64 * 12 * 2), kit.aligned(512, fill=0)
    kit.launch(body, ROWS, int(memory.ctypes.data), memory, out, memory, **options)


def assert_twins(error: type[EmulationError], wrong: str, right: str, **options: Any) -> None:
    """`wrong` raises exactly that error, for every policy of time; `right` runs."""
    for seed in range(3):
        attempt(right, seed=seed, **options)
        with pytest.raises(error) as raised:
            attempt(wrong, seed=seed, **options)
        assert type(raised.value) is error


def without(body: str, line: str) -> str:
    """The body without its first line that has this text in it."""
    lines = body.splitlines()
    lines.pop(next(i for i, text in enumerate(lines) if line in text))
    return "\n".join(lines)


# ---- loads


def test_a_barrier_must_be_fenced_before_tma_signals_it():
    assert_twins(MissingProxyFence, without(GOOD_LOAD, "fence.proxy.async"), GOOD_LOAD)


def test_what_a_load_writes_may_be_read_only_once_the_barrier_said_so():
    early = kit.INIT + EXPECT + LOAD + kit.copy_out(512) + kit.WAIT
    assert_twins(AsyncReuse, early, GOOD_LOAD)


def test_waiting_for_the_phase_before_tells_nothing():
    """Parity 1 of a new barrier passes at once; the load is still under way (seed 1 delays it)."""
    attempt(GOOD_LOAD, seed=1)
    with pytest.raises(AsyncReuse):
        attempt(GOOD_LOAD.replace("[%bar], 0;", "[%bar], 1;"), seed=1)


def test_a_second_load_over_the_first_needs_its_completion():
    last = kit.WAIT.replace("wait", "again").replace("try_again", "try_wait")
    last = last.replace("[%bar], 0", "[%bar], 1")
    twice = kit.INIT + kit.EXPECT.replace("{nbytes}", "1024") + LOAD + LOAD + kit.WAIT
    assert_twins(AsyncReuse, twice, kit.INIT + EXPECT + LOAD + kit.WAIT + EXPECT + LOAD + last)


def test_ordinary_stores_before_a_load_need_a_proxy_fence():
    fill = kit.copy_in(512, "first")
    barrier = without(kit.INIT, "fence.proxy.async")
    rest = EXPECT + LOAD + kit.WAIT
    fenced = "    fence.proxy.async.shared::cta;\n"
    early = fenced + fill + barrier + "    @%first fence.proxy.async.shared::cta;\n" + rest
    assert_twins(MissingProxyFence, barrier + fenced + fill + rest, early)


FENCE = "fence.proxy.async.shared::cta"
GOOD_FENCES = pytest.mark.parametrize(
    "fence",
    ["fence.proxy.async", "fence.proxy.async.shared::cluster",
     "fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster"],
)  # fmt: skip


@GOOD_FENCES
def test_a_proxy_fence_shows_only_the_memory_it_names(fence):
    """A tile in shared memory, stored by TMA."""
    right = GOOD_STORE.replace(FENCE, fence)
    assert_twins(MissingProxyFence, GOOD_STORE.replace(FENCE, "fence.proxy.async.global"), right)


@GOOD_FENCES
def test_a_barrier_is_shown_by_a_fence_over_shared_memory(fence):
    right = GOOD_LOAD.replace(FENCE, fence)
    assert_twins(MissingProxyFence, GOOD_LOAD.replace(FENCE, "fence.proxy.async.global"), right)


@pytest.mark.parametrize("fence", ["fence.proxy.async", "fence.proxy.async.global"])
@pytest.mark.parametrize("wrong", ["shared::cta", "shared::cluster"])
def test_a_fence_over_shared_memory_shows_no_global_memory(fence, wrong):
    """The array is filled by the thread that then loads a box of it."""
    fill = "    ld.param.u64 %d0, [p2];\n    @%first st.global.u32 [%d0], %t;\n    @%first {};\n"
    right = fill.format(fence) + GOOD_LOAD
    assert_twins(MissingProxyFence, fill.format(f"fence.proxy.async.{wrong}") + GOOD_LOAD, right)


PEER = """
    .shared .align 128 .b8 tile[128];
    ld.param.u64 %d0, [p0];
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, %cluster_ctarank;
    setp.eq.u32 %p0, %r0, 0;
    setp.eq.and.u32 %p1, %r1, 1, %p0;
    mov.u32 %r2, tile;
    mapa.shared::cluster.u32 %r3, %r2, 0;
    @%p1 st.shared::cluster.v4.b32 [%r3], {{%r1, %r1, %r1, %r1}};
    @%p1 {fence};
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    setp.eq.and.u32 %p2, %r1, 0, %p0;
    @%p2 cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r2], 16;
    @%p2 cp.async.bulk.commit_group;
    @%p2 cp.async.bulk.wait_group 0;
"""


@pytest.mark.parametrize("fence", ["fence.proxy.async", "fence.proxy.async.shared::cluster"])
def test_a_fence_over_the_own_blocks_memory_shows_nothing_of_a_peers(fence):
    """Block 1 writes to block 0's shared memory; block 0 copies it out."""
    for seed in range(3):
        cells = kit.aligned(16, fill=0).view(np.uint32)
        run(PEER.format(fence=fence), cells, grid=2, cluster=2, seed=seed)
        assert (cells == 1).all()
        with pytest.raises(MissingProxyFence):
            run(PEER.format(fence=FENCE), cells, grid=2, cluster=2, seed=seed)


def test_a_box_lies_at_a_multiple_of_128_bytes():
    off = GOOD_LOAD.replace("[%tile], [%map", "[%tile + 64], [%map")
    assert_twins(Misaligned, off, GOOD_LOAD)


def test_bytes_that_never_come_are_a_deadlock_that_says_how_many():
    attempt(GOOD_LOAD)
    with pytest.raises(Deadlock, match="16 transaction bytes"):
        attempt(GOOD_LOAD.replace("[%bar], 512;", "[%bar], 528;"))


def test_a_block_that_ends_with_bytes_outstanding_is_caught():
    only = kit.INIT + EXPECT
    balanced = only + "    @%first mbarrier.complete_tx.shared::cta.b64 [%bar], 512;\n"
    with pytest.raises(TransactionCount, match="512"):
        attempt(only)
    attempt(balanced.replace("mbarrier.complete_tx.", "mbarrier.complete_tx.relaxed.cta."))


def test_the_box_of_a_load_must_fit_its_shared_memory():
    attempt(GOOD_LOAD)
    with pytest.raises(OutOfBounds, match="shared"):
        attempt(GOOD_LOAD, room=128)


# ---- stores


def test_a_store_needs_its_tile_fenced():
    assert_twins(MissingProxyFence, without(GOOD_STORE, "fence.proxy.async"), GOOD_STORE)


def test_a_store_of_bytes_never_written_is_caught():
    assert_twins(Uninitialized, kit.PROXY + STORE + kit.COMMIT + kit.WAIT_GROUP, GOOD_STORE)


def test_the_tile_of_a_store_may_be_reused_only_after_the_read_was_waited_for():
    refill = kit.copy_in(512, "again")
    late = FILL + kit.PROXY + STORE + kit.COMMIT + refill + kit.WAIT_GROUP
    read = kit.WAIT_GROUP.replace("wait_group 0", "wait_group.read 0") + "    bar.warp.sync -1;\n"
    good = FILL + kit.PROXY + STORE + kit.COMMIT + read + refill
    assert_twins(AsyncReuse, late, good)


@pytest.mark.parametrize("missing", ["wait_group", "commit_group"])
def test_a_thread_must_not_end_before_its_stores_have_read(missing):
    assert_twins(BulkStoreAtExit, without(GOOD_STORE, missing), GOOD_STORE)


def test_an_older_group_may_be_waited_for_alone():
    two = (
        FILL + kit.PROXY + STORE + kit.COMMIT + STORE.replace("{0, 0}", "{0, 4}") + kit.COMMIT
        + kit.WAIT_GROUP.replace("wait_group 0", "wait_group {}")
    )  # fmt: skip
    assert_twins(BulkStoreAtExit, two.replace("wait_group {}", "wait_group 1"),
                 two.replace("wait_group {}", "wait_group 0"))  # fmt: skip


def test_a_read_of_global_memory_after_a_store_needs_the_full_wait():
    look = """
    ld.param.u64 %d0, [p2];
    ld.global.b32 %r3, [%d0];
    """
    full = FILL + kit.PROXY + STORE + kit.COMMIT + kit.WAIT_GROUP + "    bar.warp.sync -1;\n" + look
    half = full.replace("wait_group 0", "wait_group.read 0")
    assert_twins(AsyncReuse, half, full)


# ---- linear copies and cp.async


LINEAR = kit.INIT + EXPECT + """
    ld.param.u64 %d0, [p2];
    @%first cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes
        [%tile], [%d0], 512, [%bar];
""" + kit.WAIT + kit.copy_out(512)  # fmt: skip


@pytest.mark.parametrize(
    "old, new", [("[%tile], [%d0]", "[%tile + 8], [%d0]"), ("[%tile], [%d0]", "[%tile], [%d0 + 8]")]
)
def test_linear_copies_are_aligned_on_both_sides(old, new):
    assert_twins(Misaligned, LINEAR.replace(old, new), LINEAR)


CP_ASYNC = """
    ld.param.u64 %d1, [p2];
    mul.wide.u32 %d0, %t, 16;
    add.u64 %d1, %d1, %d0;
    mad.lo.u32 %r3, %t, 16, %tile;
    cp.async.cg.shared.global [%r3], [%d1], 16;
    cp.async.commit_group;
    cp.async.wait_group 0;
    bar.warp.sync 0xffffffff;
""" + kit.copy_out(512)


def test_what_cp_async_brings_may_be_read_only_after_its_wait():
    assert_twins(AsyncReuse, without(CP_ASYNC, "wait_group"), CP_ASYNC)


def test_cp_async_is_aligned_to_its_size():
    assert_twins(Misaligned, CP_ASYNC.replace("[%r3], [%d1]", "[%r3], [%d1 + 4]"), CP_ASYNC)


def test_cp_async_takes_no_more_source_bytes_than_it_copies():
    attempt(CP_ASYNC.replace("[%d1], 16;", "[%d1], 16, 16;"))
    with pytest.raises(IllegalInstruction, match="17"):
        attempt(CP_ASYNC.replace("[%d1], 16;", "[%d1], 16, 17;"))


# ---- clusters


TO_PEER = """
    mov.u32 %r7, %cluster_ctarank;
""" + kit.INIT + EXPECT + FILL + kit.PROXY + """
    barrier.cluster.arrive.release.aligned;
    barrier.cluster.wait.acquire.aligned;
    xor.b32 %r3, %r7, 1;
    mapa.shared::cluster.u32 %peer, %bar, %r3;
    add.u32 %r4, %tile, 512;
    mapa.shared::cluster.u32 %r5, %r4, %r3;
    @%first cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes
        [%r5], [%tile], 512, [%peer];
""" + kit.WAIT + """
    barrier.cluster.arrive.release.aligned;
    barrier.cluster.wait.acquire.aligned;
"""  # fmt: skip


def test_the_barrier_of_a_copy_lies_where_its_bytes_go():
    attempt(TO_PEER, cluster=2)
    with pytest.raises(IllegalInstruction, match="another block"):
        attempt(TO_PEER.replace("512, [%peer]", "512, [%bar]"), cluster=2)


def test_a_multicast_mask_names_blocks_of_the_cluster():
    cast = kit.INIT + EXPECT + """
    mov.u16 %h, {};
    @%first CAST [%tile], [%map, {{0, 0}}], [%bar], %h;
    """ + kit.WAIT  # fmt: skip
    cast = cast.replace("CAST", kit.CAST.format("multicast::cluster"))
    attempt(cast.format(1))
    for mask in (0, 2):
        with pytest.raises(IllegalInstruction, match="mask"):
            attempt(cast.format(mask))


# ---- tensor maps


def test_bytes_that_are_no_tensor_map_are_recognized():
    attempt(GOOD_LOAD)
    with pytest.raises(DescriptorError):
        attempt(GOOD_LOAD, raw_map=bytes(128))


def test_a_map_lies_at_a_multiple_of_64():
    body = "    add.u64 %map, %map, 8;\n" + GOOD_LOAD
    with pytest.raises(Misaligned, match="64"):
        attempt(body)


def test_a_map_in_shared_memory_cannot_be_used():
    body = """
    cvt.u64.u32 %d0, %tile;
    cvta.shared.u64 %map, %d0;
    """
    with pytest.raises(WrongSpace, match="shared"):
        attempt(body + GOOD_LOAD)


def test_a_map_of_another_rank_than_the_instructions_is_refused():
    three = kit.INIT + EXPECT + kit.LOAD.format(rank=3, at="0, 0, 0") + kit.WAIT
    with pytest.raises(IllegalInstruction, match="2 dimensions"):
        attempt(three)


CHANGE = """
    ld.param.u64 %d1, [p2];
    @%first tensormap.replace.tile.{field}.global.b1024.{kind} [%d1], {value};
    fence.proxy.tensormap::generic.release.gpu;
    fence.proxy.tensormap::generic.acquire.gpu [%d1], 128;
    bar.warp.sync 0xffffffff;
"""


def changed(field: str, kind: str, value: str) -> str:
    load = GOOD_LOAD.replace("[%map,", "[%d1,")
    return CHANGE.format(field=field, kind=kind, value=value) + load


def attempt_changed(body: str) -> None:
    memory, out, slot = kit.aligned(64 * 12 * 2), kit.aligned(512), kit.aligned(128)
    slot[:] = np.frombuffer(encode(ROWS, int(memory.ctypes.data)), np.uint8)
    kit.launch(body, ROWS, int(memory.ctypes.data), memory, out, slot)


@pytest.mark.parametrize("fence", ["acquire", "release"])
def test_a_changed_map_must_be_released_and_acquired(fence):
    good = changed("global_dim", "b32", "1, 3")
    attempt_changed(good)
    with pytest.raises(MissingProxyFence, match="tensormap"):
        attempt_changed(without(good, f"fence.proxy.tensormap::generic.{fence}"))


@pytest.mark.parametrize(
    "field, kind, value",
    [
        ("box_dim", "b32", "0, 128"),
        ("box_dim", "b32", "1, 0"),
        ("box_dim", "b32", "1, 257"),
        ("element_stride", "b32", "1, 9"),
        ("global_stride", "b64", "0, 120"),
    ],
)
def test_a_change_that_breaks_a_rule_shows_when_the_map_is_used(field, kind, value):
    with pytest.raises(DescriptorError, match="tensor map"):
        attempt_changed(changed(field, kind, value))


# ---- barriers in use by others


def test_a_barrier_of_another_warp_needs_a_barrier_between():
    """Two warps: the second waits on what the first has made."""
    from snippets import run

    body = """
    .shared .align 8 .b8 bar[8];
    mov.u32 %r0, %tid.x;
    setp.eq.u32 %p1, %r0, 0;
    @%p1 mbarrier.init.shared::cta.b64 [bar], 64;
    {}
    mbarrier.arrive.shared::cta.b64 %d0, [bar];
    """
    run(body.format("bar.sync 0;"), block=64)
    with pytest.raises((DataRace, Uninitialized)):
        run(body.format(""), block=64)
