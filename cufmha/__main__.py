# SPDX-License-Identifier: Apache-2.0
"""The command line: `python -m cufmha info | kernels | render | build | resources | cache`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from . import _env
from .errors import CufmhaError


def main(argv: list[str] | None = None) -> int:
    """Runs a command; errors are one sentence and exit status 2."""
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.run(arguments) or 0)
    except CufmhaError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cufmha", description="Fused multi-head attention")
    commands = parser.add_subparsers(required=True, metavar="command")

    def command(name: str, run: Any, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(run=run)
        return sub

    info = command("info", _info, "versions, driver, card, cache and kernels")
    info.add_argument("--json", action="store_true")
    kernels = command("kernels", _kernels, "all kernel variants")
    kernels.add_argument("--json", action="store_true")
    render = command("render", _render, "one variant's PTX text")
    _variant_options(render)
    render.add_argument("--out", type=Path, help="file to write; standard output if left out")
    build = command("build", _build, "assemble every variant into a folder, no GPU needed")
    build.add_argument("--arch", default="sm_90a,sm_100a,sm_103a", help="comma-separated chips")
    build.add_argument("--out", type=Path, required=True, help="folder to write")
    resources = command("resources", _resources, "registers, spills and stack of every variant")
    resources.add_argument("--write", type=Path, help="write the table as JSON to this file")
    cache = command("cache", _cache, "where assembled kernels are kept")
    cache.add_argument("--clear", action="store_true", help="remove them")
    return parser


def _variant_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kernel", default="fmha_fwd")
    parser.add_argument("--arch", required=True, help="chip: sm_90a, sm_100a or sm_103a")
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--dtype", choices=("bf16", "f16"), default="bf16")
    parser.add_argument("--causal", action="store_true")


def _table(rows: dict[str, str]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(show_header=False)
    for name, value in rows.items():
        table.add_row(name, escape(value))
    Console().print(table)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _info(arguments: argparse.Namespace) -> None:
    from . import __version__, cache
    from .kernels import build, catalog, render

    rows = {"cufmha": __version__}
    for package in ("numpy", "ml_dtypes", "jinja2", "cuda-bindings", "cuda-core", "torch", "jax"):
        rows[package] = _version(package)
    rows |= _device_rows()
    try:
        rows["assembler"] = build.assembler_name()
    except CufmhaError as error:
        rows["assembler"] = str(error)
    rows["kernel files"] = str(render.template_root())
    rows["kernel variants"] = str(len(catalog.variants()))
    rows["cache"] = f"{cache.folder()} ({len(cache.entries())} kernels)"
    for name in _env.VARIABLES:
        rows[name] = os.environ.get(name) or "not set"
    if arguments.json:
        print(json.dumps(rows, indent=1))
    else:
        _table(rows)


def _device_rows() -> dict[str, str]:
    """Driver and cards, or why there are none; never an error."""
    from .device import cuda

    try:
        return cuda.describe()
    except CufmhaError as error:
        return {"driver": str(error)}


def _kernels(arguments: argparse.Namespace) -> None:
    from .kernels import catalog

    rows = {
        v.name: f"tile {v.tile_q} x {v.tile_k}, {v.threads} threads, {v.smem_bytes} B shared"
        for v in catalog.variants()
    }
    if arguments.json:
        print(json.dumps(rows, indent=1))
    else:
        _table(rows)


def _render(arguments: argparse.Namespace) -> None:
    from .errors import UnsupportedError
    from .kernels import catalog, render

    found = [
        v
        for v in catalog.variants(arguments.arch)
        if v.operation == arguments.kernel
        and v.head_dim >= arguments.head_dim
        and v.dtype == arguments.dtype
        and v.causal == arguments.causal
    ]
    if not found:
        raise UnsupportedError(
            f"no kernel {arguments.kernel} for {arguments.arch} with head_dim "
            f"{arguments.head_dim} and {arguments.dtype}"
        )
    text = render.render(min(found, key=lambda v: v.head_dim)).annotated
    if arguments.out:
        arguments.out.write_text(text)
    else:
        print(text, end="")


def _build(arguments: argparse.Namespace) -> None:
    from .kernels import build

    archs = [arch.strip() for arch in arguments.arch.split(",") if arch.strip()]
    manifest = build.build(archs, arguments.out, progress=lambda file: print(file, flush=True))
    print(f"wrote {manifest}; set CUFMHA_KERNEL_DIR={arguments.out} to use it")


def _resources(arguments: argparse.Namespace) -> None:
    from .kernels import resources

    table = resources.measure(resources.every())
    if arguments.write:
        resources.write(arguments.write, table)
        print(f"wrote {arguments.write}")
        return
    _table({name: resources.one_line(entry) for name, entry in table["kernels"].items()})


def _cache(arguments: argparse.Namespace) -> None:
    from . import cache

    if arguments.clear:
        print(f"removed {cache.clear()} files from {cache.folder()}")
        return
    found = cache.entries()
    total = sum(entry.stat().st_size for entry in found)
    print(f"{cache.folder()}: {len(found)} kernels, {total} bytes")


if __name__ == "__main__":
    sys.exit(main())
