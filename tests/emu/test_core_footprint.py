# SPDX-License-Identifier: Apache-2.0
"""Memory of a launch: a constant for the blocks that run, and a few times what was touched."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MIB = 2**20
CONSTANT = 32 * MIB
TIMES = 4

HEAD = """
import resource, sys
import numpy as np
from snippets import kernel
from cufmha.emu import Module

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
"""  # noqa: E501
# 32 warps copy x to y, each lane 16 bytes at a time
COPY = """
x, y = np.ones(SIZE // 8, np.uint32), np.zeros(SIZE // 8, np.uint32)
body = '''
    .reg .b32 %q<4>;
    ld.param.u64 %d0, [p0];
    ld.param.u64 %d1, [p1];
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, %ctaid.x;
    mad.lo.u32 %r0, %r1, 1024, %r0;
    mul.wide.u32 %d2, %r0, 16;
    add.u64 %d0, %d0, %d2;
    add.u64 %d1, %d1, %d2;
    ld.global.v4.u32 {%q0, %q1, %q2, %q3}, [%d0];
    st.global.v4.u32 [%d1], {%q0, %q1, %q2, %q3};
'''
module = Module(kernel(body, (x, y)), arch="sm_90a", seed=SEED)
module.program("k")
before = peak()
module.launch("k", grid=(x.nbytes // 16384, 1, 1), block=(1024, 1, 1), args=[x, y])
assert (x == y).all()
print(peak() - before)
"""
# 32 warps read all of x side by side
SHARED_READS = """
x = np.ones(SIZE // 4, np.uint32)
body = '''
    ld.param.u64 %d0, [p0];
    mov.u32 %r0, %tid.x;
    and.b32 %r0, %r0, 31;
    mul.wide.u32 %d2, %r0, 16;
    add.u64 %d0, %d0, %d2;
    mov.u32 %r1, 0;
again:
    ld.global.v4.u32 {%r2, %r3, %r4, %r5}, [%d0];
    ld.global.v4.u32 {%r2, %r3, %r4, %r5}, [%d0+512];
    ld.global.v4.u32 {%r2, %r3, %r4, %r5}, [%d0+1024];
    ld.global.v4.u32 {%r2, %r3, %r4, %r5}, [%d0+1536];
    add.u64 %d0, %d0, 2048;
    add.u32 %r1, %r1, 2048;
    setp.lt.u32 %p0, %r1, SIZE;
    @%p0 bra again;
'''.replace("SIZE", str(x.nbytes))
module = Module(kernel(body, (x,)), arch="sm_90a", seed=SEED)
module.program("k")
before = peak()
module.launch("k", grid=(1, 1, 1), block=(1024, 1, 1), args=[x])
print(peak() - before)
"""
FORWARD = """
import bench_emulator as bench
variant = next(v for v in bench.variants(bench.TARGETS["ARCH"])
               if v.head_dim == 128 and v.dtype == "bf16" and not v.causal)
module = Module(bench.render(variant).text, arch="ARCH", seed=SEED)
module.program("fmha_fwd")
arrays = bench.make_arrays((1, 512, 2, 128))
before = peak()
bench.launch(module, variant, arrays)
print(peak() - before)
"""
ROOT = Path(__file__).resolve().parents[2]


def grown(text: str, **words: object) -> int:
    """Bytes that a fresh process grew by at most."""
    for word, value in words.items():
        text = text.replace(word, str(value))
    path = os.pathsep.join(map(str, (ROOT, ROOT / "tests" / "emu", ROOT / "scripts")))
    done = subprocess.run(
        [sys.executable, "-c", HEAD + text], env={**os.environ, "PYTHONPATH": path},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="the peak of a process is read with the module resource"
)


@pytest.mark.parametrize(("text", "size"), [(COPY, 8 * MIB), (SHARED_READS, 2 * MIB)])
def test_loads_and_stores_cost_a_few_times_what_they_touch(text, size):
    assert grown(text, SIZE=size, SEED=0) < CONSTANT + TIMES * size


@pytest.mark.parametrize(("arch", "seed"), [("sm_90a", 0), ("sm_100a", 1)])
def test_attention_stays_near_its_arrays(arch, seed):
    assert grown(FORWARD, ARCH=arch, SEED=seed) < CONSTANT + TIMES * MIB
