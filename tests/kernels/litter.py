# SPDX-License-Identifier: Apache-2.0
"""Fills the shared memory of every processor with NaN, for what runs there next."""

from __future__ import annotations

from functools import cache
from typing import Any

BYTES = 227 * 1024
"""All the shared memory that a block may have, so that no two blocks share a processor."""
THREADS = 512
TEXT = f"""
.version 8.0
.target sm_90
.address_size 64
.extern .shared .align 16 .b8 shared_memory[];
.visible .entry litter()
{{
    .reg .b32  %at, %end, %ones;
    .reg .pred %done;
    mov.u32 %at, %tid.x;
    shl.b32 %at, %at, 4;
    mov.u32 %end, shared_memory;
    add.u32 %at, %at, %end;
    add.u32 %end, %end, {BYTES};
    mov.b32 %ones, -1;
next:
    st.volatile.shared.v4.u32 [%at], {{%ones, %ones, %ones, %ones}};
    add.u32 %at, %at, {16 * THREADS};
    setp.lt.u32 %done, %at, %end;
    @%done bra next;
    ret;
}}
"""
BLOCKS_A_PROCESSOR = 4


def litter(device: Any) -> None:
    """Leave 0xFFFF in all shared memory. The emulator's next block finds it unwritten anyway."""
    if device.name != "cuda":
        _emulated(device.arch).launch(
            "litter", grid=(1, 1, 1), block=(THREADS, 1, 1), args=[], dynamic_smem_bytes=BYTES
        )
        return
    from cufmha.device import cuda

    card = cuda.device(cuda.current_ordinal())
    with card.current():
        blocks = BLOCKS_A_PROCESSOR * card.processors
        stream = device.torch.cuda.current_stream().cuda_stream
        status = cuda.driver().cuLaunchKernel(
            _on_card(), blocks, 1, 1, THREADS, 1, 1, BYTES, stream, 0, 0
        )
        cuda.check("cuLaunchKernel", status)


@cache
def _emulated(arch: str) -> Any:
    from cufmha.emu import Module

    return Module(TEXT, arch)


@cache
def _on_card() -> Any:
    from cufmha.device import cuda

    driver = cuda.driver()
    module = cuda.check("cuModuleLoadData", driver.cuModuleLoadData(TEXT.encode() + b"\0"))
    found = driver.cuModuleGetFunction(module, b"litter")
    function = cuda.check("cuModuleGetFunction", found)
    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    status = driver.cuFuncSetAttribute(function, attribute, BYTES)
    cuda.check("cuFuncSetAttribute", status)
    return function
