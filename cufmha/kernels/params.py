# SPDX-License-Identifier: Apache-2.0
"""A kernel's parameters by name: where each stands in the launch's parameter block."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from ..errors import PlanError
from ..isa import nodes, parse

_FORMATS = {
    "u8": "B", "s8": "b", "b8": "B", "u16": "H", "s16": "h", "b16": "H", "u32": "I", "s32": "i",
    "b32": "I", "u64": "Q", "s64": "q", "b64": "Q", "f32": "f", "f64": "d",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Field:
    """One parameter. `format` is struct's letter, "" for an array of bytes."""

    name: str
    offset: int
    size: int
    format: str

    def encode(self, value: int | float | bytes) -> bytes:
        """The value's bytes; PlanError if they do not fit."""
        if not self.format:
            if not isinstance(value, bytes) or len(value) != self.size:
                raise PlanError(f"parameter {self.name}: must be {self.size} bytes")
            return value
        try:
            return struct.pack("<" + self.format, value)
        except struct.error as error:
            raise PlanError(f"parameter {self.name}: got {value!r} ({error})") from None


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameter block of an entry."""

    entry: str
    fields: Mapping[str, Field]
    size: int

    def pack(self, values: Mapping[str, int | float | bytes]) -> bytearray:
        """The block. Every parameter must be given, and nothing else."""
        missing, extra = self.fields.keys() - values.keys(), values.keys() - self.fields.keys()
        if missing or extra:
            raise PlanError(
                f"{self.entry}: parameters not given: {', '.join(sorted(missing)) or 'none'}; "
                f"unknown: {', '.join(sorted(extra)) or 'none'}"
            )
        block = bytearray(self.size)
        for name, field in self.fields.items():
            block[field.offset : field.offset + field.size] = field.encode(values[name])
        return block


@cache
def parameters(text: str, entry: str) -> Parameters:
    """Read an entry's parameter list from the kernel's own text."""
    function = parse(text).functions.get(entry)
    if function is None:
        raise PlanError(f"the kernel's text has no entry {entry!r}")
    fields: dict[str, Field] = {}
    at = 0
    for parameter in function.parameters:
        if not isinstance(parameter, nodes.Variable):
            raise PlanError(f"{entry}: a kernel's parameters are variables, got {parameter}")
        field = _field(parameter, at)
        fields[field.name] = field
        at = field.offset + field.size
    return Parameters(entry, fields, at)


def _field(parameter: nodes.Variable, at: int) -> Field:
    count = 1
    for extent in parameter.dimensions:
        count *= extent or 0
    letter = _FORMATS[parameter.type]
    unit = struct.calcsize("<" + letter)
    align = parameter.align or unit
    offset = -(-at // align) * align
    return Field(parameter.name, offset, unit * count, "" if parameter.dimensions else letter)
