# SPDX-License-Identifier: Apache-2.0
"""ldmatrix, stmatrix, mma.sync and wgmma.

Layout probes multiply small integers, whose products are exact in any order; rounding probes use
random values, and there the emulator is held to the bound in `cufmha.emu.product`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .base import Output, Probe, likely, module, random_bits

PARAMETERS = [".param .u64 p0", ".param .u64 p1"]
LANE = [
    ".reg .b32 %lane, %tile, %row;",
    ".reg .b64 %at, %index, %out;",
    "mov.u32 %lane, %tid.x;",
    "mov.u32 %tile, tile;",
]


def ldmatrix(count: int, trans: str) -> Probe:
    """Lane i gives row (5·i) mod 32 of a 32 x 16-byte tile, so that rows come out of order."""
    results = ", ".join(f"%m{i}" for i in range(count))
    lines = [
        *LANE,
        f".reg .b32 {results};",
        *fill_tile(512, 32),
        "mul.lo.u32 %row, %lane, 5;",
        "and.b32 %row, %row, 31;",
        "mad.lo.u32 %row, %row, 16, %tile;",
        f"ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{results}}}, [%row];",
        *store_registers("m", count),
    ]
    tile = np.arange(256, dtype=np.uint16)
    return Probe(
        name=f"ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16",
        text=module(PARAMETERS, lines, before=shared(512), block=32),
        arguments=(tile, Output((count, 32), "uint32")),
        block=32,
    )


def stmatrix(count: int, trans: str) -> Probe:
    sources = ", ".join(f"%m{i}" for i in range(count))
    lines = [
        *LANE,
        f".reg .b32 {sources};",
        *fill_tile(512, 32),
        *(
            line
            for i in range(count)
            for line in (
                f"mul.lo.u32 %m{i}, %lane, 131074;",
                f"add.u32 %m{i}, %m{i}, {(2 * i << 22) + (2 * i << 6) + 65536};",
            )
        ),
        "mul.lo.u32 %row, %lane, 5;",
        "and.b32 %row, %row, 31;",
        "mad.lo.u32 %row, %row, 16, %tile;",
        f"stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [%row], {{{sources}}};",
        "bar.sync 0;",
        *dump_tile(512, 32),
    ]
    return Probe(
        name=f"stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16",
        text=module(PARAMETERS, lines, before=shared(512), block=32),
        arguments=(np.full(256, 0xEEEE, np.uint16), Output((256,), "uint16")),
        block=32,
    )


def shared(nbytes: int) -> str:
    return f".shared .align 1024 .b8 tile[{nbytes}];"


def fill_tile(nbytes: int, threads: int, parameter: int = 0, offset: int = 0) -> list[str]:
    """Array `parameter` -> shared memory at `offset`, 4 bytes a thread and step."""
    steps = nbytes // (4 * threads)
    return [
        "{",
        ".reg .b32 %word, %to, %step;",
        ".reg .pred %more;",
        f"ld.param.u64 %at, [p{parameter}];",
        "mul.wide.u32 %index, %lane, 4;",
        "add.u64 %at, %at, %index;",
        "mad.lo.u32 %to, %lane, 4, %tile;",
        "mov.u32 %step, 0;",
        "fill:",
        "ld.global.b32 %word, [%at];",
        f"st.shared.b32 [%to+{offset}], %word;",
        f"add.u64 %at, %at, {4 * threads};",
        f"add.u32 %to, %to, {4 * threads};",
        "add.u32 %step, %step, 1;",
        f"setp.lt.u32 %more, %step, {steps};",
        "@%more bra fill;",
        "}",
        "bar.sync 0;",
    ]


def dump_tile(nbytes: int, threads: int, parameter: int = 1) -> list[str]:
    steps = nbytes // (4 * threads)
    return [
        ".reg .b32 %word, %from;",
        f"ld.param.u64 %out, [p{parameter}];",
        "mul.wide.u32 %index, %lane, 4;",
        "add.u64 %out, %out, %index;",
        "mad.lo.u32 %from, %lane, 4, %tile;",
        *(
            line
            for i in range(steps)
            for line in (
                f"ld.shared.b32 %word, [%from+{4 * threads * i}];",
                f"st.global.b32 [%out+{4 * threads * i}], %word;",
            )
        ),
        "ret;",
    ]


def store_registers(prefix: str, count: int, threads: int = 32, parameter: int = 1) -> list[str]:
    """Register i of thread t -> out[i, t]."""
    return [
        f"ld.param.u64 %out, [p{parameter}];",
        "mul.wide.u32 %index, %lane, 4;",
        "add.u64 %out, %out, %index;",
        *(f"st.global.b32 [%out+{4 * threads * i}], %{prefix}{i};" for i in range(count)),
        "ret;",
    ]


def small_integers(count: int, kind: str, seed: int) -> np.ndarray:
    """−4 … 4 in a 16-bit, 8-bit or tf32 format, as its bits."""
    values = (random_bits(count, seed) % np.uint64(9)).astype(np.float32) - 4
    return encode(values, kind)


def encode(values: np.ndarray, kind: str) -> np.ndarray:
    if kind == "f16":
        return values.astype(np.float16).view(np.uint16)
    if kind == "bf16":
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    if kind in ("f32", "tf32"):
        return values.view(np.uint32)
    table = {"e4m3": [0, 0x38, 0x40, 0x44, 0x48], "e5m2": [0, 0x3C, 0x40, 0x42, 0x44]}[kind]
    codes = np.array(table, np.uint8)[np.abs(values).astype(int)]
    return np.where(values < 0, codes | 0x80, codes).astype(np.uint8)


def mma_sync(kind: str, k: int, accumulator: str, *, exact: bool) -> Probe:
    """D = A·B + C over one warp: a, b, c registers come straight from memory, 32 lanes each."""
    a, b = (4, 2) if k == 16 else (2, 1)
    c = 4 if accumulator == "f32" else 2
    names = {p: ", ".join(f"%{p}{i}" for i in range(n)) for p, n in (("a", a), ("b", b), ("c", c))}
    words = (a + b) * 32
    if exact:
        operands = small_integers(2 * words, kind, k).view(np.uint32)
        addend = small_integers(c * 32 * (1 if accumulator == "f32" else 2), accumulator, 3)
    else:
        operands = (likely(kind + "x2", words, k) & np.uint64(0xBFFFBFFF)).astype(np.uint32)
        operands = (
            (operands & 0x87FF87FF | 0x38003800)
            if kind == "f16"
            else operands & 0x80FF80FF | 0x3F003F00
        )
        addend = likely("f32", 2 * c * 32, 5)[1::2].astype(np.uint32)
        if accumulator == "f16":
            addend = likely("f16x2", 2 * c * 32, 5)[1::2].astype(np.uint32)
    data = np.concatenate([operands, addend.view(np.uint32)])
    form = f"mma.sync.aligned.m16n8k{k}.row.col.{accumulator}.{kind}.{kind}.{accumulator}"
    held = "f32" if accumulator == "f32" else "b32"  # of c and d
    ab = [f"%{p}{i}" for p, n in (("a", a), ("b", b)) for i in range(n)]
    cs, ds = ([f"%{p}{i}" for i in range(c)] for p in "cd")
    kinds = ["b32"] * len(ab) + [held] * c
    d_text = ", ".join(ds)
    lines = [
        ".reg .b32 %lane;",
        ".reg .b64 %at, %index, %out;",
        "mov.u32 %lane, %tid.x;",
        f".reg .b32 {', '.join(ab)};",
        f".reg .{held} {', '.join(cs)}, {d_text};",
        "ld.param.u64 %at, [p0];",
        "mul.wide.u32 %index, %lane, 4;",
        "add.u64 %at, %at, %index;",
        *(
            f"ld.global.{kind} {name}, [%at+{128 * i}];"
            for i, (name, kind) in enumerate(zip([*ab, *cs], kinds, strict=True))
        ),
        f"{form} {{{d_text}}}, {{{names['a']}}}, {{{names['b']}}}, {{{names['c']}}};",
        *(line.replace("st.global.b32", f"st.global.{held}") for line in store_registers("d", c)),
    ]
    return Probe(
        name=f"{form} {'exact' if exact else 'rounding'}",
        text=module(PARAMETERS, lines, block=32),
        arguments=(data, Output((c, 32), "uint32")),
        block=32,
        **({} if exact else bound(accumulator)),
    )


def bound(accumulator: str) -> dict[str, float]:
    """A 16-term product keeps about 24 bits of the largest term, truncated."""
    if accumulator == "f32":
        return {"relative": 2.0**-20, "absolute": 2.0**-18}
    return {"relative": 2.0**-9, "absolute": 2.0**-8}


SIZE = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1}


@dataclass(frozen=True)
class Product:
    """D(64 x n) = ±A·±B (+ D) from one K step or several; operand tiles lie at 0 and 32768.

    The tiles are filled with bytes in memory order; the descriptors say how the matrices lie in
    them, so the answer proves the layout too.
    """

    n: int
    kind: str
    accumulator: str = "f32"
    a_registers: bool = False
    a_major: int = 0
    b_major: int = 0
    swizzle: int = 128
    steps: int = 1
    scale_a: int = 1
    scale_b: int = 1
    keep: bool = False
    exact: bool = True

    @property
    def form(self) -> str:
        k = 32 // SIZE[self.kind]
        types = f"{self.accumulator}.{self.kind}.{self.kind}"
        return f"wgmma.mma_async.sync.aligned.m64n{self.n}k{k}.{types}"

    @property
    def name(self) -> str:
        notes = {
            "A in registers": self.a_registers,
            "A MN-major": self.a_major,
            "B MN-major": self.b_major,
            f"swizzle {self.swizzle}": self.swizzle != 128,
            f"{self.steps} steps": self.steps > 1,
            "minus A": self.scale_a < 0,
            "minus B": self.scale_b < 0,
            "accumulating": self.keep,
            "rounding": not self.exact,
        }
        return " ".join([self.form, *(note for note, holds in notes.items() if holds)])

    @property
    def registers(self) -> list[str]:
        """The thread's accumulator registers: f32, or packed pairs of f16."""
        count = self.n // 2 if self.accumulator == "f32" else self.n // 4
        return [f"%d{i}" for i in range(count)]

    @property
    def held(self) -> str:
        return "f32" if self.accumulator == "f32" else "b32"

    def operands(self, words: int) -> list[str]:
        """Both tiles into shared memory, descriptors, A's registers, the accumulator's start."""
        lines = [
            *LANE,
            f".reg .{self.held} {', '.join(self.registers)};",
            ".reg .b32 %a0, %a1, %a2, %a3, %low;",
            ".reg .b64 %adesc, %bdesc;",
            ".reg .pred %accumulate;",
            *fill_tile(words * 4, 128),
            *second_tile(words),
            "fence.proxy.async.shared::cta;",
            "bar.sync 0;",
            *descriptor("%adesc", "%tile", 0, self.n, self.a_major, self.swizzle),
            *descriptor("%bdesc", "%tile", 32768, self.n, self.b_major, self.swizzle),
        ]
        if self.a_registers:
            lines.append("mad.lo.u32 %row, %lane, 4, %tile;")
            lines += [f"ld.shared.b32 %a{i}, [%row+{512 * i}];" for i in range(4)]
        one, zero = {"f32": ("0f3f800000", "0f00000000"), "b32": ("0x3c003c00", "0")}[self.held]
        lines += [f"mov.{self.held} {x}, {one if self.keep else zero};" for x in self.registers]
        return [*lines, f"setp.ne.u32 %accumulate, {int(self.keep)}, 0;"]

    def products(self) -> list[str]:
        transposes = ""
        if SIZE[self.kind] == 2:
            majors = (self.b_major,) if self.a_registers else (self.a_major, self.b_major)
            transposes = "".join(f", {major}" for major in majors)
        a = "{%a0, %a1, %a2, %a3}" if self.a_registers else "%adesc"
        lines = ["wgmma.fence.sync.aligned;"]
        for step in range(self.steps):
            if step:
                lines += ["add.u64 %adesc, %adesc, 2;", "add.u64 %bdesc, %bdesc, 2;"]
                lines += ["setp.eq.u32 %accumulate, 0, 0;"]
            lines.append(
                f"{self.form} {{{', '.join(self.registers)}}}, {a}, %bdesc, %accumulate, "
                f"{self.scale_a}, {self.scale_b}{transposes};"
            )
        return [*lines, "wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 0;"]


def wgmma(n: int, kind: str, **options: Any) -> Probe:
    product, words = Product(n, kind, **options), 8192
    count = len(product.registers)
    draw = small_integers if product.exact else rounding_values
    data = draw(2 * words * 4 // SIZE[kind], kind, n + 7).view(np.uint32)
    stores = [
        line.replace(".b32", f".{product.held}") if line.startswith("st.") else line
        for line in store_registers("d", count, threads=128)
    ]
    return Probe(
        name=product.name,
        text=module(
            PARAMETERS,
            [*product.operands(words), *product.products(), *stores],
            before=".extern .shared .align 1024 .b8 tile[];",
        ),
        arguments=(data, Output((count, 128), "uint32")),
        shared_bytes=65536,
        **({} if product.exact else bound(product.accumulator)),
    )


def rounding_values(count: int, kind: str, seed: int) -> np.ndarray:
    unit = (random_bits(count, seed) >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-23) - 1
    return encode(unit, kind)


def second_tile(words: int) -> list[str]:
    """The second half of the data -> shared memory at 32768."""
    return [
        "{",
        ".reg .b32 %word, %to, %step;",
        ".reg .pred %more;",
        "mad.lo.u32 %to, %lane, 4, %tile;",
        "mov.u32 %step, 0;",
        "fill:",
        "ld.global.b32 %word, [%at];",
        "st.shared.b32 [%to+32768], %word;",
        "add.u64 %at, %at, 512;",
        "add.u32 %to, %to, 512;",
        "add.u32 %step, %step, 1;",
        f"setp.lt.u32 %more, %step, {words // 128};",
        "@%more bra fill;",
        "}",
    ]


def descriptor(
    register: str, tile: str, offset: int, n: int, mn_major: int, swizzle: int
) -> list[str]:
    """Start address, leading and stride byte offsets and the swizzle code, as the tables say."""
    code = {0: 0, 128: 1, 64: 2, 32: 3}[swizzle]
    if swizzle == 0:
        leading, stride = (128, 256) if not mn_major else (1024, 128)
    else:
        leading, stride = (4096 if mn_major else 16), 8 * swizzle
    high = (stride >> 4) | code << 30
    return [
        "{",
        ".reg .b32 %start, %high;",
        f"add.u32 %start, {tile}, {offset};",
        "bfe.u32 %start, %start, 4, 14;",
        f"or.b32 %start, %start, {(leading >> 4) << 16};",
        f"mov.b32 %high, {high};",
        f"mov.b64 {register}, {{%start, %high}};",
        "}",
    ]


def warpgroup_products():
    for n in (8, 16, 24, 40, 64, 72, 88, 96, 104, 128, 136, 160, 176, 192, 200, 248, 256):
        yield wgmma(n, "bf16" if n % 16 else "f16")
    for n in (64, 128):
        for a_major in (0, 1):
            for b_major in (0, 1):
                if a_major or b_major:
                    yield wgmma(n, "bf16", a_major=a_major, b_major=b_major)
    for kind in ("f16", "bf16"):
        yield wgmma(64, kind, a_registers=True)
        yield wgmma(64, kind, a_registers=True, b_major=1)
        yield wgmma(64, kind, keep=True)
        yield wgmma(64, kind, scale_a=-1)
        yield wgmma(64, kind, scale_b=-1, keep=True)
        yield wgmma(64, kind, exact=False)
        yield wgmma(64, kind, exact=False, keep=True, steps=4)
    for swizzle in (0, 32, 64):
        yield wgmma(64, "bf16", swizzle=swizzle)
    yield wgmma(64, "bf16", steps=4)
    yield wgmma(64, "f16", accumulator="f16")
    yield wgmma(64, "f16", accumulator="f16", exact=False, keep=True)
    for kind in ("tf32", "e4m3", "e5m2"):
        yield wgmma(64, kind)
        yield wgmma(64, kind, a_registers=True)
        yield wgmma(32, kind, exact=False) if kind == "tf32" else wgmma(32, kind)
    yield wgmma(64, "e4m3", accumulator="f16")


PROBES = [
    *(ldmatrix(count, trans) for count in (1, 2, 4) for trans in ("", ".trans")),
    *(stmatrix(count, trans) for count in (1, 2, 4) for trans in ("", ".trans")),
    *(
        mma_sync(kind, k, "f32", exact=exact)
        for kind in ("f16", "bf16")
        for k in (8, 16)
        for exact in (True, False)
    ),
    *(mma_sync("f16", k, "f16", exact=exact) for k in (8, 16) for exact in (True, False)),
    *warpgroup_products(),
]
