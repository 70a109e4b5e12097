# SPDX-License-Identifier: Apache-2.0
"""`empty` and `PaddedArray`: arrays with guard rows, for any framework to look into."""

from __future__ import annotations

import math
import operator
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..array import dlpack
from ..array.dtype import BY_NAME, DType
from ..device import current_device
from ..errors import ArgumentError, DTypeError
from .registry import MOST_GUARD_BYTES, Span, forget, guard_bytes, remember

if TYPE_CHECKING:
    import numpy as np

_MOST_BYTES = 1 << 47
# As in CuPy's pool; JAX takes memory of the CPU from 64 bytes on.
_ALIGNMENT = 512
_TYPESTR = {DType.F16: "<f2", DType.F32: "<f4"}


def empty(
    shape: int | Sequence[int],
    dtype: DType | str | Any = DType.BF16,
    *,
    guard_rows: int = 0,
    device: int | None = None,
) -> PaddedArray:
    """An array of the device in use, dense and uninitialized, with readable rows in front of it.

    Parameters
    ----------
    shape : int or sequence of int
        A row is what one index of the first axis selects.
    dtype : DType, str or dtype
        bfloat16, float16 or float32, by any framework's dtype or name.
    guard_rows : int
        Rows in front of the array that may be read; they must not be written. On a card they cost
        no memory to speak of.
    device : int, optional
        The card's number; the calling thread's current card if left out.

    Returns
    -------
    PaddedArray
        On a card, memory of CuPy's pool (`cufmha.memory.pool`) on CuPy's current stream; with the
        emulator, CPU memory.

    Raises
    ------
    ArgumentError, DTypeError
        For an argument that breaks a rule.
    UnsupportedError, DriverError
        If CuPy, the driver or a card is missing. With too little memory, CuPy's OutOfMemoryError
        on a card, MemoryError with the emulator.
    """
    sizes = tuple(_count("shape", n) for n in (shape if isinstance(shape, Sequence) else (shape,)))
    rows = _count("guard_rows", guard_rows)
    kind = _dtype(dtype)
    if rows and not sizes:
        raise ArgumentError(f"guard_rows: an array without axes has no rows, got {rows}")
    _check_size(sizes, kind, rows)
    if device is not None:
        device = _count("device", device)
    home = current_device(device)
    if home.kind == "cuda":
        return padded(sizes, kind, rows, ("cuda", home.ordinal))
    if device is not None and device != home.ordinal:
        raise ArgumentError(f"device: an emulated chip has the number 0, got {device}")
    return padded(sizes, kind, rows, ("cpu", 0))


def padded(
    shape: tuple[int, ...], dtype: DType, guard_rows: int, device: tuple[str, int]
) -> PaddedArray:
    """`empty` on a device given as `TensorView.device`."""
    size = max(math.prod(shape) * dtype.itemsize, 1)
    guard = guard_rows * math.prod(shape[1:]) * dtype.itemsize
    place, number = device
    if place == "cpu":
        address, memory = _on_host(size, guard)
        return PaddedArray(address, shape, dtype, device, guard_rows, memory)
    from .cupy_pool import cupy_module, pool

    with cupy_module().cuda.Device(number):
        pointer = pool(guard).malloc(size)
    return PaddedArray(pointer.ptr, shape, dtype, device, guard_rows, pointer)


class PaddedArray:
    """A dense array, row-major, that knows how much may be read in front of it.

    torch, JAX, CuPy and NumPy look into it by `from_dlpack`; CuPy and NumPy by `asarray` too. Such
    views, and views of them, are recognized by their address when they come back.

    Attributes
    ----------
    pointer : int
        Address of the first element.
    shape : tuple of int
    dtype : DType
    device : (str, int)
        ("cuda", number) or ("cpu", 0).
    guard_rows : int
        As asked for; `guard_bytes` says how much more there may be.
    """

    def __init__(
        self,
        pointer: int,
        shape: tuple[int, ...],
        dtype: DType,
        device: tuple[str, int],
        guard_rows: int,
        memory: Any,
    ) -> None:
        self.pointer, self.shape, self.dtype, self.device = pointer, shape, dtype, device
        self.guard_rows = guard_rows
        self._memory = memory

    @property
    def strides(self) -> tuple[int, ...]:
        """In elements."""
        return dlpack.dense(self.shape)

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def guard_bytes(self) -> int:
        """Readable bytes in front of the array."""
        return guard_bytes(self.pointer)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "a PaddedArray cannot be copied or pickled: its address would be that of the original; "
            "make another with cufmha.empty and copy through a view of it"
        )

    # ---- to other libraries

    def __dlpack_device__(self) -> tuple[int, int]:
        place, number = self.device
        return (dlpack.CUDA if place == "cuda" else dlpack.CPU, number)

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A capsule that keeps the memory; `stream` is made to wait for CuPy's current one."""
        if copy or (dl_device is not None and tuple(dl_device) != self.__dlpack_device__()):
            raise BufferError("the memory can be had where it is, and not as a copy")
        code, bits = self.dtype.dlpack
        return dlpack.Exporter(
            self._memory,
            address=self.pointer,
            shape=self.shape,
            strides=self.strides,
            type_code=code,
            bits=bits,
            device=self.__dlpack_device__(),
            wait=self._wait if self.device[0] == "cuda" else None,
        ).__dlpack__(stream=stream)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {**self._interface("cuda", "__cuda_array_interface__"), "stream": self._stream or 1}

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self._interface("cpu", "__array_interface__")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """A NumPy view of an array in CPU memory, of ml_dtypes' bfloat16 too."""
        import numpy as np

        if self.device[0] != "cpu":
            raise TypeError(f"the array is in the memory of card {self.device[1]}, not the CPU's")
        start = self.pointer - self._memory.__array_interface__["data"][0]
        raw = self._memory[start : start + self.nbytes]
        return np.array(raw.view(self.dtype.numpy).reshape(self.shape), dtype=dtype, copy=copy)

    def _interface(self, place: str, name: str) -> dict[str, Any]:
        if self.device[0] != place or self.dtype not in _TYPESTR:
            raise AttributeError(f"{name}: there is none for {self.dtype.long_name} in this memory")
        return {
            "shape": self.shape,
            "typestr": _TYPESTR[self.dtype],
            "data": (self.pointer, False),
            "strides": None,
            "version": 3,
        }

    @property
    def _stream(self) -> int:
        """CuPy's current stream, in whose order its pool hands out memory."""
        from ..array.stream import resolve_stream

        return resolve_stream(None, "cupy", self.device[1])

    def _wait(self, consumer: int) -> None:
        from ..device.cuda import device

        device(self.device[1]).order_after(consumer, self._stream)

    def __repr__(self) -> str:
        place, number = self.device
        where = f"card {number}" if place == "cuda" else "CPU memory"
        return (
            f"PaddedArray({self.shape}, {self.dtype.long_name}, {where}, "
            f"{self.guard_bytes} guard bytes)"
        )


def _on_host(size: int, guard: int) -> tuple[int, np.ndarray[Any, Any]]:
    """CPU memory with padding in front, known for as long as anything looks into it."""
    import numpy as np

    raw = np.empty(guard + _ALIGNMENT + size, np.uint8)
    front = raw.ctypes.data
    start = -(-(front + guard) // _ALIGNMENT) * _ALIGNMENT
    remember(Span(start, start + size, front))
    weakref.finalize(raw, forget, start).atexit = False
    return start, raw


def _count(name: str, value: Any) -> int:
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise DTypeError(f"{name}: must be whole numbers, got {type(value).__name__}")
    if not 0 <= number < 1 << 40:
        raise ArgumentError(f"{name}: must be 0 to 2^40 - 1, got {number}")
    return number


def _check_size(shape: tuple[int, ...], dtype: DType, guard_rows: int) -> None:
    """No more than addresses reach, an axis without extent counted as 1."""
    row, whole = (math.prod(max(n, 1) for n in axes) for axes in (shape[1:], shape))
    if whole * dtype.itemsize > _MOST_BYTES:
        raise ArgumentError(f"shape: must come to at most 2^47 bytes of {dtype.value}, got {shape}")
    if guard_rows * row * dtype.itemsize > MOST_GUARD_BYTES:
        raise ArgumentError(
            f"guard_rows: must come to at most 2^44 bytes, got {guard_rows} rows of "
            f"{row * dtype.itemsize} bytes"
        )


def _dtype(dtype: Any) -> DType:
    """By its member, a short or long name, or a framework's dtype."""
    if isinstance(dtype, DType):
        return dtype
    # A NumPy scalar type has its name only as a class, torch's dtypes print with the module.
    text = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    text = text.removeprefix("torch.")
    for kind in DType:
        if text in (kind.value, kind.long_name) and getattr(dtype, "isnative", True):
            return kind
    raise DTypeError(f"dtype: must be one of {', '.join(BY_NAME)}, got {dtype!r}")
