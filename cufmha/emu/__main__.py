# SPDX-License-Identifier: Apache-2.0
"""`python -m cufmha.emu run | check | disasm | profile | trace | debug`: PTX without a card."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from ..errors import ArgumentError, CufmhaError
from ..isa import parse, print_module
from ..isa.check import lint
from .machine import Machine
from .module import RULES, Module
from .spelled import parse_arguments, parse_dimension
from .targets import TARGETS

_ARGUMENTS = """
arguments, in the entry's order:
  FILE.npy, FILE.npz:KEY      an array (device pointer)
  zeros:f32:4x128             also ones:, nan:, random:; types i8 … u64, f16, bf16, f32, f64,
                              e4m3, e5m2
  i32:5, f32:0.5              a scalar by value
  hex:00ff12                  a structure by value
  tma:@0;box=64x128;swizzle=128B   a tensor map over the array of argument 0 (or tma:FILE.npy;…)
"""


def main(argv: list[str] | None = None) -> int:
    """Runs a command. Errors are one sentence on standard error and exit status 2."""
    options = _parser().parse_args(argv)
    try:
        return int(options.run(options) or 0)
    except CufmhaError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    except OSError as error:
        print(f"{error.strerror}: {error.filename}", file=sys.stderr)
    except MemoryError as error:
        print(f"not enough memory: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        return 130
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m cufmha.emu", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="command")

    def command(name: str, run: Any, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(
            name, help=text, description=text, epilog=_ARGUMENTS,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        sub.set_defaults(run=run)
        sub.add_argument("file", type=Path, help="a PTX file")
        return sub

    run = command("run", _run, "launch an entry and show what became of its arrays")
    _launch_options(run)
    run.add_argument("--save", type=Path, help="write all arrays to this .npz (arg0, arg1, …)")
    check = command("check", _check, "look for mistakes without running")
    check.add_argument("--arch", choices=list(TARGETS), help="a chip the text must load on")
    command("disasm", _disassemble, "print the parsed text in its canonical form")
    profile = command("profile", _profile, "launch, and count instructions per role and pipe")
    _launch_options(profile)
    profile.add_argument("--lines", type=int, default=0, help="also the N most executed lines")
    trace = command("trace", _trace, "launch, and write a timeline of warps and asynchronous work")
    _launch_options(trace)
    trace.set_defaults(seed=1)  # late completion shows every wait
    trace.add_argument("--out", type=Path, help="Perfetto JSON to write")
    trace.add_argument("--png", type=Path, help="picture to write (needs matplotlib)")
    debug = command("debug", _debug, "launch under a debugger that reads commands from stdin")
    _launch_options(debug)
    return parser


def _launch_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--arch", choices=list(TARGETS), required=True, help="the chip")
    parser.add_argument("--entry", help="needed if the file has several")
    parser.add_argument("--grid", default="1", help="blocks: x, x,y or x,y,z")
    parser.add_argument("--block", required=True, help="threads: x, x,y or x,y,z")
    parser.add_argument("--cluster", default="1", help="blocks of a cluster")
    parser.add_argument("--smem", type=int, default=0, help="bytes of dynamic shared memory")
    parser.add_argument("--seed", type=int, default=0, help="timing; 0 is early and in turn")
    parser.add_argument("--rules", choices=RULES, default="isa")
    parser.add_argument("--no-hazards", action="store_true", help="no checks of order")
    parser.add_argument("--args", nargs="*", default=[], metavar="ARG", help="see below")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"{path} cannot be read: {error}") from None


class _Launch:
    """A module, its entry and its arguments, as the options say."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        if options.seed < 0:
            raise ArgumentError(f"--seed: must not be negative, got {options.seed}")
        self.module = Module(
            _text(options.file), arch=options.arch, seed=options.seed, rules=options.rules,
            hazards=not options.no_hazards, filename=str(options.file),
        )  # fmt: skip
        entries = self.module.entries
        if options.entry is None and len(entries) != 1:
            raise ArgumentError(f"--entry: {options.file} has {', '.join(entries) or 'no entries'}")
        self.entry = options.entry or entries[0]
        self.arguments = parse_arguments(options.args, seed=options.seed)
        self.block = parse_dimension(options.block, "--block")

    @property
    def warps(self) -> int:
        x, y, z = self.block
        return -(-x * y * z // 32)

    def run(self) -> Machine:
        options = self.options
        console = Console(stderr=True)
        with console.status("launching") if console.is_terminal else _Silent() as status:
            return self.module.launch(
                self.entry, grid=parse_dimension(options.grid, "--grid"), block=self.block,
                cluster=parse_dimension(options.cluster, "--cluster"), args=self.arguments,
                dynamic_smem_bytes=options.smem,
                progress=lambda done, total: status.update(f"{done} of {total} blocks"),
            )  # fmt: skip


class _Silent:
    def __enter__(self) -> _Silent:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, text: str) -> None:
        pass


def _run(options: argparse.Namespace) -> None:
    launch = _Launch(options)
    arrays = {
        number: a[1] if isinstance(a, tuple) else a
        for number, a in enumerate(launch.arguments)
        if isinstance(a, tuple | np.ndarray)
    }
    before = {number: array.tobytes() for number, array in arrays.items()}
    start = time.perf_counter()
    machine = launch.run()
    seconds = time.perf_counter() - start
    table = Table(title=f"{launch.entry}: {machine.executed} instructions in {seconds:.2f} s")
    for title in ("argument", "array", "changed", "first elements"):
        table.add_column(title)
    for number, array in arrays.items():
        changed = "yes" if array.tobytes() != before[number] else "no"
        first = " ".join(str(x) for x in array.ravel()[:6])
        shape = "x".join(map(str, array.shape))
        table.add_row(str(number), f"{array.dtype} {shape}", changed, first)
    Console().print(table)
    if options.save:
        named: dict[str, Any] = {f"arg{number}": array for number, array in arrays.items()}
        np.savez(options.save, **named)


def _check(options: argparse.Namespace) -> int:
    findings = lint(parse(_text(options.file), str(options.file)), options.arch)
    for finding in findings:
        print(f"{options.file}:{finding}")
    return 1 if findings else 0


def _disassemble(options: argparse.Namespace) -> None:
    print(print_module(parse(_text(options.file), str(options.file))), end="")


def _profile(options: argparse.Namespace) -> None:
    from .profile import PIPES, Profile

    launch = _Launch(options)
    profile = Profile(launch.module.program(launch.entry), launch.warps)
    launch.run()
    roles = profile.roles()
    counts = [profile.by_pipe(role) for role in roles]
    table = Table(title=f"{launch.entry}: instructions per role, all blocks")
    table.add_column("pipe")
    for role in roles:
        table.add_column(role.name, justify="right")
    for pipe in PIPES:
        if any(count[pipe] for count in counts):
            table.add_row(pipe, *(str(count[pipe]) for count in counts))
    table.add_section()
    table.add_row("all", *(str(count.total()) for count in counts))
    Console().print(table)
    if options.lines:
        lines = Table(title="most executed lines")
        for title in ("times", "line", "instruction"):
            lines.add_column(title)
        for count, line, name in profile.lines(options.lines):
            lines.add_row(str(count), str(line), name)
        Console().print(lines)


def _trace(options: argparse.Namespace) -> None:
    from .trace import Trace, require_matplotlib

    if not (options.out or options.png):
        raise ArgumentError("trace: give --out FILE.json, --png FILE.png or both")
    if options.png:
        require_matplotlib()
    launch = _Launch(options)
    trace = Trace(launch.module.program(launch.entry))
    launch.run()
    if options.out:
        trace.write_json(options.out)
    if options.png:
        trace.write_png(options.png)


def _debug(options: argparse.Namespace) -> None:
    from .debug import Debugger, Quit

    launch = _Launch(options)
    debugger = Debugger(
        launch.module.program(launch.entry), _text(options.file).splitlines(), sys.stdin, sys.stdout
    )
    try:
        launch.run()
    except Quit:
        return
    debugger.say("the launch has ended")


if __name__ == "__main__":
    sys.exit(main())
