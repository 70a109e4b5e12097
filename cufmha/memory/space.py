# SPDX-License-Identifier: Apache-2.0
"""`Space`: blocks of a card's memory with padding in front, which is one page over and over.

    addresses   | padding                     | payload: one large block, or a slab of small ones |
    memory      | page | page | … | the same page | pages of its own                               |
    access      | read                        | read and write                                    |

A block of at least the driver's granularity (2 MiB) has such a reservation to itself; smaller ones
are cut from slabs of one granule. In front of a small block are the slab's blocks before it, then
the padding, so the guard is readable without a gap; a stray write faults in the padding only.
"""

from __future__ import annotations

import threading
import weakref
from bisect import insort
from collections import deque
from typing import Protocol

from .registry import Span, forget, remember

ALIGNMENT = 512


class Pages(Protocol):
    """A card's memory as the driver deals in it. Sizes and addresses are multiples of
    `granularity`; every call but `synchronize` raises DriverError, and OutOfMemoryError."""

    granularity: int
    mappable: bool
    """Whether addresses and memory can be had apart; else there are `malloc` and `free` only."""

    def reserve(self, size: int) -> int:
        """Addresses without memory."""
        ...

    def release(self, address: int, size: int) -> None: ...

    def create(self, size: int) -> int:
        """Memory without addresses, by its handle."""
        ...

    def drop(self, handle: int) -> None:
        """Give up a handle; its memory stays for as long as it is mapped."""
        ...

    def map(self, address: int, size: int, handle: int, *, times: int = 1) -> None:
        """Map a handle's memory at an address, and again behind that; all of it or nothing."""
        ...

    def unmap(self, address: int, size: int) -> None:
        """Everything mapped in the range, which holds whole mappings."""
        ...

    def allow(self, address: int, size: int, *, writable: bool) -> None:
        """Let the card read, and perhaps write, what is mapped in the range."""
        ...

    def malloc(self, size: int) -> int:
        """Addresses with memory."""
        ...

    def free(self, address: int) -> None: ...

    def synchronize(self) -> bool:
        """Wait for all work on the card; False if the driver does not let us."""
        ...


class Block:
    """Memory [address, address + size); it goes back when the object goes."""

    __slots__ = ("__weakref__", "address", "size")

    def __init__(self, address: int, size: int) -> None:
        self.address, self.size = address, size


class Reservation:
    """Padding and payload, and which parts of the payload are free: (offset, size) in order."""

    __slots__ = ("address", "free", "padding", "size", "used_by_card")

    def __init__(self, address: int, padding: int, size: int) -> None:
        self.address, self.padding, self.size = address, padding, size
        self.free = [(0, size)]
        self.used_by_card = False  # work on the card may still touch what is free

    @property
    def payload(self) -> int:
        return self.address + self.padding

    def take(self, size: int) -> int | None:
        """The offset of a free part of that size, the first that is large enough."""
        for at, (offset, room) in enumerate(self.free):
            if room >= size:
                self.free[at : at + 1] = [(offset + size, room - size)] if room > size else []
                return offset
        return None

    def put(self, offset: int, size: int) -> None:
        """A part is free again."""
        insort(self.free, (offset, size))
        joined: list[tuple[int, int]] = []
        for start, room in self.free:
            if joined and sum(joined[-1]) == start:
                joined[-1] = (joined[-1][0], joined[-1][1] + room)
            else:
                joined.append((start, room))
        self.free = joined

    @property
    def empty(self) -> bool:
        return self.free == [(0, self.size)]


class Space:
    """Padded memory of one card. Any thread may use it.

    Nothing here waits for a lock while a block goes: that may happen within any allocation, when
    the garbage collector runs, and while CuPy's pool holds a lock of its own.
    """

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._lock = threading.Lock()
        self._gone: deque[tuple[Reservation, int, int]] = deque()
        self._slabs: dict[int, list[Reservation]] = {}
        self._unused: list[Reservation] = []
        self._page = 0
        self._on_page = 0  # reservations whose padding is the page

    def allocate(self, size: int, guard: int) -> Block:
        """A block with at least `guard` readable bytes in front of it.

        Raises
        ------
        OutOfMemoryError
            If the card has not enough memory left; blocks that went before are given back first.
        """
        granule = self._pages.granularity
        padding = _up(guard, granule)
        with self._lock:
            self._tidy()
            if size < granule:
                size = _up(max(size, 1), ALIGNMENT)
                reservation, offset = self._cut(size, padding)
            else:
                size = _up(size, granule)
                reservation = self._reserve(padding, size)
                offset = reservation.take(size) or 0
            block = Block(reservation.payload + offset, size)
            # Unlike __del__, it is not called any more once the interpreter ends.
            back = weakref.finalize(block, self._take_back, reservation, offset, size)
            back.atexit = False
        self._tidy_if_nobody_else_does()
        return block

    def _cut(self, size: int, padding: int) -> tuple[Reservation, int]:
        slabs = self._slabs.setdefault(padding, [])
        for slab in slabs:
            offset = slab.take(size)
            if offset is None:
                continue
            if not slab.used_by_card or self._settled():
                return slab, offset
            slab.put(offset, size)
        slab = self._reserve(padding, self._pages.granularity)
        slabs.append(slab)
        return slab, slab.take(size) or 0

    def _settled(self) -> bool:
        """Wait for the card: memory that was free by now may have any use."""
        if not self._pages.synchronize():
            return False
        for slabs in self._slabs.values():
            for slab in slabs:
                slab.used_by_card = False
        return True

    # ---- blocks that go

    def _take_back(self, reservation: Reservation, offset: int, size: int) -> None:
        self._gone.append((reservation, offset, size))
        self._tidy_if_nobody_else_does()

    def _tidy_if_nobody_else_does(self) -> None:
        # Whoever holds the lock looks here again after letting go, so nothing is left behind.
        while self._gone and self._lock.acquire(blocking=False):
            try:
                self._tidy()
            finally:
                self._lock.release()

    def _tidy(self) -> None:
        """Free the blocks that went, and give back every reservation that has none left."""
        while self._gone:
            reservation, offset, size = self._gone.popleft()
            reservation.put(offset, size)
            reservation.used_by_card = True
            if reservation.empty:
                slabs = self._slabs.get(reservation.padding, [])
                if reservation in slabs:
                    slabs.remove(reservation)
                self._unused.append(reservation)
        if self._unused and self._settled():
            while self._unused:
                self._give_back(self._unused.pop())

    # ---- reservations

    def _reserve(self, padding: int, size: int) -> Reservation:
        pages, whole = self._pages, padding + size
        if not pages.mappable:
            reservation = Reservation(pages.malloc(whole), padding, size)
        else:
            reservation = Reservation(pages.reserve(whole), padding, size)
            try:
                self._fill(reservation)
            except BaseException:
                pages.release(reservation.address, whole)
                raise
        start = reservation.payload
        remember(Span(start, start + size, reservation.address))
        return reservation

    def _fill(self, reservation: Reservation) -> None:
        """Map memory of its own to the payload, and the page to all of the padding."""
        pages, payload = self._pages, reservation.payload
        handle = pages.create(reservation.size)
        try:
            pages.map(payload, reservation.size, handle)
        finally:
            pages.drop(handle)
        try:
            pages.allow(payload, reservation.size, writable=True)
            if reservation.padding:
                self._pad(reservation)
        except BaseException:
            pages.unmap(payload, reservation.size)
            raise

    def _pad(self, reservation: Reservation) -> None:
        pages, address, padding = self._pages, reservation.address, reservation.padding
        if not self._on_page:
            self._page = pages.create(pages.granularity)
        self._on_page += 1
        try:
            times = padding // pages.granularity
            pages.map(address, pages.granularity, self._page, times=times)
            try:
                pages.allow(address, padding, writable=False)
            except BaseException:
                pages.unmap(address, padding)
                raise
        except BaseException:
            self._leave_page()
            raise

    def _give_back(self, reservation: Reservation) -> None:
        """The card has no more work with it."""
        pages, whole = self._pages, reservation.padding + reservation.size
        forget(reservation.payload)
        if not pages.mappable:
            pages.free(reservation.address)
            return
        pages.unmap(reservation.address, whole)
        pages.release(reservation.address, whole)
        if reservation.padding:
            self._leave_page()

    def _leave_page(self) -> None:
        """The page goes with the last padding."""
        self._on_page -= 1
        if not self._on_page:
            self._pages.drop(self._page)


def _up(size: int, unit: int) -> int:
    return -(-size // unit) * unit
