# SPDX-License-Identifier: Apache-2.0
"""Arrays with readable memory in front of them, at the price of one page: docs/memory.md."""

from __future__ import annotations

from .array import PaddedArray, empty
from .cupy_pool import guarded, pool
from .registry import guard_bytes

__all__ = ["PaddedArray", "empty", "guard_bytes", "guarded", "pool"]
