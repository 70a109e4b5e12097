# SPDX-License-Identifier: Apache-2.0
"""Integer constant expressions, folded while parsing (PTX ISA 4.5): C's operators on 64 bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from .lexer import Source, Token

# Binary operators by precedence, from the loosest to the tightest.
_LEVELS: tuple[dict[str, Callable[[int, int], int]], ...] = (
    {"||": lambda a, b: int(bool(a or b))},
    {"&&": lambda a, b: int(bool(a and b))},
    {"|": lambda a, b: a | b},
    {"^": lambda a, b: a ^ b},
    {"&": lambda a, b: a & b},
    {"==": lambda a, b: int(a == b), "!=": lambda a, b: int(a != b)},
    {
        "<": lambda a, b: int(a < b),
        "<=": lambda a, b: int(a <= b),
        ">": lambda a, b: int(a > b),
        ">=": lambda a, b: int(a >= b),
    },
    {"<<": lambda a, b: a << (b & 63), ">>": lambda a, b: a >> (b & 63)},
    {"+": lambda a, b: a + b, "-": lambda a, b: a - b},
    {"*": lambda a, b: a * b, "/": lambda a, b: _quotient(a, b), "%": lambda a, b: _rest(a, b)},
)
_BINARY = {
    sign: (level, operate)
    for level, operators in enumerate(_LEVELS)
    for sign, operate in operators.items()
}
_LIMIT = 1 << 64
_DEEPEST = 60
_MOST_DIGITS = 70


def _quotient(a: int, b: int) -> int:
    """Toward zero, as C divides."""
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _rest(a: int, b: int) -> int:
    return a - b * _quotient(a, b)


class Expressions:
    """The part of the parser that folds constants; `closing` is a mark that ends one early."""

    source: Source
    tokens: list[Token]
    at: int

    def fail(self, expected: str, token: Token | None = None) -> NoReturn:
        raise NotImplementedError

    def constant(self, expected: str, closing: str = "") -> int:
        """A constant that must not be negative; `closing` is no operator here (`r<4>`)."""
        token = self.tokens[self.at]
        value = self.expression(expected, closing=closing)
        if value < 0:
            self.fail(f"{expected} of at least 0", token)
        return value

    def expression(self, expected: str, *, leading_sign: bool = False, closing: str = "") -> int:
        """Folds from here on. `leading_sign`: an offset such as `+4` or `+-8`."""
        if leading_sign and self.tokens[self.at].text == "+":
            self.at += 1
        return self._conditional(expected, closing, 0)

    def _conditional(self, expected: str, closing: str, depth: int) -> int:
        condition = self._binary(0, expected, closing, depth)
        if self.tokens[self.at].text != "?":
            return condition
        self.at += 1
        chosen = self._conditional(expected, closing, depth + 1)
        if self.tokens[self.at].text != ":":
            self.fail("':'")
        self.at += 1
        other = self._conditional(expected, closing, depth + 1)
        return chosen if condition else other

    def _binary(self, loosest: int, expected: str, closing: str, depth: int) -> int:
        """Precedence climbing: takes operators no looser than `loosest`."""
        left = self._unary(expected, closing, depth)
        while True:
            token = self.tokens[self.at]
            level, operate = _BINARY.get(token.text, (-1, None))
            if operate is None or level < loosest or token.text == closing:
                return left
            self.at += 1
            right = self._binary(level + 1, expected, closing, depth + 1)
            if token.text in ("/", "%") and right == 0:
                self.fail("a divisor other than 0", token)
            left = operate(left, right)
            if not -_LIMIT < left < _LIMIT:
                left = (left + _LIMIT // 2) % _LIMIT - _LIMIT // 2

    def _unary(self, expected: str, closing: str, depth: int) -> int:
        token = self.tokens[self.at]
        if depth > _DEEPEST:
            self.fail(f"at most {_DEEPEST} nested operators")
        if token.kind == "mark" and token.text in ("-", "+", "~", "!"):
            self.at += 1
            value = self._unary(expected, closing, depth + 1)
            return {"-": -value, "+": value, "~": ~value, "!": int(not value)}[token.text]
        if token.text == "(":
            return self._parenthesis(expected, depth)
        if token.kind == "integer":
            self.at += 1
            return self._integer(token)
        if token.text == "WARP_SZ":
            self.at += 1
            return 32
        self.fail(expected)

    def _parenthesis(self, expected: str, depth: int) -> int:
        """`(value)`, or a cast `(.s64) value`."""
        self.at += 1
        cast = self.tokens[self.at].text
        if cast in (".s64", ".u64"):
            self.at += 1
        else:
            cast = ""
            value = self._conditional(expected, "", depth + 1)
        if self.tokens[self.at].text != ")":
            self.fail("')'")
        self.at += 1
        if cast:
            value = self._unary(expected, "", depth + 1) % _LIMIT
            if cast == ".s64" and value >= _LIMIT // 2:
                value -= _LIMIT
        return value

    def _integer(self, token: Token) -> int:
        """Decimal, 0x…, 0b…, or octal with a leading 0; U marks it unsigned."""
        digits = token.text.rstrip("U")
        if len(digits) > _MOST_DIGITS:
            self.fail("a constant of 64 bits", token)
        if digits[:2] in ("0x", "0X", "0b", "0B"):
            value = int(digits, 0)
        elif digits[0] == "0":
            if not set(digits) <= set("01234567"):
                self.fail("an octal constant", token)
            value = int(digits, 8)
        else:
            value = int(digits)
        if value >= _LIMIT:
            self.fail("a constant of 64 bits", token)
        return value
