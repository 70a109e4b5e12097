# SPDX-License-Identifier: Apache-2.0
"""tcgen05.mma, .cp and .commit of sm_100 (PTX ISA 9.7.16.9, .10, .12): issued by one thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np

from ...errors import IllegalInstruction, UnsupportedInstruction
from ...isa import nodes
from ..context import Context
from ..descriptor import InstructionDescriptor, MatrixDescriptor
from ..lanes import Warp
from ..registry import Wait, operation
from ..tensorcore import Commit, TensorCopy, TensorProduct, lanes_disabled
from .mbarrier import locate
from .tcgen05 import GroupUse, group_of, require_target

Run = Callable[[Warp, np.ndarray], Wait | None]
_KINDS = ("f16", "tf32", "f8f6f4")
_UNSUPPORTED = ("ws", "sp", "block_scale", "ashift", "kind::i8", "kind::mxf8f6f4", "kind::mxf4",
                "kind::mxf4nvf4")  # fmt: skip


def one_thread(mask: np.ndarray, what: str) -> int:
    """The lane that issues; the instruction takes effect once for each."""
    lanes = np.flatnonzero(mask)
    if len(lanes) != 1:
        raise IllegalInstruction(
            f"{what} is issued by {len(lanes)} threads, and would take effect as often; elect one",
            lanes=lanes.tolist(),
        )
    return int(lanes[0])


class _Operands:
    """d, a, b, idesc{, disabled lanes}, enable{, scale}."""

    def __init__(self, inst: nodes.Instruction, ctx: Context, group: int) -> None:
        d, a, b, idesc, *rest = cast("list[Any]", list(inst.operands))
        self.d = ctx.address(d, "tmem")
        self.in_tmem = isinstance(a, nodes.Address)
        self.a = ctx.address(a, "tmem") if self.in_tmem else ctx.source(a, "b64")
        self.b, self.idesc = ctx.source(b, "b64"), ctx.source(idesc, "b32")
        self.disabled = []
        if rest and isinstance(rest[0], nodes.Vector):
            self.disabled = [ctx.source(item, "b32") for item in rest.pop(0).items]
            if len(self.disabled) != 4 * group:
                ctx.fail(IllegalInstruction, f"{4 * group} words of disabled lanes are required")
        if not 1 <= len(rest) <= 2:
            ctx.fail(IllegalInstruction, "takes d, a, b, an instruction descriptor, a predicate")
        self.enable = ctx.source(rest[0], "pred")
        self.scale = ctx.immediate(rest[1]) if len(rest) > 1 else 0
        if not 0 <= self.scale <= 15:
            ctx.fail(IllegalInstruction, f"scale-d must be 0 to 15, got {self.scale}")


@operation("tcgen05.mma", kind="warp", isa="9.7.16.10.9.1")
def multiply(inst: nodes.Instruction, ctx: Context) -> Run:
    require_target(inst, ctx)
    for word in inst.modifiers:
        if word in _UNSUPPORTED or word.startswith("scale_vec"):
            ctx.fail(UnsupportedInstruction, f"modifier .{word}")
    group = group_of(inst, ctx)
    kind = next((m[6:] for m in inst.modifiers if m.startswith("kind::")), "")
    if kind not in _KINDS:
        ctx.fail(IllegalInstruction, "must name .kind::f16, ::tf32 or ::f8f6f4")
    operands = _Operands(inst, ctx, group)
    if operands.scale and kind == "f8f6f4":
        ctx.fail(IllegalInstruction, "scale-d is for .kind::f16 and ::tf32")
    arch = ctx.arch

    def run(w: Warp, mask: np.ndarray) -> None:
        lane = one_thread(mask, "tcgen05.mma")
        w.cta.state(GroupUse).use(group)
        a = int(operands.a(w)[lane])
        disabled = [read(w)[lane] for read in operands.disabled]
        TensorProduct(
            w, lane, group=group,
            instruction=InstructionDescriptor.of(int(operands.idesc(w)[lane]), kind, group),
            d=int(operands.d(w)[lane]),
            a=a if operands.in_tmem else MatrixDescriptor.of(a, arch),
            b=MatrixDescriptor.of(int(operands.b(w)[lane]), arch),
            accumulate=bool(operands.enable(w)[lane]),
            scale=operands.scale,
            disabled=lanes_disabled(disabled) if disabled else None,
        ).issue()  # fmt: skip

    return run


_ALL = ((0, 1, 2, 3),)
# shape -> rows, words of a row, quarters of the lanes that get each copy
_COPIES = {
    "128x256b": (128, 8, _ALL),
    "128x128b": (128, 4, _ALL),
    "64x128b.warpx2::02_13": (64, 4, ((0, 1), (2, 3))),
    "64x128b.warpx2::01_23": (64, 4, ((0, 2), (1, 3))),
    "32x128b.warpx4": (32, 4, ((0,), (1,), (2,), (3,))),
}


@operation("tcgen05.cp", kind="warp", isa="9.7.16.9.2")
def copy(inst: nodes.Instruction, ctx: Context) -> Run:
    require_target(inst, ctx)
    group = group_of(inst, ctx)
    form = ".".join(m for m in inst.modifiers[1:] if not m.startswith("cta_group"))
    if form not in _COPIES:
        ctx.fail(UnsupportedInstruction, f"shape .{form}")
    rows, words, quarters = _COPIES[form]
    address, source = ctx.address(inst.operands[0], "tmem"), ctx.source(inst.operands[1], "b64")
    arch = ctx.arch

    def run(w: Warp, mask: np.ndarray) -> None:
        lane = one_thread(mask, "tcgen05.cp")
        w.cta.state(GroupUse).use(group)
        descriptor = MatrixDescriptor.of(int(source(w)[lane]), arch)
        TensorCopy(w, lane, group, int(address(w)[lane]), descriptor, rows, words, quarters).issue()

    return run


@operation("tcgen05.commit", kind="warp", isa="9.7.16.12")
def commit(inst: nodes.Instruction, ctx: Context) -> Run:
    """One arrival at the mbarrier, or at the same offset in every block of a mask."""
    require_target(inst, ctx)
    group = group_of(inst, ctx)
    if "mbarrier::arrive::one" not in inst.modifiers or inst.modifiers[-1] != "b64":
        ctx.fail(IllegalInstruction, "must name .mbarrier::arrive::one and .b64")
    multicast = "multicast::cluster" in inst.modifiers
    if len(inst.operands) != 1 + multicast:
        ctx.fail(IllegalInstruction, f"takes {1 + multicast} operands, got {len(inst.operands)}")
    address = ctx.address(inst.operands[0], _space(inst, ctx))
    chosen: Any = ctx.source(inst.operands[1], "u16") if multicast else None

    def run(w: Warp, mask: np.ndarray) -> None:
        lane = one_thread(mask, "tcgen05.commit")
        w.cta.state(GroupUse).use(group)
        where = int(address(w)[lane])
        if chosen is None:
            barriers = [locate(w, where, remote=True)]
        else:
            bits = int(chosen(w)[lane])
            if not bits or bits >> w.cta.cluster.size:
                raise IllegalInstruction(
                    f"multicast mask {bits:#x} in a cluster of {w.cta.cluster.size} blocks"
                )
            offset = where & ~(0xFF << 24)
            barriers = [
                locate(w, offset | rank << 24, remote=True)
                for rank in range(w.cta.cluster.size) if bits >> rank & 1
            ]  # fmt: skip
        w.machine.queue.submit(Commit(w, lane, barriers))

    return run


def _space(inst: nodes.Instruction, ctx: Context) -> str:
    """A 32-bit register holds a window address even without .shared::cluster."""
    base = getattr(inst.operands[0], "base", None)
    narrow = base is not None and (
        ctx.program.slot_of(base.name, ctx.scope) is None or ctx.type_of(base)[1:] == "32"
    )
    return "shared" if narrow or "shared::cluster" in inst.modifiers else ""
