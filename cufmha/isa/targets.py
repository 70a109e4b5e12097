# SPDX-License-Identifier: Apache-2.0
"""Targets: which text runs on which chip, and what a `.target` must be for an instruction.

A plain target (`sm_100`) runs on every chip at least as new; a family target (`sm_100f`) on the
chips of its family from that one on; an architecture target (`sm_100a`) on that chip alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import ArgumentError

_NAME = re.compile(r"sm_(\d{2,3})([af]?)", re.ASCII)
_FAMILIES = ((100, 103), (101,), (110,), (120, 121))
# The first PTX version that knows a target; plain and `a` targets, then `f`.
_FIRST_VERSION = {
    75: (6, 3), 80: (7, 0), 86: (7, 1), 87: (7, 4), 88: (9, 0), 89: (7, 8), 90: (7, 8),
    100: (8, 6), 101: (8, 6), 103: (8, 8), 110: (9, 0), 120: (8, 7), 121: (8, 8),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Target:
    """`sm_100f` -> Target(100, "f")."""

    number: int
    suffix: str = ""

    def __str__(self) -> str:
        return f"sm_{self.number}{self.suffix}"

    @classmethod
    def parse(cls, name: str) -> Target:
        """The target of that name; ArgumentError if it is none."""
        found = _NAME.fullmatch(name)
        if found is None:
            raise ArgumentError(f"arch: must be a name such as sm_90a or sm_100a, got {name!r}")
        return cls(int(found[1]), found[2])

    @property
    def version(self) -> tuple[int, int]:
        """The first PTX version that has it."""
        first = _FIRST_VERSION.get(self.number, (6, 0))
        least = {"": (6, 0), "a": (8, 0), "f": (8, 8)}[self.suffix]
        return max(first, least)

    @property
    def family(self) -> tuple[int, ...]:
        """Numbers of the chips that share its family features, itself and newer ones only."""
        chips = next((f for f in _FAMILIES if self.number in f), (self.number,))
        return tuple(n for n in chips if n >= self.number)

    def runs_on(self, chip: Target) -> bool:
        """Whether text for this target loads on that chip."""
        if self.suffix == "a":
            return chip.number == self.number
        if self.suffix == "f":
            return chip.number in self.family
        return chip.number >= self.number


@dataclass(frozen=True, slots=True)
class Need:
    """What a feature asks of the text: a PTX version, and any one of some targets.

    `targets` holds plain numbers ("90": that one or newer), or names with a suffix ("90a", "100f":
    only such targets have it).
    """

    version: tuple[int, int]
    targets: tuple[str, ...]

    def met_by(self, target: Target) -> bool:
        """Whether a text with that `.target` has the feature, whatever its version."""
        return any(_offers(Target.parse(f"sm_{name}"), target) for name in self.targets)

    @property
    def text(self) -> str:
        """For messages: `sm_90 or newer`, `sm_100a, sm_100f or sm_103a`."""
        names: list[str] = []
        for name in self.targets:
            least = Target.parse(f"sm_{name}")
            if least.suffix == "f":
                names += [f"sm_{n}{s}" for n in least.family for s in "af"]
            else:
                names.append(f"{least} or newer" if not least.suffix else str(least))
        return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def _offers(least: Target, target: Target) -> bool:
    if least.suffix == "a":
        return target == least
    if least.suffix == "f":
        return target.suffix != "" and target.number in least.family
    return target.number >= least.number
