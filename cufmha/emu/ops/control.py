# SPDX-License-Identifier: Apache-2.0
"""Control flow (PTX ISA 9.7.12): branches, ends, traps and waiting for time to pass."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import IllegalInstruction
from ...isa import nodes
from ..context import Context
from ..lanes import Warp
from ..registry import Exit, Split, operation
from ..types import LANES, some


def _taken(ctx: Context) -> Any:
    """The lanes whose guard holds, or None where there is no guard."""
    return ctx.guard() if ctx.inst.guard else None


def _jump(w: Warp, target: int, taken: np.ndarray) -> Any:
    """Lanes of `taken` (already within the active ones) go to the target."""
    count = some(taken)
    if count == some(w.mask):
        return target
    return Split(target, taken) if count else None


@operation("bra", kind="control", isa="9.7.12.3")
def branch(inst: nodes.Instruction, ctx: Context) -> Any:
    name = inst.operands[0]
    target = ctx.program.label(name.name, ctx.scope) if isinstance(name, nodes.Name) else None
    if target is None:
        ctx.fail(IllegalInstruction, f"label {getattr(name, 'name', name)} is not defined here")
    guard = _taken(ctx)
    if guard is None:
        return lambda w: target

    def step(w: Warp) -> Any:
        taken = guard(w)
        if w.full:
            count = some(taken)
            if count == LANES:
                return target
            return Split(target, taken) if count else None
        return _jump(w, target, taken & w.mask)

    return step


@operation("brx", kind="control", isa="9.7.12.4")
def branch_indexed(inst: nodes.Instruction, ctx: Context) -> Any:
    """brx.idx index, list: each lane to the entry its index names."""
    index = ctx.source(inst.operands[0], "u32")
    listed: Any = inst.operands[1]
    names = ctx.program.branch_targets(listed.name, ctx.scope)
    if names is None:
        ctx.fail(IllegalInstruction, f"{listed.name} is no .branchtargets list")
    targets: list[Any] = [ctx.program.label(name, ctx.scope) for name in names]
    if None in targets:
        ctx.fail(IllegalInstruction, "a label of its list is not defined here")
    guard = _taken(ctx)

    def step(w: Warp) -> Any:
        active = w.mask if guard is None else w.mask & guard(w)
        if not active.any():
            return None
        chosen = index(w)
        if (chosen[active] >= len(targets)).any():
            raise IllegalInstruction(
                f"index {int(chosen[active].max())} is beyond the list's {len(targets)} labels"
            )
        first = int(chosen[active][0])
        same = active & (chosen == first)
        if (same == w.mask).all():
            return targets[first]
        return Split(targets[first], same, again=True)

    return step


@operation("ret", "exit", kind="control", isa="9.7.12.6")
def leave(inst: nodes.Instruction, ctx: Context) -> Any:
    """`ret` in an expanded call goes to the call's end; otherwise the lanes are done."""
    guard = _taken(ctx)
    if inst.opcode == "ret" and ctx.calls:
        target: Any = ctx.program.label("end of call", ctx.scope)
        if guard is None:
            return lambda w: target
        return lambda w: _jump(w, target, guard(w) & w.mask)

    def step(w: Warp) -> Any:
        leaving = w.mask if guard is None else w.mask & guard(w)
        return Exit(leaving.copy()) if leaving.any() else None

    return step


@operation("trap", kind="warp", isa="9.7.19.3")
def trap(inst: nodes.Instruction, ctx: Context) -> Any:
    def run(w: Warp, mask: np.ndarray) -> None:
        raise IllegalInstruction("trap", lanes=np.flatnonzero(mask).tolist())

    return run


@operation("nanosleep", "pmevent", kind="warp", isa="9.7.19")
def pass_time(inst: nodes.Instruction, ctx: Context) -> Any:
    def run(w: Warp, mask: np.ndarray) -> None:
        w.machine.polls += inst.opcode == "nanosleep"

    return run
