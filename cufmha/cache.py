# SPDX-License-Identifier: Apache-2.0
"""A folder of assembled kernels that any number of processes may use at once.

An entry is one file, named by the hash of everything it was made from, and starts with the hash of
its own contents. It is written under a name of its own and moved into place, so readers see whole
files or none; a file whose hash does not fit (a full disk, a crash of the machine) counts as
missing and is written anew.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from . import _env

_DIGEST = hashlib.sha256().digest_size


def key(*parts: str | bytes) -> str:
    """A file name for what these parts determine."""
    digest = hashlib.sha256()
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        digest.update(len(raw).to_bytes(8, "little") + raw)
    return digest.hexdigest()[:40]


def load(name: str) -> bytes | None:
    """The entry's contents, or None where there is none or it is damaged."""
    try:
        raw = _path(name).read_bytes()
    except OSError:
        return None
    data = raw[_DIGEST:]
    return data if hashlib.sha256(data).digest() == raw[:_DIGEST] else None


def store(name: str, data: bytes) -> None:
    """Writes the entry; a folder that cannot be written costs only the time next time."""
    target = _path(name)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".part-")
    except OSError:
        return
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(data).digest() + data)
        Path(temporary).replace(target)
    except OSError:
        Path(temporary).unlink(missing_ok=True)


def drop(name: str) -> None:
    """Removes the entry, where the folder lets it."""
    with suppress(OSError):
        _path(name).unlink(missing_ok=True)


def folder() -> Path:
    """CUFMHA_CACHE_DIR, or the user's cache folder; it need not exist yet."""
    given = _env.cache_dir()
    if given:
        return given
    import platformdirs

    return Path(platformdirs.user_cache_dir("cufmha"))


def clear() -> int:
    """Removes every entry; returns how many there were."""
    entries = list(_folder().glob("*.bin")) + list(_folder().glob(".part-*"))
    for entry in entries:
        entry.unlink(missing_ok=True)
    return len(entries)


def entries() -> list[Path]:
    return sorted(_folder().glob("*.bin"))


def _folder() -> Path:
    return folder() / "kernels"


def _path(name: str) -> Path:
    return _folder() / f"{name}.bin"
