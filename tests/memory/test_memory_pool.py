# SPDX-License-Identifier: Apache-2.0
"""Guarded memory under a pool with CuPy's habits, and arrays of a card made from it."""

from __future__ import annotations

import sys

import fake_cupy
import pytest
from fake_pages import GRANULE, FakePages

import cufmha
from cufmha.array.view import as_view
from cufmha.errors import ArgumentError, DTypeError, UnsupportedError
from cufmha.memory import array, cupy_pool, guard_bytes, guarded, pool
from cufmha.memory.space import Space


@pytest.fixture
def pages(monkeypatch):
    found = FakePages()
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy.module())
    monkeypatch.setattr(cupy_pool, "_spaces", {0: Space(found)})
    monkeypatch.setattr(cupy_pool, "_pools", {})
    return found


def test_within_the_block_every_allocation_has_its_guard(pages):
    with guarded(1 << 20) as own:
        pointers = [fake_cupy.cuda.allocator(size) for size in (100, 4096, 5 << 20)]
        assert own.used_bytes() == 512 + 4096 + (5 << 20)
    assert fake_cupy.cuda.allocator is None
    assert all(guard_bytes(p.ptr) >= 1 << 20 for p in pointers)


def test_parts_of_a_block_that_the_pool_splits_have_their_guard_too(pages):
    own = pool(1 << 20)
    large = own.malloc(8 << 20)
    address = large.ptr
    del large
    parts = [own.malloc(2 << 20) for _ in range(4)]
    assert sorted(p.ptr - address for p in parts) == [0, 2 << 20, 4 << 20, 6 << 20]
    assert all(guard_bytes(p.ptr) >= 1 << 20 for p in parts)
    assert own.total_bytes() == 8 << 20


def test_freed_blocks_stay_in_the_pool_until_it_frees_them(pages):
    own = pool(1)
    address = own.malloc(4 << 20).ptr
    assert (own.used_bytes(), own.total_bytes()) == (0, 4 << 20)
    assert guard_bytes(address) and own.malloc(4 << 20).ptr == address
    own.free_all_blocks()
    assert own.total_bytes() == 0 and pages.used == 0 and guard_bytes(address) == 0


def test_when_the_card_is_full_the_pool_frees_its_blocks_and_tries_again(pages):
    pages.memory = 5 * GRANULE
    own = pool(1)
    own.malloc(3 * GRANULE)
    assert own.malloc(4 * GRANULE).ptr
    with pytest.raises(fake_cupy.OutOfMemoryError):
        own.malloc(5 * GRANULE)
    assert own.malloc(4 * GRANULE).ptr


def test_a_block_of_another_stream_is_used_again_after_a_synchronization_only(pages, monkeypatch):
    own = pool(1)
    own.malloc(4096)
    monkeypatch.setattr(fake_cupy.cuda, "stream", 7)
    second = own.malloc(4096)
    assert pages.syncs == 0
    own.free_all_blocks()
    third = own.malloc(4096)
    assert pages.syncs == 1
    assert guard_bytes(second.ptr) and guard_bytes(third.ptr)


def test_guards_of_about_the_same_size_share_a_pool(pages):
    assert pool(5 << 20) is pool(8 << 20)
    assert pool(8 << 20) is not pool(9 << 20)


@pytest.mark.parametrize("bad", [-1, (1 << 44) + 1])
def test_a_guard_out_of_range_is_refused(pages, bad):
    with pytest.raises(ArgumentError, match=f"guard: must be 0 to 2\\^44 bytes, got {bad}"):
        pool(bad)


def test_a_guard_that_is_no_number_is_refused(pages):
    with pytest.raises(DTypeError, match="guard: must be a whole number of bytes, got float"):
        guarded(1.5).__enter__()


def test_without_cupy_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(UnsupportedError, match="CuPy is not installed: pip install 'cufmha"):
        pool(1)


def test_an_array_of_a_card_is_memory_of_the_pool_with_guard_rows(pages, monkeypatch):
    made = array.padded((10, 2, 64), cufmha.DType.F16, 3000, ("cuda", 0))
    assert made.guard_rows == 3000 and made.guard_bytes >= 3000 * 256
    assert made.__dlpack_device__() == (2, 0)
    monkeypatch.setattr(fake_cupy.cuda, "stream", 5)
    interface = made.__cuda_array_interface__
    assert interface["data"] == (made.pointer, False) and interface["typestr"] == "<f2"
    assert (interface["shape"], interface["stream"]) == ((10, 2, 64), 5)
    view = as_view(made, "q")
    assert view.device == ("cuda", 0) and view.pointer == made.pointer
    with pytest.raises(TypeError, match="in the memory of card 0"):
        made.__array__()


def test_a_capsule_keeps_the_memory_and_the_consumers_stream_waits(pages, monkeypatch):
    from cufmha.array import dlpack
    from cufmha.device import cuda

    waits = []

    class Card:
        def order_after(self, consumer, producer):
            waits.append((consumer, producer))

    monkeypatch.setattr(cuda, "device", lambda ordinal: Card())
    monkeypatch.setattr(fake_cupy.cuda, "stream", 5)
    made = array.padded((4, 2, 64), cufmha.DType.BF16, 1, ("cuda", 0))
    address = made.pointer
    capsule = made.__dlpack__(stream=9)
    assert waits == [(9, 5)]
    made.__dlpack__(stream=-1)
    assert len(waits) == 1
    del made
    found = dlpack.read(capsule)
    assert (found.address, found.shape, found.type_code) == (address, (4, 2, 64), 4)
    assert pool(1 << 8).used_bytes() > 0
    del found, capsule
    dlpack.collect()
    assert pool(1 << 8).used_bytes() == 0


def test_the_cuda_array_interface_has_no_bfloat16(pages):
    made = array.padded((4, 64), cufmha.DType.BF16, 0, ("cuda", 0))
    assert not hasattr(made, "__cuda_array_interface__")
