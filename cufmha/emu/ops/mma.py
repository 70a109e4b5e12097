# SPDX-License-Identifier: Apache-2.0
"""mma.sync (PTX ISA 9.7.14.5): m16n8 products of one warp, 16-bit, tf32 and 8-bit floats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...errors import IllegalInstruction, UnsupportedInstruction
from ...isa import nodes
from .. import product
from ..context import Context
from ..fragments import a_matrix, accumulator, accumulator_registers, b_matrix
from ..lanes import Warp
from ..registry import operation

# (shape, operand type) -> registers of A and of B
_SHAPES = {
    **{("m16n8k16", kind): (4, 2) for kind in ("f16", "bf16")},
    **{("m16n8k8", kind): (2, 1) for kind in ("f16", "bf16")},
    ("m16n8k8", "tf32"): (4, 2),
    ("m16n8k4", "tf32"): (2, 1),
    **{("m16n8k32", kind): (4, 2) for kind in ("e4m3", "e5m2")},
}


@operation("mma", kind="warp", isa="9.7.14.5.14", uniform=True)
def multiply(inst: nodes.Instruction, ctx: Context) -> Callable[[Warp, np.ndarray], None]:
    """mma.sync.aligned.shape.row.col.d.a.b.c {d}, {a}, {b}, {c}."""
    words = [m for m in inst.modifiers if not m.startswith("kind::")]
    if words[:2] != ["sync", "aligned"] or len(words) != 9 or words[3:5] != ["row", "col"]:
        ctx.fail(UnsupportedInstruction, "is not executed")
    shape, (to, a_kind, b_kind, of) = words[2], words[5:]
    counts = _SHAPES.get((shape, a_kind))
    if counts is None or (shape, b_kind) not in _SHAPES:
        ctx.fail(UnsupportedInstruction, "is not executed")
    if to != of or to not in ("f16", "f32") or (to == "f16" and a_kind in ("bf16", "tf32")):
        ctx.fail(IllegalInstruction, f"accumulators of .{to} and .{of}")
    size = product.SIZES[a_kind]
    held = 4 if to == "f32" else 2
    groups = [_items(o, n, ctx) for o, n in
              zip(inst.operands, (held, *counts, held), strict=True)]  # fmt: skip
    kind = "f32" if to == "f32" else "b32"
    sinks = [ctx.sink(x, kind) for x in groups[0]]
    read_a, read_b = ([ctx.source(x, "b32") for x in group] for group in groups[1:3])
    read_c = [ctx.source(x, kind) for x in groups[3]]

    def run(w: Warp, mask: np.ndarray) -> None:
        a = product.decode(a_matrix([read(w) for read in read_a], size), a_kind)
        b = product.decode(b_matrix([read(w) for read in read_b], size), b_kind)
        c = accumulator([read(w) for read in read_c], to)
        d = product.multiply(a, b, c, to)
        for sink, values in zip(sinks, accumulator_registers(d, to), strict=True):
            sink(w, values, mask)

    return run


def _items(operand: Any, count: int, ctx: Context) -> list[Any]:
    items = list(operand.items) if isinstance(operand, nodes.Vector) else [operand]
    if len(items) != count:
        ctx.fail(IllegalInstruction, f"{count} registers are required, got {len(items)}")
    return items
