# SPDX-License-Identifier: Apache-2.0
"""What a probe is, the inputs it gets, and the kernel around one lane-wise instruction."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

VERSION, TARGET = "8.6", "sm_90a"
BLOCK = 128


@dataclass(frozen=True, kw_only=True)
class Probe:
    """A program and its arguments.

    Attributes
    ----------
    name : str
        The instruction form, with what is special about the inputs after a blank.
    text : str
        A module with one entry, `probe`.
    arguments : tuple
        NumPy arrays (device pointers; read only), `Output`s, NumPy scalars, or `Descriptor`s.
    ulps : float
        0: equal bit for bit. Otherwise answers may differ by so many units in the last place of
        float32 (`relative` by that fraction, `absolute` by that much).
    """

    name: str
    text: str
    arguments: tuple[Any, ...]
    block: int = BLOCK
    grid: int = 1
    cluster: int = 1
    shared_bytes: int = 0
    relative: float = 0.0
    absolute: float = 0.0

    @property
    def outputs(self) -> list[Output]:
        return [x for x in self.arguments if isinstance(x, Output)]


@dataclass(frozen=True)
class Output:
    """An array the program writes; starts as `initial`, or poisoned with bytes 0xA5."""

    shape: tuple[int, ...]
    dtype: str
    initial: np.ndarray | None = None

    def fresh(self) -> np.ndarray:
        if self.initial is not None:
            return self.initial.copy()
        dtype = np.dtype(self.dtype)
        return (
            np.full(int(np.prod(self.shape)) * dtype.itemsize, 0xA5, np.uint8)
            .view(dtype)
            .reshape(self.shape)
        )


@dataclass(frozen=True)
class Descriptor:
    """A by-value tensor map: keywords of cufmha.tma.TensorMapSpec over argument number `of`."""

    spec: Any
    of: int


def random_bits(count: int, seed: int) -> np.ndarray:
    """uint64 by splitmix64: the same on every version of NumPy."""
    with np.errstate(over="ignore"):
        z = (np.arange(1, count + 1, dtype=np.uint64) + np.uint64(seed << 32)) * np.uint64(
            0x9E3779B97F4A7C15
        )
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


INTEGERS = {
    8: [0, 1, 2, 7, 8, 0x7F, 0x80, 0xFF],
    16: [0, 1, 2, 15, 16, 31, 0x1234, 0x7FFF, 0x8000, 0x8001, 0xFFFF],
    32: [0, 1, 2, 3, 31, 32, 33, 0x1234567, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFF],
    64: [0, 1, 2, 63, 64, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 1],
}
# Zeros, subnormals, ones, halves that round either way, largest, infinities, quiet and other NaN.
FLOATS = {
    "f16": [0, 0x8000, 1, 0x83FF, 0x400, 0x3C00, 0xBC01, 0x3555, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00,
            0x7E00, 0xFD55],
    "bf16": [0, 0x8000, 1, 0x807F, 0x80, 0x3F80, 0xBF81, 0x3EAB, 0x7F7F, 0xFF7F, 0x7F80, 0xFF80,
             0x7FC0, 0xFFA5],
    "f32": [0, 0x80000000, 1, 0x807FFFFF, 0x00800000, 0x3F800000, 0xBF800001, 0x3F7FFFFF,
            0x40490FDB, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFA00001],
    "f64": [0, 1 << 63, 1, 0x0010000000000000, 0x3FF0000000000000, 0xBFF0000000000001,
            0x400921FB54442D18, 0x7FEFFFFFFFFFFFFF, 0x7FF0000000000000, 0xFFF0000000000000,
            0x7FF8000000000000],
}  # fmt: skip


def width(kind: str) -> int:
    """Bits of a PTX type; packed pairs are as wide as both halves."""
    if kind == "pred":
        return 1
    if kind.endswith("x2") and kind[0] in "fbsu" and kind not in ("e4m3x2", "e5m2x2"):
        return 2 * int(kind[:-2].lstrip("fbsu"))
    if kind in ("e4m3x2", "e5m2x2"):
        return 16
    return 32 if kind == "tf32" else int(kind.lstrip("bfus"))


def edges(kind: str) -> np.ndarray:
    """Values where implementations differ, as uint64 bits."""
    if kind == "pred":
        return np.array([0, 1], np.uint64)
    if kind in ("f16x2", "bf16x2", "f32x2"):
        half = edges(kind[:-2])
        shift = np.uint64(width(kind) // 2)
        return half | (np.roll(half, 3) << shift)
    values = FLOATS.get("f32" if kind == "tf32" else kind) or INTEGERS[width(kind)]
    return np.array(values, np.uint64)


def likely(kind: str, count: int, seed: int) -> np.ndarray:
    """Random bits; for floats half of them near 1, so that sums and products round."""
    bits = random_bits(count, seed) & np.uint64(2 ** width(kind) - 1)
    near = {"f16": (0x83FF, 0x3800), "bf16": (0x80FF, 0x3F00), "f32": (0x80FFFFFF, 0x3F000000)}
    near["f64"] = (0x801FFFFFFFFFFFFF, 0x3FE0000000000000)
    base = kind[:-2] if kind.endswith("x2") else kind
    if base in near:
        mask, one = (np.uint64(x) for x in near[base])
        moderate = bits & mask | one
        if kind.endswith("x2"):
            shift = np.uint64(width(base))
            moderate |= (bits >> shift & mask | one) << shift
        bits = np.where(np.arange(count) % 2 == 0, bits, moderate)
    return bits


def operands(kinds: Sequence[str], count: int, seed: int) -> list[np.ndarray]:
    """`count` lanes: the product of all edges as far as it fits in half, then random values."""
    lists = [edges(kind) for kind in kinds]
    product = list(itertools.islice(itertools.product(*lists), 0, None))
    room = count // 2
    if len(product) > room:
        pick = (random_bits(room, seed + 99) % np.uint64(len(product))).astype(int)
        product = [product[i] for i in pick]
    columns = []
    for number, kind in enumerate(kinds):
        values = np.array([row[number] for row in product], np.uint64)
        rest = likely(kind, count - len(values), seed + number)
        columns.append(np.concatenate([values, rest]).astype(storage(kind)))
    return columns


def storage(kind: str) -> str:
    """The unsigned NumPy dtype that carries a PTX type through memory."""
    return "uint32" if kind == "pred" else f"uint{width(kind)}"


def register(kind: str) -> str:
    """The register type that holds a PTX type; 8 bits live in 16."""
    return "pred" if kind == "pred" else f"b{max(16, width(kind))}"


def lanewise(
    form: str,
    results: Sequence[str],
    sources: Sequence[str],
    *,
    template: str | None = None,
    values: Sequence[np.ndarray] | None = None,
    count: int = 512,
    note: str = "",
    setup: str = "",
    **extra: Any,
) -> Probe:
    """A probe that runs one instruction over `count` lanes.

    `template` is the statement with {d0}, {a}, {b}, {c}, … for the registers; by default the form
    followed by all of them. `values` replaces the default operands.
    """
    letters = "abcdefgh"[: len(sources)]
    if template is None:
        template = (
            form
            + " "
            + ", ".join([f"{{d{i}}}" for i in range(len(results))] + [f"{{{x}}}" for x in letters])
            + ";"
        )
    seed = sum(form.encode()) * 7 + len(form)
    inputs = list(values) if values is not None else operands(sources, count, seed)
    count = -(-(len(inputs[0]) if inputs else count) // BLOCK) * BLOCK
    inputs = [np.resize(x, count) for x in inputs]  # every thread has a lane
    names = {f"d{i}": f"%d{i}" for i in range(len(results))} | {x: f"%{x}" for x in letters}
    text = lane_kernel(template.format(**names), results, sources, letters, setup)
    arguments = [*inputs, *(Output((count,), storage(kind)) for kind in results)]
    return Probe(
        name=f"{form} {note}".strip(),
        text=text,
        arguments=tuple(arguments),
        grid=count // BLOCK,
        **extra,
    )


def lane_kernel(
    statement: str, results: Sequence[str], sources: Sequence[str], letters: str, setup: str
) -> str:
    """Loads lane i's operands from array elements i, runs the statement, stores the results."""
    parameters = [f".param .u64 p{i}" for i in range(len(sources) + len(results))]
    lines = [".reg .b32 %lane, %block, %flag;", ".reg .b64 %at, %index;"]
    for name, kind in [*zip(letters, sources, strict=True)] + [
        (f"d{i}", kind) for i, kind in enumerate(results)
    ]:
        lines.append(f".reg .{register(kind)} %{name};")
    lines += [
        "mov.u32 %lane, %tid.x;",
        "mov.u32 %block, %ctaid.x;",
        f"mad.lo.u32 %lane, %block, {BLOCK}, %lane;",
    ]
    for number, (name, kind) in enumerate(zip(letters, sources, strict=True)):
        lines += address(number, kind)
        if kind == "pred":
            lines += ["ld.global.b32 %flag, [%at];", f"setp.ne.u32 %{name}, %flag, 0;"]
        else:
            lines.append(f"ld.global.b{width(kind)} %{name}, [%at];")
    lines += [*setup.splitlines(), statement]
    for number, kind in enumerate(results):
        lines += address(len(sources) + number, kind)
        if kind == "pred":
            lines += [f"selp.u32 %flag, 1, 0, %d{number};", "st.global.b32 [%at], %flag;"]
        else:
            lines.append(f"st.global.b{width(kind)} [%at], %d{number};")
    return module(parameters, [*lines, "ret;"])


def address(parameter: int, kind: str) -> list[str]:
    size = np.dtype(storage(kind)).itemsize
    return [
        f"ld.param.u64 %at, [p{parameter}];",
        f"mul.wide.u32 %index, %lane, {size};",
        "add.u64 %at, %at, %index;",
    ]


def module(
    parameters: Sequence[str], lines: Sequence[str], *, before: str = "", block: int = BLOCK
) -> str:
    """A module with the entry `probe`; `before` goes between header and entry."""
    body = "\n".join(f"    {line}" for line in lines)
    head = f".version {VERSION}\n.target {TARGET}\n.address_size 64\n{before}\n"
    joined = ",\n    ".join(parameters)
    return f"{head}.visible .entry probe(\n    {joined}\n)\n.reqntid {block}\n{{\n{body}\n}}\n"
