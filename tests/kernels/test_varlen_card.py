# SPDX-License-Identifier: Apache-2.0
"""Packed sequences on a card, between pages that nothing may touch. With `--device cuda` only."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cufmha.kernels.catalog import STRATEGIES

pytestmark = pytest.mark.card

BETWEEN = """
import os, sys
import numpy as np
import cufmha
from cufmha import testing
from cufmha.device import cuda
from cufmha.device.pages import CardPages

strategy, edge = sys.argv[1:]
card, driver = cuda.device(0), cuda.driver()
pages = CardPages(card)
GRANULE = pages.granularity


class Placed:
    '''An array in the middle granule of three, at one edge of it; the other two have no memory.'''

    def __init__(self, host):
        assert host.nbytes <= GRANULE and host.nbytes % 16 == 0
        middle = pages.reserve(3 * GRANULE) + GRANULE
        pages.map(middle, GRANULE, pages.create(GRANULE))
        pages.allow(middle, GRANULE, writable=True)
        self.at = middle if edge == "front" else middle + GRANULE - host.nbytes
        self.host = host
        with card.current():
            cuda.check("copy", driver.cuMemcpyHtoD(self.at, host.ctypes.data, host.nbytes))
        self.__cuda_array_interface__ = {
            "shape": host.shape, "typestr": host.dtype.str, "data": (self.at, False), "version": 3,
        }

    def get(self):
        with card.current():
            host = np.empty_like(self.host)
            cuda.check("copy", driver.cuMemcpyDtoH(host.ctypes.data, self.at, host.nbytes))
        return host


def status():
    with card.current():
        return driver.cuCtxSynchronize()[0].name


rng = np.random.default_rng(0)
total, heads, dim = 640, 2, 128
q, k, v = (rng.standard_normal((total, heads, dim)).astype(np.float16) for _ in "qkv")
clean = [0, 5, 5, 135, 439, 640, 640, 640]
wild = ([-7, 100, 50, 10**6, 3, -(2**31), 640, 641], [2**31 - 1] * 8, [-1] * 8,
        [639, 640, 638, 0, 640, 1, 2, 3], [0, 640, 0, 640, 0, 640, 0, 640])
with cufmha.use_device("cuda"):
    operands = [Placed(x) for x in (q, k, v)]
    for offsets in (*wild, clean):
        cu = Placed(np.array(offsets, np.int32))
        out = Placed(np.full_like(q, 7))
        lse = Placed(np.full((heads, total), 7, np.float32))
        for causal in (False, True):
            cufmha.attention_varlen(
                *operands, cu, cu, causal=causal, strategy=strategy, out=out, lse=lse)
            print(status())
    got, got_lse = out.get(), lse.get()
    for start, end in zip(clean, clean[1:]):
        if start < end:
            one = [x[start:end].swapaxes(0, 1)[None] for x in (q, k, v)]
            testing.assert_attention_close(
                got[start:end].swapaxes(0, 1)[None], got_lse[None, :, start:end], *one, causal=True)
print("right")
sys.stdout.flush()
os._exit(0)  # a fault would have ended the context
"""


@pytest.mark.parametrize("edge", ["front", "back"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_nothing_outside_the_arrays_is_touched_whatever_the_offsets_say(strategy, edge):
    """Every array lies at an edge of mapped memory. In a process of its own: faults are sticky."""
    done = subprocess.run(
        [sys.executable, "-c", BETWEEN, strategy, edge], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    *statuses, last = done.stdout.splitlines()
    assert statuses == ["CUDA_SUCCESS"] * 12 and last == "right", done.stdout
