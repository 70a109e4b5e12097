# SPDX-License-Identifier: Apache-2.0
"""What each strategy for packed sequences hands its kernel: tensor maps and scalars.

docs/varlen.md explains the five, ptx/include/varlen_*.ptx are their device sides. Maps run
innermost first: (head_dim, rows, heads) and what a strategy adds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from .array.dtype import DType
from .array.view import TensorView
from .errors import ArgumentError
from .tma import TensorMapSpec

if TYPE_CHECKING:
    from .spec import Strategy

BOX_COLUMNS = 64
PIECES = (8, 1)
"""Rows of the smaller boxes that a partial tile goes in."""
MAP_SLOT_BYTES = 128
_WRAP_ROWS = 1 << 30
_WRAP_BYTES = 1 << 35

Values = dict[str, int | float | bytes]


class TensorMap(NamedTuple):
    """A map for the parameter of that name, beginning at an address."""

    parameter: str
    spec: TensorMapSpec
    address: int


class Tensor(NamedTuple):
    """q, k, v or o as packed sequences: (tokens, heads, head_dim), and how its rows are taken.

    `address` is where its first element is, or some address for an array without any;
    `longest` the rows of the longest sequence that is expected; `guard` how many bytes in front
    of `address` are known to be readable.
    """

    name: str
    view: TensorView
    address: int
    box_rows: int
    longest: int
    guard: int

    @property
    def rows(self) -> int:
        return max(self.view.shape[0], 1)

    @property
    def row_bytes(self) -> int:
        """From one row to the next; an axis of extent 1 is never stepped along."""
        width = self.view.shape[2] * 2
        return self.view.strides[0] * 2 if self.view.shape[0] > 1 else -(-width // 16) * 16

    @property
    def head_bytes(self) -> int:
        return self.view.strides[1] * 2 if self.view.shape[1] > 1 else self.row_bytes

    def map(self, dims: tuple[int, ...], strides: tuple[int, ...], rows: int) -> TensorMapSpec:
        """A map with boxes of `rows` along dimension 1, one element of each dimension above."""
        assert isinstance(self.view.dtype, DType)  # check_dtype has seen to it
        return TensorMapSpec(
            dtype=self.view.dtype.value,
            dims=dims,
            strides=strides,
            box=(BOX_COLUMNS, rows, *[1] * (len(dims) - 2)),
            swizzle="128B",
            l2_promotion="128B",
        )

    def plain(self, rows: int) -> TensorMapSpec:
        """The array as it is."""
        width, heads = self.view.shape[2], self.view.shape[1]
        return self.map((width, self.rows, heads), (self.row_bytes, self.head_bytes), rows)


def tensor_maps(strategy: Strategy, tensor: Tensor) -> Iterator[TensorMap]:
    """The maps by which the strategy reaches a tensor."""
    name = f"{tensor.name}_map"
    if strategy == "ragged":
        yield TensorMap(name, _ragged(tensor), tensor.address)
        return
    if strategy == "offset":
        yield _offset(tensor)
    elif strategy != "mask" or tensor.name != "o":
        yield TensorMap(name, tensor.plain(tensor.box_rows), tensor.address)
    if strategy in ("offset", "split"):
        for rows in PIECES:
            yield TensorMap(f"{name}_{rows}", tensor.plain(rows), tensor.address)


def scalars(strategy: Strategy, tensor: Tensor) -> Values:
    """What the strategy's kernels want to know of a tensor besides its maps."""
    name, view = tensor.name, tensor.view
    if strategy == "offset":
        extent = tensor.longest if _guarded(tensor) else tensor.box_rows
        return {f"{name}_extent": extent, f"{name}_back": 0 if _guarded(tensor) else extent}
    if strategy == "replace":
        return {f"{name}_rows": tensor.address, f"{name}_pitch": tensor.row_bytes}
    if strategy == "mask" and name == "o":
        return {
            "o": tensor.address,
            "o_stride_row": tensor.row_bytes // 2,
            "o_stride_head": tensor.head_bytes // 2,
            "columns_o": view.shape[2],
        }
    return {}


def check_limits(strategy: Strategy, name: str, view: TensorView) -> None:
    """Raises ArgumentError for an array that the strategy cannot describe."""
    if strategy != "ragged" or 0 in view.shape:
        return
    if view.shape[0] > _WRAP_ROWS:
        raise ArgumentError(
            f'{name}: strategy "ragged" takes at most 2^30 tokens, got {view.shape[0]}; use "split"'
        )
    stride = view.strides[0] * 2
    if view.shape[0] > 1 and stride > _WRAP_BYTES:
        raise ArgumentError(
            f'{name}: strategy "ragged" takes at most 2^35 bytes from row to row, got {stride}; '
            'use "split"'
        )


def _ragged(tensor: Tensor) -> TensorMapSpec:
    """(head_dim, rows, heads, wrap, shift), whose strides cancel modulo 2^64."""
    width, heads, row = tensor.view.shape[2], tensor.view.shape[1], tensor.row_bytes
    return tensor.map(
        (width, _WRAP_ROWS, heads, _WRAP_ROWS + 1, tensor.rows + 1),
        (row, tensor.head_bytes, _WRAP_BYTES - row, row),
        tensor.box_rows,
    )


def _guarded(tensor: Tensor) -> bool:
    """Whether as many rows as the longest sequence has are readable in front of the array."""
    return tensor.longest >= tensor.box_rows and tensor.guard >= tensor.longest * tensor.row_bytes


def guard_in_use(strategy: Strategy, tensor: Tensor) -> int:
    """Bytes in front of the array that the strategy's maps begin with."""
    return tensor.longest * tensor.row_bytes if strategy == "offset" and _guarded(tensor) else 0


def _offset(tensor: Tensor) -> TensorMap:
    """(head_dim, mask, heads, offset): example 77's, or within exactly the array."""
    width, heads, row = tensor.view.shape[2], tensor.view.shape[1], tensor.row_bytes
    if _guarded(tensor):
        mask, offsets = tensor.longest, tensor.rows + 1
        address = tensor.address - tensor.longest * row
    else:
        mask = min(tensor.box_rows, tensor.rows)
        offsets = max(tensor.rows - tensor.box_rows, 0) + 1
        address = tensor.address
    spec = tensor.map((width, mask, heads, offsets), (row, tensor.head_bytes, row), tensor.box_rows)
    return TensorMap(f"{tensor.name}_map", spec, address)
