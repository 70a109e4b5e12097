# SPDX-License-Identifier: Apache-2.0
"""An emulator of PTX for sm_90a, sm_100a and sm_103a on NumPy, stricter than the hardware."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .module import Module as Module

__all__ = ["Module"]


def __getattr__(name: str) -> Any:
    if name == "Module":
        from .module import Module

        return Module
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
