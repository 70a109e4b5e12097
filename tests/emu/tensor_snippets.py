# SPDX-License-Identifier: Apache-2.0
"""A tcgen05 product in as few lines as it takes, with named pieces that a test may leave out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cufmha.emu import Module

HEAD = """.version 8.8
.target sm_100f
.address_size 64
.extern .shared .align 1024 .b8 smem[];
.visible .entry k(.param .u64 p0, .param .u64 p1)
.reqntid 128
{
    .reg .pred %p, %leader, %more, %on;
    .reg .b32 %t, %w, %r<8>, %base, %slot, %bar, %tmem, %row, %low, %high, %d<256>;
    .reg .b64 %at, %index, %a, %b;
    mov.u32 %t, %tid.x;
    shr.u32 %w, %t, 5;
    mov.u32 %base, smem;
    add.u32 %bar, %base, IMAGE;
    add.u32 %slot, %base, IMAGE + 8;
    shl.b32 %row, %w, 21;
"""
PIECES = {
    "fill": """
    ld.param.u64 %at, [p0];
    mul.wide.u32 %index, %t, 4;
    add.u64 %at, %at, %index;
    mad.lo.u32 %r0, %t, 4, %base;
    mov.u32 %r1, 0;
fill:
    ld.global.b32 %r2, [%at];
    st.shared.b32 [%r0], %r2;
    add.u64 %at, %at, 512;
    add.u32 %r0, %r0, 512;
    add.u32 %r1, %r1, 512;
    setp.lt.u32 %more, %r1, IMAGE;
    @%more bra fill;
""",
    "init": """
    setp.eq.u32 %leader, %t, 0;
    @%leader mbarrier.init.shared::cta.b64 [%bar], 1;
    @%leader fence.mbarrier_init.release.cluster;
    setp.ne.u32 %p, %w, 0;
    @%p bra allocated;
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%slot], COLUMNS;
    tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
allocated:
""",
    "proxy": "    fence.proxy.async.shared::cta;\n",
    "publish allocation": "    tcgen05.fence::before_thread_sync;\n    bar.sync 0;\n"
    "    tcgen05.fence::after_thread_sync;\n    ld.shared.b32 %tmem, [%slot];\n"
    "    add.u32 %row, %row, %tmem;\n",
    "before product": "",
    "product": "    @!%leader bra issued;\nPRODUCT\n    COMMIT\nissued:\n",
    "wait": """
wait:
    mbarrier.try_wait.parity.shared::cta.b64 %p, [%bar], 0;
    @!%p bra wait;
""",
    "after product": "    tcgen05.fence::after_thread_sync;\n",
    "load": "    tcgen05.ld.sync.aligned.32x32b.xN.b32 {REGISTERS}, [%row];\n",
    "wait load": "    tcgen05.wait::ld.sync.aligned;\n",
    "store": "STORE",
    "before free": "    tcgen05.fence::before_thread_sync;\n    bar.sync 0;\n"
    "    tcgen05.fence::after_thread_sync;\n",
    "free": """
    @%on bra freed;
    tcgen05.dealloc.cta_group::1.sync.aligned.b32 %tmem, COLUMNS;
freed:
""",
}
COMMIT = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%bar];"


@dataclass
class Product:
    """D[128 x n] from an image of shared memory; `changes` replaces pieces by name."""

    image: np.ndarray
    n: int
    instructions: str
    columns: int = 128
    commit: str = COMMIT
    target: str = "sm_100f"
    changes: dict[str, str] = field(default_factory=dict)

    def text(self) -> str:
        registers = ", ".join(f"%d{i}" for i in range(self.n))
        store = [f"    ld.param.u64 %at, [p1];\n    mul.wide.u32 %index, %t, {4 * self.n};\n"
                 "    add.u64 %at, %at, %index;\n"]  # fmt: skip
        store += [f"    st.global.b32 [%at+{4 * i}], %d{i};\n" for i in range(self.n)]
        pieces = PIECES | self.changes
        body = "".join(pieces.values())
        for name, value in (("STORE", "".join(store)), ("PRODUCT", self.instructions),
                            ("COMMIT", self.commit), ("REGISTERS", registers),
                            ("xN", f"x{self.n}"), ("COLUMNS", str(self.columns))):  # fmt: skip
            body = body.replace(name, value)
        switch = "    setp.ne.u32 %on, %w, 0;\n"
        return (
            (HEAD + switch + body + "    ret;\n}\n")
            .replace("IMAGE", str(len(self.image)))
            .replace("sm_100f", self.target)
        )

    def run(
        self, *, seed: int = 0, rules: str = "isa", arch: str = "sm_100a", **options: Any
    ) -> np.ndarray:
        out = np.zeros((128, self.n), np.uint32)
        Module(self.text(), arch=arch, seed=seed, rules=rules, **options).launch(
            "k",
            grid=(1,),
            block=(128,),
            args=[self.image, out],
            dynamic_smem_bytes=len(self.image) + 64,
        )
        return out


def multiply(
    a: int,
    b: int,
    idesc: int,
    *,
    enable: bool,
    d: str = "%tmem",
    high: int = 0x40004040,
    kind: str = "f16",
    leading: int = 1,
    tail: str = "",
    a_tmem: str = "",
    group: int = 1,
) -> str:
    """One tcgen05.mma on operands at byte offsets a and b of the image (128-byte swizzle)."""
    lines = []
    for register, at in (("%a", a), ("%b", b)):
        lines += [
            f"    add.u32 %low, %base, {at};",
            "    bfe.u32 %low, %low, 4, 14;",
            f"    or.b32 %low, %low, {leading << 16};",
            f"    mov.b32 %high, {high:#x};",
            f"    mov.b64 {register}, {{%low, %high}};",
        ]
    lines += [
        f"    setp.ne.u32 %p, {int(enable)}, 0;",
        f"    mov.b32 %r3, {idesc:#x};",
        f"    tcgen05.mma.cta_group::{group}.kind::{kind} [{d}], {a_tmem or '%a'}, %b, %r3, "
        f"%p{tail};",
    ]
    return "\n".join(lines) + "\n"


def swizzled(rows: np.ndarray) -> np.ndarray:
    """Rows of 128 bytes as the 128-byte swizzle stores them: chunk c of row r at c ^ (r % 8)."""
    chunks = rows.view(np.uint8).reshape(len(rows), 8, 16)
    out = np.empty_like(chunks)
    for r in range(len(rows)):
        for c in range(8):
            out[r, c ^ (r % 8)] = chunks[r, c]
    return out.reshape(-1)
