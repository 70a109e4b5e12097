# SPDX-License-Identifier: Apache-2.0
"""Fused multi-head attention from hand-maintained PTX, on a card or on the built-in emulator."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .array.dtype import DType as DType
    from .device import use_device as use_device
    from .functional import attention as attention
    from .functional import attention_varlen as attention_varlen
    from .kernels.catalog import KernelVariant as KernelVariant
    from .kernels.catalog import variants as list_kernels  # noqa: F401
    from .memory import PaddedArray as PaddedArray
    from .memory import empty as empty
    from .packed import PackedShape as PackedShape
    from .planning import BoundLaunch as BoundLaunch
    from .planning import Plan as Plan
    from .planning import plan as plan
    from .select import Support as Support
    from .select import is_supported as is_supported
    from .spec import AttentionSpec as AttentionSpec
    from .spec import Mask as Mask
    from .spec import ProblemShape as ProblemShape
    from .varlen import VarlenBoundLaunch as VarlenBoundLaunch
    from .varlen import VarlenPlan as VarlenPlan

__version__ = "0.1.0"

# Resolved on first use, so that the import loads no array library and no driver.
_PUBLIC = {
    "AttentionSpec": ("spec", "AttentionSpec"),
    "BoundLaunch": ("planning", "BoundLaunch"),
    "DType": ("array.dtype", "DType"),
    "KernelVariant": ("kernels.catalog", "KernelVariant"),
    "Mask": ("spec", "Mask"),
    "PaddedArray": ("memory", "PaddedArray"),
    "PackedShape": ("packed", "PackedShape"),
    "Plan": ("planning", "Plan"),
    "ProblemShape": ("spec", "ProblemShape"),
    "Support": ("select", "Support"),
    "VarlenBoundLaunch": ("varlen", "VarlenBoundLaunch"),
    "VarlenPlan": ("varlen", "VarlenPlan"),
    "attention": ("functional", "attention"),
    "attention_varlen": ("functional", "attention_varlen"),
    "empty": ("memory", "empty"),
    "is_supported": ("select", "is_supported"),
    "list_kernels": ("kernels.catalog", "variants"),
    "plan": ("planning", "plan"),
    "use_device": ("device", "use_device"),
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    if name == "memory":
        return import_module(".memory", __name__)
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _PUBLIC[name]
    value = getattr(import_module(f".{module}", __name__), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC, "memory"})
