# SPDX-License-Identifier: Apache-2.0
"""Tensor copies against a slow account, element by element, and every other way TMA moves data."""

from __future__ import annotations

import async_snippets as kit
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cufmha.errors import IllegalInstruction, Misaligned, OutOfBounds
from cufmha.tma import TensorMapSpec

ITEMS = {"u8": 1, "u16": 2, "bf16": 2, "f32": 4, "u64": 8}


@st.composite
def tensors(draw):
    """A small tensor map, gaps between rows included, and where its box is placed."""
    dtype = draw(st.sampled_from(sorted(ITEMS)))
    size = ITEMS[dtype]
    swizzle = draw(st.sampled_from(["none", "32B", "64B", "128B"]))
    rank = draw(st.integers(1, 5))
    widest = min({"none": 256, "32B": 32, "64B": 64, "128B": 128}[swizzle], 128) // 16
    inner = draw(st.integers(1, widest)) * 16 // size
    outer = rank - 1
    box = (inner, *draw(st.lists(st.integers(1, 5), min_size=outer, max_size=outer)))
    steps = (1, *draw(st.lists(st.integers(1, 3), min_size=outer, max_size=outer)))
    width = draw(st.integers(1, 200 // size))
    dims = (width, *draw(st.lists(st.integers(1, 6), min_size=outer, max_size=outer)))
    strides, pitch = [], -(-width * size // 16) * 16
    for extent in dims[1:]:
        pitch += 16 * draw(st.integers(0, 2))
        strides.append(pitch)
        pitch *= extent
    spec = TensorMapSpec(
        dtype=dtype, dims=dims, strides=tuple(strides), box=box, element_strides=steps,
        swizzle=swizzle,
    )  # fmt: skip
    at = [draw(st.integers(-2, width * size // 16 + 1)) * 16 // size]
    at += [draw(st.integers(-4, d + 1)) for d in dims[1:]]
    return spec, at


@settings(max_examples=60, deadline=None)
@given(tensors(), st.integers(0, 3))
def test_a_load_brings_every_element_of_the_box_to_its_place(tensor, seed):
    spec, at = tensor
    memory = kit.aligned(-(-spec.span_bytes // 16) * 16, seed=1)
    got = kit.load(spec, memory, at, seed=seed)
    for place, element in kit.expected_load(spec, memory.tobytes(), at).items():
        assert got[place : place + spec.itemsize] == element


@settings(max_examples=40, deadline=None)
@given(tensors(), st.integers(0, 3))
def test_a_store_writes_the_elements_in_bounds_and_nothing_else(tensor, seed):
    spec, at = tensor
    at = [max(x, 0) for x in at]
    memory = kit.aligned(-(-spec.span_bytes // 16) * 16, seed=1)
    tile = kit.aligned(spec.shared_bytes, seed=2)
    wanted = bytearray(memory.tobytes())
    for shared, offset in kit.places(spec, at):
        if offset is not None:
            wanted[offset : offset + spec.itemsize] = tile[
                shared : shared + spec.itemsize
            ].tobytes()
    kit.store(spec, memory, tile, at, seed=seed)
    assert memory.tobytes() == bytes(wanted)


ROWS = TensorMapSpec(dtype="bf16", dims=(64, 12), strides=(128,), box=(64, 4), swizzle="128B")


def test_a_store_at_negative_coordinates_is_refused_as_hardware_refuses_it():
    memory, tile = kit.aligned(64 * 12 * 2), kit.aligned(512)
    with pytest.raises(IllegalInstruction, match="negative"):
        kit.store(ROWS, memory, tile, (0, -1))


def test_an_inner_coordinate_off_sixteen_bytes_is_refused():
    with pytest.raises(IllegalInstruction, match="16 bytes"):
        kit.load(ROWS, kit.aligned(64 * 12 * 2), (4, 0))


def test_out_of_bounds_floats_are_nan_where_the_map_asks_for_it():
    spec = TensorMapSpec(dtype="f32", dims=(8, 2), strides=(32,), box=(8, 4), oob_fill="nan")
    memory = kit.aligned(64, fill=0)
    got = np.frombuffer(kit.load(spec, memory, (0, 0)), np.float32).reshape(4, 8)
    assert (got[:2] == 0).all()
    assert np.isnan(got[2:]).all()


def test_a_map_whose_box_reaches_past_the_array_it_claims_is_out_of_bounds():
    spec = TensorMapSpec(dtype="bf16", dims=(64, 13), strides=(128,), box=(64, 4))
    memory = kit.aligned(64 * 12 * 2)
    kit.load(spec, memory, (0, 8))
    with pytest.raises(OutOfBounds):
        kit.load(spec, memory, (0, 9))


def test_a_negative_row_touches_the_base_which_must_be_there():
    memory = kit.aligned(64 * 12 * 2)
    base = int(memory.ctypes.data)
    before = base - 4096
    spec = TensorMapSpec(dtype="bf16", dims=(64, 44), strides=(128,), box=(64, 4), swizzle="128B")
    kit.load(spec, memory, (0, 32), address=before)
    with pytest.raises(OutOfBounds):
        kit.load(spec, memory, (0, -1), address=before)


# ---- sequences in a packed array: three ways to address one, none of which needs a copy


TOTAL, START, LENGTH, ROW = 24, 5, 3, 128
BIG = 1 << 30


def sequence_maps():
    """(name, map, byte shift of the base, coordinates of the sequence's row r)"""
    ragged = TensorMapSpec(
        dtype="bf16", dims=(64, BIG, 0x7FFF0000, 0x7FFF0000),
        strides=(ROW, ROW, 2 * (2**34 - 64)), box=(64, 4, 1, 1), swizzle="128B",
    )  # fmt: skip
    yield "ragged", ragged, 0, lambda r: (0, BIG - LENGTH + r, START + LENGTH, BIG)
    most = 8
    offset = TensorMapSpec(
        dtype="bf16", dims=(64, most, TOTAL + 1), strides=(ROW, ROW), box=(64, 4, 1),
        swizzle="128B",
    )  # fmt: skip
    yield "offset", offset, -most * ROW, lambda r: (0, most - LENGTH + r, START + LENGTH)
    local = TensorMapSpec(
        dtype="bf16", dims=(64, 4, TOTAL - 3), strides=(ROW, ROW), box=(64, 4, 1), swizzle="128B"
    )
    yield "local", local, 0, lambda r: (0, 4 - (LENGTH - r), START + LENGTH - 4)


@pytest.mark.parametrize("way", list(sequence_maps()), ids=lambda way: way[0])
def test_a_sequence_of_a_packed_array_loads_with_zeros_behind_its_end(way):
    _, spec, shift, coordinates = way
    memory = kit.aligned(TOTAL * ROW, seed=3)
    plain = TensorMapSpec(
        dtype="bf16", dims=(64, START + LENGTH), strides=(ROW,), box=(64, 4), swizzle="128B"
    )
    for r in range(LENGTH):
        got = kit.load(spec, memory, coordinates(r), address=int(memory.ctypes.data) + shift)
        assert got == kit.load(plain, memory, (0, START + r)), f"row {r}"


@pytest.mark.parametrize("way", list(sequence_maps()), ids=lambda way: way[0])
def test_a_sequence_of_a_packed_array_is_stored_without_touching_its_neighbors(way):
    _, spec, shift, coordinates = way
    memory = kit.aligned(TOTAL * ROW, seed=3)
    wanted = memory.reshape(TOTAL, ROW).copy()
    tile = kit.aligned(4 * ROW, seed=4)
    kit.store(spec, memory, tile, coordinates(1), address=int(memory.ctypes.data) + shift)
    got = memory.reshape(TOTAL, ROW)
    changed = np.flatnonzero((got != wanted).any(1))
    assert changed.tolist() == [START + 1, START + 2]
    chunks = tile.reshape(4, 8, 16)
    for row in range(2):
        order = np.arange(8) ^ row
        assert (got[START + 1 + row].reshape(8, 16) == chunks[row, order]).all()


# ---- reductions


def reduce(dtype: str, operation: str, old: np.ndarray, new: np.ndarray) -> np.ndarray:
    spec = TensorMapSpec(dtype=dtype, dims=(len(old),), strides=(), box=(len(old),))
    memory, tile = kit.aligned(old.nbytes), kit.aligned(old.nbytes)
    memory[:], tile[:] = old.view(np.uint8), new.view(np.uint8)
    instruction = (
        "    @%first cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta."
        + operation
        + ".bulk_group [%map, {{{at}}}], [%tile];\n"
    )
    kit.store(spec, memory, tile, (0,), instruction=instruction)
    return memory.view(old.dtype).copy()


@pytest.mark.parametrize("operation", ["add", "min", "max"])
def test_a_reducing_store_combines_floats(operation):
    rng = np.random.default_rng(5)
    old, new = (rng.standard_normal(16).astype(np.float32) for _ in range(2))
    wanted = {"add": np.add, "min": np.minimum, "max": np.maximum}[operation](old, new)
    assert (reduce("f32", operation, old, new) == wanted).all()


@pytest.mark.parametrize("operation", ["add", "min", "max", "inc", "dec", "and", "or", "xor"])
def test_a_reducing_store_combines_unsigned_integers(operation):
    rng = np.random.default_rng(6)
    old, new = (rng.integers(0, 2**32, 16, np.uint32) for _ in range(2))
    old[:2], new[:2] = 0, 7
    wanted = {
        "add": old + new, "min": np.minimum(old, new), "max": np.maximum(old, new),
        "inc": np.where(old >= new, 0, old + 1),
        "dec": np.where((old == 0) | (old > new), new, old - 1),
        "and": old & new, "or": old | new, "xor": old ^ new,
    }[operation]  # fmt: skip
    assert (reduce("u32", operation, old, new) == wanted.astype(np.uint32)).all()


def test_a_reducing_store_of_bf16_rounds_once():
    import ml_dtypes

    rng = np.random.default_rng(7)
    old, new = (rng.standard_normal(64).astype(ml_dtypes.bfloat16) for _ in range(2))
    wanted = (old.astype(np.float32) + new.astype(np.float32)).astype(ml_dtypes.bfloat16)
    assert (reduce("bf16", "add", old, new) == wanted).all()


# ---- clusters


CLUSTER = """
    mov.u32 %r7, %cluster_ctarank;
"""
CLUSTER_BARRIER = """
    barrier.cluster.arrive.release.aligned;
    barrier.cluster.wait.acquire.aligned;
"""
OWN_PART = """
    mul.wide.u32 %d0, %r7, 512;
    add.u64 %out, %out, %d0;
"""


@pytest.mark.parametrize("seed", range(4))
def test_a_multicast_load_reaches_both_blocks_and_their_own_barriers(seed):
    body = kit.INIT + CLUSTER + kit.EXPECT.format(nbytes=512) + CLUSTER_BARRIER + """
    setp.eq.and.u32 %first, %r7, 1, %first;
    mov.u16 %h, 3;
    @%first CAST [%tile], [%map, {0, 2}], [%bar], %h;
    """ + kit.WAIT + OWN_PART + kit.copy_out(512) + CLUSTER_BARRIER  # fmt: skip
    memory, out = kit.aligned(64 * 12 * 2), kit.aligned(1024, fill=0)
    body = body.replace("CAST", kit.CAST.format("multicast::cluster"))
    kit.launch(body, ROWS, int(memory.ctypes.data), memory, out, cluster=2, seed=seed)
    alone = kit.load(ROWS, memory, (0, 2))
    assert out[:512].tobytes() == out[512:].tobytes() == alone


def test_a_load_of_a_pair_may_tell_the_leaders_barrier():
    issue = """
    setp.eq.u32 %p, %r7, 0;
    and.pred %p, %p, %first;
    @%p mbarrier.arrive.expect_tx.shared::cta.b64 %state, [%bar], 1024;
    """ + CLUSTER_BARRIER + """
    mov.u32 %r5, 0;
    mapa.shared::cluster.u32 %r5, %bar, %r5;
    mapa.shared::cluster.u32 %r6, %tile, %r7;
    mul.lo.u32 %r4, %r7, 4;
    @%first PAIR [%r6], [%map, {0, %r4}], [%r5];
    setp.ne.u32 %p, %r7, 0;
    @%p bra told;
    """  # fmt: skip
    body = kit.INIT + CLUSTER + issue.replace("PAIR", kit.CAST.format("cta_group::2")) + kit.WAIT
    body += "\ntold:" + CLUSTER_BARRIER + OWN_PART + kit.copy_out(512) + CLUSTER_BARRIER
    memory, out = kit.aligned(64 * 12 * 2), kit.aligned(1024, fill=0)
    kit.launch(body, ROWS, int(memory.ctypes.data), memory, out, cluster=2, arch="sm_100a")
    for rank in range(2):
        assert out[512 * rank :][:512].tobytes() == kit.load(ROWS, memory, (0, 4 * rank))


@pytest.mark.parametrize("seed", range(3))
def test_a_bulk_copy_goes_to_the_peers_shared_memory(seed):
    body = kit.INIT + CLUSTER + kit.EXPECT.format(nbytes=256) + """
    mad.lo.u32 %r1, %t, 8, %tile;
    add.u32 %r2, %t, %r7;
    st.shared.v2.b32 [%r1], {%r2, %r2};
    """ + kit.PROXY + CLUSTER_BARRIER + """
    xor.b32 %r3, %r7, 1;
    mapa.shared::cluster.u32 %peer, %bar, %r3;
    add.u32 %r4, %tile, 256;
    mapa.shared::cluster.u32 %r5, %r4, %r3;
    @%first cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes
        [%r5], [%tile], 256, [%peer];
    """ + kit.WAIT + """
    mul.wide.u32 %d0, %r7, 256;
    add.u64 %out, %out, %d0;
    mov.u32 %tile, %r4;
    """ + kit.copy_out(256) + CLUSTER_BARRIER  # fmt: skip
    memory, out = kit.aligned(64 * 12 * 2), kit.aligned(512, fill=0)
    kit.launch(body, ROWS, int(memory.ctypes.data), memory, out, cluster=2, seed=seed)
    words = out.view(np.uint32).reshape(2, 32, 2)
    for rank in range(2):
        assert (words[rank] == np.arange(32)[:, None] + (rank ^ 1)).all()


# ---- linear copies


def test_linear_copies_go_in_and_out():
    body = kit.INIT + kit.EXPECT.format(nbytes=160) + """
    ld.param.u64 %d0, [p2];
    @%first cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes
        [%tile], [%d0], 160, [%bar];
    """ + kit.WAIT + kit.PROXY + """
    @%first cp.async.bulk.global.shared::cta.bulk_group [%out], [%tile], 160;
    """ + kit.COMMIT + kit.WAIT_GROUP  # fmt: skip
    memory, out = kit.aligned(64 * 12 * 2), kit.aligned(192, fill=0)
    kit.launch(body, ROWS, int(memory.ctypes.data), memory, out, memory)
    assert (out[:160] == memory[:160]).all()
    assert (out[160:] == 0).all()


@pytest.mark.parametrize("what, size", [("size", 24), ("size", 0)])
def test_a_linear_copy_moves_multiples_of_sixteen_bytes(what, size):
    body = kit.INIT + f"""
    ld.param.u64 %d0, [p2];
    @%first cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes
        [%tile], [%d0], {size}, [%bar];
    """  # fmt: skip
    memory, out = kit.aligned(64 * 12 * 2), kit.aligned(64)
    with pytest.raises(Misaligned, match=what):
        kit.launch(body, ROWS, int(memory.ctypes.data), memory, out, memory)


def test_a_reducing_linear_copy_adds():
    body = kit.copy_in(64) + kit.PROXY + """
    ld.param.u64 %d0, [p2];
    @%first cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%d0], [%tile], 64;
    """ + kit.COMMIT + kit.WAIT_GROUP  # fmt: skip
    memory, tile = kit.aligned(64), kit.aligned(64)
    memory.view(np.float32)[:] = np.arange(16)
    tile.view(np.float32)[:] = 0.5
    spec = TensorMapSpec(dtype="f32", dims=(16,), strides=(), box=(16,))
    kit.launch(body, spec, int(memory.ctypes.data), memory, tile, memory)
    assert (memory.view(np.float32) == np.arange(16) + 0.5).all()


@pytest.mark.parametrize("tail", [16, 12, 4, 0])
@pytest.mark.parametrize("seed", range(2))
def test_cp_async_fills_with_zeros_behind_its_source_bytes(tail, seed):
    body = f"""
    mul.wide.u32 %d0, %t, 16;
    ld.param.u64 %d1, [p2];
    add.u64 %d1, %d1, %d0;
    mad.lo.u32 %r3, %t, 16, %tile;
    cp.async.cg.shared.global [%r3], [%d1], 16, {tail};
    cp.async.commit_group;
    cp.async.wait_group 0;
    bar.warp.sync 0xffffffff;
    """ + kit.copy_out(512)
    memory, out = kit.aligned(64 * 12 * 2), kit.aligned(512, fill=1)
    kit.launch(body, ROWS, int(memory.ctypes.data), memory, out, memory, seed=seed)
    wanted = memory[:512].reshape(32, 16).copy()
    wanted[:, tail:] = 0
    assert (out.reshape(32, 16) == wanted).all()


# ---- descriptors changed on the device


REPLACE = """
    ld.param.u64 %d1, [p2];
    mad.lo.u32 %r1, %t, 4, %tile;
    mul.wide.u32 %d0, %t, 4;
    add.u64 %d2, %map, %d0;
    ld.b32 %r2, [%d2];
    st.shared.b32 [%r1], %r2;
    bar.warp.sync 0xffffffff;
    @%first tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%tile], 1, 5;
    add.u64 %d3, %out, 0;
    @%first tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%tile], %d3;
    bar.warp.sync 0xffffffff;
    tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned
        [%d1], [%tile], 128;
    {acquire}
    add.u32 %tile, %tile, 1024;
"""  # fmt: skip
ACQUIRE = "fence.proxy.tensormap::generic.acquire.gpu [%d1], 128;"


def replaced_map_body() -> str:
    load = kit.LOAD.format(rank=2, at="0, 4").replace("%map", "%d1")
    return (
        REPLACE.format(acquire=ACQUIRE) + kit.INIT + kit.EXPECT.format(nbytes=512) + load + kit.WAIT
        + "    add.u64 %out, %out, 1536;\n" + kit.copy_out(512)
    )  # fmt: skip


def test_a_map_replaced_on_the_device_is_the_one_that_is_used():
    """The copy reads rows 4.. of another array, of which only five rows are said to exist."""
    memory, other, slot = kit.aligned(64 * 12 * 2), kit.aligned(2048, seed=9), kit.aligned(128)
    kit.launch(replaced_map_body(), ROWS, int(memory.ctypes.data), memory, other, slot)
    five = TensorMapSpec(dtype="bf16", dims=(64, 5), strides=(128,), box=(64, 4), swizzle="128B")
    assert other[1536:].tobytes() == kit.load(five, other[:1536].copy(), (0, 4), address=None)
