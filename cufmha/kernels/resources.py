# SPDX-License-Identifier: Apache-2.0
"""What each variant costs by the assembler's account: the table kept in docs/resources.json."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from . import build, catalog


def every() -> list[tuple[catalog.KernelVariant, str]]:
    """All variants, each with every chip that runs it."""
    return [(variant, arch) for arch in catalog.CHIPS for variant in catalog.variants(arch)]


def measure(kernels_of: Iterable[tuple[catalog.KernelVariant, str]]) -> dict[str, Any]:
    """Assembles variants, each for a chip."""
    kernels: dict[str, Any] = {}
    for variant, arch in kernels_of:
        _, report = build.assemble(variant, arch)
        kernels[f"{variant.name}@{arch}"] = {
            "registers": report.registers,
            "spill_bytes": report.spill_bytes,
            "stack_bytes": report.stack_bytes,
            "barriers": report.barriers,
            "smem_bytes": variant.smem_bytes,
            "dropped_setmaxnreg": report.dropped_setmaxnreg,
            "serialized_wgmma": report.serialized_wgmma,
            "warnings": list(report.warnings),
        }
    return {"assembler": build.assembler_name(), "kernels": kernels}


def write(path: Path, table: dict[str, Any]) -> None:
    """JSON, and a Markdown file of the same name beside it."""
    path.write_text(json.dumps(table, indent=1) + "\n")
    path.with_suffix(".md").write_text(markdown(table))


def markdown(table: dict[str, Any]) -> str:
    """The table for people."""
    lines = [
        f"Every variant as {table['assembler']} assembles it; written by",
        "`python -m cufmha resources --write docs/resources.json`.",
        "",
        "| variant@chip | registers at entry | spilled | stack | shared memory | setmaxnreg |",
        "|---|---|---|---|---|---|",
    ]
    for name, entry in table["kernels"].items():
        honored = "ignored" if entry["dropped_setmaxnreg"] else "honored"
        lines.append(
            f"| {name} | {entry['registers']} | {entry['spill_bytes']} B | "
            f"{entry['stack_bytes']} B | {entry['smem_bytes']} B | {honored} |"
        )
    return "\n".join(["# Registers and memory of the kernels", "", *lines]) + "\n"


def one_line(entry: dict[str, Any]) -> str:
    remarks = [name for name in ("dropped_setmaxnreg", "serialized_wgmma") if entry[name]]
    return (
        f"{entry['registers']} registers, {entry['spill_bytes']} B spilled, "
        f"{entry['stack_bytes']} B stack, {entry['smem_bytes']} B shared"
        + "".join(f", {remark.replace('_', ' ')}" for remark in remarks)
    )
