# SPDX-License-Identifier: Apache-2.0
"""cvt between every pair of types that attention meets."""

from __future__ import annotations

import numpy as np

from .base import edges, lanewise, likely, random_bits, storage

INTEGERS = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
EVERY_HALF = np.arange(65536, dtype="uint64")[::37]


def floats_near_integers(kind: str, count: int = 512) -> np.ndarray:
    """Halves, integers around every width's limits, and what `edges` holds."""
    limits = [
        0.5,
        1.5,
        2.5,
        -0.5,
        -1.5,
        0.49999997,
        126.5,
        127.5,
        128,
        255.5,
        256,
        32767.5,
        65535.5,
    ]
    limits += [
        2147483520,
        2147483648,
        4294967040,
        4294967296,
        9.2233715e18,
        9.223372e18,
        1.8446744e19,
    ]
    values = np.array(limits + [-x for x in limits], np.float32)
    if kind == "f32":
        bits = values.view(np.uint32).astype(np.uint64)
    elif kind == "f64":
        bits = values.astype(np.float64).view(np.uint64)
    elif kind == "f16":
        with np.errstate(over="ignore"):
            bits = values.astype(np.float16).view(np.uint16).astype(np.uint64)
    else:
        bits = (values.view(np.uint32) >> 16).astype(np.uint64)
    start = np.concatenate([bits, edges(kind)])
    return np.concatenate([start, likely(kind, count - len(start), 3)]).astype(storage(kind))


def float_to_integer():
    for kind in ("f16", "f32", "f64"):
        for mode in ("rni", "rzi", "rmi", "rpi"):
            for target in INTEGERS:
                yield lanewise(
                    f"cvt.{mode}.{target}.{kind}",
                    [target],
                    [kind],
                    values=[floats_near_integers(kind, 192)],
                )
    yield lanewise("cvt.rzi.ftz.s32.f32", ["s32"], ["f32"], values=[floats_near_integers("f32")])
    yield lanewise("cvt.rzi.s32.bf16", ["s32"], ["bf16"], values=[floats_near_integers("bf16")])


def integer_to_float():
    for kind in INTEGERS:
        for target in ("f16", "f32", "f64"):
            yield lanewise(f"cvt.rn.{target}.{kind}", [target], [kind], count=128)
    for mode in ("rz", "rm", "rp"):
        for kind in ("u32", "s64"):
            yield lanewise(f"cvt.{mode}.f32.{kind}", ["f32"], [kind], count=128)
    yield lanewise("cvt.rn.bf16.s32", ["bf16"], ["s32"], count=128)
    yield lanewise("cvt.rn.sat.f32.s32", ["f32"], ["s32"], count=128)


def float_to_float():
    for mode in ("rn", "rz", "rm", "rp"):
        yield lanewise(f"cvt.{mode}.f32.f64", ["f32"], ["f64"])
        yield lanewise(f"cvt.{mode}.f16.f32", ["f16"], ["f32"])
        yield lanewise(f"cvt.{mode}.f16.f64", ["f16"], ["f64"])
    for form in ("cvt.rn.ftz.f16.f32", "cvt.rn.sat.f16.f32", "cvt.rn.relu.f16.f32"):
        yield lanewise(form, ["f16"], ["f32"])
    for form in ("cvt.rn.bf16.f32", "cvt.rz.bf16.f32", "cvt.rn.relu.bf16.f32"):
        yield lanewise(form, ["bf16"], ["f32"])
    every = EVERY_HALF.astype("uint16")
    yield lanewise("cvt.f32.f16", ["f32"], ["f16"], values=[every])
    yield lanewise("cvt.ftz.f32.f16", ["f32"], ["f16"], values=[every])
    yield lanewise("cvt.f64.f16", ["f64"], ["f16"], values=[every[::4]])
    yield lanewise("cvt.f32.bf16", ["f32"], ["bf16"], values=[every])
    yield lanewise("cvt.f64.f32", ["f64"], ["f32"])
    for mode in ("rni", "rzi", "rmi", "rpi"):
        for kind in ("f16", "f32", "f64"):
            values = floats_near_integers(kind, 192)
            yield lanewise(f"cvt.{mode}.{kind}.{kind}", [kind], [kind], values=[values])
    yield lanewise("cvt.sat.f32.f32", ["f32"], ["f32"])
    yield lanewise("cvt.ftz.f32.f32", ["f32"], ["f32"])


def pairs():
    for mode in ("rn", "rz", "rn.relu", "rz.relu"):
        for kind in ("f16x2", "bf16x2"):
            yield lanewise(f"cvt.{mode}.{kind}.f32", [kind], ["f32", "f32"])
    for kind in ("e4m3x2", "e5m2x2"):
        for relu in ("", ".relu"):
            yield lanewise(f"cvt.rn.satfinite{relu}.{kind}.f32", [kind], ["f32", "f32"], count=1024)
            yield lanewise(f"cvt.rn.satfinite{relu}.{kind}.f16x2", [kind], ["f16x2"])
            codes = random_bits(256, 2).astype("uint16")
            codes[:256] = np.arange(256) * 257
            yield lanewise(f"cvt.rn{relu}.f16x2.{kind}", ["f16x2"], [kind], values=[codes])
    yield lanewise("cvt.rna.tf32.f32", ["tf32"], ["f32"])
    yield lanewise("cvt.rn.tf32.f32", ["tf32"], ["f32"])
    yield lanewise("cvt.rz.tf32.f32", ["tf32"], ["f32"])
    yield lanewise("cvt.rn.relu.tf32.f32", ["tf32"], ["f32"])


def holds(target: str, source: str) -> bool:
    """Whether every value of `source` fits in `target`."""
    wider = int(target[1:]) > int(source[1:])
    return (wider and not (source[0] == "s" and target[0] == "u")) or (
        target[0] == source[0] and int(target[1:]) >= int(source[1:])
    )


def between_integers():
    for source in INTEGERS:
        for target in INTEGERS:
            if source != target:
                yield lanewise(f"cvt.{target}.{source}", [target], [source], count=64)
            if source != target and not holds(target, source):  # else .sat is refused
                yield lanewise(f"cvt.sat.{target}.{source}", [target], [source], count=64)
    for form in ("cvt.pack.sat.u16.s32", "cvt.pack.sat.s16.s32"):
        yield lanewise(f"{form}", ["b32"], ["s32", "s32"], count=256)
    yield lanewise("cvt.pack.sat.u8.s32.b32", ["b32"], ["s32", "s32", "b32"], count=256)


PROBES = [
    *float_to_integer(),
    *integer_to_float(),
    *float_to_float(),
    *pairs(),
    *between_integers(),
]
