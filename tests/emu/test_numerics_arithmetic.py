# SPDX-License-Identifier: Apache-2.0
"""Arithmetic in every rounding mode against fractions, where roundings are hard to get right."""

from __future__ import annotations

import math
from fractions import Fraction

import exact
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cufmha.emu.numerics import double, formats, single

MODES = ("rn", "rz", "rm", "rp")
BINARY = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
}
PLAIN = {"add": single.add, "sub": single.subtract, "mul": single.multiply}


@pytest.fixture(autouse=True, scope="module")
def _as_in_the_machine():
    with np.errstate(all="ignore"):
        yield


def scattered(kind: str, count: int, seed: int) -> np.ndarray:
    """Finite numbers: a third of them near 1, a third anywhere, a third with few bits set."""
    rng = np.random.default_rng(seed)
    bits = {"f32": 32, "f64": 64}[kind]
    mantissa, one = {"f32": (23, 0x3F800000), "f64": (52, 0x3FF0000000000000)}[kind]
    raw = rng.integers(0, 2**bits, count, dtype=f"uint{bits}")
    unsigned = raw.dtype.type
    sign = raw & unsigned(1 << (bits - 1))
    near = (raw & unsigned((1 << mantissa) - 1)) | unsigned(one) | sign
    few = (raw >> unsigned(mantissa - 3) << unsigned(mantissa - 3)) ^ unsigned(1) * (
        raw & unsigned(1)
    )
    mixed = np.choose(np.arange(count) % 3, [raw, near, few]).astype(raw.dtype)
    x = mixed.view("f4" if kind == "f32" else "f8")
    return np.where(np.isfinite(x), x, x.dtype.type(1.5))


def hard_addends(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Numbers that cancel a·b but for its lost half, or sit half an ulp or far less away."""
    product = a.astype(np.float64) * b.astype(np.float64)
    near = (-product).astype(a.dtype)
    scale = np.array([1.0, 2.0**-24, 2.0**24, 2.0**-60, 2.0**48, 0.0])
    found = near * np.resize(scale, len(a)).astype(a.dtype)
    return np.where(np.isfinite(found), found, a.dtype.type(0))


def signed_zero(terms: tuple[float, float], mode: str) -> bool:
    """Whether a sum that is exactly zero is negative."""
    both = [math.copysign(1, t) < 0 for t in terms]
    if terms[0] == 0 and terms[1] == 0 and both[0] == both[1]:
        return both[0]
    return mode == "rm"


def code(x: np.ndarray) -> list[int]:
    return x.view(f"uint{8 * x.dtype.itemsize}").tolist()


def expect(form: str, operands: tuple[float, ...], mode: str, target: exact.Binary) -> int:
    if form == "fma":
        a, b, c = operands
        value = Fraction(a) * Fraction(b) + Fraction(c)
        product = math.copysign(0.0 if not (a and b) else 1.0, a) * math.copysign(1.0, b)
        negative = signed_zero((product, c), mode)
    else:
        a, b = operands
        value = BINARY[form](Fraction(a), Fraction(b))
        if form in ("add", "sub"):
            negative = signed_zero((a, b if form == "add" else -b), mode)
        else:
            negative = math.copysign(1, a) * math.copysign(1, b) < 0
    return target.round(value, mode, negative_zero=negative)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("form", [*BINARY, "fma"])
def test_single_precision_rounds_as_fractions_do(form, mode):
    a, b = scattered("f32", 480, 1), scattered("f32", 480, 2)
    a[:6], b[:6] = [0, -0.0, 0, -0.0, 1, -1], [0, 0, -0.0, -0.0, -1, 1]
    if form == "div":
        b = np.where(b == 0, np.float32(3), b)
    operands = (a, b, hard_addends(a, b)) if form == "fma" else (a, b)
    functions = [single.rounded(form, mode)]
    if mode == "rn" and form != "div":
        functions.append(single.fma if form == "fma" else PLAIN[form])
    expected = [
        expect(form, lane, mode, exact.SINGLE)
        for lane in zip(*[x.tolist() for x in operands], strict=True)
    ]
    for fn in functions:
        assert code(fn(*operands)) == expected


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("form", [*BINARY, "fma"])
def test_double_precision_rounds_as_fractions_do(form, mode):
    a, b = scattered("f64", 240, 3), scattered("f64", 240, 4)
    a[:6], b[:6] = [0, -0.0, 0, -0.0, 1, -1], [0, 0, -0.0, -0.0, -1, 1]
    if form == "div":
        b = np.where(b == 0, 3.0, b)
    operands = (a, b, hard_addends(a, b)) if form == "fma" else (a, b)
    fn = double.fma(mode) if form == "fma" else double.binary(form, mode)
    expected = [
        expect(form, lane, mode, exact.DOUBLE)
        for lane in zip(*[x.tolist() for x in operands], strict=True)
    ]
    assert code(fn(*operands)) == expected


@pytest.mark.parametrize("mode", MODES)
def test_reciprocals_and_roots_round_as_exact_ones_do(mode):
    x = np.abs(scattered("f32", 300, 5))
    x = np.where(x == 0, np.float32(7), x)
    x[:4] = [1, 4, 9, 2.0**-149]
    got = code(single.rounded("rcp", mode)(x))
    assert got == [exact.SINGLE.round(1 / Fraction(v), mode) for v in x.tolist()]
    below = single.rounded("sqrt", "rz")(x)
    for v, r in zip(x.tolist(), below.tolist(), strict=True):
        above = float(np.nextafter(np.float32(r), np.float32(np.inf)))
        assert Fraction(r) ** 2 <= Fraction(v) < Fraction(above) ** 2
    roots = single.rounded("sqrt", mode)(x)
    perfect = below.astype(np.float64) ** 2 == x
    ups = roots > below
    if mode in ("rz", "rm"):
        assert not ups.any()
    elif mode == "rp":
        np.testing.assert_array_equal(ups, ~perfect)
    else:
        np.testing.assert_array_equal(roots, np.sqrt(x))


def one(fn, *operands: float) -> float:
    return float(fn(*[np.array([x], np.float32) for x in operands])[0])


@settings(max_examples=500, deadline=None)
@given(
    st.integers(1, 2**11 - 1),
    st.integers(2**10, 2**24 - 1),
    st.sampled_from([-149, -140, -126, -23, 0, 90]),
    st.sampled_from([1, -1]),
    st.sampled_from([1, -1]),
    st.sampled_from(MODES),
)
def test_an_fma_whose_sum_all_but_meets_a_half_way_point_rounds_once(k, c, power, side, sign, mode):
    """c + half an ulp of it · (1 − k²·2^-46): float64 rounds that to the half-way point itself."""
    k /= 2**23
    addend = sign * math.ldexp(float(c), power)
    ulp = max(math.frexp(addend)[1] - 24, -149)
    x, y = 1 + k, math.ldexp((1 - k) * side, ulp - 1)
    if abs(y) < 2.0**-126:  # too small for a factor of 24 bits; shift both
        x, y = math.ldexp(x, -60), math.ldexp(y, 60)
    lanes = [np.array([v], np.float32) for v in (x, y, addend)]
    assert [float(v[0]) for v in lanes] == [x, y, addend]
    expected = expect("fma", (x, y, addend), mode, exact.SINGLE)
    assert code(single.rounded("fma", mode)(*lanes)) == [expected]
    if mode == "rn":
        assert code(single.fma(*lanes)) == [expected]


@settings(max_examples=300, deadline=None)
@given(
    *[st.floats(allow_nan=False, allow_infinity=False)] * 3,
    st.sampled_from(MODES),
    st.booleans(),
)
def test_a_double_fma_rounds_once(a, b, c, mode, cancel):
    if cancel and math.isfinite(a * b):
        c = -(a * b)
    expected = expect("fma", (a, b, c), mode, exact.DOUBLE)
    assert code(double.fma(mode)(*[np.array([v]) for v in (a, b, c)])) == [expected]


def test_infinities_and_nan_follow_ieee_and_nan_is_canonical():
    inf, nan = np.inf, np.nan
    a = np.array([inf, inf, -inf, 0, nan, 1, inf, 0], np.float32)
    b = np.array([inf, -inf, inf, inf, 1, nan, 0, 0], np.float32)
    for mode in MODES:
        for form, expected in (
            ("add", [inf, nan, nan, inf, nan, nan, inf, 0]),
            ("sub", [nan, inf, -inf, -inf, nan, nan, inf, None]),
            ("mul", [inf, -inf, -inf, nan, nan, nan, nan, 0]),
            ("div", [nan, nan, nan, 0, nan, nan, inf, nan]),
        ):
            got = single.rounded(form, mode)(a, b)
            for lane, value in enumerate(expected):
                if value is None:
                    assert got[lane] == 0
                elif math.isnan(value):
                    assert code(got)[lane] == 0x7FFFFFFF, (form, mode, lane)
                else:
                    assert got[lane] == value, (form, mode, lane)
        fma = single.rounded("fma", mode)
        assert math.isnan(one(fma, inf, 1, -inf)) and one(fma, inf, 1, 5) == inf
        assert math.isnan(one(fma, inf, 0, 1)) and one(fma, 2, 3, -inf) == -inf
    assert math.isnan(one(single.fma, inf, 0, 1)) and one(single.fma, 2, 3, -inf) == -inf


def test_a_double_fma_of_an_overflowing_product_takes_a_finite_or_infinite_addend_right():
    big = np.array([1e200, 1e200, -1e200, 1e200])
    c = np.array([-np.inf, 1.0, np.inf, -1e308])
    got = double.fma("rn")(big, np.full(4, 1e200), c)
    np.testing.assert_array_equal(got, [-np.inf, np.inf, np.inf, np.inf])
    down = double.fma("rz")(big, np.full(4, 1e200), c)
    top = np.finfo(np.float64).max
    np.testing.assert_array_equal(down, [-np.inf, top, np.inf, top])


def test_maximum_and_minimum_prefer_numbers_and_order_zeros():
    a = np.array([np.nan, 1, np.nan, 0.0, -0.0, -0.0, -np.inf], np.float32)
    b = np.array([1, np.nan, np.nan, -0.0, 0.0, -0.0, np.inf], np.float32)
    up, down = single.maximum(a, b), single.minimum(a, b)
    assert code(up)[2] == code(down)[2] == 0x7FFFFFFF
    np.testing.assert_array_equal(up[[0, 1, 3, 4, 5, 6]], [1, 1, 0, 0, 0, np.inf])
    assert np.signbit(up[[3, 4, 5]]).tolist() == [False, False, True]
    assert np.signbit(down[[3, 4, 5]]).tolist() == [True, True, True]


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_fma_of_16_bit_formats_rounds_once(name):
    form = {"f16": formats.HALF, "bf16": formats.BF16}[name]
    slow = {"f16": exact.HALF, "bf16": exact.BF16}[name]
    rng = np.random.default_rng(7)
    codes = rng.integers(0, 65536, (3, 1200), dtype=np.uint16)
    a, b, c = (formats.decode(x, form) for x in codes)
    c[::2] = formats.decode(formats.to_format(-(a * b)[::2], form), form)
    finite = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    got = formats.to_format(formats.odd_sum(a * b, c), form)
    for lane in np.flatnonzero(finite):
        operands = (float(a[lane]), float(b[lane]), float(c[lane]))
        assert got[lane] == expect("fma", operands, "rn", slow)


@pytest.mark.parametrize("form", ["add", "mul"])
def test_half_precision_sums_and_products_are_numpys(form):
    codes = np.arange(65536, dtype=np.uint16)
    x = codes.view(np.float16)
    for other in (0x0001, 0x3C01, 0x8400, 0x7BFF, 0xB555):
        y = np.full(65536, other, np.uint16).view(np.float16)
        a, b = x.astype(np.float64), y.astype(np.float64)
        wide = formats.odd_sum(a, b) if form == "add" else a * b
        got = formats.to_format(wide, formats.HALF)
        expected = x + y if form == "add" else x * y
        numbers = ~np.isnan(expected)
        np.testing.assert_array_equal(got[numbers], expected.view(np.uint16)[numbers])
        assert (got[~numbers] == 0x7FFF).all()
