# SPDX-License-Identifier: Apache-2.0
"""JAX arrays in and out, on the emulator (CPU build) and, where asked for, on a card."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import cufmha
from cufmha import testing
from cufmha.array import dlpack
from cufmha.errors import ArgumentError, DTypeError

jax = pytest.importorskip("jax", reason="jax is not installed")
jnp = pytest.importorskip("jax.numpy", reason="jax is not installed")


def operands(dtype=None, rows=70, keys=90):
    shapes = ((2, rows, 4, 64), (2, keys, 2, 64), (2, keys, 2, 64))
    keys_ = jax.random.split(jax.random.key(0), 3)
    return [
        jax.random.normal(k, s, dtype or jnp.bfloat16) for k, s in zip(keys_, shapes, strict=True)
    ]


@pytest.fixture
def emulated():
    cpu = jax.devices("cpu")[0]  # where JAX has a card, its arrays would be there
    with jax.default_device(cpu), cufmha.use_device("emulator", arch="sm_90a"):
        yield


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_jax_arrays_give_jax_arrays(emulated, dtype):
    q, k, v = operands(jnp.dtype(dtype))
    out, lse = cufmha.attention(q, k, v, return_lse=True, causal=True)
    assert isinstance(out, jax.Array) and out.dtype == q.dtype and out.shape == q.shape
    assert isinstance(lse, jax.Array) and lse.dtype == jnp.float32
    testing.assert_attention_close(
        np.asarray(out).transpose(0, 2, 1, 3),
        np.asarray(lse),
        *(np.asarray(x).transpose(0, 2, 1, 3) for x in (q, k, v)),
        causal=True,
    )


def test_results_live_as_long_as_jax_wants_them(emulated):
    q, k, v = operands(rows=8, keys=8)
    before = len(dlpack._exported)
    out = cufmha.attention(q, k, v)
    copy = np.asarray(out).copy()
    gc.collect()
    junk = [np.ones(out.nbytes, np.uint8) for _ in range(50)]
    assert (np.asarray(out) == copy).all() and len(junk) == 50
    del out
    gc.collect()
    assert len(dlpack._exported) == before


def test_a_jax_array_is_no_out(emulated):
    q, k, v = operands(rows=8, keys=8)
    with pytest.raises(ArgumentError, match="out: must be writable, got a JAX array"):
        cufmha.attention(q, k, v, out=jnp.zeros_like(q))
    with pytest.raises(ArgumentError, match="lse: must be writable, got a JAX array"):
        cufmha.attention(q, k, v, lse=jnp.zeros((2, 4, 8), jnp.float32))


def test_a_tracer_is_refused_by_name(emulated):
    q, k, v = operands(rows=8, keys=8)
    with pytest.raises(DTypeError, match="q: is a JAX tracer"):
        jax.jit(cufmha.attention)(q, k, v)
    with pytest.raises(DTypeError, match="k: is a JAX tracer"):
        jax.grad(lambda k: cufmha.attention(q, k, v).sum())(k)


@pytest.mark.card
def test_jax_arrays_on_a_card_give_jax_arrays_there():
    if jax.default_backend() != "gpu":
        pytest.skip("this JAX has no card")
    with cufmha.use_device("cuda"):
        q, k, v = operands(rows=300, keys=500)
        for _ in range(3):
            out, lse = cufmha.attention(q + 0, k + 0, v + 0, return_lse=True)
        assert isinstance(out, jax.Array) and out.devices() == q.devices()
        testing.assert_attention_close(
            np.asarray(out).transpose(0, 2, 1, 3),
            np.asarray(lse),
            *(np.asarray(x).transpose(0, 2, 1, 3) for x in (q, k, v)),
        )


def test_a_deleted_array_is_refused_by_name(emulated):
    q, k, v = operands(rows=8, keys=8)
    k.delete()
    with pytest.raises(DTypeError, match="k: is a JAX array that has been deleted or donated"):
        cufmha.attention(q, k, v)
