# SPDX-License-Identifier: Apache-2.0
"""Kernels around one TMA instruction, and a slow, direct account of what a box holds."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from cufmha.emu import Module
from cufmha.emu.tensormap import encode
from cufmha.tma import TensorMapSpec

HEAD = """.version 8.8
.target {target}
.address_size 64
.extern .shared .align 1024 .b8 smem[];
.visible .entry k(.param .align 64 .b8 p0[128], .param .u64 p1, .param .u64 p2)
.reqntid 32
{{
    .reg .pred %p, %first;
    .reg .b16 %h;
    .reg .b32 %t, %tile, %bar, %peer, %r<8>;
    .reg .b64 %map, %out, %at, %state, %d<4>;
    mov.u32 %t, %tid.x;
    setp.eq.u32 %first, %t, 0;
    mov.u32 %tile, smem;
    add.u32 %bar, %tile, {room};
    mov.b64 %map, p0;
    cvta.param.u64 %map, %map;
    ld.param.u64 %out, [p1];
"""
INIT = """
    @%first mbarrier.init.shared::cta.b64 [%bar], 1;
    @%first fence.mbarrier_init.release.cluster;
    @%first fence.proxy.async.shared::cta;
    bar.warp.sync 0xffffffff;
"""
EXPECT = "    @%first mbarrier.arrive.expect_tx.shared::cta.b64 %state, [%bar], {nbytes};\n"
LOAD = (
    "    @%first cp.async.bulk.tensor.{rank}d.shared::cta.global.mbarrier::complete_tx::bytes "
    "[%tile], [%map, {{{at}}}], [%bar];\n"
)
CAST = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.{}"
WAIT = """
wait:
    mbarrier.try_wait.parity.shared::cta.b64 %p, [%bar], 0;
    @!%p bra wait;
"""
# the tile to p1, or p1 to the tile, word by word
COPY = """
    mov.u32 %r0, %t;
copy{name}:
    setp.ge.u32 %p, %r0, {words};
    @%p bra copied{name};
    mad.lo.u32 %r1, %r0, 4, %tile;
    mul.wide.u32 %at, %r0, 4;
    add.u64 %at, %at, %out;
{move}
    add.u32 %r0, %r0, 32;
    bra copy{name};
copied{name}:
"""
OUT = "    ld.shared.b32 %r2, [%r1];\n    st.global.b32 [%at], %r2;"
IN = "    ld.global.b32 %r2, [%at];\n    st.shared.b32 [%r1], %r2;"
PROXY = "    fence.proxy.async.shared::cta;\n    bar.warp.sync 0xffffffff;\n"
STORE = (
    "    @%first cp.async.bulk.tensor.{rank}d.global.shared::cta.bulk_group "
    "[%map, {{{at}}}], [%tile];\n"
)
COMMIT = "    @%first cp.async.bulk.commit_group;\n"
WAIT_GROUP = "    @%first cp.async.bulk.wait_group 0;\n"


def copy_out(nbytes: int, name: str = "") -> str:
    return COPY.format(words=nbytes // 4, move=OUT, name=name)


def copy_in(nbytes: int, name: str = "") -> str:
    return COPY.format(words=nbytes // 4, move=IN, name=name)


def launch(
    body: str,
    spec: TensorMapSpec,
    address: int,
    *arrays: np.ndarray,
    room: int = 8192,
    arch: str = "sm_90a",
    cluster: int = 1,
    grid: int | None = None,
    seed: int = 0,
    rules: str = "isa",
    hazards: bool = True,
    raw_map: bytes | None = None,
) -> Any:
    """Runs a body over a tensor map at `address`; `arrays` hold its memory, then p1 (and p2)."""
    target = "sm_90a" if arch == "sm_90a" else "sm_100f"
    text = HEAD.format(target=target, room=room) + body + "\n    ret;\n}\n"
    module = Module(text, arch=arch, seed=seed, rules=rules, hazards=hazards)
    last = arrays[2] if len(arrays) > 2 else arrays[0]
    params = raw_map or encode(spec, address)
    params = params + b"".join(int(a.ctypes.data).to_bytes(8, "little") for a in (arrays[1], last))
    from cufmha.emu.memory import Range

    unique = {id(a): a for a in arrays}.values()
    ranges = [Range.of(a, writable=True, name=f"array {i}") for i, a in enumerate(unique)]
    return module.launch_raw(
        "k", grid=(grid or cluster, 1, 1), block=(32, 1, 1), params=params, ranges=ranges,
        cluster=(cluster, 1, 1), dynamic_smem_bytes=room + 64,
    )  # fmt: skip


def aligned(nbytes: int, *, fill: int | None = None, seed: int = 0) -> np.ndarray:
    """Bytes at a multiple of 128: random, or all `fill`."""
    raw = np.empty(nbytes + 128, np.uint8)
    start = -raw.ctypes.data % 128
    array = raw[start : start + nbytes]
    rng = np.random.default_rng(seed)
    array[:] = rng.integers(0, 256, nbytes, np.uint8) if fill is None else fill
    return array


def load(
    spec: TensorMapSpec,
    memory: np.ndarray,
    at: Sequence[int],
    *,
    address: int | None = None,
    **options: Any,
) -> bytes:
    """What a load of the box at these coordinates leaves in shared memory."""
    out = aligned(spec.shared_bytes, fill=0xEE)
    body = INIT + EXPECT.format(nbytes=spec.box_bytes)
    body += LOAD.format(rank=spec.rank, at=", ".join(map(str, at))) + WAIT
    body += copy_out(spec.shared_bytes)
    base = int(memory.ctypes.data) if address is None else address
    launch(body, spec, base, memory, out, room=-(-spec.shared_bytes // 128) * 128, **options)
    return out.tobytes()


def store(
    spec: TensorMapSpec, memory: np.ndarray, tile: np.ndarray, at: Sequence[int], *,
    address: int | None = None, instruction: str = STORE, **options: Any,
) -> None:  # fmt: skip
    """Stores a shared-memory image of a box at these coordinates."""
    body = copy_in(len(tile)) + PROXY
    body += instruction.format(rank=spec.rank, at=", ".join(map(str, at))) + COMMIT + WAIT_GROUP
    base = int(memory.ctypes.data) if address is None else address
    launch(body, spec, base, memory, tile, room=-(-len(tile) // 128) * 128, **options)


# ---- the account


SPANS = {"none": 0, "32B": 32, "64B": 64, "128B": 128}


def places(spec: TensorMapSpec, at: Sequence[int]) -> Any:
    """(byte offset in shared memory, byte offset from the base or None) of each element."""
    counts = [spec.box[0]] + [-(-b // s) for b, s in zip(spec.box[1:], spec.steps[1:], strict=True)]
    pitch = SPANS[spec.swizzle] or counts[0] * spec.itemsize
    for index in itertools.product(*(range(n) for n in reversed(counts))):
        i = index[::-1]
        row = 0
        for axis in range(spec.rank - 1, 0, -1):
            row = row * counts[axis] + i[axis]
        shared = row * pitch + i[0] * spec.itemsize
        if spec.swizzle != "none":
            bits = {"32B": 1, "64B": 3, "128B": 7}[spec.swizzle]
            shared ^= (shared >> 7 & bits) << 4
        where = [at[0] + i[0]] + [at[a] + i[a] * spec.steps[a] for a in range(1, spec.rank)]
        inside = all(0 <= w < d for w, d in zip(where, spec.dims, strict=True))
        offset = where[0] * spec.itemsize + sum(
            w * s for w, s in zip(where[1:], spec.strides, strict=True)
        )
        yield shared, offset if inside else None


def expected_load(spec: TensorMapSpec, memory: bytes, at: Sequence[int], *, shift: int = 0) -> dict:
    """Byte offset in shared memory -> the element's bytes; `shift`: the base, within memory."""
    size = spec.itemsize
    found = {}
    for shared, offset in places(spec, at):
        if offset is None:
            found[shared] = bytes(size)
        else:
            start = (offset + shift) % 2**64
            found[shared] = memory[start : start + size]
    return found
