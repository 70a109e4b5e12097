# SPDX-License-Identifier: Apache-2.0
"""Cluster launch control, and cp.async that arrives on an mbarrier."""

from __future__ import annotations

import numpy as np
import pytest
from snippets import run

from cufmha.errors import AsyncReuse, DataRace, MissingProxyFence, UnsupportedTarget

# each block counts the work it does, then takes over a block that has not started yet
STEAL = """
    .shared .align 16 .b8 answer[16];
    .shared .align 8 .b8 bar[8];
    .reg .b128 %q;
    ld.param.u64 %d0, [p0];
    mov.u32 %r0, %tid.x;
    setp.eq.u32 %p0, %r0, 0;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, 0;
    @%p0 mbarrier.init.shared::cta.b64 [bar], 1;
    @%p0 fence.mbarrier_init.release.cluster;
    @%p0 fence.proxy.async.shared::cta;
    bar.warp.sync -1;
work:
    mul.wide.u32 %d1, %r1, 4;
    add.u64 %d1, %d0, %d1;
    @%p0 red.global.add.u32 [%d1], 1;
    fence.proxy.async.shared::cta;
    bar.warp.sync -1;
    @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 %d2, [bar], 16;
    @%p0 clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [answer], [bar];
wait:
    mbarrier.try_wait.parity.shared::cta.b64 %p1, [bar], %r2;
    @!%p1 bra wait;
    xor.b32 %r2, %r2, 1;
    ld.shared.b128 %q, [answer];
    clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p2, %q;
    @!%p2 bra over;
    clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r1, %q;
    bra work;
over:
"""  # noqa: E501


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("grid", [1, 7, 40])
def test_every_block_of_the_grid_is_done_once_by_whoever_takes_it(grid, seed):
    out = np.zeros(grid, np.uint32)
    run(STEAL, out, grid=grid, arch="sm_100a", seed=seed)
    assert (out == 1).all()


def test_cluster_launch_control_is_not_on_hopper():
    with pytest.raises(UnsupportedTarget):
        run(STEAL, np.zeros(1, np.uint32), arch="sm_90a")


def test_the_answer_may_be_read_only_once_the_barrier_said_so():
    early = STEAL.replace("try_wait", "test_wait").replace("@!%p1 bra wait;", "")
    with pytest.raises(AsyncReuse):
        run(early, np.zeros(8, np.uint32), grid=8, arch="sm_100a", seed=1)


def test_a_read_of_the_answer_before_the_next_request_needs_a_proxy_fence():
    fence = "    fence.proxy.async.shared::cta;\n    bar.warp.sync -1;\n"
    unfenced = STEAL.replace(fence + "    @%p0 mb", "    @%p0 mb")
    with pytest.raises(MissingProxyFence):
        run(unfenced, np.zeros(80, np.uint32), grid=80, arch="sm_100a")


# warp 1 reads what warp 0's cp.async brings, told by the mbarrier alone
HANDED = """
    .shared .align 16 .b8 tile[512];
    .shared .align 8 .b8 bar[8];
    mov.u32 %r10, %tid.x;
    setp.eq.u32 %p0, %r10, 0;
    and.b32 %r9, %r10, 31;
    @%p0 mbarrier.init.shared::cta.b64 [bar], 32;
    bar.sync 0;
    mov.u32 %r11, tile;
    mad.lo.u32 %r11, %r9, 16, %r11;
    setp.ge.u32 %p1, %r10, 32;
    @%p1 bra reader;
    ld.param.u64 %d3, [p1];
    mul.wide.u32 %d4, %r9, 16;
    add.u64 %d3, %d3, %d4;
    cp.async.cg.shared.global [%r11], [%d3], 16;
    ARRIVE
    mov.u32 %r1, 0;
    cp.async.wait_all;
    bra end;
reader:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [bar], 0;
    @!%p2 bra reader;
    ld.shared.u32 %r1, [%r11];
end:
    ld.param.u64 %d1, [p0];
    mul.wide.u32 %d0, %r10, 4;
    add.u64 %d1, %d1, %d0;
    st.global.u32 [%d1], %r1;
"""


def handed(arrive: str, seed: int) -> np.ndarray:
    source = np.arange(128, dtype=np.uint32)
    body = HANDED.replace("ARRIVE", arrive)
    out = np.zeros(64, np.uint32)
    run(body, out, source, block=64, seed=seed)
    return out[32:]


@pytest.mark.parametrize("seed", range(4))
def test_an_arrival_by_cp_async_hands_over_its_data(seed):
    got = handed("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [bar];", seed)
    assert (got == np.arange(0, 128, 4)).all()


def test_an_ordinary_arrival_does_not():
    with pytest.raises((AsyncReuse, DataRace)):
        handed("mbarrier.arrive.shared::cta.b64 %d9, [bar];", 1)


def test_without_noinc_the_arrival_adds_itself_to_the_phase():
    """The count is 32 for the lanes' ordinary arrivals; the copies' own come on top."""
    both = """
    cp.async.mbarrier.arrive.shared::cta.b64 [bar];
    mbarrier.arrive.shared::cta.b64 %d9, [bar];
    """
    assert (handed(both, 1) == np.arange(0, 128, 4)).all()
