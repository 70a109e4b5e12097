# SPDX-License-Identifier: Apache-2.0
"""Padded memory against a driver on paper: what is mapped how, what it costs, what comes back."""

from __future__ import annotations

import gc
import random
import threading
from itertools import pairwise

import pytest
from fake_pages import GRANULE, FakePages

from cufmha.errors import OutOfMemoryError
from cufmha.memory import guard_bytes
from cufmha.memory.space import Space

GIB = 1 << 30


@pytest.fixture
def pages():
    return FakePages()


@pytest.fixture
def space(pages):
    return Space(pages)


def test_a_gibibyte_of_padding_costs_one_page_and_may_not_be_written(pages, space):
    block = space.allocate(GRANULE, GIB)
    assert pages.used == 2 * GRANULE
    assert guard_bytes(block.address) == GIB
    assert pages.access(block.address) == "rw"
    assert {pages.access(at) for at in range(block.address - GIB, block.address, GRANULE)} == {"r"}
    assert pages.access(block.address - GIB - 1) is None


def test_all_paddings_of_a_card_are_the_same_page(pages, space):
    blocks = [space.allocate(GRANULE, guard) for guard in (1, GRANULE, 9 * GRANULE)]
    assert pages.used == (len(blocks) + 1) * GRANULE


def test_a_thousand_small_blocks_share_slabs(pages, space):
    blocks = [space.allocate(4096, 1 << 20) for _ in range(1000)]
    assert pages.used == 3 * GRANULE  # two slabs and the page
    places = sorted(block.address for block in blocks)
    assert all(b - a >= 4096 for a, b in pairwise(places))
    assert all(pages.access(at) == pages.access(at + 4095) == "rw" for at in places)


@pytest.mark.parametrize("size", [1, 512, 4096, GRANULE - 512, GRANULE, 3 * GRANULE + 512])
def test_every_block_has_its_guard_readable_without_a_gap(pages, space, size):
    guard = 3 << 20
    for _ in range(3):
        block = space.allocate(size, guard)
        found = guard_bytes(block.address)
        assert found >= guard
        assert pages.readable(block.address - found, block.address + size)
        assert not pages.access(block.address - found - 1)
        # Of an address within, everything before it counts.
        assert guard_bytes(block.address + size - 1) == found + size - 1


def test_no_guard_needs_no_page(pages, space):
    block = space.allocate(GRANULE, 0)
    assert pages.used == GRANULE and guard_bytes(block.address) == 0


@pytest.mark.parametrize("size", [4096, GRANULE])
def test_what_goes_is_unmapped_after_a_synchronization_and_forgotten(pages, space, size):
    block = space.allocate(size, 1)
    address = block.address
    del block
    assert pages.syncs == 1
    assert pages.used == 0 and not pages.reserved and not pages.mapped and not pages.handles
    assert guard_bytes(address) == 0


def test_a_part_of_a_slab_is_used_again_only_after_a_synchronization(pages, space):
    """CuPy's pool may have had it on another stream."""
    first, other = space.allocate(4096, 1), space.allocate(4096, 1)
    address = first.address
    del first
    assert pages.syncs == 0  # nothing is unmapped
    again = space.allocate(4096, 1)
    assert (again.address, pages.syncs) == (address, 1)
    assert space.allocate(4096, 1).address != other.address
    assert pages.syncs == 1


def test_while_the_card_cannot_be_waited_for_nothing_is_unmapped_or_used_again(pages, space):
    kept, small, large = (space.allocate(n, 1) for n in (512, 512, GRANULE))
    places = small.address, large.address
    pages.capturing = True
    del small, large
    assert all(pages.access(at) for at in places)
    assert space.allocate(512, 1).address != places[0]
    pages.capturing = False
    space.allocate(512, 1)
    assert pages.access(places[1]) is None
    assert pages.access(kept.address)


def test_too_little_memory_is_said_so_and_leaves_nothing_behind(space, pages):
    pages.memory = 4 * GRANULE
    kept = space.allocate(2 * GRANULE, 1)
    reserved = dict(pages.reserved)
    with pytest.raises(OutOfMemoryError):
        space.allocate(2 * GRANULE, 1)
    assert pages.reserved == reserved and pages.used == 3 * GRANULE
    del kept
    assert space.allocate(3 * GRANULE, 1).size == 3 * GRANULE


@pytest.mark.parametrize("broken", ["map", ("allow", True), ("allow", False)])
@pytest.mark.parametrize("first", [True, False])
def test_a_refusal_half_way_leaves_nothing_behind(space, pages, broken, first):
    kept = None if first else space.allocate(GRANULE, 1)
    before = (pages.used, dict(pages.reserved), dict(pages.mapped), set(pages.handles))
    pages.broken = broken
    with pytest.raises(OutOfMemoryError):
        space.allocate(GRANULE, 5 * GRANULE)
    pages.broken = None
    assert (pages.used, pages.reserved, pages.mapped, pages.handles) == before
    assert guard_bytes(space.allocate(GRANULE, 1).address) and (first or kept)


def test_without_virtual_memory_management_padding_is_memory(pages):
    pages.mappable = False
    space = Space(pages)
    block = space.allocate(GRANULE, GIB)
    assert pages.used == GIB + GRANULE
    assert guard_bytes(block.address) == GIB
    address = block.address
    del block
    assert pages.used == 0 and guard_bytes(address) == 0


def test_blocks_may_go_while_the_collector_runs_within_an_allocation(pages, space, monkeypatch):
    """A cycle that holds a block is collected while the space holds its lock."""
    holder = [space.allocate(GRANULE, 1)]
    holder.append(holder)
    create = pages.create

    def collecting(size):
        gc.collect()
        return create(size)

    monkeypatch.setattr(pages, "create", collecting)
    del holder
    block = space.allocate(GRANULE, 1)
    assert pages.used == 2 * GRANULE and guard_bytes(block.address)


@pytest.mark.parametrize("seed", range(3))
def test_any_order_of_coming_and_going_keeps_blocks_apart_and_loses_none(pages, space, seed):
    rng = random.Random(seed)
    blocks = []
    for _ in range(400):
        if blocks and rng.random() < 0.45:
            blocks.pop(rng.randrange(len(blocks)))
        else:
            size = rng.choice([1, 700, 4096, 1 << 19, GRANULE, 5 << 20])
            blocks.append(space.allocate(size, rng.choice([0, 1, 3 << 20])))
        spans = sorted((b.address, b.address + b.size) for b in blocks)
        assert all(a[1] <= b[0] for a, b in pairwise(spans))
    blocks.clear()
    assert pages.used == 0 and not pages.reserved


def test_threads_share_a_space(pages, space):
    failures = []

    def work(seed):
        rng = random.Random(seed)
        try:
            for _ in range(100):
                block = space.allocate(rng.choice([512, GRANULE]), 1)
                assert guard_bytes(block.address) >= GRANULE
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert pages.used == 0 and not pages.reserved
