# SPDX-License-Identifier: Apache-2.0
"""A debugger over standard input: breakpoints by line, steps, registers, shared and tensor memory.

break LINE [WARP [BLOCK]]   stop before the line          delete LINE     forget it
step [N]                    N more instructions of this warp
continue                    to the next breakpoint        quit            end the launch
print NAME [LANE]           a register, in all lanes or one
smem OFFSET [WORDS]         this block's shared memory, 32-bit words, from its window offset
tmem LANE COLUMN [COLUMNS]  this block's tensor memory
where                       this warp and the line        warps           all warps and their lines
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TextIO

import numpy as np

from ..errors import CufmhaError
from .lanes import Warp
from .profile import instrument
from .program import Program
from .tmem import Tmem


class Quit(Exception):
    """The user ended the launch."""


class Debugger:
    """Stops before the first instruction, and from then on where it is told to."""

    def __init__(
        self, program: Program, source: Sequence[str], commands: TextIO, output: TextIO
    ) -> None:
        self.program = program
        self.source = source
        self.commands, self.output = commands, output
        self.breaks: dict[int, tuple[int | None, int | None]] = {}
        self.steps: tuple[Warp, int] | None = None
        self.started = False
        instrument(program, self._wrap)

    def say(self, text: str) -> None:
        self.output.write(text + "\n")
        self.output.flush()

    def _wrap(self, pc: int, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        line = self.program.lines[pc]

        def run(w: Warp) -> Any:
            if self._stops(w, line):
                self._prompt(w)
            return step(w)

        return run

    def _stops(self, w: Warp, line: int) -> bool:
        if not self.started:
            self.started = True
            return True
        if self.steps and self.steps[0] is w:
            left = self.steps[1] - 1
            self.steps = (w, left) if left else None
            if not left:
                return True
        if line not in self.breaks:
            return False
        warp, block = self.breaks[line]
        return warp in (None, w.index) and block in (None, w.cta.linear)

    def _prompt(self, w: Warp) -> None:
        self._where(w)
        while True:
            self.output.write("(ptx) ")
            self.output.flush()
            text = self.commands.readline()
            if not text:
                raise Quit
            words = text.split()
            if not words:
                continue
            name, rest = words[0], words[1:]
            if name in ("continue", "c"):
                return
            if name in ("step", "s"):
                self.steps = (w, int(rest[0]) if rest and rest[0].isdigit() else 1)
                return
            if name in ("quit", "q"):
                raise Quit
            self._command(w, name, rest)

    def _command(self, w: Warp, name: str, rest: list[str]) -> None:
        actions: dict[str, Callable[..., None]] = {
            "break": self._break, "b": self._break, "delete": self._delete,
            "print": self._print, "p": self._print, "smem": self._shared, "tmem": self._tensor,
            "where": self._where, "warps": self._warps, "help": self._help,
        }  # fmt: skip
        action = actions.get(name)
        if action is None:
            self.say(f"there is no command {name!r}; help lists them")
            return
        try:
            action(w, *rest)
        except CufmhaError as error:
            self.say(f"{type(error).__name__}: {error.args[0]}")
        except (ValueError, TypeError, IndexError):
            self.say(f"{name}: wrong arguments; help lists them")

    def _help(self, w: Warp) -> None:
        self.say((__doc__ or "").partition("\n\n")[2].rstrip())

    def _break(self, w: Warp, line: str, warp: str = "", block: str = "") -> None:
        number = int(line)
        if number not in self.program.lines:
            self.say(f"line {number} holds no instruction of this entry")
            return
        self.breaks[number] = (int(warp) if warp else None, int(block) if block else None)

    def _delete(self, w: Warp, line: str) -> None:
        self.breaks.pop(int(line), None)

    def _where(self, w: Warp) -> None:
        line = self.program.lines[w.pc]
        text = self.source[line - 1].strip() if 0 < line <= len(self.source) else ""
        lanes = "all lanes" if w.full else f"lanes {np.flatnonzero(w.mask).tolist()}"
        self.say(f"block {w.cta.linear}, warp {w.index}, {lanes}, line {line}: {text}")

    def _warps(self, w: Warp) -> None:
        for cta in w.cta.cluster.ctas:
            for warp in cta.warps:
                places = [w.pc] if warp is w else [path.pc for path in warp.paths]
                lines = ", ".join(str(self.program.lines[pc]) for pc in places) or "-"
                waits = "; ".join(what for _, what in warp.waits())
                self.say(f"block {cta.linear}, warp {warp.index}: line {lines} {waits}".rstrip())

    def _print(self, w: Warp, name: str, lane: str = "") -> None:
        slots = [i for i, n in enumerate(self.program.register_names) if n == name]
        if not slots:
            self.say(f"{name} is no register of this entry")
        for slot in slots:
            kind = self.program.register_types[slot]
            held = w.R[slot]
            values = getattr(held, "values", held)
            if not isinstance(values, np.ndarray):
                self.say(f"{name} (.{kind}) holds nothing yet, or work in flight")
                continue
            shown = values if not lane else values[int(lane) : int(lane) + 1]
            if shown.dtype.kind == "u":
                self.say(f"{name} (.{kind}) " + " ".join(f"{int(x):#x}" for x in shown.ravel()))
            else:
                self.say(f"{name} (.{kind}) " + " ".join(str(x) for x in shown.ravel()))

    def _shared(self, w: Warp, offset: str, words: str = "8") -> None:
        at, count = int(offset, 0), int(words, 0)
        view = w.cta.shared.view(at, 4 * count).view(np.uint32)
        self.say(" ".join(f"{int(x):08x}" for x in view))

    def _tensor(self, w: Warp, lane: str, column: str, columns: str = "8") -> None:
        first, count = int(column, 0), int(columns, 0)
        cells = w.cta.state(Tmem).cells[int(lane, 0), first : first + count]
        self.say(" ".join(f"{int(x):08x}" for x in cells))
