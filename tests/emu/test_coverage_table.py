# SPDX-License-Identifier: Apache-2.0
"""docs/emulator-coverage.md says what proves each instruction, and is up to date."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def test_the_coverage_table_is_what_the_script_writes():
    command = [sys.executable, str(ROOT / "scripts" / "coverage.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, f"run scripts/coverage.py again\n{done.stderr}"


def test_every_operation_of_the_emulator_is_proven_by_something():
    text = (ROOT / "docs" / "emulator-coverage.md").read_text(encoding="utf-8")
    assert [line for line in text.splitlines() if "| **neither** |" in line] == []
