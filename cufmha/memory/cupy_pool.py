# SPDX-License-Identifier: Apache-2.0
"""Padded memory as CuPy's: its memory pool over an allocator of ours, one pool for each guard."""

from __future__ import annotations

import operator
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from ..errors import ArgumentError, DTypeError, OutOfMemoryError, UnsupportedError
from .registry import MOST_GUARD_BYTES
from .space import Space

# cudaErrorMemoryAllocation, which CuPy has no public name for
_OUT_OF_MEMORY = 2

_lock = threading.Lock()
_spaces: dict[int, Space] = {}
_pools: dict[int, Any] = {}


@contextmanager
def guarded(guard: int) -> Iterator[Any]:
    """Within the block, in this thread, CuPy's arrays have guard bytes in front of them.

    Parameters
    ----------
    guard : int
        Bytes, 0 to 2^44, that are readable in front of every array which CuPy allocates.

    Yields
    ------
    cupy.cuda.MemoryPool
        `pool(guard)`, whose statistics, limit and `free_all_blocks` are as always.

    Raises
    ------
    DTypeError, ArgumentError
        If `guard` is not such a number.
    UnsupportedError
        If CuPy is not installed.
    """
    found = pool(guard)
    with cupy_module().cuda.using_allocator(found.malloc):
        yield found


def pool(guard: int) -> Any:
    """CuPy's memory pool whose blocks have at least `guard` bytes in front of them.

    Guards are rounded up to a power of two, and there is one pool for each of these, for all cards
    and threads. `cupy.cuda.set_allocator(cufmha.memory.pool(guard).malloc)` makes it the allocator
    of every thread. The arguments and errors are those of `guarded`.
    """
    try:
        number = None if isinstance(guard, bool) else operator.index(guard)
    except TypeError:
        number = None
    if number is None:
        raise DTypeError(f"guard: must be a whole number of bytes, got {type(guard).__name__}")
    if not 0 <= number <= MOST_GUARD_BYTES:
        raise ArgumentError(f"guard: must be 0 to 2^44 bytes, got {number}")
    size = 1 << (number - 1).bit_length() if number else 0
    cupy = cupy_module()
    with _lock:
        if size not in _pools:
            _pools[size] = cupy.cuda.MemoryPool(lambda wanted: _allocate(wanted, size))
        return _pools[size]


def _allocate(size: int, guard: int) -> Any:
    """What CuPy's pool calls for memory that it has not."""
    cuda = cupy_module().cuda
    ordinal = cuda.Device().id
    try:
        block = _space(ordinal).allocate(size, guard)
    except OutOfMemoryError:
        # The pool frees its blocks and tries again after this error of the runtime alone; when
        # that does not help it raises cupy.cuda.memory.OutOfMemoryError.
        raise cuda.runtime.CUDARuntimeError(_OUT_OF_MEMORY) from None
    return cuda.MemoryPointer(cuda.UnownedMemory(block.address, size, block, ordinal), 0)


def _space(ordinal: int) -> Space:
    with _lock:
        if ordinal not in _spaces:
            from ..device.cuda import device
            from ..device.pages import CardPages

            _spaces[ordinal] = Space(CardPages(device(ordinal)))
        return _spaces[ordinal]


def cupy_module() -> Any:
    """CuPy, or UnsupportedError."""
    try:
        return import_module("cupy")
    except ImportError:
        raise UnsupportedError(
            "guarded memory on a card comes from CuPy's memory pool, and CuPy is not installed: "
            "pip install 'cufmha[cu13]' (or [cu12])"
        ) from None
