# SPDX-License-Identifier: Apache-2.0
"""Workspaces of a device: the launches of a stream use one in turn, whatever plan they are of."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from .device.base import Device, Memory

_STREAMS_KEPT = 64
_SMALLEST = 1 << 20
_PER_THREAD_STREAM = 2  # the driver's handle for it, the same in all threads


class Workspace(NamedTuple):
    """Memory, and what is held while the launches that use it together go into the stream."""

    memory: Memory
    turn: threading.Lock

    @property
    def address(self) -> int:
        return self.memory.address


def own_workspace(device: Device, size: int) -> Workspace:
    """One that nobody else gets."""
    return Workspace(device.workspace(size), threading.Lock())


def shared_workspace(device: Device, stream: int, size: int) -> Workspace:
    """The stream's workspace, of at least `size` bytes.

    It grows by powers of two, and what has been outgrown is kept: a captured graph may use it.
    """
    key = (stream, _this_thread.token if stream == _PER_THREAD_STREAM else None)
    with _lock:
        streams = _devices.setdefault(device, OrderedDict())
        grown = streams.setdefault(key, [])
        streams.move_to_end(key)
        for capacity, workspace in grown:
            if capacity >= size:
                return workspace
        capacity = max(_SMALLEST, 1 << (size - 1).bit_length())
        workspace = own_workspace(device, capacity)
        grown.append((capacity, workspace))
        while len(streams) > _STREAMS_KEPT:
            streams.popitem(last=False)
        return workspace


class _Thread(threading.local):
    """Unlike a thread's number, `token` is not given to a later thread."""

    def __init__(self) -> None:
        self.token = object()


_Streams = OrderedDict[tuple[int, object], list[tuple[int, Workspace]]]
_devices: WeakKeyDictionary[Device, _Streams] = WeakKeyDictionary()
_this_thread = _Thread()
_lock = threading.Lock()
