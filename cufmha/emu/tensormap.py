# SPDX-License-Identifier: Apache-2.0
"""The emulator's own 128 bytes of a tensor map: fields in plain places, with a magic number.

Real descriptors are opaque; programs may only pass them on and replace fields by
`tensormap.replace`. A map that is built or changed on the device need not obey the encoder's
rules until it is used, so `Fields` holds raw numbers and `spec()` checks them.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace

from ..errors import ArgumentError, DescriptorError
from ..tma import DTYPES, FILLS, INTERLEAVES, PROMOTIONS, SWIZZLES, TensorMapSpec

MAGIC = 0x70616D54
SIZE = 128
# magic, dtype, rank, interleave | swizzle, promotion, fill, 0 | 5 steps, 3 spare | address |
# 5 dims − 1 | 5 boxes | 4 strides
_LAYOUT = struct.Struct("<I4BBBBx5B3xQ5I5I4Q")


@dataclass(frozen=True)
class Fields:
    """Enum values are the driver's."""

    dtype: int
    rank: int
    interleave: int
    swizzle: int
    promotion: int
    fill: int
    address: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    steps: tuple[int, ...] = field(default=(1,) * 5)

    def pack(self) -> bytes:
        def five(values: tuple[int, ...], rest: int) -> list[int]:
            return [*values, *[rest] * 5][:5]

        raw = _LAYOUT.pack(
            MAGIC, self.dtype, self.rank, self.interleave, self.swizzle, self.promotion, self.fill,
            0, *five(self.steps, 1), self.address % 2**64,
            *[(d - 1) % 2**32 for d in five(self.dims, 1)], *five(self.box, 1),
            *[s % 2**64 for s in five(self.strides, 0)[:4]],
        )  # fmt: skip
        return raw.ljust(SIZE, b"\0")

    def spec(self) -> TensorMapSpec:
        """The map's rules hold, or DescriptorError."""
        if not 1 <= self.rank <= 5:
            raise DescriptorError(f"tensor map: rank {self.rank}")
        n = self.rank
        try:
            return TensorMapSpec(
                dtype=_name({k: v[0] for k, v in DTYPES.items()}, self.dtype),
                dims=self.dims[:n],
                strides=self.strides[: n - 1],
                box=self.box[:n],
                element_strides=self.steps[:n],
                swizzle=_name({k: v[0] for k, v in SWIZZLES.items()}, self.swizzle),
                interleave=_name(INTERLEAVES, self.interleave),
                l2_promotion=_name(PROMOTIONS, self.promotion),
                oob_fill=_name(FILLS, self.fill),
            )
        except ArgumentError as error:
            raise DescriptorError(f"tensor map: {error}") from None


def _name(table: dict[str, int], value: int) -> str:
    for name, code in table.items():
        if code == value:
            return name
    raise DescriptorError(f"tensor map: field value {value}, one of {table} expected")


def encode(spec: TensorMapSpec, address: int) -> bytes:
    """What the emulator takes for the driver's descriptor."""
    spec.check_address(address)
    codes = spec.driver_codes()
    return Fields(
        codes["dtype"], spec.rank, codes["interleave"], codes["swizzle"], codes["l2_promotion"],
        codes["oob_fill"], address, spec.dims, spec.strides, spec.box, spec.steps,
    ).pack()  # fmt: skip


def decode(raw: bytes, *, blank: bool = False) -> Fields:
    """DescriptorError for bytes that are no tensor map.

    `blank`: 128 zeros are one too, of one element, for programs that build maps by replacing all.
    """
    if blank and not any(raw[:SIZE]):
        return Fields(0, 1, 0, 0, 0, 0, 0, (1,) * 5, (0,) * 4, (1,) * 5)
    values = _LAYOUT.unpack(raw[: _LAYOUT.size])
    if values[0] != MAGIC:
        raise DescriptorError("the 128 bytes at this address are no tensor map")
    dtype, rank, interleave, swizzle, promotion, fill = values[1:7]
    steps, address = values[8:13], values[13]
    dims, box, strides = values[14:19], values[19:24], values[24:28]
    return Fields(
        dtype, rank, interleave, swizzle, promotion, fill, address,
        tuple(d + 1 for d in dims), tuple(strides), tuple(box), tuple(steps),
    )  # fmt: skip


def replaced(raw: bytes, **changes: object) -> bytes:
    """The map with fields changed, as `tensormap.replace` leaves it."""
    return replace(decode(raw), **changes).pack()  # type: ignore[arg-type]
