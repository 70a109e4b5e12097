# SPDX-License-Identifier: Apache-2.0
"""Reciprocals, roots, exponentials and their approximations (PTX ISA 9.7.3.13 to .22, 9.7.4.9).

Approximations are computed in float64 and rounded: closer than what the ISA allows, and with its
special values. Exponentials of 16-bit types likewise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...errors import IllegalInstruction
from ...isa import nodes
from ..context import Context
from ..numerics import double, formats, single
from ..numerics.formats import F32, F64
from ..registry import LaneFn, operation
from .floats import Modifiers, flushed, through_double

_FLUSHED_NAN = np.array(0x7FFFFFFF00000000, np.uint64).view(F64)
_TURNS = 2.0**24 * 2 * np.pi


def _reduced(x: np.ndarray) -> np.ndarray:
    """Beyond 2^24 turns no fraction of a turn is left in float32."""
    return np.where(np.isfinite(x) & (np.abs(x) >= _TURNS), np.copysign(0.0, x), x)


_FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "ex2": np.exp2,
    "lg2": np.log2,
    "rcp": np.reciprocal,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sqrt": np.sqrt,
    "sin": lambda x: np.sin(_reduced(x)),
    "cos": lambda x: np.cos(_reduced(x)),
    "tanh": np.tanh,
}
_REGISTERS = {"f16": "b16", "bf16": "b16", "f16x2": "b32", "bf16x2": "b32"}


def _approximate(fn: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    def run(x: np.ndarray) -> np.ndarray:
        return single.canonical(fn(x.astype(F64)).astype(F32))

    return run


@operation("ex2", "lg2", "rcp", "rsqrt", "sqrt", "sin", "cos", "tanh", kind="lane",
           isa="9.7.3.13")  # fmt: skip
def function(inst: nodes.Instruction, ctx: Context) -> LaneFn:
    m = Modifiers(inst, ctx, "approx", "ftz")
    fn, kind, name = _FUNCTIONS[inst.opcode], m.kind, inst.opcode
    if kind in _REGISTERS:
        registers = _REGISTERS[kind]
        small = through_double(fn, kind, ftz=m.ftz, sat=False, relu=False)
        return LaneFn(small, (registers,), (registers,))
    if kind == "f64":
        return LaneFn(_double(name, m, ctx), ("f64",), ("f64",))
    if kind != "f32":
        ctx.fail(IllegalInstruction, f"type .{kind}")
    if "approx" in m.words or (m.mode == "rn" and name == "sqrt"):
        run: Any = _approximate(fn)
    elif name in ("rcp", "sqrt"):
        run = single.rounded(name, m.mode)
    else:
        ctx.fail(IllegalInstruction, "needs .approx")
    return LaneFn(flushed(run, ftz=m.ftz, sat=False), ("f32",), ("f32",))


def _double(name: str, m: Modifiers, ctx: Context) -> Any:
    if "approx" in m.words:
        fn = _FUNCTIONS[name]

        def run(x: np.ndarray) -> np.ndarray:
            """The ftz form drops the low half of input and result."""
            if not m.ftz:
                return double.canonical(fn(x), x)
            low = np.uint64(0xFFFFFFFF00000000)
            wide = (x.view(np.uint64) & low).view(F64)
            result = formats.flush(fn(formats.flush(wide, formats.DOUBLE)), formats.DOUBLE)
            result = (result.view(np.uint64) & low).view(F64)
            return np.where(np.isnan(result), _FLUSHED_NAN, result)

        return run
    if name == "rcp":
        return double.reciprocal(m.mode)
    if name == "sqrt":
        return double.square_root(m.mode)
    ctx.fail(IllegalInstruction, "needs .approx")
