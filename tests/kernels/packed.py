# SPDX-License-Identifier: Apache-2.0
"""Runs packed sequences on a device between poison and canaries, and judges each by itself."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, TypeVar

import numpy as np

import cufmha
from cufmha import testing
from cufmha.reference import Causal

T = TypeVar("T")
MARGIN = 5
"""Rows of canary in front of out and behind it."""
CANARY = 1.5


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Sequences of (queries, keys), with `lead` rows of none before them and `tail` after."""

    lengths: tuple[tuple[int, int], ...]
    head_dim: int = 64
    head_dim_v: int | None = None
    heads_q: int = 2
    heads_kv: int = 1
    dtype: str = "bf16"
    causal: Causal = False
    lead: int = 3
    tail: int = 4
    softmax_scale: float | None = None
    used: tuple[int, ...] | None = None
    poison: float = np.nan
    seed: int = 0

    @property
    def cu_q(self) -> np.ndarray:
        return np.array([*accumulate((q for q, _ in self.lengths), initial=self.lead)], np.int32)

    @property
    def cu_k(self) -> np.ndarray:
        return np.array([*accumulate((k for _, k in self.lengths), initial=self.lead)], np.int32)

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """q, k, v (tokens, heads, dim); rows of no sequence, and keys past `used`, are poison."""
        rows, keys = int(self.cu_q[-1]) + self.tail, int(self.cu_k[-1]) + self.tail
        found = testing.make_qkv(
            heads_q=self.heads_q, heads_kv=self.heads_kv, seqlen_q=rows, seqlen_k=keys,
            head_dim=self.head_dim, head_dim_v=self.head_dim_v, dtype=self.dtype, seed=self.seed,
        )  # fmt: skip
        q, k, v = (np.ascontiguousarray(x[0].swapaxes(0, 1)) for x in found)
        for array, offsets in ((q, self.cu_q), (k, self.cu_k), (v, self.cu_k)):
            array[: offsets[0]] = array[offsets[-1] :] = self.poison
        for array in (k, v) if self.used is not None else ():
            for (start, end), count in zip(pairwise(self.cu_k), self.used or (), strict=True):
                array[start + count : end] = self.poison
        return q, k, v


def run(
    device: Any, batch: Batch, arrays: tuple[np.ndarray, ...] | None = None, **options: Any
) -> tuple[np.ndarray, np.ndarray]:
    """out (tokens, heads, dim) and lse (heads, tokens), canaries where nothing was written."""
    q, k, v = batch.arrays() if arrays is None else arrays
    given: dict[str, Any] = {"cu_seqlens_q": batch.cu_q, "cu_seqlens_k": batch.cu_k}
    if batch.used is not None:
        given["seqused_k"] = np.array(batch.used, np.int32)
    given.update({k: v for k, v in options.items() if k in ("cu_seqlens_q", "cu_seqlens_k")})
    options = {k: v for k, v in options.items() if k not in given}
    shape = (len(q) + 2 * MARGIN, q.shape[1], v.shape[2])
    wide = device.put(np.full(shape, CANARY, q.dtype))
    lse = device.put(np.full((q.shape[1], len(q)), CANARY, np.float32))
    out = wide[MARGIN : MARGIN + len(q)]
    cufmha.attention_varlen(
        *(device.put(x) for x in (q, k, v)),
        **{name: device.put(array) for name, array in given.items()},
        causal=batch.causal, softmax_scale=batch.softmax_scale, out=out, lse=lse, **options,
    )  # fmt: skip
    all_rows = device.get(wide)
    margins = np.concatenate([all_rows[:MARGIN], all_rows[MARGIN + len(q) :]])
    assert (margins.astype(np.float32) == CANARY).all(), "written outside out"
    return all_rows[MARGIN : MARGIN + len(q)], device.get(lse)


def check(
    device: Any, batch: Batch, arrays: tuple[np.ndarray, ...] | None = None, **options: Any
) -> None:
    """Each sequence against float64 by itself, and nothing written anywhere else."""
    arrays = batch.arrays() if arrays is None else arrays
    judge(batch, arrays, *run(device, batch, arrays, **options))


def judge(
    batch: Batch,
    arrays: tuple[np.ndarray, ...],
    out: np.ndarray,
    lse: np.ndarray,
    sequences: Container[int] | None = None,
) -> None:
    """`check` of a result, of all sequences or of some."""
    q, k, v = arrays
    cu_q, cu_k = batch.cu_q, batch.cu_k
    owned = np.zeros(len(q), bool)
    for index, (queries, keys) in enumerate(batch.lengths):
        rows = slice(cu_q[index], cu_q[index + 1])
        keys = keys if batch.used is None else batch.used[index]
        owned[rows] = True
        if queries == 0 or (sequences is not None and index not in sequences):
            continue
        one = [
            x.swapaxes(0, 1)[None]
            for x in (q[rows], k[cu_k[index] :][:keys], v[cu_k[index] :][:keys])
        ]
        testing.assert_attention_close(
            out[rows].swapaxes(0, 1)[None], lse[None, :, rows], *one, causal=batch.causal,
            softmax_scale=batch.softmax_scale,
        )  # fmt: skip
    assert (out[~owned].astype(np.float32) == CANARY).all(), "rows of no sequence written"
    assert (lse[:, ~owned] == CANARY).all(), "lse of no sequence written"


def sized(device: Any, whole: T, small: T) -> T:
    """`whole` on a card; `small`, of the same structure, on the emulator."""
    return whole if device.name == "cuda" else small
