# SPDX-License-Identifier: Apache-2.0
"""Named barriers, cluster barriers, register reallocation, and what goes wrong with them."""

from __future__ import annotations

import numpy as np
import pytest
from snippets import assert_twins, run

from cufmha.errors import ConvergenceError, Deadlock, IllegalInstruction, RegisterPool

SEEDS = range(4)
OUT = """
    mov.u32 %r0, %tid.x;
    mul.wide.u32 %d0, %r0, 4;
    ld.param.u64 %d1, [p0];
    add.u64 %d1, %d1, %d0;
"""
TILE = ".shared .align 4 .b8 tile[4096];\nmov.u32 %r10, tile;\nmad.lo.u32 %r11, %r0, 4, %r10;\n"


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_stored_before_a_barrier_is_there_behind_it(seed):
    out = np.zeros(256, np.uint32)
    run(
        OUT + TILE + """
        st.shared.u32 [%r11], %r0;
        bar.sync 0;
        xor.b32 %r1, %r0, 0xA5;
        mad.lo.u32 %r12, %r1, 4, %r10;
        ld.shared.u32 %r2, [%r12];
        st.global.u32 [%d1], %r2;
        ret;
        """,
        out,
        block=256,
        seed=seed,
    )  # fmt: skip
    assert (out == np.arange(256) ^ 0xA5).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_producers_arrive_and_consumers_wait(seed):
    """Warp 0 fills the tile twice and arrives; warp 1 waits, reads, and hands the tile back."""
    out = np.zeros(64, np.uint32)
    run(
        OUT + TILE + """
        setp.ge.u32 %p1, %r0, 32;
        mov.u32 %r3, 0;
        mov.u32 %r4, 0;
        @%p1 bra consume;
        produce:
        add.u32 %r5, %r0, 1;
        mad.lo.u32 %r5, %r3, 100, %r5;
        st.shared.u32 [%r11], %r5;
        bar.arrive 1, 64;
        bar.sync 2, 64;
        add.u32 %r3, %r3, 1;
        setp.lt.u32 %p2, %r3, 2;
        @%p2 bra produce;
        bra end;
        consume:
        bar.sync 1, 64;
        ld.shared.u32 %r5, [%r11+-128];
        add.u32 %r4, %r4, %r5;
        bar.arrive 2, 64;
        add.u32 %r3, %r3, 1;
        setp.lt.u32 %p2, %r3, 2;
        @%p2 bra consume;
        st.global.u32 [%d1], %r4;
        end:
        ret;
        """,
        out,
        block=64,
        seed=seed,
    )  # fmt: skip
    assert (out[32:] == 2 * np.arange(1, 33) + 100).all()


def test_threads_that_have_ended_are_not_waited_for():
    out = np.zeros(96, np.uint32)
    run(
        OUT + """
        setp.ge.u32 %p1, %r0, 64;
        @%p1 exit;
        bar.sync 0;
        st.global.u32 [%d1], 1;
        ret;
        """,
        out,
        block=96,
    )  # fmt: skip
    assert out.tolist() == [1] * 64 + [0] * 32


def test_the_last_warp_may_be_smaller_than_a_warp():
    out = np.zeros(40, np.uint32)
    run(OUT + "bar.sync 0;\nbar.sync 1, 64;\nst.global.u32 [%d1], 1;\nret;", out, block=40)
    assert out.all()


def test_lanes_of_one_warp_arrive_one_after_the_other_where_it_is_not_aligned():
    out = np.zeros(32, np.uint32)
    run(
        OUT + """
        setp.lt.u32 %p1, %r0, 7;
        @%p1 bra first;
        barrier.sync 3;
        bra join;
        first:
        barrier.sync 3;
        join:
        st.global.u32 [%d1], 1;
        ret;
        """,
        out,
    )  # fmt: skip
    assert out.all()


def test_a_barrier_in_a_branch_of_the_warp_must_not_be_aligned():
    body = """
        mov.u32 %r0, %laneid;
        setp.lt.u32 %p1, %r0, 7;
        @%p1 bra end;
        {}
        end:
        ret;
    """
    error = assert_twins(
        (ConvergenceError, Deadlock),
        body.format("bar.sync 0;"),
        body.format("bar.warp.sync ~0x7f;"),
    )
    assert error.line is not None or "line" in str(error)


@pytest.mark.parametrize(("form", "expected"), [("popc.u32", 20), ("and.pred", 0), ("or.pred", 1)])
def test_reducing_barriers_answer_all_threads(form, expected):
    out = np.zeros(64, np.uint32)
    result = "%r4" if form == "popc.u32" else "%p2"
    run(
        OUT + f"""
        setp.lt.u32 %p1, %r0, 20;
        barrier.red.{form} {result}, 0, %p1;
        {"" if form == "popc.u32" else "selp.u32 %r4, 1, 0, %p2;"}
        st.global.u32 [%d1], %r4;
        ret;
        """,
        out,
        block=64,
    )  # fmt: skip
    assert (out == expected).all()


def test_all_participants_name_the_same_count():
    body = (
        OUT
        + """
        setp.lt.u32 %p1, %r0, 32;
        @%p1 bra one;
        bar.sync 1, 64;
        bra end;
        one:
        bar.sync 1, {};
        end:
        ret;
    """
    )
    assert_twins(IllegalInstruction, body.format(96), body.format(64), np.zeros(64), block=64)


@pytest.mark.parametrize(("wrong", "right"), [("16", "15"), ("1, 40", "1, 32"), ("1, 0", "1, 32")])
def test_numbers_and_counts_of_barriers_have_rules(wrong, right):
    assert_twins(IllegalInstruction, f"bar.sync {wrong};", f"bar.sync {right};")


def test_a_barrier_that_nobody_else_reaches_is_a_deadlock_and_the_report_says_where():
    body = (
        OUT
        + """
        setp.ge.u32 %p1, %r0, 32;
        @%p1 bra end;
        bar.sync 5, {};
        end:
        ret;
    """
    )
    error = assert_twins(Deadlock, body.format(64), body.format(32), np.zeros(64), block=64)
    assert "barrier 5" in str(error)
    assert "32 of 64" in str(error)
    assert "line " in str(error)
    assert "warp 0" in str(error)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_cluster_barrier_orders_both_blocks(seed):
    out = np.zeros(4, np.uint32)
    run(
        """
        .shared .align 8 .b32 cell[2];
        mov.u32 %r1, %cluster_ctarank;
        xor.b32 %r2, %r1, 1;
        mov.u32 %r3, cell;
        mapa.shared::cluster.u32 %r4, %r3, %r2;
        mov.u32 %r5, %tid.x;
        setp.eq.u32 %p1, %r5, 0;
        @%p1 st.shared::cluster.u32 [%r4], %r1;
        barrier.cluster.arrive.release.aligned;
        barrier.cluster.wait.acquire.aligned;
        ld.shared.u32 %r6, [%r3];
        mov.u32 %r7, %ctaid.x;
        mul.wide.u32 %d0, %r7, 4;
        ld.param.u64 %d1, [p0];
        add.u64 %d1, %d1, %d0;
        @%p1 st.global.u32 [%d1], %r6;
        ret;
        """,
        out,
        grid=4,
        cluster=2,
        block=64,
        seed=seed,
    )
    assert out.tolist() == [1, 0, 1, 0]


def test_arriving_twice_or_waiting_without_arriving_is_an_error():
    pair = "barrier.cluster.arrive;\nbarrier.cluster.wait;\n"
    assert_twins(IllegalInstruction, "barrier.cluster.arrive;\n" + pair, pair + pair)
    assert_twins(IllegalInstruction, "barrier.cluster.wait;\n", pair)


REGISTERS = """
    mov.u32 %r0, %tid.x;
    setp.lt.u32 %p1, %r0, 128;
    @%p1 bra producer;
    setmaxnreg.inc.sync.aligned.u32 {};
    bra end;
    producer:
    setmaxnreg.dec.sync.aligned.u32 {};
    end:
    ret;
"""
SIZED = ".reqntid 384\n.minnctapersm 1"


@pytest.mark.parametrize("seed", SEEDS)
def test_registers_move_from_one_warpgroup_to_the_others(seed):
    run(REGISTERS.format(240, 24), block=384, directives=SIZED, seed=seed)


def test_a_warpgroup_waits_for_registers_that_never_come():
    error = assert_twins(
        Deadlock, REGISTERS.format(240, 40), REGISTERS.format(232, 40), block=384, directives=SIZED
    )
    assert "registers" in str(error)


def test_more_registers_than_the_block_has_are_refused():
    twin = "setmaxnreg.inc.sync.aligned.u32 {};"
    assert_twins(
        RegisterPool, twin.format(136), twin.format(128), block=128, directives=".maxnreg 128"
    )


def test_reallocation_needs_a_known_register_count():
    twin = "setmaxnreg.dec.sync.aligned.u32 40;"
    run(twin, block=128, directives=".maxntid 128\n.minnctapersm 2")
    with pytest.raises(RegisterPool, match="maxnreg"):
        run(twin, block=128)
    run(twin, block=128, rules="hardware")


@pytest.mark.parametrize("wrong", ["dec.sync.aligned.u32 100", "dec.sync.aligned.u32 16",
                                   "dec.sync.aligned.u32 200"])  # fmt: skip
def test_counts_of_registers_have_rules(wrong):
    assert_twins(
        IllegalInstruction,
        f"setmaxnreg.{wrong};",
        "setmaxnreg.dec.sync.aligned.u32 96;",
        block=128,
        directives=".maxnreg 128",
    )


def test_warps_of_a_warpgroup_execute_the_same_reallocation():
    body = """
        mov.u32 %r0, %tid.x;
        setp.lt.u32 %p1, %r0, 32;
        @%p1 bra one;
        setmaxnreg.dec.sync.aligned.u32 64;
        bra end;
        one:
        setmaxnreg.dec.sync.aligned.u32 {};
        end:
        ret;
    """
    assert_twins(
        IllegalInstruction, body.format(72), body.format(64), block=128, directives=".maxnreg 128"
    )
