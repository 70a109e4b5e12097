# SPDX-License-Identifier: Apache-2.0
"""A timeline of a launch: what each warp runs and waits for, and the asynchronous work beside it.

Time is counted in instructions, one per unit and warp, all warps side by side. A wait ends when the
signal that ends it is given: at the giver's time, or when the asynchronous work completes, which
takes a nominal time here (`NOMINAL`), one piece of a kind after the other in a block. So the
picture shows the order of things and who waits for whom; it is no forecast of cycles.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UnsupportedError
from .asyncwork import AsyncOp
from .lanes import Warp
from .machine import Machine
from .profile import instrument, pipe_of
from .program import Program
from .registry import Exit, Wait

NOMINAL = {"wgmma.mma_async": 16, "tcgen05.mma": 16, "tcgen05.ld": 8, "tcgen05.st": 8,
           "tcgen05.commit": 1}  # fmt: skip
_OTHER = 60
_SIGNALS = frozenset(("order", "shared", "global", "matrix", "tensor memory"))
_COLORS = {"run": "#3a923a", "wait": "#d9534f", "async": "#4c78a8"}


def require_matplotlib() -> Any:
    try:
        import matplotlib  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        raise UnsupportedError("a PNG needs matplotlib (extra 'bench')") from None
    return matplotlib


@dataclass
class Span:
    """Something that lasts: `what` is run, wait or async."""

    what: str
    block: int
    row: str
    start: int
    end: int
    name: str


@dataclass
class _Waiting:
    wait: Wait
    since: int
    line: int
    released: int | None = None


class Trace:
    """Collects while attached to a program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.spans: list[Span] = []
        self.machine: Machine | None = None
        self._clock: dict[Warp, int] = defaultdict(int)
        self._running: dict[Warp, tuple[int, int]] = {}
        self._waiting: dict[Warp, _Waiting] = {}
        self._issued: dict[int, int] = {}
        self._free: dict[tuple[int, str], int] = defaultdict(int)
        instrument(program, self._wrap)

    def _wrap(self, pc: int, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        inst, line = self.program.instructions[pc], self.program.lines[pc]
        signals = inst is not None and pipe_of(inst) in _SIGNALS

        def run(w: Warp) -> Any:
            if w.machine is not self.machine:
                self.machine = w.machine
                w.machine.queue.observer = self._observe
            if w in self._waiting:
                self._resume(w)
            now = self._clock[w]
            if w not in self._running:
                self._running[w] = (now, line)
            result = step(w)
            if result.__class__ is Wait:
                self._stop(w, now)
                self._waiting[w] = _Waiting(result, now, line)
                return result
            self._clock[w] = now + 1
            if signals:
                self._signal(w, now + 1)
            if result.__class__ is Exit and not (w.alive & ~result.leaving).any():
                self._stop(w, now + 1)
                self._signal(w, now + 1)
            return result

        return run

    def _stop(self, w: Warp, now: int) -> None:
        start, line = self._running.pop(w, (now, 0))
        if now > start:
            last = self.program.lines[w.pc]
            self._add("run", w, start, now, f"lines {line} to {last}")

    def _resume(self, w: Warp) -> None:
        waiting = self._waiting.pop(w)
        end = max(waiting.since, waiting.released or 0)
        self._clock[w] = end
        if end > waiting.since:
            text = waiting.wait.describe()
            self._add("wait", w, waiting.since, end, f"line {waiting.line}: {text}")

    def _add(self, what: str, w: Warp, start: int, end: int, name: str) -> None:
        self.spans.append(Span(what, w.cta.linear, f"warp {w.index}", start, end, name))

    def _signal(self, by: Any, now: int) -> None:
        """Whoever waits in the cluster and can go on now was released by this."""
        for w, waiting in self._waiting.items():
            near = w.cta.cluster is by.cta.cluster and w is not by
            if waiting.released is None and near and waiting.wait.ready():
                waiting.released = now

    def _observe(self, op: AsyncOp, complete: bool) -> None:
        w = op.warp
        if not complete:
            self._issued[op.id] = max(
                (t for warp, t in self._clock.items() if warp.cta is w.cta and warp.uid == w.uid),
                default=0,
            )
            return
        block = w.cta.linear
        start = max(self._issued.get(op.id, 0), self._free[block, op.kind])
        end = start + NOMINAL.get(op.kind, _OTHER)
        self._free[block, op.kind] = end
        self.spans.append(Span("async", block, op.kind, start, end, f"{op.kind}, line {op.line}"))
        self._signal(w, end)

    # ---- output

    def write_json(self, path: Path) -> None:
        """Chrome's trace format, which ui.perfetto.dev opens: a process per block."""
        rows: dict[tuple[int, str], int] = {}
        events: list[dict[str, Any]] = []
        for span in sorted(self.spans, key=_order):
            key = (span.block, span.row)
            if key not in rows:
                rows[key] = len(rows) + 1
                events.append({"ph": "M", "name": "thread_name", "pid": span.block,
                               "tid": rows[key], "args": {"name": span.row}})  # fmt: skip
            events.append({"ph": "X", "cat": span.what, "name": span.name, "pid": span.block,
                           "tid": rows[key], "ts": span.start,
                           "dur": span.end - span.start})  # fmt: skip
        for block in {block for block, _ in rows}:
            events.append({"ph": "M", "name": "process_name", "pid": block,
                           "args": {"name": f"block {block}"}})  # fmt: skip
        path.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")

    def write_png(self, path: Path, *, block: int | None = None) -> None:
        """One block as bars: green runs, red waits, blue is asynchronous work."""
        matplotlib = require_matplotlib()
        matplotlib.use("Agg")
        from matplotlib import pyplot

        chosen = min((s.block for s in self.spans), default=0) if block is None else block
        spans = sorted((s for s in self.spans if s.block == chosen), key=_order)
        rows = list(dict.fromkeys(s.row for s in spans))
        figure, axes = pyplot.subplots(figsize=(14, 1.2 + 0.3 * len(rows)))
        for number, row in enumerate(rows):
            for what, color in _COLORS.items():
                bars = [
                    (s.start, s.end - s.start) for s in spans if s.row == row and s.what == what
                ]
                axes.broken_barh(bars, (number - 0.4, 0.8), facecolors=color, linewidth=0)
        axes.set_yticks(range(len(rows)), rows)
        axes.invert_yaxis()
        axes.set_xlabel("instructions of a warp")
        axes.set_title(f"{self.program.kernel}, block {chosen}: run green, wait red, async blue")
        figure.tight_layout()
        figure.savefig(path, dpi=110)
        pyplot.close(figure)


def _order(span: Span) -> tuple[int, bool, int, str, int]:
    number = span.row.removeprefix("warp ")
    warp = number != span.row
    return (span.block, not warp, int(number) if warp else 0, span.row, span.start)
