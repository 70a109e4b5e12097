# SPDX-License-Identifier: Apache-2.0
"""Keys split among processors: into how many parts, and the launch that merges the parts' results.

A launch is two kernels on one stream then: fmha_fwd, whose items are the parts, writes float32
results into a workspace, and merge_splits makes out and lse of them.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from .device.base import Region
from .errors import ArgumentError, DTypeError, UnsupportedError
from .kernels.catalog import MAX_SPLITS, KernelVariant, merge_variant
from .operands import LARGEST_GRID, span
from .spec import AttentionSpec, Mask, ProblemShape

if TYPE_CHECKING:
    from .array.view import TensorView
    from .device.base import Device, Launch
    from .workspaces import Workspace

_FEWEST_TILES = 2
_ITEMS_A_PROCESSOR = 4  # at most, which bounds the workspace
# What a launch costs beside its products, in the time that a tile of keys takes: docs/split-kv.md
_ITEM_TILES = 3
_MERGE_TILES = 3
_SPLITS_A_TILE = 32


def check_num_splits(value: Any) -> int | None:
    """None, or a whole number from 1 to `MAX_SPLITS`."""
    if value is None:
        return None
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise DTypeError(f"num_splits: must be a whole number or None, got {type(value).__name__}")
    if not 1 <= number <= MAX_SPLITS:
        raise ArgumentError(f"num_splits: must be 1 to {MAX_SPLITS}, or None, got {number}")
    return number


def choose_num_splits(
    spec: AttentionSpec, shape: ProblemShape, variant: KernelVariant, processors: int
) -> int:
    """Into how many parts the keys are best split: 1 where there is work for every processor."""
    tiles_q = -(-shape.seqlen_q // variant.tile_q)
    heads = spec.num_heads_q * shape.batch
    turns = heads * (-(-tiles_q // 2) if variant.causal else tiles_q)
    if not turns or turns >= processors:
        return 1
    tiles = tuple(_tiles_of_a_turn(spec, shape, variant))
    most_items = _ITEMS_A_PROCESSOR * processors // (heads * tiles_q)
    most = min(max(tiles) // _FEWEST_TILES, most_items, MAX_SPLITS)
    return _fastest(turns, tiles, processors, most)


@lru_cache(maxsize=1024)
def _fastest(turns: int, tiles: tuple[int, ...], processors: int, most: int) -> int:
    """The number of parts, up to `most`, for which the processor with most to do is done first.

    The estimate counts in tiles of keys. 1 unless another number gains a tenth.
    """

    def cost(splits: int) -> int:
        turns_each = -(-turns * splits // processors)
        tiles_each = sum(-(-count // splits) + _ITEM_TILES for count in tiles)
        merge = _SPLITS_A_TILE * _MERGE_TILES + splits if splits > 1 else 0
        return _SPLITS_A_TILE * turns_each * tiles_each + merge

    best = min(range(1, max(most, 1) + 1), key=cost)
    return best if 11 * cost(best) < 10 * cost(1) else 1


def _tiles_of_a_turn(
    spec: AttentionSpec, shape: ProblemShape, variant: KernelVariant
) -> Iterator[int]:
    """Key tiles of each item that a block takes at a time: one, or under a causal mask a pair."""
    rows, keys, tile_q = shape.seqlen_q, shape.seqlen_k, variant.tile_q
    ends = [rows]
    if variant.causal and rows > tile_q:
        ends.append(tile_q)
    offset = keys - rows if spec.mask is Mask.CAUSAL else 0
    for end in ends:
        seen = min(max(end + offset, 0), keys) if variant.causal else keys
        yield -(-seen // variant.tile_k)


@dataclass(frozen=True, slots=True)
class SplitLaunch:
    """Both kernels, one behind the other. Keeps the workspace alive."""

    attention: Launch
    merge: Launch
    workspace: Workspace

    def __call__(self, stream: int) -> None:
        with self.workspace.turn:  # another thread's launches would write between the two
            self.attention(stream)
            self.merge(stream)


class Splits:
    """The parts of a plan: their workspace, and how they are merged.

    Attributes
    ----------
    count : int
    workspace_bytes : int
        For each part of the keys, query and head: head_dim_v of the kernel and two float32.
    """

    def __init__(
        self,
        spec: AttentionSpec,
        shape: ProblemShape,
        count: int,
        *,
        variant: KernelVariant,
        device: Device,
    ) -> None:
        self.count = count
        self._spec, self._shape = spec, shape
        self._rows = spec.num_heads_q * shape.batch * shape.seqlen_q
        if self._rows > LARGEST_GRID:
            raise UnsupportedError(
                f"num_splits: {count} need batch x heads x seqlen_q of at most {LARGEST_GRID}, "
                f"got {self._rows}"
            )
        self._bytes_o = 4 * variant.head_dim_v * self._rows * count
        self.workspace_bytes = self._bytes_o + 8 * self._rows * count
        self._kernel = device.kernel(merge_variant(variant))

    def places(self, workspace: Workspace) -> dict[str, int]:
        """Where the partial results are, by the kernels' parameters."""
        return {
            "partial_o": workspace.address,
            "partial_sums": workspace.address + self._bytes_o,
        }

    def region(self, workspace: Workspace) -> Region:
        return Region(workspace.address, self.workspace_bytes, True, "workspace")

    def prepare(
        self, out: TensorView, lse: TensorView | None, scale_log2: float, workspace: Workspace
    ) -> Launch:
        """The launch that merges the parts."""
        layout, spec = self._spec.layout, self._spec
        regions = [self.region(workspace), Region(out.pointer, span(out), True, "out")]
        values: dict[str, int | float | bytes] = {
            **self.places(workspace),
            "out": out.pointer,
            "out_stride_batch": out.strides[0],
            "out_stride_head": out.strides[layout.index("h")],
            "out_stride_row": out.strides[layout.index("s")],
            "lse": 0,
            "lse_stride_batch": 0,
            "lse_stride_head": 0,
            "num_splits": self.count,
            "num_heads_q": spec.num_heads_q,
            "seqlen_q": self._shape.seqlen_q,
            "num_rows": self._rows,
            "columns_o": out.shape[3],
            "scale_log2": scale_log2,
        }
        if lse is not None:
            regions.append(Region(lse.pointer, span(lse), True, "lse"))
            values |= {
                "lse": lse.pointer,
                "lse_stride_batch": lse.strides[0],
                "lse_stride_head": lse.strides[1],
            }
        params = bytes(self._kernel.parameters.pack(values))
        grid = -(-self._rows // (self._kernel.variant.threads // 32))
        return self._kernel.prepare(grid=grid, params=params, regions=regions)
