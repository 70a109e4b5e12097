# SPDX-License-Identifier: Apache-2.0
"""What a register slot can hold besides an array: nothing yet, part of its lanes, or a lock.

A slot holds an array of 32 lanes in whatever dtype was written last. Readers take it as it is if
the dtype is theirs and call `view` otherwise; the classes here have no dtype, so every use of such
a slot ends in their `view`, which knows the rules. Plain registers pay nothing for that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import EmulationError, Uninitialized

if TYPE_CHECKING:
    from .lanes import Warp


class Unwritten:
    """A register no lane has written."""

    dtype = None

    def __init__(self, name: str) -> None:
        self.name = name

    def view(self, dtype: Any) -> np.ndarray:
        raise Uninitialized(f"register {self.name} is read before anything was written to it")


class Partial:
    """A register that only lanes of `valid` have written."""

    dtype = None

    def __init__(self, warp: Warp, name: str, values: np.ndarray, valid: np.ndarray) -> None:
        self.warp = warp
        self.name = name
        self.values = values
        self.valid = valid

    def view(self, dtype: Any) -> np.ndarray:
        missing = self.warp.mask & ~self.valid
        if missing.any():
            raise Uninitialized(
                f"register {self.name} is read in lanes that have not written it",
                lanes=np.flatnonzero(missing).tolist(),
            )
        return self.values if self.values.dtype is dtype else self.values.view(dtype)


class Locked:
    """A register that asynchronous work reads or writes until `ticket` is unlocked."""

    dtype = None

    def __init__(
        self, name: str, held: Any, reason: type[EmulationError], ticket: Any, what: str
    ) -> None:
        self.name = name
        self.held = held
        self.reason = reason
        self.ticket = ticket
        self.what = what

    def view(self, dtype: Any) -> np.ndarray:
        raise self.reason(f"register {self.name} is used while {self.what} is in flight")


class Fresh:
    """A result of asynchronous work that no instruction has touched; the first touch unwraps it.

    That tells accumulators left alone between two products from such that were read or written.
    """

    dtype = None

    def __init__(self, warp: Warp, slot: int, values: np.ndarray) -> None:
        self.warp = warp
        self.slot = slot
        self.values = values

    def view(self, dtype: Any) -> np.ndarray:
        if self.warp.R[self.slot] is self:
            self.warp.R[self.slot] = self.values.view()
        return self.values if self.values.dtype is dtype else self.values.view(dtype)
