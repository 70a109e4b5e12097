# SPDX-License-Identifier: Apache-2.0
"""An entry compiled for execution: one closure per instruction, registers as numbered slots.

Scopes are flattened, calls of device functions are expanded in place, constants and the special
registers that never change become slots of their own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import CufmhaError, IllegalInstruction, UnsupportedInstruction
from ..isa import nodes
from . import types
from .context import Context
from .forms import ordered
from .lanes import Warp
from .registers import Unwritten
from .registry import Exit, LaneFn, find
from .types import LANES, some

Step = Callable[[Warp], Any]


class Scope:
    """Names of one `{ }`: registers, labels, variables; outer scopes behind it."""

    def __init__(self, outer: Scope | None) -> None:
        self.outer = outer
        self.registers: dict[str, int] = {}
        self.families: list[tuple[str, int, str]] = []
        self.labels: dict[str, int] = {}
        self.targets: dict[str, tuple[str, ...]] = {}
        self.variables: dict[str, Variable] = {}

    def chain(self) -> list[Scope]:
        found, scope = [], self
        while scope is not None:
            found.append(scope)
            scope = scope.outer  # type: ignore[assignment]
        return found


class Variable:
    """Where a variable lives: its state space, and its offset there (global: real address)."""

    def __init__(self, space: str, offset: int, size: int) -> None:
        self.space = space
        self.offset = offset
        self.size = size


class Program:
    """Everything about one entry that does not change between launches."""

    def __init__(
        self,
        module: nodes.Module,
        entry: nodes.Function,
        variables: dict[str, Variable],
        *,
        arch: str,
        rules: str,
        hazards: bool,
        shared_static: int,
        shared_align: int,
    ) -> None:
        self.module = module
        self.entry = entry
        self.arch, self.rules, self.hazards = arch, rules, hazards
        self.kernel = entry.name
        self.register_names: list[str] = []
        self.register_types: list[str] = []
        self.initial: list[Any] = []
        self.per_warp: list[tuple[int, Callable[[Warp], np.ndarray]]] = []
        self.special_slots: dict[str, int] = {}
        self.constant_slots: dict[tuple[str, bytes], int] = {}
        self.steps: list[Step] = []
        self.lines: list[int] = []
        self.instructions: list[nodes.Instruction | None] = []
        self.local_size = 0
        self.shared_static, self.shared_align = shared_static, shared_align
        self.param_layout, self.param_size = self._layout(entry)
        self._pending: list[tuple[int, nodes.Instruction, Scope, list[str]]] = []
        self._calls: list[str] = []
        root = Scope(None)
        root.variables = dict(variables)
        for name, (offset, size, _) in self.param_layout.items():
            root.variables[name] = Variable("param", offset, size)
        if entry.body is None:
            raise IllegalInstruction(f"entry {entry.name} has no body")
        self._flatten(entry.body, root)
        self._emit(nodes.Instruction("ret", (), (), span=entry.body.span), root)
        for at, inst, scope, ends in self._pending:
            self.steps[at] = self._compile(inst, scope, ends)
        self._pending.clear()

    # ---- parameters

    @staticmethod
    def _layout(entry: nodes.Function) -> tuple[dict[str, tuple[int, int, str]], int]:
        """name -> (offset, bytes, type), as the ABI packs kernel parameters."""
        layout, at = {}, 0
        for parameter in entry.parameters:
            if not isinstance(parameter, nodes.Variable):
                raise UnsupportedInstruction(f"entry {entry.name}: .reg parameter")
            size = variable_size(parameter)
            align = max(parameter.align or 1 if "ptr" not in parameter.attributes else 1,
                        types.width(parameter.type) // 8 * parameter.vector)  # fmt: skip
            at = -(-at // align) * align
            layout[parameter.name] = (at, size, parameter.type)
            at += size
        return layout, at

    # ---- flattening

    def _emit(self, inst: nodes.Instruction, scope: Scope) -> None:
        self._pending.append((len(self.steps), inst, scope, list(self._calls)))
        self.steps.append(_never)
        self.lines.append(inst.span.line)
        self.instructions.append(inst)

    def _flatten(self, block: nodes.Block, outer: Scope, scope: Scope | None = None) -> None:
        scope = scope or Scope(outer)
        for item in block.items:
            if isinstance(item, nodes.RegisterDecl):
                self.declare(item, scope)
            elif isinstance(item, nodes.Variable):
                self._local_variable(item, scope)
            elif isinstance(item, nodes.Directive) and item.label:
                names = tuple(a for a in item.arguments if a != ",")
                scope.targets[item.label] = names
        for item in block.items:
            if isinstance(item, nodes.Label):
                if item.name in scope.labels:
                    raise IllegalInstruction(
                        f"label {item.name} is defined twice in one scope", line=item.span.line
                    )
                scope.labels[item.name] = len(self.steps)
            elif isinstance(item, nodes.Block):
                self._flatten(item, scope)
            elif isinstance(item, nodes.Instruction):
                if item.opcode == "call":
                    self._expand_call(item, scope)
                else:
                    self._emit(item, scope)

    def declare(self, item: nodes.RegisterDecl, scope: Scope) -> None:
        for name, count in item.names:
            if item.vector > 1:
                for part in "xyzw"[: item.vector]:
                    scope.registers[f"{name}.{part}"] = self.new_slot(f"{name}.{part}", item.type)
            elif count is None:
                scope.registers[name] = self.new_slot(name, item.type)
            else:
                scope.families.append((name, count, item.type))

    def new_slot(self, name: str, kind: str) -> int:
        if not types.known(kind):
            raise UnsupportedInstruction(f"register {name} of type .{kind}")
        self.register_names.append(name)
        self.register_types.append(kind)
        self.initial.append(Unwritten(name))
        return len(self.initial) - 1

    def _local_variable(self, item: nodes.Variable, scope: Scope) -> None:
        size, align = variable_size(item), item.align or types.width(item.type) // 8
        if item.space == "shared":
            self.shared_static = -(-self.shared_static // align) * align
            scope.variables[item.name] = Variable("shared", self.shared_static, size)
            self.shared_static += size
            self.shared_align = max(self.shared_align, align)
        elif item.space in ("local", "param"):
            self.local_size = -(-self.local_size // align) * align
            scope.variables[item.name] = Variable("local", self.local_size, size)
            self.local_size += size
        else:
            raise UnsupportedInstruction(
                f".{item.space} variable {item.name} inside a function", line=item.span.line
            )

    def _expand_call(self, inst: nodes.Instruction, scope: Scope) -> None:
        """Copies the callee in place: parameters are bound, `ret` jumps behind the copy."""
        groups = [o for o in inst.operands if isinstance(o, nodes.Group)]
        name = next((o.name for o in inst.operands if isinstance(o, nodes.Name)), None)
        callee = self.module.functions.get(name or "")
        if callee is None or callee.body is None:
            raise UnsupportedInstruction(
                f"call of {name or 'a register'}, which has no body here", line=inst.span.line
            )
        if callee.name in self._calls:
            raise UnsupportedInstruction(f"recursive call of {name}", line=inst.span.line)
        has_result = inst.operands and isinstance(inst.operands[0], nodes.Group) and callee.results
        results = groups[0].items if has_result else ()
        arguments = groups[1 if has_result else 0].items if len(groups) > bool(has_result) else ()
        inner = Scope(Scope(None))
        inner.outer.variables = scope.chain()[-1].variables  # type: ignore[union-attr]
        skip = f"end of {callee.name} {len(self.steps)}"
        scope.labels[skip] = -1
        if inst.guard:
            guard = nodes.Guard(inst.guard.register, not inst.guard.negated)
            self._emit(
                nodes.Instruction("bra", (), (nodes.Name(skip),), guard, span=inst.span), scope
            )
        for formal, actual in zip(callee.parameters, arguments, strict=True):
            self._bind(formal, actual, scope, inner, inst)
        for formal, actual in zip(callee.results, results, strict=True):
            if isinstance(formal, nodes.RegisterDecl):
                name = formal.names[0][0]
                inner.registers[name] = self.new_slot(name, formal.type)
            else:
                self._bind(formal, actual, scope, inner, inst)
        self._calls.append(callee.name)
        inner.labels["end of call"] = -1
        self._flatten(callee.body, inner)
        self._calls.pop()
        inner.labels["end of call"] = len(self.steps)
        for formal, actual in zip(callee.results, results, strict=True):
            if isinstance(formal, nodes.RegisterDecl) and isinstance(actual, nodes.Register):
                self._copy(actual, inner.registers[formal.names[0][0]], formal.type, scope, inst)
        scope.labels[skip] = len(self.steps)

    def _copy(self, to: Any, slot: int, kind: str, scope: Scope, inst: nodes.Instruction) -> None:
        """Emits `mov to, register in slot`; the slot gets a name that no text can have."""
        source = nodes.Register(f"slot {slot}")
        scope.registers[source.name] = slot
        self._emit(nodes.Instruction("mov", (_bits(kind),), (to, source), span=inst.span), scope)

    def _bind(
        self, formal: Any, actual: Any, scope: Scope, inner: Scope, inst: nodes.Instruction
    ) -> None:
        """A .reg parameter is a copy of its argument; a .param one is the caller's variable."""
        if isinstance(formal, nodes.RegisterDecl):
            name = formal.names[0][0]
            slot = inner.registers[name] = self.new_slot(name, formal.type)
            target = nodes.Register(f"slot {slot}")
            scope.registers[target.name] = slot
            operands = (target, actual)
            self._emit(
                nodes.Instruction("mov", (_bits(formal.type),), operands, span=inst.span), scope
            )
            return
        variable = next(
            (s.variables[actual.name] for s in scope.chain() if actual.name in s.variables), None
        )
        if variable is None:
            raise UnsupportedInstruction(
                f"call argument {actual}, not a .param variable", line=inst.span.line
            )
        inner.variables[formal.name] = variable

    # ---- names

    def slot_of(self, name: str, scope: Scope) -> int | None:
        """The slot of a declared register, or None."""
        for level in scope.chain():
            found = level.registers.get(name)
            if found is not None:
                return found
            for stem, count, kind in level.families:
                number = name[len(stem) :] if name.startswith(stem) else ""
                if re.fullmatch(r"0|[1-9]\d*", number) and int(number) < count:
                    slot = level.registers[name] = self.new_slot(name, kind)
                    return slot
        return None

    def label(self, name: str, scope: Scope) -> int | None:
        return next((s.labels[name] for s in scope.chain() if name in s.labels), None)

    def branch_targets(self, name: str, scope: Scope) -> tuple[str, ...] | None:
        return next((s.targets[name] for s in scope.chain() if name in s.targets), None)

    def variable(self, name: str, scope: Scope) -> Variable | None:
        return next((s.variables[name] for s in scope.chain() if name in s.variables), None)

    def constant_slot(self, values: np.ndarray) -> int:
        key = (values.dtype.str, values.tobytes())
        if key not in self.constant_slots:
            self.register_names.append("constant")
            self.register_types.append("b32")
            self.initial.append(values)
            self.constant_slots[key] = len(self.initial) - 1
        return self.constant_slots[key]

    def special_slot(self, name: str, value: Callable[[Warp], np.ndarray]) -> int:
        if name not in self.special_slots:
            slot = self.new_slot(name, "b32")
            self.special_slots[name] = slot
            self.per_warp.append((slot, value))
        return self.special_slots[name]

    def initial_registers(self, warp: Warp) -> list[Any]:
        registers = list(self.initial)
        for slot, value in self.per_warp:
            registers[slot] = value(warp)
        return registers

    # ---- instructions

    def _compile(self, inst: nodes.Instruction, scope: Scope, calls: list[str]) -> Step:
        try:
            inst = ordered(inst)
            found = find(inst)
            if found is None:
                raise UnsupportedInstruction(f"{inst.name} is not executed by the emulator")
            ctx = Context(self, inst, scope, calls)
            if found.kind == "control":
                return found.build(inst, ctx)
            built = found.build(inst, ctx)
            if isinstance(built, LaneFn):
                step = lane_step(inst, ctx, built)
            else:
                step = warp_step(built, uniform=found.uniform)
        except CufmhaError as error:
            if hasattr(error, "locate"):
                error.locate(kernel=self.kernel, line=inst.span.line)
            raise
        return guarded(step, ctx) if inst.guard else step


def _never(warp: Warp) -> None:
    raise AssertionError("instruction was not compiled")


def _bits(kind: str) -> str:
    return "pred" if kind == "pred" else f"b{types.width(kind)}"


def variable_size(item: nodes.Variable) -> int:
    """Bytes of a variable or parameter."""
    size = max(types.width(item.type) // 8, 1) * item.vector
    for extent in item.dimensions:
        size *= extent or 0
    return size


def warp_step(run: Callable[[Warp, np.ndarray], Any], *, uniform: bool) -> Step:
    if not uniform:
        return lambda w: run(w, w.mask)

    def step(w: Warp) -> Any:
        return w.require_converged() or run(w, w.mask)

    return step


def guarded(step: Step, ctx: Context) -> Step:
    """`@p`: the step under the lanes whose predicate holds."""
    guard = ctx.guard()

    def run(w: Warp) -> Any:
        p = guard(w)
        mask, full = w.mask, w.full
        if not full:
            p = p & mask
        count = some(p)
        if count == LANES:
            return step(w)
        if not count:
            return None
        if not full and count == some(mask):  # p lies within the mask
            return step(w)
        w.mask, w.full = p, False
        try:
            return step(w)
        finally:
            w.mask, w.full = mask, full

    return run


def lane_step(inst: nodes.Instruction, ctx: Context, lane: LaneFn) -> Step:
    """Fetch the sources in their dtypes, call the function, store the results."""
    operands = ctx.flat_operands()
    if len(operands) != len(lane.dst) + len(lane.src):
        raise IllegalInstruction(
            f"{inst.name} takes {len(lane.dst) + len(lane.src)} operands, got {len(operands)}"
        )
    targets = operands[: len(lane.dst)]
    sources = list(zip(operands[len(lane.dst) :], lane.src, strict=True))
    slots = [ctx.plain_slot(operand, kind) for operand, kind in sources]
    plain_target = ctx.target_slot(targets[0], lane.dst[0]) if len(targets) == 1 else None
    if plain_target is not None and len(slots) <= 3 and all(s is not None for s in slots):
        dtypes = [types.dtype(kind) for kind in lane.src]
        return _FAST[len(slots)](lane.fn, plain_target, *slots, *dtypes)
    readers = [ctx.source(operand, kind) for operand, kind in sources]
    sinks = [ctx.sink(o, kind) for o, kind in zip(targets, lane.dst, strict=True)]
    fn = lane.fn
    if len(sinks) == 1:
        sink = sinks[0]

        def one(w: Warp) -> None:
            sink(w, fn(*[read(w) for read in readers]), w.mask)

        return one

    def many(w: Warp) -> None:
        for sink, values in zip(sinks, fn(*[read(w) for read in readers]), strict=True):
            sink(w, values, w.mask)

    return many


def _fast0(fn: Any, d: int) -> Step:
    return lambda w: w.write(d, fn())


def _fast1(fn: Any, d: int, a: int, dtype_a: Any) -> Step:
    def step(w: Warp) -> None:
        registers = w.R
        x = registers[a]
        if x.dtype is not dtype_a:
            x = x.view(dtype_a)
        values = fn(x)
        if w.full:
            registers[d] = values
        else:
            w.merge(d, values)

    return step


def _fast2(fn: Any, d: int, a: int, b: int, dtype_a: Any, dtype_b: Any) -> Step:
    def step(w: Warp) -> None:
        registers = w.R
        x = registers[a]
        if x.dtype is not dtype_a:
            x = x.view(dtype_a)
        y = registers[b]
        if y.dtype is not dtype_b:
            y = y.view(dtype_b)
        values = fn(x, y)
        if w.full:
            registers[d] = values
        else:
            w.merge(d, values)

    return step


def _fast3(
    fn: Any, d: int, a: int, b: int, c: int, dtype_a: Any, dtype_b: Any, dtype_c: Any
) -> Step:
    def step(w: Warp) -> None:
        registers = w.R
        x = registers[a]
        if x.dtype is not dtype_a:
            x = x.view(dtype_a)
        y = registers[b]
        if y.dtype is not dtype_b:
            y = y.view(dtype_b)
        z = registers[c]
        if z.dtype is not dtype_c:
            z = z.view(dtype_c)
        values = fn(x, y, z)
        if w.full:
            registers[d] = values
        else:
            w.merge(d, values)

    return step


_FAST: tuple[Callable[..., Step], ...] = (_fast0, _fast1, _fast2, _fast3)


def exit_step(w: Warp) -> Exit:
    return Exit(w.mask.copy())


NO_LANES = np.zeros(LANES, bool)
