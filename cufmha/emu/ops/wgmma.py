# SPDX-License-Identifier: Apache-2.0
"""wgmma of sm_90a (PTX ISA 9.7.15): products of a warpgroup, their fence, groups and wait."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from ...errors import IllegalInstruction, UnsupportedInstruction, UnsupportedTarget
from ...isa import nodes
from .. import product, types
from ..context import Context
from ..descriptor import MatrixDescriptor
from ..lanes import Warp
from ..registry import Wait, operation
from ..types import some
from ..warpgroup import Request, Shape, WgmmaState

Run = Callable[[Warp, np.ndarray], Wait | None]
_K = {"f16": 16, "bf16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32}


def _require_target(inst: nodes.Instruction, ctx: Context) -> None:
    if ctx.arch != "sm_90a":
        raise UnsupportedTarget(f"{inst.name} exists on sm_90a only, not on {ctx.arch}")


@operation("wgmma.fence", kind="warp", isa="9.7.15.7.1", uniform=True)
def fence(inst: nodes.Instruction, ctx: Context) -> Run:
    _require_target(inst, ctx)
    return lambda w, mask: w.state(WgmmaState).fence()


@operation("wgmma.commit_group", kind="warp", isa="9.7.15.7.2", uniform=True)
def commit(inst: nodes.Instruction, ctx: Context) -> Run:
    _require_target(inst, ctx)
    return lambda w, mask: w.state(WgmmaState).commit()


@operation("wgmma.wait_group", kind="warp", isa="9.7.15.7.3", uniform=True)
def wait(inst: nodes.Instruction, ctx: Context) -> Run:
    _require_target(inst, ctx)
    remaining = ctx.immediate(inst.operands[0])
    return lambda w, mask: w.state(WgmmaState).wait(remaining)


def _shape(inst: nodes.Instruction, ctx: Context) -> Shape:
    words = inst.modifiers
    if len(words) != 7 or words[:3] != ("mma_async", "sync", "aligned"):
        ctx.fail(UnsupportedInstruction, "is not executed")
    size = re.fullmatch(r"m64n(\d+)k(\d+)", words[3])
    to, a, b = words[4:]
    if size is None or a not in _K or b not in _K:
        ctx.fail(UnsupportedInstruction, "is not executed")
    n, k = int(size[1]), int(size[2])
    if n % 8 or not 8 <= n <= 256 or k != _K[a] or _K[b] != k:
        ctx.fail(IllegalInstruction, f"there is no shape .{words[3]} of .{a} and .{b}")
    if k == 16 and a != b:
        ctx.fail(IllegalInstruction, f"operands .{a} and .{b} must be of one type")
    if to not in ("f32", "f16") or (to == "f16" and a in ("bf16", "tf32")):
        ctx.fail(IllegalInstruction, f"accumulators of .{to} with operands .{a}")
    return Shape(n, k, a, b, to, product.SIZES[a])


def _sign(ctx: Context, operand: Any) -> bool:
    value = ctx.immediate(operand)
    if value not in (1, -1):
        ctx.fail(IllegalInstruction, f"a sign must be 1 or -1, got {value}")
    return value < 0


def _major(ctx: Context, operand: Any) -> bool:
    value = ctx.immediate(operand)
    if value not in (0, 1):
        ctx.fail(IllegalInstruction, f"a transposition must be 0 or 1, got {value}")
    return value == 1


class Operands:
    """The operands of one wgmma.mma_async, read once per execution."""

    def __init__(self, inst: nodes.Instruction, ctx: Context, shape: Shape) -> None:
        d, a, b, accumulate, *rest = cast("list[Any]", list(inst.operands))
        self.d = tuple(ctx.slots(d))
        wanted = shape.n // (2 if shape.accumulator == "f32" else 4)
        if len(self.d) != wanted or not isinstance(d, nodes.Vector):
            ctx.fail(IllegalInstruction, f"{wanted} accumulators are required, got {len(self.d)}")
        if len(set(self.d)) != len(self.d):
            ctx.fail(IllegalInstruction, "an accumulator is named twice")
        for item in cast("Any", d.items):
            if types.width(ctx.type_of(item)) != 32:
                ctx.fail(IllegalInstruction, f"accumulator {item.name} is not 32 bits wide")
        self.a: tuple[int, ...] = ()
        self.a_descriptor = None
        if isinstance(a, nodes.Vector):
            self.a = tuple(ctx.slots(a))
            if len(self.a) != 4:
                ctx.fail(IllegalInstruction, f"A in registers takes 4, got {len(self.a)}")
        else:
            self.a_descriptor = ctx.source(a, "b64")
        self.b_descriptor = ctx.source(b, "b64")
        self.accumulate = ctx.source(accumulate, "pred")
        transposes = 0 if shape.size != 2 else (1 if self.a else 2)
        if len(rest) != 2 + transposes:
            ctx.fail(
                IllegalInstruction, f"takes {6 + transposes} operands, got {len(inst.operands)}"
            )
        self.negate_a, self.negate_b = _sign(ctx, rest[0]), _sign(ctx, rest[1])
        self.a_mn = transposes == 2 and _major(ctx, rest[2])
        self.b_mn = transposes > 0 and _major(ctx, rest[-1])


@operation("wgmma.mma_async", kind="warp", isa="9.7.15.5.2", uniform=True)
def multiply(inst: nodes.Instruction, ctx: Context) -> Run:
    """D = A·B (+ D): A from shared memory or registers, B from shared memory."""
    _require_target(inst, ctx)
    shape = _shape(inst, ctx)
    operands = Operands(inst, ctx, shape)
    held = np.dtype("float32" if shape.accumulator == "f32" else "uint32")
    arch = ctx.arch
    decoded: dict[int, MatrixDescriptor] = {}

    def descriptor(w: Warp, read: Any) -> MatrixDescriptor:
        bits = _same(read(w), "a matrix descriptor")
        if bits not in decoded:
            decoded[bits] = MatrixDescriptor.of(bits, arch)
        return decoded[bits]

    def run(w: Warp, mask: np.ndarray) -> None:
        request = Request(
            w.pc, shape,
            descriptor(w, operands.a_descriptor) if operands.a_descriptor else None,
            descriptor(w, operands.b_descriptor),
            bool(_same(operands.accumulate(w), "scale-d")),
            operands.negate_a, operands.negate_b, operands.a_mn, operands.b_mn,
        )  # fmt: skip
        w.state(WgmmaState).issue(request, operands.d, operands.a, held)

    return run


def _same(values: np.ndarray, what: str) -> int:
    if some(values != values[0]):
        raise IllegalInstruction(f"{what} differs between lanes of the warp")
    return int(values[0])
