# SPDX-License-Identifier: Apache-2.0
"""A card's memory and addresses apart: virtual memory management, as cufmha.memory uses it."""

from __future__ import annotations

from typing import Any

from .cuda import Card, allowed_while_capturing, check, driver


class CardPages:
    """`cufmha.memory.space.Pages` of a card."""

    def __init__(self, card: Card) -> None:
        bindings = driver()
        self._card = card
        handle = check("cuDeviceGet", bindings.cuDeviceGet(card.ordinal))
        has = bindings.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
        self.mappable = bool(
            check("cuDeviceGetAttribute", bindings.cuDeviceGetAttribute(has, handle))
        )
        self._location = bindings.CUmemLocation()
        self._location.type = bindings.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        self._location.id = card.ordinal
        self._properties = bindings.CUmemAllocationProp()
        self._properties.type = bindings.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        self._properties.location = self._location
        self.granularity = 2 << 20
        if self.mappable:
            least = bindings.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
            self.granularity = int(
                self._call("cuMemGetAllocationGranularity", self._properties, least)
            )

    def _call(self, name: str, *arguments: Any) -> Any:
        with self._card.current(), allowed_while_capturing():
            return check(name, getattr(driver(), name)(*arguments))

    def reserve(self, size: int) -> int:
        return int(self._call("cuMemAddressReserve", size, 0, 0, 0))

    def release(self, address: int, size: int) -> None:
        self._call("cuMemAddressFree", address, size)

    def create(self, size: int) -> int:
        return int(self._call("cuMemCreate", size, self._properties, 0))

    def drop(self, handle: int) -> None:
        self._call("cuMemRelease", handle)

    def map(self, address: int, size: int, handle: int, *, times: int = 1) -> None:
        with self._card.current(), allowed_while_capturing():
            call = driver().cuMemMap
            for done in range(times):
                result = call(address + done * size, size, 0, handle, 0)
                if int(result[0]) and done:
                    driver().cuMemUnmap(address, done * size)
                check("cuMemMap", result)

    def unmap(self, address: int, size: int) -> None:
        self._call("cuMemUnmap", address, size)

    def allow(self, address: int, size: int, *, writable: bool) -> None:
        bindings = driver()
        flags = bindings.CUmemAccess_flags
        access = bindings.CUmemAccessDesc()
        access.location = self._location
        access.flags = (
            flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
            if writable
            else flags.CU_MEM_ACCESS_FLAGS_PROT_READ
        )
        self._call("cuMemSetAccess", address, size, [access], 1)

    def malloc(self, size: int) -> int:
        return int(self._call("cuMemAlloc", size))

    def free(self, address: int) -> None:
        self._call("cuMemFree", address)

    def synchronize(self) -> bool:
        # Refused while a stream is being captured, and by a context that a fault has ended.
        bindings = driver()
        with self._card.current(), allowed_while_capturing():
            return int(bindings.cuCtxSynchronize()[0]) == 0
