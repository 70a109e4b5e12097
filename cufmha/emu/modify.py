# SPDX-License-Identifier: Apache-2.0
"""Read, change and write back in one step: what atom and red do to memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import WrongSpace
from . import access
from .lanes import Warp
from .memory import LocalMemory
from .types import LANES, UNSIGNED

Update = Callable[..., np.ndarray]


def modify(
    w: Warp,
    mask: np.ndarray,
    addresses: np.ndarray,
    space: str,
    size: int,
    values: list[list[np.ndarray]],
    update: Update,
    *,
    sem: str,
) -> list[np.ndarray]:
    """Applies `update(old, *values[i])` to element i of every lane; the old elements."""
    count = len(values)
    access.require_aligned(addresses, mask, size * count)
    if sem in ("release", "acq_rel", "relaxed"):
        access.release(w, mask, addresses, space, sem=sem)
    olds = [np.zeros(LANES, UNSIGNED[8 * size]) for _ in range(count)]
    for part, where, memory in _places(w, mask, addresses, space, size * count):
        view, index = access.elements_of(memory, where, size)
        access.check(w, memory, where, size * count, write=True, strong=True)
        lanes = np.arange(LANES) if part is None else np.arange(LANES)[part]
        for turn in _turns(w, index):
            for number in range(count):
                at, who = index[turn] + number, lanes[turn]
                old = view[at]
                olds[number][who] = old
                view[at] = update(old, *[value[who] for value in values[number]])
    if sem in ("acquire", "acq_rel", "relaxed"):
        access.acquire(w, mask, addresses, space, sem=sem)
    return olds


def modify_wide(
    w: Warp,
    mask: np.ndarray,
    addresses: np.ndarray,
    space: str,
    values: list[np.ndarray],
    update: Update,
    *,
    sem: str,
) -> np.ndarray:
    """The same for one element of 128 bits, held as two columns of 64."""
    access.require_aligned(addresses, mask, 16)
    access.release(w, mask, addresses, space, sem=sem)
    olds = np.zeros((LANES, 2), np.uint64)
    for part, where, memory in _places(w, mask, addresses, space, 16):
        view, index = access.elements_of(memory, where, 8)
        access.check(w, memory, where, 16, write=True, strong=True)
        lanes = np.arange(LANES) if part is None else np.arange(LANES)[part]
        for turn in _turns(w, index):
            at, who = index[turn][:, None] + np.arange(2), lanes[turn]
            olds[who] = old = view[at]
            view[at] = update(old, *[value[who] for value in values])
    access.acquire(w, mask, addresses, space, sem=sem)
    return olds


def _places(
    w: Warp, mask: np.ndarray, addresses: np.ndarray, space: str, nbytes: int
) -> list[tuple[Any, np.ndarray, Any]]:
    found = access.targets(w, mask, addresses, space, nbytes, write=True)
    if any(isinstance(memory, LocalMemory) for _, _, memory in found):
        raise WrongSpace("atomics work on shared and global memory only")
    return found


def _turns(w: Warp, index: np.ndarray) -> list[np.ndarray]:
    """Positions in groups that touch no cell twice; by seed, who comes first."""
    order = np.arange(len(index))
    if len(np.unique(index)) == len(index):
        return [order]
    if w.machine.seed:
        shuffled = order.tolist()
        w.machine.rng.shuffle(shuffled)
        order = np.array(shuffled)
    cells = index[order]
    sorted_by_cell = np.argsort(cells, kind="stable")
    ordered = cells[sorted_by_cell]
    first = np.searchsorted(ordered, ordered)
    before = np.empty_like(order)  # how many touch the same cell earlier
    before[sorted_by_cell] = np.arange(len(order)) - first
    return [order[before == turn] for turn in range(int(before.max()) + 1)]
