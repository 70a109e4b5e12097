# SPDX-License-Identifier: Apache-2.0
"""Tokens to nodes by recursive descent. It knows no opcode: any instruction parses."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import NoReturn

from . import nodes
from .expressions import Expressions
from .lexer import Source, Token, tokenize

SPACES = frozenset({"shared", "global", "const", "local", "param"})
LINKAGES = frozenset({"extern", "visible", "weak", "common"})
MAX_DEPTH = 64


def parse(text: str, filename: str = "<ptx>") -> nodes.Module:
    """A whole file. Raises PtxSyntaxError with the place and what was expected there."""
    return Parser(Source(text, filename)).module()


class Parser(Expressions):
    """Position in the token list, and one method per construct."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.tokens = tokenize(source)
        self.at = 0
        self.depth = 0
        self.call = False  # within a call, where '(' opens a list

    # ---- tokens

    @property
    def token(self) -> Token:
        return self.tokens[self.at]

    def next(self) -> Token:
        token = self.tokens[self.at]
        if token.kind != "end":
            self.at += 1
        return token

    def fail(self, expected: str, token: Token | None = None) -> NoReturn:
        token = token or self.token
        found = "the end of the file" if token.kind == "end" else repr(token.text)
        raise self.source.error(f"expected {expected}, found {found}", token.start)

    def accept(self, text: str) -> bool:
        if self.token.text == text and self.token.kind in ("mark", "dotted", "word"):
            self.at += 1
            return True
        return False

    def expect(self, text: str) -> Token:
        if self.token.text != text or self.token.kind == "string":
            self.fail(repr(text))
        return self.next()

    def of_kind(self, kind: str, expected: str) -> Token:
        if self.token.kind != kind:
            self.fail(expected)
        return self.next()

    def identifier(self, expected: str) -> str:
        if self.token.kind not in ("word", "register"):
            self.fail(expected)
        return self.next().text

    def span(self, start: int) -> nodes.Span:
        end = self.tokens[max(self.at - 1, 0)].end
        return nodes.Span(*self.source.place(start), *self.source.place(end))

    def nested(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.source.error(
                f"expected at most {MAX_DEPTH} levels of nesting", self.token.start
            )

    # ---- module

    def module(self) -> nodes.Module:
        version = target = None
        address_size = 32
        items: list[nodes.Function | nodes.Variable | nodes.Directive] = []
        while self.token.kind != "end":
            if version is None and self.token.text != ".version":
                self.fail("'.version' first")
            if self.accept(".version"):
                version = self.version()
            elif self.accept(".target"):
                target = self.target()
            elif self.accept(".address_size"):
                address_size = self.constant("an address size")
            else:
                items.extend(self.item())
        if version is None:
            self.fail("'.version'")
        if target is None:
            self.fail("'.target'")
        return nodes.Module(version, target, address_size, tuple(items), self.source.filename)

    def version(self) -> tuple[int, int]:
        token = self.of_kind("float", "a version such as 8.6")
        major, _, minor = token.text.partition(".")
        if not (major.isdigit() and minor.isdigit()):
            self.fail("a version such as 8.6", token)
        if len(token.text) > 8:
            self.fail("a version such as 8.6", token)
        return int(major), int(minor)

    def target(self) -> tuple[str, ...]:
        names = [self.identifier("a target such as sm_90a")]
        while self.accept(","):
            names.append(self.identifier("a target option"))
        return tuple(names)

    def item(self) -> tuple[nodes.Function | nodes.Variable | nodes.Directive, ...]:
        start = self.token.start
        linkage = None
        if self.token.kind == "dotted" and self.token.text[1:] in LINKAGES:
            linkage = self.next().text[1:]
        if self.token.text in (".entry", ".func"):
            return (self.function(start, linkage),)
        if self.token.kind == "dotted" and self.token.text[1:] in SPACES:
            return self.variables(start, linkage)
        if linkage:
            self.fail("'.entry', '.func' or a state space")
        return (self.directive(),)

    def function(self, start: int, linkage: str | None) -> nodes.Function:
        kind = self.next().text[1:]
        directives: list[nodes.Directive] = []
        while self.token.text == ".attribute":  # all others follow the parameters
            directives.append(self.function_directive())
        results: tuple = ()
        if kind == "func" and self.token.text == "(":
            results = self.parameters()
        name = self.identifier("a function name")
        parameters = self.parameters() if self.token.text == "(" else ()
        while self.token.kind == "dotted":
            directives.append(self.function_directive())
        body = None
        if self.token.text == "{":
            body = self.block()
        else:
            self.expect(";")
        return nodes.Function(
            kind, name, parameters, results, tuple(directives), body, linkage,
            span=self.span(start),
        )  # fmt: skip

    def parameters(self) -> tuple[nodes.Variable | nodes.RegisterDecl, ...]:
        self.expect("(")
        found: list[nodes.Variable | nodes.RegisterDecl] = []
        while not self.accept(")"):
            if found:
                self.expect(",")
            start = self.token.start
            if self.accept(".reg"):
                found.append(self.register_names(start, single=True))
            elif self.token.text == ".param":
                found.append(self.declarator(start, None))
            else:
                self.fail("'.param' or '.reg'")
        return tuple(found)

    def function_directive(self) -> nodes.Directive:
        """`.reqntid 128, 1`, `.minnctapersm 1`, `.pragma "x";`, `.attribute(...)`."""
        start = self.token.start
        name = self.next().text[1:]
        arguments: list[str] = []
        if name == "pragma":
            arguments.append(self.of_kind("string", "a quoted pragma").text)
            while self.accept(","):
                arguments.append(self.of_kind("string", "a quoted pragma").text)
            self.expect(";")
            return nodes.Directive(name, tuple(arguments), semicolon=True, span=self.span(start))
        if self.token.text == "(":
            arguments.extend(self.balanced("(", ")"))
        elif self.token.kind == "integer":
            arguments.append(self.next().text)
            while self.accept(","):
                arguments.append(self.of_kind("integer", "a number").text)
        return nodes.Directive(name, tuple(arguments), span=self.span(start))

    def balanced(self, opening: str, closing: str) -> list[str]:
        """Tokens from an opening mark to its partner, both included."""
        if self.token.text != opening:
            self.fail(repr(opening))
        found, level = [], 0
        while True:
            token = self.next()
            if token.kind == "end":
                self.fail(repr(closing), token)
            found.append(token.text)
            level += (token.text == opening) - (token.text == closing)
            if level == 0:
                return found

    # ---- statements

    def block(self) -> nodes.Block:
        start = self.expect("{").start
        self.nested()
        items: list[nodes.Statement] = []
        while not self.accept("}"):
            if self.token.kind == "end":
                self.fail("'}'")
            items.extend(self.statement())
        self.depth -= 1
        return nodes.Block(tuple(items), span=self.span(start))

    def statement(self) -> tuple[nodes.Statement, ...]:
        """What one semicolon ends: none for an empty statement, many for `.shared .b32 a, b;`."""
        token = self.token
        if token.kind == "dotted":
            return self.declaration()
        if (token.kind == "word" and self.tokens[self.at + 1].text != ":") or token.text == "@":
            return (self.instruction(),)
        if token.kind in ("word", "register") and self.tokens[self.at + 1].text == ":":
            self.at += 2
            if self.token.text in (".branchtargets", ".calltargets", ".callprototype"):
                return (self.directive(label=token.text, start=token.start),)
            return (nodes.Label(token.text, span=self.span(token.start)),)
        if token.text == "{":
            return (self.block(),)
        if token.text == ";":
            self.next()
            return ()
        self.fail("a statement")

    def declaration(self) -> tuple[nodes.Statement, ...]:
        start = self.token.start
        name = self.token.text[1:]
        if name == "reg":
            self.next()
            declared = self.register_names(start)
            self.expect(";")
            return (declared,)
        if name in LINKAGES:
            self.next()
            if self.token.text[1:] not in SPACES:
                self.fail("a state space")
            return self.variables(start, name)
        if name in SPACES:
            return self.variables(start, None)
        return (self.directive(),)

    def directive(self, label: str | None = None, start: int | None = None) -> nodes.Directive:
        """Ends at ';', or for .loc and .file at the line's end, or at a section's closing brace."""
        token = self.of_kind("dotted", "a directive, function or variable")
        start = token.start if start is None else start
        name = token.text[1:]
        arguments: list[str] = []
        if name in ("loc", "file"):
            line = self.source.place(token.start)[0]
            while self.token.kind != "end" and self.source.place(self.token.start)[0] == line:
                if self.token.text in ("{", "}", ";"):
                    break
                arguments.append(self.next().text)
            return nodes.Directive(name, tuple(arguments), label, span=self.span(start))
        if name == "section":
            if self.token.kind not in ("word", "dotted"):
                self.fail("a section name")
            arguments.append(self.next().text)
            if self.token.text != "{":
                self.fail("'{'")
            arguments.extend(self.balanced("{", "}"))
            return nodes.Directive(name, tuple(arguments), label, span=self.span(start))
        while self.token.text != ";" or self.token.kind == "string":
            if self.token.kind == "end" or self.token.text in ("{", "}"):
                self.fail("';'")
            arguments.append(self.next().text)
        self.expect(";")
        return nodes.Directive(name, tuple(arguments), label, semicolon=True, span=self.span(start))

    def register_names(self, start: int, *, single: bool = False) -> nodes.RegisterDecl:
        vector = 1
        if self.token.text in (".v2", ".v4"):
            vector = int(self.next().text[2:])
        kind = self.of_kind("dotted", "a register type").text[1:]
        names: list[tuple[str, int | None]] = []
        while True:
            name = self.identifier("a register name")
            count = None
            if self.accept("<"):
                count = self.constant("a register count", closing=">")
                self.expect(">")
            names.append((name, count))
            if single or not self.accept(","):
                break
        return nodes.RegisterDecl(kind, tuple(names), vector, span=self.span(start))

    def variables(self, start: int, linkage: str | None) -> tuple[nodes.Variable, ...]:
        """`.shared .b32 a, b[4];` stands for one declaration each."""
        found = [self.declarator(start, linkage)]
        while self.accept(","):
            place = self.token.start
            name, dimensions, initializer = self.declared()
            another = replace(
                found[0], name=name, dimensions=dimensions, initializer=initializer,
                span=self.span(place),
            )  # fmt: skip
            found.append(another)
        self.expect(";")
        return tuple(found)

    def declarator(self, start: int, linkage: str | None) -> nodes.Variable:
        """`.shared .align 16 .b8 name[4][8] = {...}`; parameters have `.ptr .global` too."""
        space = self.next().text[1:]
        align, vector = None, 1
        attributes: list[str] = []
        while self.token.text in (".align", ".attribute", ".v2", ".v4", ".v8"):
            word = self.next().text[1:]
            if word == "align":
                align = self.constant("an alignment")
            elif word == "attribute":
                attributes.append(word + "".join(self.balanced("(", ")")))
            else:
                vector = int(word[1:])
        kind = self.of_kind("dotted", "a type such as .b32").text[1:]
        if space == "param" and self.accept(".ptr"):
            attributes.append("ptr")
            if self.token.text[1:] in SPACES and self.token.kind == "dotted":
                attributes.append(self.next().text[1:])
            if self.accept(".align"):
                align = self.constant("an alignment")
        name, dimensions, initializer = self.declared()
        return nodes.Variable(
            space, kind, name, align, vector, dimensions, initializer, linkage,
            tuple(attributes), span=self.span(start),
        )  # fmt: skip

    def declared(self) -> tuple[str, tuple[int | None, ...], tuple | nodes.Operand | None]:
        """Name, extents and initializer of one declared variable."""
        name = self.identifier("a variable name")
        dimensions: list[int | None] = []
        while self.accept("["):
            dimensions.append(
                None if self.token.text == "]" else self.constant("an extent", closing="]")
            )
            self.expect("]")
        return name, tuple(dimensions), self.initializer() if self.accept("=") else None

    def initializer(self) -> tuple | nodes.Operand:
        if not self.accept("{"):
            return self.operand()
        self.nested()
        items: list[tuple | nodes.Operand] = []
        while not self.accept("}"):
            if items:
                self.expect(",")
            items.append(self.initializer())
        self.depth -= 1
        return tuple(items)

    # ---- instructions

    def instruction(self) -> nodes.Instruction:
        start = self.token.start
        guard = None
        if self.accept("@"):
            negated = self.accept("!")
            guard = nodes.Guard(self.register("a predicate register"), negated)
        opcode = self.of_kind("word", "an instruction").text
        modifiers: list[str] = []
        while self.token.kind == "dotted":
            modifiers.append(self.next().text[1:])
        self.call = opcode == "call"
        operands: list[nodes.Operand] = []
        while not self.accept(";"):
            if operands and not self.accept(","):
                self.fail("',' or ';'")
            operands.append(self.operand())
        return nodes.Instruction(
            opcode, tuple(modifiers), tuple(operands), guard, span=self.span(start)
        )

    def register(self, expected: str) -> nodes.Register | nodes.Name:
        token = self.token
        if token.kind == "register":
            self.next()
            return nodes.Register(token.text, span=self.span(token.start))
        if token.kind == "word":
            self.next()
            name = token.text
            if self.token.kind == "dotted" and self.token.start == token.end:
                name += self.next().text
            return nodes.Name(name, span=self.span(token.start))
        self.fail(expected)

    def operand(self) -> nodes.Operand:
        token = self.token
        first = self.single()
        if self.accept("|"):
            return nodes.Pair(first, self.single(), span=self.span(token.start))
        return first

    def single(self) -> nodes.Operand:
        token = self.token
        if token.kind == "register" or (token.kind == "word" and token.text != "WARP_SZ"):
            return self.symbol()
        if token.text in ("{", "[", "(") and (token.text != "(" or self.is_group()):
            self.nested()
            found = {"{": self.vector, "[": self.address, "(": self.group}[token.text]()
            self.depth -= 1
            return found
        if token.text == "!":
            return self.negated()
        following = self.tokens[self.at + 1]
        named = following.kind in ("register", "word") and following.text != "WARP_SZ"
        if token.text == "-" and named:
            self.next()
            return nodes.Negated(self.register("a register"), "-", span=self.span(token.start))
        if token.kind == "float" or (
            token.text in ("-", "+") and self.tokens[self.at + 1].kind == "float"
        ):
            return self.floating()
        if token.kind == "integer" and following.text == "(":
            return self.masked()
        if token.kind in ("integer", "mark", "word"):
            value = self.expression("an operand")
            text = self.source.text[token.start : self.tokens[self.at - 1].end]
            return nodes.Integer(value, text, span=self.span(token.start))
        self.fail("an operand")

    def masked(self) -> nodes.Name:
        """`0xFF00(name)` in an initializer: one byte of an address."""
        mask = self.next()
        self.expect("(")
        name = self.identifier("a variable")
        self.expect(")")
        return nodes.Name(f"{mask.text}({name})", span=self.span(mask.start))

    def symbol(self) -> nodes.Operand:
        """A register or name; `name+4` and `generic(name)+4` in an initializer are addresses."""
        token = self.token
        found = self.register("an operand")
        if token.text == "generic" and self.accept("("):
            found = nodes.Name(f"generic({self.identifier('a variable')})")
            self.expect(")")
        if self.token.text in ("+", "-") and isinstance(found, nodes.Name):
            offset = self.expression("an offset", leading_sign=True)
            return nodes.Address(found, offset, "bare", span=self.span(token.start))
        return found

    def is_group(self) -> bool:
        """`(` opens a call list unless a constant expression starts there."""
        if self.call:
            return True
        following = self.tokens[self.at + 1]
        if following.text == "WARP_SZ":
            return False
        return following.kind in ("register", "word") or following.text in (")", "{", "[")

    def group(self) -> nodes.Group:
        start = self.expect("(").start
        items: list[nodes.Operand] = []
        while not self.accept(")"):
            if items:
                self.expect(",")
            items.append(self.operand())
        return nodes.Group(tuple(items), span=self.span(start))

    def vector(self) -> nodes.Vector:
        start = self.expect("{").start
        items: list[nodes.Operand] = []
        while not self.accept("}"):
            if items:
                self.expect(",")
            items.append(self.operand())
        return nodes.Vector(tuple(items), span=self.span(start))

    def address(self) -> nodes.Operand:
        start = self.expect("[").start
        base: nodes.Register | nodes.Name | None = None
        offset = 0
        if self.token.kind in ("register", "word") and self.token.text != "WARP_SZ":
            base = self.register("an address")
            if self.token.text in ("+", "-"):
                offset = self.expression("an offset", leading_sign=True)
        else:
            offset = self.expression("an address")
        if self.accept("]"):
            return nodes.Address(base, offset, span=self.span(start))
        if base is None:
            self.fail("']'")
        parts: list[nodes.Operand] = []
        while self.accept(","):
            parts.append(self.operand())
        self.expect("]")
        return nodes.TensorAddress(base, tuple(parts), span=self.span(start))

    def negated(self) -> nodes.Operand:
        start = self.token.start
        following = self.tokens[self.at + 1]
        if following.kind in ("integer", "mark"):
            value = self.expression("an operand")
            text = self.source.text[start : self.tokens[self.at - 1].end]
            return nodes.Integer(value, text, span=self.span(start))
        self.next()
        return nodes.Negated(self.register("a predicate"), "!", span=self.span(start))

    def floating(self) -> nodes.Float:
        start = self.token.start
        sign = -1 if self.token.text == "-" else 1
        if self.token.text in ("-", "+"):
            self.next()
        token = self.next()
        text = self.source.text[start : token.end]
        if token.text[:2] in ("0f", "0F", "0d", "0D"):
            width = 32 if token.text[1] in "fF" else 64
            bits = int(token.text[2:], 16)
            if sign < 0:
                bits ^= 1 << (width - 1)
            return nodes.Float(bits, width, text, span=self.span(start))
        bits = struct.unpack("<Q", struct.pack("<d", sign * float(token.text)))[0]
        return nodes.Float(bits, 64, text, span=self.span(start))
