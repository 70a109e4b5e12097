# SPDX-License-Identifier: Apache-2.0
"""One wgmma of 64 x 16 x 16 on zeros and ones, with the pieces that a test may leave out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cufmha.emu import Module

_HEAD = """.version 8.0
.target sm_90a
.address_size 64
.shared .align 1024 .b8 tile[16384];
.visible .entry k(.param .u64 p0)
.reqntid 128
{
    .reg .pred %p, %acc;
    .reg .b32 %t, %base, %mine, %r0;
    .reg .f32 %d<8>;
    .reg .b64 %at, %index, %a, %b;
    mov.u32 %t, %tid.x;
    mov.u32 %base, tile;
    mad.lo.u32 %mine, %t, 4, %base;
    mov.u32 %r0, 0;
fill:
    st.shared.b32 [%mine], 0x3F803F80;
    add.u32 %mine, %mine, 512;
    add.u32 %r0, %r0, 512;
    setp.lt.u32 %p, %r0, 16384;
    @%p bra fill;
    mad.lo.u32 %mine, %t, 4, %base;
"""


@dataclass
class Warpgroup:
    fence: str = "    wgmma.fence.sync.aligned;\n"
    proxy: str = "    fence.proxy.async.shared::cta;\n"
    commit: str = "    wgmma.commit_group.sync.aligned;\n"
    wait: str = "    wgmma.wait_group.sync.aligned 0;\n"
    before: str = ""
    after: str = ""
    accumulate: bool = False

    @staticmethod
    def form(n: int = 16) -> str:
        registers = ", ".join(f"%d{i}" for i in range(n // 2))
        return (
            f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.bf16.bf16 {{{registers}}}, "
            "%a, %b, %acc, 1, 1, 0, 0;"
        )

    def text(self) -> str:
        descriptors = """
    shr.u32 %r0, %base, 4;
    or.b32 %r0, %r0, 0x10000;
    mov.b64 %a, {%r0, 0x40000040};
    add.u64 %b, %a, 512;
"""
        start = "".join(f"    mov.f32 %d{i}, 0f00000000;\n" for i in range(8))
        if not self.accumulate:
            start = ""
        body = (
            descriptors + self.proxy + "    bar.sync 0;\n" + start
            + f"    setp.ne.u32 %acc, {int(self.accumulate)}, 0;\n" + self.fence
            + self.before.replace("PRODUCT", "    " + self.form())
            + "    " + self.form() + "\n" + self.commit + self.wait + self.after
        )  # fmt: skip
        store = "    ld.param.u64 %at, [p0];\n    mul.wide.u32 %index, %t, 32;\n" \
            "    add.u64 %at, %at, %index;\n"  # fmt: skip
        store += "".join(f"    st.global.f32 [%at+{4 * i}], %d{i};\n" for i in range(8))
        return _HEAD + body + store + "out:\n    ret;\n}\n"

    def run(self, *, seed: int = 0, rules: str = "isa") -> np.ndarray:
        out = np.zeros((128, 8), np.float32)
        Module(self.text(), arch="sm_90a", seed=seed, rules=rules).launch(
            "k", grid=(1,), block=(128,), args=[out]
        )
        return out
