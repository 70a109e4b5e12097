# SPDX-License-Identifier: Apache-2.0
"""Shared-memory and instruction descriptors of wgmma and tcgen05, and the layouts they describe.

Sections 9.7.15.5.1.2 (wgmma) and 9.7.16.4 (tcgen05) of the PTX ISA.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ..errors import DescriptorError

# Swizzle -> (bytes of a row, shift, mask): an address a is stored at a ^ ((a >> shift) & mask).
SWIZZLES = {
    "none": (16, 0, 0),
    "32B": (32, 3, 0x10),
    "64B": (64, 3, 0x30),
    "128B": (128, 3, 0x70),
    "128B, 32B atom": (128, 2, 0x60),
}
_WGMMA = {0: "none", 1: "128B", 2: "64B", 3: "32B"}
_TCGEN05 = {0: "none", 1: "128B, 32B atom", 2: "128B", 4: "64B", 6: "32B"}


@dataclass(frozen=True)
class MatrixDescriptor:
    """A 64-bit shared-memory descriptor: byte offsets, and the name of the swizzle."""

    start: int
    leading: int
    stride: int
    swizzle: str

    @classmethod
    def of(cls, bits: int, arch: str) -> MatrixDescriptor:
        """DescriptorError for what the hardware would misread."""
        if arch == "sm_90a":
            reserved = bits >> 14 & 3 | bits >> 30 & 3 | bits >> 46 & 7 | bits >> 52 & 0x3FF
            code, names = bits >> 62 & 3, _WGMMA
        else:
            reserved = bits >> 14 & 3 | bits >> 30 & 3 | bits >> 53 & 0xFF
            code, names = bits >> 61 & 7, _TCGEN05
            if bits >> 46 & 7 != 1:
                raise DescriptorError(
                    f"matrix descriptor {bits:#018x}: bits 46-48 must be 0b001, got "
                    f"{bits >> 46 & 7:#05b}"
                )
            if bits >> 52 & 1:
                raise DescriptorError(
                    f"matrix descriptor {bits:#018x}: absolute leading addresses (bit 52)"
                )
        if reserved:
            raise DescriptorError(f"matrix descriptor {bits:#018x}: reserved bits are set")
        if code not in names:
            raise DescriptorError(f"matrix descriptor {bits:#018x}: swizzle code {code}")
        if bits >> 49 & 7:
            raise DescriptorError(
                f"matrix descriptor {bits:#018x}: a base offset other than 0; align the tile to "
                "its swizzle's repeat instead"
            )
        return cls((bits & 0x3FFF) << 4, (bits >> 16 & 0x3FFF) << 4, (bits >> 32 & 0x3FFF) << 4,
                   names[code])  # fmt: skip

    def operand(self, rows: int, columns: int, size: int, *, mn_major: bool) -> Operand:
        """Where the elements (row, k) of `size` bytes lie; rows run along m or n."""
        return _operand(self, rows, columns, size, mn_major)


@dataclass(frozen=True)
class Operand:
    """`index`: (rows, columns) of the elements in shared memory seen as elements of their size;
    all lie within bytes [lo, hi)."""

    index: np.ndarray
    lo: int
    hi: int


@lru_cache(maxsize=128)  # a kernel's stages times the steps along k
def _operand(
    descriptor: MatrixDescriptor, rows: int, columns: int, size: int, mn_major: bool
) -> Operand:
    flat = _layout(
        descriptor.leading, descriptor.stride, descriptor.swizzle, rows, columns, size, mn_major
    )
    _, shift, mask = SWIZZLES[descriptor.swizzle]
    where = flat + descriptor.start
    if mask:
        where ^= where >> shift & mask
    index = where // size
    index.setflags(write=False)
    return Operand(index, int(where.min()), int(where.max()) + size)


@lru_cache(maxsize=32)
def _layout(
    leading: int, stride: int, swizzle: str, rows: int, columns: int, size: int, mn_major: bool
) -> np.ndarray:
    """Offsets from the start address before the swizzle; rows x columns."""
    pitch = SWIZZLES[swizzle][0]
    r, k = np.arange(rows)[:, None], np.arange(columns)[None, :]
    wide = pitch // size
    if not mn_major and swizzle == "none":
        found = r % 8 * 16 + r // 8 * stride + k // wide * leading + k % wide * size
    elif not mn_major:
        found = r % 8 * pitch + r // 8 * stride + k * size
    elif swizzle == "none":
        found = r % wide * size + r // wide * stride + k % 8 * 16 + k // 8 * leading
    else:
        found = r % wide * size + r // wide * leading + k % 8 * pitch + k // 8 * stride
    found.setflags(write=False)
    return found


_F8 = {0: "e4m3", 1: "e5m2", 3: "e2m3", 4: "e3m2", 5: "e2m1"}
_TYPES = {"f16": {0: "f16", 1: "bf16"}, "tf32": {2: "tf32"}, "f8f6f4": _F8}


@dataclass(frozen=True)
class InstructionDescriptor:
    """The 32-bit instruction descriptor of tcgen05.mma, dense kinds."""

    accumulator: str
    a: str
    b: str
    negate_a: bool
    negate_b: bool
    a_mn_major: bool
    b_mn_major: bool
    n: int
    m: int

    @classmethod
    def of(cls, bits: int, kind: str, group: int) -> InstructionDescriptor:
        def wrong(what: str) -> DescriptorError:
            return DescriptorError(f"instruction descriptor {bits:#010x}: {what}")

        if bits & 0b111:
            raise wrong("sparsity bits are set")
        if bits >> 3 & 1:
            raise wrong("saturation is for integers")
        if bits >> 6 & 1 or bits >> 23 & 1 or bits >> 29 & 7:
            raise wrong("reserved bits are set")
        types = _TYPES[kind]
        a, b = types.get(bits >> 7 & 7), types.get(bits >> 10 & 7)
        accumulator = {0: "f16", 1: "f32"}.get(bits >> 4 & 3)
        if a is None or b is None:
            raise wrong(f"operand type codes {bits >> 7 & 7} and {bits >> 10 & 7} of .kind::{kind}")
        if kind == "f16" and a != b:
            raise wrong(f"operands of {a} and {b}; both must be of one type")
        if accumulator is None or (accumulator == "f16" and (kind == "tf32" or a == "bf16")):
            raise wrong(f"accumulator type code {bits >> 4 & 3} with operands of {a}")
        n, m = (bits >> 17 & 0x3F) << 3, (bits >> 24 & 0x1F) << 4
        rows, step = ((64, 128), 8) if group == 1 else ((128, 256), 16)
        if m == 128 and group == 1:
            step = 16
        if m not in rows or n % step or not step <= n <= 256:
            raise wrong(f"shape m{m} n{n} of .cta_group::{group}")
        found = cls(accumulator, a, b, bool(bits >> 13 & 1), bool(bits >> 14 & 1),
                    bool(bits >> 15 & 1), bool(bits >> 16 & 1), n, m)  # fmt: skip
        if kind == "tf32" and (found.a_mn_major or found.b_mn_major):
            raise wrong("MN-major tf32 needs the 128B swizzle with 32B atoms")
        return found
