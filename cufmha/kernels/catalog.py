# SPDX-License-Identifier: Apache-2.0
"""Every kernel variant: its file, the values its template takes, and what a launch must know.

The numbers stand here once; the templates get them as values. A variant is built per
(kernel, target, head_dim, dtype, mask); `head_dim` is the padded one, 64 or 128.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

HEAD_DIMS = (64, 128)
DTYPES = ("bf16", "f16")


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelVariant:
    """One compiled kernel.

    Attributes
    ----------
    kernel : str
        Entry name, also the file's name in ptx/<family>/.
    target : str
        The `.target` it is written for ("sm_90a", "sm_100f").
    family : str
        Folder of the template: "sm90" or "sm100".
    head_dim, dtype, causal
        What the variant computes.
    tile_q, tile_k : int
        Query rows of a block's tile, keys of a step.
    values : tuple of (name, value)
        Template values beyond those above.
    threads, shared_bytes : int
        Of the launch.
    box_q, box_k, box_o : int
        Rows of the boxes of the q map, the k and v maps, and the o map.
    roles : tuple of (threads, registers)
        Registers a thread that setmaxnreg gives each role; empty where it is not used.
    """

    kernel: str
    target: str
    family: str
    head_dim: int
    dtype: str
    causal: bool
    tile_q: int
    tile_k: int
    values: tuple[tuple[str, int], ...]
    threads: int
    shared_bytes: int
    box_q: int
    box_k: int
    box_o: int
    roles: tuple[tuple[int, int], ...]

    @property
    def template(self) -> str:
        """Path below ptx/."""
        return f"{self.family}/{self.kernel}.ptx"

    @property
    def name(self) -> str:
        """A file-safe name, unique in the catalog."""
        mask = "causal" if self.causal else "full"
        return f"{self.kernel}_{self.target}_d{self.head_dim}_{self.dtype}_{mask}"

    def __str__(self) -> str:
        return self.name

    def template_values(self) -> dict[str, Any]:
        return {
            "arch": self.target,
            "head_dim": self.head_dim,
            "dtype": self.dtype,
            "causal": self.causal,
            "tile_q": self.tile_q,
            "tile_k": self.tile_k,
            "threads": self.threads,
            **dict(self.values),
        }


def _sm90(head_dim: int, dtype: str, causal: bool) -> KernelVariant:
    """Two consumer groups at head_dim 128, three at 64; a producer group beside them."""
    if head_dim == 128:
        tile_q, tile_k, stages, producer, consumer = 128, 128, 2, 40, 232
    else:
        tile_q, tile_k, stages, producer, consumer = 192, 96, 2, 32, 160
    threads = 128 + 2 * tile_q
    rows = 2 * tile_q + 2 * stages * tile_k
    return KernelVariant(
        kernel="fmha_fwd",
        target="sm_90a",
        family="sm90",
        head_dim=head_dim,
        dtype=dtype,
        causal=causal,
        tile_q=tile_q,
        tile_k=tile_k,
        values=(
            ("stages", stages),
            ("producer_registers", producer),
            ("consumer_registers", consumer),
        ),
        threads=threads,
        shared_bytes=rows * head_dim * 2 + 8 * (2 + 4 * stages),
        box_q=tile_q,
        box_k=tile_k,
        box_o=64,
        roles=((128, producer), (threads - 128, consumer)),
    )


@cache
def variants() -> tuple[KernelVariant, ...]:
    """The whole catalog."""
    return tuple(_every())


def _every() -> Iterator[KernelVariant]:
    for make in (_sm90,):
        for head_dim in HEAD_DIMS:
            for dtype in DTYPES:
                for causal in (False, True):
                    yield make(head_dim, dtype, causal)


def targets_for(arch: str) -> tuple[str, ...]:
    """The `.target`s that run on a chip such as "sm_90a", the one to prefer first."""
    return {"sm_90a": ("sm_90a",), "sm_100a": ("sm_100f",), "sm_103a": ("sm_100f",)}.get(arch, ())


def find(
    kernel: str, arch: str, *, head_dim: int, dtype: str, causal: bool
) -> KernelVariant | None:
    """The variant for a chip and a real head_dim up to the padded one, or None."""
    wanted = targets_for(arch)
    fitting = [
        v
        for v in variants()
        if v.kernel == kernel
        and v.target in wanted
        and v.dtype == dtype
        and v.causal == causal
        and head_dim <= v.head_dim
    ]
    return min(fitting, key=lambda v: (wanted.index(v.target), v.head_dim), default=None)
