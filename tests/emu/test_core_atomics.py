# SPDX-License-Identifier: Apache-2.0
"""atom and red: every lane's operation takes effect exactly once, in some order."""

from __future__ import annotations

import numpy as np
import pytest
from snippets import assert_twins, run

from cufmha.errors import IllegalInstruction, Misaligned, OutOfBounds

HEAD = """
    mov.u32 %r0, %tid.x;
    ld.param.u64 %d0, [p0];
    ld.param.u64 %d1, [p1];
    mul.wide.u32 %d2, %r0, 4;
    add.u64 %d1, %d1, %d2;
    ld.global.u32 %r1, [%d1];
"""
RNG = np.random.default_rng(5)
VALUES = RNG.integers(0, 2**32, 128, np.uint32)
FOLDS = {
    "add.u32": lambda x, start: x.sum(dtype=np.uint32) + np.uint32(start),
    "min.u32": lambda x, start: min(x.min(), start),
    "max.u32": lambda x, start: max(x.max(), start),
    "and.b32": lambda x, start: np.bitwise_and.reduce(x) & np.uint32(start),
    "or.b32": lambda x, start: np.bitwise_or.reduce(x) | np.uint32(start),
    "xor.b32": lambda x, start: np.bitwise_xor.reduce(x) ^ np.uint32(start),
}


@pytest.mark.parametrize("seed", [0, 3])
@pytest.mark.parametrize("form", FOLDS)
def test_all_threads_on_one_cell(form, seed):
    cell = np.array([0x12345678], np.uint32)
    expected = FOLDS[form](VALUES, 0x12345678)
    run(HEAD + f"red.relaxed.gpu.global.{form} [%d0], %r1;", cell, VALUES, block=128, seed=seed)
    assert cell[0] == expected


@pytest.mark.parametrize("seed", [0, 2, 5])
def test_every_lane_gets_another_old_value(seed):
    cells = np.zeros(130, np.uint32)
    run(
        """
        ld.param.u64 %d0, [p0];
        atom.global.add.u32 %r1, [%d0], 1;
        mad.wide.u32 %d1, %r1, 4, %d0;
        red.global.add.u32 [%d1+4], 1;
        """,
        cells,
        block=128,
        seed=seed,
    )
    assert cells.tolist() == [128] + [1] * 128 + [0]


def test_exactly_one_thread_wins_a_compare_and_swap():
    cells = np.zeros(2, np.uint32)
    run(
        """
        mov.u32 %r0, %tid.x;
        add.u32 %r0, %r0, 1;
        ld.param.u64 %d0, [p0];
        atom.global.cas.b32 %r1, [%d0], 0, %r0;
        setp.eq.u32 %p1, %r1, 0;
        @%p1 red.global.add.u32 [%d0+4], 1;
        """,
        cells,
        block=96,
        seed=2,
    )
    assert cells[1] == 1
    assert 1 <= cells[0] <= 96


@pytest.mark.parametrize(("form", "start", "value", "expected"), [
    ("inc.u32", 5, 5, 0), ("inc.u32", 4, 5, 5), ("dec.u32", 0, 9, 9), ("dec.u32", 3, 9, 2),
    ("dec.u32", 12, 9, 9), ("exch.b32", 1, 2, 2), ("min.s32", 3, 2**32 - 1, 2**32 - 1),
])  # fmt: skip
def test_operations_on_one_cell(form, start, value, expected):
    cells, values = np.array([start], np.uint32), np.array([value], np.uint32)
    run(HEAD + f"atom.global.{form} %r2, [%d0], %r1;", cells, values, block=1)
    assert cells[0] == expected


@pytest.mark.parametrize("space", ["global", "shared"])
def test_floats_add_up(space):
    values = RNG.standard_normal(64).astype(np.float32)
    cell = np.zeros(1, np.float32)
    where = "%d0" if space == "global" else "cell"
    run(
        ".shared .align 4 .b32 cell;\n" + HEAD + f"""
        setp.eq.u32 %p1, %r0, 0;
        @%p1 st.shared.u32 [cell], 0;
        bar.sync 0;
        red.{space}.add.f32 [{where}], %r1;
        bar.sync 0;
        @%p1 ld.{space}.u32 %r2, [{where}];
        @%p1 st.global.u32 [%d0], %r2;
        """,
        cell,
        values,
        block=64,
    )  # fmt: skip
    assert abs(cell[0] - values.sum(dtype=np.float64)) < 1e-4


def test_packed_halves_add_up():
    cell = np.zeros(2, np.float16)
    values = np.arange(64, dtype=np.float16)
    run(HEAD + "red.global.add.noftz.f16x2 [%d0], %r1;", cell, values, block=32)
    assert cell.tolist() == [values[::2].sum(), values[1::2].sum()]


def test_packed_bfloat16_rounds_to_nearest_even():
    one = np.array([0x3F80, 0x3F80], np.uint16)
    tiny = np.array([0x3B80, 0x3C40], np.uint16)  # 2^-8 (half an ulp of 1) and 1.5 * 2^-7
    cell = one.copy()
    run(HEAD + "red.global.add.noftz.bf16x2 [%d0], %r1;", cell, tiny, block=1)
    assert cell.tolist() == [0x3F80, 0x3F82]


def test_vectors_of_floats_are_reduced_element_by_element():
    cells = np.array([1, 2, 3, 4], np.float32)
    raw = np.zeros(64, np.uint8)
    start = -raw.ctypes.data % 16
    aligned = raw[start : start + 16].view(np.float32)
    aligned[:] = cells
    run(
        """
        ld.param.u64 %d0, [p0];
        mov.b32 %r1, 0f3F800000;
        mov.b32 %r2, 0f40000000;
        red.global.v4.f32.add [%d0], {%r1, %r2, %r1, %r2};
        """,
        aligned,
        block=32,
    )
    assert aligned.tolist() == [33, 66, 35, 68]


def test_64_and_128_bit_cells():
    cells = np.array([2**63, 7], np.uint64)
    raw = np.zeros(64, np.uint8)
    start = -raw.ctypes.data % 16
    aligned = raw[start : start + 16].view(np.uint64)
    aligned[:] = cells
    run(
        """
        .reg .b128 %q<4>;
        ld.param.u64 %d0, [p0];
        mov.b64 %d1, 0x8000000000000000;
        mov.b64 %d2, 7;
        mov.b128 %q0, {%d1, %d2};
        mov.b128 %q1, {%d2, %d2};
        atom.global.cas.b128 %q2, [%d0], %q0, %q1;
        atom.global.add.u64 %d3, [%d0], 1;
        """,
        aligned,
        block=1,
    )
    assert aligned.tolist() == [8, 7]


def test_a_peer_blocks_cell_is_counted_up():
    out = np.zeros(2, np.uint32)
    run(
        """
        .shared .align 4 .b32 cell;
        mov.u32 %r0, %tid.x;
        mov.u32 %r1, %cluster_ctarank;
        setp.eq.u32 %p1, %r0, 0;
        @%p1 st.shared.u32 [cell], 0;
        barrier.cluster.arrive;
        barrier.cluster.wait;
        mov.u32 %r2, cell;
        mapa.shared::cluster.u32 %r3, %r2, 0;
        red.relaxed.cluster.shared::cluster.add.u32 [%r3], 1;
        barrier.cluster.arrive;
        barrier.cluster.wait;
        ld.param.u64 %d0, [p0];
        mul.wide.u32 %d1, %r1, 4;
        add.u64 %d0, %d0, %d1;
        @%p1 ld.shared.u32 %r4, [cell];
        @%p1 st.global.u32 [%d0], %r4;
        """,
        out,
        grid=2,
        cluster=2,
        block=32,
    )
    assert out.tolist() == [64, 0]


POINTER = "ld.param.u64 %d0, [p0];\n"


def test_atomics_keep_to_bounds_and_alignment():
    cells = np.zeros(4, np.uint32)
    twin = POINTER + "red.global.add.u32 [%d0+{}], 1;"
    assert_twins(OutOfBounds, twin.format(16), twin.format(12), cells)
    assert_twins(Misaligned, twin.format(2), twin.format(4), cells)


@pytest.mark.parametrize(
    "wrong",
    ["red.global.exch.b32 [%d0], 1;", "atom.global.add.s64 %d1, [%d0], 1;",
     "atom.global.add.f16 %r1, [%d0], %r1;", "red.acquire.gpu.global.add.u32 [%d0], 1;",
     "red.shared.v2.f32.add [%d0], {%r1, %r2};", "atom.global.cas.b32 %r1, [%d0], 1;"],
)  # fmt: skip
def test_forms_that_do_not_exist_are_refused(wrong):
    right = "red.global.add.u32 [%d0], 1;"
    assert_twins(IllegalInstruction, POINTER + wrong, POINTER + right, np.zeros(2, np.uint64))
