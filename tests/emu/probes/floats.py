# SPDX-License-Identifier: Apache-2.0
"""Floating arithmetic bit for bit: roundings, flushes, saturation, NaN results."""

from __future__ import annotations

from .base import lanewise

ROUNDINGS = ("rn", "rz", "rm", "rp")


def single():
    for mode in ROUNDINGS:
        for suffix in ("", ".ftz", ".sat", ".ftz.sat"):
            for form in ("add", "sub", "mul"):
                yield lanewise(f"{form}.{mode}{suffix}.f32", ["f32"], ["f32"] * 2)
            yield lanewise(f"fma.{mode}{suffix}.f32", ["f32"], ["f32"] * 3, count=1024)
    for form in ("add.f32", "mul.f32"):
        yield lanewise(form, ["f32"], ["f32"] * 2)
    for mode in ROUNDINGS:
        for suffix in ("", ".ftz"):
            yield lanewise(f"div.{mode}{suffix}.f32", ["f32"], ["f32"] * 2)
            yield lanewise(f"rcp.{mode}{suffix}.f32", ["f32"], ["f32"], count=256)
            yield lanewise(f"sqrt.{mode}{suffix}.f32", ["f32"], ["f32"], count=256)


def double():
    for mode in ROUNDINGS:
        for form in ("add", "sub", "mul", "div"):
            yield lanewise(f"{form}.{mode}.f64", ["f64"], ["f64"] * 2, count=384)
        yield lanewise(f"fma.{mode}.f64", ["f64"], ["f64"] * 3)
        yield lanewise(f"rcp.{mode}.f64", ["f64"], ["f64"], count=128)
        yield lanewise(f"sqrt.{mode}.f64", ["f64"], ["f64"], count=128)


def half():
    for kind in ("f16", "f16x2"):
        for form in ("add", "sub", "mul"):
            for suffix in ("", ".ftz", ".sat", ".ftz.sat"):
                yield lanewise(f"{form}.rn{suffix}.{kind}", [kind], [kind] * 2)
        for suffix in ("", ".ftz", ".sat", ".ftz.sat", ".relu", ".ftz.relu"):
            yield lanewise(f"fma.rn{suffix}.{kind}", [kind], [kind] * 3)
    for kind in ("bf16", "bf16x2"):
        for form in ("add", "sub", "mul"):
            yield lanewise(f"{form}.rn.{kind}", [kind], [kind] * 2)
        for suffix in ("", ".relu"):
            yield lanewise(f"fma.rn{suffix}.{kind}", [kind], [kind] * 3)
    for form in ("fma.rn.oob.f16", "fma.rn.oob.relu.bf16x2"):
        kind = form.rsplit(".", 1)[1]
        yield lanewise(form, [kind], [kind] * 3)


def extremes():
    for form in ("min", "max"):
        for suffix in ("", ".ftz", ".NaN", ".ftz.NaN", ".xorsign.abs", ".NaN.xorsign.abs"):
            yield lanewise(f"{form}{suffix}.f32", ["f32"], ["f32"] * 2)
        yield lanewise(f"{form}.f64", ["f64"], ["f64"] * 2)
        for kind in ("f16", "f16x2"):
            for suffix in ("", ".ftz", ".NaN", ".NaN.xorsign.abs"):
                yield lanewise(f"{form}{suffix}.{kind}", [kind], [kind] * 2)
        for kind in ("bf16", "bf16x2"):
            for suffix in ("", ".NaN", ".NaN.xorsign.abs"):
                yield lanewise(f"{form}{suffix}.{kind}", [kind], [kind] * 2)


def signs():
    for form in ("abs", "neg"):
        for kind in ("f16", "f16x2", "bf16", "bf16x2", "f32", "f64", "ftz.f32", "ftz.f16"):
            yield lanewise(f"{form}.{kind}", [kind[4:] if "ftz" in kind else kind],
                           [kind[4:] if "ftz" in kind else kind], count=64)  # fmt: skip


PROBES = [*single(), *double(), *half(), *extremes(), *signs()]
