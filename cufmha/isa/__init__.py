# SPDX-License-Identifier: Apache-2.0
"""PTX text: lexer, frozen nodes, parser, printer, instruction table and static checks."""

from __future__ import annotations

from .parser import parse
from .printer import print_module

__all__ = ["parse", "print_module"]
