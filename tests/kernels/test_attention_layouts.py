# SPDX-License-Identifier: Apache-2.0
"""Views of every kind are read and written in place: strides, slices, interleaved buffers."""

from __future__ import annotations

import numpy as np
import pytest

import cufmha
from cufmha import testing

B, H, S, D = 2, 2, 150, 64


def small(dtype="bf16", **changes):
    return testing.make_qkv(
        **{"batch": B, "heads_q": H, "seqlen_q": S, "head_dim": D, "dtype": dtype, **changes}
    )


def to_bhsd(x):
    return np.asarray(x).transpose(0, 2, 1, 3)


def test_q_k_v_and_out_interleaved_in_one_buffer(device):
    """(batch, seqlen, heads, 4, d) holds q, k, v and out side by side, none copied."""
    q, k, v = small()
    packed = testing.poison((B, S, H, 4, D), q.dtype)
    for i, x in enumerate((q, k, v)):
        packed[:, :, :, i] = x.transpose(0, 2, 1, 3)
    packed = device.put(packed)
    parts = [packed[:, :, :, i] for i in range(4)]
    out = cufmha.attention(*parts[:3], out=parts[3])
    assert out is parts[3]
    testing.assert_attention_close(to_bhsd(device.get(packed)[:, :, :, 3]), None, q, k, v)
    for i, x in enumerate((q, k, v)):
        testing.assert_bitwise_equal(to_bhsd(device.get(packed)[:, :, :, i]), x)


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_a_transposed_view_is_as_good_as_a_contiguous_array(device, layout):
    """The memory is in the other order than the axes; results agree bit for bit."""
    q, k, v = small(dtype="f16")
    other = [
        device.put(x if layout == "bshd" else x.transpose(0, 2, 1, 3).copy()) for x in (q, k, v)
    ]
    views = [transposed(x) for x in other]
    plain = [
        device.put(x if layout == "bhsd" else x.transpose(0, 2, 1, 3).copy()) for x in (q, k, v)
    ]
    out = cufmha.attention(*views, layout=layout)
    expected = cufmha.attention(*plain, layout=layout)
    testing.assert_bitwise_equal(device.get(out), device.get(expected))


def transposed(x):
    """Axes 1 and 2 swapped as a view; NumPy and torch spell it differently."""
    return x.swapaxes(1, 2) if isinstance(x, np.ndarray) else x.transpose(1, 2)


def test_slices_of_larger_arrays(device):
    """Every second row, a window of heads, the middle of the head dimension."""
    q, k, v = small()
    big = [np.full((B, 2 * S, H + 3, D + 48), 7, np.float32).astype(q.dtype) for _ in range(4)]
    for x, buffer in zip((q, k, v), big, strict=False):
        buffer[:, ::2, 2 : 2 + H, 16 : 16 + D] = x.transpose(0, 2, 1, 3)
    views = [device.put(b)[:, ::2, 2 : 2 + H, 16 : 16 + D] for b in big[:3]]
    target = device.put(big[3])
    cufmha.attention(*views, out=target[:, ::2, 2 : 2 + H, 16 : 16 + D])
    written = device.get(target)
    testing.assert_attention_close(to_bhsd(written[:, ::2, 2 : 2 + H, 16 : 16 + D]), None, q, k, v)
    written[:, ::2, 2 : 2 + H, 16 : 16 + D] = 7
    assert (written == 7).all(), "an element outside `out` was written"


def test_stride_zero_shares_one_k_and_v_over_the_batch(device):
    q, k, v = small()
    k, v = k[:1], v[:1]
    dk, dv = (device.put(x) for x in (k, v))
    if isinstance(dk, np.ndarray):
        dk, dv = (np.broadcast_to(x, (B, *x.shape[1:])) for x in (dk, dv))
    else:
        dk, dv = (x.expand(B, -1, -1, -1) for x in (dk, dv))
    out = cufmha.attention(device.put(q), dk, dv, layout="bhsd")
    tiled = [np.repeat(x, B, axis=0) for x in (k, v)]
    testing.assert_attention_close(device.get(out), None, q, *tiled)


def test_rows_outside_out_are_not_touched(device):
    """`out` is the middle of a buffer of sentinels; not one of them changes."""
    q, k, v = small(seqlen_q=130, seqlen_k=70)
    buffer = np.full((B, H, 130 + 256, D), 3, np.float32).astype(q.dtype)
    target = device.put(buffer)
    cufmha.attention(*(device.put(x) for x in (q, k, v)), layout="bhsd", out=target[:, :, 128:258])
    written = device.get(target)
    testing.assert_attention_close(written[:, :, 128:258], None, q, k, v)
    assert (written[:, :, :128] == 3).all() and (written[:, :, 258:] == 3).all()


def test_lse_may_be_a_strided_view(device):
    q, k, v = small()
    buffer = device.put(np.full((B, H + 2, S + 10), 9, np.float32))
    out, lse = cufmha.attention(
        *(device.put(x) for x in (q, k, v)),
        layout="bhsd",
        lse=buffer[:, 1 : 1 + H, 5 : 5 + S],
        return_lse=True,
    )
    testing.assert_attention_close(device.get(out), device.get(lse), q, k, v)
    written = device.get(buffer).copy()
    written[:, 1 : 1 + H, 5 : 5 + S] = 9
    assert (written == 9).all()


def test_many_batches_and_heads(device):
    """More than 65,535 (batch, head) pairs at the real size, which the card runs."""
    batch, heads = (300, 220) if device.name == "cuda" else (3, 7)
    q, k, v = testing.make_qkv(batch=batch, heads_q=heads, seqlen_q=40, seqlen_k=33, head_dim=8)
    out, lse = cufmha.attention(*(device.put(x) for x in (q, k, v)), layout="bhsd", return_lse=True)
    pick = np.s_[-2:]
    testing.assert_attention_close(
        device.get(out)[pick], device.get(lse)[pick], q[pick], k[pick], v[pick]
    )


@pytest.mark.card
@pytest.mark.archs()
def test_elements_beyond_the_reach_of_32_bits(device):
    """The last batch of every operand, and the result, start 2^31 elements behind the first."""
    torch = device.torch
    q, k, v = small(batch=5, seqlen_q=300)
    span = 2**29
    buffers = [torch.full((5, span), 7, dtype=torch.bfloat16, device="cuda") for _ in range(4)]
    count = H * 300 * D
    views = [b[:, :count].view(5, H, 300, D) for b in buffers]
    for view, x in zip(views, (q, k, v), strict=False):
        view.copy_(device.put(x))
    cufmha.attention(*views[:3], layout="bhsd", out=views[3])
    testing.assert_attention_close(device.get(views[3].contiguous()), None, q, k, v)
    assert bool((buffers[3][:, count:] == 7).all())
