# SPDX-License-Identifier: Apache-2.0
"""Approximate functions, with the error that the PTX ISA documents for each.

The answers are recorded whole, so that the emulator can be compared more closely than the bound.
"""

from __future__ import annotations

import numpy as np

from .base import edges, lanewise, random_bits

ULP = 2.0**-23


def spread(low: float, high: float, count: int, seed: int) -> np.ndarray:
    """float32 bits spread evenly over [low, high)."""
    unit = (random_bits(count, seed) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return (low + (high - low) * unit).astype(np.float32).view(np.uint32)


def single(
    form: str, low: float, high: float, *, relative=0.0, absolute=0.0, count: int = 1024, note=""
):
    special = edges("f32").astype(np.uint32)
    values = np.concatenate([special, spread(low, high, count - len(special), 21)])
    return lanewise(
        form,
        ["f32"],
        ["f32"],
        values=[values],
        relative=relative,
        absolute=absolute,
        note=note,
    )


def functions():
    for ftz in ("", ".ftz"):
        yield single(f"ex2.approx{ftz}.f32", -140, 130, relative=2.0**-22, absolute=2.0**-149)
        yield single(f"lg2.approx{ftz}.f32", 0, 100, relative=2.0**-22, absolute=2.0**-22)
        yield single(f"rcp.approx{ftz}.f32", -1000, 1000, relative=ULP)
        yield single(f"rsqrt.approx{ftz}.f32", 0, 1000, relative=2.0**-22.4)
        yield single(f"sqrt.approx{ftz}.f32", 0, 1000, relative=2.0**-23 * 1.01)
        yield single(f"sin.approx{ftz}.f32", -3.1, 3.1, absolute=2.0**-20.5)
        yield single(f"cos.approx{ftz}.f32", -3.1, 3.1, absolute=2.0**-20.5)
    yield single("tanh.approx.f32", -5, 5, relative=2.0**-10.987, absolute=2.0**-30)
    yield single(
        "ex2.approx.ftz.f32", -1, 0, relative=2.0**-22, count=4096, note="between -1 and 0"
    )
    for ftz in ("", ".ftz"):
        yield lanewise(
            f"div.approx{ftz}.f32", ["f32"], ["f32"] * 2, relative=2 * ULP, absolute=2.0**-125
        )
        yield lanewise(
            f"div.full{ftz}.f32", ["f32"], ["f32"] * 2, relative=2 * ULP, absolute=2.0**-125
        )


def halves():
    every = np.arange(0, 65536, 17, dtype="uint64").astype("uint16")
    for form, kind, relative in (
        ("ex2.approx.f16", "f16", 2.0**-9.9),
        ("ex2.approx.ftz.bf16", "bf16", 2.0**-7),
        ("tanh.approx.f16", "f16", 2.0**-9.987),
        ("tanh.approx.bf16", "bf16", 2.0**-7),
    ):
        yield lanewise(form, [kind], [kind], values=[every], relative=relative, absolute=2.0**-24)
    twice = every.astype("uint32") << np.uint32(16) | every[::-1].astype("uint32")
    for form, kind, relative in (
        ("ex2.approx.f16x2", "f16x2", 2.0**-9.9),
        ("ex2.approx.ftz.bf16x2", "bf16x2", 2.0**-7),
        ("tanh.approx.f16x2", "f16x2", 2.0**-9.987),
        ("tanh.approx.bf16x2", "bf16x2", 2.0**-7),
    ):
        yield lanewise(
            form, [kind], [kind], values=[twice[::2]], relative=relative, absolute=2.0**-24
        )


def doubles():
    yield lanewise("rcp.approx.ftz.f64", ["f64"], ["f64"], count=256, relative=2.0**-19)
    yield lanewise("rsqrt.approx.f64", ["f64"], ["f64"], count=256, relative=2.0**-19)


PROBES = [*functions(), *halves(), *doubles()]
