# SPDX-License-Identifier: Apache-2.0
"""Which addresses have readable memory in front of them. It imports nothing and knows no device."""

from __future__ import annotations

import threading
from bisect import bisect_right
from typing import NamedTuple


class Span(NamedTuple):
    """Memory [start, end) that is handed out, readable from `front` on."""

    start: int
    end: int
    front: int


# Starts and spans in order of address. Replaced as a whole, so readers need no lock.
_table: tuple[list[int], list[Span]] = ([], [])
_lock = threading.Lock()


def guard_bytes(pointer: int) -> int:
    """Readable bytes in front of an address, 0 where nothing is known.

    Parameters
    ----------
    pointer : int
        An address in an array that cufmha.memory has allocated, of a view as well.

    Returns
    -------
    int
        Bytes from the beginning of the padding to the address. All of them are mapped, for as long
        as the array lives; what they hold is anything, other arrays of the same slab included.
    """
    starts, spans = _table
    if not starts:
        return 0
    at = bisect_right(starts, pointer) - 1
    if at < 0 or pointer >= spans[at].end:
        return 0
    return pointer - spans[at].front


def remember(span: Span) -> None:
    """From now on addresses in the span have a guard."""
    global _table
    with _lock:
        spans = _table[1]
        at = bisect_right(_table[0], span.start)
        spans = [*spans[:at], span, *spans[at:]]
        _table = ([s.start for s in spans], spans)


def forget(start: int) -> None:
    """Called before the memory of the span that begins at `start` goes."""
    global _table
    with _lock:
        spans = [span for span in _table[1] if span.start != start]
        _table = ([s.start for s in spans], spans)
