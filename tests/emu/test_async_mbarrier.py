# SPDX-License-Identifier: Apache-2.0
"""mbarriers: counts, phases, parities, transactions, states, and what breaks them."""

from __future__ import annotations

import numpy as np
import pytest
from snippets import assert_twins, lanes, run

from cufmha.errors import (
    DataRace,
    Deadlock,
    IllegalInstruction,
    Misaligned,
    OutOfBounds,
    PhaseError,
    TransactionCount,
    Uninitialized,
    UnsupportedInstruction,
    WrongSpace,
)

BARRIER = """
    .shared .align 8 .b8 bar[16];
    mov.u32 %r10, %tid.x;
    setp.eq.u32 %p7, %r10, 0;
    mov.u32 %r11, bar;
"""


def made(count: int) -> str:
    return (
        BARRIER
        + f"""
    @%p7 mbarrier.init.shared::cta.b64 [bar], {count};
    bar.sync 0;
"""
    )


def look(parity: int, result: str = "%p1") -> str:
    return f"    mbarrier.test_wait.parity.shared::cta.b64 {result}, [bar], {parity};\n"


ARRIVE = "    mbarrier.arrive.shared::cta.b64 %d9, [bar];\n"
LEADER = ARRIVE.replace("    mb", "    @%p7 mb")
SHOW = "    selp.u32 %r1, 1, 0, %p1;\n"


def shown(body: str, **options: object) -> np.ndarray:
    """What %p1 is in each thread at the end."""
    return lanes(body + SHOW, **options)  # type: ignore[arg-type]


# ---- phases


def test_a_new_barrier_has_the_phase_before_it_behind_it():
    assert (shown(made(32) + look(1)) == 1).all()
    assert (shown(made(32) + look(0)) == 0).all()


def test_a_phase_is_over_once_all_have_arrived():
    assert (shown(made(32) + ARRIVE + look(0)) == 1).all()
    assert (shown(made(33) + ARRIVE + look(0)) == 0).all()


def test_one_arrival_may_count_for_several():
    body = made(32) + "    @%p7 mbarrier.arrive.shared::cta.b64 %d9, [bar], 32;\n"
    assert (shown(body + look(0)) == 1).all()


@pytest.mark.parametrize("phases", range(1, 6))
def test_the_parity_of_the_last_phase_turns_with_each(phases):
    body = made(32) + (ARRIVE + "    bar.warp.sync -1;\n") * phases
    assert (shown(body + look((phases - 1) & 1)) == 1).all()
    assert (shown(body + look(phases & 1)) == 0).all()


def test_arrivals_that_drop_out_lower_the_count_of_later_phases():
    drop = "    @%p7 mbarrier.arrive_drop.shared::cta.b64 %d9, [bar], 31;\n"
    body = made(32) + drop + LEADER + look(0, "%p2") + LEADER + look(1)
    assert (shown(body) == 1).all()


def test_a_state_tells_whether_its_own_phase_is_over():
    test = "    mbarrier.test_wait.shared::cta.b64 %p1, [bar], %d9;\n"
    assert (shown(made(32) + ARRIVE + test) == 1).all()
    assert (shown(made(33) + ARRIVE + test) == 0).all()


def test_a_state_holds_how_many_arrivals_were_pending_before():
    body = (
        made(9)
        + """
    @%p7 mbarrier.arrive.shared::cta.b64 %d9, [bar], 2;
    @%p7 mbarrier.arrive.shared::cta.b64 %d9, [bar];
    @!%p7 mov.u64 %d9, 7;
    mbarrier.pending_count.b64 %r1, %d9;
    """
    )
    assert (lanes(body) == 7).all()


def test_an_invalidated_barrier_may_be_made_again():
    again = made(5) + "    @%p7 mbarrier.inval.shared::cta.b64 [bar];\n"
    again += "    @%p7 mbarrier.init.shared::cta.b64 [bar], 1;\n" + LEADER
    assert (shown(again + "    bar.warp.sync -1;\n" + look(0)) == 1).all()


# ---- transactions


EXPECT = "    @%p7 mbarrier.arrive.expect_tx.shared::cta.b64 %d9, [bar], {};\n"
DONE = "    @%p7 mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [bar], {};\n"


def test_expected_bytes_keep_the_phase_open():
    assert (shown(made(1) + EXPECT.format(48) + DONE.format(48) + look(0)) == 1).all()
    assert (
        shown(made(1) + EXPECT.format(48) + DONE.format(47) + look(0) + DONE.format(1)) == 0
    ).all()


def test_bytes_may_come_before_they_are_expected():
    assert (shown(made(1) + DONE.format(48) + EXPECT.format(48) + look(0)) == 1).all()


def test_expecting_alone_is_no_arrival():
    only = "    @%p7 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [bar], 16;\n"
    assert (shown(made(1) + only + DONE.format(16) + look(0)) == 0).all()
    assert (shown(made(1) + only + DONE.format(16) + LEADER + look(0)) == 1).all()


def test_the_transaction_count_has_its_range():
    most = (1 << 20) - 1
    fill = EXPECT.format(most)
    assert_twins(
        TransactionCount, made(2) + fill + EXPECT.format(1), made(2) + fill + DONE.format(most)
    )


# ---- waiting


WAIT = """
wait:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [bar], {};
    @!%p2 bra wait;
"""


@pytest.mark.parametrize("seed", range(4))
def test_a_wait_orders_what_was_written_before_the_arrival(seed):
    """Warp 1 reads what warp 0 wrote, with no other barrier between."""
    body = (
        made(32)
        + """
    .shared .align 4 .b8 tile[128];
    mov.u32 %r2, tile;
    and.b32 %r3, %r10, 31;
    mad.lo.u32 %r2, %r3, 4, %r2;
    setp.ge.u32 %p1, %r10, 32;
    @%p1 bra reader;
    st.shared.u32 [%r2], %r10;
    {}
    mov.u32 %r1, 0;
    bra end;
reader:
    {}
    ld.shared.u32 %r1, [%r2];
end:
    """
    )
    good = body.format(ARRIVE, WAIT.format(0))
    assert lanes(good, block=64, seed=seed).tolist() == [0] * 32 + list(range(32))
    unordered = body.format(ARRIVE.replace("arrive.", "arrive.relaxed.cta."), WAIT.format(0))
    with pytest.raises(DataRace):
        lanes(unordered, block=64, seed=seed)


def test_a_wait_that_nobody_ends_says_what_is_missing():
    with pytest.raises(Deadlock, match="lacks 1 of 33 arrivals"):
        run(made(33) + ARRIVE + WAIT.format(0))


def test_a_phase_that_a_warp_slept_through_cannot_be_told_by_parity():
    """Warp 1 saw phase 0, then asks for parity 1 when phases 1 to `phases` are over."""

    def body(phases: int) -> str:
        return (
            made(1)
            + f"""
    setp.ge.u32 %p1, %r10, 32;
    @%p1 bra sleeper;
    {LEADER}
    bar.sync 0;
    bar.sync 0;
    {LEADER * phases}
    bar.sync 0;
    bra end;
sleeper:
    bar.sync 0;
    mbarrier.test_wait.parity.shared::cta.b64 %p3, [bar], 0;
    bar.sync 0;
    bar.sync 0;
    mbarrier.test_wait.parity.shared::cta.b64 %p3, [bar], 1;
end:
    """
        )

    assert_twins(PhaseError, body(3), body(1), block=64)


# ---- misuse


def test_more_arrivals_than_the_phase_waits_for():
    twice = made(3) + "    @%p7 mbarrier.arrive.shared::cta.b64 %d9, [bar], {};\n"
    assert_twins(PhaseError, twice.format(4), twice.format(3))


def test_an_arrival_that_must_not_complete_a_phase():
    body = made(2) + "    @%p7 mbarrier.arrive.noComplete.shared::cta.b64 %d9, [bar], {};\n"
    assert_twins(IllegalInstruction, body.format(2), body.format(1))


@pytest.mark.parametrize("count", [0, 1 << 20])
def test_the_count_has_its_range(count):
    assert_twins(IllegalInstruction, made(count), made((1 << 20) - 1))


def test_a_barrier_is_made_once():
    again = "    @%p7 mbarrier.init.shared::cta.b64 [bar], 1;\n"
    inval = "    @%p7 mbarrier.inval.shared::cta.b64 [bar];\n"
    assert_twins(IllegalInstruction, made(1) + again, made(1) + inval + again)


def test_a_barrier_that_was_never_made():
    assert_twins(Uninitialized, BARRIER + LEADER, made(1) + LEADER)


def test_a_barrier_that_was_given_up():
    inval = "    @%p7 mbarrier.inval.shared::cta.b64 [bar];\n"
    assert_twins(Uninitialized, made(2) + inval + LEADER, made(2) + LEADER + inval)


def test_another_warps_barrier_is_used_behind_a_barrier():
    early = made(64).replace("bar.sync 0;", "") + ARRIVE
    with pytest.raises((DataRace, Uninitialized)):
        run(early, block=64)
    run(made(64) + ARRIVE, block=64)


@pytest.mark.parametrize(
    "touch", ["ld.shared.u32 %r1, [bar + 4];", "@%p7 st.shared.u32 [bar], %r10;"]
)
def test_ordinary_accesses_leave_a_live_barrier_alone(touch):
    apart = touch.replace("bar + 4", "bar + 12").replace("[bar]", "[bar + 8]")
    fill = "    @%p7 st.shared.u32 [bar + 12], %r10;\n    bar.sync 0;\n"
    assert_twins(IllegalInstruction, made(1) + fill + touch, made(1) + fill + apart)


def test_an_address_is_a_multiple_of_eight():
    good = made(1) + "    @%p7 mbarrier.arrive.shared::cta.b64 %d9, [%r11];\n"
    assert_twins(Misaligned, good.replace("[%r11]", "[%r11 + 4]"), good)


def test_a_parity_is_zero_or_one():
    body = made(1) + "    mov.u32 %r1, {};\n" + look(0).replace("[bar], 0", "[bar], %r1")
    assert_twins(IllegalInstruction, body.format(2), body.format(1))


def test_a_barrier_lies_in_shared_memory():
    out = np.zeros(4, np.uint64)
    body = made(1) + "    ld.param.u64 %d1, [p0];\n    @%p7 mbarrier.arrive.b64 %d9, [{}];\n"
    good = body.replace("[{}]", "[%d2]").replace(
        "    @%p7 mb", "    cvt.u64.u32 %d2, %r11;\n    cvta.shared.u64 %d2, %d2;\n    @%p7 mb"
    )
    assert_twins(WrongSpace, good.replace("[%d2]", "[%d1]"), good, out)


def test_unknown_words_are_refused():
    with pytest.raises((UnsupportedInstruction, IllegalInstruction)):
        run(made(1) + LEADER.replace("arrive.", "arrive.sideways."))


# ---- other blocks' barriers


REMOTE = (
    made(2)
    + """
    barrier.cluster.arrive.release.aligned;
    barrier.cluster.wait.acquire.aligned;
    mov.u32 %r3, %cluster_ctarank;
    xor.b32 %r3, %r3, {peer};
    mapa.shared::cluster.u32 %r4, %r11, %r3;
    @%p7 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r4];
    @%p7 mbarrier.arrive.shared::cta.b64 %d9, [bar];
wait:
    mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [bar], 0;
    @!%p2 bra wait;
    barrier.cluster.arrive.release.aligned;
    barrier.cluster.wait.acquire.aligned;
"""
)


@pytest.mark.parametrize("seed", range(3))
def test_blocks_of_a_cluster_arrive_at_each_others_barriers(seed):
    run(REMOTE.format(peer=1), cluster=2, grid=2, seed=seed)


def test_a_barrier_beyond_the_cluster():
    with pytest.raises(OutOfBounds):
        run(REMOTE.format(peer=2), cluster=2, grid=2)


def test_a_form_for_the_own_barrier_takes_no_other():
    wrong = REMOTE.replace(
        "arrive.release.cluster.shared::cluster.b64 _", "arrive.shared::cta.b64 %d9"
    )
    with pytest.raises(WrongSpace):
        run(wrong.format(peer=1), cluster=2, grid=2)
