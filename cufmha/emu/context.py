# SPDX-License-Identifier: Apache-2.0
"""What a build function asks while one instruction is compiled: operands, addresses, the guard."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ..errors import EmulationError, IllegalInstruction, UnsupportedTarget
from ..isa import nodes
from . import special, types
from .memory import LOCAL, PARAM, SHARED
from .types import LANES, UNSIGNED

if TYPE_CHECKING:
    from .lanes import Warp
    from .program import Program, Scope

Reader = Callable[["Warp"], np.ndarray]
Sink = Callable[["Warp", np.ndarray, np.ndarray], None]


class Context:
    """The instruction being compiled, in its scope."""

    def __init__(
        self, program: Program, inst: nodes.Instruction, scope: Scope, calls: list[str]
    ) -> None:
        self.program = program
        self.inst = inst
        self.scope = scope
        self.calls = calls
        self.arch, self.rules, self.hazards = program.arch, program.rules, program.hazards

    def fail(self, cls: type[EmulationError | UnsupportedTarget], message: str) -> NoReturn:
        text = f"{self.inst.name}: {message}"
        if issubclass(cls, EmulationError):
            raise cls(text, kernel=self.program.kernel, line=self.inst.span.line)
        raise cls(f"{self.program.kernel}, line {self.inst.span.line}: {text}")

    # ---- operands

    def flat_operands(self) -> list[Any]:
        """Operands in order, pairs and vectors opened."""
        found: list[Any] = []

        def add(operand: Any) -> None:
            if isinstance(operand, nodes.Pair):
                add(operand.first)
                add(operand.second)
            elif isinstance(operand, nodes.Vector):
                for item in operand.items:
                    add(item)
            else:
                found.append(operand)

        for operand in self.inst.operands:
            add(operand)
        return found

    def slot(self, operand: Any) -> int:
        """The slot of a register operand; anything else is an error."""
        if isinstance(operand, nodes.Register | nodes.Name):
            slot = self.program.slot_of(operand.name, self.scope)
            if slot is not None:
                return slot
            self.fail(IllegalInstruction, f"{operand.name} is not declared as a register")
        self.fail(IllegalInstruction, f"a register is required, got {operand}")

    def slots(self, operand: Any) -> list[int]:
        """Slots of a vector of registers, or of one register."""
        items = operand.items if isinstance(operand, nodes.Vector) else (operand,)
        return [self.slot(item) for item in items]

    def type_of(self, operand: Any) -> str:
        """The declared type of a register operand."""
        return self.program.register_types[self.slot(operand)]

    def plain_slot(self, operand: Any, kind: str) -> int | None:
        """A slot whose array can be viewed as `kind`, constants included; None if it takes more."""
        if isinstance(operand, nodes.Integer | nodes.Float):
            return self.program.constant_slot(types.constant(operand, kind))
        if not isinstance(operand, nodes.Register | nodes.Name):
            return None
        slot = self.program.slot_of(operand.name, self.scope)
        if slot is None:
            if operand.name in special.FIXED and types.width(kind) == types.width(
                special.kind_of(operand.name)
            ):
                return self.program.special_slot(operand.name, special.FIXED[operand.name])
            return None
        declared = types.width(self.program.register_types[slot])
        return slot if declared == types.width(kind) and declared != 128 else None

    def target_slot(self, operand: Any, kind: str) -> int | None:
        if not isinstance(operand, nodes.Register | nodes.Name) or operand.name == "_":
            return None
        slot = self.slot(operand)
        declared = types.width(self.program.register_types[slot])
        return slot if declared == types.width(kind) else None

    def source(self, operand: Any, kind: str) -> Reader:
        """A function that fetches the operand's 32 lanes as `kind`."""
        if isinstance(operand, nodes.Negated):
            inner = self.source(operand.operand, kind)
            if operand.sign == "!":
                return lambda w: ~inner(w)
            return lambda w: np.negative(inner(w))
        plain = self.plain_slot(operand, kind)
        dtype = types.dtype(kind)
        if plain is not None:

            def read(w: Warp, slot: int = plain) -> np.ndarray:
                x = w.R[slot]
                return x if x.dtype is dtype else x.view(dtype)

            return read
        if isinstance(operand, nodes.Register | nodes.Name):
            return self._converted(operand, kind, dtype)
        if isinstance(operand, nodes.Address) and operand.text == "bare":
            base, offset = self.source(operand.base, "b64"), np.uint64(operand.offset % 2**64)
            return lambda w: (base(w) + offset).astype(UNSIGNED[types.width(kind)]).view(dtype)
        self.fail(IllegalInstruction, f"operand {operand} cannot be read as .{kind}")

    def _converted(self, operand: Any, kind: str, dtype: np.dtype) -> Reader:
        """A wider register (its low bits count), a special register, or a variable's address."""
        name = operand.name
        slot = self.program.slot_of(name, self.scope)
        if slot is None and special.is_special(name):
            get = special.reader(name)
            if kind == "pred" or special.kind_of(name) == "pred":
                return get
            bits = UNSIGNED[types.width(kind)]
            return lambda w: get(w).astype(bits).view(dtype)
        if slot is None:
            address = self._variable_address(name)
            bits = UNSIGNED[types.width(kind)]
            return lambda w: np.full(LANES, address(w), np.uint64).astype(bits).view(dtype)
        declared = self.program.register_types[slot]
        if types.width(declared) == 128:
            self.fail(IllegalInstruction, f"{name} has 128 bits, .{kind} wanted")
        if types.width(declared) < types.width(kind) or "pred" in (declared, kind):
            self.fail(
                IllegalInstruction, f"{name} is declared .{declared}, the instruction reads .{kind}"
            )
        whole, part = UNSIGNED[types.width(declared)], UNSIGNED[types.width(kind)]

        def read(w: Warp) -> np.ndarray:
            x = w.R[slot]
            if x.dtype is not whole:
                x = x.view(whole)
            return x.astype(part).view(dtype)

        return read

    def sink(self, operand: Any, kind: str) -> Sink:
        """A function that stores lanes of `kind` in the operand, under the given mask."""
        if isinstance(operand, nodes.Register | nodes.Name) and operand.name == "_":
            return lambda w, values, mask: None
        slot = self.slot(operand)
        declared = self.program.register_types[slot]
        if (declared == "pred") != (kind == "pred"):
            self.fail(
                IllegalInstruction,
                f"{operand.name} is declared .{declared}, the instruction writes .{kind}",
            )
        if types.width(declared) == types.width(kind) or kind == "pred":

            def write(w: Warp, values: np.ndarray, mask: np.ndarray) -> None:
                if mask is w.mask:
                    w.write(slot, values)
                else:
                    _write_masked(w, slot, values, mask)

            return write
        if types.width(declared) < types.width(kind):
            self.fail(
                IllegalInstruction,
                f"{operand.name} is declared .{declared}, the instruction writes .{kind}",
            )
        sign = "int" if kind[0] == "s" else "uint"
        wide = np.dtype(f"{sign}{types.width(declared)}")
        narrow = np.dtype(f"{sign}{types.width(kind)}")

        def extend(w: Warp, values: np.ndarray, mask: np.ndarray) -> None:
            if values.dtype is not narrow:
                values = values.view(narrow)
            write_lanes(w, slot, values.astype(wide), mask)

        return extend

    def guard(self) -> Reader:
        """The lanes whose guard predicate lets them execute (not yet masked by the active ones)."""
        guard = self.inst.guard
        if guard is None:
            self.fail(IllegalInstruction, "has no guard")
        operand: Any = guard.register
        if self.program.slot_of(operand.name, self.scope) is None:
            self.fail(IllegalInstruction, f"guard {operand.name} is not declared")
        if self.type_of(operand) != "pred":
            self.fail(IllegalInstruction, f"guard {operand.name} is not a predicate")
        return self.source(nodes.Negated(operand) if guard.negated else operand, "pred")

    def immediate(self, operand: Any) -> int:
        """The value of an integer constant operand."""
        if not isinstance(operand, nodes.Integer):
            self.fail(IllegalInstruction, f"operand {operand} must be an immediate integer")
        return operand.value

    # ---- addresses

    def address(self, operand: Any, space: str) -> Reader:
        """The 64-bit addresses of `[base + offset]`: window addresses for shared memory, real
        ones for global, offsets for local and parameters; generic ones for space ""."""
        if not isinstance(operand, nodes.Address | nodes.TensorAddress):
            self.fail(IllegalInstruction, f"an address in brackets is required, got {operand}")
        offset = np.uint64(getattr(operand, "offset", 0) % 2**64)
        base = operand.base
        if base is None:
            fixed = np.full(LANES, offset, np.uint64)
            return lambda w: fixed
        slot = self.program.slot_of(base.name, self.scope)
        if slot is None:
            address = self._variable_address(base.name, space)
            return lambda w: np.full(LANES, address(w), np.uint64) + offset
        if types.width(self.program.register_types[slot]) == 32:
            read = self.source(base, "u32")
            low = np.uint32(int(offset) & 0xFFFFFFFF)
            return lambda w: (read(w) + low).astype(np.uint64)
        read = self.source(base, "u64")
        if not offset:
            return read
        return lambda w: read(w) + offset

    def _variable_address(self, name: str, space: str | None = None) -> Callable[[Warp], int]:
        """Where a variable lies, as `mov` (space None) or as an instruction on `space` sees it."""
        variable = self.program.variable(name, self.scope)
        if variable is None:
            self.fail(IllegalInstruction, f"{name} is not declared")
        offset = variable.offset
        if variable.space == "shared":
            high = SHARED if space == "" else 0
            if offset < 0:  # dynamic shared memory follows the static part
                return lambda w: high + w.cta.shared.base + w.machine.dynamic_start
            return lambda w: high + w.cta.shared.base + offset
        window = {"local": LOCAL, "param": PARAM}.get(variable.space, 0)
        return lambda w: offset + (window if space == "" else 0)


def write_lanes(w: Warp, slot: int, values: np.ndarray, mask: np.ndarray) -> None:
    if mask is w.mask:
        w.write(slot, values)
    else:
        _write_masked(w, slot, values, mask)


def _write_masked(w: Warp, slot: int, values: np.ndarray, mask: np.ndarray) -> None:
    """Writes lanes of `mask` only, though more are active."""
    outer, w.mask = w.mask, mask
    try:
        w.merge(slot, values)
    finally:
        w.mask = outer
