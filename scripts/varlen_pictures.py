#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws docs/varlen-strategies.png: what each strategy's tensor map covers and what its boxes load.

python scripts/varlen_pictures.py [FILE]
"""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

TILE, BOUNDS, TOTAL = 32, (0, 38, 85, 112), 124  # rows of a tile; sequences; rows of the array
START, END = BOUNDS[1], BOUNDS[2]
LAST = START + (END - START) // TILE * TILE  # first row of the partial tile
GUARD = 56  # L, at least the longest sequence's rows
OWN, OTHER, TAIL, ZERO, MAP = "#4c9f70", "#c9d6df", "#efe3d0", "#ffffff", "#3a4a6b"


def segment(
    ax: Any, start: float, end: float, y: float, color: str, text: str = "", **given: Any
) -> None:
    ax.broken_barh(
        [(start, end - start)], (y, 0.6), facecolors=color, edgecolors="#555555", **given
    )
    ax.text((start + end) / 2, y + 0.3, text, ha="center", va="center", fontsize=7)


def array(ax: Any) -> None:
    """The rows as they lie in memory."""
    for number, (start, end) in enumerate(pairwise(BOUNDS)):
        segment(ax, start, end, 2.2, OWN if number == 1 else OTHER, f"sequence {number}")
    segment(ax, BOUNDS[-1], TOTAL, 2.2, TAIL, "tail")
    ax.axvline(END, 0.02, 0.9, color="#b03030", linestyle=":", linewidth=1)


def covers(ax: Any, start: float, end: float, text: str) -> None:
    """Rows between a map's first and last, where its hardware check lets pass."""
    ax.annotate(
        "",
        (start, 1.9),
        (end, 1.9),
        arrowprops={"arrowstyle": "|-|", "color": MAP, "mutation_scale": 3},
    )
    ax.text((max(start, -58) + end) / 2, 1.72, text, ha="center", va="top", fontsize=6.5, color=MAP)


def loaded(ax: Any, boxes: list[tuple[float, float]], zeros: list[tuple[float, float]]) -> None:
    for start, end in boxes:
        segment(ax, start, end, 0.5, OWN)
    for start, end in zeros:
        segment(ax, start, end, 0.5, ZERO, "0" if end - start > 3 else "", hatch="////")


def draw(path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(6, 1, figsize=(9, 9.6), sharex=True)
    whole, own, over = (LAST, LAST + TILE), (LAST, END), (END, LAST + TILE)
    titles = (
        "split: a map of the array; boxes of 8 and 1 rows, and for zeros boxes past the end",
        "offset, guarded: mask dimension of L rows that ends with the sequence, guard in front",
        "offset, local: mask dimension of one tile, no guard rows",
        "ragged: mask dimension of 2^30 rows that ends with the sequence; addresses wrap at 2^64",
        "replace: a map of the sequence alone, rewritten on the device",
        "mask: a map of the array; the neighbor's rows come along and get the probability 0",
    )
    for ax, title in zip(panels, titles, strict=True):
        array(ax)
        ax.set_title(title, fontsize=8, loc="left")
        ax.set_ylim(0.2, 3.0)
        ax.set_yticks([])
        ax.spines[["left", "right", "top"]].set_visible(False)

    covers(panels[0], 0, TOTAL, "the map")
    rows = END - LAST
    eights = [(LAST + 8 * i, LAST + 8 * i + 8) for i in range(rows // 8)]
    ones = [(END - rows % 8 + i, END - rows % 8 + i + 1) for i in range(rows % 8)]
    past = TILE - rows
    loaded(
        panels[0],
        eights + ones,
        [(TOTAL + 8 * i, TOTAL + min(8 * i + 8, past)) for i in range(-(-past // 8))],
    )

    segment(panels[1], -GUARD, 0, 2.2, TAIL, "L guard rows")
    covers(panels[1], END - GUARD, END, "mask dimension, L rows")
    loaded(panels[1], [own], [over])

    covers(panels[2], END - TILE, END, "mask dimension, a tile's rows")
    loaded(panels[2], [own], [over])

    covers(panels[3], -60, END, "mask dimension, from 2^30 rows before the end on")
    loaded(panels[3], [own], [over])

    covers(panels[4], START, END, "the map")
    loaded(panels[4], [own], [over])

    covers(panels[5], 0, TOTAL, "the map")
    segment(panels[5], *own, 0.5, OWN)
    segment(panels[5], END, whole[1], 0.5, OTHER, "p = 0")

    panels[-1].set_xlim(-60, TOTAL + 34)
    panels[-1].set_xlabel(
        "row of the array; the last tile of sequence 1 is loaded, its end is dotted", fontsize=8
    )
    figure.tight_layout()
    figure.savefig(path, dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    default = Path(__file__).resolve().parent.parent / "docs" / "varlen-strategies.png"
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else default)
