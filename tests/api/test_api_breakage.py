# SPDX-License-Identifier: Apache-2.0
"""Inputs that mean harm or mistakes: refused by name, in any thread, in any order."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import cufmha
from cufmha.errors import ArgumentError, DTypeError

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def operands():
    rng = np.random.default_rng(0)
    return tuple(rng.standard_normal((1, 64, 1, 64)).astype(np.float16) for _ in "qkv")


def test_a_masked_array_is_refused_because_its_mask_would_be_ignored(operands):
    q, k, v = operands
    with cufmha.use_device("emulator", arch="sm_90a"), pytest.raises(DTypeError, match="masked"):
        cufmha.attention(np.ma.masked_array(q), k, v)


def test_a_stream_handle_fits_a_pointer(operands):
    with (
        cufmha.use_device("emulator", arch="sm_90a"),
        pytest.raises(ArgumentError, match="stream"),
    ):
        cufmha.attention(*operands, stream=1 << 64)


def test_two_emulated_chips_in_many_threads_do_not_disturb_each_other(operands):
    with cufmha.use_device("emulator", arch="sm_90a"):
        expected = cufmha.attention(*operands).astype(np.float32)
    answers: dict[tuple[str, int], np.ndarray] = {}

    def work(arch: str, number: int) -> None:
        with cufmha.use_device("emulator", arch=arch):
            answers[arch, number] = cufmha.attention(*operands).astype(np.float32)

    threads = [
        threading.Thread(target=work, args=(arch, number))
        for number in range(2)
        for arch in ("sm_90a", "sm_100a")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 4
    for answer in answers.values():
        assert np.abs(answer - expected).max() < 2e-3


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--seed", "-1"], "seed"),
        (["--out", "/nonexistent/x.npz"], "/nonexistent/x.npz"),
        (["--heads-q", "3", "--heads-kv", "2"], "query heads"),
    ],
)
def test_the_attention_script_ends_in_one_sentence(options, word):
    command = [sys.executable, str(ROOT / "scripts" / "attention.py"), "--seqlen-q", "64",
               "--head-dim", "64", "--arch", "sm_90a", *options]  # fmt: skip
    paths = os.environ | {"PYTHONPATH": str(ROOT)}  # the script of a checkout, installed or not
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=paths)
    assert done.returncode == 2
    assert word in done.stderr
    assert done.stderr.count("\n") == 1
