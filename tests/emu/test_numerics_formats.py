# SPDX-License-Identifier: Apache-2.0
"""Formats code by code against fractions, and against NumPy and ml_dtypes."""

from __future__ import annotations

import math
from fractions import Fraction

import exact
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cufmha.emu.numerics import formats

PAIRS = {
    "e4m3": (formats.E4M3, exact.E4M3, ml_dtypes.float8_e4m3fn),
    "e5m2": (formats.E5M2, exact.E5M2, ml_dtypes.float8_e5m2),
    "f16": (formats.HALF, exact.HALF, np.float16),
    "bf16": (formats.BF16, exact.BF16, ml_dtypes.bfloat16),
}
MODES = ("rn", "rna", "rz", "rm", "rp")


@pytest.fixture(autouse=True, scope="module")
def _as_in_the_machine():
    with np.errstate(all="ignore"):
        yield


def every_code(form: formats.Format) -> np.ndarray:
    return np.arange(1 << form.bits, dtype=f"uint{form.bits}")


@pytest.mark.parametrize("name", PAIRS)
def test_every_code_decodes_to_its_value(name):
    form, _, reference = PAIRS[name]
    codes = every_code(form)
    expected = codes.view(reference).astype(np.float64)
    got = formats.decode(codes, form)
    np.testing.assert_array_equal(got, expected)
    numbers = ~np.isnan(got)
    np.testing.assert_array_equal(np.signbit(got[numbers]), np.signbit(expected[numbers]))


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("mode", MODES)
def test_every_code_survives_a_round_trip_and_nan_becomes_the_canonical_one(name, mode):
    form = PAIRS[name][0]
    codes = every_code(form)
    values = formats.decode(codes, form)
    back = formats.to_format(values, form, mode)
    np.testing.assert_array_equal(back, np.where(np.isnan(values), form.nan, codes))


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("mode", MODES)
def test_between_neighbors_rounding_goes_where_the_mode_says(name, mode):
    """The midpoint of each pair of finite neighbors, a hair below and a hair above, both signs."""
    form, slow, _ = PAIRS[name]
    codes = np.arange(0, slow.last_finite, max(1, slow.last_finite // 4000))
    values = [slow.value(int(code)) for code in codes]
    middles = [(v + slow.value(int(code) + 1)) / 2 for v, code in zip(values, codes, strict=True)]
    points = np.array([float(m) for m in middles])
    points = np.concatenate([points, np.nextafter(points, 0), np.nextafter(points, np.inf)])
    points = np.concatenate([points, -points])
    got = formats.to_format(points, form, mode)
    sample = range(0, len(points), max(1, len(points) // 1500))
    for i in sample:
        assert got[i] == slow.round(Fraction(float(points[i])), mode), (points[i], mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("name", "infinity"), [("f16", 0x7C00), ("bf16", 0x7F80)])
def test_overflow_is_infinite_unless_the_mode_rounds_toward_zero_there(name, infinity, mode):
    form = PAIRS[name][0]
    beyond = np.array([form.largest * 1.5, -form.largest * 1.5])
    up, down = formats.to_format(beyond, form, mode)
    assert up == (infinity if mode in ("rn", "rna", "rp") else infinity - 1)
    assert down == 0x8000 + (infinity if mode in ("rn", "rna", "rm") else infinity - 1)


@settings(max_examples=300, deadline=None)
@given(st.floats(width=64, allow_nan=False, allow_infinity=False), st.sampled_from(MODES))
def test_a_double_rounds_to_single_as_its_fraction_does(x, mode):
    got = int(formats.to_format(np.array([x]), formats.SINGLE, mode)[0])
    expected = exact.SINGLE.round(Fraction(x), mode, negative_zero=math.copysign(1, x) < 0)
    if mode == "rn" or expected & 0x7FFFFFFF:
        assert got == expected
    else:  # a result of zero has the sign of what was rounded
        assert got & 0x7FFFFFFF == 0


@settings(max_examples=300, deadline=None)
@given(*[st.floats(width=64, allow_nan=False, allow_infinity=False, min_value=-1e300,
                   max_value=1e300)] * 2)  # fmt: skip
def test_a_sum_rounded_to_odd_is_exact_or_the_odd_neighbor(a, b):
    s = float(formats.odd_sum(np.array([a]), np.array([b]))[0])
    truth = Fraction(a) + Fraction(b)
    if Fraction(s) == truth:
        return
    assert np.array(s).view(np.uint64) & np.uint64(1)
    other = math.nextafter(s, math.inf if truth > Fraction(s) else -math.inf)
    assert min(Fraction(s), Fraction(other)) < truth < max(Fraction(s), Fraction(other))


def test_halves_and_packed_are_inverse():
    words = np.arange(1, 65, dtype=np.uint32) * np.uint32(0x01234567)
    low, high = formats.halves(words, 16)
    np.testing.assert_array_equal(low, words & 0xFFFF)
    np.testing.assert_array_equal(high, words >> 16)
    np.testing.assert_array_equal(formats.packed(low, high), words)


def test_saturation_flush_and_relu_keep_to_their_rules_at_zero_and_nan():
    x = np.array([-1.0, -0.0, 0.0, 0.25, 2.0, np.inf, -np.inf, np.nan, 2.0**-130, -(2.0**-130)])
    saturated = formats.saturate(x)
    np.testing.assert_array_equal(saturated, [0, 0, 0, 0.25, 1, 1, 0, 0, 2.0**-130, 0])
    assert not np.signbit(saturated).any()
    positive = formats.relu(x)
    np.testing.assert_array_equal(positive, [0, 0, 0, 0.25, 2, np.inf, 0, np.nan, 2.0**-130, 0])
    assert not np.signbit(positive[~np.isnan(positive)]).any()
    flushed = formats.flush(x, formats.SINGLE)
    assert flushed[-2] == 0 and not np.signbit(flushed[-2])
    assert flushed[-1] == 0 and np.signbit(flushed[-1])
    np.testing.assert_array_equal(flushed[:8], x[:8])
