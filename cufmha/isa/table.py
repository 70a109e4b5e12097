# SPDX-License-Identifier: Apache-2.0
"""The instruction table: forms with modifiers and operand counts, and what each feature needs.

ptxas takes modifiers in any order, so a form is a list of groups, of which each modifier fills one;
only types keep their order, as equal groups fill from left to right.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from . import nodes
from .targets import Need

# ------------------------------------------------------------------------------- features


@dataclass(frozen=True, slots=True)
class Feature:
    """Instructions whose full name matches `pattern` (and operand count) need `need`."""

    pattern: re.Pattern[str]
    need: Need
    operands: int | None


def _feature(pattern: str, version: str, targets: str, operands: int | None = None) -> Feature:
    major, minor = version.split(".")
    return Feature(
        re.compile(pattern), Need((int(major), int(minor)), tuple(targets.split())), operands
    )


_END = r"(?:\.|$)"
_TCGEN05 = "100f 110f"
_ALL_ARCH = "90a 100f 110f 120f"
_NEW_ARCH = "100f 110f 120f"

# By opcode, "*" for all; every feature that matches counts, and the first failure is reported.
FEATURES: dict[str, tuple[Feature, ...]] = {
    "*": (
        _feature(r".*\.shared::cluster", "7.8", "90"),
        _feature(r".*\.shared::cta", "7.8", "80"),
        _feature(r".*\.b128" + _END, "8.3", "70"),
        _feature(r".*\.L2::cache_hint", "7.4", "80"),
        _feature(r".*\.sync_restrict::", "8.6", "90"),
    ),
    "abs": (_feature(r".*\.bf16", "7.0", "80"),),
    "add": (
        _feature(r".*\.f32x2", "8.6", "100"),
        _feature(r".*\.f32\.b?f16", "8.6", "100"),
        _feature(r".*\.bf16", "7.8", "90"),
        _feature(r".*\.[us]16x2", "8.0", "90"),
    ),
    "applypriority": (_feature("", "7.4", "80"),),
    "atom": (
        _feature(r".*\.v[248]" + _END, "8.1", "90"),
        _feature(r".*\.bf16", "7.8", "90"),
        _feature(r".*\.cluster" + _END, "7.8", "90"),
        _feature(r".*\.b128" + _END, "8.3", "90"),
    ),
    "barrier": (
        _feature(r"barrier\.cta", "7.8", "70"),
        _feature(r"barrier\.cluster", "7.8", "90"),
        _feature(r"barrier\.cluster.*\.(release|relaxed|acquire)", "8.0", "90"),
    ),
    "bmsk": (_feature("", "7.6", "70"),),
    "clusterlaunchcontrol": (
        _feature("", "8.6", "100"),
        _feature(r".*\.multicast::cluster::all", "8.6", _NEW_ARCH),
    ),
    "cp": (
        _feature(r"cp\.async", "7.0", "80"),
        _feature(r"cp\.async.*\.L2::\d+B", "7.4", "80"),
        _feature(r"cp\.(reduce\.)?async\.bulk", "8.0", "90"),
        _feature(r"cp\.async\.bulk\..*shared::cta\.global", "8.6", "90"),
        _feature(r".*\.cp_mask", "8.6", "100"),
        _feature(r"cp\..*\.(cta_group::|tile::|im2col::w)", "8.6", _TCGEN05),
    ),
    "createpolicy": (_feature("", "7.4", "80"),),
    "cvt": (
        _feature(r"cvt\..*\.bf16", "7.0", "80"),
        _feature(r"cvt\.[su]\d+\.bf16|cvt\..*\.bf16\.(f16|[su]\d+)$", "7.8", "90"),
        _feature(r".*\.satfinite\.(bf16|f16)x?2?\.f32", "8.1", "80"),
        _feature(r".*\.(e4m3|e5m2)x2", "7.8", "89"),
        _feature(r".*\.(e2m1x2|e2m3x2|e3m2x2|ue8m0x2)", "8.6", _NEW_ARCH),
        _feature(r".*\.rs" + _END, "8.7", "100a 103a"),
        _feature(r".*\.r[nz]\b.*\.tf32", "7.8", "90"),
        _feature(r".*\.r[nz]\.satfinite\.(relu\.)?tf32", "8.6", "100"),
    ),
    "discard": (_feature("", "7.4", "80"),),
    "elect": (_feature("", "8.0", "90"),),
    "ex2": (
        _feature(r".*\.f16", "7.0", "75"),
        _feature(r".*\.bf16", "7.8", "90"),
    ),
    "fence": (
        _feature(r".*\.cluster" + _END, "7.8", "90"),
        _feature(r"fence\.proxy\.async", "8.0", "90"),
        _feature(r"fence\.mbarrier_init", "8.0", "90"),
        _feature(r"fence\.proxy\.tensormap", "8.3", "90"),
    ),
    "fma": (
        _feature(r".*\.f32x2", "8.6", "100"),
        _feature(r".*\.f32\.b?f16", "8.6", "100"),
        _feature(r".*\.bf16", "7.0", "80"),
        _feature(r".*\.oob" + _END, "8.1", "90"),
    ),
    "getctarank": (_feature("", "7.8", "90"),),
    "griddepcontrol": (_feature("", "7.8", "90"),),
    "ld": (
        _feature(r".*\.(v8\.[bsuf]32|v4\.[bsuf]64)", "8.8", "100"),
        _feature(r".*\.cluster" + _END, "7.8", "90"),
        _feature(r".*\.(L1|L2)::", "7.4", "70"),
    ),
    "ldmatrix": (
        _feature("", "6.5", "75"),
        _feature(r".*\.(m16n16|m8n16)", "8.6", _NEW_ARCH),
    ),
    "lop3": (_feature(r"lop3\.(and|or)", "8.2", "70"),),
    "mapa": (_feature("", "7.8", "90"),),
    "max": (
        _feature(r".*\.f32", "8.8", "100", operands=4),
        _feature(r".*\.xorsign.*\.f32", "7.2", "86"),
        _feature(r".*\.[us]16x2", "8.0", "90"),
        _feature(r".*\.relu\.s", "8.0", "90"),
        _feature(r".*\.b?f16", "7.0", "80"),
    ),
    "mbarrier": (
        _feature("", "7.0", "80"),
        _feature(r"mbarrier\.try_wait", "7.8", "90"),
        _feature(r"mbarrier\..*(expect_tx|complete_tx)", "8.0", "90"),
        _feature(r".*\.(acquire|release)\.cluster", "8.0", "90"),
        _feature(r"mbarrier\..*(arrive|wait).*\.relaxed", "8.6", "90"),
        _feature(r"mbarrier\.arrive(_drop)?\.(?!noComplete).*", "7.8", "90", operands=3),
    ),
    "min": (),
    "mma": (
        _feature(r".*\.(bf16|tf32|m16n8k\d+.*\.f16)", "7.0", "80"),
        _feature(r".*\.(e4m3|e5m2)", "8.4", "89"),
        _feature(r".*\.(kind::|e2m1|e3m2|e2m3)", "8.7", "120f"),
    ),
    "movmatrix": (_feature("", "7.8", "75"),),
    "mul": (
        _feature(r".*\.f32x2", "8.6", "100"),
        _feature(r".*\.bf16", "7.8", "90"),
    ),
    "multimem": (_feature("", "8.1", "90"),),
    "neg": (_feature(r".*\.bf16", "7.0", "80"),),
    "prefetch": (
        _feature(r".*\.tensormap", "8.0", "90"),
        _feature(r".*\.L2::evict", "7.4", "80"),
    ),
    "red": (
        _feature(r"red\.async", "8.1", "90"),
        _feature(r".*\.v[248]" + _END, "8.1", "90"),
        _feature(r".*\.bf16", "7.8", "90"),
        _feature(r".*\.cluster" + _END, "7.8", "90"),
    ),
    "redux": (
        _feature("", "7.0", "80"),
        _feature(r".*\.f32", "8.6", "100f"),
    ),
    "setmaxnreg": (_feature("", "8.0", _ALL_ARCH),),
    "setp": (_feature(r".*\.bf16", "7.8", "90"),),
    "st": (
        _feature(r"st\.async", "8.1", "90"),
        _feature(r"st\.bulk", "8.6", "100"),
        _feature(r".*\.(v8\.[bsuf]32|v4\.[bsuf]64)", "8.8", "100"),
        _feature(r".*\.cluster" + _END, "7.8", "90"),
    ),
    "stmatrix": (
        _feature("", "7.8", "90"),
        _feature(r".*\.m16n8" + _END, "8.6", _NEW_ARCH),
    ),
    "sub": (),
    "szext": (_feature("", "7.6", "70"),),
    "tanh": (
        _feature("", "7.0", "75"),
        _feature(r".*\.bf16", "7.8", "90"),
    ),
    "tcgen05": (
        _feature("", "8.6", _TCGEN05),
        _feature(r"tcgen05\.ld\.red", "8.8", "103f 110f"),
        _feature(r"tcgen05\.shift", "8.6", "100a 103a 110a"),
        _feature(r".*\.kind::i8", "8.6", "100a 110a"),
        _feature(r".*\.kind::mxf4nvf4", "8.7", _TCGEN05),
        _feature(r".*\.scale_vec::", "8.6", "100a 103a 110a"),
        _feature(r".*\.block(16|32)" + _END, "8.8", _TCGEN05),
        _feature(r".*::mxf8f6f4\.block_scale(?!.*\.scale_vec)", "8.8", _TCGEN05),
    ),
    "tensormap": (
        _feature(r"tensormap\.replace", "8.3", _ALL_ARCH),
        _feature(r"tensormap\.cp_fenceproxy", "8.3", "90"),
    ),
    "wgmma": (_feature("", "8.0", "90a"),),
}  # fmt: skip
FEATURES["min"] = FEATURES["max"]
FEATURES["sub"] = FEATURES["add"]

_SCALE_INPUT_D = Need((8, 6), ("100f",))

# Special registers that not every target has.
SPECIAL_REGISTERS: dict[str, Need] = {
    name: Need((7, 8), ("90",))
    for name in (
        "%clusterid", "%nclusterid", "%cluster_ctaid", "%cluster_nctaid", "%cluster_ctarank",
        "%cluster_nctarank", "%is_explicit_cluster",
    )
} | {"%aggr_smem_size": Need((8, 1), ("90",))}  # fmt: skip


@cache
def needs(name: str, operands: int) -> tuple[Need, ...]:
    """What an instruction of that full name with so many operands asks of its text."""
    opcode = name.partition(".")[0]
    return tuple(
        feature.need
        for feature in FEATURES["*"] + FEATURES.get(opcode, ())
        if feature.operands in (None, operands) and feature.pattern.match(name)
    )


def instruction_needs(instruction: nodes.Instruction) -> tuple[Need, ...]:
    """The needs of its name and of the special registers among its operands."""
    found = needs(instruction.name, len(instruction.operands))
    product = instruction.opcode == "tcgen05" and "mma" in instruction.modifiers
    last = instruction.operands[-1] if instruction.operands else None
    if product and isinstance(last, nodes.Integer):
        found = (*found, _SCALE_INPUT_D)
    for operand in instruction.operands:
        if isinstance(operand, nodes.Register):
            need = SPECIAL_REGISTERS.get(operand.name.partition(".")[0])
            if need is not None:
                found = (*found, need)
    return found
