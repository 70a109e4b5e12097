# SPDX-License-Identifier: Apache-2.0
"""Tensor maps in memory: where they may lie, who changed them, and who has acquired the change.

A map that the program writes (tensormap.replace, cp_fenceproxy, ordinary stores) may be used only
after a fence.proxy.tensormap acquire on it (PTX ISA 9.7.13.4), executed by the thread itself or by
one of its block that a barrier orders before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..errors import DescriptorError, Misaligned, MissingProxyFence, WrongSpace
from .memory import PARAM, SHARED
from .tensormap import SIZE, Fields, decode

if TYPE_CHECKING:
    from .lanes import Owner, Warp


class ChangedMaps:
    """Per launch: versions of maps that the program wrote, and what each warp has acquired."""

    def __init__(self, machine: Owner) -> None:
        self.versions: dict[int, int] = {}
        self.released: dict[int, int] = {}
        # (block, map) -> (warp, its epoch, version) of each acquire
        self.acquired: dict[tuple[int, int], list[tuple[int, int, int]]] = {}

    def change(self, address: int) -> None:
        self.versions[address] = self.versions.get(address, 0) + 1

    def release(self, address: int) -> None:
        """What was changed so far may be acquired."""
        if address in self.versions:
            self.released[address] = self.versions[address]

    def acquire(self, warp: Warp, address: int) -> None:
        epoch = int(warp.knowledge.clock[warp.uid])
        entry = (warp.uid, epoch, self.released.get(address, 0))
        self.acquired.setdefault((warp.cta.linear, address), []).append(entry)

    def check(self, warp: Warp, address: int) -> None:
        version = self.versions.get(address)
        if version is None:
            return
        clock = warp.knowledge.clock
        seen = self.acquired.get((warp.cta.linear, address), [])
        if not any(v >= version and (u == warp.uid or clock[u] >= e) for u, e, v in seen):
            raise MissingProxyFence(
                f"the tensor map at {address:#x} was changed and is used with no "
                "fence.proxy.tensormap acquire of that change",
                address=address,
            )


def raw_map(w: Warp, address: int) -> bytes:
    """The 128 bytes at a generic address of parameters, constants or global memory."""
    if address % 64:
        raise Misaligned("a tensor map must lie at a multiple of 64", address=address)
    if address >> 56 == PARAM >> 56:
        at = address - PARAM
        data: np.ndarray = w.machine.params[at : at + SIZE]
        if len(data) < SIZE:
            raise DescriptorError("a tensor map reaches past the parameters", address=address)
        return data.tobytes()
    if address >> 56 == SHARED >> 56:
        raise WrongSpace("a tensor map in shared memory cannot be used", address=address)
    return w.machine.global_memory.view(address, SIZE).tobytes()


def read_map(w: Warp, address: int) -> Fields:
    """The map for use by TMA."""
    w.machine.state(ChangedMaps).check(w, address)
    return decode(raw_map(w, address))
