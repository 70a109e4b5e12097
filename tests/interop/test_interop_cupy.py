# SPDX-License-Identifier: Apache-2.0
"""CuPy arrays in and out. CuPy needs a card, so these run with `--device cuda` only."""

from __future__ import annotations

import numpy as np
import pytest

import cufmha
from cufmha import testing

pytestmark = pytest.mark.card


@pytest.fixture
def cupy():
    return pytest.importorskip("cupy", reason="CuPy is not installed")


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_cupy_arrays_give_cupy_arrays(cupy, dtype):
    q, k, v = testing.make_qkv(heads_q=4, heads_kv=2, seqlen_q=200, head_dim=64, dtype=dtype)
    with cufmha.use_device("cuda"):
        out, lse = cufmha.attention(
            *(cupy.asarray(x) for x in (q, k, v)), layout="bhsd", causal=True, return_lse=True
        )
    assert isinstance(out, cupy.ndarray) and out.dtype == q.dtype
    assert isinstance(lse, cupy.ndarray) and lse.dtype == np.float32
    testing.assert_attention_close(out.get(), lse.get(), q, k, v, causal=True)


def test_the_current_cupy_stream_is_used(cupy):
    """Work in a stream of its own: the inputs are made there just before the call."""
    host = testing.make_qkv(heads_q=2, seqlen_q=300, head_dim=128, dtype="f16")
    with cufmha.use_device("cuda"), cupy.cuda.Stream(non_blocking=True) as stream:
        q, k, v = (cupy.asarray(x) for x in host)
        out = cufmha.attention(q, k, v, layout="bhsd")
        result = out.get(stream=stream)
    testing.assert_attention_close(result, None, *host)
