# SPDX-License-Identifier: Apache-2.0
"""Fused multi-head attention from hand-maintained PTX, on a card or on the built-in emulator."""

from __future__ import annotations

__version__ = "0.1.0"
