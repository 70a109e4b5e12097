# SPDX-License-Identifier: Apache-2.0
"""PTX text: lexer, frozen nodes, parser, printer, instruction table and static checks."""
