# SPDX-License-Identifier: Apache-2.0
"""atom and red in global and shared memory, each lane on a cell of its own, or all on one.

With all lanes on one cell only operations whose end does not depend on the order are asked.
"""

from __future__ import annotations

import numpy as np

from .base import BLOCK, Output, Probe, address, module, operands, register, storage, width

SINGLE = [
    *(f"{op}.{kind}" for op in ("add", "min", "max") for kind in ("u32", "s32", "u64")),
    "min.s64",
    "max.s64",
    *(f"{op}.{kind}" for op in ("and", "or", "xor") for kind in ("b32", "b64")),
    "exch.b32",
    "exch.b64",
    "inc.u32",
    "dec.u32",
    "add.f32",
    "add.f64",
    "add.noftz.f16",
    "add.noftz.f16x2",
    "add.noftz.bf16",
    "add.noftz.bf16x2",
]
COMMON = ("add.u32", "add.s32", "min.s32", "max.u32", "and.b32", "or.b32", "xor.b32", "add.u64")


def kind_of(form: str) -> str:
    return form.rsplit(".", 1)[1]


def own_cell(form: str, space: str, *, returns: bool = True) -> Probe:
    """cell := op(cell, a) at the lane's own cell; the old value comes back."""
    kind = kind_of(form)
    size = np.dtype(storage(kind)).itemsize
    cells, values = operands([kind, kind], BLOCK, len(form))
    compare = form.startswith("cas")
    cell, lines = locate(kind, size, space)
    operation = f"atom.{space}.{form} %old, [{cell}], %a"
    if not returns:
        operation = f"red.{space}.{form} [{cell}], %a"
    lines += [operation + (", %b;" if compare else ";")]
    if space == "shared":
        lines += [f"ld.shared.b{width(kind)} %a, [{cell}];", *address(0, kind)]
        lines += [f"st.global.b{width(kind)} [%at], %a;"]
    if returns:
        lines += [*address(2, kind), f"st.global.b{width(kind)} [%at], %old;"]
    outputs: list = [Output((BLOCK,), storage(kind), cells), values]
    if returns:
        outputs.append(Output((BLOCK,), storage(kind)))
    before = f".shared .align 16 .b8 cells[{BLOCK * size}];" if space == "shared" else ""
    return Probe(
        name=f"{'atom' if returns else 'red'}.{space}.{form}",
        text=module(parameters(len(outputs)), [*lines, "ret;"], before=before),
        arguments=tuple(outputs),
    )


def locate(kind: str, size: int, space: str) -> tuple[str, list[str]]:
    """The register that holds the lane's cell address, and the code that fills it."""
    held = register(kind)
    lines = [
        ".reg .b32 %lane, %cell32;",
        ".reg .b64 %at, %index, %cell;",
        f".reg .{held} %a, %b, %old;",
        "mov.u32 %lane, %tid.x;",
        *address(1, kind),
        f"ld.global.b{width(kind)} %a, [%at];",
        *address(0, kind),
    ]
    if space == "global":
        return "%cell", [*lines, f"ld.global.b{width(kind)} %b, [%at];", "mov.b64 %cell, %at;"]
    lines += [
        f"ld.global.b{width(kind)} %b, [%at];",
        "mov.u32 %cell32, cells;",
        f"mad.lo.u32 %cell32, %lane, {size}, %cell32;",
        f"st.shared.b{width(kind)} [%cell32], %b;",
    ]
    return "%cell32", lines


def common_cell(form: str, space: str) -> Probe:
    """All 128 lanes on cell 0; only what it ends with is kept."""
    kind = kind_of(form)
    size = np.dtype(storage(kind)).itemsize
    cells, values = operands([kind, kind], BLOCK, 3 * len(form))
    _, lines = locate(kind, size, space)
    if space == "global":
        lines += ["bar.sync 0;", "ld.param.u64 %cell, [p0];", f"red.global.{form} [%cell], %a;"]
    else:
        lines += [
            "bar.sync 0;",
            "mov.u32 %cell32, cells;",
            f"red.shared.{form} [%cell32], %a;",
            "bar.sync 0;",
            f"ld.shared.b{width(kind)} %a, [%cell32];",
            *address(2, kind),
            f"st.global.b{width(kind)} [%at], %a;",
        ]
    arguments: list = [Output((BLOCK,), storage(kind), cells), values]
    if space == "shared":
        arguments.append(Output((BLOCK,), storage(kind)))
    before = f".shared .align 16 .b8 cells[{BLOCK * size}];" if space == "shared" else ""
    return Probe(
        name=f"red.{space}.{form} all on one cell",
        text=module(parameters(len(arguments)), [*lines, "ret;"], before=before),
        arguments=tuple(arguments),
    )


def compare_and_swap(size: int, space: str) -> Probe:
    """b is what the cell holds, so even lanes swap; odd lanes compare with another value."""
    kind = f"b{size}"
    nbytes = size // 8
    cells, values = operands([kind, kind], BLOCK, size)
    cell, lines = locate(kind, nbytes, space)
    lines += [
        ".reg .pred %odd;",
        ".reg .b32 %bit;",
        "and.b32 %bit, %lane, 1;",
        "setp.eq.u32 %odd, %bit, 1;",
        f"@%odd not.b{size} %b, %b;",
        f"atom.{space}.cas.b{size} %old, [{cell}], %b, %a;",
    ]
    if space == "shared":
        lines += [f"ld.shared.b{size} %a, [{cell}];", *address(0, kind)]
        lines += [f"st.global.b{size} [%at], %a;"]
    lines += [*address(2, kind), f"st.global.b{size} [%at], %old;", "ret;"]
    before = f".shared .align 16 .b8 cells[{BLOCK * nbytes}];" if space == "shared" else ""
    arguments = (Output((BLOCK,), storage(kind), cells), values, Output((BLOCK,), storage(kind)))
    return Probe(
        name=f"atom.{space}.cas.b{size}",
        text=module(parameters(3), lines, before=before),
        arguments=arguments,
    )


def vectors() -> list[Probe]:
    """red.global.add.v2/v4.f32: one 16-byte reduction per lane."""
    found = []
    for count in (2, 4):
        (values,) = operands(["f32"], BLOCK * count, count)
        (cells,) = operands(["f32"], BLOCK * count, 40 + count)
        registers = ", ".join(f"%x{i}" for i in range(count))
        lines = [
            ".reg .b32 %lane;",
            ".reg .b64 %at, %index, %cell;",
            f".reg .b32 {registers};",
            "mov.u32 %lane, %tid.x;",
            f"mul.wide.u32 %index, %lane, {4 * count};",
            "ld.param.u64 %at, [p1];",
            "add.u64 %at, %at, %index;",
            f"ld.global.v{count}.b32 {{{registers}}}, [%at];",
            "ld.param.u64 %cell, [p0];",
            "add.u64 %cell, %cell, %index;",
            f"red.global.v{count}.f32.add [%cell], {{{registers}}};",
            "ret;",
        ]
        found.append(
            Probe(
                name=f"red.global.v{count}.f32.add",
                text=module(parameters(2), lines),
                arguments=(Output((BLOCK * count,), "uint32", cells), values),
            )
        )
    return found


def parameters(count: int) -> list[str]:
    return [f".param .u64 p{i}" for i in range(count)]


PROBES = [
    *(own_cell(form, space) for form in SINGLE for space in ("global", "shared")),
    *(own_cell(form, "global", returns=False) for form in ("add.u32", "min.s64", "add.f32")),
    *(common_cell(form, space) for form in COMMON for space in ("global", "shared")),
    *(compare_and_swap(size, space) for size in (16, 32, 64) for space in ("global", "shared")),
    *vectors(),
]
