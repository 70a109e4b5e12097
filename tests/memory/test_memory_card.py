# SPDX-License-Identifier: Apache-2.0
"""Guarded memory on a card under CuPy's own pool. These need CuPy, and run with `--device cuda`."""

from __future__ import annotations

import gc
import subprocess
import sys

import numpy as np
import pytest

import cufmha
from cufmha.memory import guard_bytes, guarded, pool

pytestmark = pytest.mark.card
MIB = 1 << 20
TO_HOST = 2


@pytest.fixture
def cupy():
    found = pytest.importorskip("cupy", reason="CuPy is not installed")
    with cufmha.use_device("cuda"):
        yield found
    gc.collect()
    for own in list(cufmha.memory.cupy_pool._pools.values()):
        own.free_all_blocks()


def free_memory(cupy):
    """What the driver says is free, once nothing is under way."""
    cupy.cuda.Device().synchronize()
    return cupy.cuda.runtime.memGetInfo()[0]


def read(cupy, address, size=64):
    host = np.zeros(size, np.uint8)
    cupy.cuda.runtime.memcpy(host.ctypes.data, address, size, TO_HOST)
    return host


def test_the_guard_of_every_array_is_readable_to_its_first_byte(cupy):
    with guarded(5 * MIB):
        arrays = [cupy.zeros(n, cupy.uint8) for n in (1, 4096, 3 * MIB)]
    for array in arrays:
        guard = guard_bytes(array.data.ptr)
        assert guard >= 5 * MIB
        for distance in (guard, guard // 2, 64):
            read(cupy, array.data.ptr - distance)
        assert not array.get().any()


STRAY = """
import sys
import cupy, cufmha
from cufmha.device import cuda
from cufmha.memory import guard_bytes, guarded
with guarded(4 << 20):
    array = cupy.zeros(2 << 20, cupy.uint8)
text = b'''
.version 8.0
.target sm_90
.address_size 64
.visible .entry touch(.param .u64 at, .param .u32 write)
{
    .reg .b64 %at;
    .reg .b32 %value, %write;
    .reg .pred %stores;
    ld.param.u64 %at, [at];
    ld.param.u32 %write, [write];
    setp.ne.u32 %stores, %write, 0;
    mov.u32 %value, 7;
    @!%stores ld.volatile.global.u32 %value, [%at];
    @%stores st.volatile.global.u32 [%at], %value;
    ret;
}
\0'''
import ctypes
card, driver = cuda.device(0), cuda.driver()
with card.current():
    module = cuda.check("load", driver.cuModuleLoadData(text))
    touch = cuda.check("function", driver.cuModuleGetFunction(module, b"touch"))
    def status(address, write):
        kinds = (ctypes.c_uint64, ctypes.c_uint32)
        cuda.check("launch", driver.cuLaunchKernel(
            touch, 1, 1, 1, 1, 1, 1, 0, 0, ((address, write), kinds), 0))
        return driver.cuCtxSynchronize()[0].name
    start = array.data.ptr
    print(status(start, 1), status(start - 4, 0), status(start - guard_bytes(start), 0))
    print(status(start - 4, 1))
sys.stdout.flush()
import os
os._exit(0)  # the context is lost
"""


def test_a_stray_write_faults(cupy):
    """In a process of its own: a fault is the end of its context."""
    done = subprocess.run(
        [sys.executable, "-c", STRAY], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    allowed, stray = done.stdout.splitlines()
    assert allowed == " ".join(["CUDA_SUCCESS"] * 3)
    assert stray != "CUDA_SUCCESS"


def test_a_gibibyte_of_padding_costs_next_to_nothing(cupy):
    pool(1).malloc(4096)  # the first use of a card takes memory for itself
    before = free_memory(cupy)
    with guarded(1024 * MIB) as own:
        array = cupy.empty(2 * MIB, cupy.uint8)
    assert guard_bytes(array.data.ptr) == 1024 * MIB
    assert before - free_memory(cupy) <= 16 * MIB
    del array
    own.free_all_blocks()
    assert before - free_memory(cupy) <= 4 * MIB


def test_a_thousand_small_arrays_share_their_slabs(cupy):
    pool(1).malloc(4096)
    before = free_memory(cupy)
    with guarded(MIB):
        arrays = [cupy.empty(4096, cupy.uint8) for _ in range(1000)]
    assert all(guard_bytes(array.data.ptr) >= MIB for array in arrays)
    assert before - free_memory(cupy) <= 32 * MIB


def test_statistics_count_what_was_asked_for(cupy):
    with guarded(3 * MIB) as own:
        array = cupy.empty(5 * MIB, cupy.uint8)
        assert (own.used_bytes(), own.total_bytes()) == (5 * MIB, 5 * MIB)
        address = array.data.ptr
        del array
        assert (own.used_bytes(), own.free_bytes()) == (0, 5 * MIB)
        again = cupy.empty(5 * MIB, cupy.uint8)
        assert again.data.ptr == address
        del again
        own.free_all_blocks()
        assert own.total_bytes() == own.n_free_blocks() == 0
    assert guard_bytes(address) == 0


def test_parts_of_a_split_block_have_their_guard(cupy):
    with guarded(6 * MIB) as own:
        whole = cupy.empty(8 * MIB, cupy.uint8)
        first = whole.data.ptr
        del whole
        parts = [cupy.empty(2 * MIB, cupy.uint8) for _ in range(4)]
        assert own.total_bytes() == 8 * MIB
    assert all(first <= part.data.ptr < first + 8 * MIB for part in parts)
    assert all(guard_bytes(part.data.ptr) >= 6 * MIB for part in parts)


def test_a_block_stays_with_its_stream_until_it_is_given_back(cupy):
    with guarded(7 * MIB) as own:
        one, two = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
        with one:
            array = cupy.full(4096, 1, cupy.uint8)
            address = array.data.ptr
            del array
        with two:
            other = cupy.full(4096, 2, cupy.uint8)
            assert other.data.ptr != address
        own.free_all_blocks()
        with two:
            again = cupy.full(4096, 3, cupy.uint8)
            two.synchronize()
        assert (other.get() == 2).all() and (again.get() == 3).all()


def test_when_the_card_is_full_blocks_are_given_back_and_it_is_tried_again(cupy):
    with guarded(MIB) as own:
        most = free_memory(cupy) // MIB * MIB
        cupy.cuda.alloc(most // 2)
        assert own.free_bytes() >= most // 2
        kept = cupy.cuda.alloc(most * 3 // 4)
        assert guard_bytes(kept.ptr) >= MIB
        with pytest.raises(cupy.cuda.memory.OutOfMemoryError):
            cupy.cuda.alloc(most)
        assert own.used_bytes() >= most * 3 // 4


def test_a_limit_holds(cupy):
    with guarded(11 * MIB) as own:
        own.set_limit(size=4 * MIB)
        try:
            with pytest.raises(cupy.cuda.memory.OutOfMemoryError):
                cupy.empty(5 * MIB, cupy.uint8)
        finally:
            own.set_limit(size=0)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_views_of_torch_are_recognized_and_keep_the_memory(cupy, dtype):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    made = cufmha.empty((100, 2, 64), dtype, guard_rows=300)
    view = torch.from_dlpack(made)
    assert view.data_ptr() == made.pointer and view.device.type == "cuda"
    view.fill_(3)
    del made
    gc.collect()
    assert guard_bytes(view.data_ptr()) >= 300 * 256
    assert guard_bytes(view[10:].data_ptr()) >= 310 * 256
    assert (view == 3).all()


def test_cupy_takes_the_array_by_its_interface(cupy):
    made = cufmha.empty((100, 64), "f16", guard_rows=3)
    view = cupy.asarray(made)
    assert view.data.ptr == made.pointer and view.dtype == np.float16


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_packed_attention_on_guarded_arrays_gives_the_bits_of_split(cupy, dtype):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    lengths = (300, 1, 0, 700, 64)
    total, longest = sum(lengths), max(lengths)
    offsets = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32, device="cuda")
    arrays = [cufmha.empty((total, 4, 128), dtype, guard_rows=longest) for _ in range(4)]
    q, k, v, out = (torch.from_dlpack(made) for made in arrays)
    for x in (q, k, v):
        x.normal_()
    wanted = cufmha.attention_varlen(q, k, v, offsets, offsets, longest, longest, strategy="split")
    cufmha.attention_varlen(q, k, v, offsets, offsets, longest, longest, strategy="offset", out=out)
    assert torch.equal(out.view(torch.int16), wanted.view(torch.int16))
