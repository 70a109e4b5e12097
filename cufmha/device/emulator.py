# SPDX-License-Identifier: Apache-2.0
"""The emulated chip as a device: CPU memory, launches that return when they are done."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from ..errors import ArgumentError, EmulationError
from ..kernels.catalog import CHIPS, KernelVariant
from ..kernels.params import Parameters, parameters
from ..kernels.render import render
from ..tma import TensorMapSpec
from .base import Region

_ALIGNMENT = 64


@lru_cache(maxsize=64)
def emulator(arch: str, *, processors: int, seed: int) -> Emulator:
    """The emulated chip with these settings; kernels loaded on it stay loaded."""
    return Emulator(arch, processors=processors, seed=seed)


class Emulator:
    """An emulated chip."""

    kind = "emulator"
    ordinal = 0

    def __init__(self, arch: str, *, processors: int, seed: int) -> None:
        if arch not in CHIPS:
            raise ArgumentError(f"arch: must be one of {', '.join(CHIPS)}, got {arch!r}")
        if isinstance(processors, bool) or not isinstance(processors, int) or processors < 1:
            raise ArgumentError(f"processors: must be at least 1, got {processors!r}")
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise ArgumentError(f"seed: must be a whole number of at least 0, got {seed!r}")
        self.arch = arch
        self.name = f"emulated {arch}"
        self.processors = processors
        self.seed = seed
        self._kernels: dict[KernelVariant, EmulatedKernel] = {}

    def kernel(self, variant: KernelVariant) -> EmulatedKernel:
        found = self._kernels.get(variant)
        if found is None:
            found = self._kernels[variant] = EmulatedKernel(self, variant)
        return found

    def encode(self, spec: TensorMapSpec, address: int) -> bytes:
        from ..emu.tensormap import encode

        return encode(spec, address)

    def readdress(self, block: bytearray, offset: int, address: int) -> None:
        from ..emu.tensormap import SIZE, replaced

        block[offset : offset + SIZE] = replaced(
            bytes(block[offset : offset + SIZE]), address=address
        )

    def allocate(self, size: int, stream: int) -> HostMemory:
        return HostMemory(size)

    def workspace(self, size: int) -> HostMemory:
        return HostMemory(size)

    def upload(self, address: int, source: int, size: int, stream: int) -> None:
        ctypes.memmove(address, source, size)

    def download(self, address: int, size: int, stream: int) -> bytes:
        return ctypes.string_at(address, size)

    def order_after(self, consumer: int, producer: int) -> None:
        """Launches are over when they return."""


class HostMemory:
    """CPU memory, aligned as JAX wants it to take it without a copy."""

    def __init__(self, size: int) -> None:
        import numpy as np

        self._raw = np.empty(size + _ALIGNMENT, np.uint8)
        start = self._raw.ctypes.data
        self.address = int(-(-start // _ALIGNMENT) * _ALIGNMENT)


class EmulatedKernel:
    """A variant's text, compiled for the emulated chip."""

    def __init__(self, device: Emulator, variant: KernelVariant) -> None:
        from ..emu import Module

        rendered = render(variant)
        self.variant = variant
        self.parameters: Parameters = parameters(rendered.text, variant.operation)
        self.module: Any = Module(
            rendered.text, device.arch, seed=device.seed, filename=rendered.filename
        )

    def prepare(self, *, grid: int, params: bytes, regions: Sequence[Region]) -> EmulatedLaunch:
        return EmulatedLaunch(self, grid, bytes(params), merged(regions))


class EmulatedLaunch:
    """Runs the kernel to its end at each call."""

    def __init__(
        self, kernel: EmulatedKernel, grid: int, params: bytes, regions: Sequence[Region]
    ) -> None:
        self._kernel, self._grid, self._params, self._regions = kernel, grid, params, regions

    def __call__(self, stream: int) -> None:
        from ..emu.memory import Range

        variant = self._kernel.variant
        try:
            self._kernel.module.launch_raw(
                variant.operation,
                grid=(self._grid, 1, 1),
                block=(variant.threads, 1, 1),
                params=self._params,
                ranges=[
                    Range(region.address, region.size, writable=region.writable, name=region.name)
                    for region in self._regions
                ],
                dynamic_smem_bytes=variant.smem_bytes,
            )
        except EmulationError as error:
            if error.line is not None:
                file, line = render(variant).origin(error.line)
                error.add_note(f"in the template: {file}, line {line}")
            raise


def merged(regions: Sequence[Region]) -> list[Region]:
    """Regions that overlap (views of one buffer) as one, writable if any of them is."""
    result: list[Region] = []
    for region in sorted(regions, key=lambda r: r.address):
        if region.size == 0:
            continue
        last = result[-1] if result else None
        if last is not None and region.address < last.address + last.size:
            end = max(last.address + last.size, region.address + region.size)
            result[-1] = Region(
                last.address,
                end - last.address,
                last.writable or region.writable,
                f"{last.name}, {region.name}",
            )
        else:
            result.append(region)
    return result
