# SPDX-License-Identifier: Apache-2.0
"""TMA: tensor loads, stores, reductions over ranks, swizzles, fills, strides; bulk copies.

Loads dump the whole shared-memory box, over bytes that were 0xEE before; stores and reductions
give back the whole global array, neighbors included.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cufmha.tma import TensorMapSpec

from .base import Descriptor, Output, Probe, likely, module, random_bits
from .matrices import dump_tile, shared

SIZE = {
    "u8": 1,
    "u16": 2,
    "f16": 2,
    "bf16": 2,
    "u32": 4,
    "s32": 4,
    "f32": 4,
    "u64": 8,
    "s64": 8,
    "f64": 8,
}
START = [
    ".reg .b32 %lane, %tile, %barrier, %word, %to;",
    ".reg .b64 %at, %index, %out, %map, %state;",
    ".reg .pred %leader, %done;",
    "mov.u32 %lane, %tid.x;",
    "mov.u32 %tile, tile;",
    "mov.u32 %barrier, full;",
    "setp.eq.u32 %leader, %lane, 0;",
]
BARRIER = "\n.shared .align 8 .b64 full;"


def spec(
    dtype: str,
    dims: Sequence[int],
    box: Sequence[int],
    *,
    strides: Sequence[int] | None = None,
    **options: Any,
) -> TensorMapSpec:
    """Dense unless `strides` (bytes, from dimension 1 on) are given; all innermost first."""
    if strides is None:
        strides, size = [], SIZE[dtype]
        for extent in dims[:-1]:
            size *= extent
            strides.append(size)
    return TensorMapSpec(
        dtype=dtype, dims=tuple(dims), strides=tuple(strides), box=tuple(box), **options
    )


def far_edge(dims: Sequence[int], box: Sequence[int]) -> list[int]:
    """Where half of the box is in bounds in every dimension."""
    return [d - b // 2 for d, b in zip(dims, box, strict=True)]


def pattern(nbytes: int) -> np.ndarray:
    """uint32 words that count up, so every byte tells where it came from."""
    words = -(-nbytes // 4)
    return (np.arange(words, dtype=np.uint32) * np.uint32(0x9E3779B1)) ^ np.uint32(0x01020304)


def coordinates_text(coordinates: Sequence[int]) -> str:
    return "{" + ", ".join(str(c) for c in coordinates) + "}"


def map_parameter(number: int) -> list[str]:
    return [f"mov.b64 %map, p{number};", "cvta.param.u64 %map, %map;"]


def poison(nbytes: int) -> list[str]:
    """Shared bytes 0xEE before the copy, each thread its own words."""
    steps = -(-nbytes // 512)
    return [
        "mov.b32 %word, 0xEEEEEEEE;",
        "mad.lo.u32 %to, %lane, 4, %tile;",
        *(f"st.shared.b32 [%to+{512 * i}], %word;" for i in range(steps)),
    ]


def ready() -> list[str]:
    return [
        "@%leader mbarrier.init.shared::cta.b64 [%barrier], 1;",
        "@%leader fence.mbarrier_init.release.cluster;",
        "fence.proxy.async;",
        "bar.sync 0;",
    ]


def wait() -> list[str]:
    return [
        "again:",
        "mbarrier.try_wait.parity.shared::cta.b64 %done, [%barrier], 0;",
        "@!%done bra again;",
    ]


def rounded(nbytes: int) -> int:
    return -(-nbytes // 512) * 512


def load(note: str, spec: TensorMapSpec, coordinates: Sequence[int], offset: int = 0) -> Probe:
    """`offset`: shared address of the box after a 1024-byte boundary."""
    rank, nbytes = len(spec.dims), rounded(spec.shared_bytes + offset)
    form = f"cp.async.bulk.tensor.{rank}d.shared::cta.global.mbarrier::complete_tx::bytes"
    lines = [
        *START,
        *map_parameter(1),
        *poison(nbytes),
        *ready(),
        f"@%leader mbarrier.arrive.expect_tx.shared::cta.b64 %state, [%barrier], {spec.box_bytes};",
        f"add.u32 %to, %tile, {offset};",
        f"@%leader {form} [%to], [%map, {coordinates_text(coordinates)}], [%barrier];",
        *wait(),
        *dump_tile(nbytes, 128, parameter=2)[1:],
    ]
    lines.insert(0, ".reg .b32 %from;")
    parameters = [".param .u64 p0", ".param .align 64 .b8 p1[128]", ".param .u64 p2"]
    return Probe(
        name=f"{form} {note}",
        text=module(parameters, lines, before=shared(nbytes) + BARRIER),
        arguments=(pattern(spec.span_bytes), Descriptor(spec, 0), Output((nbytes,), "uint8")),
    )


def store(
    note: str,
    spec: TensorMapSpec,
    coordinates: Sequence[int],
    *,
    reduce: str = "",
    cells: np.ndarray | None = None,
    source: np.ndarray | None = None,
) -> Probe:
    """Shared words come from an array; the global array starts as `cells` (or bytes 0xA5)."""
    rank, nbytes = len(spec.dims), rounded(spec.box_bytes)
    copy = f"cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta.{reduce}.bulk_group"
    if not reduce:
        copy = f"cp.async.bulk.tensor.{rank}d.global.shared::cta.bulk_group"
    data = pattern(nbytes) if source is None else np.resize(source, nbytes // 4)
    lines = [
        *START,
        *map_parameter(1),
        "ld.param.u64 %at, [p2];",
        "mul.wide.u32 %index, %lane, 4;",
        "add.u64 %at, %at, %index;",
        "mad.lo.u32 %to, %lane, 4, %tile;",
        *(
            line
            for i in range(nbytes // 512)
            for line in (
                f"ld.global.b32 %word, [%at+{512 * i}];",
                f"st.shared.b32 [%to+{512 * i}], %word;",
            )
        ),
        "fence.proxy.async;",
        "bar.sync 0;",
        f"@%leader {copy} [%map, {coordinates_text(coordinates)}], [%tile];",
        "@%leader cp.async.bulk.commit_group;",
        "@%leader cp.async.bulk.wait_group 0;",
        "ret;",
    ]
    count = -(-spec.span_bytes // 4)
    initial = None if cells is None else np.resize(cells, count).astype(np.uint32)
    parameters = [".param .u64 p0", ".param .align 64 .b8 p1[128]", ".param .u64 p2"]
    return Probe(
        name=f"{copy} {note}",
        text=module(parameters, lines, before=shared(nbytes) + BARRIER),
        arguments=(Output((count,), "uint32", initial), Descriptor(spec, 0), data),
    )


def loads():
    shapes = [((64,), (32,)), ((48, 20), (32, 8)), ((40, 6, 5), (16, 4, 3)),
              ((32, 5, 4, 3), (32, 2, 3, 2)), ((16, 4, 3, 3, 2), (16, 2, 2, 2, 2))]  # fmt: skip
    for dims, box in shapes:
        flat = spec("u16", dims, box)
        inside = [0] * len(dims)
        yield load("inside", flat, inside)
        yield load("over the far edge", flat, far_edge(dims, box))
        yield load("over the near edge", flat, [-(b // 2) for b in box])
        yield load("wholly outside", flat, [d + 8 for d in dims])
    yield load("of u8", spec("u8", (64, 9), (16, 8)), (16, 3))
    for dtype in ("u32", "f32", "u64", "f64", "bf16", "s32"):
        yield load(f"of {dtype}", spec(dtype, (64, 9), (16 // min(SIZE[dtype], 4) * 4, 8)), (8, 3))
    for swizzle, inner in (("32B", 16), ("64B", 32), ("128B", 64)):
        yield load(
            f"swizzle {swizzle}", spec("bf16", (64, 40), (inner, 32), swizzle=swizzle), (0, 3)
        )
        yield load(
            f"swizzle {swizzle} at 512 past a repeat",
            spec("bf16", (64, 40), (inner, 16), swizzle=swizzle),
            (0, 30),
            offset=512,
        )
        yield load(
            f"swizzle {swizzle} narrow box",
            spec("bf16", (64, 40), (inner // 2, 16), swizzle=swizzle),
            (8, 1),
        )
    for dims, box, start in (((128, 40), (64, 16), (96, 33)), ((40, 40), (64, 16), (0, 30))):
        yield load(f"swizzle 128B clipped {dims}", spec("bf16", dims, box, swizzle="128B"), start)
    yield load("four dimensions as attention uses them",
               spec("bf16", (72, 50, 3, 2), (64, 32, 1, 1), swizzle="128B",
                    strides=(3 * 160, 160, 50 * 480)), (64, 30, 2, 1))  # fmt: skip
    yield load("stride 0", spec("u16", (32, 4, 5), (32, 2, 3), strides=(64, 0)), (0, 1, 2))
    for steps in ((1, 2), (1, 3)):
        yield load(
            f"element strides {steps}",
            spec("u16", (32, 40), (16, 9), element_strides=steps),
            (8, 3),
        )
    yield load("element stride 2 over the edge",
               spec("u16", (32, 11), (16, 8), element_strides=(1, 2)), (8, 6))  # fmt: skip
    for dtype in ("f16", "bf16", "f32", "f64"):
        yield load(
            f"NaN fill of {dtype}",
            spec(dtype, (32, 6), (64 // SIZE[dtype], 4), oob_fill="nan"),
            (24, 4),
        )


def stores():
    shapes = [((64,), (32,)), ((48, 20), (32, 8)), ((40, 6, 5), (16, 4, 3)),
              ((32, 5, 4, 3), (32, 2, 3, 2)), ((16, 4, 3, 3, 2), (16, 2, 2, 2, 2))]  # fmt: skip
    for dims, box in shapes:
        flat = spec("u16", dims, box)
        yield store("inside", flat, [0] * len(dims))
        yield store("over the far edge", flat, far_edge(dims, box))
        yield store("wholly outside", flat, [d + 8 for d in dims])
    for swizzle, inner in (("32B", 16), ("64B", 32), ("128B", 64)):
        yield store(
            f"swizzle {swizzle}", spec("bf16", (64, 40), (inner, 32), swizzle=swizzle), (0, 3)
        )
    yield store("swizzle 128B clipped",
                spec("bf16", (40, 40), (64, 16), swizzle="128B"), (0, 30))  # fmt: skip
    yield store("four dimensions as attention uses them",
                spec("bf16", (72, 50, 3, 2), (64, 32, 1, 1), swizzle="128B",
                     strides=(3 * 160, 160, 50 * 480)), (64, 30, 2, 1))  # fmt: skip


def reductions():
    kinds = {"u32": ("add", "min", "max", "inc", "dec", "and", "or", "xor"),
             "s32": ("add", "min", "max"), "u64": ("add", "min", "max", "and"),
             "s64": ("min", "max"), "f16": ("add", "min", "max"), "bf16": ("add", "min", "max"),
             "f32": ("add",), "f64": ("add",)}  # fmt: skip
    for dtype, operations in kinds.items():
        inner = 64 // SIZE[dtype]
        for operation in operations:
            size = {"bf16": "bf16x2", "f16": "f16x2"}.get(dtype, dtype.replace("s", "u"))
            words = 16 if SIZE[dtype] == 8 else 32
            draw = [likely(size, 4096 // words, s).astype(f"uint{64 if SIZE[dtype] == 8 else 32}")
                    .view(np.uint32) for s in (1, 2)]  # fmt: skip
            if dtype in ("f16", "bf16", "f32", "f64"):
                draw = [finite(x, dtype) for x in draw]
            yield store(
                f"of {dtype}",
                spec(dtype, (inner, 6), (inner, 4)),
                (0, 4 if operation == "add" else 1),
                reduce=operation,
                cells=draw[0],
                source=draw[1],
            )


def finite(words: np.ndarray, dtype: str) -> np.ndarray:
    """Clears the top exponent bit, so that sums stay finite."""
    mask = {"f16": 0xBFFFBFFF, "bf16": 0xBFFFBFFF, "f32": 0xBFFFFFFF, "f64": 0xBFFFFFFF}[dtype]
    return words & np.uint32(mask)


def bulk():
    data = random_bits(512, 3).astype(np.uint32)
    load_form = "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes"
    for nbytes in (16, 48, 2048):
        lines = [
            ".reg .b32 %from;",
            *START,
            *poison(2048),
            *ready(),
            f"@%leader mbarrier.arrive.expect_tx.shared::cta.b64 %state, [%barrier], {nbytes};",
            "ld.param.u64 %at, [p0];",
            f"@%leader {load_form} [%tile], [%at], {nbytes}, [%barrier];",
            *wait(),
            *dump_tile(2048, 128)[1:],
        ]
        yield Probe(
            name=f"{load_form} {nbytes} bytes",
            text=module([".param .u64 p0", ".param .u64 p1"], lines, before=shared(2048) + BARRIER),
            arguments=(data, Output((2048,), "uint8")),
        )
    for form, dtype in bulk_stores():
        yield bulk_store(form, dtype)


def bulk_stores():
    yield "cp.async.bulk.global.shared::cta.bulk_group", "u32"
    reduce = "cp.reduce.async.bulk.global.shared::cta.bulk_group"
    for operation in ("add", "min", "max", "and", "or", "xor", "inc", "dec"):
        kind = "b32" if operation in ("and", "or", "xor") else "u32"
        yield f"{reduce}.{operation}.{kind}", "u32"
    for operation, kind in (("add", "u64"), ("min", "s64"), ("max", "s32"), ("add", "f32"),
                            ("add", "f64"), ("add.noftz", "f16"), ("add.noftz", "bf16"),
                            ("min", "f16"), ("max", "bf16")):  # fmt: skip
        yield f"{reduce}.{operation}.{kind}", kind


def bulk_store(form: str, dtype: str) -> Probe:
    kind = {"bf16": "bf16x2", "f16": "f16x2"}.get(dtype, dtype.replace("s", "u"))
    size = 64 if kind.endswith("64") else 32
    data, cells = (
        likely(kind, 16384 // size, s).astype(f"uint{size}").view(np.uint32) for s in (5, 6)
    )
    if dtype in ("f16", "bf16", "f32", "f64"):
        data, cells = finite(data, dtype), finite(cells, dtype)
    lines = [
        *START,
        "ld.param.u64 %at, [p1];",
        "mul.wide.u32 %index, %lane, 4;",
        "add.u64 %at, %at, %index;",
        "mad.lo.u32 %to, %lane, 4, %tile;",
        *(
            line
            for i in range(4)
            for line in (
                f"ld.global.b32 %word, [%at+{512 * i}];",
                f"st.shared.b32 [%to+{512 * i}], %word;",
            )
        ),
        "fence.proxy.async;",
        "bar.sync 0;",
        "ld.param.u64 %out, [p0];",
        f"@%leader {form} [%out], [%tile], 1024;",
        "@%leader cp.async.bulk.commit_group;",
        "@%leader cp.async.bulk.wait_group 0;",
        "ret;",
    ]
    return Probe(
        name=form,
        text=module([".param .u64 p0", ".param .u64 p1"], lines, before=shared(2048) + BARRIER),
        arguments=(Output((512,), "uint32", cells), data),
    )


PROBES = [*loads(), *stores(), *reductions(), *bulk()]
