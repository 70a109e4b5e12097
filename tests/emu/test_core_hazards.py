# SPDX-License-Identifier: Apache-2.0
"""Data races between warps: every pattern that is one raises, its ordered twin does not."""

from __future__ import annotations

import numpy as np
import pytest
from snippets import assert_twins, run

from cufmha.errors import DataRace, HazardError

HEAD = """
    .shared .align 4 .b8 tile[1024];
    mov.u32 %r0, %tid.x;
    mov.u32 %r10, tile;
    mad.lo.u32 %r11, %r0, 4, %r10;
    xor.b32 %r1, %r0, 32;
    mad.lo.u32 %r12, %r1, 4, %r10;
"""
FILLED = HEAD + "st.shared.u32 [%r11], %r0;\nbar.sync 0;\n"


def test_a_read_of_what_another_warp_wrote_needs_a_barrier():
    body = FILLED + "st.shared.u32 [%r11], %r1;\n{}\nld.shared.u32 %r2, [%r12];"
    error = assert_twins(DataRace, body.format(""), body.format("bar.sync 0;"), block=64)
    assert error.address is not None
    assert "warp" in str(error)


def test_a_write_over_what_another_warp_reads_needs_a_barrier():
    body = (
        HEAD
        + """
    st.shared.u32 [%r11], %r0;
    bar.sync 0;
    ld.shared.u32 %r2, [%r12];
    {}
    st.shared.u32 [%r11], %r2;
    """
    )
    assert_twins(DataRace, body.format(""), body.format("bar.sync 0;"), block=64)


def test_two_warps_that_write_one_place_need_a_barrier():
    body = HEAD + "st.shared.u32 [tile], %r0;"
    alone = HEAD + "setp.lt.u32 %p1, %r0, 32;\n@%p1 st.shared.u32 [tile], %r0;"
    assert_twins(DataRace, body, alone, block=64)


def test_a_barrier_that_only_others_attend_does_not_order():
    body = (
        HEAD
        + """
    setp.lt.u32 %p1, %r0, 64;
    setp.ge.u32 %p2, %r0, 96;
    @%p2 bra reader;
    setp.ge.u32 %p3, %r0, 64;
    @%p3 bra end;
    st.shared.u32 [%r11], %r0;
    bar.sync 1, {};
    bra end;
    reader:
    bar.sync {}, {};
    ld.shared.u32 %r2, [tile];
    end:
    """
    )
    assert_twins(DataRace, body.format(64, 2, 32), body.format(96, 1, 96), block=128)


def test_an_arrival_before_the_store_does_not_publish_it():
    body = (
        HEAD
        + """
    setp.ge.u32 %p1, %r0, 32;
    @%p1 bra reader;
    {}
    bra end;
    reader:
    bar.sync 1, 64;
    ld.shared.u32 %r2, [tile];
    end:
    bar.sync 0;
    """
    )
    store, arrive = "st.shared.u32 [%r11], %r0;\n", "bar.arrive 1, 64;\n"
    assert_twins(HazardError, body.format(
        "bar.arrive 1, 64;\nst.shared.u32 [%r11], %r0;"), body.format(store + arrive), block=64,
        seed=0,
    )  # fmt: skip


def test_a_global_cell_is_no_different():
    head = """
    mov.u32 %r0, %tid.x;
    ld.param.u64 %d0, [p0];
    setp.lt.u32 %p1, %r0, 32;
    @%p1 st.global.u32 [%d0], %r0;
    {}
    @!%p1 ld.global.u32 %r1, [%d0];
    """
    assert_twins(
        DataRace, head.format(""), head.format("bar.sync 0;"), np.zeros(4, np.uint32), block=64
    )


MESSAGE = """
    mov.u32 %r0, %tid.x;
    ld.param.u64 %d0, [p0];
    setp.ge.u32 %p1, %r0, 32;
    @%p1 bra reader;
    st.global.u32 [%d0+64], 42;
    bar.warp.sync 0xffffffff;
    {writer}
    bra end;
    reader:
    {reader}
    setp.eq.u32 %p2, %r2, 0;
    @%p2 bra reader;
    {after}
    ld.global.u32 %r3, [%d0+64];
    st.global.u32 [%d0+128], %r3;
    end:
    ret;
"""
RELEASE = "st.release.gpu.global.u32 [%d0], 1;"
ACQUIRE = "ld.acquire.gpu.global.u32 %r2, [%d0];"
RELAXED_STORE = "st.relaxed.gpu.global.u32 [%d0], 1;"
RELAXED_LOAD = "ld.relaxed.gpu.global.u32 %r2, [%d0];"
FENCE = "fence.acq_rel.gpu;"
VOLATILE_LOAD = "ld.volatile.global.u32 %r2, [%d0];"


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("writer", "reader", "after"),
    [
        (RELEASE, ACQUIRE, ""),
        (FENCE + RELAXED_STORE, RELAXED_LOAD, FENCE),
        ("membar.gl;" + "st.volatile.global.u32 [%d0], 1;", VOLATILE_LOAD, "membar.gl;"),
        (RELEASE, RELAXED_LOAD, FENCE),
        ("red.release.gpu.global.add.u32 [%d0], 1;", ACQUIRE, ""),
        (RELEASE, "atom.acquire.gpu.global.or.b32 %r2, [%d0], 0;", ""),
    ],
)
def test_release_and_acquire_hand_a_message_over(writer, reader, after, seed):
    cells = np.zeros(64, np.uint32)
    run(MESSAGE.format(writer=writer, reader=reader, after=after), cells, block=64, seed=seed)
    assert cells[32] == 42


@pytest.mark.parametrize(
    ("writer", "reader", "after"),
    [
        (RELAXED_STORE, ACQUIRE, ""),
        (RELEASE, RELAXED_LOAD, ""),
        (RELAXED_STORE, RELAXED_LOAD, FENCE),
        (FENCE + RELAXED_STORE, RELAXED_LOAD, ""),
        (RELEASE, "ld.global.u32 %r2, [%d0];", FENCE),
    ],
)
def test_half_of_a_handover_is_a_race(writer, reader, after):
    with pytest.raises(DataRace):
        run(
            MESSAGE.format(writer=writer, reader=reader, after=after),
            np.zeros(64, np.uint32),
            block=64,
        )


def test_a_message_between_blocks_goes_through_global_memory():
    body = MESSAGE.replace("%tid.x", "%ctaid.x").replace("%r0, 32", "%r0, 1")
    good = body.format(writer=RELEASE, reader=ACQUIRE, after="")
    bad = body.format(writer=RELAXED_STORE, reader=ACQUIRE, after="")
    error = assert_twins(DataRace, bad, good, np.zeros(64, np.uint32), grid=2, block=32)
    assert error.block == 1


def test_atomics_race_with_plain_accesses_only():
    cells = np.zeros(8, np.uint32)
    body = """
    ld.param.u64 %d0, [p0];
    red.global.add.u32 [%d0], 1;
    """
    run(body, cells, block=128, grid=4)
    assert cells[0] == 512
    assert_twins(DataRace, body + "ld.global.u32 %r1, [%d0];", body, cells, block=128)


def test_one_warp_needs_no_barrier_for_itself():
    run(HEAD + "st.shared.u32 [%r11], %r0;\nld.shared.u32 %r2, [tile];", block=32)


def test_hazards_can_be_switched_off():
    run(HEAD + "st.shared.u32 [%r11], %r0;\nld.shared.u32 %r2, [%r12];", block=64, hazards=False)


@pytest.mark.parametrize("seed", range(6))
def test_a_race_is_found_under_every_seed(seed):
    body = FILLED + "st.shared.u32 [%r11], %r1;\nld.shared.u32 %r2, [%r12];"
    with pytest.raises(DataRace):
        run(body, block=64, seed=seed)


def test_a_seed_replays_exactly():
    def order(seed: int) -> list[int]:
        cells = np.zeros(65, np.uint32)
        run(
            """
            mov.u32 %r0, %tid.x;
            ld.param.u64 %d0, [p0];
            atom.global.add.u32 %r1, [%d0], 1;
            mad.wide.u32 %d1, %r1, 4, %d0;
            st.global.u32 [%d1+4], %r0;
            ret;
            """,
            cells,
            block=64,
            seed=seed,
        )
        return cells.tolist()

    assert order(4) == order(4)
    assert len({tuple(order(seed)) for seed in range(6)}) > 1
