# SPDX-License-Identifier: Apache-2.0
"""Packed sequences: `PackedShape`, and the rules on offsets and lengths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .array.view import TensorView
from .errors import ArgumentError, DTypeError
from .spec import check_count

if TYPE_CHECKING:
    import numpy as np

OFFSET_DTYPES = ("int32", "int64")


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedShape:
    """The most that a plan for packed sequences has to take; arrays may have less.

    Parameters
    ----------
    batch : int
        Sequences.
    total_q, total_k : int
        Tokens of q and of k: rows of the arrays, whether or not they belong to a sequence.
    max_seqlen_q, max_seqlen_k : int, optional
        Rows of the longest sequence; total_q and total_k if left out. Results do not depend on
        them: strategy "offset" looks for so many guard rows in front of an array, and
        `check=True` holds the lengths to them.
    """

    batch: int
    total_q: int
    total_k: int
    max_seqlen_q: int | None = None
    max_seqlen_k: int | None = None

    def __post_init__(self) -> None:
        for name in ("batch", "total_q", "total_k"):
            object.__setattr__(self, name, check_count(name, getattr(self, name)))
        for name in ("max_seqlen_q", "max_seqlen_k"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, check_count(name, value))


def check_lengths_array(name: str, view: TensorView, entries: int | None = None) -> None:
    """`cu_seqlens_q`, `cu_seqlens_k` or `seqused_k`: rank, dtype, stride, number of entries."""
    if len(view.shape) != 1:
        raise ArgumentError(f"{name}: must have 1 axis, got {len(view.shape)}: {tuple(view.shape)}")
    if view.dtype not in OFFSET_DTYPES:
        shown = view.dtype if isinstance(view.dtype, str) else view.dtype.long_name
        raise DTypeError(f"{name}: dtype must be int32 or int64, got {shown}")
    if entries is None and view.shape[0] < 1:
        raise ArgumentError(f"{name}: must have batch + 1 entries, at least 1, got 0")
    if entries is not None and view.shape[0] != entries:
        raise ArgumentError(f"{name}: must have {entries} entries, got {view.shape[0]}")
    if view.shape[0] > 1 and view.strides[0] != 1:
        raise ArgumentError(f"{name}: must be dense, got a stride of {view.strides[0]} elements")
    size = offset_bytes(view)
    if view.pointer % size:
        raise ArgumentError(
            f"{name}: must start at a multiple of {size} bytes, got {view.pointer:#x}"
        )


def offset_bytes(view: TensorView) -> int:
    """Of an entry."""
    return 8 if view.dtype == "int64" else 4


def check_offsets(
    name: str, offsets: np.ndarray, total: int, longest: int | None, total_name: str
) -> np.ndarray:
    """The lengths that offsets [batch + 1] describe.

    Raises
    ------
    ArgumentError
        Naming the first entry that is negative, below the one before, past `total`, or ends a
        sequence of more than `longest` rows.
    """
    values = offsets.astype("int64")
    wrong = (values < 0) | (values > total)
    wrong[1:] |= values[1:] < values[:-1]
    if longest is not None:
        wrong[1:] |= values[1:] - values[:-1] > longest
    if wrong.any():
        index = int(wrong.argmax())
        value = int(values[index])
        before = int(values[index - 1]) if index else 0
        if value < 0:
            rule = "must be at least 0"
        elif value > total:
            rule = f"must be at most {total}, the tokens of {total_name}"
        elif value < before:
            rule = f"must be at least the entry before, {before}"
        else:
            rule = (
                f"must be at most {before + (longest or 0)}, as max_seqlen_{total_name} is "
                f"{longest}"
            )
        raise ArgumentError(f"{name}[{index}]: {rule}, got {value}")
    return values[1:] - values[:-1]


def check_used(used: np.ndarray, lengths: np.ndarray) -> None:
    """`seqused_k` lies within the lengths, else ArgumentError naming the first that does not."""
    values = used.astype("int64")
    wrong = (values < 0) | (values > lengths)
    if wrong.any():
        index = int(wrong.argmax())
        raise ArgumentError(
            f"seqused_k[{index}]: must be 0 to {int(lengths[index])}, the sequence's length in "
            f"cu_seqlens_k, got {int(values[index])}"
        )
