# SPDX-License-Identifier: Apache-2.0
"""ldmatrix and stmatrix of bytes, against the fragments of mma that they serve.

No card has answered these: the layouts follow from what the loaded registers are for. A register
of B of a 16 x 8 x 32 product holds four bytes of consecutive rows k in one column n; a register to
store holds four elements of an accumulator of such a product, narrowed to bytes.
"""

from __future__ import annotations

import numpy as np
import pytest
from snippets import run

from cufmha.errors import IllegalInstruction, Misaligned, UnsupportedTarget

SETUP = """
    .shared .align 16 .b8 tile[4096];
    .reg .b32 %a, %q<4>;
    mov.u32 %r0, %tid.x;
    ld.param.u64 %d0, [p0];
    ld.param.u64 %d1, [p1];
    mul.wide.u32 %d2, %r0, 16;
    add.u64 %d0, %d0, %d2;
    add.u64 %d1, %d1, %d2;
    mov.u32 %r1, tile;
"""
# p0: 32 rows of 16 bytes; the row of lane l lies at l * PITCH
FILL = """
    ld.global.v4.b32 {%r2, %r3, %r4, %r5}, [%d0];
    mad.lo.u32 %a, %r0, PITCH, %r1;
    st.shared.v4.b32 [%a], {%r2, %r3, %r4, %r5};
    bar.warp.sync -1;
"""
LOAD = FILL + "    ldmatrix.sync.aligned.m16n16.x{count}.trans.shared.b8 {REGS}, [%a];\n"
STORE = """
    ld.global.v4.b32 {%q0, %q1, %q2, %q3}, [%d0];
    mad.lo.u32 %a, %r0, PITCH, %r1;
    st.shared.v4.b32 [%a], {0, 0, 0, 0};
    bar.warp.sync -1;
    stmatrix.sync.aligned.m16n8.x{count}.trans.shared.b8 [%a], {REGS};
    ld.shared.v4.b32 {%q0, %q1, %q2, %q3}, [%a];
"""
OUT = "    st.global.v4.b32 [%d1], {%q0, %q1, %q2, %q3};\n"
ZERO = "".join(f"    mov.b32 %q{i}, 0;\n" for i in range(4))


def launch(body: str, data: np.ndarray, *, pitch: int = 16, arch: str = "sm_100a") -> np.ndarray:
    """16 bytes a lane in, 16 bytes a lane out."""
    out = np.zeros((32, 16), np.uint8)
    text = SETUP + ZERO + body.replace("PITCH", str(pitch)) + OUT
    run(text, data.reshape(32, 16), out, arch=arch)
    return out


def with_registers(text: str, count: int, registers: int) -> str:
    names = ", ".join(f"%q{i}" for i in range(registers))
    return text.replace("{count}", str(count)).replace("REGS", names)


def random_bytes() -> np.ndarray:
    return np.random.default_rng(3).integers(0, 256, (32, 16), np.uint8)


@pytest.mark.parametrize("pitch", [16, 80])
@pytest.mark.parametrize("count", [1, 2])
def test_a_load_gives_each_lane_its_part_of_b(count, pitch):
    rows = random_bytes()
    found = launch(with_registers(LOAD, count, 2 * count), rows, pitch=pitch)
    for lane in range(32):
        for matrix in range(count):
            b = rows[16 * matrix : 16 * matrix + 16]  # (k, n), n along a row of memory
            for half in range(2):  # a register for each 8 columns of B
                k, n = 4 * (lane % 4), lane // 4 + 8 * half
                at = 4 * (2 * matrix + half)
                assert found[lane, at : at + 4].tolist() == b[k : k + 4, n].tolist()
    assert not found[:, 8 * count :].any()


@pytest.mark.parametrize("pitch", [16, 80])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_store_puts_each_element_of_an_accumulator_in_its_column(count, pitch):
    given = random_bytes()
    found = launch(with_registers(STORE, count, count), given, pitch=pitch)
    expected = np.zeros((32, 16), np.uint8)
    for lane in range(32):
        for matrix in range(count):
            for i in range(4):  # elements c0 to c3
                m, n = lane // 4 + (8 if i >= 2 else 0), 2 * (lane % 4) + i % 2
                expected[8 * matrix + n, m] = given[lane, 4 * matrix + i]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("text", "count", "registers"),
    [
        (LOAD, 4, 4),
        (LOAD.replace(".trans", ""), 1, 2),
        (LOAD, 1, 1),
        (STORE.replace(".trans", ""), 1, 1),
        (STORE, 2, 1),
    ],
)
def test_forms_that_do_not_exist_are_refused(text, count, registers):
    with pytest.raises(IllegalInstruction):
        launch(with_registers(text, count, registers), random_bytes())


@pytest.mark.parametrize(("text", "registers"), [(LOAD, 2), (STORE, 1)])
def test_rows_lie_at_multiples_of_16(text, registers):
    bad = with_registers(text, 1, registers)
    bad = bad.replace("[%a], {%q0};", "[%a+4], {%q0};").replace("%q1}, [%a]", "%q1}, [%a+4]")
    with pytest.raises(Misaligned):
        launch(bad, random_bytes())


@pytest.mark.parametrize(("text", "registers"), [(LOAD, 2), (STORE, 1)])
def test_hopper_has_no_byte_matrices(text, registers):
    with pytest.raises(UnsupportedTarget):
        launch(with_registers(text, 1, registers), random_bytes(), arch="sm_90a")
