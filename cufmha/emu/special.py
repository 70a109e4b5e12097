# SPDX-License-Identifier: Apache-2.0
"""Special registers (PTX ISA 10): those fixed for a warp, and the clocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from .types import LANES

if TYPE_CHECKING:
    from .lanes import Warp

_LANE = np.arange(LANES, dtype=np.uint32)


def _every(value: Callable[[Any], int], dtype: str = "uint32") -> Callable[[Warp], np.ndarray]:
    return lambda w: np.full(LANES, value(w), dtype)


def _thread(axis: int) -> Callable[[Warp], np.ndarray]:
    def value(w: Warp) -> np.ndarray:
        x, y, _ = w.machine.block
        linear = _LANE + np.uint32(LANES * w.index)
        parts = (linear % x, linear // x % y, linear // (x * y))
        return parts[axis].astype(np.uint32)

    return value


def _masks(relation: Callable[[int, int], bool]) -> Callable[[Warp], np.ndarray]:
    values = [sum(1 << j for j in range(LANES) if relation(j, i)) for i in range(LANES)]
    return lambda w: np.array(values, np.uint32)


FIXED: dict[str, Callable[[Any], np.ndarray]] = {
    "%laneid": lambda w: _LANE,
    "%warpid": _every(lambda w: w.index),
    "%nwarpid": _every(lambda w: 64),
    "%smid": _every(lambda w: w.cta.linear % w.machine.processors),
    "%nsmid": _every(lambda w: w.machine.processors),
    "%gridid": _every(lambda w: 1, "uint64"),
    "%cluster_ctarank": _every(lambda w: w.cta.rank),
    "%cluster_nctarank": _every(lambda w: w.cta.cluster.size),
    "%dynamic_smem_size": _every(lambda w: w.machine.dynamic_smem_bytes),
    "%total_smem_size": _every(lambda w: w.cta.shared.size),
    "%aggr_smem_size": _every(lambda w: w.cta.shared.size),
    "%reserved_smem_offset_begin": _every(lambda w: 0),
    "%reserved_smem_offset_end": _every(lambda w: 1024),
    "%reserved_smem_offset_cap": _every(lambda w: 1024),
    "%is_explicit_cluster": lambda w: np.full(LANES, w.cta.cluster.size > 1),
    "%lanemask_eq": _masks(lambda j, i: j == i),
    "%lanemask_le": _masks(lambda j, i: j <= i),
    "%lanemask_lt": _masks(lambda j, i: j < i),
    "%lanemask_ge": _masks(lambda j, i: j >= i),
    "%lanemask_gt": _masks(lambda j, i: j > i),
}
for _axis, _name in enumerate("xyz"):
    FIXED[f"%tid.{_name}"] = _thread(_axis)
    FIXED[f"%ntid.{_name}"] = _every(lambda w, a=_axis: w.machine.block[a])  # type: ignore[misc]
    FIXED[f"%ctaid.{_name}"] = _every(lambda w, a=_axis: w.cta.position[a])  # type: ignore[misc]
    FIXED[f"%nctaid.{_name}"] = _every(lambda w, a=_axis: w.machine.grid[a])  # type: ignore[misc]
    FIXED[f"%clusterid.{_name}"] = _every(
        lambda w, a=_axis: w.cta.position[a] // w.machine.cluster[a]  # type: ignore[misc]
    )
    FIXED[f"%nclusterid.{_name}"] = _every(
        lambda w, a=_axis: w.machine.grid[a] // w.machine.cluster[a]  # type: ignore[misc]
    )
    FIXED[f"%cluster_ctaid.{_name}"] = _every(
        lambda w, a=_axis: w.cta.position[a] % w.machine.cluster[a]  # type: ignore[misc]
    )
    FIXED[f"%cluster_nctaid.{_name}"] = _every(
        lambda w, a=_axis: w.machine.cluster[a]  # type: ignore[misc]
    )
for _number in range(32):
    FIXED[f"%envreg{_number}"] = _every(lambda w: 0)

CHANGING: dict[str, Callable[[Any], np.ndarray]] = {
    "%clock": lambda w: np.full(LANES, w.machine.time() & 0xFFFFFFFF, np.uint32),
    "%clock_hi": lambda w: np.full(LANES, w.machine.time() >> 32, np.uint32),
    "%clock64": lambda w: np.full(LANES, w.machine.time(), np.uint64),
    "%globaltimer": lambda w: np.full(LANES, w.machine.time(), np.uint64),
    "%globaltimer_lo": lambda w: np.full(LANES, w.machine.time() & 0xFFFFFFFF, np.uint32),
    "%globaltimer_hi": lambda w: np.full(LANES, w.machine.time() >> 32, np.uint32),
}

WIDTHS: dict[str, int] = {"%gridid": 64, "%clock64": 64, "%globaltimer": 64,
                          "%is_explicit_cluster": 1}  # fmt: skip


def is_special(name: str) -> bool:
    return name in FIXED or name in CHANGING


def kind_of(name: str) -> str:
    """The PTX type a special register reads as."""
    bits = WIDTHS.get(name, 32)
    return "pred" if bits == 1 else f"u{bits}"


def reader(name: str) -> Callable[[Warp], Any]:
    return FIXED.get(name) or CHANGING[name]
