# SPDX-License-Identifier: Apache-2.0
"""Asynchronous copies (PTX ISA 9.7.9.25 to .27): cp.async, bulk and tensor copies, their groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...errors import IllegalInstruction, OutOfBounds, UnsupportedInstruction, WrongSpace
from ...isa import nodes
from ..context import Context
from ..copies import BulkGroups, ThreadCopies
from ..lanes import Cta, Warp
from ..maps import read_map
from ..mbarrier import Mbarrier
from ..memory import SHARED
from ..registry import Wait, operation
from ..transfers import (
    BulkLoad,
    BulkStore,
    PeerReduction,
    TensorLoad,
    TensorStore,
    ThreadCopy,
)
from .mbarrier import locate

_MODES = frozenset(("tile", "im2col", "im2col::w", "tile::gather4", "tile::scatter4"))


def _lanes(mask: np.ndarray) -> list[int]:
    return np.flatnonzero(mask).tolist()


def _offset(w: Warp, address: int, *, peer: bool = False) -> int:
    """Offset in the own block's shared memory, or with `peer` in any block's of the cluster."""
    if address >> 32 and address >> 56 != SHARED >> 56:
        raise WrongSpace("an address of shared memory is required", address=address)
    if not peer and address >> 24 & 0xFF != w.cta.rank:
        raise WrongSpace(
            f"shared memory of block {address >> 24 & 0xFF} of the cluster where the own is "
            "required",
            address=address,
        )
    return address & 0xFFFFFF


def _cta(w: Warp, address: int) -> Cta:
    rank = address >> 24 & 0xFF
    if rank >= w.cta.cluster.size:
        raise OutOfBounds("an address outside the cluster's shared memory", address=address)
    return w.cta.cluster.ctas[rank]


class _Tensor:
    """Operands of a tensor copy."""

    def __init__(self, inst: nodes.Instruction, ctx: Context, operand: Any, rank: int) -> None:
        if not isinstance(operand, nodes.TensorAddress):
            ctx.fail(IllegalInstruction, "needs [map, {coordinates}]")
        self.map = ctx.address(operand, "")
        self.rank = rank
        coordinates = operand.parts[0]
        items = coordinates.items if isinstance(coordinates, nodes.Vector) else (coordinates,)
        if len(items) != rank:
            ctx.fail(IllegalInstruction, f"{rank} coordinates wanted, got {len(items)}")
        self.coordinates = [ctx.source(item, "s32") for item in items]

    def read(self, w: Warp) -> Callable[[int], tuple[Any, int, tuple[int, ...]]]:
        maps, coordinates = self.map(w), [read(w) for read in self.coordinates]

        def lane(number: int) -> tuple[Any, int, tuple[int, ...]]:
            fields = read_map(w, int(maps[number]))
            spec = fields.spec()
            if spec.rank != self.rank:
                raise IllegalInstruction(
                    f"a tensor map of {spec.rank} dimensions in a {self.rank}d instruction"
                )
            return spec, fields.address, tuple(int(c[number]) for c in coordinates)

        return lane


def _rank(inst: nodes.Instruction, ctx: Context) -> int:
    for word in inst.modifiers:
        if word in ("1d", "2d", "3d", "4d", "5d"):
            return int(word[0])
        if word in _MODES and word != "tile":
            ctx.fail(UnsupportedInstruction, f"mode .{word}")
    ctx.fail(IllegalInstruction, "needs a dimension such as .2d")


def _refuse_modes(inst: nodes.Instruction, ctx: Context) -> None:
    for word in inst.modifiers:
        if word in _MODES and word != "tile":
            ctx.fail(UnsupportedInstruction, f"mode .{word}")


@operation("cp.async.bulk.tensor", kind="warp", isa="9.7.9.27.1.2")
def tensor_copy(inst: nodes.Instruction, ctx: Context) -> Any:
    _refuse_modes(inst, ctx)
    rank = _rank(inst, ctx)
    if "bulk_group" in inst.modifiers:
        return _tensor_store(inst, ctx, rank, "")
    operands = list(inst.operands)
    destination = ctx.address(operands[0], "shared")
    tensor = _Tensor(inst, ctx, operands[1], rank)
    barrier = ctx.address(operands[2], "shared")
    multicast = ctx.source(operands[3], "u16") if "multicast::cluster" in inst.modifiers else None
    pair = "cta_group::2" in inst.modifiers
    if multicast and "shared::cta" in inst.modifiers:
        ctx.fail(IllegalInstruction, "multicast needs a .shared::cluster destination")
    anywhere = "shared::cluster" in inst.modifiers

    def run(w: Warp, mask: np.ndarray) -> None:
        to, bars, read = destination(w), barrier(w), tensor.read(w)
        masks = multicast(w) if multicast else None
        for lane in _lanes(mask):
            spec, address, coordinates = read(lane)
            offset = _offset(w, int(to[lane]), peer=anywhere)
            targets = _targets(
                w, int(to[lane]), int(bars[lane]), None if masks is None else int(masks[lane]),
                pair=pair,
            )  # fmt: skip
            op = TensorLoad(w, spec, address, coordinates, offset, targets)
            w.machine.queue.submit(op)

    return run


def _targets(
    w: Warp, destination: int, barrier: int, mask: int | None, *, pair: bool
) -> list[tuple[Cta, Mbarrier]]:
    """Blocks that get the data and the barriers that are told: same offsets in each of them."""
    if mask is None:
        cta = _cta(w, destination)
        bar = locate(w, barrier, remote=True)
        if bar.cta is not cta and not (pair and bar.cta.rank ^ cta.rank == 1):
            raise IllegalInstruction(
                "the mbarrier lies in another block than the destination, which only "
                ".cta_group::2 allows within a pair"
            )
        return [(cta, bar)]
    found = []
    for rank in range(w.cta.cluster.size):
        if mask >> rank & 1:
            cta = w.cta.cluster.ctas[rank]
            home = rank
            if pair and (barrier >> 24 & 0xFF) & 1 != w.cta.rank & 1:
                home = rank ^ 1
            found.append((cta, locate(w, home << 24 | barrier & 0xFFFFFF, remote=True)))
    if not found or mask >> w.cta.cluster.size:
        raise IllegalInstruction(
            f"multicast mask {mask:#x} in a cluster of {w.cta.cluster.size} blocks"
        )
    return found


def _tensor_store(inst: nodes.Instruction, ctx: Context, rank: int, reduce: str) -> Any:
    tensor = _Tensor(inst, ctx, inst.operands[0], rank)
    source = ctx.address(inst.operands[1], "shared")

    def run(w: Warp, mask: np.ndarray) -> None:
        of, read = source(w), tensor.read(w)
        for lane in _lanes(mask):
            spec, address, coordinates = read(lane)
            op = TensorStore(
                w, spec, address, coordinates, _offset(w, int(of[lane])), reduce=reduce
            )
            w.state(BulkGroups).add(lane, op)
            w.machine.queue.submit(op)

    return run


@operation("cp.reduce.async.bulk.tensor", kind="warp", isa="9.7.9.27.1.3")
def tensor_reduce(inst: nodes.Instruction, ctx: Context) -> Any:
    _refuse_modes(inst, ctx)
    known = ("add", "min", "max", "inc", "dec", "and", "or", "xor")
    operation_ = next((word for word in inst.modifiers if word in known), None)
    if operation_ is None:
        ctx.fail(IllegalInstruction, "needs a reduction such as .add")
    return _tensor_store(inst, ctx, _rank(inst, ctx), operation_)


@operation("cp.async.bulk.prefetch", kind="warp", isa="9.7.9.25.5.4")
def prefetch(inst: nodes.Instruction, ctx: Context) -> Any:
    """No data moves; a tensor map must be one, and its coordinates must be readable."""
    if "tensor" not in inst.modifiers:
        address = ctx.address(inst.operands[0], "global")
        size = ctx.source(inst.operands[1], "u32")

        def linear(w: Warp, mask: np.ndarray) -> None:
            at, nbytes = address(w), size(w)
            for lane in _lanes(mask):
                w.machine.global_memory.find(int(at[lane]), int(nbytes[lane]))

        return linear
    _refuse_modes(inst, ctx)
    tensor = _Tensor(inst, ctx, inst.operands[0], _rank(inst, ctx))

    def run(w: Warp, mask: np.ndarray) -> None:
        read = tensor.read(w)
        for lane in _lanes(mask):
            read(lane)

    return run


@operation("cp.async.bulk", kind="warp", isa="9.7.9.25.5.2")
def bulk_copy(inst: nodes.Instruction, ctx: Context) -> Any:
    """To shared memory with an mbarrier, to global memory in a bulk group."""
    if "bulk_group" in inst.modifiers:
        return _bulk_store(inst, ctx, "", "u32")
    destination = ctx.address(inst.operands[0], "shared")
    from_shared = inst.modifiers[2:4] == ("shared::cluster", "shared::cta")
    source = ctx.address(inst.operands[1], "shared" if from_shared else "global")
    size = ctx.source(inst.operands[2], "u32")
    barrier = ctx.address(inst.operands[3], "shared")
    multicast = (
        ctx.source(inst.operands[4], "u16") if "multicast::cluster" in inst.modifiers else None
    )

    def run(w: Warp, mask: np.ndarray) -> None:
        to, of, sizes, bars = destination(w), source(w), size(w), barrier(w)
        masks = multicast(w) if multicast else None
        for lane in _lanes(mask):
            targets = _targets(
                w, int(to[lane]), int(bars[lane]), None if masks is None else int(masks[lane]),
                pair=False,
            )  # fmt: skip
            at = int(of[lane])
            where = ("shared", _offset(w, at)) if from_shared else ("global", at)
            offset = _offset(w, int(to[lane]), peer=True)
            w.machine.queue.submit(BulkLoad(w, where, int(sizes[lane]), offset, targets))

    return run


def _bulk_store(inst: nodes.Instruction, ctx: Context, reduce: str, dtype: str) -> Any:
    destination = ctx.address(inst.operands[0], "global")
    source = ctx.address(inst.operands[1], "shared")
    size = ctx.source(inst.operands[2], "u32")

    def run(w: Warp, mask: np.ndarray) -> None:
        to, of, sizes = destination(w), source(w), size(w)
        for lane in _lanes(mask):
            op = BulkStore(
                w, int(to[lane]), _offset(w, int(of[lane])), int(sizes[lane]), reduce=reduce,
                dtype=dtype,
            )  # fmt: skip
            w.state(BulkGroups).add(lane, op)
            w.machine.queue.submit(op)

    return run


@operation("cp.reduce.async.bulk", kind="warp", isa="9.7.9.25.5.3")
def bulk_reduce(inst: nodes.Instruction, ctx: Context) -> Any:
    known = ("add", "min", "max", "inc", "dec", "and", "or", "xor")
    reduce = next((word for word in inst.modifiers if word in known), None)
    dtype = inst.modifiers[-1]
    if reduce is None:
        ctx.fail(IllegalInstruction, "needs a reduction such as .add")
    if reduce == "add" and dtype in ("f16", "bf16") and "noftz" not in inst.modifiers:
        ctx.fail(IllegalInstruction, f".add of .{dtype} needs .noftz")
    if "bulk_group" in inst.modifiers:
        return _bulk_store(inst, ctx, reduce, dtype)
    destination, source = (ctx.address(o, "shared") for o in inst.operands[:2])
    size, barrier = ctx.source(inst.operands[2], "u32"), ctx.address(inst.operands[3], "shared")

    def run(w: Warp, mask: np.ndarray) -> None:
        to, of, sizes, bars = destination(w), source(w), size(w), barrier(w)
        for lane in _lanes(mask):
            at = int(to[lane])
            bar = locate(w, int(bars[lane]), remote=True)
            op = PeerReduction(
                w, _cta(w, at), at & 0xFFFFFF, _offset(w, int(of[lane])), int(sizes[lane]), bar,
                reduce=reduce, dtype=dtype,
            )  # fmt: skip
            w.machine.queue.submit(op)

    return run


@operation("cp.async.bulk.commit_group", kind="warp", isa="9.7.9.25.6.1")
def commit_bulk(inst: nodes.Instruction, ctx: Context) -> Any:
    return lambda w, mask: w.state(BulkGroups).commit(_lanes(mask))


@operation("cp.async.bulk.wait_group", kind="warp", isa="9.7.9.25.6.2")
def wait_bulk(inst: nodes.Instruction, ctx: Context) -> Any:
    pending, reads = ctx.immediate(inst.operands[0]), "read" in inst.modifiers

    def run(w: Warp, mask: np.ndarray) -> Wait | None:
        groups = w.state(BulkGroups)
        if reads:
            return groups.wait_reads(_lanes(mask), pending)
        return groups.wait(_lanes(mask), pending, "the bulk store")

    return run


# ---- cp.async


@operation("cp.async.ca", "cp.async.cg", kind="warp", isa="9.7.9.25.3.1")
def thread_copy(inst: nodes.Instruction, ctx: Context) -> Any:
    """[shared], [global], bytes{, source bytes | ignore predicate}."""
    operands = list(inst.operands)
    target, source = ctx.address(operands[0], "shared"), ctx.address(operands[1], "global")
    nbytes = ctx.immediate(operands[2])
    if nbytes not in ((16,) if "cg" in inst.modifiers else (4, 8, 16)):
        ctx.fail(IllegalInstruction, f"cannot copy {nbytes} bytes")
    extra = operands[3] if len(operands) > 3 and "L2::cache_hint" not in inst.modifiers else None
    ignored = size = None
    if extra is not None:
        if isinstance(extra, nodes.Negated) or (
            not isinstance(extra, nodes.Integer) and ctx.type_of(extra) == "pred"
        ):
            ignored = ctx.source(extra, "pred")
        else:
            size = ctx.source(extra, "u32")

    def run(w: Warp, mask: np.ndarray) -> None:
        to, of = target(w), source(w)
        sizes = size(w) if size else None
        skip = ignored(w) if ignored else None
        copies = w.state(ThreadCopies)
        for lane in _lanes(mask):
            count = nbytes if sizes is None else int(sizes[lane])
            if count > nbytes:
                raise IllegalInstruction(f"{count} source bytes for a copy of {nbytes}")
            if skip is not None and skip[lane]:
                count = 0
            op = ThreadCopy(w, _offset(w, int(to[lane])), int(of[lane]), nbytes, count)
            copies.add(lane, op)
            w.machine.queue.submit(op)

    return run


@operation("cp.async.commit_group", kind="warp", isa="9.7.9.25.3.2")
def commit(inst: nodes.Instruction, ctx: Context) -> Any:
    return lambda w, mask: w.state(ThreadCopies).commit(_lanes(mask))


@operation("cp.async.wait_group", "cp.async.wait_all", kind="warp", isa="9.7.9.25.3.3")
def wait(inst: nodes.Instruction, ctx: Context) -> Any:
    everything = "wait_all" in inst.modifiers
    pending = 0 if everything else ctx.immediate(inst.operands[0])

    def run(w: Warp, mask: np.ndarray) -> Wait | None:
        copies, lanes = w.state(ThreadCopies), _lanes(mask)
        if everything:
            copies.commit(lanes)
        return copies.wait(lanes, pending, "the cp.async")

    return run
