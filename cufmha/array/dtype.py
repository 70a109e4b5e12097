# SPDX-License-Identifier: Apache-2.0
"""Element types: ours, and their names in DLPack, NumPy, torch and tensor maps."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


class DType(Enum):
    """An element type a kernel reads or writes; the value is its short name."""

    BF16 = "bf16"
    F16 = "f16"
    F32 = "f32"

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return 4 if self is DType.F32 else 2

    @property
    def long_name(self) -> str:
        """The name that NumPy (with ml_dtypes), torch, CuPy and JAX share."""
        return _LONG[self]

    @property
    def numpy(self) -> np.dtype[Any]:
        """NumPy's dtype; bfloat16 is ml_dtypes'."""
        import numpy as np

        if self is DType.BF16:
            import ml_dtypes

            found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
            return found
        return np.dtype(self.long_name)

    @property
    def dlpack(self) -> tuple[int, int]:
        """DLPack's (type code, bits)."""
        return (4, 16) if self is DType.BF16 else (2, 8 * self.itemsize)


_LONG = {DType.BF16: "bfloat16", DType.F16: "float16", DType.F32: "float32"}
BY_NAME: dict[str, DType] = {name: dtype for dtype, name in _LONG.items()}
BY_NAME.update({dtype.value: dtype for dtype in DType})
BY_DLPACK: dict[tuple[int, int], DType] = {dtype.dlpack: dtype for dtype in DType}
# DLPack's type codes, for messages about element types that we do not take.
DLPACK_CODES = {0: "int", 1: "uint", 2: "float", 3: "handle", 4: "bfloat", 5: "complex", 6: "bool"}
