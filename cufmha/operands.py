# SPDX-License-Identifier: Apache-2.0
"""What dense and packed plans share: where operands lie, what they span, whether they are apart."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from .array.dtype import DType
from .array.overlap import shares_memory
from .array.stream import resolve_stream
from .array.view import TensorView
from .errors import ArgumentError, PlanError

if TYPE_CHECKING:
    from .device.base import Device
    from .spec import AttentionSpec

LARGEST_GRID: Final = (1 << 31) - 1
LOG2_E: Final = 1 / math.log(2)
_ITEMSIZES = {"int32": 4, "int64": 8}


def stream_for(device: Device, stream: Any, framework: str) -> int:
    """The stream to launch on; an emulated chip has none but takes any."""
    on_card = device.kind == "cuda"
    return resolve_stream(stream, framework if on_card else "", device.ordinal)


def place_of(device: Device) -> tuple[str, int]:
    """Where operands must be, as `TensorView.device`."""
    return ("cuda" if device.kind == "cuda" else "cpu", device.ordinal)


def check_places(device: Device, named: Iterable[tuple[str, TensorView | None]]) -> None:
    """Every operand is where the kernel runs."""
    place = place_of(device)
    for name, view in named:
        if view is not None and view.device != place:
            raise ArgumentError(
                f"{name}: must be on {_place(place)}, where this runs, got {_place(view.device)}"
            )


def check_lse_planned(spec: AttentionSpec, wanted: bool) -> None:
    """A plan made without the log-sum-exp does not write it."""
    if wanted and not spec.lse:
        raise PlanError("lse: this plan was made without it; make it with AttentionSpec(lse=True)")


def check_apart(
    name: str, a: TensorView, span_a: int, other: str, b: TensorView, span_b: int
) -> None:
    """A result that shares an element with anything else is refused; interleaving is fine."""
    if a.pointer + span_a <= b.pointer or b.pointer + span_b <= a.pointer:
        return
    if shares_memory(
        a.pointer, _axes(a), b.pointer, _axes(b), size_a=itemsize(a), size_b=itemsize(b)
    ):
        raise ArgumentError(f"{name}: must share no element with {other}, got one that does")


def holds_elements(view: TensorView) -> bool:
    """Whether the array has elements."""
    return 0 not in view.shape


def itemsize(view: TensorView) -> int:
    """Bytes of an element."""
    if isinstance(view.dtype, DType):
        return view.dtype.itemsize
    return _ITEMSIZES.get(view.dtype, 1)


def pitch(view: TensorView, axis: int) -> int:
    """Elements from one index of the axis to the next; an axis of extent 1 may say anything."""
    return view.strides[axis] if view.shape[axis] > 1 else 0


def span(view: TensorView) -> int:
    """Bytes from the first element to the end of the last."""
    if not holds_elements(view):
        return 0
    return sum((n - 1) * s for n, s in _axes(view)) + itemsize(view)


def _axes(view: TensorView) -> tuple[tuple[int, int], ...]:
    """(extent, stride in bytes) of each axis."""
    size = itemsize(view)
    return tuple((n, s * size) for n, s in zip(view.shape, view.strides, strict=True))


def _place(device: tuple[str, int]) -> str:
    kind, number = device
    # JAX can divide the CPU into several devices.
    cpu = f"CPU device {number}" if number else "the CPU"
    return {"cuda": f"card {number}", "cpu": cpu}.get(kind, f"{kind}:{number}")
