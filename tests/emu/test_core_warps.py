# SPDX-License-Identifier: Apache-2.0
"""What lanes of a warp do together, and who must take part."""

from __future__ import annotations

import numpy as np
import pytest
from snippets import assert_twins, lanes, run

from cufmha.errors import (
    ConvergenceError,
    Deadlock,
    IllegalInstruction,
    UnsupportedTarget,
)

LANE = np.arange(32, dtype=np.uint32)
VALUES = np.random.default_rng(1).integers(0, 2**32, 32, np.uint32)


@pytest.mark.parametrize(
    ("mode", "b", "c", "source"),
    [
        ("idx", 5, 31, LANE * 0 + 5),
        ("bfly", 3, 31, LANE ^ 3),
        ("up", 2, 0, np.where(LANE >= 2, LANE - 2, LANE)),
        ("down", 4, 31, np.where(LANE + 4 <= 31, LANE + 4, LANE)),
        ("idx", 1, 0x181F, (LANE & 24) | 1),
        ("down", 1, 0x181F, np.where(LANE % 8 < 7, LANE + 1, LANE)),
        ("up", 1, 0x1800, np.where(LANE % 8 > 0, LANE - 1, LANE)),
    ],
)
def test_shuffles_read_the_named_lane_of_their_segment(mode, b, c, source):
    got = lanes(f"shfl.sync.{mode}.b32 %r1, %r2, {b}, {c}, 0xffffffff;", VALUES)
    assert (got == VALUES[source]).all()


def test_a_shuffles_predicate_tells_whether_the_lane_was_within_its_segment():
    got = lanes("shfl.sync.down.b32 %r1|%p1, %r2, 8, 31, -1;\nselp.u32 %r1, 1, 0, %p1;", VALUES)
    assert got.tolist() == [1] * 24 + [0] * 8


def test_half_a_warp_shuffles_among_itself():
    got = lanes(
        """
        mov.u32 %r1, 0;
        setp.lt.u32 %p1, %r2, 16;
        @%p1 shfl.sync.bfly.b32 %r1, %r2, 1, 31, 0xffff;
        """,
        LANE,
    )
    assert (got == np.where(LANE < 16, LANE ^ 1, 0)).all()


def test_both_halves_of_a_diverged_warp_shuffle_with_masks_of_their_own():
    got = lanes(
        """
        setp.lt.u32 %p1, %r2, 16;
        mov.u32 %r4, 0xffff0000;
        @%p1 mov.u32 %r4, 0x0000ffff;
        shfl.sync.bfly.b32 %r1, %r2, 1, 31, %r4;
        """,
        LANE,
    )
    assert (got == LANE ^ 1).all()


def test_a_shuffle_waits_for_lanes_that_took_another_way():
    got = lanes(
        """
        setp.lt.u32 %p1, %r2, 8;
        mov.u32 %r4, %r2;
        @%p1 bra other;
        add.u32 %r4, %r4, 1000;
        bra join;
        other:
        add.u32 %r4, %r4, 2000;
        join:
        shfl.sync.bfly.b32 %r1, %r4, 8, 31, 0xffffffff;
        """,
        LANE,
    )
    other = LANE ^ 8
    assert (got == np.where(other < 8, other + 2000, other + 1000)).all()


def test_reading_a_lane_that_does_not_take_part_is_an_error():
    body = """
        mov.u32 %r0, %laneid;
        setp.lt.u32 %p1, %r0, 16;
        @%p1 shfl.sync.bfly.b32 %r1, %r0, {}, 31, 0xffff;
    """
    error = assert_twins(ConvergenceError, body.format(16), body.format(8))
    assert error.lanes == tuple(range(16))


def test_a_lane_outside_its_own_member_mask_is_an_error():
    body = "mov.u32 %r0, %laneid;\nshfl.sync.idx.b32 %r1, %r0, 0, 31, {};"
    assert_twins(IllegalInstruction, body.format("0xfffffffe"), body.format("0xffffffff"))


def test_a_member_that_never_comes_is_reported():
    body = """
        mov.u32 %r0, %laneid;
        setp.eq.u32 %p1, %r0, 31;
        @%p1 bra end;
        vote.sync.any.pred %p2, %p1, {};
        end:
        {}
        ret;
    """
    wait = "barrier.sync 0;"
    assert_twins(
        (ConvergenceError, Deadlock), body.format("0xffffffff", wait),
        body.format("0x7fffffff", wait),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("form", "bits", "expected"),
    [("all", 0xFFFFFFFF, 1), ("all", 0xFFFFFFFE, 0), ("any", 4, 1), ("any", 0, 0),
     ("uni", 0, 1), ("uni", 0xFFFFFFFF, 1), ("uni", 9, 0)],
)  # fmt: skip
def test_votes_count_every_lane(form, bits, expected):
    votes = (np.uint32(bits) >> LANE) & 1
    got = lanes(
        f"""
        setp.ne.u32 %p1, %r2, 0;
        vote.sync.{form}.pred %p2, %p1, 0xffffffff;
        selp.u32 %r1, 1, 0, %p2;
        """,
        votes,
    )
    assert (got == expected).all()


def test_a_ballot_collects_the_predicates():
    got = lanes("setp.gt.u32 %p1, %r2, 20;\nvote.sync.ballot.b32 %r1, !%p1, 0xffffffff;", LANE)
    assert (got == 0x1FFFFF).all()


def test_match_any_finds_lanes_of_equal_value():
    got = lanes("match.any.sync.b32 %r1, %r2, -1;", LANE % 3)
    expected = [sum(1 << j for j in range(32) if j % 3 == i % 3) for i in range(32)]
    assert got.tolist() == expected


def test_match_all_says_whether_all_lanes_agree():
    for values, mask in ((LANE * 0 + 9, 0xFFFFFFFF), (LANE, 0)):
        got = lanes("match.all.sync.b32 %r1|%p1, %r2, -1;", values)
        assert (got == mask).all()


@pytest.mark.parametrize(
    ("form", "expected"),
    [("add.u32", int(VALUES.sum(dtype=np.uint32))), ("min.u32", int(VALUES.min())),
     ("max.s32", int(VALUES.view(np.int32).max()) % 2**32),
     ("xor.b32", int(np.bitwise_xor.reduce(VALUES)))],
)  # fmt: skip
def test_redux_folds_the_warp(form, expected):
    assert (lanes(f"redux.sync.{form} %r1, %r2, 0xffffffff;", VALUES) == expected).all()


def test_redux_of_floats_is_for_blackwell():
    values = np.array([1.5, -7, np.nan, 3] * 8, np.float32).view(np.uint32)
    text = "redux.sync.max{}.f32 %r1, %r2, 0xffffffff;"
    got = lanes(text.format(".abs"), values, arch="sm_100a")
    assert (got.view(np.float32) == 7).all()
    assert np.isnan(lanes(text.format(".NaN"), values, arch="sm_100a").view(np.float32)).all()
    with pytest.raises(UnsupportedTarget):
        lanes(text.format(""), values)


def test_elect_picks_the_lowest_member_and_tells_all_of_them():
    got = lanes(
        """
        mov.u32 %r4, 0;
        setp.ne.u32 %p1, %r4, 0;
        setp.gt.u32 %p3, %r2, 3;
        @%p3 elect.sync %r4|%p1, 0xfffffff0;
        selp.u32 %r1, 100, 0, %p1;
        add.u32 %r1, %r1, %r4;
        """,
        LANE,
    )
    assert got.tolist() == [0, 0, 0, 0, 104] + [4] * 27


def test_the_active_mask_shows_who_is_in_this_branch():
    got = lanes(
        """
        mov.u32 %r1, 0;
        setp.lt.u32 %p1, %r2, 6;
        @!%p1 bra end;
        activemask.b32 %r1;
        end:
        """,
        LANE,
    )
    assert got.tolist() == [63] * 6 + [0] * 26


def test_warp_functions_without_sync_ended_with_older_chips():
    with pytest.raises(UnsupportedTarget):
        run("mov.u32 %r1, 0;\nshfl.bfly.b32 %r1, %r1, 1, 31;")
