# SPDX-License-Identifier: Apache-2.0
"""scripts/attention_varlen.py passes a right result and no wrong one."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

import cufmha

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
COMMAND = ["--arch", "sm_90a", "--lengths", "5:70,0,3", "--head-dim", "64", "--strategy"]


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    yield importlib.import_module("attention_varlen")
    for name in ("attention", "attention_varlen"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("strategy", ["split", "mask"])
def test_it_passes_a_right_result(script, strategy, capsys):
    assert script.main([*COMMAND, strategy]) == 0
    assert "rows of no sequence: as they were" in capsys.readouterr().out


@pytest.mark.parametrize("row", [0, 3, -1])
def test_it_passes_no_wrong_one(script, row, monkeypatch, capsys):
    """Whether it is wrong in a sequence's first row or where no sequence is."""

    def spoiled(*args: object, out: np.ndarray, lse: np.ndarray, **options: object) -> None:
        out[...], lse[...] = script.MARK, script.MARK
        exact(*args, out=out, lse=lse, **options)
        out[row] += 1

    exact = cufmha.attention_varlen
    monkeypatch.setattr(cufmha, "attention_varlen", spoiled)
    assert script.main([*COMMAND, "split"]) == 1
    assert ("written to" in capsys.readouterr().out) == (row != script.LEAD)


def test_it_says_what_is_wrong_with_its_arguments(script, capsys):
    assert script.main([*COMMAND, "split", "--heads-q", "3", "--heads-kv", "2"]) == 2
    assert "heads" in capsys.readouterr().err
