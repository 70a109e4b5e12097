# SPDX-License-Identifier: Apache-2.0
"""Runs the forward on a device with poisoned outputs and holds it to the accuracy rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import cufmha
from cufmha import testing
from cufmha.reference import Causal


@dataclass(frozen=True, kw_only=True)
class Case:
    """One problem; `str()` is its test id. Keys are not split unless it says so."""

    seqlen_q: int
    seqlen_k: int
    head_dim: int
    head_dim_v: int | None = None
    batch: int = 1
    heads_q: int = 1
    heads_kv: int = 1
    dtype: str = "bf16"
    causal: Causal = False
    layout: str = "bshd"
    softmax_scale: float | None = None
    spread: float = 1.0
    seed: int = 0
    num_splits: int | None = 1

    def __str__(self) -> str:
        mask = {False: "full", True: "causal", "top_left": "topleft"}[self.causal]
        heads = f"{self.heads_q}over{self.heads_kv}"
        scale = "" if self.softmax_scale is None else f"-scale{self.softmax_scale:g}"
        spread = "" if self.spread == 1 else f"-spread{self.spread:g}"
        value = "" if self.head_dim_v is None else f"x{self.head_dim_v}"
        splits = "" if self.num_splits == 1 else f"-splits{self.num_splits or 'chosen'}"
        return (
            f"{self.dtype}-d{self.head_dim}{value}-{mask}-b{self.batch}-h{heads}"
            f"-q{self.seqlen_q}-k{self.seqlen_k}-{self.layout}{scale}{spread}{splits}"
        )

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return testing.make_qkv(
            batch=self.batch,
            heads_q=self.heads_q,
            heads_kv=self.heads_kv,
            seqlen_q=self.seqlen_q,
            seqlen_k=self.seqlen_k,
            head_dim=self.head_dim,
            head_dim_v=self.head_dim_v,
            dtype=self.dtype,
            seed=self.seed,
            spread=self.spread,
        )


def laid_out(array: np.ndarray, layout: str) -> np.ndarray:
    """ "bhsd" to the given axis order, contiguous in it."""
    return array if layout == "bhsd" else np.ascontiguousarray(array.transpose(0, 2, 1, 3))


def back(array: np.ndarray, layout: str) -> np.ndarray:
    return array if layout == "bhsd" else array.transpose(0, 2, 1, 3)


def run(
    device: Any,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    causal: Causal = False,
    softmax_scale: float | None = None,
    layout: str = "bshd",
    num_splits: int | None = 1,
) -> tuple[np.ndarray, np.ndarray]:
    """out and lse in "bhsd" from "bhsd" inputs, through poisoned outputs of the caller's."""
    operands = [device.put(laid_out(x, layout)) for x in (q, k, v)]
    shape = (*laid_out(q, layout).shape[:3], v.shape[3])
    out = device.put(testing.poison(shape, q.dtype))
    lse = device.put(np.full(q.shape[:3], np.nan, np.float32))
    result = cufmha.attention(
        *operands,
        causal=causal,
        softmax_scale=softmax_scale,
        layout=layout,
        num_splits=num_splits,
        out=out,
        lse=lse,
        return_lse=True,
    )
    assert result[0] is out and result[1] is lse
    return back(device.get(out), layout), device.get(lse)


def check(device: Any, case: Case) -> None:
    q, k, v = case.arrays()
    out, lse = run(
        device, q, k, v, causal=case.causal, softmax_scale=case.softmax_scale, layout=case.layout,
        num_splits=case.num_splits,
    )  # fmt: skip
    testing.assert_attention_close(
        out, lse, q, k, v, causal=case.causal, softmax_scale=case.softmax_scale
    )
