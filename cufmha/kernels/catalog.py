# SPDX-License-Identifier: Apache-2.0
"""Every kernel there is: `KernelVariant`, and the numbers that its template is rendered with.

The tile sizes, stages, threads and registers below are the only place where they are decided: the
templates take them as values, the launches read them here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any, Final

from ..errors import ArgumentError

# chip -> the target whose text it runs
CHIPS: Final = {"sm_90a": "sm_90a", "sm_100a": "sm_100f", "sm_103a": "sm_100f"}
TARGETS: Final = ("sm_90a", "sm_100f")
HEAD_DIMS: Final = ((64, 64), (128, 128), (192, 128))
"""Of q and k, of v and out."""
DTYPES: Final = ("bf16", "f16")
STRATEGIES: Final = ("offset", "replace", "mask", "ragged", "split")
"""How kernels for packed sequences reach a sequence's rows and no other: docs/varlen.md."""
SCHEDULE_THREADS: Final = (32, 256, 1024)
SORTED_SEQUENCES: Final = 1024
"""Up to so many sequences are taken longest first, beyond in order."""
MAX_SPLITS: Final = 256
"""Parts that the keys of a query tile are split into at most."""
_MERGE_THREADS: Final = 128


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelVariant:
    """One kernel: a template and the values it is rendered with.

    Attributes
    ----------
    operation : str
        Name of the entry: "fmha_fwd"; "varlen_schedule", which prepares the work of a launch on
        packed sequences; or "merge_splits", which follows a launch with split keys.
    arch : str
        The text's target: "sm_90a", or "sm_100f", which runs on sm_100a and sm_103a.
    head_dim, head_dim_v : int
        The largest of q and k, and of v and out, that it serves; smaller ones are the tensor maps'
        business.
    dtype : str
        "bf16" or "f16".
    causal : bool
    strategy : str
        One of `STRATEGIES`; "" for a dense batch.
    split_kv : bool
        Whether the keys of a query tile are shared out among several items, which leave partial
        results in a workspace for `merge_splits`; of dense batches alone.
    file : str
        The template, from the root of ptx/.
    tile_q, tile_k : int
        Query rows of a work item, keys of a step.
    threads, smem_bytes : int
        Of a block; the shared memory is dynamic.
    box_rows_q, box_rows_kv, box_rows_o : int
        Rows of the tensor maps' boxes, which are 64 columns wide.
    roles : tuple of (registers, threads)
        After setmaxnreg.
    maps : int
        Tensor maps that a block rewrites (strategy "replace"); each has two slots of 128 bytes.
    persistent : bool
        Whether a block takes items in turn, so that a grid of one block a processor is best;
        otherwise one block an item is wanted.
    template : tuple of (name, value)
        All that the template is rendered with.
    """

    operation: str
    arch: str
    head_dim: int
    head_dim_v: int
    dtype: str
    causal: bool
    strategy: str
    file: str
    tile_q: int
    tile_k: int
    threads: int
    smem_bytes: int
    box_rows_q: int
    box_rows_kv: int
    box_rows_o: int
    roles: tuple[tuple[int, int], ...]
    persistent: bool
    template: tuple[tuple[str, Any], ...]
    maps: int = 0
    split_kv: bool = False

    @property
    def name(self) -> str:
        """Names the variant and its cubin file: "fmha_fwd-sm_90a-d128-bf16-causal-split"."""
        if self.operation == "varlen_schedule":
            return f"{self.operation}-{self.arch}-{self.threads}"
        if self.operation == "merge_splits":
            return f"{self.operation}-{self.arch}-d{self.head_dim_v}-{self.dtype}"
        mask = "causal" if self.causal else "full"
        width = f"d{self.head_dim}"
        if self.head_dim_v != self.head_dim:
            width += f"x{self.head_dim_v}"
        packed = f"-{self.strategy}" if self.strategy else ""
        split = "-splitkv" if self.split_kv else ""
        return f"{self.operation}-{self.arch}-{width}-{self.dtype}-{mask}{packed}{split}"

    def __str__(self) -> str:
        return self.name


def variants(arch: str | None = None) -> tuple[KernelVariant, ...]:
    """All kernels, or those for one chip or target.

    Raises
    ------
    ArgumentError
        For an arch that is neither.
    """
    if arch is None:
        return _all()
    target = CHIPS.get(arch, arch)
    if target not in TARGETS:
        known = ", ".join(sorted({*CHIPS, *TARGETS}))
        raise ArgumentError(f"arch: must be one of {known}, got {arch!r}")
    return tuple(variant for variant in _all() if variant.arch == target)


@cache
def _all() -> tuple[KernelVariant, ...]:
    return (*_sm90_forward(), *_sm100_forward(), *_schedules(), *_merges())


def _shapes() -> Iterator[tuple[int, int, str, bool, str, bool]]:
    kinds = (("", False), *((strategy, False) for strategy in STRATEGIES), ("", True))
    for (strategy, split_kv), (head_dim, head_dim_v), dtype, causal in product(
        kinds, HEAD_DIMS, DTYPES, (False, True)
    ):
        yield head_dim, head_dim_v, dtype, causal, strategy, split_kv


@cache
def with_split_kv(variant: KernelVariant) -> KernelVariant:
    """The kernel that does the same for one share of the keys."""
    return next(
        v
        for v in variants(variant.arch)
        if v.split_kv
        and (v.head_dim, v.head_dim_v) == (variant.head_dim, variant.head_dim_v)
        and (v.dtype, v.causal) == (variant.dtype, variant.causal)
    )


@cache
def merge_variant(variant: KernelVariant) -> KernelVariant:
    """The kernel that merges what the splits of a variant leave."""
    wanted = (variant.arch, variant.head_dim_v, variant.dtype)
    return next(v for v in _merges() if (v.arch, v.head_dim_v, v.dtype) == wanted)


def schedule_variant(arch: str, batch: int) -> KernelVariant:
    """The kernel that prepares the work of `batch` sequences, of a text's target."""
    offered = [v for v in _schedules() if v.arch == arch]
    return next((v for v in offered if v.threads >= batch), offered[-1])


def _work_bytes(at: int, maps: int, strategy: str) -> int:
    """Shared memory of a packed kernel, whose dense twin's ends at `at`.

    Four barriers, two slots of work, and with `replace` copies of its maps (include/work.ptx).
    """
    if not strategy:
        return at
    slots_end = -(-(at + 32) // 16) * 16 + 64
    return -(-slots_end // 128) * 128 + 128 * maps if strategy == "replace" else slots_end


def _schedules() -> Iterator[KernelVariant]:
    """ptx/varlen_schedule.ptx: one block with a thread a sequence, or more sequences a thread."""
    for arch, threads in product(TARGETS, SCHEDULE_THREADS):
        yield KernelVariant(
            operation="varlen_schedule",
            arch=arch,
            head_dim=0,
            head_dim_v=0,
            dtype="",
            causal=False,
            strategy="",
            file="varlen_schedule.ptx",
            tile_q=0,
            tile_k=0,
            threads=threads,
            smem_bytes=0,
            box_rows_q=0,
            box_rows_kv=0,
            box_rows_o=0,
            roles=(),
            persistent=False,
            template=(("arch", arch), ("threads", threads)),
        )


def _merges() -> Iterator[KernelVariant]:
    """ptx/merge_splits.ptx: a warp a row of out."""
    widths = sorted({head_dim_v for _, head_dim_v in HEAD_DIMS})
    for arch, head_dim_v, dtype in product(TARGETS, widths, DTYPES):
        yield KernelVariant(
            operation="merge_splits",
            arch=arch,
            head_dim=0,
            head_dim_v=head_dim_v,
            dtype=dtype,
            causal=False,
            strategy="",
            file="merge_splits.ptx",
            tile_q=0,
            tile_k=0,
            threads=_MERGE_THREADS,
            smem_bytes=0,
            box_rows_q=0,
            box_rows_kv=0,
            box_rows_o=0,
            roles=(),
            persistent=False,
            template=(
                ("arch", arch),
                ("head_dim_v", head_dim_v),
                ("dtype", dtype),
                ("threads", _MERGE_THREADS),
            ),
        )


def _sm90_forward() -> Iterator[KernelVariant]:
    """ptx/sm90/fmha_fwd.ptx: a producer group and two or three consumer groups of 64 rows."""
    stages = 2
    numbers = {64: (192, 96, 32, 160), 128: (128, 128, 40, 232), 192: (128, 112, 40, 232)}
    for head_dim, head_dim_v, dtype, causal, strategy, split_kv in _shapes():
        tile_q, tile_k, producer, consumer = numbers[head_dim]
        threads = 128 + 2 * tile_q
        yield KernelVariant(
            operation="fmha_fwd",
            arch="sm_90a",
            head_dim=head_dim,
            head_dim_v=head_dim_v,
            dtype=dtype,
            causal=causal,
            strategy=strategy,
            file="sm90/fmha_fwd.ptx",
            tile_q=tile_q,
            tile_k=tile_k,
            threads=threads,
            smem_bytes=_work_bytes(
                2 * (head_dim + head_dim_v) * (tile_q + stages * tile_k) + 8 * (2 + 4 * stages),
                3 + tile_q // 64,
                strategy,
            ),
            box_rows_q=tile_q,
            box_rows_kv=tile_k,
            box_rows_o=64,
            maps=3 + tile_q // 64 if strategy == "replace" else 0,
            roles=((producer, 128), (consumer, 2 * tile_q)),
            persistent=True,
            split_kv=split_kv,
            template=(
                ("arch", "sm_90a"),
                ("head_dim", head_dim),
                ("head_dim_v", head_dim_v),
                ("dtype", dtype),
                ("causal", causal),
                ("strategy", strategy),
                ("split_kv", split_kv),
                ("tile_q", tile_q),
                ("tile_k", tile_k),
                ("stages", stages),
                ("threads", threads),
                ("producer_registers", producer),
                ("consumer_registers", consumer),
            ),
        )


def _sm100_forward() -> Iterator[KernelVariant]:
    """ptx/sm100/fmha_fwd.ptx: two tiles of 128 query rows in flight, roles by warp."""
    half_q, tile_k, threads = 128, 128, 512
    for head_dim, head_dim_v, dtype, causal, strategy, split_kv in _shapes():
        stages = {64: 6, 128: 3, 192: 2}[head_dim]
        softmax, output, other = (176, 80, 80) if head_dim > 128 else (184, 80, 64)
        # o has room of its own, unless it lies over q or never enters shared memory
        width_o = 0 if head_dim > 128 or strategy == "mask" or split_kv else head_dim_v
        cells = 2 * half_q * (head_dim + width_o) + stages * tile_k * head_dim
        yield KernelVariant(
            operation="fmha_fwd",
            arch="sm_100f",
            head_dim=head_dim,
            head_dim_v=head_dim_v,
            dtype=dtype,
            causal=causal,
            strategy=strategy,
            file="sm100/fmha_fwd.ptx",
            tile_q=2 * half_q,
            tile_k=tile_k,
            threads=threads,
            smem_bytes=_work_bytes(2 * cells + 16 * half_q + 8 * (18 + 2 * stages), 4, strategy),
            box_rows_q=half_q,
            box_rows_kv=tile_k,
            box_rows_o=half_q,
            maps=4 if strategy == "replace" else 0,
            roles=((softmax, 256), (output, 128), (other, 128)),
            persistent=True,
            split_kv=split_kv,
            template=(
                ("arch", "sm_100f"),
                ("head_dim", head_dim),
                ("head_dim_v", head_dim_v),
                ("dtype", dtype),
                ("causal", causal),
                ("strategy", strategy),
                ("split_kv", split_kv),
                ("tile_q", 2 * half_q),
                ("tile_k", tile_k),
                ("stages", stages),
                ("threads", threads),
                ("softmax_registers", softmax),
                ("output_registers", output),
                ("other_registers", other),
                ("power_share", 2),
            ),
        )
