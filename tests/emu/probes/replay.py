# SPDX-License-Identifier: Apache-2.0
"""Runs a probe on the emulator and compares with what a card answered."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from cufmha.emu import Module
from cufmha.errors import CufmhaError

from . import family
from .base import Descriptor, Output, Probe


def emulate(probe: Probe, *, seed: int = 0) -> list[np.ndarray]:
    """The outputs, in the order of the arguments."""
    arrays = [x.fresh() if isinstance(x, Output) else x for x in probe.arguments]
    arguments = [(x.spec, arrays[x.of]) if isinstance(x, Descriptor) else x for x in arrays]
    Module(probe.text, arch="sm_90a", seed=seed).launch(
        "probe",
        grid=(probe.grid, 1, 1),
        block=(probe.block, 1, 1),
        args=arguments,
        cluster=(probe.cluster, 1, 1),
        dynamic_smem_bytes=probe.shared_bytes,
    )
    return [a for a, x in zip(arrays, probe.arguments, strict=True) if isinstance(x, Output)]


def difference(probe: Probe, got: np.ndarray, card: np.ndarray, dtype: str) -> str:
    """What differs beyond the probe's tolerance, or an empty string."""
    if got.shape != card.shape:
        return f"shape {got.shape}, card {card.shape}"
    wrong = got != card
    if probe.relative or probe.absolute:
        a, b = values(got, dtype), values(card, dtype)
        if a.size != got.size:  # several values packed in one word
            part = f"u{got.itemsize * got.size // a.size}"
            got, card = got.view(part), card.view(part)
            a, b, wrong = a.reshape(got.shape), b.reshape(got.shape), got != card
        with np.errstate(invalid="ignore"):
            close = np.abs(a - b) <= probe.relative * np.abs(b) + probe.absolute
        wrong &= ~(close | (np.isnan(a) & np.isnan(b)) | (a == b))
    if not wrong.any():
        return ""
    where = tuple(int(i) for i in np.argwhere(wrong)[0])
    return (
        f"{int(wrong.sum())} of {wrong.size} differ, first at {where}: "
        f"{int(got[where]):#x}, card {int(card[where]):#x}"
    )


def values(bits: np.ndarray, dtype: str) -> np.ndarray:
    """Bits as float64 by the name of the float format they hold."""
    if dtype == "bf16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    if dtype in ("f16x2", "bf16x2"):
        return values(np.ascontiguousarray(bits).view(np.uint16), dtype[:-2]).reshape(
            *bits.shape, 2
        )
    kind = {"f16": np.float16, "f32": np.float32, "f64": np.float64}[dtype]
    return np.ascontiguousarray(bits).view(kind).astype(np.float64)


def float_kind(probe: Probe) -> str:
    """The format of an approximate answer: the first float type in the instruction's name."""
    parts = probe.name.split()[0].split(".")
    known = ("f16x2", "bf16x2", "f16", "bf16", "f32", "f64")
    return next((part for part in parts if part in known), "f32")


def differences(
    name: str, folder: Path, run: Callable[[Probe], list[np.ndarray]] = emulate
) -> list[str]:
    """One line per probe of the family whose answer by `run` is not the recorded one."""
    lines = []
    with np.load(folder / f"{name}.npz") as answers:
        for probe in family(name):
            if f"{probe.name}|0" not in answers:
                lines.append(f"{name}: {probe.name}: no answer recorded")
                continue
            try:
                results = run(probe)
            except (CufmhaError, RuntimeError) as error:
                lines.append(f"{name}: {probe.name}: {type(error).__name__}: {error}")
                continue
            for number, got in enumerate(results):
                text = difference(probe, got, answers[f"{probe.name}|{number}"], float_kind(probe))
                if text:
                    lines.append(f"{name}: {probe.name}: {text}")
    return lines
