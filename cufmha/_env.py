# SPDX-License-Identifier: Apache-2.0
"""Every environment variable of the package, and nowhere else."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from .errors import ArgumentError

VARIABLES: Final = {
    "CUFMHA_DEVICE": 'where kernels run: "cuda" (default) or "emulator"',
    "CUFMHA_ARCH": 'chip to emulate: "sm_90a", "sm_100a" (default) or "sm_103a"',
    "CUFMHA_PROCESSORS": "processors of the emulated chip, which bound the grid (default 4)",
    "CUFMHA_SEED": "order of asynchronous work on the emulated chip (default 0)",
    "CUFMHA_CACHE_DIR": "folder of assembled kernels, in place of the user's cache folder",
    "CUFMHA_KERNEL_DIR": "folder written by `python -m cufmha build`: load from there only",
    "CUFMHA_PTXAS": "the ptxas to assemble with, in place of one that is found",
}


def device() -> str:
    """CUFMHA_DEVICE."""
    return _choice("CUFMHA_DEVICE", ("cuda", "emulator"), "cuda")


def arch() -> str:
    """CUFMHA_ARCH."""
    return _choice("CUFMHA_ARCH", ("sm_90a", "sm_100a", "sm_103a"), "sm_100a")


def processors() -> int:
    """CUFMHA_PROCESSORS."""
    return _number("CUFMHA_PROCESSORS", 4, least=1)


def seed() -> int:
    """CUFMHA_SEED."""
    return _number("CUFMHA_SEED", 0, least=0)


def cache_dir() -> Path | None:
    """CUFMHA_CACHE_DIR."""
    return _path("CUFMHA_CACHE_DIR")


def kernel_dir() -> Path | None:
    """CUFMHA_KERNEL_DIR."""
    return _path("CUFMHA_KERNEL_DIR")


def ptxas() -> Path | None:
    """CUFMHA_PTXAS."""
    return _path("CUFMHA_PTXAS")


def _choice(name: str, allowed: tuple[str, ...], default: str) -> str:
    value = os.environ.get(name) or default
    if value not in allowed:
        raise ArgumentError(f"{name}: must be one of {', '.join(allowed)}, got {value!r}")
    return value


def _number(name: str, default: int, *, least: int) -> int:
    text = os.environ.get(name) or str(default)
    if not text.isdecimal() or int(text) < least:
        raise ArgumentError(f"{name}: must be a whole number of at least {least}, got {text!r}")
    return int(text)


def _path(name: str) -> Path | None:
    text = os.environ.get(name)
    return Path(text) if text else None
