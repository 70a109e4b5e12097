# SPDX-License-Identifier: Apache-2.0
"""`TensorView` and `as_view`: the only place that looks into other libraries' arrays."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from ..errors import ArgumentError, DTypeError
from . import dlpack
from .dtype import BY_DLPACK, BY_NAME, DLPACK_CODES, DType


class TensorView(NamedTuple):
    """Where an array's elements are. Strides are in elements.

    `dtype` is a string where the element type is none of ours; `device` is ("cpu" | "cuda" |
    another name, number); `owner` is the caller's array, `keep` what holds the memory besides.
    """

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType | str
    device: tuple[str, int]
    framework: str
    readonly: bool
    owner: Any
    keep: Any = None


Reader = Callable[[str, Any, int], TensorView]
_readers: dict[type, Reader] = {}


def as_view(array: Any, name: str, *, stream: int = 0) -> TensorView:
    """Look into an array, copying nothing and importing no framework.

    Parameters
    ----------
    array : Any
        A torch, NumPy, CuPy or JAX array, a PaddedArray, or anything with `__dlpack__` or
        `__cuda_array_interface__`.
    name : str
        The argument's name, for errors.
    stream : int
        Handle of the stream that will use the data, for producers that order it by DLPack.

    Raises
    ------
    DTypeError
        For another kind of object, a JAX tracer, or a torch tensor whose gradient would be lost.
    """
    kind = type(array)
    reader = _readers.get(kind)
    if reader is None:
        reader = _readers[kind] = _reader(kind, name)
    return reader(name, array, stream)


def framework_of(array: Any) -> str:
    """The framework that as_view would report, "" for what it refuses."""
    try:
        reader = _readers.get(type(array)) or _reader(type(array), "array")
    except DTypeError:
        return ""
    return _FRAMEWORKS[reader]


def _reader(kind: type, name: str) -> Reader:
    for base in kind.__mro__:
        package = base.__module__.partition(".")[0]
        if package in _BY_PACKAGE and base is not object:
            found = _BY_PACKAGE[package]
            if package == "numpy" and not hasattr(kind, "__array_interface__"):
                break
            if package == "torch" and not hasattr(kind, "data_ptr"):
                break
            if base.__module__.startswith("torch._subclasses."):
                raise DTypeError(
                    f"{name}: is a {kind.__name__}, which has no memory, so this runs while "
                    "torch.compile or torch.export traces; call it outside of what they trace, or "
                    "from a function marked with torch.compiler.disable"
                )
            if package in ("jax", "jaxlib") and not hasattr(kind, "__dlpack__"):
                break
            if package == "cupy" and not hasattr(kind, "__cuda_array_interface__"):
                break
            if package == "cufmha" and not hasattr(kind, "guard_bytes"):
                break
            return found
    if hasattr(kind, "__dlpack__"):
        return _read_dlpack
    if hasattr(kind, "__cuda_array_interface__"):
        return _read_cuda_array
    raise DTypeError(
        f"{name}: must be an array (torch, NumPy, CuPy, JAX, or anything with __dlpack__), "
        f"got {kind.__module__}.{kind.__qualname__}"
    )


# ---- torch

_torch_dtypes: dict[Any, DType | str] = {}


def _read_torch(name: str, array: Any, stream: int) -> TensorView:
    torch = sys.modules["torch"]
    if array.requires_grad and torch.is_grad_enabled():
        raise DTypeError(
            f"{name}: is a torch tensor that requires grad, and this call computes no gradient; "
            "pass a detached tensor or call it under torch.no_grad()"
        )
    dtype = _torch_dtypes.get(array.dtype)
    if dtype is None:
        text = str(array.dtype).removeprefix("torch.")
        dtype = _torch_dtypes[array.dtype] = BY_NAME.get(text, text)
    index = array.get_device()
    try:
        pointer, strides = array.data_ptr(), array.stride()
    except (RuntimeError, NotImplementedError) as error:
        raise DTypeError(
            f"{name}: must be a strided torch tensor with memory of its own, got layout "
            f"{array.layout} on {array.device} ({str(error).splitlines()[0]})"
        ) from None
    device = ("cuda", index) if array.is_cuda else (array.device.type, max(index, 0))
    return TensorView(pointer, array.shape, strides, dtype, device, "torch", False, array)


# ---- NumPy


def _read_numpy(name: str, array: Any, stream: int) -> TensorView:
    import numpy as np

    if not isinstance(array, np.ndarray):
        raise DTypeError(f"{name}: must be an array, got the NumPy scalar {type(array).__name__}")
    if isinstance(array, np.ma.MaskedArray):
        raise DTypeError(f"{name}: is a masked array, whose mask would be ignored; pass .filled()")
    dtype = array.dtype
    text = dtype.name if dtype.isnative else f"byte-swapped {dtype.name}"
    size = dtype.itemsize or 1
    strides = tuple(step // size for step in array.strides)
    if any(step % size for step, n in zip(array.strides, array.shape, strict=True) if n > 1):
        raise ArgumentError(
            f"{name}: strides must be whole elements of {size} bytes, got {array.strides} bytes"
        )
    return TensorView(
        array.__array_interface__["data"][0], array.shape, strides, BY_NAME.get(text, text),
        ("cpu", 0), "numpy", not array.flags.writeable, array,
    )  # fmt: skip


# ---- CuPy


def _read_cupy(name: str, array: Any, stream: int) -> TensorView:
    dtype = array.dtype
    size = dtype.itemsize
    return TensorView(
        array.data.ptr, array.shape, tuple(step // size for step in array.strides),
        BY_NAME.get(dtype.name, dtype.name), ("cuda", array.data.device_id), "cupy", False, array,
    )  # fmt: skip


# ---- JAX


def _read_jax(name: str, array: Any, stream: int) -> TensorView:
    if isinstance(array, sys.modules["jax"].core.Tracer):
        raise DTypeError(
            f"{name}: is a JAX tracer ({type(array).__name__}), so this runs inside jit, grad or "
            "vmap; call it with concrete arrays"
        )
    if array.is_deleted():
        raise DTypeError(f"{name}: is a JAX array that has been deleted or donated")
    view = _read_dlpack(name, array, stream)
    return view._replace(framework="jax", readonly=True)


# ---- our own


def _read_padded(name: str, array: Any, stream: int) -> TensorView:
    return TensorView(
        array.pointer, array.shape, array.strides, array.dtype, array.device, "cufmha", False, array
    )


# ---- any other producer


def _read_dlpack(name: str, array: Any, stream: int) -> TensorView:
    """The producer makes `stream` wait for its own work, as DLPack lays down."""
    try:
        kind, _ = array.__dlpack_device__()
        on_card = int(kind) in (dlpack.CUDA, dlpack.CUDA_MANAGED)
        options = {"stream": stream or 1} if on_card else {}
        found = dlpack.read(array.__dlpack__(**options))
    except (AttributeError, BufferError, TypeError, ValueError, RuntimeError) as error:
        raise DTypeError(
            f"{name}: {type(array).__module__}.{type(array).__qualname__} does not give its memory "
            f"by DLPack ({str(error).splitlines()[0]})"
        ) from None
    dtype: DType | str | None = BY_DLPACK.get((found.type_code, found.bits))
    if dtype is None:
        dtype = f"{DLPACK_CODES.get(found.type_code, 'code')}{found.bits}"
    place = "cuda" if on_card else "cpu" if found.device[0] == dlpack.CPU else f"DLPack {kind}"
    return TensorView(
        found.address, found.shape, found.strides, dtype, (place, found.device[1]), "dlpack",
        found.readonly, array, found.capsule,
    )  # fmt: skip


def _read_cuda_array(name: str, array: Any, stream: int) -> TensorView:
    """The CUDA array interface has no bfloat16 and no device number."""
    interface = array.__cuda_array_interface__
    text = {"<f2": "float16", "<f4": "float32"}.get(interface["typestr"], interface["typestr"])
    size = int(interface["typestr"][2:])
    shape = tuple(interface["shape"])
    strides = interface.get("strides")
    elements = dlpack.dense(shape) if strides is None else tuple(s // size for s in strides)
    pointer, readonly = interface["data"]
    from ..device import device_of_pointer

    return TensorView(
        pointer, shape, elements, BY_NAME.get(text, text), ("cuda", device_of_pointer(pointer)),
        "dlpack", readonly, array,
    )  # fmt: skip


_BY_PACKAGE: dict[str, Reader] = {
    "torch": _read_torch,
    "numpy": _read_numpy,
    "cupy": _read_cupy,
    "jax": _read_jax,
    "jaxlib": _read_jax,
    "cufmha": _read_padded,
}
_FRAMEWORKS: dict[Reader, str] = {
    _read_torch: "torch",
    _read_numpy: "numpy",
    _read_cupy: "cupy",
    _read_jax: "jax",
    _read_padded: "cufmha",
    _read_dlpack: "dlpack",
    _read_cuda_array: "dlpack",
}
