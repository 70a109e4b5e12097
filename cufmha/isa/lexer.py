# SPDX-License-Identifier: Apache-2.0
"""PTX text to tokens: one compiled expression, positions as line and column from 1."""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import NamedTuple

from ..errors import PtxSyntaxError

_TOKENS = re.compile(
    r"""
    (?P<blank>   [ \t\r\f]+ | //[^\n]* | /\*.*?\*/ | \n )
  | (?P<float>   0[fF][0-9a-fA-F]{8}(?![0-9a-zA-Z_]) | 0[dD][0-9a-fA-F]{16}(?![0-9a-zA-Z_])
               | \d+\.\d*(?:[eE][+-]?\d+)? | \d+[eE][+-]?\d+ )
  | (?P<integer> 0[xX][0-9a-fA-F]+U? | 0[bB][01]+U? | \d+U? )(?![\w$])
  | (?P<register> %[A-Za-z_$%][\w$%]*(?:\.[xyzwrgba](?![\w]))? )
  | (?P<word>    [A-Za-z_$][\w$]* )
  | (?P<dotted>  \.[A-Za-z0-9_]+(?:::[A-Za-z0-9_]+)* )
  | (?P<string>  "[^"\n]*" )
  | (?P<unclosed> /\* | " )
  | (?P<mark>    <<|>>|<=|>=|==|!=|&&|\|\||[{}()\[\],;:|!@+\-*/%&^~?<>=] )
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)


class Token(NamedTuple):
    kind: str
    text: str
    start: int
    end: int


class Source:
    """The text with its name, and where an offset lies in it."""

    def __init__(self, text: str, filename: str) -> None:
        self.text = text
        self.filename = filename
        self._starts = [0, *(m.end() for m in re.finditer("\n", text))]

    def place(self, offset: int) -> tuple[int, int]:
        """Line and column, both from 1."""
        line = bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1] + 1

    def error(self, message: str, offset: int) -> PtxSyntaxError:
        line, column = self.place(offset)
        text = self.text.split("\n")[line - 1].rstrip("\r")
        return PtxSyntaxError(message, filename=self.filename, line=line, column=column, text=text)


def tokenize(source: Source) -> list[Token]:
    """All tokens but blanks and comments, then two "end" tokens, as the parser looks one ahead."""
    text, tokens, at = source.text, [], 0
    match = _TOKENS.match
    while at < len(text):
        found = match(text, at)
        if found is None:
            raise source.error(f"expected a token, found {text[at]!r}", at)
        kind, end = found.lastgroup or "", found.end()
        if kind == "unclosed":
            closing = "*/" if found.group() == "/*" else found.group()
            raise source.error(f"expected a closing {closing!r}, found none", at)
        if kind != "blank":
            tokens.append(Token(kind, text[at:end], at, end))
        at = end
    last = Token("end", "", len(text), len(text))
    return [*tokens, last, last]
