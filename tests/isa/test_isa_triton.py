# SPDX-License-Identifier: Apache-2.0
"""PTX that another compiler wrote parses, prints back, and has no findings."""

from __future__ import annotations

import pytest

from cufmha.isa import parse, print_module
from cufmha.isa.check import lint

triton = pytest.importorskip("triton", reason="triton is not installed")
tl = pytest.importorskip("triton.language")

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")


@triton.jit
def product(a, b, c, depth, BLOCK: tl.constexpr, STEP: tl.constexpr):
    """One BLOCK x BLOCK tile of c = a @ b through tensor-map loads."""
    row, column = tl.program_id(0), tl.program_id(1)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for k in tl.range(0, depth, STEP):
        left = a.load([row * BLOCK, k])
        right = b.load([k, column * BLOCK])
        total = tl.dot(left, right, total)
    c.store([row * BLOCK, column * BLOCK], total.to(tl.bfloat16))


@pytest.mark.parametrize(("capability", "chip"), [(90, "sm_90a"), (100, "sm_100a")])
def test_a_compiled_product_round_trips_without_findings(capability, chip, monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    constants = {"BLOCK": 128, "STEP": 64}
    signature = {
        "a": "tensordesc<bf16[128,64]>", "b": "tensordesc<bf16[64,128]>",
        "c": "tensordesc<bf16[128,128]>", "depth": "i32",
    } | dict.fromkeys(constants, "constexpr")  # fmt: skip
    source = ASTSource(product, signature, constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32))
    text = compiled.asm["ptx"]
    module = parse(text)
    assert parse(print_module(module)) == module
    assert lint(module, chip) == []
