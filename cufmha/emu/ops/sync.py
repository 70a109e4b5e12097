# SPDX-License-Identifier: Apache-2.0
"""Barriers and fences (PTX ISA 9.7.13), register reallocation, dependent launches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...errors import IllegalInstruction, UnsupportedInstruction
from ...isa.nodes import Instruction
from ..barriers import ClusterBarrier, NamedBarriers, Predicate
from ..context import Context
from ..lanes import Warp
from ..ordering import Fences, publish_to_async_proxy
from ..pool import RegisterAccounts
from ..registry import Wait, operation
from ..types import some

Run = Callable[[Warp, np.ndarray], Wait | None]


def _uniform(ctx: Context, operand: Any, what: str) -> Callable[[Warp, np.ndarray], int]:
    """Reads an operand that must be the same in all active lanes."""
    read = ctx.source(operand, "u32")

    def value(w: Warp, mask: np.ndarray) -> int:
        values = read(w)[mask]
        if some(values != values[0]):
            raise IllegalInstruction(f"{what} differs between lanes of the warp")
        return int(values[0])

    return value


@operation("bar", "barrier", kind="warp", isa="9.7.13.1")
def barrier(inst: Instruction, ctx: Context) -> Run:
    """bar and barrier: .sync a{, n}; .arrive a, n; .red.popc.u32 d, a{, n}, p; .red.and.pred …"""
    words = [m for m in inst.modifiers if m not in ("cta", "aligned")]
    aligned = inst.opcode == "bar" or "aligned" in inst.modifiers
    operands = list(inst.operands)
    action = words[0] if words else ""
    if words not in (["sync"], ["arrive"], ["red", "popc", "u32"], ["red", "and", "pred"],
                     ["red", "or", "pred"]):  # fmt: skip
        ctx.fail(IllegalInstruction, "is no form of barrier")
    sink = predicate = None
    if action == "red":
        sink = ctx.sink(operands.pop(0), words[2])
        predicate = ctx.source(operands.pop(), "pred")
    if not 1 + (action == "arrive") <= len(operands) <= 2:
        ctx.fail(IllegalInstruction, f"takes a barrier and a thread count, got {len(operands)}")
    number = _uniform(ctx, operands[0], "the barrier's number")
    count = _uniform(ctx, operands[1], "the thread count") if len(operands) == 2 else None

    def run(w: Warp, mask: np.ndarray) -> Wait | None:
        if aligned and (wait := w.require_converged()):
            return wait
        named = w.cta.state(NamedBarriers).get(number(w, mask))
        expected = count(w, mask) if count else None
        if action == "arrive":
            named.arrive(w, mask, expected)
            return None
        votes: Predicate = predicate(w) if predicate else None
        outcome = named.sync(w, mask, expected, votes)
        if isinstance(outcome, Wait):
            return outcome
        if sink:
            sink(w, outcome.answer(words[1]), mask)
        return None

    return run


@operation("barrier.cluster", kind="warp", isa="9.7.13.4")
def cluster_barrier(inst: Instruction, ctx: Context) -> Run:
    """barrier.cluster.arrive{.release|.relaxed}{.aligned}, .wait{.acquire}{.aligned}."""
    action, rest = inst.modifiers[1], set(inst.modifiers[2:])
    aligned = "aligned" in rest
    sem = rest - {"aligned"}
    allowed = {"arrive": {"release", "relaxed"}, "wait": {"acquire"}}.get(action)
    if allowed is None or len(sem) > 1 or not sem <= allowed or inst.operands:
        ctx.fail(IllegalInstruction, "is no form of barrier.cluster")

    def run(w: Warp, mask: np.ndarray) -> Wait | None:
        if aligned and (wait := w.require_converged()):
            return wait
        state = w.cta.cluster.state(ClusterBarrier)
        if action == "arrive":
            state.arrive(w, mask, relaxed=sem == {"relaxed"})
            return None
        return state.wait(w, mask)

    return run


# ---- fences


_SCOPES = frozenset(("cta", "cluster", "gpu", "sys"))
_SEMANTICS = frozenset(("sc", "acq_rel", "acquire", "release"))


@operation("fence", kind="warp", isa="9.7.13.6")
def fence(inst: Instruction, ctx: Context) -> Run:
    """fence.{sc,acq_rel,acquire,release}.scope, with or without .sync_restrict."""
    words = [m for m in inst.modifiers if not m.startswith("sync_restrict")]
    semantics = [m for m in words if m in _SEMANTICS]
    scopes = [m for m in words if m in _SCOPES]
    if len(scopes) != 1 or len(semantics) > 1 or len(words) != len(scopes) + len(semantics):
        ctx.fail(IllegalInstruction, "is no form of fence")
    one_sided = semantics in (["acquire"], ["release"]) and "sync_restrict" not in inst.name
    if one_sided and ctx.program.module.version < (8, 6):
        ctx.fail(IllegalInstruction, "needs PTX 8.6")
    return lambda w, mask: w.state(Fences).fence()


@operation("membar", kind="warp", isa="9.7.13.6")
def memory_barrier(inst: Instruction, ctx: Context) -> Run:
    if inst.modifiers == ("proxy", "alias"):
        return lambda w, mask: None
    if inst.modifiers not in (("cta",), ("gl",), ("sys",)):
        ctx.fail(IllegalInstruction, "is no form of membar")
    return lambda w, mask: w.state(Fences).fence()


@operation("fence.mbarrier_init", kind="warp", isa="9.7.13.6")
def fence_initialization(inst: Instruction, ctx: Context) -> Run:
    if inst.modifiers[1:] != ("release", "cluster"):
        ctx.fail(IllegalInstruction, "must be fence.mbarrier_init.release.cluster")

    def run(w: Warp, mask: np.ndarray) -> None:
        w.state(Fences).fence()

    return run


_PUBLISHED = {
    "async": "", "async.global": "global", "async.shared::cta": "shared::cta",
    "async.shared::cluster": "shared::cluster",
    "async::generic.release.sync_restrict::shared::cta.cluster": "shared::cta",
    "async::generic.acquire.sync_restrict::shared::cluster.cluster": "shared::cluster",
}  # fmt: skip
"""What follows fence.proxy, and the memory whose accesses it shows to the async proxy."""


@operation("fence.proxy", kind="warp", isa="9.7.13.6")
def proxy_fence(inst: Instruction, ctx: Context) -> Run:
    """fence.proxy.async{.space}: earlier generic accesses before later ones of the async proxy."""
    name = ".".join(inst.modifiers[1:])
    if name == "alias":
        return lambda w, mask: None
    if name not in _PUBLISHED:
        ctx.fail(UnsupportedInstruction, "is not executed")
    space = _PUBLISHED[name]

    def run(w: Warp, mask: np.ndarray) -> None:
        publish_to_async_proxy(w, space)

    return run


# ---- registers and launches


@operation("setmaxnreg", kind="warp", isa="9.7.19.5", uniform=True)
def set_registers(inst: Instruction, ctx: Context) -> Run:
    """setmaxnreg.{inc,dec}.sync.aligned.u32 n."""
    action = inst.modifiers[0] if inst.modifiers else ""
    if action not in ("inc", "dec") or inst.modifiers[1:] != ("sync", "aligned", "u32"):
        ctx.fail(IllegalInstruction, "must be setmaxnreg.{inc,dec}.sync.aligned.u32")
    count = ctx.immediate(inst.operands[0])
    if count % 8 or not 24 <= count <= 256:
        ctx.fail(IllegalInstruction, f"a multiple of 8 from 24 to 256 is required, got {count}")
    return lambda w, mask: w.cta.state(RegisterAccounts).change(w, action, count)


@operation("griddepcontrol", kind="warp", isa="9.7.13.13")
def dependent_launch(inst: Instruction, ctx: Context) -> Run:
    """A launch here has no neighbors: nothing to wait for, nobody to let go."""
    if inst.modifiers not in (("wait",), ("launch_dependents",)):
        ctx.fail(IllegalInstruction, "must be griddepcontrol.wait or .launch_dependents")
    return lambda w, mask: None
