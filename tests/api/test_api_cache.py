# SPDX-License-Identifier: Apache-2.0
"""The cache of assembled kernels, and folders of kernels built ahead, in bad company."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cufmha import cache
from cufmha.errors import AssemblyError
from cufmha.kernels import build, catalog

ROOT = Path(__file__).resolve().parents[2]
DATA = bytes(range(256)) * 40_000

WRITER = """
import sys
from cufmha import cache
data = bytes(range(256)) * 40_000
while True:
    cache.store("entry", data)
    print("stored", flush=True)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("CUFMHA_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("CUFMHA_KERNEL_DIR", raising=False)
    return tmp_path


def writer():
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-c", WRITER], stdout=subprocess.PIPE, env=environment, text=True
    )


def test_what_is_stored_is_loaded():
    assert cache.load("entry") is None
    cache.store("entry", DATA)
    assert cache.load("entry") == DATA


@pytest.mark.parametrize("damage", [b"", b"short", b"\0" * 100])
def test_a_damaged_entry_counts_as_missing(damage):
    cache.store("entry", DATA)
    (path,) = cache.entries()
    path.write_bytes(damage)
    assert cache.load("entry") is None
    cache.store("entry", DATA)
    assert cache.load("entry") == DATA


def test_one_flipped_bit_is_noticed():
    cache.store("entry", DATA)
    (path,) = cache.entries()
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    assert cache.load("entry") is None


def test_two_processes_that_write_at_once_leave_whole_entries():
    writers = [writer(), writer()]
    try:
        for each in writers:
            assert each.stdout.readline() == "stored\n"
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline:
            assert cache.load("entry") == DATA
    finally:
        for each in writers:
            each.kill()
            each.communicate()


def test_a_process_killed_while_it_writes_leaves_no_half_entry():
    for pause in (0.0, 0.003, 0.007, 0.013):
        victim = writer()
        assert victim.stdout.readline() == "stored\n"
        time.sleep(pause)
        victim.send_signal(signal.SIGKILL)
        victim.communicate()
        assert cache.load("entry") == DATA
    cache.clear()
    assert not any(path.is_file() for path in cache.folder().rglob("*"))


def test_a_folder_that_cannot_be_written_costs_nothing_but_time(monkeypatch, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("CUFMHA_CACHE_DIR", str(blocked))
    cache.store("entry", DATA)
    assert cache.load("entry") is None


# ---- folders built ahead


@pytest.fixture
def variant():
    return catalog.variants("sm_90a")[0]


@pytest.fixture
def built(tmp_path, monkeypatch, variant):
    """A folder with one variant, assembled by a stand-in."""
    report = build.read_log("")
    monkeypatch.setattr(build, "assemble", lambda variant, arch: (b"cubin" * 100, report))
    monkeypatch.setattr(build, "assembler_name", lambda: "a stand-in")
    monkeypatch.setattr(catalog, "variants", lambda arch=None: (variant,))
    place = tmp_path / "built"
    build.build(["sm_90a"], place)
    monkeypatch.setenv("CUFMHA_KERNEL_DIR", str(place))
    return place


def test_a_built_folder_is_loaded_from(built, variant):
    image = build.image(variant, "sm_90a", driver_version=13000)
    assert (image.origin, image.data) == ("a cubin of CUFMHA_KERNEL_DIR", b"cubin" * 100)


def test_without_an_assembler_the_text_itself_is_loaded(variant, monkeypatch):
    monkeypatch.setattr(build, "find_ptxas", lambda: None)
    image = build.image(variant, "sm_90a", driver_version=13000)
    assert image.origin == "PTX, compiled by the driver"
    assert image.data.rstrip(b"\0").decode() == image.rendered.text


@pytest.fixture
def ptxas(tmp_path, monkeypatch):
    """A stand-in of version 13.0 that counts its runs and writes a cubin of its own."""
    tool = tmp_path / "ptxas"
    tool.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = --version ]; then echo "release 13.0, V13.0.88"; exit; fi\n'
        f"echo run >> {tmp_path}/runs\n"
        "for last; do :; done\n"
        'printf assembled > "$last"\n'
    )
    tool.chmod(0o755)
    monkeypatch.setenv("CUFMHA_PTXAS", str(tool))
    return tmp_path / "runs"


def test_a_ptxas_that_is_found_assembles_once_and_the_cubin_is_kept(variant, ptxas):
    for _ in range(2):
        image = build.image(variant, "sm_90a", driver_version=13000)
        assert (image.data, image.origin) == (b"assembled", "a cubin by ptxas 13.0.88")
    assert ptxas.read_text() == "run\n"


def test_a_damaged_entry_is_assembled_again(variant, ptxas):
    build.image(variant, "sm_90a", driver_version=13000)
    (entry,) = cache.entries()
    entry.write_bytes(entry.read_bytes()[:-3])
    assert build.image(variant, "sm_90a", driver_version=13000).data == b"assembled"
    assert ptxas.read_text() == "run\nrun\n"


def test_a_ptxas_newer_than_the_driver_is_left_alone(variant, ptxas):
    image = build.image(variant, "sm_90a", driver_version=12080)
    assert image.origin == "PTX, compiled by the driver"


def test_a_ptxas_that_fails_leaves_the_work_to_the_driver(variant, ptxas):
    ptxas.with_name("ptxas").write_text(
        "#!/bin/sh\n"
        'if [ "$1" = --version ]; then echo "release 13.0, V13.0.88"; exit; fi\nexit 1\n'
    )
    image = build.image(variant, "sm_90a", driver_version=13000)
    assert image.origin == "PTX, compiled by the driver"


def test_a_damaged_cubin_is_refused(built, variant):
    (cubin,) = built.glob("*.cubin")
    cubin.write_bytes(cubin.read_bytes()[:-1])
    with pytest.raises(AssemblyError, match=r"CUFMHA_KERNEL_DIR.*is damaged"):
        build.image(variant, "sm_90a", driver_version=13000)


def test_a_folder_of_other_sources_is_refused(built, variant):
    manifest = built / build.MANIFEST
    stale = json.loads(manifest.read_text())
    for entry in stale["kernels"].values():
        entry["ptx_sha256"] = "0" * 64
    manifest.write_text(json.dumps(stale))
    with pytest.raises(AssemblyError, match="built from other sources"):
        build.image(variant, "sm_90a", driver_version=13000)


def test_a_folder_without_the_variant_or_with_a_damaged_manifest_is_refused(built, variant):
    with pytest.raises(AssemblyError, match=r"holds no fmha_fwd.* for sm_100a"):
        build.image(variant, "sm_100a", driver_version=13000)
    (built / build.MANIFEST).write_text("{")
    with pytest.raises(AssemblyError, match=r"CUFMHA_KERNEL_DIR.*unreadable"):
        build.image(variant, "sm_90a", driver_version=13000)


def test_the_assemblers_remarks_are_read():
    log = (
        "ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored\n"
        "    16 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads\n"
        "ptxas info    : Used 168 registers, used 6 barriers\n"
        "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are "
        "serialized\n"
    )
    report = build.read_log(log)
    assert (report.registers, report.spill_bytes, report.stack_bytes) == (168, 12, 16)
    assert report.dropped_setmaxnreg and report.serialized_wgmma
