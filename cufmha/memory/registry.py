# SPDX-License-Identifier: Apache-2.0
"""Which addresses have readable memory in front of them. It imports no library, knows no device."""

from __future__ import annotations

import operator
import threading
from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple

from ..errors import DTypeError

MOST_GUARD_BYTES = 1 << 44
"""In front of an array."""


class Span(NamedTuple):
    """Memory [start, end) that is handed out, readable from `front` on."""

    start: int
    end: int
    front: int


# Starts and spans in order of address. Replaced as a whole, so readers need no lock.
_table: tuple[list[int], list[Span]] = ([], [])
# Re-entrant: the garbage collector may run while it is held, and let memory go that is forgotten.
_lock = threading.RLock()


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

    Raises
    ------
    DTypeError
        If `pointer` is no whole number: an array's own `guard_bytes`, or its address, is meant.
    """
    try:
        address = operator.index(pointer)
    except TypeError:
        raise DTypeError(
            f"pointer: must be an address, a whole number, got {type(pointer).__name__}"
        ) from None
    starts, spans = _table
    if not starts:
        return 0
    at = bisect_right(starts, address) - 1
    if at < 0 or address >= spans[at].end:
        return 0
    return address - spans[at].front


def remember(span: Span) -> None:
    """From now on addresses in the span have a guard."""

    def added(spans: list[Span]) -> list[Span]:
        at = bisect_right(spans, span.start, key=lambda other: other.start)
        return [*spans[:at], span, *spans[at:]]

    _change(added)


def forget(start: int) -> None:
    """Called before the memory of the span that begins at `start` goes."""
    _change(lambda spans: [span for span in spans if span.start != start])


def _change(changed: Callable[[list[Span]], list[Span]]) -> None:
    global _table
    with _lock:
        while True:
            before = _table
            spans = changed(before[1])
            after = ([span.start for span in spans], spans)
            if _table is before:  # else the garbage collector ran, and with it another change
                _table = after
                return
