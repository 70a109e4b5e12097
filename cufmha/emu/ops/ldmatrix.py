# SPDX-License-Identifier: Apache-2.0
"""ldmatrix and stmatrix (PTX ISA 9.7.14.5.15, .16): 8 x 8 tiles of 16 bits, wider ones of 8."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...errors import IllegalInstruction, UnsupportedInstruction
from ...isa import nodes
from .. import access
from ..context import Context
from ..lanes import Warp
from ..registry import operation
from ..types import LANES

Run = Callable[[Warp, np.ndarray], None]
_COUNTS = {"x1": 1, "x2": 2, "x4": 4}


def _form(inst: nodes.Instruction, ctx: Context) -> tuple[str, int, bool, str]:
    """(shape, matrices, transposed, space)."""
    words = list(inst.modifiers)
    shape = next((m for m in words if m in ("m8n8", "m16n16", "m16n8")), "")
    count = next((_COUNTS[m] for m in words if m in _COUNTS), 0)
    kind = words[-1]
    space = next((m for m in words if m.startswith("shared")), "")
    expected = {"m8n8": "b16", "m16n16": "b8", "m16n8": "b8"}.get(shape)
    if not shape or not count or words[:2] != ["sync", "aligned"]:
        ctx.fail(IllegalInstruction, "must name .sync.aligned, a shape and .x1, .x2 or .x4")
    if kind != expected or any(m.startswith("b") and m != kind for m in words):
        ctx.fail(UnsupportedInstruction, f"elements .{kind} in shape .{shape}")
    return shape, count, "trans" in words, space


def _rows(lanes: int) -> np.ndarray:
    mask = np.arange(LANES) < lanes
    mask.setflags(write=False)
    return mask


def _registers(operand: Any, count: int, ctx: Context) -> list[Any]:
    items = list(operand.items) if isinstance(operand, nodes.Vector) else [operand]
    if len(items) != count:
        ctx.fail(IllegalInstruction, f"{count} registers are required, got {len(items)}")
    return items


@operation("ldmatrix", kind="warp", isa="9.7.14.5.15", uniform=True)
def load_matrix(inst: nodes.Instruction, ctx: Context) -> Run:
    """Lane 8i + j names row j of matrix i; register i of lane t gets two elements of matrix i."""
    shape, count, trans, space = _form(inst, ctx)
    address = ctx.address(inst.operands[1], "shared" if space else "")
    if shape == "m16n16":
        return _load_bytes(inst, ctx, count, trans, space, address)
    if shape != "m8n8":
        ctx.fail(IllegalInstruction, f"has no shape .{shape}")
    sinks = [ctx.sink(item, "b32") for item in _registers(inst.operands[0], count, ctx)]
    used = _rows(8 * count)

    def run(w: Warp, mask: np.ndarray) -> None:
        words = access.load(w, used, address(w), space, 4, 4, align=16)
        rows = np.stack(words, axis=1)
        if trans:  # element (2q + c, g) of each matrix
            halves = rows.view(np.uint16).reshape(4, 8, 8).transpose(0, 2, 1)
            rows = np.ascontiguousarray(halves).view(np.uint32)
        tiles = rows.reshape(4, LANES)
        for number, sink in enumerate(sinks):
            sink(w, tiles[number], mask)

    return run


def _load_bytes(
    inst: nodes.Instruction, ctx: Context, count: int, trans: bool, space: str, address: Any
) -> Run:
    """.m16n16.trans.b8: lane 16i + j names row j; registers 2i, 2i+1 hold rows of the transpose."""
    if not trans or count == 4:
        ctx.fail(IllegalInstruction, ".m16n16 needs .trans and .x1 or .x2")
    sinks = [ctx.sink(item, "b32") for item in _registers(inst.operands[0], 2 * count, ctx)]
    used = _rows(16 * count)

    def run(w: Warp, mask: np.ndarray) -> None:
        words = access.load(w, used, address(w), space, 4, 4, align=16)
        rows = np.stack(words, axis=1).view(np.uint8).reshape(2, 16, 16)
        turned = np.ascontiguousarray(rows.transpose(0, 2, 1)).view(np.uint32)  # (i, row, word)
        for number, sink in enumerate(sinks):
            half = turned[number // 2, 8 * (number % 2) : 8 * (number % 2) + 8]
            sink(w, np.ascontiguousarray(half).reshape(LANES), mask)

    return run


@operation("stmatrix", kind="warp", isa="9.7.14.5.16", uniform=True)
def store_matrix(inst: nodes.Instruction, ctx: Context) -> Run:
    shape, count, trans, space = _form(inst, ctx)
    address = ctx.address(inst.operands[0], "shared" if space else "")
    sources = [ctx.source(x, "b32") for x in _registers(inst.operands[1], count, ctx)]
    if shape == "m16n8":
        return _store_bytes(ctx, count, trans, space, address, sources)
    if shape != "m8n8":
        ctx.fail(IllegalInstruction, f"has no shape .{shape}")
    used = _rows(8 * count)

    def run(w: Warp, mask: np.ndarray) -> None:
        tiles = np.zeros((4, 8, 4), np.uint32)
        for number, read in enumerate(sources):
            tiles[number] = read(w).reshape(8, 4)
        if trans:
            halves = tiles.view(np.uint16).reshape(4, 8, 8).transpose(0, 2, 1)
            tiles = np.ascontiguousarray(halves).view(np.uint32)
        words = np.ascontiguousarray(tiles.reshape(LANES, 4).T)
        access.store(w, used, address(w), space, 4, list(words), align=16)

    return run


def _store_bytes(
    ctx: Context, count: int, trans: bool, space: str, address: Any, sources: list[Any]
) -> Run:
    """.m16n8.trans.b8: byte 2h + c of lane t is element (t / 4 + 8h, 2 (t % 4) + c), as in an
    accumulator of mma; lane 8i + n names where column n of matrix i goes."""
    if not trans:
        ctx.fail(IllegalInstruction, ".m16n8 needs .trans")
    used = _rows(8 * count)

    def run(w: Warp, mask: np.ndarray) -> None:
        columns = np.zeros((4, 4, 2, 2, 8), np.uint8)  # matrix, t % 4, c, h, t / 4
        for number, read in enumerate(sources):
            parts = np.ascontiguousarray(read(w)).view(np.uint8).reshape(8, 4, 2, 2)
            columns[number] = parts.transpose(1, 3, 2, 0)
        words = columns.reshape(LANES, 16).view(np.uint32)
        access.store(w, used, address(w), space, 4, list(np.ascontiguousarray(words.T)), align=16)

    return run
