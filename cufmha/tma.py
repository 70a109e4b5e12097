# SPDX-License-Identifier: Apache-2.0
"""Tensor maps as pure data: what `cuTensorMapEncodeTiled` takes, held to its rules, driver or not.

All tuples run innermost first, as the driver takes them: dimension 0 is the contiguous one, and
`strides[i]` belongs to dimension i + 1. The rules are those of the CUDA driver API's documentation
of `cuTensorMapEncodeTiled`, as measured on an H200 where the text leaves room (a stride of 0 is
fine, a stride of 2^40 is not).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from .errors import ArgumentError

# name -> (the driver's enum value, bytes of an element)
DTYPES: Final[dict[str, tuple[int, int]]] = {
    "u8": (0, 1),
    "u16": (1, 2),
    "u32": (2, 4),
    "s32": (3, 4),
    "u64": (4, 8),
    "s64": (5, 8),
    "f16": (6, 2),
    "f32": (7, 4),
    "f64": (8, 8),
    "bf16": (9, 2),
    "f32_ftz": (10, 4),
    "tf32": (11, 4),
    "tf32_ftz": (12, 4),
}
FLOATS: Final = frozenset(("f16", "f32", "f64", "bf16", "f32_ftz", "tf32", "tf32_ftz"))
# name -> (enum value, widest inner box in bytes, 0 for any)
SWIZZLES: Final[dict[str, tuple[int, int]]] = {
    "none": (0, 0),
    "32B": (1, 32),
    "64B": (2, 64),
    "128B": (3, 128),
    "128B_atom_32B": (4, 128),
    "128B_atom_32B_flip_8B": (5, 128),
    "128B_atom_64B": (6, 128),
}
INTERLEAVES: Final = {"none": 0, "16B": 1, "32B": 2}
PROMOTIONS: Final = {"none": 0, "64B": 1, "128B": 2, "256B": 3}
FILLS: Final = {"zeros": 0, "nan": 1}
_STRIDE_LIMIT = 1 << 40
_DEFECT_LAST_DRIVER = 13010
_DEFECT_SPAN = 131072


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorMapSpec:
    """A tiled tensor map without its address.

    Parameters
    ----------
    dtype : str
        A key of `DTYPES`; fp8 travels as "u8".
    dims : tuple of int
        Elements per dimension, 1 to 5 of them, each 1 to 2^32.
    strides : tuple of int
        Bytes from one element to the next in dimensions 1, 2, …: multiples of 16 (of 32 with
        32-byte interleave), 0 to 2^40 − 1. Dimension 0 is dense.
    box : tuple of int
        Elements of the box in each dimension, 1 to 256; with `swizzle` the inner extent may not be
        wider than the swizzle's span, and without interleave it must be a multiple of 16 bytes.
    element_strides : tuple of int, optional
        Steps between elements taken, 1 to 8 (dimension 0: ignored by hardware without interleave).
    swizzle, interleave, l2_promotion, oob_fill : str
        Keys of `SWIZZLES`, `INTERLEAVES`, `PROMOTIONS`, `FILLS`.

    Raises
    ------
    ArgumentError
        Naming argument, rule and value.
    """

    dtype: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...] | None = None
    swizzle: str = "none"
    interleave: str = "none"
    l2_promotion: str = "none"
    oob_fill: str = "zeros"

    def __post_init__(self) -> None:
        self._check_names()
        rank = self._check_ranks()
        for number, extent in enumerate(self.dims):
            if not 1 <= extent <= 1 << 32:
                raise ArgumentError(f"dims[{number}]: must be 1 to 2^32, got {extent}")
        unit = 32 if self.interleave == "32B" else 16
        for number, stride in enumerate(self.strides):
            if stride % unit:
                raise ArgumentError(
                    f"strides[{number}]: must be a multiple of {unit} bytes, got {stride}"
                )
            if not 0 <= stride < _STRIDE_LIMIT:
                raise ArgumentError(f"strides[{number}]: must be 0 to 2^40 - 1, got {stride}")
        for number, extent in enumerate(self.box):
            if not 1 <= extent <= 256:
                raise ArgumentError(f"box[{number}]: must be 1 to 256, got {extent}")
        for number in range(rank):
            if not 1 <= self.steps[number] <= 8:
                raise ArgumentError(
                    f"element_strides[{number}]: must be 1 to 8, got {self.steps[number]}"
                )
        self._check_modes(rank)

    def _check_names(self) -> None:
        for name, known in (
            ("dtype", DTYPES),
            ("swizzle", SWIZZLES),
            ("interleave", INTERLEAVES),
            ("l2_promotion", PROMOTIONS),
            ("oob_fill", FILLS),
        ):
            value = getattr(self, name)
            if value not in known:
                raise ArgumentError(f"{name}: must be one of {', '.join(known)}, got {value!r}")

    def _check_ranks(self) -> int:
        rank = len(self.dims)
        if not 1 <= rank <= 5:
            raise ArgumentError(f"dims: must have 1 to 5 dimensions, got {rank}")
        for name, wanted in (("strides", rank - 1), ("box", rank), ("element_strides", rank)):
            value = getattr(self, name)
            if value is not None and len(value) != wanted:
                raise ArgumentError(
                    f"{name}: must have {wanted} entries for {rank} dimensions, got {len(value)}"
                )
        return rank

    def _check_modes(self, rank: int) -> None:
        inner = self.box[0] * self.itemsize
        if self.interleave != "none":
            if rank < 3:
                raise ArgumentError(f"interleave: needs at least 3 dimensions, got {rank}")
            if self.interleave == "32B" and self.swizzle != "32B":
                raise ArgumentError(f'interleave: "32B" needs swizzle "32B", got {self.swizzle!r}')
        else:
            if inner % 16:
                raise ArgumentError(f"box[0]: must be a multiple of 16 bytes, got {inner}")
            span = SWIZZLES[self.swizzle][1]
            if span and inner > span:
                raise ArgumentError(
                    f"box[0]: at most {span} bytes with swizzle {self.swizzle!r}, got {inner}"
                )
        if self.oob_fill == "nan" and self.dtype not in FLOATS:
            raise ArgumentError(f'oob_fill: "nan" needs a floating dtype, got {self.dtype!r}')

    # ---- what follows from the fields

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return DTYPES[self.dtype][1]

    @property
    def steps(self) -> tuple[int, ...]:
        """`element_strides`, ones if not given."""
        return self.element_strides or (1,) * len(self.dims)

    @property
    def box_elements(self) -> tuple[int, ...]:
        """Elements that a box takes in each dimension: ceil(box / step), dimension 0 whole."""
        return self.box[:1] + tuple(
            -(-extent // step) for extent, step in zip(self.box[1:], self.steps[1:], strict=True)
        )

    @property
    def box_bytes(self) -> int:
        """Bytes that a load of a box counts on its mbarrier, out-of-bounds elements included."""
        return math.prod(self.box_elements) * self.itemsize

    @property
    def row_pitch(self) -> int:
        """Bytes from one inner row of a box to the next in shared memory.

        Swizzled rows are as far apart as the swizzle's span even where the box is narrower
        (measured on an H200); others are dense.
        """
        return SWIZZLES[self.swizzle][1] or self.box[0] * self.itemsize

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory that a box takes up, gaps between narrow rows included."""
        return math.prod(self.box_elements[1:]) * self.row_pitch

    @property
    def span_bytes(self) -> int:
        """From the base to the end of the last element."""
        last = sum(
            (extent - 1) * stride
            for extent, stride in zip(self.dims[1:], self.strides, strict=True)
        )
        return last + self.dims[0] * self.itemsize

    @property
    def is_dense(self) -> bool:
        """Whether every stride is the product of the extents below it."""
        expected = self.dims[0] * self.itemsize
        for extent, stride in zip(self.dims[1:], self.strides, strict=True):
            if stride != expected:
                return False
            expected *= extent
        return True

    def check_address(self, address: int) -> None:
        """The base must be a multiple of 16 bytes (32 with 32-byte interleave)."""
        unit = 32 if self.interleave == "32B" else 16
        if address % unit or not 0 <= address < 1 << 64:
            raise ArgumentError(f"address: must be a multiple of {unit} bytes, got {address:#x}")

    def driver_codes(self) -> dict[str, int]:
        """The enum values for the driver: dtype, interleave, swizzle, l2_promotion, oob_fill."""
        return {
            "dtype": DTYPES[self.dtype][0],
            "interleave": INTERLEAVES[self.interleave],
            "swizzle": SWIZZLES[self.swizzle][0],
            "l2_promotion": PROMOTIONS[self.l2_promotion],
            "oob_fill": FILLS[self.oob_fill],
        }

    def repaired(self, encoded: bytes, *, driver_version: int) -> bytes:
        """A descriptor without the defect of drivers up to 13.1.

        For a tensor of less than 131,072 bytes that is not dense, those drivers set bit 21 of the
        second 64-bit word, and Blackwell may then read illegally. `driver_version` is that of
        `cuDriverGetVersion` (13010 for 13.1).
        """
        if driver_version > _DEFECT_LAST_DRIVER or self.span_bytes >= _DEFECT_SPAN or self.is_dense:
            return encoded
        word = int.from_bytes(encoded[8:16], "little") & ~(1 << 21)
        return encoded[:8] + word.to_bytes(8, "little") + encoded[16:]
