# SPDX-License-Identifier: Apache-2.0
"""A kernel's parameter block, laid out from the kernel's own .param list and packed by name."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from ..errors import PlanError
from .render import render

if TYPE_CHECKING:
    from .catalog import KernelVariant

_FORMATS = {"u64": "<Q", "u32": "<I", "s32": "<i", "f32": "<f", "b8": "", "u16": "<H"}


@dataclass(frozen=True, slots=True)
class Layout:
    """Parameters in order: name, offset, size in bytes, struct format ("" for raw bytes)."""

    parameters: tuple[tuple[str, int, int, str], ...]
    size: int

    @classmethod
    @cache
    def of(cls, variant: KernelVariant) -> Layout:
        """From the rendered entry."""
        from ..isa import nodes, parse

        rendered = render(variant)
        entry = parse(rendered.text, variant.template).functions[variant.kernel]
        found, at = [], 0
        for parameter in entry.parameters:
            if not isinstance(parameter, nodes.Variable) or parameter.type not in _FORMATS:
                raise PlanError(f"{variant}: parameter {parameter} of an unknown kind")
            count = parameter.dimensions[0] if parameter.dimensions else 1
            natural = 1 if parameter.type == "b8" else int(parameter.type[1:]) // 8
            size = natural * (count or 0)
            align = max(parameter.align or 1, natural)
            at = -(-at // align) * align
            found.append((parameter.name, at, size, _FORMATS[parameter.type]))
            at += size
        return cls(tuple(found), at)

    def offset(self, name: str) -> int:
        return next(at for known, at, _, _ in self.parameters if known == name)

    def pack(self, values: Mapping[str, int | float | bytes]) -> bytearray:
        """The block. Every parameter must be given and nothing else."""
        names = {name for name, _, _, _ in self.parameters}
        if names != set(values):
            raise PlanError(
                f"kernel parameters: missing {sorted(names - set(values))}, "
                f"unknown {sorted(set(values) - names)}"
            )
        block = bytearray(self.size)
        for name, at, size, form in self.parameters:
            value = values[name]
            raw = value if isinstance(value, bytes) else struct.pack(form, value)
            if len(raw) != size:
                raise PlanError(f"kernel parameter {name}: {size} bytes wanted, got {len(raw)}")
            block[at : at + size] = raw
        return block
