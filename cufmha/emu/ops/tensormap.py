# SPDX-License-Identifier: Apache-2.0
"""Changing tensor maps on the device (PTX ISA 9.7.9.28, 9.7.13.16) and their proxy fences."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ...errors import IllegalInstruction, UnsupportedInstruction
from ...isa import nodes
from ..context import Context
from ..lanes import Warp
from ..maps import ChangedMaps
from ..memory import SHARED
from ..registry import operation
from ..tensormap import SIZE, Fields, decode

# tensormap.replace counts element types in its own order
_ELEMENTS = (0, 1, 2, 3, 4, 5, 6, 7, 10, 8, 9, 11, 12)
_SWIZZLES = (0, 1, 2, 3)
_PLAIN = ("rank", "elemtype", "interleave_layout", "swizzle_mode", "swizzle_atomicity", "fill_mode",
          "global_address")  # fmt: skip
_INDEXED = {"box_dim": "box", "global_dim": "dims", "global_stride": "strides",
            "element_stride": "steps"}  # fmt: skip


def _lanes(mask: np.ndarray) -> list[int]:
    return np.flatnonzero(mask).tolist()


def _view(w: Warp, address: int, space: str) -> np.ndarray:
    if space == "shared" or address >> 56 == SHARED >> 56:
        return w.cta.shared.view(address & 0xFFFFFF, SIZE)
    return w.machine.global_memory.view(address, SIZE, write=True)


@operation("tensormap.replace", kind="warp", isa="9.7.9.28")
def replace_field(inst: nodes.Instruction, ctx: Context) -> Any:
    """tensormap.replace.tile.<field>.<space>.b1024.<type> [map], {ordinal,} value."""
    words = list(inst.modifiers)
    name = words[2]
    if words[1] != "tile" or name not in (*_PLAIN, *_INDEXED):
        ctx.fail(UnsupportedInstruction, f"field .{name}")
    space = "shared" if any(x.startswith("shared") for x in words) else ""
    address = ctx.address(inst.operands[0], space)
    ordinal = ctx.immediate(inst.operands[1]) if name in _INDEXED else None
    value = ctx.source(inst.operands[-1], words[-1])

    def run(w: Warp, mask: np.ndarray) -> None:
        at, values = address(w), value(w)
        for lane in _lanes(mask):
            view = _view(w, int(at[lane]), space)
            changed = _changed(decode(view.tobytes(), blank=True), name, ordinal, int(values[lane]))
            view[:] = np.frombuffer(changed.pack(), np.uint8)
            if space != "shared":
                w.machine.state(ChangedMaps).change(int(at[lane]))

    return run


def _changed(fields: Fields, name: str, ordinal: int | None, value: int) -> Fields:
    if ordinal is not None:
        field = _INDEXED[name]
        values = list(getattr(fields, field))
        if ordinal >= len(values):
            raise IllegalInstruction(f"ordinal {ordinal} of .{name}")
        values[ordinal] = value
        changed: dict[str, Any] = {field: tuple(values)}
        return replace(fields, **changed)
    if name == "global_address":
        return replace(fields, address=value % 2**64)
    if name == "rank":
        return replace(fields, rank=value + 1)
    if name == "elemtype":
        if not 0 <= value < len(_ELEMENTS):
            raise IllegalInstruction(f"element type {value}")
        return replace(fields, dtype=_ELEMENTS[value])
    if name == "interleave_layout":
        return replace(fields, interleave=value)
    if name == "fill_mode":
        return replace(fields, fill=value)
    if name == "swizzle_mode":
        if value not in _SWIZZLES:
            raise UnsupportedInstruction(f"swizzle mode {value}")
        return replace(fields, swizzle=value)
    if value != 0 and fields.swizzle != 3:
        raise IllegalInstruction(f"swizzle atomicity {value} without 128-byte swizzle")
    return replace(fields, swizzle=fields.swizzle if value == 0 else 3 + value)


@operation("tensormap.cp_fenceproxy", kind="warp", isa="9.7.13.16", uniform=True)
def copy_and_fence(inst: nodes.Instruction, ctx: Context) -> Any:
    """[global], [shared], 128: the map goes to global memory and is released, by the whole warp."""
    target = ctx.address(inst.operands[0], "global")
    source = ctx.address(inst.operands[1], "shared")
    if ctx.immediate(inst.operands[2]) != SIZE:
        ctx.fail(IllegalInstruction, "copies 128 bytes")

    def run(w: Warp, mask: np.ndarray) -> None:
        lane = int(np.argmax(mask))
        to, of = int(target(w)[lane]), int(source(w)[lane])
        data = w.cta.shared.view(of & 0xFFFFFF, SIZE)
        w.machine.global_memory.view(to, SIZE, write=True)[:] = data
        maps = w.machine.state(ChangedMaps)
        maps.change(to)
        maps.release(to)
        w.machine.publish(w)

    return run


@operation("fence.proxy.tensormap::generic", kind="warp", isa="9.7.13.4")
def fence_tensormap(inst: nodes.Instruction, ctx: Context) -> Any:
    """.release: changes made so far may be acquired; .acquire [map], 128: they may be used."""
    words = inst.modifiers
    if "release" in words:

        def release(w: Warp, mask: np.ndarray) -> None:
            maps = w.machine.state(ChangedMaps)
            for address in list(maps.versions):
                maps.release(address)

        return release
    address = ctx.address(inst.operands[0], "")

    def acquire(w: Warp, mask: np.ndarray) -> None:
        at = address(w)
        for lane in _lanes(mask):
            w.machine.state(ChangedMaps).acquire(w, int(at[lane]))

    return acquire
