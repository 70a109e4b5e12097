# SPDX-License-Identifier: Apache-2.0
"""mbarrier instructions (PTX ISA 9.7.13.15), each lane's operation in lane order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...errors import (
    IllegalInstruction,
    Misaligned,
    OutOfBounds,
    UnsupportedInstruction,
    WrongSpace,
)
from ...isa import nodes
from ..context import Context
from ..lanes import Warp
from ..mbarrier import Mbarrier, Mbarriers
from ..memory import SHARED
from ..registry import Wait, operation
from ..types import LANES

_SEMANTICS = frozenset(("release", "acquire", "relaxed", "cta", "cluster", "b64", "shared",
                        "shared::cta", "shared::cluster"))  # fmt: skip


def locate(w: Warp, address: int, *, remote: bool, check: bool = True) -> Mbarrier:
    """The barrier at a shared window address; only `remote` forms may name another block's."""
    rank, offset = address >> 24 & 0xFF, address & 0xFFFFFF
    if address >> 32 and address >> 56 != SHARED >> 56:
        raise WrongSpace("an mbarrier lies in shared memory", address=address)
    if offset % 8:
        raise Misaligned("an mbarrier's address must be a multiple of 8", address=address)
    if rank >= w.cta.cluster.size:
        raise OutOfBounds("an mbarrier outside the cluster's shared memory", address=address)
    if rank != w.cta.rank and not remote:
        raise WrongSpace(
            f"an mbarrier of block {rank} of the cluster in a form for the own block's",
            address=address,
        )
    cta = w.cta.cluster.ctas[rank]
    cta.shared.view(offset, 8)
    barrier = cta.state(Mbarriers).get(offset)
    if check and w.machine.hazards:
        _initialization_seen(w, barrier)
    return barrier


def _initialization_seen(w: Warp, barrier: Mbarrier) -> None:
    """The init must be ordered before its use by another warp."""
    from ...errors import DataRace

    if barrier.initializer != w.uid and w.knowledge.clock[barrier.initializer] < barrier.epoch:
        raise DataRace(
            f"the mbarrier initialized in line {barrier.line} by warp {barrier.initializer} is "
            "used with no barrier between",
            address=barrier.offset,
        )


def _words(inst: nodes.Instruction, ctx: Context, *actions: str) -> list[str]:
    for word in inst.modifiers:
        if word not in _SEMANTICS and word not in actions:
            ctx.fail(UnsupportedInstruction, f"modifier .{word}")
    return list(inst.modifiers)


def _addresses(operand: Any, ctx: Context, words: list[str]) -> Callable[[Warp], np.ndarray]:
    space = "shared" if any(w.startswith("shared") for w in words) else ""
    return ctx.address(operand, space)


def _lanes(mask: np.ndarray) -> list[int]:
    return np.flatnonzero(mask).tolist()


@operation("mbarrier.init", kind="warp", isa="9.7.13.15.9")
def init(inst: nodes.Instruction, ctx: Context) -> Any:
    words = _words(inst, ctx, "init")
    address = _addresses(inst.operands[0], ctx, words)
    count = ctx.source(inst.operands[1], "u32")

    def run(w: Warp, mask: np.ndarray) -> None:
        at, counts = address(w), count(w)
        for lane in _lanes(mask):
            _own(w, int(at[lane]))
            w.cta.state(Mbarriers).init(w, int(at[lane]) & 0xFFFFFF, int(counts[lane]))

    return run


def _own(w: Warp, address: int) -> None:
    if address % 8:
        raise Misaligned("an mbarrier's address must be a multiple of 8", address=address)
    if (address >> 32 and address >> 56 != SHARED >> 56) or address >> 24 & 0xFF != w.cta.rank:
        raise WrongSpace("an mbarrier of another block or space", address=address)


@operation("mbarrier.inval", kind="warp", isa="9.7.13.15.10")
def invalidate(inst: nodes.Instruction, ctx: Context) -> Any:
    address = _addresses(inst.operands[0], ctx, _words(inst, ctx, "inval"))

    def run(w: Warp, mask: np.ndarray) -> None:
        at = address(w)
        for lane in _lanes(mask):
            locate(w, int(at[lane]), remote=False)
            w.cta.state(Mbarriers).invalidate(w, int(at[lane]) & 0xFFFFFF)

    return run


@operation("mbarrier.arrive", "mbarrier.arrive_drop", kind="warp", isa="9.7.13.15.13")
def arrive(inst: nodes.Instruction, ctx: Context) -> Any:
    """{_ | state}, [addr]{, count}; with .expect_tx the count is bytes, and one arrival follows."""
    words = _words(inst, ctx, "arrive", "arrive_drop", "expect_tx", "noComplete")
    drop, expects = words[0] == "arrive_drop", "expect_tx" in words
    operands = list(inst.operands)
    sink = None
    if not isinstance(operands[0], nodes.Address):
        target = operands.pop(0)
        if not (isinstance(target, nodes.Name) and target.name == "_"):
            sink = ctx.sink(target, "b64")
    address = _addresses(operands[0], ctx, words)
    count = ctx.source(operands[1], "u32") if len(operands) > 1 else None
    remote = "shared::cluster" in words
    if remote and sink:
        ctx.fail(IllegalInstruction, "a remote arrive gives no state")
    publishes = "relaxed" not in words

    def run(w: Warp, mask: np.ndarray) -> None:
        at = address(w)
        counts = count(w) if count else None
        states = np.zeros(LANES, np.uint64)
        knowledge = w.machine.publish(w) if publishes and w.machine.hazards else None
        for lane in _lanes(mask):
            barrier = locate(w, int(at[lane]), remote=remote)
            number = 1 if counts is None or expects else int(counts[lane])
            if expects:
                barrier.expect(int(counts[lane]))  # type: ignore[index]
            if "noComplete" in words and number >= barrier.pending and not barrier.transactions:
                raise IllegalInstruction(".noComplete would complete the phase")
            states[lane] = barrier.arrive(number, knowledge, drop=drop)
        if sink:
            sink(w, states, mask)

    return run


@operation("mbarrier.expect_tx", "mbarrier.complete_tx", kind="warp", isa="9.7.13.15.11")
def transact(inst: nodes.Instruction, ctx: Context) -> Any:
    words = _words(inst, ctx, "expect_tx", "complete_tx")
    address = _addresses(inst.operands[0], ctx, words)
    nbytes = ctx.source(inst.operands[1], "u32")
    remote = "shared::cluster" in words

    def run(w: Warp, mask: np.ndarray) -> None:
        at, amounts = address(w), nbytes(w)
        for lane in _lanes(mask):
            barrier = locate(w, int(at[lane]), remote=remote)
            if words[0] == "expect_tx":
                barrier.expect(int(amounts[lane]))
            else:
                barrier.complete_transaction(int(amounts[lane]))

    return run


@operation("mbarrier.test_wait", "mbarrier.try_wait", kind="warp", isa="9.7.13.15.16")
def wait(inst: nodes.Instruction, ctx: Context) -> Any:
    """p, [addr], parity or state{, time}. try_wait suspends until the phase is over, as it may."""
    words = _words(inst, ctx, "test_wait", "try_wait", "parity")
    sink = ctx.sink(inst.operands[0], "pred")
    address = _addresses(inst.operands[1], ctx, words)
    by_parity = "parity" in words
    value = ctx.source(inst.operands[2], "u32" if by_parity else "b64")
    if len(inst.operands) > 3:
        if words[0] == "test_wait":
            ctx.fail(IllegalInstruction, "takes no time limit")
        ctx.source(inst.operands[3], "u32")
    suspends, acquires = words[0] == "try_wait", "relaxed" not in words

    def run(w: Warp, mask: np.ndarray) -> Wait | None:
        at, values = address(w), value(w)
        answers = np.zeros(LANES, bool)
        lanes = _lanes(mask)
        for lane in _distinct(at, values, lanes):
            barrier = locate(w, int(at[lane]), remote=False)
            parity = _parity(barrier, int(values[lane]), by_parity)
            over = barrier.test(w, parity)
            if not over and suspends:
                return _until(barrier, parity)
            answers[(at == at[lane]) & (values == values[lane])] = over
            if over and acquires and w.machine.hazards and barrier.passed is not None:
                w.machine.acquire(w, barrier.passed, w.cta.cluster.number)
        if not answers[lanes].all():
            w.machine.polls += 1
        sink(w, answers, mask)
        return None

    return run


def _until(barrier: Mbarrier, parity: int) -> Wait:
    return Wait(lambda: barrier.is_over(parity), lambda: barrier.describe(parity))


def _distinct(at: np.ndarray, values: np.ndarray, lanes: list[int]) -> list[int]:
    """One lane of each different question."""
    first = lanes[0]
    if (at[lanes] == at[first]).all() and (values[lanes] == values[first]).all():
        return [first]
    seen: dict[tuple[int, int], int] = {}
    for lane in lanes:
        seen.setdefault((int(at[lane]), int(values[lane])), lane)
    return list(seen.values())


def _parity(barrier: Mbarrier, value: int, by_parity: bool) -> int:
    if by_parity:
        if value > 1:
            raise IllegalInstruction(f"phase parity must be 0 or 1, got {value}")
        return value
    return value >> 32 & 1


@operation("mbarrier.pending_count", kind="lane", isa="9.7.13.15.17")
def pending_count(inst: nodes.Instruction, ctx: Context) -> Any:
    from ..registry import LaneFn

    return LaneFn(lambda state: (state & np.uint64(0xFFFFF)).astype(np.uint32), ("u32",), ("b64",))


@operation("cp.async.mbarrier.arrive", kind="warp", isa="9.7.13.15.15")
def arrive_on_copies(inst: nodes.Instruction, ctx: Context) -> Any:
    """Arrives once all earlier cp.async of the lane are complete."""
    from ..copies import ThreadCopies

    words = [x for x in inst.modifiers if x not in ("async", "mbarrier", "arrive")]
    address = _addresses(inst.operands[0], ctx, words)
    no_increment = "noinc" in words

    def run(w: Warp, mask: np.ndarray) -> None:
        at = address(w)
        for lane in _lanes(mask):
            barrier = locate(w, int(at[lane]), remote=False)
            if not no_increment:
                barrier.pending += 1
            w.state(ThreadCopies).arrive_when_done(lane, barrier)

    return run
