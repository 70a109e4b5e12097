# SPDX-License-Identifier: Apache-2.0
"""The kernels that slow tests of texts look at.

All dense ones and all that prepare work; of those for packed sequences, which differ from them by
strategy and not by dtype or mask, the bfloat16 ones with a causal mask.
"""

from __future__ import annotations

from cufmha.kernels.catalog import KernelVariant, variants


def sampled(arch: str | None = None) -> list[KernelVariant]:
    return [v for v in variants(arch) if not v.strategy or (v.dtype == "bf16" and v.causal)]
