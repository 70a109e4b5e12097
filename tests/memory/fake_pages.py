# SPDX-License-Identifier: Apache-2.0
"""A card's memory that exists on paper: every rule of the driver on order and size is held to."""

from __future__ import annotations

from cufmha.errors import OutOfMemoryError

GRANULE = 2 << 20


class FakePages:
    """`memory` bytes in all. Mappings are address -> (size, handle, access)."""

    granularity = GRANULE

    def __init__(self, memory=1 << 40, *, mappable=True):
        self.memory, self.mappable = memory, mappable
        self.reserved, self.mapped, self.sizes, self.handles = {}, {}, {}, set()
        self.allocated = {}
        self.syncs, self.capturing, self.broken = 0, False, None
        self._next, self._handle = GRANULE, 100

    # ---- what the tests ask

    @property
    def used(self):
        """Bytes of memory that a handle or a mapping holds."""
        held = self.handles | {handle for _, handle, _ in self.mapped.values()}
        return sum(self.sizes[h] for h in held) + sum(self.allocated.values())

    def access(self, address):
        """ "rw", "r", or None where nothing is mapped."""
        for start, (size, _, access) in self.mapped.items():
            if start <= address < start + size:
                return access
        return None

    def readable(self, start, end):
        return all(self.access(at) for at in (*range(start, end, 512), end - 1))

    # ---- the driver

    def reserve(self, size):
        self._whole(size)
        address, self._next = self._next, self._next + size + GRANULE
        self.reserved[address] = size
        return address

    def release(self, address, size):
        assert self.reserved[address] == size, "not what was reserved"
        assert not any(address <= at < address + size for at in self.mapped), "still mapped"
        del self.reserved[address]

    def create(self, size):
        self._whole(size)
        self._room(size)
        self._handle += 1
        self.sizes[self._handle] = size
        self.handles.add(self._handle)
        return self._handle

    def drop(self, handle):
        self.handles.remove(handle)

    def map(self, address, size, handle, *, times=1):
        if self.broken == "map":
            raise OutOfMemoryError("map")
        assert handle in self.handles and size == self.sizes[handle] and address % GRANULE == 0
        end = address + size * times
        assert any(at <= address and end <= at + n for at, n in self.reserved.items())
        assert not any(at < end and address < at + n for at, (n, *_) in self.mapped.items())
        for at in range(address, end, size):
            self.mapped[at] = (size, handle, None)

    def unmap(self, address, size):
        assert sum(self.mapped[at][0] for at in self._inside(address, size)) == size
        for at in self._inside(address, size):
            del self.mapped[at]

    def allow(self, address, size, *, writable):
        if self.broken == ("allow", writable):
            raise OutOfMemoryError("allow")
        inside = self._inside(address, size)
        assert sum(self.mapped[at][0] for at in inside) == size
        for at in inside:
            self.mapped[at] = (*self.mapped[at][:2], "rw" if writable else "r")

    def malloc(self, size):
        self._room(size)
        address, self._next = self._next, self._next + size + GRANULE
        self.allocated[address] = size
        return address

    def free(self, address):
        del self.allocated[address]

    def synchronize(self):
        self.syncs += not self.capturing
        return not self.capturing

    def _inside(self, address, size):
        return [at for at in self.mapped if address <= at < address + size]

    def _whole(self, size):
        assert size > 0 and size % GRANULE == 0

    def _room(self, size):
        if self.used + size > self.memory:
            raise OutOfMemoryError("create")
