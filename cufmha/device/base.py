# SPDX-License-Identifier: Apache-2.0
"""What a device is to everything above it. `cuda` and `emulator` implement this; tests fake it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ..kernels.catalog import KernelVariant
from ..kernels.params import Parameters
from ..tma import TensorMapSpec


@dataclass(frozen=True, slots=True)
class Region:
    """Memory [address, address + size) that a launch may touch."""

    address: int
    size: int
    writable: bool
    name: str


def outside(region: Region, others: Sequence[Region]) -> list[Region]:
    """The parts of a region that none of the others covers."""
    parts, start, end = [], region.address, region.address + region.size
    for other in sorted(others, key=lambda r: r.address):
        if other.address + other.size <= start or other.address >= end:
            continue
        if other.address > start:
            parts.append(replace(region, address=start, size=other.address - start))
        start = other.address + other.size
    if start < end:
        parts.append(replace(region, address=start, size=end - start))
    return parts


class Memory(Protocol):
    """Memory allocated by a device; it is freed with the object."""

    address: int


class Launch(Protocol):
    """A kernel with its grid and parameters: calling it launches."""

    def __call__(self, stream: int) -> None: ...


class Kernel(Protocol):
    """A loaded kernel."""

    variant: KernelVariant
    parameters: Parameters

    def prepare(self, *, grid: int, params: bytes, regions: Sequence[Region]) -> Launch:
        """A launch of `grid` blocks; `params` is copied."""
        ...


class Device(Protocol):
    """One chip."""

    kind: str
    """"cuda" or "emulator"."""
    ordinal: int
    arch: str
    """The chip: "sm_90a", "sm_100a", "sm_103a"."""
    name: str
    processors: int

    def kernel(self, variant: KernelVariant) -> Kernel:
        """Load a kernel, once."""
        ...

    def encode(self, spec: TensorMapSpec, address: int) -> bytes:
        """The 128 bytes of a tensor map."""
        ...

    def readdress(self, block: bytearray, offset: int, address: int) -> None:
        """Point the tensor map at `offset` of a parameter block to another address."""
        ...

    def allocate(self, size: int, stream: int) -> Memory:
        """Memory for results whose framework allocates none for us."""
        ...

    def workspace(self, size: int) -> Memory:
        """Memory for kernels' own use, on any stream and while one is being captured."""
        ...

    def upload(self, address: int, source: int, size: int, stream: int) -> None:
        """Copy `size` bytes from CPU memory at `source`, which may change after the call."""
        ...

    def download(self, address: int, size: int, stream: int) -> bytes:
        """`size` bytes at `address` once what is in the stream is done."""
        ...

    def order_after(self, consumer: int, producer: int) -> None:
        """Make what is put into stream `consumer` from now on wait for what is in `producer`."""
        ...
