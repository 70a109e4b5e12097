# SPDX-License-Identifier: Apache-2.0
"""Kernels in Triton's language, compiled for the emulator: products and attention."""

import triton
import triton.language as tl


@triton.jit
def plain(
    a, b, c, m, n, k, stride_a, stride_b, stride_c,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Pointers and masks, no tensor maps."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    depth = tl.arange(0, BK)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, k, BK):
        inside = start + depth < k
        x = tl.load(
            a + rows[:, None] * stride_a + (start + depth)[None, :],
            mask=(rows < m)[:, None] & inside[None, :], other=0.0,
        )  # fmt: skip
        y = tl.load(
            b + (start + depth)[:, None] * stride_b + columns[None, :],
            mask=inside[:, None] & (columns < n)[None, :], other=0.0,
        )  # fmt: skip
        total = tl.dot(x, y, total)
    tl.store(
        c + rows[:, None] * stride_c + columns[None, :], total.to(tl.bfloat16),
        mask=(rows < m)[:, None] & (columns < n)[None, :],
    )  # fmt: skip


@triton.jit
def mapped(
    a, b, c, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SPECIALIZED: tl.constexpr
):
    """Tensor maps from the host."""
    i, j = tl.program_id(0), tl.program_id(1)
    total = tl.zeros((BM, BN), tl.float32)
    for start in tl.range(0, k, BK, warp_specialize=SPECIALIZED):
        x = a.load([i * BM, start])
        y = b.load([start, j * BN])
        total = tl.dot(x, y, total)
    c.store([i * BM, j * BN], total.to(tl.bfloat16))


@triton.jit
def self_mapped(
    a, b, c, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """Tensor maps that the kernel makes itself, in scratch memory."""
    i, j = tl.program_id(0), tl.program_id(1)
    from_a = tl.make_tensor_descriptor(a, [m, k], [k, 1], [BM, BK])
    from_b = tl.make_tensor_descriptor(b, [k, n], [n, 1], [BK, BN])
    to_c = tl.make_tensor_descriptor(c, [m, n], [n, 1], [BM, BN])
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, k, BK):
        x = from_a.load([i * BM, start])
        y = from_b.load([start, j * BN])
        total = tl.dot(x, y, total)
    to_c.store([i * BM, j * BN], total.to(tl.bfloat16))


@triton.jit
def attention(
    q, k, v, o, keys, scale, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr,
    SPECIALIZED: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0)
    x = q.load([i * BM, 0])
    top = tl.full((BM,), -float("inf"), tl.float32)
    weight = tl.zeros((BM,), tl.float32)
    total = tl.zeros((BM, D), tl.float32)
    for start in tl.range(0, keys, BN, warp_specialize=SPECIALIZED):
        scores = tl.dot(x, k.load([start, 0]).T) * scale
        higher = tl.maximum(top, tl.max(scores, 1))
        p = tl.math.exp2(scores - higher[:, None])
        shrink = tl.math.exp2(top - higher)
        weight = weight * shrink + tl.sum(p, 1)
        total = total * shrink[:, None]
        total = tl.dot(p.to(tl.bfloat16), v.load([start, 0]), total)
        top = higher
    o.store([i * BM, 0], (total / weight[:, None]).to(tl.bfloat16))
