# SPDX-License-Identifier: Apache-2.0
"""Inputs and judgments for tests of attention: public, so that users can hold results to them.

All functions take NumPy arrays in "bhsd" order; bfloat16 is ml_dtypes' dtype.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import reference
from .reference import Causal

LSE_TOLERANCE = 1e-5
"""Largest |lse − exact| allowed, in units of max(1, |exact|)."""


def numpy_dtype(dtype: str) -> np.dtype:
    """The NumPy dtype of "bf16" or "f16"."""
    if dtype == "bf16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype({"f16": np.float16}[dtype])


def make_qkv(
    *,
    batch: int = 1,
    heads_q: int = 1,
    heads_kv: int | None = None,
    seqlen_q: int,
    seqlen_k: int | None = None,
    head_dim: int,
    head_dim_v: int | None = None,
    dtype: str = "bf16",
    seed: int = 0,
    spread: float = 1.0,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Normal random q, k, v in "bhsd"; `spread` multiplies q, so scores get that much further."""
    rng = np.random.default_rng(seed)
    heads_kv = heads_q if heads_kv is None else heads_kv
    seqlen_k = seqlen_q if seqlen_k is None else seqlen_k
    kind = numpy_dtype(dtype)

    def draw(heads: int, rows: int, columns: int, scale: float = 1.0) -> np.ndarray:
        values = rng.standard_normal((batch, heads, rows, columns), np.float32) * np.float32(scale)
        return values.astype(kind)

    return (
        draw(heads_q, seqlen_q, head_dim, spread),
        draw(heads_kv, seqlen_k, head_dim),
        draw(heads_kv, seqlen_k, head_dim_v or head_dim),
    )


def poison(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An array full of NaN, for outputs: what a kernel leaves unwritten shows."""
    return np.full(shape, np.nan, np.float32).astype(dtype)


def assert_attention_close(
    out: Any,
    lse: Any,
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: Causal = False,
    softmax_scale: float | None = None,
) -> None:
    """Hold a result to the project's accuracy rule; `lse` may be None.

    Per head, the largest |out − exact| may be at most twice that of `reference.unfused`, plus
    1e-4. |lse − exact| may be at most 1e-5·max(1, |exact|), and a row without keys must have out
    exactly 0 and lse −inf. `exact` is float64 on the given (rounded) inputs.

    Raises AssertionError naming the worst batch, head and row.
    """
    exact, exact_lse = reference.attention(q, k, v, causal=causal, softmax_scale=softmax_scale)
    yardstick = reference.unfused(q, k, v, causal=causal, softmax_scale=softmax_scale)
    got = np.asarray(out).astype(np.float64)
    if got.shape != exact.shape:
        raise AssertionError(f"out: shape {got.shape}, expected {exact.shape}")
    if exact.size:
        error = _error(got, exact)
        bound = 2 * _error(yardstick, exact).max(axis=(2, 3), keepdims=True) + 1e-4
        _require(error <= bound, error, bound, "out")
        empty = np.isneginf(exact_lse)
        if (got[empty] != 0).any():
            raise AssertionError("out: rows that see no key must be exactly 0")
    if lse is not None:
        assert_lse_close(lse, exact_lse)


def assert_lse_close(lse: Any, exact: np.ndarray) -> None:
    """|lse − exact| ≤ 1e-5·max(1, |exact|), −inf equal to −inf."""
    got = np.asarray(lse).astype(np.float64)
    if got.shape != exact.shape:
        raise AssertionError(f"lse: shape {got.shape}, expected {exact.shape}")
    empty = np.isneginf(exact)
    if not np.array_equal(np.isneginf(got), empty):
        raise AssertionError("lse: −inf exactly at the rows that see no key")
    error = np.abs(np.where(empty, 0, got) - np.where(empty, 0, exact))
    bound = LSE_TOLERANCE * np.maximum(1, np.abs(np.where(empty, 0, exact)))
    _require(error <= bound, error, bound, "lse")


def assert_bitwise_equal(actual: Any, expected: Any) -> None:
    """Equal bit for bit; the text gives the first difference's coordinate and both patterns."""
    a, b = np.ascontiguousarray(actual), np.ascontiguousarray(expected)
    if a.shape != b.shape or a.dtype != b.dtype:
        raise AssertionError(f"{a.dtype}{a.shape} against {b.dtype}{b.shape}")
    bits = np.dtype(f"u{a.dtype.itemsize}")
    different = np.argwhere(a.view(bits) != b.view(bits))
    if len(different):
        first = tuple(int(i) for i in different[0])
        raise AssertionError(
            f"{len(different)} of {a.size} elements differ, first at {first}: "
            f"{a[first]} ({a.view(bits)[first]:#x}) against {b[first]} ({b.view(bits)[first]:#x})"
        )


def _error(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """|a − b|, where NaN on either side counts as infinitely wrong."""
    return np.where(np.isnan(a) | np.isnan(b), np.inf, np.abs(a - b))


def _require(good: np.ndarray, error: np.ndarray, bound: np.ndarray, name: str) -> None:
    error = np.where(np.isnan(error), np.inf, error)
    good = good & np.isfinite(error)
    if not good.all():
        excess = np.where(good, -np.inf, error)
        worst = tuple(int(i) for i in np.unravel_index(int(excess.argmax()), error.shape))
        limit = np.broadcast_to(bound, error.shape)[worst]
        raise AssertionError(
            f"{name}: {int((~good).sum())} of {good.size} elements off; at (batch, head, row…) "
            f"{worst} the error is {error[worst]:.3g}, allowed {limit:.3g}"
        )
