# SPDX-License-Identifier: Apache-2.0
"""Attention in NumPy float64, written for reading: what every kernel is compared with.

Arrays are "bhsd": q (batch, heads_q, seqlen_q, d), k (batch, heads_kv, seqlen_k, d),
v (batch, heads_kv, seqlen_k, d_v). Head h of q reads head h // (heads_q // heads_kv) of k and v.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

Causal = bool | Literal["top_left"]


def visible(seqlen_q: int, seqlen_k: int, *, causal: Causal = False) -> np.ndarray:
    """Which keys each query sees: bool (seqlen_q, seqlen_k).

    `causal=True` aligns the diagonal with the last key (bottom-right), "top_left" with the first.
    """
    if causal is False:
        return np.ones((seqlen_q, seqlen_k), bool)
    offset = 0 if causal == "top_left" else seqlen_k - seqlen_q
    return np.arange(seqlen_k) <= np.arange(seqlen_q)[:, None] + offset


def attention(
    q: Any, k: Any, v: Any, *, causal: Causal = False, softmax_scale: float | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """softmax(q·kᵀ·scale)·v and its natural log-sum-exp, both float64.

    Returns out (batch, heads_q, seqlen_q, d_v) and lse (batch, heads_q, seqlen_q). A query that
    sees no key gets out 0 and lse −inf.
    """
    scale = 1 / math.sqrt(q.shape[-1]) if softmax_scale is None else softmax_scale
    batch, heads_q, seqlen_q, _ = q.shape
    group = heads_q // k.shape[1]
    mask = visible(seqlen_q, k.shape[2], causal=causal)
    out = np.zeros((batch, heads_q, seqlen_q, v.shape[-1]))
    lse = np.full((batch, heads_q, seqlen_q), -np.inf)
    if not mask.any():
        return out, lse
    for b in range(batch):
        for h in range(heads_q):
            keys, values = _f64(k[b, h // group]), _f64(v[b, h // group])
            scores = np.where(mask, _f64(q[b, h]) @ keys.T * scale, -np.inf)
            out[b, h], lse[b, h] = _softmax_times(scores, values)
    return out, lse


def unfused(
    q: Any, k: Any, v: Any, *, causal: Causal = False, softmax_scale: float | None = None
) -> np.ndarray:
    """The same through 16-bit intermediates: the yardstick for a kernel's error.

    Scores, scaled scores, probabilities and output are each rounded to q's dtype, as a program
    does that stores every step.
    """
    scale = 1 / math.sqrt(q.shape[-1]) if softmax_scale is None else softmax_scale
    batch, heads_q, seqlen_q, _ = q.shape
    group = heads_q // k.shape[1]
    mask = visible(seqlen_q, k.shape[2], causal=causal)
    out = np.zeros((batch, heads_q, seqlen_q, v.shape[-1]))

    def rounded(x: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            return _f64(x.astype(np.float32).astype(q.dtype))

    for b in range(batch):
        for h in range(heads_q):
            keys, values = _f64(k[b, h // group]), _f64(v[b, h // group])
            scores = rounded(rounded(_f64(q[b, h]) @ keys.T) * scale)
            probabilities = rounded(softmax(np.where(mask, scores, -np.inf)))
            out[b, h] = rounded(probabilities @ values)
    return out


def softmax(scores: np.ndarray) -> np.ndarray:
    """Row-wise; a row of −inf alone gives zeros."""
    top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - np.where(np.isneginf(top), 0, top))
    total = weights.sum(axis=-1, keepdims=True)
    return weights / np.where(total == 0, 1, total)


def _softmax_times(scores: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Σⱼ exp(sⱼ − m)·vⱼ / l with m = max sⱼ and l = Σⱼ exp(sⱼ − m); lse = m + ln l."""
    top = scores.max(axis=-1)
    finite = np.where(np.isneginf(top), 0, top)
    weights = np.exp(scores - finite[:, None])
    total = weights.sum(axis=-1)
    seen = np.where(total == 0, 1, total)
    lse = np.where(total == 0, -np.inf, finite + np.log(seen))
    return weights @ values / seen[:, None], lse


def _f64(x: Any) -> np.ndarray:
    return np.asarray(x).astype(np.float64)
