# SPDX-License-Identifier: Apache-2.0
"""Streams: whatever the caller names one by, to the driver's handle."""

from __future__ import annotations

import sys
from typing import Any

from ..errors import ArgumentError, DTypeError


def resolve_stream(stream: Any, framework: str, device: int) -> int:
    """The handle to launch on; 0 is the driver's default stream.

    Parameters
    ----------
    stream : Any
        None for the current stream of the framework on the device (the default stream where the
        framework has no such notion), an int, or an object with `__cuda_stream__`,
        `.cuda_stream` or `.ptr`.
    framework : str
        As `TensorView.framework`.
    device : int
        The card's number.
    """
    if stream is None:
        if framework == "torch":
            # A build without CUDA has no such function, and no stream.
            getter = getattr(sys.modules["torch"]._C, "_cuda_getCurrentRawStream", None)
            return int(getter(device)) if getter else 0
        if framework in ("cupy", "cufmha"):  # a PaddedArray is memory of CuPy's pool
            return int(sys.modules["cupy"].cuda.get_current_stream(device).ptr)
        return 0
    return stream_handle(stream)


def stream_handle(stream: Any) -> int:
    """An explicit stream to its handle."""
    if isinstance(stream, bool):
        raise DTypeError(f"stream: must be a stream or its handle, got {stream!r}")
    if isinstance(stream, int):
        handle = stream
    elif hasattr(stream, "__cuda_stream__"):
        protocol = stream.__cuda_stream__
        handle = int((protocol() if callable(protocol) else protocol)[1])
    elif hasattr(stream, "cuda_stream"):
        handle = int(stream.cuda_stream)
    elif hasattr(stream, "ptr"):
        handle = int(stream.ptr)
    elif type(stream).__name__ in ("CUstream", "cudaStream_t"):
        handle = int(stream)
    else:
        raise DTypeError(
            "stream: must be None, a handle (int), or have __cuda_stream__, .cuda_stream or .ptr, "
            f"got {type(stream).__module__}.{type(stream).__qualname__}"
        )
    if not 0 <= handle < 1 << 64:
        raise ArgumentError(f"stream: a handle must be from 0 to 2^64 - 1, got {handle}")
    return handle
