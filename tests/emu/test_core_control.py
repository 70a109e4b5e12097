# SPDX-License-Identifier: Apache-2.0
"""Branches, divergence and reconvergence, calls, indexed branches, guards, exits."""

from __future__ import annotations

import numpy as np
import pytest
from snippets import kernel, lanes, run

from cufmha.emu import Module
from cufmha.errors import (
    ConvergenceError,
    Deadlock,
    IllegalInstruction,
    InvalidLaunch,
    UnsupportedInstruction,
    UnsupportedTarget,
)

LANE = np.arange(32, dtype=np.uint32)


def test_lanes_of_both_branches_meet_again_behind_them():
    got = lanes(
        """
        setp.lt.u32 %p1, %r2, 10;
        @%p1 bra low;
        add.u32 %r1, %r2, 100;
        bra join;
        low:
        add.u32 %r1, %r2, 200;
        join:
        vote.sync.ballot.b32 %r4, %p1, 0xffffffff;
        add.u32 %r1, %r1, %r4;
        """,
        LANE,
    )
    assert (got == np.where(LANE < 10, LANE + 200, LANE + 100) + 0x3FF).all()


def test_a_loop_runs_as_often_as_each_lane_asks():
    got = lanes(
        """
        mov.u32 %r1, 0;
        mov.u32 %r4, 0;
        setp.eq.u32 %p1, %r2, 0;
        @%p1 bra done;
        again:
        add.u32 %r1, %r1, %r2;
        add.u32 %r4, %r4, 1;
        setp.lt.u32 %p2, %r4, %r2;
        @%p2 bra again;
        done:
        """,
        LANE,
    )
    assert (got == LANE * LANE).all()


def test_a_negated_guard_executes_where_the_predicate_is_false():
    got = lanes(
        """
        setp.gt.u32 %p1, %r2, 15;
        mov.u32 %r1, 1;
        @!%p1 mov.u32 %r1, 7;
        """,
        LANE,
    )
    assert (got == np.where(LANE > 15, 1, 7)).all()


def test_an_indexed_branch_sends_each_lane_to_its_label():
    got = lanes(
        """
        targets: .branchtargets first, second, third;
        rem.u32 %r4, %r2, 3;
        mov.u32 %r1, 0;
        brx.idx %r4, targets;
        first: mov.u32 %r1, 10; bra join;
        second: mov.u32 %r1, 20; bra join;
        third: mov.u32 %r1, 30;
        join:
        """,
        LANE,
    )
    assert (got == (LANE % 3 + 1) * 10).all()


def test_an_index_beyond_the_list_is_an_error():
    with pytest.raises(IllegalInstruction, match="beyond the list"):
        lanes("targets: .branchtargets a;\nmov.u32 %r1, 0;\nbrx.idx %r2, targets;\na:", LANE)


FUNCTION = """
.func (.reg .b32 %out) twice_plus (.reg .b32 %a, .reg .b32 %b)
{
    .reg .pred %big;
    setp.gt.u32 %big, %a, 20;
    mov.u32 %out, 1;
    @%big ret;
    mad.lo.u32 %out, %a, 2, %b;
    ret;
}
"""


def test_a_function_with_registers_returns_its_result_and_may_return_early():
    got = lanes("call (%r1), twice_plus, (%r2, %r2);", LANE, before=FUNCTION)
    assert (got == np.where(LANE > 20, 1, LANE * 3)).all()


def test_a_function_is_called_twice_with_different_arguments():
    got = lanes(
        "call (%r4), twice_plus, (%r2, %r2);\ncall (%r1), twice_plus, (%r4, 5);",
        LANE % 4,
        before=FUNCTION,
    )
    assert (got == (LANE % 4) * 6 + 5).all()


def test_a_function_with_param_space_arguments():
    function = """
    .func (.param .b32 out) scaled (.param .b32 a, .param .b32 b)
    {
        .reg .b32 %x, %y;
        ld.param.b32 %x, [a];
        ld.param.b32 %y, [b];
        mul.lo.u32 %x, %x, %y;
        st.param.b32 [out], %x;
        ret;
    }
    """
    got = lanes(
        """
        {
        .param .b32 first;
        .param .b32 second;
        .param .b32 result;
        st.param.b32 [first], %r2;
        st.param.b32 [second], 3;
        call (result), scaled, (first, second);
        ld.param.b32 %r1, [result];
        }
        """,
        LANE,
        before=function,
    )
    assert (got == LANE * 3).all()


def test_an_inner_scope_hides_the_registers_of_the_outer_one():
    got = lanes(
        """
        mov.u32 %r1, 5;
        { .reg .b32 %r1; mov.u32 %r1, 9; }
        """
    )
    assert (got == 5).all()


def test_threads_that_leave_early_keep_what_they_wrote():
    out = np.zeros(32, np.uint32)
    run(
        """
        mov.u32 %r0, %tid.x;
        mul.wide.u32 %d0, %r0, 4;
        ld.param.u64 %d1, [p0];
        add.u64 %d1, %d1, %d0;
        st.global.u32 [%d1], 1;
        setp.lt.u32 %p1, %r0, 5;
        @%p1 exit;
        st.global.u32 [%d1], 2;
        ret;
        """,
        out,
    )
    assert (out == np.where(LANE < 5, 1, 2)).all()


def test_trap_stops_the_launch_and_says_where():
    with pytest.raises(IllegalInstruction, match="trap") as raised:
        run("mov.u32 %r0, %tid.x;\nsetp.eq.u32 %p1, %r0, 3;\n@%p1 trap;\nret;")
    assert raised.value.lanes == (3,)
    assert raised.value.kernel == "k"
    assert raised.value.line is not None


@pytest.mark.parametrize("seed", [0, 3])
def test_a_diverged_spin_lock_between_lanes_of_a_warp_makes_progress(seed):
    cells = np.zeros(2, np.uint32)
    run(
        """
        ld.param.u64 %d0, [p0];
        again:
        atom.global.acquire.gpu.cas.b32 %r1, [%d0], 0, 1;
        setp.ne.u32 %p1, %r1, 0;
        @%p1 bra again;
        ld.relaxed.gpu.global.u32 %r2, [%d0+4];
        add.u32 %r2, %r2, 1;
        st.relaxed.gpu.global.u32 [%d0+4], %r2;
        atom.global.release.gpu.exch.b32 %r3, [%d0], 0;
        ret;
        """,
        cells,
        block=36,
        seed=seed,
    )
    assert cells.tolist() == [0, 36]


def test_a_shuffle_in_only_one_branch_is_a_convergence_error():
    with pytest.raises((ConvergenceError, Deadlock)):
        lanes(
            """
            setp.lt.u32 %p1, %r2, 16;
            mov.u32 %r1, 0;
            @!%p1 bra skip;
            shfl.sync.bfly.b32 %r1, %r2, 1, 31, 0xffffffff;
            bra skip;
            skip:
            @%p1 bar.warp.sync 0xffff;
            """,
            LANE,
        )


@pytest.mark.parametrize(
    ("body", "error", "text"),
    [
        ("bra nowhere;", IllegalInstruction, "nowhere"),
        ("mov.u32 %r99, 1;", IllegalInstruction, "%r99"),
        ("frobnicate.u32 %r1, %r1, 1;", UnsupportedInstruction, "frobnicate"),
        ("call missing, ();", UnsupportedInstruction, "missing"),
    ],
)
def test_what_cannot_be_executed_is_named_when_the_entry_is_loaded(body, error, text):
    with pytest.raises(error, match=text):
        run(body)


def test_text_for_another_target_is_refused():
    text = kernel("ret;", target="sm_90a")
    with pytest.raises(UnsupportedTarget, match="sm_90a"):
        Module(text, arch="sm_100a")
    Module(text, arch="sm_90a").launch("k", block=(1,))


def test_family_text_runs_on_both_chips_of_the_family():
    text = kernel("ret;", target="sm_100f")
    for arch in ("sm_100a", "sm_103a"):
        Module(text, arch=arch).launch("k", block=(32,))
    with pytest.raises(UnsupportedTarget):
        Module(text, arch="sm_90a")


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"block": (1025,)}, "block"),
        ({"block": (0,)}, "block"),
        ({"grid": (3,), "block": (32,), "cluster": (2,)}, "cluster"),
        ({"block": (32,), "dynamic_smem_bytes": 240 * 1024}, "shared memory"),
        ({"block": (32,), "args": [np.int32(1)]}, "argument"),
    ],
)
def test_a_launch_that_does_not_fit_is_refused(options, word):
    with pytest.raises(InvalidLaunch, match=word):
        Module(kernel("ret;"), arch="sm_90a").launch("k", **options)


def test_reqntid_fixes_the_block():
    module = Module(kernel("ret;", directives=".reqntid 64"), arch="sm_90a")
    module.launch("k", block=(64,))
    with pytest.raises(InvalidLaunch, match="requires"):
        module.launch("k", block=(32,))


def test_special_registers_describe_the_thread_and_its_place():
    names = ["%tid.x", "%tid.y", "%ntid.y", "%ctaid.x", "%nctaid.x", "%laneid", "%warpid",
             "%cluster_ctarank", "%clusterid.x", "%lanemask_lt"]  # fmt: skip
    out = np.zeros((4, 48, len(names)), np.uint32)
    stores = "\n".join(
        f"mov.u32 %r5, {name};\nst.global.u32 [%d1+{4 * i}], %r5;" for i, name in enumerate(names)
    )
    body = f"""
        mov.u32 %r0, %tid.x;
        mov.u32 %r1, %tid.y;
        mov.u32 %r2, %ctaid.x;
        mad.lo.u32 %r0, %r1, 16, %r0;
        mad.lo.u32 %r0, %r2, 48, %r0;
        mul.wide.u32 %d0, %r0, {4 * len(names)};
        ld.param.u64 %d1, [p0];
        add.u64 %d1, %d1, %d0;
        {stores}
        ret;
    """
    Module(kernel(body, (out,)), arch="sm_90a").launch(
        "k", grid=(4,), block=(16, 3), args=[out], cluster=(2,)
    )
    thread = np.arange(48)
    for block in range(4):
        columns = [thread % 16, thread // 16, 3, block, 4, thread % 32, thread // 32, block % 2,
                   block // 2, (1 << (thread % 32)) - 1]  # fmt: skip
        for number, expected in enumerate(columns):
            assert (out[block, :, number] == expected).all(), names[number]
