# SPDX-License-Identifier: Apache-2.0
"""What a card's driver is asked for, against stand-in bindings: order of arguments and refusals."""

from __future__ import annotations

import contextlib
import types

import pytest

from cufmha.device import cuda, pages
from cufmha.errors import DriverError, OutOfMemoryError

GRANULE = 2 << 20


class Names:
    """Stands for any enum: each name is its own value."""

    def __getattr__(self, name):
        return name


class Bindings:
    """Records calls; `statuses` holds what a call answers in place of 0, `values` its result."""

    def __init__(self):
        self.calls, self.statuses = [], {}
        self.values = {"cuDeviceGetAttribute": 1, "cuMemGetAllocationGranularity": GRANULE}

    def __getattr__(self, name):
        if not name.startswith("cu"):
            return types.SimpleNamespace if name in STRUCTURES else Names()

        def call(*arguments):
            self.calls.append((name, arguments))
            status = self.statuses.get(name, 0)
            status = status.pop(0) if isinstance(status, list) and status else status or 0
            return (status, self.values.get(name, b"text"))

        return call

    def of(self, name):
        return [arguments for called, arguments in self.calls if called == name]


STRUCTURES = ("CUmemLocation", "CUmemAllocationProp", "CUmemAccessDesc")


class Card:
    ordinal = 3

    def current(self):
        return contextlib.nullcontext()


@pytest.fixture
def driver(monkeypatch):
    found = Bindings()
    monkeypatch.setattr(cuda, "_driver", found)
    return found


def test_memory_is_of_the_card_and_padding_is_for_reading(driver):
    own = pages.CardPages(Card())
    assert (own.mappable, own.granularity) == (True, GRANULE)
    driver.values["cuMemCreate"] = 77
    assert own.create(GRANULE) == 77
    ((size, properties, flags),) = driver.of("cuMemCreate")
    assert (size, properties.location.id, flags) == (GRANULE, 3, 0)
    own.map(4 * GRANULE, GRANULE, 77, times=3)
    assert driver.of("cuMemMap") == [(n * GRANULE, GRANULE, 0, 77, 0) for n in (4, 5, 6)]
    own.allow(4 * GRANULE, 3 * GRANULE, writable=False)
    own.allow(8 * GRANULE, GRANULE, writable=True)
    (address, size, (padding,), count), (_, _, (payload,), _) = driver.of("cuMemSetAccess")
    assert (address, size, count, padding.location.id) == (4 * GRANULE, 3 * GRANULE, 1, 3)
    assert padding.flags.endswith("PROT_READ") and payload.flags.endswith("PROT_READWRITE")


def test_a_full_card_is_told_from_other_refusals(driver):
    own = pages.CardPages(Card())
    driver.statuses["cuMemCreate"] = 2
    with pytest.raises(OutOfMemoryError, match="cuMemCreate"):
        own.create(GRANULE)
    driver.statuses["cuMemCreate"] = 1
    with pytest.raises(DriverError) as caught:
        own.create(GRANULE)
    assert not isinstance(caught.value, MemoryError)


def test_a_row_of_mappings_is_made_whole_or_not_at_all(driver):
    own = pages.CardPages(Card())
    driver.statuses["cuMemMap"] = [0, 0, 2]
    with pytest.raises(OutOfMemoryError):
        own.map(4 * GRANULE, GRANULE, 77, times=5)
    assert driver.of("cuMemUnmap") == [(4 * GRANULE, 2 * GRANULE)]


def test_a_card_that_cannot_map_gives_plain_memory(driver):
    driver.values["cuDeviceGetAttribute"] = 0
    own = pages.CardPages(Card())
    driver.values["cuMemAlloc"] = 4096
    assert not own.mappable and own.malloc(100) == 4096
    own.free(4096)
    assert driver.of("cuMemFree") == [(4096,)]
    assert not driver.of("cuMemGetAllocationGranularity")


@pytest.mark.parametrize("status, waited", [(0, True), (900, False), (700, False)])
def test_whether_the_card_was_waited_for(driver, status, waited):
    own = pages.CardPages(Card())
    driver.statuses["cuCtxSynchronize"] = status
    assert own.synchronize() is waited
