# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: RUF009 (_span() makes a field, not a shared default)
"""What PTX text parses into: frozen nodes that know no opcode, each with its place in the text.

Names keep their spelling (`%r1`, `smem`); literals keep their text beside their value, so that the
printer gives back what was read. Operands compare by content, not by place.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Span:
    """A place in the text; line and column count from 1."""

    line: int
    column: int
    end_line: int
    end_column: int


def _span() -> Span:
    return field(compare=False, repr=False, kw_only=True, default=Span(0, 0, 0, 0))


@dataclass(frozen=True, slots=True)
class Register:
    """A name that starts with `%`, special registers (`%tid.x`) and vector parts included."""

    name: str
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Name:
    """Any other identifier: variable, label, function, a register without `%`, or `_`."""

    name: str
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Integer:
    """An integer constant expression: value as an unbounded int, and its text."""

    value: int
    text: str = field(compare=False)
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Float:
    """A floating constant: `bits` and `width` for 0f/0d forms (32 or 64), or decimal (64)."""

    bits: int
    width: int
    text: str = field(compare=False)
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Address:
    """`[base + offset]`; base is None for an immediate address. `negated` prints as `[a+-8]`."""

    base: Register | Name | None
    offset: int = 0
    text: str = field(compare=False, default="")
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class TensorAddress:
    """`[map, {c0, c1, ...}]`, also with an im2col or gather tail: the parts after the first."""

    base: Register | Name
    parts: tuple[Operand, ...]
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Vector:
    """`{a, b, ...}`; `_` stands as Name('_')."""

    items: tuple[Operand, ...]
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Pair:
    """`d|p`."""

    first: Operand
    second: Operand
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Negated:
    """`!p` (predicate) or `-%r` (operand negation)."""

    operand: Register | Name
    sign: str = "!"
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Group:
    """`(a, b)`: results and arguments of a call."""

    items: tuple[Operand, ...]
    span: Span = _span()


Operand: TypeAlias = (
    Register | Name | Integer | Float | Address | TensorAddress | Vector | Pair | Negated | Group
)


@dataclass(frozen=True, slots=True)
class Guard:
    """`@p` or `@!p`."""

    register: Register | Name
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Instruction:
    """`@p opcode.mod1.mod2 a, b;`

    `opcode` is the text before the first dot; `modifiers` the rest, each without its dot, `::` kept
    (`mbarrier.try_wait.shared::cta.b64` -> "mbarrier", ("try_wait", "shared::cta", "b64")).
    """

    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: Guard | None = None
    span: Span = _span()

    @property
    def name(self) -> str:
        """The opcode with all its modifiers, as written."""
        return ".".join((self.opcode, *self.modifiers))


@dataclass(frozen=True, slots=True)
class RegisterDecl:
    """`.reg .b32 %a, %b, %r<10>;` -> type "b32"; a parametrised name has its count, else None."""

    type: str
    names: tuple[tuple[str, int | None], ...]
    vector: int = 1
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable or parameter outside registers.

    `space` is "shared", "global", "const", "local" or "param". `dimensions` holds the array extents
    (None for an empty bracket, at most the first). `initializer` is a nested tuple of operands.
    """

    space: str
    type: str
    name: str
    align: int | None = None
    vector: int = 1
    dimensions: tuple[int | None, ...] = ()
    initializer: tuple | Operand | None = None
    linkage: str | None = None
    attributes: tuple[str, ...] = ()
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Label:
    name: str
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Block:
    """`{ ... }`: a scope of its own for registers, variables and labels."""

    items: tuple[Statement, ...]
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Directive:
    """Any other directive, kept as tokens: `.pragma "x";`, `.loc 1 2 3`, `.branchtargets a, b;`.

    `label` is the name before the colon of `L: .branchtargets a, b;`.
    """

    name: str
    arguments: tuple[str, ...] = ()
    label: str | None = None
    semicolon: bool = False
    span: Span = _span()


Statement: TypeAlias = Instruction | RegisterDecl | Variable | Label | Block | Directive


@dataclass(frozen=True, slots=True)
class Function:
    """An `.entry` or `.func`; `body` is None for a declaration."""

    kind: str
    name: str
    parameters: tuple[Variable | RegisterDecl, ...]
    results: tuple[Variable | RegisterDecl, ...]
    directives: tuple[Directive, ...]
    body: Block | None
    linkage: str | None = None
    span: Span = _span()

    def directive(self, name: str) -> tuple[str, ...] | None:
        """Arguments of a directive such as "reqntid", or None where it is not given."""
        return next((d.arguments for d in self.directives if d.name == name), None)


@dataclass(frozen=True, slots=True)
class Module:
    """A whole file. `target` keeps every name of the `.target` line."""

    version: tuple[int, int]
    target: tuple[str, ...]
    address_size: int
    items: tuple[Function | Variable | Directive, ...]
    filename: str = field(default="<ptx>", compare=False)

    @property
    def functions(self) -> dict[str, Function]:
        """Functions by name; a definition wins over its declarations."""
        found: dict[str, Function] = {}
        for item in self.items:
            if isinstance(item, Function) and (item.body is not None or item.name not in found):
                found[item.name] = item
        return found
