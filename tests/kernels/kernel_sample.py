# SPDX-License-Identifier: Apache-2.0
"""The kernels that slow tests of texts look at.

All dense ones and all that prepare or merge work; of those for packed sequences, which differ from
them by strategy and not by dtype or mask, the bfloat16 ones with a causal mask, and of those for
split keys the one of these with head_dim 128.
"""

from __future__ import annotations

from cufmha.kernels.catalog import KernelVariant, variants


def sampled(arch: str | None = None) -> list[KernelVariant]:
    return [v for v in variants(arch) if _is_sampled(v)]


def _is_sampled(variant: KernelVariant) -> bool:
    if not (variant.strategy or variant.split_kv):
        return True
    narrow = variant.dtype == "bf16" and variant.causal
    return narrow and (not variant.split_kv or variant.head_dim == variant.head_dim_v == 128)
