# SPDX-License-Identifier: Apache-2.0
"""Races over bytes and halves: neighbors in one word are no conflict, one byte in common is."""

from __future__ import annotations

from typing import Any

import async_snippets as kit
import numpy as np
import pytest
from snippets import assert_twins, run

from cufmha.errors import AsyncReuse, DataRace, Uninitialized
from cufmha.tma import TensorMapSpec

# %r1: the warp; %r2: its cell of `size` bytes; %p1, %p2: first lane of warp 0, of warp 1
HEAD = """
    .shared .align 16 .b8 tile[1024];
    .reg .b16 %h;
    mov.u32 %r0, %tid.x;
    shr.u32 %r1, %r0, 5;
    setp.eq.u32 %p1, %r0, 0;
    setp.eq.u32 %p2, %r0, 32;
    mov.u16 %h, 7;
    {base}
    mad.lo.u32 %r2, %r1, {size}, 0;
    {address}
"""
BASES = {
    "shared": ("mov.u32 %r10, tile;", "add.u32 %r3, %r10, %r2;", "%r10", "%r3"),
    "global": (
        "ld.param.u64 %d0, [p0];",
        "cvt.u64.u32 %d1, %r2;\nadd.u64 %d1, %d0, %d1;",
        "%d0",
        "%d1",
    ),
}
TYPES = {1: "u8", 2: "u16"}
SPACES = pytest.mark.parametrize("space", list(BASES))
SIZES = pytest.mark.parametrize("size", [1, 2])


def body(space: str, size: int, text: str) -> str:
    """`BASE` and `CELL` in the text: the memory's start, and the warp's own cell."""
    base, address, first, cell = BASES[space]
    head = HEAD.format(base=base, address=address, size=size)
    text = text.replace("BASE", first).replace("CELL", cell)
    return head + text.replace("SPACE", space).replace("TYPE", TYPES[size])


def fresh(space: str) -> tuple[Any, ...]:
    return (np.zeros(64, np.uint32),) if space == "global" else ()


def twins(error: type[Exception], space: str, wrong: str, right: str, *, size: int = 2) -> Any:
    return assert_twins(
        error, body(space, size, wrong), body(space, size, right), *fresh(space), block=64
    )


STORE = "st.SPACE.TYPE [{}], %h;\n"
LOAD = "ld.SPACE.TYPE %h, [{}];\n"
ZERO = "@%p1 st.SPACE.u32 [BASE], 0;\nbar.sync 0;\n"
ONE_LANE = "and.b32 %r4, %r0, 31;\nsetp.eq.u32 %p3, %r4, 0;\n"


@SPACES
@SIZES
def test_two_warps_may_write_neighbors_in_a_word_but_not_one_place(space, size):
    right = ONE_LANE + "@%p3 " + STORE.format("CELL")
    wrong = ONE_LANE + "@%p3 " + STORE.format("BASE")
    error = twins(DataRace, space, wrong, right, size=size)
    assert "byte" in str(error)


@SPACES
@SIZES
def test_a_write_beside_what_another_warp_reads_is_no_race(space, size):
    text = ZERO + "@%p1 " + LOAD.format("BASE") + "@%p2 " + STORE.format("{}")
    twins(DataRace, space, text.format("BASE"), text.format("CELL"), size=size)


@SPACES
def test_all_readers_of_a_half_are_remembered(space):
    """Two warps read one half side by side; either of them makes the third one's write a race."""
    text = (
        ZERO
        + LOAD.format("BASE")
        + "bar.{} 1, 96;\nsetp.eq.u32 %p2, %r0, 64;\n@%p2 "
        + STORE.format("BASE")
    )
    # warps 0 and 1 arrive, or only warp 1 and others do
    text = text.replace("bar.{} 1, 96;", "{skip}\nbar.sync 1, {count};\nskipped:\n")
    right = text.format(skip="", count=96)
    wrong = text.format(skip="setp.lt.u32 %p4, %r0, 32;\n@%p4 bra skipped;", count=64)
    assert_twins(DataRace, body(space, 2, wrong), body(space, 2, right), *fresh(space), block=96)


@SPACES
def test_a_word_and_a_byte_of_it_conflict(space):
    text = ZERO + "@%p1 st.SPACE.u32 [BASE], %r0;\n@%p2 ld.SPACE.u8 %h, [BASE+{}];\n"
    init = "@%p1 st.SPACE.u32 [BASE+4], 0;\nbar.sync 0;\n"
    twins(DataRace, space, init + text.format(3), init + text.format(4))


@SPACES
def test_halves_of_several_warps_are_read_as_a_word_behind_a_barrier(space):
    text = ZERO + ONE_LANE + "@%p3 " + STORE.format("CELL") + "{}\n@%p1 ld.SPACE.u32 %r5, [BASE];\n"
    twins(DataRace, space, text.format(""), text.format("bar.sync 0;"))


@SPACES
def test_a_word_written_whole_stands_for_all_its_bytes_again(space):
    text = (
        ONE_LANE
        + "@%p3 "
        + STORE.format("CELL")
        + "bar.sync 0;\n@%p1 st.SPACE.u32 [BASE], %r0;\n{}\n@%p2 "
        + LOAD.format("CELL")
    )
    twins(DataRace, space, text.format(""), text.format("bar.sync 0;"))


@SPACES
@SIZES
def test_rows_of_halves_that_fill_words_are_checked_too(space, size):
    """Every lane writes the cell of its number; the other warp's are read back."""
    at = f"xor.b32 %r4, %r0, 32;\nmul.lo.u32 %r5, %r0, {size};\nmul.lo.u32 %r6, %r4, {size};\n"
    if space == "shared":
        at += "add.u32 %r5, %r5, %r10;\nadd.u32 %r6, %r6, %r10;\n"
        mine, theirs = "%r5", "%r6"
    else:
        at += "cvt.u64.u32 %d5, %r5;\nadd.u64 %d5, %d5, %d0;\n"
        at += "cvt.u64.u32 %d6, %r6;\nadd.u64 %d6, %d6, %d0;\n"
        mine, theirs = "%d5", "%d6"
    text = (
        at
        + STORE.format(mine)
        + "bar.sync 0;\n"
        + STORE.format(mine)
        + "{}\n"
        + LOAD.format(theirs)
    )
    twins(DataRace, space, text.format(""), text.format("bar.sync 0;"), size=size)


@SPACES
def test_indivisible_stores_of_a_byte_race_with_plain_ones_only(space):
    strong = "st.relaxed.gpu.SPACE.u8 [BASE], %h;\n"
    text = ONE_LANE + "{}"
    right = text.format("@%p3 " + strong)
    wrong = text.format("@%p1 st.SPACE.u8 [BASE], %h;\n@%p2 " + strong)
    twins(DataRace, space, wrong, right, size=1)


def test_one_half_of_a_word_written_leaves_the_other_uninitialized():
    text = "@%p1 st.shared.u16 [BASE], %h;\n@%p1 st.shared.u16 [BASE+{}], %h;\n"
    text += "@%p1 ld.shared.u32 %r5, [BASE];\n"
    twins(Uninitialized, "shared", text.format(4), text.format(2))
    byte = "@%p1 st.shared.u16 [BASE], %h;\n@%p1 ld.shared.u8 %h, [BASE+{}];\n"
    error = twins(Uninitialized, "shared", byte.format(2), byte.format(1))
    assert error.address % 1024 == 2


def test_a_tensor_store_and_the_half_behind_its_row_do_not_meet():
    """Rows of 61 elements end within a word."""
    spec = TensorMapSpec(dtype="bf16", dims=(61, 4), strides=(128,), box=(64, 4))
    text = (
        kit.copy_in(512)
        + kit.PROXY
        + kit.STORE.format(rank=2, at="0, 0")
        + "mov.u16 %h, 1;\nld.param.u64 %d0, [p2];\n@%first st.global.b16 [%d0+END], %h;\n"
        + kit.COMMIT
        + kit.WAIT_GROUP
    )
    memory, tile = kit.aligned(512), kit.aligned(512)
    for seed in range(3):
        kit.launch(text.replace("END", "122"), spec, int(memory.ctypes.data), memory, tile, memory,
                   seed=seed)  # fmt: skip
        with pytest.raises(AsyncReuse):
            late = text.replace("END", "120")
            kit.launch(late, spec, int(memory.ctypes.data), memory, tile, memory, seed=seed)


# ---- what shares a shadow


def test_two_views_of_one_array_race_as_one():
    text = """
    ld.param.u64 %d0, [p0];
    ld.param.u64 %d1, [p1];
    mov.u32 %r0, %tid.x;
    setp.lt.u32 %p1, %r0, 32;
    @%p1 st.global.u32 [%d0+64], %r0;
    {}
    @!%p1 ld.global.u32 %r1, [%d1];
    """

    def attempt(between: str) -> None:
        memory = np.zeros(64, np.uint32)
        run(text.format(between), memory[:32], memory[16:], block=64)

    attempt("bar.sync 0;")
    with pytest.raises(DataRace):
        attempt("")


def test_what_one_block_reads_another_may_not_write_unordered():
    text = """
    ld.param.u64 %d0, [p0];
    mov.u32 %r0, %ctaid.x;
    setp.eq.u32 %p1, %r0, 0;
    @%p1 ld.global.u32 %r1, [%d0];
    @!%p1 st.global.u32 [%d0+{}], %r0;
    """
    assert_twins(DataRace, text.format(0), text.format(4), np.zeros(4, np.uint32), grid=2, block=32)


@pytest.mark.parametrize("seed", range(3))
def test_readers_side_by_side_are_remembered_each_by_itself(seed):
    """Of four warps that read a word, three meet the writer at a barrier."""
    text = """
    .shared .align 4 .b8 tile[1024];
    mov.u32 %r0, %tid.x;
    setp.eq.u32 %p1, %r0, 0;
    @%p1 st.shared.u32 [tile], 0;
    bar.sync 0;
    ld.shared.u32 %r1, [tile];
    shr.u32 %r2, %r0, 5;
    setp.eq.u32 %p2, %r2, {late};
    @%p2 bar.sync 2, 32;
    @!%p2 bar.sync 1, {count};
    @%p1 st.shared.u32 [tile], %r1;
    """
    right = text.format(late=9, count=128)
    run(right, block=128, seed=seed)
    for late in (1, 2, 3):
        with pytest.raises(DataRace, match=f"by warp {late}"):
            run(text.format(late=late, count=96), block=128, seed=seed)


def test_readers_are_told_apart_after_many_others_were_forgotten(monkeypatch):
    monkeypatch.setattr("cufmha.emu.shadow._FIRST_CROWDS", 8)
    text = """
    .shared .align 4 .b8 tile[1024];
    mov.u32 %r0, %tid.x;
    setp.eq.u32 %p1, %r0, 0;
    mov.u32 %r3, 0;
again:
    @%p1 st.shared.u32 [tile], %r3;
    bar.sync 0;
    ld.shared.u32 %r1, [tile];
    bar.sync 0;
    add.u32 %r3, %r3, 1;
    setp.lt.u32 %p2, %r3, 30;
    @%p2 bra again;
    {}
    @%p1 st.shared.u32 [tile], %r3;
    """
    assert_twins(DataRace, text.format("ld.shared.u32 %r1, [tile];"), text.format(""), block=96)
