# SPDX-License-Identifier: Apache-2.0
"""How often each instruction ran, by the warps that ran it and by the pipe that would run it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..isa.nodes import Instruction
from .program import Program
from .registry import Wait

Wrap = Callable[[int, Callable[[Any], Any]], Callable[[Any], Any]]

_SPECIAL_FUNCTIONS = frozenset(["ex2", "lg2", "rcp", "rsqrt", "sqrt", "sin", "cos", "tanh", "div"])
_CONTROL = frozenset(["bra", "brx", "ret", "exit", "call", "trap", "nanosleep", "pmevent"])
_TOGETHER = frozenset(["shfl", "vote", "match", "redux", "elect", "activemask"])
_ORDER = frozenset(
    ["bar", "barrier", "fence", "membar", "setmaxnreg", "griddepcontrol", "mbarrier"]
)
_FLOATS = frozenset(["f16", "f16x2", "bf16", "bf16x2", "f32", "f32x2", "f64"])
_FLOATING = frozenset(["add", "sub", "mul", "fma", "mad"])
PIPES = ("matrix", "tensor memory", "float", "special", "alu", "convert", "shared", "global",
         "copy", "order", "warp", "control")  # fmt: skip


def pipe_of(inst: Instruction) -> str:
    """The kind of hardware unit that an instruction keeps busy."""
    op, words = inst.opcode, inst.modifiers
    if op in ("wgmma", "mma") or (op == "tcgen05" and words[0] in ("mma", "cp", "commit")):
        return "matrix"
    if op == "tcgen05":
        return "tensor memory"
    if op in _SPECIAL_FUNCTIONS:
        return "special"
    if op in _FLOATING and any(word in _FLOATS for word in words):
        return "float"
    if op == "cvt":
        return "convert"
    if op in ("cp", "prefetch", "tensormap", "clusterlaunchcontrol") or "bulk" in words:
        return "copy"
    if op in ("ld", "st", "atom", "red", "ldmatrix", "stmatrix", "ldu"):
        shared = op.endswith("matrix") or any(word.startswith("shared") for word in words)
        return "shared" if shared else "global"
    for names, pipe in ((_CONTROL, "control"), (_TOGETHER, "warp"), (_ORDER, "order")):
        if op in names:
            return pipe
    return "alu"


def instrument(program: Program, wrap: Wrap) -> None:
    """Replaces every step by `wrap(pc, step)`."""
    program.steps = [wrap(pc, step) for pc, step in enumerate(program.steps)]


@dataclass
class Role:
    """Warps of a block that run (nearly) the same code."""

    warps: list[int]
    code: set[int]
    counts: Counter[int] = field(default_factory=Counter)

    @property
    def name(self) -> str:
        first, last = self.warps[0], self.warps[-1]
        if len(self.warps) == 1:
            return f"warp {first}"
        together = last - first + 1 == len(self.warps)
        return f"warps {first}-{last}" if together else "warps " + ",".join(map(str, self.warps))


class Profile:
    """Counts while attached to a program; an instruction that waits counts once it goes on."""

    def __init__(self, program: Program, warps: int) -> None:
        self.program = program
        self.rows = [[0] * warps for _ in program.steps]
        instrument(program, self._wrap)

    def _wrap(self, pc: int, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        row = self.rows[pc]

        def run(w: Any) -> Any:
            result = step(w)
            if result.__class__ is not Wait:
                row[w.index] += 1
            return result

        return run

    def roles(self) -> list[Role]:
        """Groups neighbors whose code overlaps by nine tenths."""
        found: list[Role] = []
        warps = len(self.rows[0]) if self.rows else 0
        for warp in range(warps):
            counts = {pc: row[warp] for pc, row in enumerate(self.rows) if row[warp]}
            code = set(counts)
            role = next((r for r in found if _alike(r.code, code)), None)
            if role is None:
                role = Role([], code)
                found.append(role)
            role.warps.append(warp)
            role.counts.update(counts)
        return found

    def by_pipe(self, role: Role) -> Counter[str]:
        found: Counter[str] = Counter()
        for pc, count in role.counts.items():
            inst = self.program.instructions[pc]
            if inst is not None:
                found[pipe_of(inst)] += count
        return found

    def lines(self, most: int) -> list[tuple[int, int, str]]:
        """(count, source line, instruction) of the lines that ran most often."""
        found: Counter[int] = Counter()
        names: dict[int, str] = {}
        for pc, row in enumerate(self.rows):
            line = self.program.lines[pc]
            found[line] += sum(row)
            inst = self.program.instructions[pc]
            if inst is not None:
                names.setdefault(line, inst.name)
        return [(count, line, names.get(line, "")) for line, count in found.most_common(most)]


def _alike(a: set[int], b: set[int]) -> bool:
    return len(a & b) >= 0.9 * max(len(a | b), 1)
