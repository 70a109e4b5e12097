# SPDX-License-Identifier: Apache-2.0
"""PTX to cubin without a GPU: ptxas or nvJitLink, a cache, and folders of kernels built ahead.

`image` is what a card loads: from the folder CUFMHA_KERNEL_DIR if set; else a cubin by a ptxas that
is found and no newer than the driver, kept in the cache; else the PTX text, which the driver
compiles and keeps in its own cache. nvJitLink and the driver's linker (cuLinkAddData) take no part
in that: they compile relocatably, where setmaxnreg is ignored and the kernels spill.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .. import _env
from .. import cache as disk
from ..errors import ArgumentError, AssemblyError
from . import catalog
from .catalog import KernelVariant
from .render import Rendered, render

MANIFEST = "manifest.json"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Image:
    """What a device loads: PTX text (ending in NUL) or a cubin, and the text it stands for.

    `entry` names the cache's file that holds the cubin, "" if it came from elsewhere.
    """

    data: bytes
    origin: str
    rendered: Rendered
    entry: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """What the assembler says about a variant.

    `registers`: at entry. `dropped_setmaxnreg`: setmaxnreg was ignored (C7508 and its like);
    `serialized_wgmma`: products were made to wait for each other (C7510 and its like).
    """

    registers: int
    spill_bytes: int
    stack_bytes: int
    static_shared_bytes: int
    barriers: int
    dropped_setmaxnreg: bool
    serialized_wgmma: bool
    warnings: tuple[str, ...]


def image(variant: KernelVariant, arch: str, *, driver_version: int) -> Image:
    """The variant for a chip; `driver_version` as `cuDriverGetVersion` gives it (13000 for 13.0).

    Raises AssemblyError where CUFMHA_KERNEL_DIR is set and lacks the variant, or was built from
    other sources.
    """
    rendered = render(variant)
    folder = _env.kernel_dir()
    if folder is not None:
        data = _prebuilt(folder, variant, arch, rendered)
        return Image(data, "a cubin of CUFMHA_KERNEL_DIR", rendered)
    tool = find_ptxas()
    if tool is not None:
        try:
            version = _ptxas_version(tool)
            if version[:2] <= (driver_version // 1000, driver_version % 1000 // 10):
                data, _ = assemble(variant, arch)
                entry = _entry(arch, rendered)
                return Image(data, f"a cubin by {assembler_name()}", rendered, entry)
        except (AssemblyError, OSError, subprocess.SubprocessError) as error:
            _log.info("%s: not by %s: %s", variant, tool, error)
    return as_text(rendered)


def as_text(rendered: Rendered) -> Image:
    """The PTX, for the driver to compile; it keeps what it makes of it in a cache of its own."""
    return Image(rendered.text.encode() + b"\0", "PTX, compiled by the driver", rendered)


def _prebuilt(folder: Path, variant: KernelVariant, arch: str, rendered: Rendered) -> bytes:
    where = f"CUFMHA_KERNEL_DIR={folder}"
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        entry = manifest["kernels"][f"{variant.name}@{arch}"]
        data = (folder / entry["file"]).read_bytes()
    except KeyError:
        raise AssemblyError(f"{where}: holds no {variant.name} for {arch}") from None
    except (OSError, ValueError, TypeError) as error:
        raise AssemblyError(f"{where}: unreadable ({error})") from None
    if entry["ptx_sha256"] != _digest(rendered.text.encode()):
        raise AssemblyError(
            f"{where}: {entry['file']} was built from other sources than this version's "
            f"ptx/{variant.file}; build the folder again"
        )
    if entry["sha256"] != _digest(data):
        raise AssemblyError(f"{where}: {entry['file']} is damaged")
    return data


def build(archs: Iterable[str], out: Path, *, progress: Any = None) -> Path:
    """Assembles every variant for the chips into a folder; returns the manifest's path."""
    archs = list(archs)
    for arch in archs:
        if arch not in catalog.CHIPS:
            raise ArgumentError(f"arch: must be among {', '.join(catalog.CHIPS)}, got {arch!r}")
    out.mkdir(parents=True, exist_ok=True)
    kernels: dict[str, Any] = {}
    for arch in archs:
        for variant in catalog.variants(arch):
            rendered = render(variant)
            data, report = assemble(variant, arch)
            file = f"{variant.name}@{arch}.cubin"
            (out / file).write_bytes(data)
            kernels[f"{variant.name}@{arch}"] = {
                "file": file,
                "sha256": _digest(data),
                "ptx_sha256": _digest(rendered.text.encode()),
                **asdict(report),
            }
            if progress:
                progress(file)
    path = out / MANIFEST
    manifest = {"assembler": assembler_name(), "kernels": kernels}
    path.write_text(json.dumps(manifest, indent=1) + "\n")
    return path


def assemble(variant: KernelVariant, arch: str) -> tuple[bytes, Report]:
    """One cubin and the report, by ptxas or, where there is none, nvJitLink; kept in the cache."""
    rendered = render(variant)
    tool = find_ptxas()
    name = _entry(arch, rendered)
    cached = disk.load(name)
    if cached is None:
        run = _by_ptxas if tool else _by_nvjitlink
        data, log = run(rendered, arch)
        disk.store(name, json.dumps({"log": log}).encode() + b"\0" + data)
    else:
        head, _, data = cached.partition(b"\0")
        log = json.loads(head)["log"]
    return data, read_log(log)


def _entry(arch: str, rendered: Rendered) -> str:
    return disk.key("cubin", assembler_name(), arch, rendered.text)


def find_ptxas() -> str | None:
    """CUFMHA_PTXAS, the wheel's ptxas (nvidia-cuda-nvcc), or the one on the PATH."""
    given = _env.ptxas()
    if given:
        if not given.is_file():
            raise AssemblyError(f"CUFMHA_PTXAS: no such file: {given}")
        return str(given)
    try:
        from cuda.pathfinder import find_nvidia_binary_utility

        found = find_nvidia_binary_utility("ptxas")
    except ImportError:
        found = None
    return str(found) if found else shutil.which("ptxas")


def assembler_name() -> str:
    """Name and version of what `assemble` uses."""
    tool = find_ptxas()
    if tool is None:
        return f"nvJitLink {'.'.join(map(str, _nvjitlink().version()))}"
    return f"ptxas {'.'.join(map(str, _ptxas_version(tool)))}"


@cache
def _ptxas_version(tool: str) -> tuple[int, ...]:
    text = subprocess.run([tool, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"V(\d+)\.(\d+)\.(\d+)", text)
    if found is None:
        raise AssemblyError(f"{tool} is no ptxas: it calls itself {text.strip()[:80]!r}")
    return tuple(int(part) for part in found.groups())


def _by_ptxas(rendered: Rendered, arch: str) -> tuple[bytes, str]:
    tool = find_ptxas()
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(rendered.text)
        result = subprocess.run(
            [str(tool), f"-arch={arch}", "-v", "--warn-on-spills", str(source), "-o", str(target)],
            capture_output=True,
            text=True,
            check=False,
        )
        log = result.stdout + result.stderr
        if result.returncode:
            raise AssemblyError(f"ptxas for {arch}:\n{rendered.explain(log)}")
        return target.read_bytes(), log


def _nvjitlink() -> Any:
    try:
        from cuda.bindings import nvjitlink
    except ImportError:
        raise AssemblyError(
            "no assembler: neither ptxas nor nvJitLink is installed; "
            "pip install 'cufmha[build]' brings ptxas"
        ) from None
    return nvjitlink


def _by_nvjitlink(rendered: Rendered, arch: str) -> tuple[bytes, str]:
    linker = _nvjitlink()
    options = [f"-arch={arch}", "-Xptxas=-v"]
    text = rendered.text.encode()
    try:
        handle = linker.create(len(options), options)
    except Exception as error:  # the library is missing or refuses the options
        raise AssemblyError(f"nvJitLink for {arch}: {error}") from None
    try:
        try:
            linker.add_data(handle, linker.InputType.PTX, text, len(text), "kernel.ptx")
            linker.complete(handle)
        except Exception:
            size = linker.get_error_log_size(handle)
            log = bytearray(size)
            linker.get_error_log(handle, log)
            explained = rendered.explain(log.decode(errors="replace"))
            raise AssemblyError(f"nvJitLink for {arch}:\n{explained}") from None
        data = bytearray(linker.get_linked_cubin_size(handle))
        linker.get_linked_cubin(handle, data)
        info = bytearray(linker.get_info_log_size(handle))
        linker.get_info_log(handle, info)
        return bytes(data), info.decode(errors="replace")
    finally:
        linker.destroy(handle)


def read_log(log: str) -> Report:
    """The numbers of `-v` and the remarks that cost speed."""

    def number(pattern: str) -> int:
        found = re.search(pattern, log)
        return int(found[1]) if found else 0

    warnings = tuple(
        line.strip() for line in log.splitlines() if re.search(r"warning|\(C7\d\d\d\)", line)
    )
    return Report(
        registers=number(r"Used (\d+) registers"),
        spill_bytes=number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads"),
        stack_bytes=number(r"(\d+) bytes stack frame"),
        static_shared_bytes=number(r"(\d+) bytes smem"),
        barriers=number(r"used (\d+) barriers"),
        dropped_setmaxnreg=bool(re.search(r"setmaxnreg.*ignored|C750[78]", log)),
        serialized_wgmma=bool(re.search(r"wgmma.*serializ|C751\d", log)),
        warnings=warnings,
    )


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
