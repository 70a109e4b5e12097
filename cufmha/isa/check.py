# SPDX-License-Identifier: Apache-2.0
"""Static checks on a parsed module: what its target lacks, and mistakes visible without a run."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import ArgumentError, UnsupportedTarget
from . import nodes
from .scopes import Finding, FunctionLint, walk
from .table import instruction_needs
from .targets import Target

__all__ = ["Finding", "lint", "require_target"]


def require_target(module: nodes.Module, arch: str) -> None:
    """Raise UnsupportedTarget unless the text assembles for its `.target` and loads on `arch`.

    The text names the first instruction at fault with its line, the text's target, and what the
    instruction needs.
    """
    chip = Target.parse(arch)
    for finding in _unsupported(module, chip):
        raise UnsupportedTarget(f"{module.filename}, line {finding.line}: {finding.message}")


def lint(module: nodes.Module, arch: str | None = None) -> list[Finding]:
    """All findings in order of lines; with `arch` also what that chip refuses."""
    found = list(_unsupported(module, Target.parse(arch) if arch else None))
    for function in module.functions.values():
        if function.body is not None:
            found += FunctionLint(module, function).findings()
    return sorted(found, key=lambda finding: (finding.line, finding.column))


def _unsupported(module: nodes.Module, chip: Target | None) -> Iterator[Finding]:
    name = next((n for n in module.target if n.startswith("sm_")), "")
    try:
        target = Target.parse(name)
    except ArgumentError:
        yield Finding(1, 1, "target", f".target {', '.join(module.target)} names no sm_XX target")
        return
    if chip is not None and not target.runs_on(chip):
        yield Finding(1, 1, "target", f"text for .target {target} does not load on {chip}")
    if module.version < target.version:
        yield Finding(1, 1, "version", f".target {target} needs {_version(target.version)}")
    for function in module.items:
        if isinstance(function, nodes.Function) and function.body is not None:
            for statement in walk(function.body):
                if isinstance(statement, nodes.Instruction):
                    yield from _refused(statement, module.version, target)


def _refused(
    instruction: nodes.Instruction, version: tuple[int, int], target: Target
) -> Iterator[Finding]:
    place = (instruction.span.line, instruction.span.column)
    wanted = instruction_needs(instruction)
    for need in wanted:
        if not need.met_by(target):
            text = f"{instruction.name} is not supported on .target {target}: it needs {need.text}"
            yield Finding(*place, "target", text)
            return
    for need in wanted:
        if version < need.version:
            text = f"{instruction.name} needs {_version(need.version)} or later"
            yield Finding(*place, "version", text)
            return


def _version(version: tuple[int, int]) -> str:
    return f".version {version[0]}.{version[1]}"
