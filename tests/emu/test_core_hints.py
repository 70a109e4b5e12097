# SPDX-License-Identifier: Apache-2.0
"""Instructions that change no result, and a few that nothing else here uses."""

from __future__ import annotations

import numpy as np
import pytest
from snippets import assert_twins, lanes, run

from cufmha.errors import IllegalInstruction, Uninitialized, UnsupportedInstruction

POINTER = "ld.param.u64 %d0, [p0];\n"
HINTS = [
    "prefetch.global.L2 [%d0];",
    "prefetchu.L1 [%d0];",
    "applypriority.global.L2::evict_normal [%d0], 128;",
    "nanosleep.u32 100;",
    "pmevent 1;",
    "discard.global.L2 [%d0], 128;",
    "griddepcontrol.wait;",
    "griddepcontrol.launch_dependents;",
    "createpolicy.fractional.L2::evict_first.b64 %d1, 1.0;",
    "cp.async.bulk.prefetch.L2.global [%d0], 128;",
]


def aligned(count: int) -> np.ndarray:
    raw = np.zeros(4 * count + 128, np.uint8)
    start = -raw.ctypes.data % 128
    return raw[start : start + 4 * count].view(np.uint32)


@pytest.mark.parametrize("hint", HINTS)
def test_hints_execute_and_change_nothing(hint):
    array = aligned(64)
    array[:] = np.arange(64)
    run(POINTER + hint, array)
    assert (array == np.arange(64)).all()


def test_a_hints_address_must_have_been_computed():
    wrong = "prefetch.global.L2 [%d5];"
    assert_twins(Uninitialized, wrong, POINTER + "prefetch.global.L2 [%d0];", aligned(32))


def test_a_policy_may_go_with_a_load():
    values = np.arange(32, dtype=np.uint32)
    got = lanes(
        "createpolicy.fractional.L2::evict_last.b64 %d5, 0.5;\n"
        "ld.global.L2::cache_hint.u32 %r1, [%d1], %d5;",
        values,
    )
    assert (got == values).all()


def test_ldu_loads_as_ld_does():
    values = np.arange(32, dtype=np.uint32)
    assert (lanes("ldu.global.u32 %r1, [%d1];", values) == values).all()


def test_exit_ends_a_thread_in_the_middle():
    out = np.zeros(1, np.uint32)
    run(POINTER + "st.global.u32 [%d0], 1;\nexit;\nst.global.u32 [%d0], 2;", out, block=1)
    assert out[0] == 1


def test_products_of_64_bits_by_halves_with_carries():
    a, b = (np.random.default_rng(i).integers(0, 2**32, 32, np.uint32) for i in (1, 2))
    c = np.full(32, 2**32 - 5, np.uint32)
    high = lanes(
        """
        mad.lo.cc.u32 %r5, %r2, %r3, %r4;
        madc.hi.u32 %r1, %r2, %r3, 7;
        """,
        a, b, c,
    )  # fmt: skip
    total = a.astype(object) * b.astype(object) + c.astype(object) + (7 << 32)
    assert high.tolist() == [(x >> 32) % 2**32 for x in total]
    carry = lanes("mad.hi.cc.u32 %r5, %r2, %r3, %r4;\naddc.u32 %r1, 0, 0;", a, b, c)
    expected = [(int(x) * int(y) >> 32) + int(z) >> 32 for x, y, z in zip(a, b, c, strict=True)]
    assert carry.tolist() == expected


@pytest.mark.parametrize(
    ("wrong", "error"),
    [("griddepcontrol.go;", IllegalInstruction), ("brkpt;", UnsupportedInstruction)],
)
def test_forms_that_are_none_are_refused(wrong, error):
    assert_twins(error, wrong, "griddepcontrol.wait;")
