# SPDX-License-Identifier: Apache-2.0
"""Results in q's framework: allocated by it where it can, else by us and handed over by DLPack."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import UnsupportedError
from . import dlpack
from .dtype import DType
from .view import TensorView

if TYPE_CHECKING:
    from ..device.base import Device

# A result before the launch, and what turns its owner into the caller's array after it.
Result = tuple[TensorView, Callable[[], Any]]


def allocate(
    like: TensorView, shape: tuple[int, ...], dtype: DType, *, device: Device, stream: int
) -> Result:
    """A dense array of the shape in the framework of `like`, with memory of its device."""
    if like.framework == "torch":
        torch = sys.modules["torch"]
        kind = like.owner.dtype if dtype is like.dtype else torch.float32
        array = torch.empty(shape, dtype=kind, device=like.owner.device)
        return _given(array, array.data_ptr(), shape, dtype, like)
    if like.framework == "numpy":
        host = _numpy(shape, dtype)
        return _given(host, host.__array_interface__["data"][0], shape, dtype, like)
    if like.framework == "cupy":
        cupy = sys.modules["cupy"]
        with cupy.cuda.Device(like.device[1]):
            array = cupy.empty(shape, dtype.numpy)
        return _given(array, array.data.ptr, shape, dtype, like)
    if like.framework == "cufmha":
        from ..memory.array import padded

        rows = like.owner.guard_rows if dtype is like.dtype else 0
        own = padded(shape, dtype, rows, like.device)
        return _given(own, own.pointer, shape, dtype, like)
    if like.framework == "jax":
        return _jax(like, shape, dtype, device, stream)
    if like.device[0] == "cpu":
        host = _numpy(shape, dtype)
        return _given(host, host.__array_interface__["data"][0], shape, dtype, like)
    raise UnsupportedError(
        f"out: results for {type(like.owner).__module__}.{type(like.owner).__qualname__} cannot be "
        "allocated here; pass out= (and lse=)"
    )


def _given(
    array: Any, pointer: int, shape: tuple[int, ...], dtype: DType, like: TensorView
) -> Result:
    view = TensorView(
        pointer, shape, dlpack.dense(shape), dtype, like.device, like.framework, False, array
    )
    return view, lambda: array


def _numpy(shape: tuple[int, ...], dtype: DType) -> Any:
    """NumPy aligns to 16 bytes on some systems only."""
    import math

    import numpy as np

    size = math.prod(shape) * dtype.itemsize
    raw = np.empty(size + 64, np.uint8)
    start = -raw.__array_interface__["data"][0] % 64
    return raw[start : start + size].view(dtype.numpy).reshape(shape)


def _jax(
    like: TensorView, shape: tuple[int, ...], dtype: DType, device: Device, stream: int
) -> Result:
    """JAX gives no memory to write into, so it gets ours, once the kernel is on its stream."""
    import math

    memory = device.allocate(math.prod(shape) * dtype.itemsize, stream)
    strides = dlpack.dense(shape)
    view = TensorView(memory.address, shape, strides, dtype, like.device, "numpy", False, memory)

    def wait(consumer: int) -> None:
        device.order_after(consumer, stream)

    def finish() -> Any:
        kind = dlpack.CUDA if like.device[0] == "cuda" else dlpack.CPU
        code, bits = dtype.dlpack
        exporter = dlpack.Exporter(
            memory,
            address=memory.address,
            shape=shape,
            strides=strides,
            type_code=code,
            bits=bits,
            device=(kind, like.device[1]),
            wait=wait,
        )
        return sys.modules["jax"].dlpack.from_dlpack(exporter)

    return view, finish
