# SPDX-License-Identifier: Apache-2.0
"""Loads and stores of a warp: bounds, alignment, hazards, and the gather or scatter itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import Misaligned, OutOfBounds, ReadOnly, Uninitialized, WrongSpace
from .lanes import Owner, Warp
from .memory import LOCAL, PARAM, SHARED, LocalMemory, Range, SharedMemory
from .ordering import Cells
from .types import LANES, UNSIGNED, some

_OFFSET = np.uint64(0xFFFFFF)
_TOP = np.uint64(56)


def load(
    w: Warp,
    mask: np.ndarray,
    addresses: np.ndarray,
    space: str,
    size: int,
    count: int,
    *,
    align: int = 0,
    strong: bool = False,
) -> list[np.ndarray]:
    """`count` elements of `size` bytes per lane, as unsigned arrays; inactive lanes hold zeros.

    `strong`: volatile, relaxed and the like, which race with plain accesses only.
    """
    require_aligned(addresses, mask, align or size * count)
    found = [np.zeros(LANES, UNSIGNED[8 * size]) for _ in range(count)]
    for part, where, memory in targets(w, mask, addresses, space, size * count, write=False):
        if isinstance(memory, LocalMemory):
            _load_local(part, where, memory, size, found)
            continue
        elements = elements_of(memory, where, size)
        check(w, memory, where, size * count, write=False, strong=strong)
        view, index = elements
        for number in range(count):
            if part is None:
                found[number] = view[index + number]
            else:
                found[number][part] = view[index + number]
    return found


def store(
    w: Warp,
    mask: np.ndarray,
    addresses: np.ndarray,
    space: str,
    size: int,
    values: list[np.ndarray],
    *,
    align: int = 0,
    strong: bool = False,
) -> None:
    """Lanes in ascending order: of several that write one place, the highest wins."""
    count = len(values)
    require_aligned(addresses, mask, align or size * count)
    for part, where, memory in targets(w, mask, addresses, space, size * count, write=True):
        if isinstance(memory, LocalMemory):
            _store_local(part, where, memory, size, values)
            continue
        view, index = elements_of(memory, where, size)
        if w.machine.rules == "hardware" and _changes_nothing(part, memory, view, index, values):
            continue
        check(w, memory, where, size * count, write=True, strong=strong)
        for number in range(count):
            view[index + number] = values[number] if part is None else values[number][part]


def _changes_nothing(
    part: Any, memory: Any, view: np.ndarray, index: np.ndarray, values: list[np.ndarray]
) -> bool:
    """Warps that all store the value which is there already do no harm to each other."""
    if not isinstance(memory, SharedMemory) or memory.shadow is None:
        return False
    if not memory.shadow.initialized[index * view.itemsize].all():  # type: ignore[index]
        return False
    return all(
        (view[index + number] == (each if part is None else each[part])).all()
        for number, each in enumerate(values)
    )


def require_aligned(addresses: np.ndarray, mask: np.ndarray, align: int) -> None:
    if align == 1:
        return
    bad = (addresses & np.uint64(align - 1)) != 0
    if some(bad) and some(bad := bad & mask):
        lane = int(np.argmax(bad))
        raise Misaligned(
            f"address must be a multiple of {align}", lanes=np.flatnonzero(bad).tolist(),
            address=int(addresses[lane]),
        )  # fmt: skip


def targets(
    w: Warp, mask: np.ndarray, addresses: np.ndarray, space: str, nbytes: int, *, write: bool
) -> list[tuple[Any, np.ndarray, Any]]:
    """(lanes or None for all, offsets or addresses of those lanes, memory) for every memory hit."""
    part = None if w.full and mask is w.mask else mask
    where = addresses if part is None else addresses[part]
    if space == "":
        return _generic(w, mask, addresses, nbytes, write=write)
    if space.startswith("shared"):
        return _shared(w, mask, part, where, space, nbytes)
    if space == "local":
        return [(mask, _local_offsets(w, where, nbytes), w.state(_Local).memory)]
    if space == "global":
        return _global(w, mask, part, where, nbytes, write=write)
    raise WrongSpace(f"{space} memory cannot be accessed so")


def _shared(
    w: Warp, mask: np.ndarray, part: Any, where: np.ndarray, space: str, nbytes: int
) -> list[tuple[Any, np.ndarray, Any]]:
    own = w.cta.shared
    offsets = (where & _OFFSET).astype(np.int64)
    ranks = where >> np.uint64(24)
    if some(ranks == own.cta.rank) == len(ranks):
        _within(own, offsets, mask, nbytes)
        return [(part, offsets, own)]
    found = []
    lanes = np.flatnonzero(mask)
    for rank in np.unique(ranks).tolist():
        if rank >= w.cta.cluster.size:
            raise OutOfBounds("address outside the cluster's shared memory", address=int(where[0]))
        if rank != own.cta.rank and space == "shared":
            raise WrongSpace(
                f"an address of block {rank} of the cluster with .shared::cta",
                address=int(where[ranks == rank][0]),
            )
        memory = w.cta.cluster.ctas[rank].shared
        chosen = ranks == rank
        _within(memory, offsets[chosen], mask, nbytes)
        found.append((lanes[chosen], offsets[chosen], memory))
    return found


def _within(memory: SharedMemory, offsets: np.ndarray, mask: np.ndarray, nbytes: int) -> None:
    lo, hi = int(offsets.min()), int(offsets.max())
    if lo < 1024 or hi + nbytes > memory.end:
        bad = (offsets < 1024) | (offsets + nbytes > memory.end)
        raise OutOfBounds(
            f"{nbytes} bytes at shared memory offset {int(offsets[bad][0])}; the block has "
            f"1024 to {memory.end - 1}",
            lanes=np.flatnonzero(mask)[bad].tolist(),
            address=memory.base + int(offsets[bad][0]),
        )


def _global(
    w: Warp, mask: np.ndarray, part: Any, where: np.ndarray, nbytes: int, *, write: bool
) -> list[tuple[Any, np.ndarray, Any]]:
    """Most often one array holds them all; else lane by lane."""
    memory = w.machine.global_memory
    lo, hi = int(where.min()), int(where.max())
    if lo >> 56:
        raise WrongSpace("a generic address of another space used as global", address=lo)
    try:
        return [(part, where, memory.find(lo, hi - lo + nbytes, write=write))]
    except OutOfBounds:
        pass
    found: dict[int, tuple[Range, list[int]]] = {}
    lanes = np.flatnonzero(mask)
    for lane, address in zip(lanes.tolist(), where.tolist(), strict=True):
        try:
            hit = memory.find(address, nbytes, write=write)
        except OutOfBounds as error:
            error.lanes = (lane,)
            raise
        found.setdefault(id(hit), (hit, []))[1].append(lane)
    full = np.zeros(LANES, np.uint64)
    full[lanes] = where
    return [(np.array(group), full[group], hit) for hit, group in found.values()]


def _generic(
    w: Warp, mask: np.ndarray, addresses: np.ndarray, nbytes: int, *, write: bool
) -> list[tuple[Any, np.ndarray, Any]]:
    windows = addresses >> _TOP
    found = []
    for window in np.unique(windows[mask]).tolist():
        lanes = mask & (windows == window)
        where = addresses[lanes]
        if window == 0:
            found += _global(w, lanes, lanes, where, nbytes, write=write)
        elif window == SHARED >> 56:
            low = where & np.uint64(0xFFFFFFFF)
            found += _shared(w, lanes, lanes, low, "shared::cluster", nbytes)
        elif window == LOCAL >> 56:
            low = where - np.uint64(LOCAL)
            found.append((lanes, _local_offsets(w, low, nbytes), w.state(_Local).memory))
        elif window == PARAM >> 56:
            found.append((lanes, *_parameters(w, where - np.uint64(PARAM), nbytes, write=write)))
        else:
            raise WrongSpace("no address of any window", address=int(where[0]))
    return found


def _parameters(
    w: Warp, offsets: np.ndarray, nbytes: int, *, write: bool
) -> tuple[np.ndarray, Range]:
    """Kernel parameters by generic address (cvta.param): read only."""
    memory = w.machine.parameters
    if write:
        raise ReadOnly("kernel parameters cannot be written", address=PARAM + int(offsets[0]))
    if int(offsets.max()) + nbytes > memory.hi - memory.lo:
        raise OutOfBounds(
            f"{nbytes} bytes at offset {int(offsets.max())} of {memory.hi - memory.lo} bytes of "
            "parameters",
            address=PARAM + int(offsets.max()),
        )
    return offsets + np.uint64(memory.lo), memory


def elements_of(
    memory: SharedMemory | Range, where: np.ndarray, size: int
) -> tuple[np.ndarray, np.ndarray]:
    """The memory as elements of `size` bytes, and the lanes' indices into it."""
    if isinstance(memory, SharedMemory):
        return memory.views[size], where // size
    start, view = memory.elements(size)
    return view, ((where - np.uint64(start)) // np.uint64(size)).astype(np.int64)


def check(
    w: Warp,
    memory: SharedMemory | Range,
    where: np.ndarray,
    nbytes: int,
    *,
    write: bool,
    strong: bool = False,
) -> None:
    """The hazards of an access; several lanes may touch one place."""
    shadow = memory.shadow
    if shadow is None:
        return
    offsets = memory.offsets(where) if isinstance(memory, Range) else where
    shadow.access(w, offsets, nbytes, write=write, strong=strong)


# ---- local memory


class _Local:
    def __init__(self, w: Owner) -> None:
        self.memory = LocalMemory(w.program.local_size)  # type: ignore[attr-defined]


def _local_offsets(w: Warp, where: np.ndarray, nbytes: int) -> np.ndarray:
    offsets = where.astype(np.int64)
    if (offsets < 0).any() or (offsets + nbytes > w.program.local_size).any():
        raise OutOfBounds(
            f"{nbytes} bytes at local memory offset {int(offsets.max())} of {w.program.local_size}",
            address=int(offsets.max()),
        )
    return offsets


def _load_local(
    part: Any, where: np.ndarray, memory: LocalMemory, size: int, found: list[np.ndarray]
) -> None:
    lanes = np.arange(LANES) if part is None else np.arange(LANES)[part]
    for number, values in enumerate(found):
        columns = where[:, None] + size * number + np.arange(size)
        if not memory.initialized[lanes[:, None], columns].all():
            raise Uninitialized("local memory is read that this lane has not written")
        raw = np.ascontiguousarray(memory.data[lanes[:, None], columns])
        values[lanes] = raw.view(UNSIGNED[8 * size])[:, 0]


def _store_local(
    part: Any, where: np.ndarray, memory: LocalMemory, size: int, values: list[np.ndarray]
) -> None:
    lanes = np.arange(LANES) if part is None else np.arange(LANES)[part]
    for number, each in enumerate(values):
        columns = where[:, None] + size * number + np.arange(size)
        raw = np.ascontiguousarray(each[lanes]).view(UNSIGNED[8 * size])
        memory.data[lanes[:, None], columns] = raw[:, None].view(np.uint8).reshape(-1, size)
        memory.initialized[lanes[:, None], columns] = True


# ---- parameters, acquire and release


def check_parameter(at: int, nbytes: int, align: int, size: int) -> None:
    if at < 0 or at + nbytes > size:
        raise OutOfBounds(f"{nbytes} bytes at parameter offset {at} of {size}", address=at)
    if at % align:
        raise Misaligned(f"parameter offset must be a multiple of {align}", address=at)


def release(
    w: Warp, mask: np.ndarray, addresses: np.ndarray, space: str, *, sem: str = "release"
) -> None:
    """Before a strong write: whoever acquires from these addresses learns what w published."""
    if w.machine.hazards:
        w.machine.state(Cells).release(w, _cells(w, mask, addresses, space), sem=sem)


def acquire(
    w: Warp, mask: np.ndarray, addresses: np.ndarray, space: str, *, sem: str = "acquire"
) -> None:
    """After a strong read: learn what was released there, at once or with the next fence."""
    if w.machine.hazards:
        w.machine.state(Cells).acquire(w, _cells(w, mask, addresses, space), sem=sem)


def _cells(w: Warp, mask: np.ndarray, addresses: np.ndarray, space: str) -> list[tuple[int, int]]:
    """Shared addresses mean something within their cluster only."""
    low = (1 << 56) - 1
    found = []
    for address in np.unique(addresses[mask]).tolist():
        here = space.startswith("shared") or address >> 56 == SHARED >> 56
        found.append((w.cta.cluster.number if here else -1, address & low))
    return found


def is_parameter(address: int) -> bool:
    return address >> 56 == PARAM >> 56
