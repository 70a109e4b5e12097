# SPDX-License-Identifier: Apache-2.0
"""Lane-wise instructions that no recorded answer covers: Blackwell's, and the rarer forms."""

from __future__ import annotations

import numpy as np
import pytest
from probes.base import Output, lanewise, likely, operands
from snippets import run

from cufmha.emu import Module
from cufmha.emu.numerics import double, formats, single
from cufmha.errors import IllegalInstruction, UnsupportedTarget

MODES = ("rn", "rz", "rm", "rp")


@pytest.fixture(autouse=True, scope="module")
def _as_in_the_machine():
    with np.errstate(all="ignore"):
        yield


def answers(form, results, sources, values, *, template=None, arch="sm_100a"):
    """What the instruction gives for each lane of `values` (bits), one array per result."""
    probe = lanewise(form, results, sources, values=values, template=template)
    text = probe.text.replace(".target sm_90a", ".target sm_100f").replace("8.6", "8.8")
    arrays = [x.fresh() if isinstance(x, Output) else x for x in probe.arguments]
    Module(text, arch=arch).launch("probe", grid=(1, 1, 1), block=(probe.block, 1, 1), args=arrays)
    found = [a for a, x in zip(arrays, probe.arguments, strict=True) if isinstance(x, Output)]
    return found[0] if len(found) == 1 else found


def singles(bits: np.ndarray) -> np.ndarray:
    return bits.view(np.float32)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("form", "count"), [("add", 2), ("sub", 2), ("mul", 2), ("fma", 3)])
@pytest.mark.parametrize("ftz", ["", ".ftz"])
def test_packed_singles_are_two_singles(form, count, mode, ftz):
    words = operands(["f32x2"] * count, 128, 5)
    got = answers(f"{form}.{mode}{ftz}.f32x2", ["f32x2"], ["f32x2"] * count, words)
    for half in (0, 1):
        parts = [np.ascontiguousarray(w.view(np.uint32)[half::2]) for w in words]
        one = answers(f"{form}.{mode}{ftz}.f32", ["f32"], ["f32"] * count, parts)
        np.testing.assert_array_equal(got.view(np.uint32)[half::2], one)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_mixed_precision_arithmetic_widens_and_computes_in_single(kind, mode):
    form = formats.HALF if kind == "f16" else formats.BF16
    a, b, c = operands([kind, kind, "f32"], 128, 6)
    x, y = (formats.decode(v, form).astype(np.float32) for v in (a, b))
    z = singles(c)
    for name, template, expected in (
        (f"fma.{mode}.f32.{kind}", "{d0}, {a}, {b}, {c};", single.rounded("fma", mode)(x, y, z)),
        (f"add.{mode}.f32.{kind}", "{d0}, {a}, {c};", single.rounded("add", mode)(x, z)),
        (f"sub.{mode}.f32.{kind}", "{d0}, {a}, {c};", single.rounded("sub", mode)(x, z)),
    ):
        got = answers(name, ["f32"], [kind, kind, "f32"], [a, b, c], template=f"{name} {template}")
        np.testing.assert_array_equal(got, expected.view(np.uint32))


def test_three_inputs_give_the_extreme_of_the_numbers_or_any_nan_or_magnitudes():
    nan = np.float32(np.nan)
    a = np.array([1, nan, nan, -5, -0.0, nan], np.float32)
    b = np.array([2, 7, nan, 4, 0.0, nan], np.float32)
    c = np.array([-3, 1, 2, nan, -0.0, nan], np.float32)
    bits = [x.view(np.uint32) for x in (a, b, c)]

    def three(form):
        got = answers(form, ["f32"], ["f32"] * 3, bits)[: len(a)]
        assert not np.isnan(singles(got)).any() or (got[np.isnan(singles(got))] == 0x7FFFFFFF).all()
        return singles(got)

    np.testing.assert_array_equal(three("max.f32"), [2, 7, 2, 4, 0, nan])
    np.testing.assert_array_equal(three("min.f32"), [-3, 1, 2, -5, -0.0, nan])
    np.testing.assert_array_equal(three("max.NaN.f32"), [2, nan, nan, nan, 0, nan])
    np.testing.assert_array_equal(three("max.abs.f32"), [3, 7, 2, 5, 0, nan])
    np.testing.assert_array_equal(three("min.NaN.abs.f32"), [1, nan, nan, nan, 0, nan])
    assert not np.signbit(three("max.f32")[4]) and np.signbit(three("min.f32")[4])


@pytest.mark.parametrize(
    "statement",
    [
        "fma.rn.f32x2 %d0, %d1, %d1, %d1;",
        "fma.rn.f32.bf16 %r0, %h1, %h1, %r1;",
        "max.f32 %r0, %r1, %r1, %r1;",
    ],
)
def test_what_hopper_lacks_is_refused_there(statement):
    body = f".reg .b16 %h<2>; mov.b32 %r1, 0; mov.b64 %d1, 0; mov.b16 %h1, 0; {statement}"
    run(body, arch="sm_100a")
    with pytest.raises(UnsupportedTarget, match="sm_100"):
        run(body, arch="sm_90a")


@pytest.mark.parametrize(
    ("form", "source", "misuse"),
    [
        ("max.abs.f32", "f32", "{d0}, {a}, {b};"),
        ("max.xorsign.abs.f32", "f32", "{d0}, {a}, {b}, {b};"),
    ],
)
def test_magnitudes_and_sign_products_need_their_number_of_inputs(form, source, misuse):
    values = [np.zeros(128, np.uint32)] * 2
    with pytest.raises(IllegalInstruction, match="inputs"):
        answers(form, ["f32"], [source] * 2, values, template=f"{form} {misuse}")


@pytest.mark.parametrize(
    ("form", "result", "largest", "missing"),
    [
        ("cvt.rn.satfinite.f16.f32", "f16", 0x7BFF, 0x7FFF),
        ("cvt.rz.relu.satfinite.f16.f32", "f16", 0x7BFF, 0x7FFF),
        ("cvt.rn.satfinite.bf16.f32", "bf16", 0x7F7F, 0x7FFF),
        ("cvt.rna.satfinite.tf32.f32", "tf32", 0x7F7FE000, None),
    ],
)
def test_satfinite_keeps_overflow_finite(form, result, largest, missing):
    x = np.array([1.0, np.inf, -np.inf, 3.4028e38, -3.4028e38, np.nan], np.float32)
    got = answers(form, [result], ["f32"], [x.view(np.uint32)])
    sign = 0x80000000 if result == "tf32" else 0x8000
    low = 0 if "relu" in form else largest | sign
    assert got[[1, 2, 3, 4]].tolist() == [largest, low, largest, low]
    if missing is not None:
        assert got[5] == missing


@pytest.mark.parametrize(
    ("form", "kind", "yes"),
    [
        ("set.lt.f16.f16", "f16", 0x3C00),
        ("set.lt.u16.f16", "f16", 0xFFFF),
        ("set.lt.bf16.bf16", "bf16", 0x3F80),
        ("set.lt.f32.f64", "f64", 0x3F800000),
        ("set.lt.s32.s64", "s64", 0xFFFFFFFF),
    ],
)
def test_set_writes_ones_of_its_type(form, kind, yes):
    one = {"f16": 0x3C00, "bf16": 0x3F80, "f64": 0x3FF << 52, "s64": 1}[kind]
    a = np.array([0, one, one], f"uint{64 if '64' in kind else 16}")
    b = np.array([one, one, 0], a.dtype)
    result = form.split(".")[2]
    assert answers(form, [result], [kind] * 2, [a, b])[:3].tolist() == [yes, 0, 0]


@pytest.mark.parametrize(("result", "yes"), [("f16x2", 0x3C00), ("u32", 0xFFFF)])
def test_set_of_pairs_answers_for_each_half(result, yes):
    a = np.array([0x3C000000, 0x00003C00], np.uint32)
    b = np.array([0x00003C00, 0x3C000000], np.uint32)
    got = answers(f"set.lt.{result}.f16x2", [result], ["f16x2"] * 2, [a, b])
    assert got[:2].tolist() == [yes, yes << 16]


@pytest.mark.parametrize("size", [16, 32, 64])
def test_signed_division_goes_toward_zero_with_the_remainder_of_the_dividend_sign(size):
    a = likely(f"s{size}", 128, 1).astype(f"uint{size}").view(f"int{size}")
    b = likely(f"s{size}", 128, 2).astype(f"uint{size}").view(f"int{size}") >> (size // 2 - 2)
    b = np.where(b == 0, 3, b).astype(a.dtype)
    a[:4], b[:4] = [7, -7, 7, -7], [2, 2, -2, -2]
    bits = [x.view(f"uint{size}") for x in (a, b)]
    quotient = answers(f"div.s{size}", [f"s{size}"], [f"s{size}"] * 2, bits).view(a.dtype)
    rest = answers(f"rem.s{size}", [f"s{size}"], [f"s{size}"] * 2, bits).view(a.dtype)
    for x, y, q, r in zip(*[v.tolist() for v in (a, b, quotient, rest)], strict=True):
        expected = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
        assert (q, r) == (expected, x - expected * y)


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32", "u64", "s64"])
def test_upper_halves_of_products_are_those_of_whole_numbers(kind):
    size = int(kind[1:])
    a, b = (likely(kind, 128, seed).astype(f"uint{size}") for seed in (3, 4))
    got = answers(f"mul.hi.{kind}", [kind], [kind] * 2, [a, b])
    part = f"{'int' if kind[0] == 's' else 'uint'}{size}"
    for x, y, h in zip(a.view(part).tolist(), b.view(part).tolist(), got.tolist(), strict=True):
        assert h == (x * y >> size) % 2**size


def test_wide_additions_carry_through_four_words():
    rng = np.random.default_rng(9)
    a, b = (rng.integers(0, 2**32, (4, 128), dtype=np.uint32) for _ in range(2))
    a[:, 0], b[:, 0] = 0xFFFFFFFF, [1, 0, 0, 0]
    a[:, 1], b[:, 1] = 0, [1, 0, 0, 0]
    for first, middle, last, sign in (
        ("add.cc", "addc.cc", "addc", 1),
        ("sub.cc", "subc.cc", "subc", -1),
    ):
        names = [first, middle, middle, last]
        template = "\n    ".join(
            f"{name}.u32 {{d{i}}}, {{{'abcd'[i]}}}, {{{'efgh'[i]}}};"
            for i, name in enumerate(names)
        )
        words = answers(first, ["u32"] * 4, ["u32"] * 8, [*a, *b], template=template)
        for lane in range(128):
            x, y, got = (
                sum(int(w[lane]) << 32 * i for i, w in enumerate(v)) for v in (a, b, words)
            )
            assert got == (x + sign * y) % 2**128


def test_converting_64_bit_integers_rounds_once_in_every_mode():
    x = np.array([2**63 - 1, 2**53 + 1, 2**54 + 2, 2**24 + 1, 2**40 + 2**15 + 1, 2**62 + 2**37 + 1,
                  -(2**63), -(2**53) - 1, -(2**40) - 2**15 - 1], np.int64)  # fmt: skip
    for mode in MODES:
        got = answers(f"cvt.{mode}.f32.s64", ["f32"], ["s64"], [x.view(np.uint64)])
        wide = answers(f"cvt.{mode}.f64.s64", ["f64"], ["s64"], [x.view(np.uint64)])
        for value, small, large in zip(
            x.tolist(), singles(got), wide.view(np.float64), strict=False
        ):
            for result in (float(small), float(large)):
                if mode in ("rz", "rm", "rp"):
                    above = int(result) > value
                    assert int(result) == value or above == (
                        mode == "rp" or (mode == "rz" and value < 0)
                    )
    assert double.round_fraction(2**53 + 1, "rp") == 2**53 + 2
