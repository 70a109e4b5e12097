# SPDX-License-Identifier: Apache-2.0
"""Small kernels for tests: a body of PTX, its arguments, and a launch."""

from __future__ import annotations

from typing import Any

import numpy as np

from cufmha.emu import Module

_TYPES = {"int32": "s32", "uint32": "u32", "int64": "s64", "uint64": "u64", "float32": "f32",
          "float64": "f64"}  # fmt: skip
REGISTERS = """
    .reg .pred %p<8>;
    .reg .b32 %r<16>;
    .reg .b64 %d<16>;
"""


def kernel(
    body: str,
    args: tuple[Any, ...] = (),
    *,
    before: str = "",
    directives: str = "",
    target: str = "sm_90a",
    version: str = "8.8",
) -> str:
    """A module with the entry `k`, whose parameters p0, p1, … fit the arguments."""
    parameters = []
    for number, value in enumerate(args):
        if isinstance(value, bytes):
            parameters.append(f".param .align 16 .b8 p{number}[{len(value)}]")
        elif isinstance(value, np.generic):
            parameters.append(f".param .{_TYPES[value.dtype.name]} p{number}")
        else:
            parameters.append(f".param .u64 p{number}")
    return (
        f".version {version}\n.target {target}\n.address_size 64\n{before}\n"
        f".visible .entry k({', '.join(parameters)})\n{directives}\n{{{REGISTERS}{body}\n}}\n"
    )


def run(
    body: str,
    *args: Any,
    block: int = 32,
    grid: int = 1,
    cluster: int = 1,
    arch: str = "sm_90a",
    seed: int = 0,
    rules: str = "isa",
    hazards: bool = True,
    smem: int = 0,
    before: str = "",
    directives: str = "",
) -> Any:
    """Launches the body once and returns what `launch` returns."""
    target = {"sm_90a": "sm_90a"}.get(arch, "sm_100f")
    text = kernel(body, args, before=before, directives=directives, target=target)
    module = Module(text, arch=arch, seed=seed, rules=rules, hazards=hazards)
    return module.launch(
        "k",
        grid=(grid, 1, 1),
        block=(block, 1, 1),
        args=list(args),
        cluster=(cluster, 1, 1),
        dynamic_smem_bytes=smem,
    )


def lanes(body: str, *inputs: np.ndarray, block: int | None = None, **options: Any) -> np.ndarray:
    """Runs a body that computes %r1 from %r2, %r3, … (one 32-bit input each) in every thread."""
    threads = block or (len(inputs[0]) if inputs else 32)
    out = np.full(threads, 0xDEADBEEF, np.uint32)
    lines = ["mov.u32 %r0, %tid.x;", "mul.wide.u32 %d0, %r0, 4;"]
    for number in range(len(inputs)):
        lines += [
            f"ld.param.u64 %d1, [p{number + 1}];",
            "add.u64 %d1, %d1, %d0;",
            f"ld.global.u32 %r{number + 2}, [%d1];",
        ]
    lines += [
        body,
        "ld.param.u64 %d1, [p0];",
        "add.u64 %d1, %d1, %d0;",
        "st.global.u32 [%d1], %r1;",
    ]
    run("\n".join(lines), out, *inputs, block=threads, **options)
    return out


def assert_twins(error: type[Exception], wrong: str, right: str, *args: Any, **options: Any) -> Any:
    """`wrong` raises the error, `right` runs; returns the error."""
    fresh = [a.copy() if isinstance(a, np.ndarray) else a for a in args]
    run(right, *fresh, **options)
    try:
        run(wrong, *fresh, **options)
    except error as raised:
        return raised
    raise AssertionError(f"{error.__name__} was not raised")
