# SPDX-License-Identifier: Apache-2.0
"""DLPack through ctypes: reads a producer's capsule, exports memory of ours, neither copying."""

from __future__ import annotations

import atexit
import ctypes
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
_READ_ONLY = 1


class _Device(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("index", ctypes.c_int32)]


class _Type(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    """DLPack before 1.0."""


_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_Managed._fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _DELETER)]


class _Versioned(ctypes.Structure):
    """DLPack 1.0 and later: knows whether the memory may be written."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", _DELETER),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


_api = ctypes.pythonapi
_is_valid = _api.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)
_get_pointer = _api.PyCapsule_GetPointer
_get_pointer.restype = ctypes.c_void_p
_get_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
_new = _api.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


@dataclass(frozen=True)
class Borrowed:
    """What a capsule says. The memory lives as long as `capsule`."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    type_code: int
    bits: int
    device: tuple[int, int]
    readonly: bool
    capsule: object


def read(capsule: Any) -> Borrowed:
    """Look into a capsule without consuming it: it frees the producer's memory itself when it goes.

    Raises TypeError for anything but an unused DLPack capsule of single-lane elements.
    """
    if _is_valid(capsule, b"dltensor_versioned"):
        versioned = _Versioned.from_address(_get_pointer(capsule, b"dltensor_versioned"))
        tensor, readonly = versioned.tensor, bool(versioned.flags & _READ_ONLY)
    elif _is_valid(capsule, b"dltensor"):
        tensor, readonly = _Managed.from_address(_get_pointer(capsule, b"dltensor")).tensor, False
    else:
        raise TypeError("not an unused DLPack capsule")
    if tensor.dtype.lanes != 1:
        raise TypeError(f"elements of {tensor.dtype.lanes} lanes")
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else dense(shape)
    return Borrowed(
        (tensor.data or 0) + tensor.byte_offset,
        shape,
        strides,
        tensor.dtype.code,
        tensor.dtype.bits,
        (tensor.device.kind, tensor.device.index),
        readonly,
        capsule,
    )


def dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides in elements."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


# Exports whose consumer has not let go: address of the structure -> the capsule, and all that it
# needs. The capsule has no destructor: a callback into Python may not run while the interpreter
# ends, and consumers differ in what they do to a capsule they have taken.
_exported: dict[int, tuple[Any, ...]] = {}


def _release(address: int) -> None:
    _exported.pop(address, None)


def collect() -> None:
    """Drops exports that nobody took and nobody holds any more. Every export calls it."""
    for address in list(_exported):
        # A consumer in another thread may let go meanwhile.
        capsule = _exported.get(address, (None,))[0]
        # the table, `capsule` and getrefcount's own argument
        if capsule and sys.getrefcount(capsule) <= 3 and _is_valid(capsule, b"dltensor"):
            _exported.pop(address, None)


# It must outlive every export, so it lives as long as the module.
_release_callback = _DELETER(_release)


@atexit.register
def _abandon() -> None:
    """No callback may run once the interpreter is gone, but consumers may outlive it."""
    for address in _exported:
        ctypes.memset(address + _Managed.deleter.offset, 0, ctypes.sizeof(ctypes.c_void_p))


_NAME = ctypes.c_char_p(b"dltensor")


class Exporter:
    """Memory of ours as a DLPack producer.

    Parameters
    ----------
    owner : object
        Kept alive until the consumer lets go.
    address : int
    shape, strides : tuple of int
        Strides in elements.
    type_code, bits : int
        DLPack's element type.
    device : (int, int)
        DLPack's device kind and number.
    wait : callable, optional
        Called with the consumer's stream, which is to wait for the work that fills the memory.
    """

    def __init__(
        self,
        owner: object,
        *,
        address: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        type_code: int,
        bits: int,
        device: tuple[int, int],
        wait: Callable[[int], None] | None = None,
    ) -> None:
        self._owner = owner
        self._wait = wait
        self._address = address
        self._shape, self._strides = shape, strides
        self._type = (type_code, bits)
        self._device = device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device

    def __dlpack__(self, *, stream: int | None = None, **_options: Any) -> Any:
        """A capsule of the form that every consumer takes."""
        # −1 asks for no waiting; None and 1 are the legacy default stream.
        if self._wait is not None and stream != -1:
            self._wait(stream or 1)
        rank = len(self._shape)
        shape = (ctypes.c_int64 * rank)(*self._shape)
        strides = (ctypes.c_int64 * rank)(*self._strides)
        managed = _Managed()
        tensor = managed.tensor
        tensor.data = self._address
        tensor.device = _Device(*self._device)
        tensor.ndim = rank
        tensor.dtype = _Type(*self._type, 1)
        tensor.shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
        tensor.strides = ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64))
        tensor.byte_offset = 0
        managed.deleter = _release_callback
        address = ctypes.addressof(managed)
        capsule = _new(address, _NAME, None)
        collect()
        _exported[address] = (capsule, managed, shape, strides, self._owner)
        return capsule
