# SPDX-License-Identifier: Apache-2.0
"""Arrays with guard rows in CPU memory, as frameworks see them, and packed attention on them."""

from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys

import numpy as np
import pytest

import cufmha
from cufmha.array.view import as_view
from cufmha.device.base import Region, outside
from cufmha.device.emulator import merged
from cufmha.errors import ArgumentError, DTypeError
from cufmha.memory import guard_bytes


@pytest.fixture(autouse=True)
def emulator():
    with cufmha.use_device("emulator", arch="sm_90a"):
        yield


# ---- the registry


def test_unknown_addresses_have_no_guard():
    foreign = np.empty(1000)
    made = cufmha.empty((4, 8), guard_rows=2)
    assert guard_bytes(foreign.ctypes.data) == guard_bytes(0) == 0
    assert guard_bytes(made.pointer) >= 32
    assert guard_bytes(made.pointer + 64) == 0  # the byte behind the array
    assert guard_bytes(made.pointer - 1) == 0


@pytest.mark.parametrize("wrong", [1.5, "4096", None])
def test_an_address_is_a_whole_number(wrong):
    with pytest.raises(DTypeError, match="pointer: must be an address"):
        guard_bytes(wrong)


def test_what_is_in_front_is_memory_of_the_array():
    made = cufmha.empty((100, 64), "f16", guard_rows=300)
    assert made.guard_rows == 300
    front = made.pointer - made.guard_bytes
    owner = made._memory
    assert owner.ctypes.data <= front <= made.pointer - 300 * 128


def test_memory_is_forgotten_with_its_last_view():
    made = cufmha.empty((100, 64), "f16", guard_rows=3)
    pointer, view = made.pointer, np.asarray(made)[5:]
    del made
    assert guard_bytes(view.ctypes.data) == guard_bytes(pointer) + 5 * 128 > 0
    del view
    gc.collect()
    assert guard_bytes(pointer) == 0


def test_arrays_in_cycles_go_while_others_are_made():
    """The garbage collector runs at any time, within the registry too."""
    code = """if True:
        import gc, cufmha
        from cufmha.memory import guard_bytes
        addresses = set()
        with cufmha.use_device("emulator"):
            first = cufmha.empty((4, 8), guard_rows=2)
            for _ in range(3000):
                made = cufmha.empty((4, 8))
                made.itself = made
                addresses.add(made.pointer)
            last = cufmha.empty((4, 8), guard_rows=2)
        del made
        gc.collect()
        assert first.guard_bytes >= 32 and last.guard_bytes >= 32
        assert not any(map(guard_bytes, addresses - {first.pointer, last.pointer}))
    """
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)


def test_asking_loads_nothing():
    code = (
        "import sys\nfrom cufmha.memory.registry import guard_bytes\nguard_bytes(4096)\n"
        "print([n for n in ('numpy', 'cuda', 'cupy') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# ---- empty


@pytest.mark.parametrize("dtype", ["bf16", "bfloat16", cufmha.DType.BF16, "torch", "jax", "numpy"])
def test_every_way_to_say_bfloat16_is_understood(dtype):
    if dtype == "torch":
        dtype = pytest.importorskip("torch", reason="torch is not installed").bfloat16
    elif dtype == "jax":
        dtype = pytest.importorskip("jax.numpy", reason="JAX is not installed").bfloat16
    elif dtype == "numpy":
        dtype = cufmha.DType.BF16.numpy
    made = cufmha.empty((3, 8), dtype)
    assert made.dtype is cufmha.DType.BF16 and made.nbytes == 48
    assert np.asarray(made).dtype == cufmha.DType.BF16.numpy


@pytest.mark.parametrize("dtype", ["int8", np.dtype(">f2"), np.float64, None])
def test_other_dtypes_are_refused(dtype):
    with pytest.raises(DTypeError, match="dtype: must be one of bfloat16, float16, float32, "):
        cufmha.empty((3, 8), dtype)


@pytest.mark.parametrize(
    "kind, arguments, text",
    [
        (ArgumentError, {"shape": (3, -1)}, "shape: must be 0 to .*, got -1"),
        (DTypeError, {"shape": 2.5}, "shape: must be whole numbers, got float"),
        (ArgumentError, {"shape": 3, "guard_rows": -2}, "guard_rows: must be 0 to .*, got -2"),
        (ArgumentError, {"shape": (), "guard_rows": 1}, "guard_rows: an array without axes"),
        (ArgumentError, {"shape": 3, "device": 1}, "device: an emulated chip has the number 0"),
        (DTypeError, {"shape": 3, "device": "cuda:0"}, "device: must be whole numbers, got str"),
        (ArgumentError, {"shape": (1 << 39, 1 << 39)}, r"shape: .* at most 2\^47 bytes"),
        (ArgumentError, {"shape": (0, 1 << 39, 1 << 39)}, r"shape: .* at most 2\^47 bytes"),
        (ArgumentError, {"shape": (1, 64), "guard_rows": 1 << 38}, r"guard_rows: .* 2\^44 bytes"),
    ],
)
def test_bad_arguments_are_named(kind, arguments, text):
    with pytest.raises(kind, match=text):
        cufmha.empty(**arguments)


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_copy_would_point_to_the_memory_of_the_original(how):
    made = cufmha.empty((3, 8), guard_rows=2)
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        how(made)


@pytest.mark.parametrize("shape", [(0, 4, 64), (), 7])
def test_any_shape_will_do(shape):
    made = cufmha.empty(shape, "f32")
    wanted = np.empty(shape, np.float32)
    assert np.asarray(made).shape == made.shape == wanted.shape
    assert made.nbytes == wanted.nbytes


# ---- views of other libraries


def numpy_view(made):
    return np.asarray(made)


def numpy_dlpack(made):
    return np.from_dlpack(made)


def torch_view(made):
    return pytest.importorskip("torch", reason="torch is not installed").from_dlpack(made)


def jax_view(made):
    return pytest.importorskip("jax.numpy", reason="JAX is not installed").from_dlpack(made)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("look", [numpy_view, numpy_dlpack, torch_view, jax_view])
def test_views_share_the_memory_and_are_recognized(look, dtype):
    if look is numpy_dlpack and dtype == "bf16":
        pytest.skip("NumPy's from_dlpack takes no bfloat16")
    made = cufmha.empty((6, 2, 64), dtype, guard_rows=9)
    np.asarray(made)[:] = np.arange(768, dtype=np.float32).reshape(made.shape) % 100
    view = look(made)
    found = as_view(view, "q")
    assert found.pointer == made.pointer and found.dtype is made.dtype
    assert guard_bytes(found.pointer) >= 9 * 256
    del made, found
    gc.collect()
    again = as_view(view, "q")
    assert guard_bytes(again.pointer) >= 9 * 256
    assert float(view[1, 0, 3]) == (128 + 3) % 100


def test_a_copy_is_not_offered_by_dlpack():
    made = cufmha.empty((6, 64), "f16")
    with pytest.raises(BufferError):
        made.__dlpack__(copy=True)
    with pytest.raises(BufferError):
        made.__dlpack__(dl_device=(2, 0))
    assert not hasattr(made, "__cuda_array_interface__")


# ---- packed attention


HEADS, DIM = 4, 64
ROW = HEADS * DIM * 2  # bytes, no less than arrays are aligned to: guards are rows to the row
LENGTHS = (70, 1, 0, 200)
LONGEST = max(LENGTHS)


def packed(guard_rows, *, seed=0):
    """q, k, v and out, filled alike whatever their guard, and their offsets."""
    rng = np.random.default_rng(seed)
    total = sum(LENGTHS)
    arrays = []
    for _ in range(4):
        made = cufmha.empty((total, HEADS, DIM), "bf16", guard_rows=guard_rows)
        np.asarray(made)[:] = rng.standard_normal(made.shape)
        arrays.append(made)
    return arrays, np.cumsum([0, *LENGTHS], dtype=np.int32)


def plan_of(q, k, v, strategy):
    spec = cufmha.AttentionSpec(
        num_heads_q=HEADS, num_heads_kv=HEADS, head_dim=DIM, layout="thd", strategy=strategy
    )
    shape = cufmha.PackedShape(
        batch=len(LENGTHS), total_q=q.shape[0], total_k=k.shape[0],
        max_seqlen_q=LONGEST, max_seqlen_k=LONGEST,
    )  # fmt: skip
    return cufmha.plan(spec, shape)


def encoded(monkeypatch, plan, arrays, offsets, offsets_k=None):
    """(address, dims) of each 4-dimensional map that the plan encodes, and the regions it gives."""
    maps, regions = [], []
    device, kernel = plan.device, plan._kernel
    encode, prepare = type(device).encode, type(kernel).prepare

    def spying(self, spec, address):
        maps.append((address, spec.dims))
        return encode(self, spec, address)

    def preparing(self, **given):
        regions.append(given["regions"])
        return prepare(self, **given)

    monkeypatch.setattr(type(device), "encode", spying)
    monkeypatch.setattr(type(kernel), "prepare", preparing)
    q, k, v, out = arrays
    plan.run(q, k, v, offsets, offsets if offsets_k is None else offsets_k, out=out)
    monkeypatch.undo()
    return [found for found in maps if len(found[1]) == 4], regions[-1]


def test_with_as_many_guard_rows_as_the_longest_sequence_the_maps_begin_in_the_guard(monkeypatch):
    arrays, offsets = packed(LONGEST)
    maps, regions = encoded(monkeypatch, plan_of(*arrays[:3], "offset"), arrays, offsets)
    assert [address for address, _ in maps] == [a.pointer - LONGEST * ROW for a in arrays]
    assert all(dims[1] == LONGEST for _, dims in maps)
    for made in arrays:
        (guard,) = (r for r in regions if r.address == made.pointer - LONGEST * ROW)
        assert guard.size == LONGEST * ROW and not guard.writable


def test_with_one_row_too_few_the_maps_begin_with_the_arrays(monkeypatch):
    arrays, offsets = packed(LONGEST - 1)
    maps, regions = encoded(monkeypatch, plan_of(*arrays[:3], "offset"), arrays, offsets)
    assert [address for address, _ in maps] == [a.pointer for a in arrays]
    assert not any(r.name.startswith("guard") for r in regions)


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("look", [lambda made: made, numpy_view])
def test_guarded_results_are_those_of_split_bit_by_bit(arch, look):
    arrays, offsets = packed(LONGEST)
    bits = []
    with cufmha.use_device("emulator", arch=arch):
        for strategy in ("offset", "split"):
            q, k, v, _ = (look(made) for made in arrays)
            out = cufmha.attention_varlen(
                q, k, v, offsets, offsets, LONGEST, LONGEST, strategy=strategy
            )
            bits.append(np.asarray(out).view(np.uint16))
    assert np.array_equal(*bits)


def test_a_result_of_guarded_arrays_is_guarded_alike():
    (q, k, v, _), offsets = packed(LONGEST)
    out, lse = cufmha.attention_varlen(q, k, v, offsets, offsets, return_lse=True)
    assert isinstance(out, cufmha.PaddedArray) and isinstance(lse, cufmha.PaddedArray)
    assert (out.guard_rows, lse.guard_rows) == (LONGEST, 0)
    again = cufmha.attention_varlen(out, k, v, offsets, offsets)
    assert again.guard_rows == LONGEST


def test_a_guard_that_is_gone_is_not_relied_on_by_a_plan_that_has_seen_it(monkeypatch):
    """The same addresses, allocated again without a guard."""
    arrays, offsets = packed(LONGEST)
    plan = plan_of(*arrays[:3], "offset")
    first, _ = encoded(monkeypatch, plan, arrays, offsets)
    from cufmha import varlen

    monkeypatch.setattr(varlen, "guard_bytes", lambda pointer: 0)
    second, _ = encoded(monkeypatch, plan, arrays, offsets)
    assert [address for address, _ in second] == [a.pointer for a in arrays] != first


def test_only_offset_looks_for_a_guard(monkeypatch):
    from cufmha import varlen

    arrays, offsets = packed(0)
    monkeypatch.setattr(varlen, "guard_bytes", lambda pointer: pytest.fail("asked"))
    plan_of(*arrays[:3], "split").run(*arrays[:3], offsets, offsets, out=arrays[3])


def test_guards_make_nothing_writable_that_is_only_read(monkeypatch):
    """Few queries: the guard of k reaches over the result, which is written, and over q."""
    total = sum(LENGTHS)
    few = np.array([0, 5, 6, 6, 26], np.int32)
    whole = np.asarray(cufmha.empty((52 + 2 * total, HEADS, DIM), "bf16", guard_rows=LONGEST))
    whole[:] = 0
    q, out, k, v = np.split(whole, (26, 52, 52 + total))
    offsets = np.cumsum([0, *LENGTHS], dtype=np.int32)
    plan = plan_of(q, k, v, "offset")
    maps, regions = encoded(monkeypatch, plan, (q, k, v, out), few, offsets)
    assert k.ctypes.data - LONGEST * ROW in [address for address, _ in maps]
    writable = [r for r in merged(regions) if r.writable and "workspace" not in r.name]
    assert [(r.address, r.size) for r in writable] == [(out.ctypes.data, out.nbytes)]


@pytest.mark.parametrize("strategy", ["offset", "split"])
def test_guards_that_reach_over_other_arrays_leave_their_rights_alone(strategy):
    """All in one buffer: the guard of k is the result, which is written, and that of out is q."""
    total = sum(LENGTHS)
    whole = np.asarray(cufmha.empty((4 * total, HEADS, DIM), "bf16", guard_rows=LONGEST))
    whole[:] = np.random.default_rng(1).standard_normal(whole.shape)
    q, out, k, v = (whole[n * total : (n + 1) * total] for n in range(4))
    offsets = np.cumsum([0, *LENGTHS], dtype=np.int32)
    plain = [np.array(x) for x in (q, k, v)]
    wanted = cufmha.attention_varlen(*plain, offsets, offsets, strategy="split")
    cufmha.attention_varlen(q, k, v, offsets, offsets, LONGEST, LONGEST, out=out, strategy=strategy)
    assert np.array_equal(out.view(np.uint16), wanted.view(np.uint16))
    assert all(np.array_equal(a, b) for a, b in zip((q, k, v), plain, strict=True))


def test_what_is_left_of_a_region_outside_others():
    region = Region(100, 100, False, "guard")
    others = [Region(150, 10, True, "b"), Region(90, 20, True, "a"), Region(190, 50, True, "c")]
    left = outside(region, others)
    assert [(r.address, r.size, r.writable) for r in left] == [(110, 40, False), (160, 30, False)]
    assert outside(region, [Region(0, 1000, True, "all")]) == []
    assert outside(region, []) == [region]
