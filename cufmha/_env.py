# SPDX-License-Identifier: Apache-2.0
"""Every environment variable that the package reads, in one place."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Variable:
    name: str
    default: str
    meaning: str

    def get(self) -> str | None:
        """The value, or None where it is unset or empty."""
        return os.environ.get(self.name) or None


DEVICE = Variable(
    "CUFMHA_DEVICE", "cuda", '"cuda", "emulator" or "emulator:sm_100a": the device used by default'
)
CACHE_DIR = Variable(
    "CUFMHA_CACHE_DIR", "the user's cache folder", "where assembled kernels are kept"
)
KERNEL_DIR = Variable(
    "CUFMHA_KERNEL_DIR", "", "a folder written by `python -m cufmha build`, taken before all else"
)
PTXAS = Variable("CUFMHA_PTXAS", "found on its own", "the ptxas to assemble with")
VARIABLES = (DEVICE, CACHE_DIR, KERNEL_DIR, PTXAS)


def cache_dir() -> Path:
    """The cache folder; it need not exist yet."""
    given = CACHE_DIR.get()
    if given:
        return Path(given)
    import platformdirs

    return Path(platformdirs.user_cache_dir("cufmha"))


def kernel_dir() -> Path | None:
    given = KERNEL_DIR.get()
    return Path(given) if given else None
