# SPDX-License-Identifier: Apache-2.0
"""Loads, stores and address arithmetic in every state space, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest
from snippets import assert_twins, kernel, lanes, run

from cufmha.emu import Module
from cufmha.errors import (
    IllegalInstruction,
    Misaligned,
    OutOfBounds,
    ReadOnly,
    Uninitialized,
    WrongSpace,
)

LANE = np.arange(32, dtype=np.uint32)
RNG = np.random.default_rng(3)
WORDS = RNG.integers(0, 2**32, 32, np.uint32)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("u8", lambda x: x & 0xFF),
        ("s8", lambda x: (x & 0xFF).astype(np.uint8).view(np.int8).astype(np.int32)),
        ("u16", lambda x: x & 0xFFFF),
        ("s16", lambda x: (x & 0xFFFF).astype(np.uint16).view(np.int16).astype(np.int32)),
        ("b32", lambda x: x),
    ],
)
def test_narrow_loads_extend_by_their_sign(kind, expected):
    got = lanes(f"ld.global.{kind} %r1, [%d1];", WORDS)
    assert (got == expected(WORDS).astype(np.uint32)).all()


@pytest.mark.parametrize(
    ("count", "kind"), [(2, "b32"), (4, "b32"), (2, "b64"), (4, "u16"), (4, "u8")]
)
def test_vector_loads_and_stores_move_neighbors(count, kind):
    size = int(kind[1:]) // 8
    source = RNG.integers(0, 256, 32 * count * size, np.uint8)
    target = np.zeros_like(source)
    registers = ", ".join(f"%v{i}" for i in range(count))
    width = max(16, 8 * size)
    run(
        f"""
        .reg .b{width} {registers};
        mov.u32 %r0, %tid.x;
        mul.wide.u32 %d0, %r0, {count * size};
        ld.param.u64 %d1, [p0];
        ld.param.u64 %d2, [p1];
        add.u64 %d1, %d1, %d0;
        add.u64 %d2, %d2, %d0;
        ld.global.nc.L1::no_allocate.v{count}.{kind} {{{registers}}}, [%d1];
        st.global.v{count}.{kind} [%d2], {{{registers}}};
        ret;
        """,
        source,
        target,
    )
    assert (source == target).all()


def test_256_bit_loads_exist_on_blackwell():
    source, target = RNG.integers(0, 2**32, 256, np.uint32), np.zeros(256, np.uint32)
    registers = ", ".join(f"%r{i}" for i in range(4, 12))
    run(
        f"""
        mov.u32 %r0, %tid.x;
        mul.wide.u32 %d0, %r0, 32;
        ld.param.u64 %d1, [p0];
        ld.param.u64 %d2, [p1];
        add.u64 %d1, %d1, %d0;
        add.u64 %d2, %d2, %d0;
        ld.global.v8.b32 {{{registers}}}, [%d1];
        st.global.v8.b32 [%d2], {{{registers}}};
        ret;
        """,
        np.frombuffer(_aligned(source), np.uint32),
        target_buffer := _aligned(target),
        arch="sm_100a",
    )
    assert (source == target_buffer).all()


def _aligned(array: np.ndarray) -> np.ndarray:
    """A copy that begins at a multiple of 32 bytes."""
    raw = np.zeros(array.nbytes + 32, np.uint8)
    start = -raw.ctypes.data % 32
    view = raw[start : start + array.nbytes].view(array.dtype)
    view[:] = array
    return view


def test_128_bit_registers_pass_through_memory_and_split_in_halves():
    out = np.zeros(4, np.uint64)
    source = np.array([1, 2**63 + 5], np.uint64)
    run(
        """
        .reg .b128 %q;
        ld.param.u64 %d0, [p0];
        ld.param.u64 %d1, [p1];
        ld.global.b128 %q, [%d0];
        mov.b128 {%d2, %d3}, %q;
        st.global.b128 [%d1], %q;
        st.global.b64 [%d1+16], %d3;
        st.global.b64 [%d1+24], %d2;
        ret;
        """,
        _aligned(source),
        found := _aligned(out),
        block=1,
    )
    assert found.tolist() == [1, 2**63 + 5, 2**63 + 5, 1]


def test_every_lane_has_local_memory_of_its_own():
    got = lanes(
        """
        .local .align 4 .b8 mine[64];
        mov.u32 %r4, mine;
        st.local.u32 [mine+8], %r2;
        mov.b64 %d3, mine;
        cvta.local.u64 %d3, %d3;
        ld.u32 %r1, [%d3+8];
        """,
        LANE * 7,
    )
    assert (got == LANE * 7).all()


def test_parameters_are_read_by_value():
    out = np.zeros(3, np.uint32)
    run(
        """
        ld.param.u64 %d0, [p0];
        ld.param.s32 %r1, [p1];
        st.global.u32 [%d0], %r1;
        ld.param.b32 %r1, [p2+4];
        st.global.u32 [%d0+4], %r1;
        mov.b64 %d1, p2;
        cvta.param.u64 %d1, %d1;
        cvta.to.param.u64 %d1, %d1;
        ld.param.b32 %r1, [%d1];
        st.global.u32 [%d0+8], %r1;
        ret;
        """,
        out,
        np.int32(-3),
        bytes([1, 0, 0, 0, 2, 0, 0, 0]),
        block=1,
    )
    assert out.view(np.int32).tolist() == [-3, 2, 1]


def test_module_variables_start_with_their_initializers_and_keep_what_is_written():
    text = kernel(
        """
        ld.param.u64 %d0, [p0];
        ld.const.u32 %r1, [table+4];
        st.global.u32 [%d0], %r1;
        ld.global.u32 %r2, [counter];
        add.u32 %r2, %r2, 1;
        st.global.u32 [counter], %r2;
        st.global.u32 [%d0+4], %r2;
        ret;
        """,
        (np.zeros(1),),
        before=".const .u32 table[3] = {5, 6, 7};\n.global .u32 counter = 40;",
    )
    module, out = Module(text, arch="sm_90a"), np.zeros(2, np.uint32)
    for expected in (41, 42):
        module.launch("k", block=(1,), args=[out])
        assert out.tolist() == [6, expected]


def test_generic_addresses_of_shared_memory_and_the_window_test():
    got = lanes(
        """
        .shared .align 4 .b8 tile[128];
        mov.u32 %r4, tile;
        mad.lo.u32 %r4, %r2, 4, %r4;
        st.shared.u32 [%r4], %r2;
        cvt.u64.u32 %d2, %r4;
        cvta.shared.u64 %d3, %d2;
        isspacep.shared %p1, %d3;
        isspacep.global %p2, %d3;
        ld.u32 %r1, [%d3];
        @%p1 add.u32 %r1, %r1, 100;
        @%p2 add.u32 %r1, %r1, 1000;
        """,
        LANE,
    )
    assert (got == LANE + 100).all()


def test_a_peer_block_of_the_cluster_is_read_and_written():
    out = np.zeros(2, np.uint32)
    run(
        """
        .shared .align 4 .b32 cell;
        mov.u32 %r0, %cluster_ctarank;
        xor.b32 %r1, %r0, 1;
        mov.u32 %r2, cell;
        mapa.shared::cluster.u32 %r3, %r2, %r1;
        getctarank.shared::cluster.u32 %r4, %r3;
        add.u32 %r5, %r0, 70;
        st.shared::cluster.u32 [%r3], %r5;
        barrier.cluster.arrive.aligned;
        barrier.cluster.wait.aligned;
        ld.shared.u32 %r6, [%r2];
        mad.lo.u32 %r6, %r4, 1000, %r6;
        ld.param.u64 %d0, [p0];
        mul.wide.u32 %d1, %r0, 4;
        add.u64 %d0, %d0, %d1;
        st.global.u32 [%d0], %r6;
        ret;
        """,
        out,
        grid=2,
        cluster=2,
    )
    assert out.tolist() == [1071, 70]


def test_dynamic_shared_memory_follows_the_static_part():
    out = np.zeros(1, np.uint32)
    run(
        """
        .shared .align 4 .b8 first[20];
        mov.u32 %r0, first;
        mov.u32 %r1, more;
        sub.u32 %r2, %r1, %r0;
        and.b32 %r3, %r1, 127;
        ld.param.u64 %d0, [p0];
        st.shared.u32 [%r1+60], %r2;
        add.u32 %r2, %r2, %r3;
        st.global.u32 [%d0], %r2;
        ret;
        """,
        out,
        smem=64,
        before=".extern .shared .align 128 .b8 more[];",
        block=1,
    )
    assert out[0] >= 20


POINTER = "ld.param.u64 %d0, [p0];\n"


def test_an_access_behind_an_array_is_out_of_bounds():
    error = assert_twins(
        OutOfBounds,
        POINTER + "ld.global.u32 %r1, [%d0+128];",
        POINTER + "ld.global.u32 %r1, [%d0+124];",
        np.zeros(32, np.uint32),
    )  # fmt: skip
    assert error.address is not None
    assert error.lanes


def test_an_access_before_an_array_is_out_of_bounds():
    assert_twins(
        OutOfBounds, POINTER + "st.global.u32 [%d0+-4], 1;", POINTER + "st.global.u32 [%d0], 1;",
        np.zeros(32, np.uint32), block=1,
    )  # fmt: skip


def test_shared_memory_ends_where_the_block_asked():
    body = ".shared .align 4 .b8 tile[64];\nst.shared.u32 [tile+{}], 1;"
    error = assert_twins(OutOfBounds, body.format(64), body.format(60), block=1)
    assert error.warp == 0
    assert error.block == 0


def test_the_null_address_is_in_no_memory():
    assert_twins(
        OutOfBounds,
        "mov.u64 %d0, 0;\nld.global.u32 %r1, [%d0];",
        POINTER + "ld.global.u32 %r1, [%d0];",
        np.zeros(1, np.uint32),
    )  # fmt: skip


@pytest.mark.parametrize(
    "form", ["ld.global.u32 %r1", "ld.global.v2.u32 {%r1, %r2}", "ld.global.u64 %d1"]
)
def test_addresses_must_be_multiples_of_what_is_accessed(form):
    step = {"%r1": 4, "{%r1, %r2}": 8, "%d1": 8}[form.split(" ", 1)[1]]
    assert_twins(
        Misaligned, POINTER + f"{form}, [%d0+{step // 2}];", POINTER + f"{form}, [%d0+{step}];",
        _aligned(np.zeros(32, np.uint32)),
    )  # fmt: skip


def test_a_global_address_with_a_shared_instruction():
    assert_twins(
        (WrongSpace, OutOfBounds),
        POINTER + "ld.shared.u32 %r1, [%d0];",
        POINTER + "ld.global.u32 %r1, [%d0];",
        np.zeros(1, np.uint32),
    )


def test_a_generic_shared_address_with_a_global_instruction():
    body = """
    .shared .align 4 .b32 cell;
    mov.u64 %d1, cell;
    cvta.shared.u64 %d1, %d1;
    st{}.u32 [%d1], 1;
    """
    assert_twins(WrongSpace, body.format(".global"), body.format(""), block=1)


def test_another_blocks_shared_memory_takes_shared_cluster():
    body = """
    .shared .align 4 .b32 cell;
    mov.u32 %r1, cell;
    mapa.shared::cluster.u32 %r1, %r1, 1;
    mov.u32 %r2, %cluster_ctarank;
    setp.eq.u32 %p1, %r2, 0;
    @%p1 st.shared{}.u32 [%r1], 1;
    barrier.cluster.arrive;
    barrier.cluster.wait;
    """
    assert_twins(
        WrongSpace, body.format("::cta"), body.format("::cluster"), grid=2, cluster=2, block=1
    )


def test_registers_are_written_before_they_are_read():
    error = assert_twins(
        Uninitialized, "add.u32 %r1, %r2, 1;", "mov.u32 %r2, 1;\nadd.u32 %r1, %r2, 1;"
    )
    assert "%r2" in str(error)


def test_a_register_written_in_some_lanes_is_read_in_those_only():
    body = """
    mov.u32 %r0, %laneid;
    setp.lt.u32 %p1, %r0, 4;
    @%p1 mov.u32 %r1, 1;
    {} add.u32 %r2, %r1, 1;
    """
    error = assert_twins(Uninitialized, body.format(""), body.format("@%p1"))
    assert error.lanes == tuple(range(4, 32))


def test_shared_memory_is_written_before_it_is_read():
    body = """
    .shared .align 4 .b8 tile[8];
    st.shared.u32 [tile], 1;
    ld.shared.u32 %r1, [tile+{}];
    """
    assert_twins(Uninitialized, body.format(4), body.format(0))


def test_local_memory_is_written_before_it_is_read():
    body = """
    .local .align 4 .b8 mine[8];
    st.local.u32 [mine], 1;
    ld.local.u32 %r1, [mine+{}];
    """
    assert_twins(Uninitialized, body.format(4), body.format(0))


def test_parameters_end():
    assert_twins(OutOfBounds, "ld.param.u32 %r1, [p0+4];", "ld.param.u32 %r1, [p0];", np.uint32(1))


def test_constant_memory_is_for_reading():
    before = ".const .u32 table = 5;"
    with pytest.raises(IllegalInstruction):
        run("st.const.u32 [table], 1;", before=before)


def test_checks_of_initialization_can_be_switched_off():
    run(".shared .align 4 .b8 tile[8];\nld.shared.u32 %r1, [tile];", hazards=False)


@pytest.mark.parametrize("how", ["st.global.u32 [%d1], 7;", "red.global.add.u32 [%d1], 7;"])
def test_an_array_given_for_reading_is_not_written(how):
    """A NumPy array that is not writable may be read; the twin with a writable one is written."""
    body = f"ld.param.u64 %d1, [p0]; ld.global.u32 %r1, [%d1]; {how}"
    array = np.ones(4, np.uint32)
    array.flags.writeable = False
    with pytest.raises(ReadOnly, match="given for reading"):
        run(body, array, block=1)
    assert (array == 1).all()
    array.flags.writeable = True
    run(body, array, block=1)
    assert array[0] in (7, 8)
