# SPDX-License-Identifier: Apache-2.0
"""Which kernel serves a spec on a chip, or every reason why none does."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import CufmhaError, DTypeError
from .kernels.catalog import KernelVariant, variants
from .spec import AttentionSpec, Mask


@dataclass(frozen=True, slots=True)
class Support:
    """Truthy if a kernel serves the spec. `reasons` says why not."""

    variant: KernelVariant | None
    reasons: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.variant is not None

    def __str__(self) -> str:
        return str(self.variant) if self.variant else "; ".join(self.reasons)


def select(spec: AttentionSpec, arch: str) -> Support:
    """The kernel for a spec on a chip ("sm_90a", "sm_100a", "sm_103a")."""
    offered = [v for v in variants(arch) if v.operation == "fmha_fwd" and not v.split_kv]
    if not offered:
        return Support(None, (f"there is no kernel for {arch}",))
    wanted = {
        "dtype": spec.dtype.value,
        "causal": spec.mask is not Mask.NONE,
        "strategy": spec.strategy or "",
    }
    fitting = [
        variant
        for variant in offered
        if variant.head_dim >= spec.head_dim
        and variant.head_dim_v >= (spec.head_dim_v or 0)
        and all(getattr(variant, name) == value for name, value in wanted.items())
    ]
    if fitting:
        return Support(min(fitting, key=lambda variant: (variant.head_dim, variant.head_dim_v)))
    reasons = []
    largest = max(variant.head_dim for variant in offered)
    if spec.head_dim > largest:
        reasons.append(f"head_dim: kernels for {arch} go up to {largest}, got {spec.head_dim}")
    for name, value in wanted.items():
        have = sorted({str(getattr(variant, name)) for variant in offered})
        if str(value) not in have:
            reasons.append(f"{name}: kernels for {arch} have {', '.join(have)}, got {value}")
    return Support(None, tuple(reasons) or (f"no kernel for {arch} has this combination",))


def is_supported(spec: AttentionSpec, *, arch: str | None = None) -> Support:
    """Whether a kernel serves the spec.

    Parameters
    ----------
    spec : AttentionSpec
    arch : str, optional
        A chip; that of the device in use if left out.
    """
    if not isinstance(spec, AttentionSpec):
        raise DTypeError(f"spec: must be AttentionSpec, got {type(spec).__name__}")
    if arch is None:
        from .device import current_arch

        try:
            arch = current_arch()
        except CufmhaError as error:
            return Support(None, (str(error),))
    return select(spec, arch)
