# SPDX-License-Identifier: Apache-2.0
"""Launch arguments to the packed parameter block, and the memory a launch may touch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InvalidLaunch
from .memory import Range

if TYPE_CHECKING:
    from .program import Program


def pack(program: Program, args: Sequence[Any]) -> tuple[bytes, list[Range]]:
    """Each argument at its parameter's offset. Arrays and mapped arrays become ranges."""
    layout = list(program.param_layout.items())
    if len(args) != len(layout):
        names = ", ".join(name for name, _ in layout)
        raise InvalidLaunch(
            f"{program.kernel} takes {len(layout)} arguments ({names}), got {len(args)}"
        )
    block = bytearray(program.param_size)
    arrays: dict[int, np.ndarray] = {}
    for (name, (offset, size, _)), argument in zip(layout, args, strict=True):
        raw = _bytes(name, argument, arrays)
        if len(raw) != size:
            raise InvalidLaunch(
                f"{name}: {size} bytes wanted, got {len(raw)} from {argument!s:.80}"
            )
        block[offset : offset + size] = raw
    ranges = [
        Range.of(a, writable=a.flags.writeable, name=f"argument {number}")
        for number, a in enumerate(arrays.values())
    ]
    return bytes(block), ranges


def _bytes(name: str, argument: Any, arrays: dict[int, np.ndarray]) -> bytes:
    if isinstance(argument, np.ndarray) and argument.ndim > 0:
        address = int(argument.ctypes.data)
        arrays.setdefault(id(argument), argument)
        return address.to_bytes(8, "little")
    if isinstance(argument, np.generic | np.ndarray):
        return argument.tobytes()
    if isinstance(argument, bytes | bytearray):
        return bytes(argument)
    if isinstance(argument, tuple) and len(argument) == 2:
        from .tensormap import encode

        spec, array = argument
        arrays.setdefault(id(array), array)
        return encode(spec, int(array.ctypes.data))
    raise InvalidLaunch(
        f"{name}: must be a NumPy array or scalar, bytes, or (TensorMapSpec, array), "
        f"got {type(argument).__name__}"
    )
