# SPDX-License-Identifier: Apache-2.0
"""Lint of one function: names in their scopes, labels, guards, and what ptxas drops silently."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from . import nodes
from .forms import misfit

_SPECIAL_NAMES = """
tid ntid laneid warpid nwarpid ctaid nctaid smid nsmid gridid clusterid nclusterid cluster_ctaid
cluster_nctaid cluster_ctarank cluster_nctarank is_explicit_cluster lanemask_eq lanemask_le
lanemask_lt lanemask_ge lanemask_gt clock clock_hi clock64 globaltimer globaltimer_lo globaltimer_hi
reserved_smem_offset_begin reserved_smem_offset_end reserved_smem_offset_cap reserved_smem_offset_0
reserved_smem_offset_1 total_smem_size aggr_smem_size dynamic_smem_size current_graph_exec
"""
_SPECIAL = frozenset(_SPECIAL_NAMES.split())
_SPECIAL_ROW = re.compile(r"pm\d(_64)?|envreg\d+", re.ASCII)
_DIVERGENT = frozenset({"%laneid", "%tid.x", "%tid.y", "%tid.z"})


@dataclass(frozen=True, slots=True)
class Finding:
    """One remark: where, which rule (a short name), and what is wrong."""

    line: int
    column: int
    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.line}:{self.column}: {self.message} [{self.rule}]"


@dataclass(slots=True)
class _Scope:
    """Names that a block declares; `rows` holds parametrised registers by prefix."""

    registers: dict[str, str] = field(default_factory=dict)
    rows: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    labels: set[str] = field(default_factory=set)

    def register_type(self, name: str) -> str | None:
        found = self.registers.get(name)
        if found is None:
            prefix = name.rstrip("0123456789")
            digits = name[len(prefix) :]
            if digits and (digits == "0" or digits[0] != "0") and len(digits) < 10:
                for count, kind in self.rows.get(prefix, ()):
                    if int(digits) < count:
                        return kind
        return found


class FunctionLint:
    """Walks one function; every finding is independent of the others."""

    def __init__(self, module: nodes.Module, function: nodes.Function) -> None:
        self.function = function
        self.scopes = [_Scope()]
        self.found: list[Finding] = []
        self.divergent: set[str] = set()
        outer = self.scopes[0]
        for item in module.items:
            if isinstance(item, (nodes.Function, nodes.Variable)):
                outer.names.add(item.name)
        for parameter in (*function.parameters, *function.results):
            self.declare(parameter, outer)

    def findings(self) -> list[Finding]:
        body = self.function.body
        if body is not None:
            self.block(body)
            self.register_budget(body)
        return self.found

    def report(self, span: nodes.Span, rule: str, message: str) -> None:
        self.found.append(Finding(span.line, span.column, rule, message))

    # ---- declarations

    def declare(self, item: nodes.Statement, scope: _Scope) -> None:
        if isinstance(item, nodes.RegisterDecl):
            for name, count in item.names:
                if count is None:
                    if name in scope.registers:
                        self.report(item.span, "duplicate", f"register {name} is declared twice")
                    scope.registers[name] = item.type
                else:
                    scope.rows.setdefault(name, []).append((count, item.type))
        elif isinstance(item, nodes.Variable):
            if item.name in scope.names and scope is not self.scopes[0]:
                self.report(item.span, "duplicate", f"variable {item.name} is declared twice")
            scope.names.add(item.name)
        elif isinstance(item, (nodes.Label, nodes.Directive)):
            label = item.name if isinstance(item, nodes.Label) else item.label
            if label is not None:
                if label in scope.labels:
                    self.report(item.span, "duplicate-label", f"label {label} stands twice")
                scope.labels.add(label)

    def block(self, body: nodes.Block) -> None:
        scope = _Scope()
        self.scopes.append(scope)
        for item in body.items:
            self.declare(item, scope)
        for item in body.items:
            if isinstance(item, nodes.Block):
                self.block(item)
            elif isinstance(item, nodes.Instruction):
                self.instruction(item)
            elif isinstance(item, nodes.Directive) and item.name == "branchtargets":
                for name in item.arguments:
                    if name != ",":
                        self.label(name, item.span)
        self.scopes.pop()

    def register_type(self, name: str) -> str | None:
        """The declared type, innermost scope first; "special" for those the machine provides."""
        for scope in reversed(self.scopes):
            kind = scope.register_type(name)
            if kind is not None:
                return kind
        base, _, part = name.partition(".")
        if part and part in "xyzwrgba" and (kind := self.register_type(base)) is not None:
            return kind
        word = base[1:]
        if base.startswith("%") and (word in _SPECIAL or _SPECIAL_ROW.fullmatch(word)):
            return "special"
        return None

    def label(self, name: str, span: nodes.Span) -> None:
        if not any(name in scope.labels for scope in self.scopes):
            self.report(span, "unknown-label", f"label {name} is not in this scope")

    # ---- instructions

    def instruction(self, item: nodes.Instruction) -> None:
        if item.guard is not None:
            self.guard(item, item.guard)
        if (text := misfit(item)) is not None:
            self.report(item.span, "form", text)
        if item.opcode in ("bra", "brx") and item.operands:
            target = item.operands[-1]
            if isinstance(target, nodes.Name):
                self.label(target.name, item.span)
        for operand in leaves(item.operands):
            self.operand(operand, item)
        self.divergence(item)

    def operand(self, operand: nodes.Register | nodes.Name, item: nodes.Instruction) -> None:
        name = operand.name
        if self.register_type(name) is not None or name == "_":
            return
        if isinstance(operand, nodes.Register):
            self.report(item.span, "undeclared", f"register {name} is not declared")
            return
        known = any(name in scope.names or name in scope.labels for scope in self.scopes)
        if not known and item.opcode not in ("bra", "brx") and "(" not in name:
            self.report(item.span, "undeclared", f"{name} is not declared")

    def guard(self, item: nodes.Instruction, guard: nodes.Guard) -> None:
        name = guard.register.name
        kind = self.register_type(name)
        if kind is None:
            self.report(item.span, "undeclared", f"register {name} is not declared")
        elif kind != "pred":
            self.report(item.span, "guard", f"guard {name} is .{kind}, not .pred")
        aligned = "aligned" in item.modifiers or (item.opcode, item.modifiers[:1]) == (
            "bar", ("sync",),
        )  # fmt: skip
        if aligned and name in self.divergent:
            self.report(
                item.span, "aligned",
                f"{item.name} needs all lanes of the warp, but {name} differs between lanes",
            )  # fmt: skip

    def divergence(self, item: nodes.Instruction) -> None:
        """Registers that plainly differ between the lanes of a warp, in order of the text."""
        written = list(leaves(item.operands[:1]))
        if item.opcode == "elect":
            self.divergent.update(register.name for register in written)
            return
        read = {register.name for register in leaves(item.operands[1:])}
        copied = item.opcode == "mov" and read & _DIVERGENT
        compared = item.opcode == "setp" and "eq" in item.modifiers and read & self.divergent
        if copied or compared:
            self.divergent.update(register.name for register in written)
        elif item.guard is None and item.opcode not in ("st", "red"):
            self.divergent.difference_update(register.name for register in written)

    def register_budget(self, body: nodes.Block) -> None:
        """ptxas drops setmaxnreg (C7508) unless it knows the registers at entry."""
        function = self.function
        given = {directive.name for directive in function.directives}
        threads = given & {"reqntid", "maxntid"}
        known = "maxnreg" in given or (threads and "minnctapersm" in given)
        if function.kind != "entry" or known:
            return
        for item in walk(body):
            if isinstance(item, nodes.Instruction) and item.opcode == "setmaxnreg":
                self.report(
                    item.span, "setmaxnreg",
                    "ptxas drops setmaxnreg (C7508): the entry needs .reqntid with "
                    ".minnctapersm, or .maxnreg",
                )  # fmt: skip


def walk(block: nodes.Block) -> Iterator[nodes.Statement]:
    """Every statement of a block and its inner blocks, in order of the text."""
    for item in block.items:
        yield item
        if isinstance(item, nodes.Block):
            yield from walk(item)


def leaves(operands: tuple[nodes.Operand, ...]) -> Iterator[nodes.Register | nodes.Name]:
    """The registers and names within operands."""
    for operand in operands:
        match operand:
            case nodes.Register() | nodes.Name():
                yield operand
            case nodes.Address(base=base) if base is not None:
                yield base
            case nodes.TensorAddress(base=base, parts=parts):
                yield base
                yield from leaves(parts)
            case nodes.Vector(items=items) | nodes.Group(items=items):
                yield from leaves(items)
            case nodes.Pair(first=first, second=second):
                yield from leaves((first, second))
            case nodes.Negated(operand=inner):
                yield inner
