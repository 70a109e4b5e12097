# SPDX-License-Identifier: Apache-2.0
"""The package as people get it: imported, as a wheel, editable, and as a bare checkout."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

import cufmha

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("numpy", "ml_dtypes", "jinja2", "rich", "cuda", "cupy", "torch", "jax", "platformdirs")

REPORT = """
import hashlib, json, sys
import cufmha
from cufmha.kernels import catalog, render
digests = {v.name: hashlib.sha256(render.render(v).text.encode()).hexdigest()
           for v in catalog.variants() if v.head_dim == 64 and not (v.strategy or v.split_kv)}
json.dump({"file": cufmha.__file__, "root": str(render.template_root()), "digests": digests},
          sys.stdout)
"""


def run(code: str, *, python: str = sys.executable, path: str = "", cwd: Path | None = None) -> str:
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [python, "-c", code], capture_output=True, text=True, env=environment, cwd=cwd, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def digests() -> dict[str, str]:
    import hashlib

    from cufmha.kernels import catalog, render

    return {
        variant.name: hashlib.sha256(render.render(variant).text.encode()).hexdigest()
        for variant in catalog.variants()
        if variant.head_dim == 64 and not (variant.strategy or variant.split_kv)
    }


def dependencies() -> str:
    """Where this environment's packages are, as a path, for interpreters that lack them."""
    return os.pathsep.join(place for place in sys.path if place.endswith("-packages"))


def pip(*arguments: str) -> None:
    pytest.importorskip("pip", reason="pip is not installed")
    pytest.importorskip("hatchling", reason="hatchling, which builds the wheel, is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments],
        capture_output=True, text=True, check=False,
        # The other interpreter, which `--python` names, has no build backend of its own.
        env={**os.environ, "PYTHONPATH": dependencies()},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def copied_checkout(folder: Path) -> Path:
    """Only what is the project's: a build must not leave files in the real checkout."""
    for name in ("cufmha", "ptx"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def test_import_is_quick_and_loads_nothing_heavy():
    code = (
        "import sys, time, json\n"
        "start = time.perf_counter()\n"
        "import cufmha\n"
        "seconds = time.perf_counter() - start\n"
        f"loaded = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "print(json.dumps([seconds, loaded]))"
    )
    runs = [json.loads(run(code, path=str(ROOT))) for _ in range(3)]
    assert runs[0][1] == []
    assert min(seconds for seconds, _ in runs) < 0.1


def test_public_names_load_no_framework_and_no_driver():
    code = (
        "import sys, cufmha\n"
        "for name in cufmha.__all__: getattr(cufmha, name)\n"
        "names = ('numpy', 'cuda', 'cupy', 'torch', 'jax')\n"
        "print([name for name in names if name in sys.modules])"
    )
    assert run(code, path=str(ROOT)).strip() == "[]"


def test_every_public_name_is_there_and_listed():
    for name in cufmha.__all__:
        assert getattr(cufmha, name) is not None
        assert name in dir(cufmha)
    with pytest.raises(AttributeError, match="no attribute 'flash_attention'"):
        cufmha.flash_attention  # noqa: B018


def test_a_wheel_is_small_and_finds_its_kernels(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    wheels = tmp_path / "wheels"
    pip(
        "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels),
        str(copied_checkout(source)),
    )  # fmt: skip
    (wheel,) = wheels.iterdir()
    assert wheel.stat().st_size < 500_000
    unpacked = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(unpacked)
    assert "cufmha/ptx/sm90/fmha_fwd.ptx" in names and "cufmha/py.typed" in names
    assert not [name for name in names if name.startswith(("tests", "scripts", "ptx"))]
    path = os.pathsep.join((str(unpacked), dependencies()))
    report = json.loads(run(REPORT, path=path, cwd=tmp_path))
    assert Path(report["root"]) == unpacked / "cufmha" / "ptx"
    assert report["digests"] == digests()


def test_an_editable_install_finds_its_kernels(tmp_path):
    pytest.importorskip("editables", reason="editables, which hatchling needs, is not installed")
    source = tmp_path / "source"
    source.mkdir()
    copied_checkout(source)
    place = tmp_path / "venv"
    venv.create(place, with_pip=False)
    python = place / ("Scripts" if os.name == "nt" else "bin") / "python"
    pip(
        "--python", str(python), "install", "--quiet", "--no-deps", "--no-build-isolation",
        "--no-index", "--editable", str(source),
    )  # fmt: skip
    # The copy's own packages come first, this environment's only for what it depends on.
    code = f"import sys; sys.path += {dependencies()!r}.split({os.pathsep!r})\n" + REPORT
    report = json.loads(run(code, python=str(python), cwd=tmp_path))
    assert Path(report["file"]).is_relative_to(source)
    assert Path(report["root"]) == source / "ptx"
    assert report["digests"] == digests()


def test_a_bare_checkout_on_the_path_finds_its_kernels(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    copied_checkout(source)
    report = json.loads(run(REPORT, path=str(source), cwd=tmp_path))
    assert Path(report["file"]).is_relative_to(source)
    assert Path(report["root"]) == source / "ptx"
    assert report["digests"] == digests()


def test_a_package_without_its_kernels_says_so(tmp_path):
    shutil.copytree(ROOT / "cufmha", tmp_path / "cufmha")
    code = (
        "from cufmha.errors import AssemblyError\n"
        "from cufmha.kernels import render\n"
        "try:\n    render.template_root()\n"
        "except AssemblyError as error:\n    print(error)"
    )
    assert "the installation is incomplete" in run(code, path=str(tmp_path), cwd=tmp_path)


def test_the_base_install_names_no_nvidia_package_and_no_extra_moves_torchs_nvjitlink():
    """torch pins its nvJitLink exactly: any bound of ours could replace it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    base = {requirement.partition(">")[0] for requirement in project["dependencies"]}
    assert base == {"numpy", "ml-dtypes", "jinja2", "rich", "platformdirs"}
    extras = project["optional-dependencies"]
    assert {"cu12", "cu13", "build", "torch", "jax", "bench", "test"} <= extras.keys()
    linkers = [r for extra in extras.values() for r in extra if "nvjitlink" in r]
    assert sorted(linkers) == ["nvidia-nvjitlink", "nvidia-nvjitlink-cu12"]
