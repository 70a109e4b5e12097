# SPDX-License-Identifier: Apache-2.0
"""Which Python function executes which instruction; importing `cufmha.emu.ops` fills the table.

An operation is registered under its opcode and leading modifiers; the longest match wins, so
"cp.async.bulk.tensor" and "cp.async" may stand side by side. `build(inst, ctx)` runs once per
static instruction and returns what executes it:

- kind "lane": a `LaneFn`, a pure function over arrays of 32 lanes;
- kind "warp": `run(warp, mask) -> None | Wait`, called with the lanes that are active;
- kind "control": `step(warp)`, which may also return the next program counter, a `Split` or EXIT.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..isa.nodes import Instruction

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class LaneFn:
    """`fn(*sources)` gives one array, or a tuple where there are several destinations.

    Types are PTX's: pred, b8 … b64, u8 …, s8 …, f16, f32, f64. All other formats pass as bits of
    their width (b16 for bf16, b32 for f16x2).
    """

    fn: Callable[..., Any]
    dst: tuple[str, ...]
    src: tuple[str, ...]


@dataclass(frozen=True)
class Wait:
    """The lanes cannot go on; the instruction is executed again once `ready()` is true."""

    ready: Callable[[], bool]
    describe: Callable[[], str]


@dataclass(frozen=True)
class Split:
    """Lanes of `taken` go on at `target`, the others at the next instruction, or here `again`."""

    target: int
    taken: np.ndarray
    again: bool = False


@dataclass(frozen=True)
class Exit:
    """Lanes of `leaving` end."""

    leaving: np.ndarray


@dataclass(frozen=True)
class Operation:
    name: str
    kind: str
    isa: str
    build: Callable[..., Any]
    uniform: bool


OPERATIONS: dict[str, Operation] = {}
_LONGEST = 6


def operation(
    *names: str, kind: str, isa: str, uniform: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a build function. `isa`: section of the PTX ISA.

    `uniform`: all living lanes of the warp must execute it together (`.aligned`); the machine
    waits for them to converge.
    """

    def register(build: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            if name in OPERATIONS:
                raise ValueError(f"{name} is registered twice")
            OPERATIONS[name] = Operation(name, kind, isa, build, uniform)
        return build

    return register


def find(inst: Instruction) -> Operation | None:
    """The operation with the longest name that begins this instruction's name."""
    parts = (inst.opcode, *inst.modifiers[: _LONGEST - 1])
    for length in range(len(parts), 0, -1):
        found = OPERATIONS.get(".".join(parts[:length]))
        if found:
            return found
    return None
