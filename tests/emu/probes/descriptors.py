# SPDX-License-Identifier: Apache-2.0
"""Tensor maps whose 128 bytes the driver has written down, at one fixed address."""

from __future__ import annotations

from .base import Descriptor
from .tensors import PROBES, spec

ADDRESS = 0x7F0000000000


def sweep():
    """One field at a time, around what attention uses."""
    yield spec("bf16", (128, 4096, 16, 2), (64, 128, 1, 1), swizzle="128B")
    for dtype in ("u8", "u16", "u32", "s32", "u64", "s64", "f16", "bf16", "f32", "f64"):
        yield spec(dtype, (64, 64), (2, 8) if dtype in ("u64", "s64", "f64") else (16, 8))
    for swizzle in ("none", "32B", "64B", "128B"):
        yield spec("f16", (64, 64), (16, 64), swizzle=swizzle)
    for promotion in ("none", "64B", "128B", "256B"):
        yield spec("f16", (64, 64), (64, 64), l2_promotion=promotion)
    for fill in ("zeros", "nan"):
        yield spec("f32", (64, 64), (32, 64), oob_fill=fill)
    for extent in (1, 255, 256, 65536, 2**31, 2**32):
        yield spec("bf16", (64, extent), (64, 8))
    for stride in (0, 16, 128, 2**32, 2**40 - 16):
        yield spec("bf16", (64, 10), (64, 8), strides=(stride,))
    for box in (1, 2, 8, 255, 256):
        yield spec("bf16", (64, 512), (64, box))
    for steps in ((1, 1), (1, 2), (1, 8)):
        yield spec("bf16", (64, 512), (64, 64), element_strides=steps)
    for rank in (1, 2, 3, 4, 5):
        yield spec("bf16", (64,) * rank, (64,) + (2,) * (rank - 1))
    yield spec("bf16", (40, 50, 3, 2), (64, 32, 1, 1), swizzle="128B", strides=(480, 160, 24000))


SPECS = list(
    dict.fromkeys(
        [*sweep(), *(x.spec for p in PROBES for x in p.arguments if isinstance(x, Descriptor))]
    )
)
