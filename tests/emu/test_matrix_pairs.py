# SPDX-License-Identifier: Apache-2.0
"""tcgen05 over a pair of blocks: operands halved between them, accumulators in both, one commit."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from tensor_snippets import multiply, swizzled

from cufmha.emu import Module
from cufmha.errors import IllegalInstruction

RNG = np.random.default_rng(4)
IMAGE = 16384 + 2048
TEXT = """.version 8.8
.target sm_100f
.address_size 64
.extern .shared .align 1024 .b8 smem[];
.visible .entry k(.param .u64 p0, .param .u64 p1)
.reqntid 128
{
    .reg .pred %p, %leader, %more, %on;
    .reg .b32 %t, %w, %r<8>, %base, %slot, %bar, %tmem, %row, %low, %high, %rank, %d<32>;
    .reg .b64 %at, %index, %a, %b;
    .reg .b16 %both;
    mov.u32 %t, %tid.x;
    mov.u32 %rank, %cluster_ctarank;
    shr.u32 %w, %t, 5;
    mov.u32 %base, smem;
    add.u32 %bar, %base, IMAGE;
    add.u32 %slot, %base, IMAGE + 8;
    shl.b32 %row, %w, 21;
    ld.param.u64 %at, [p0];
    mad.lo.u32 %r1, %rank, IMAGE / 4, %t;
    mul.wide.u32 %index, %r1, 4;
    add.u64 %at, %at, %index;
    mad.lo.u32 %r0, %t, 4, %base;
    mov.u32 %r1, 0;
fill:
    ld.global.b32 %r2, [%at];
    st.shared.b32 [%r0], %r2;
    add.u64 %at, %at, 512;
    add.u32 %r0, %r0, 512;
    add.u32 %r1, %r1, 512;
    setp.lt.u32 %more, %r1, IMAGE;
    @%more bra fill;
    setp.eq.u32 %leader, %t, 0;
    @%leader mbarrier.init.shared::cta.b64 [%bar], 1;
    @%leader fence.mbarrier_init.release.cluster;
    setp.ne.u32 %on, %w, 0;
    @%on bra allocated;
    tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%slot], 64;
    tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;
allocated:
    fence.proxy.async.shared::cta;
    tcgen05.fence::before_thread_sync;
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    tcgen05.fence::after_thread_sync;
    ld.shared.b32 %tmem, [%slot];
    add.u32 %row, %row, %tmem;
    setp.eq.u32 %p, %rank, 0;
    and.pred %leader, %leader, %p;
    @!%leader bra issued;
PRODUCT
    mov.b16 %both, MASK;
    tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%bar], %both;
issued:
wait:
    mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p, [%bar], 0;
    @!%p bra wait;
    tcgen05.fence::after_thread_sync;
    tcgen05.ld.sync.aligned.32x32b.x16.b32 {%d0, %d1, %d2, %d3, %d4, %d5, %d6, %d7, %d8, %d9, %d10, %d11, %d12, %d13, %d14, %d15}, [%row];
    tcgen05.ld.sync.aligned.32x32b.x16.b32 {%d16, %d17, %d18, %d19, %d20, %d21, %d22, %d23, %d24, %d25, %d26, %d27, %d28, %d29, %d30, %d31}, [%row+SECOND];
    tcgen05.wait::ld.sync.aligned;
    ld.param.u64 %at, [p1];
    mad.lo.u32 %r1, %rank, 128, %t;
    mul.wide.u32 %index, %r1, 128;
    add.u64 %at, %at, %index;
STORE
    tcgen05.fence::before_thread_sync;
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    tcgen05.fence::after_thread_sync;
    @%on bra freed;
    tcgen05.dealloc.cta_group::2.sync.aligned.b32 %tmem, 64;
freed:
    ret;
}
"""  # noqa: E501


def run(m: int, *, seed: int = 0, mask: int = 3, group: int = 2) -> tuple[np.ndarray, ...]:
    """(answers [block, lane, column], A, B) of D[m x 32], K = 16, rows of A and B halved."""
    a, b = (RNG.integers(-4, 5, (rows, 64)).astype(np.float32) for rows in (m, 32))
    images = np.zeros((2, IMAGE), np.uint8)
    for block in range(2):
        for at, matrix in ((0, a), (16384, b)):
            half = len(matrix) // 2
            rows = matrix[block * half : block * half + half].astype(ml_dtypes.bfloat16)
            raw = swizzled(rows.view(np.uint8).reshape(half, 128))
            images[block, at : at + raw.size] = raw
    code = 0x490 | (32 >> 3) << 17 | (m >> 4) << 24
    store = "".join(f"    st.global.b32 [%at+{4 * i}], %d{i};\n" for i in range(32))
    text = TEXT.replace("PRODUCT", multiply(0, 16384, code, enable=False, group=group))
    text = text.replace("STORE", store).replace("SECOND", "16" if m == 256 else "0")
    text = text.replace("MASK", str(mask)).replace("IMAGE", str(IMAGE))
    out = np.zeros((2, 128, 32), np.float32)
    Module(text, arch="sm_100a", seed=seed).launch(
        "k", grid=(2,), block=(128,), cluster=(2,), args=[images, out],
        dynamic_smem_bytes=IMAGE + 64,
    )  # fmt: skip
    return out, a[:, :16], b[:, :16]


@pytest.mark.parametrize("seed", range(4))
def test_256_rows_are_shared_by_two_blocks(seed):
    got, a, b = run(256, seed=seed)
    assert (got.reshape(256, 32) == a @ b.T).all()


@pytest.mark.parametrize("seed", range(4))
def test_128_rows_lie_on_half_of_the_lanes_with_columns_split(seed):
    got, a, b = run(128, seed=seed)
    expected = (a @ b.T).reshape(2, 64, 2, 16)  # block, row, column half, column
    for block in range(2):
        for half in range(2):
            lanes = got[block, 64 * half : 64 * half + 64, :16]
            assert (lanes == expected[block, :, half]).all()


def test_a_mask_beyond_the_cluster_is_refused():
    with pytest.raises(IllegalInstruction, match="mask"):
        run(256, mask=5)


def test_one_kernel_uses_one_group_size():
    with pytest.raises(IllegalInstruction, match="cta_group"):
        run(128, group=1)
