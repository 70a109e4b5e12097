# SPDX-License-Identifier: Apache-2.0
"""CuPy without a card: a pool with the habits of CuPy's own that an allocator has to mind.

Sizes are rounded to 512 bytes and asked for as they are; a free block is split; blocks are kept for
the stream they were freed on; the allocator is asked again only after the runtime's own error.
"""

from __future__ import annotations

import contextlib
import types


class CUDARuntimeError(RuntimeError):
    def __init__(self, status):
        super().__init__(f"status {status}")
        self.status = status


class OutOfMemoryError(MemoryError):
    pass


class UnownedMemory:
    def __init__(self, ptr, size, owner, device_id=-1):
        self.ptr, self.size, self.owner, self.device_id = ptr, size, owner, device_id


class MemoryPointer:
    def __init__(self, mem, offset):
        self.mem, self.ptr = mem, mem.ptr + offset


class Chunk:
    """A part of a block, between its neighbours."""

    def __init__(self, mem, offset, size, stream):
        self.mem, self.offset, self.size, self.stream = mem, offset, size, stream
        self.before = self.after = None


class Pooled:
    def __init__(self, chunk, pool):
        self.chunk, self.pool, self.ptr = chunk, pool, chunk.mem.ptr + chunk.offset

    def __del__(self):
        self.pool.free(self.chunk)


class MemoryPool:
    def __init__(self, allocator):
        self.allocator, self.kept, self.used = allocator, [], 0
        self.total = 0

    def malloc(self, size):
        size = -(-size // 512) * 512
        stream = cuda.stream
        fits = [c for c in self.kept if c.size >= size and c.stream == stream]
        chunk = min(fits, key=lambda c: c.size, default=None)
        if chunk is None:
            chunk = Chunk(self._fresh(size), 0, size, stream)
        else:
            self.kept.remove(chunk)
            if chunk.size > size:
                rest = Chunk(chunk.mem, chunk.offset + size, chunk.size - size, stream)
                rest.before, rest.after, chunk.after, chunk.size = chunk, chunk.after, rest, size
                self.kept.append(rest)
        self.used += chunk.size
        return MemoryPointer(Pooled(chunk, self), 0)

    def _fresh(self, size):
        for attempt in range(3):
            try:
                mem = self.allocator(size).mem
            except CUDARuntimeError as error:
                if error.status != 2:
                    raise
                if attempt < 2:
                    self.free_all_blocks()
            else:
                self.total += size
                return mem
        raise OutOfMemoryError(size)

    def free(self, chunk):
        self.used -= chunk.size
        while chunk.after in self.kept:
            self.kept.remove(chunk.after)
            chunk.size += chunk.after.size
            chunk.after = chunk.after.after
        self.kept.append(chunk)

    def free_all_blocks(self):
        whole = [c for c in self.kept if c.before is None and c.after is None]
        self.kept = [c for c in self.kept if c not in whole]
        self.total -= sum(c.size for c in whole)

    def used_bytes(self):
        return self.used

    def total_bytes(self):
        return self.total


class Device:
    current = 0

    def __init__(self, ordinal=None):
        self.id = Device.current if ordinal is None else ordinal

    def __enter__(self):
        self.before, Device.current = Device.current, self.id

    def __exit__(self, *_):
        Device.current = self.before


@contextlib.contextmanager
def using_allocator(allocator):
    before, cuda.allocator = cuda.allocator, allocator
    try:
        yield
    finally:
        cuda.allocator = before


cuda = types.SimpleNamespace(
    MemoryPool=MemoryPool, MemoryPointer=MemoryPointer, UnownedMemory=UnownedMemory, Device=Device,
    using_allocator=using_allocator, allocator=None, stream=0,
    runtime=types.SimpleNamespace(CUDARuntimeError=CUDARuntimeError),
    memory=types.SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
    get_current_stream=lambda device=None: types.SimpleNamespace(ptr=cuda.stream),
)  # fmt: skip


def module():
    """To stand in sys.modules for cupy."""
    found = types.ModuleType("cupy")
    found.cuda = cuda
    return found
