# SPDX-License-Identifier: Apache-2.0
"""Code that is not ours: what Triton compiles runs on the emulator as it does on cards.

Needs `pip install triton`; no card and no driver.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from cufmha.emu import Module
from cufmha.errors import EmulationError
from cufmha.tma import TensorMapSpec

triton = pytest.importorskip("triton")

pytestmark = pytest.mark.filterwarnings("ignore")
BF16 = ml_dtypes.bfloat16
ARCHES = {"sm_90a": 90, "sm_100a": 100}
M, N, K = 256, 128, 192
QUERIES, KEYS, WIDTH = 256, 256, 128


@dataclass(frozen=True)
class Compiled:
    text: str
    name: str
    shared: int
    threads: int
    blocks: tuple[tuple[int, ...], ...]
    scratch: int


@cache
def compiled(kernel: str, arch: str, signature: tuple, constants: tuple) -> Compiled:
    import triton_kernels
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    types = dict(signature) | {name: "constexpr" for name, _ in constants}
    source = ASTSource(getattr(triton_kernels, kernel), types, dict(constants))
    options = {"num_warps": 4, "num_stages": 3}
    found = triton.compile(source, target=GPUTarget("cuda", ARCHES[arch], 32), options=options)
    text, meta = found.asm["ptx"], found.metadata
    return Compiled(
        text, kernel, meta.shared, int(re.search(r"\.reqntid (\d+)", text)[1]),
        tuple(tuple(one["block_size"]) for one in meta.tensordesc_meta or ()),
        meta.global_scratch_size,
    )  # fmt: skip


def described(array: np.ndarray, block: tuple[int, ...]) -> list[Any]:
    """A host descriptor as Triton passes it: the map, then extents and strides."""
    spec = TensorMapSpec(
        dtype="bf16", dims=tuple(reversed(array.shape)), strides=(array.strides[0],),
        box=tuple(reversed(block)), swizzle="128B",
    )  # fmt: skip
    strides = [np.uint64(s // array.itemsize) for s in array.strides]
    return [(spec, array), *(np.uint32(x) for x in array.shape), *strides]


def launch(
    code: Compiled, arch: str, grid: tuple[int, ...], arguments: list[Any], seed: int, rules: str
) -> None:
    blocks = int(np.prod(grid))
    scratch = np.zeros(max(code.scratch * blocks, 1) + 128, np.uint8)
    start = -scratch.ctypes.data % 128
    Module(code.text, arch=arch, seed=seed, rules=rules).launch(
        code.name, grid=grid, block=(code.threads,), dynamic_smem_bytes=code.shared,
        args=[*arguments, scratch[start:], np.uint64(0)],
    )  # fmt: skip


def bf16_type(*block: int) -> str:
    return f"tensordesc<bf16[{','.join(map(str, block))}]>"


def product_inputs(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((M, K)).astype(BF16)
    b = rng.standard_normal((K, N)).astype(BF16)
    return a, b, np.zeros((M, N), BF16), a.astype(np.float32) @ b.astype(np.float32)


TILES = (("BM", 128), ("BN", 128), ("BK", 64))
POINTERS = tuple((name, "*bf16") for name in "abc")


def run_product(kernel: str, arch: str, seed: int, rules: str) -> float:
    """The largest error of C."""
    a, b, c, expected = product_inputs(seed)
    sizes = [np.uint32(x) for x in (M, N, K)]
    if kernel == "plain":
        names = (*"mnk", "stride_a", "stride_b", "stride_c")
        code = compiled(kernel, arch, (*POINTERS, *((n, "i32") for n in names)), TILES)
        arguments = [a, b, c, *sizes, np.uint32(K), np.uint32(N), np.uint32(N)]
    elif kernel == "self_mapped":
        code = compiled(kernel, arch, (*POINTERS, *((n, "i32") for n in "mnk")), TILES)
        arguments = [a, b, c, *sizes]
    else:
        types = (("a", bf16_type(128, 64)), ("b", bf16_type(64, 128)), ("c", bf16_type(128, 128)))
        special = kernel == "specialized"
        code = compiled("mapped", arch, (*types, ("k", "i32")), (*TILES, ("SPECIALIZED", special)))
        maps = zip((a, b, c), code.blocks, strict=True)
        arguments = [x for array, block in maps for x in described(array, block)] + sizes[2:]
    launch(code, arch, (M // 128, N // 128), arguments, seed, rules)
    return float(np.abs(c.astype(np.float32) - expected).max())


def run_attention(arch: str, specialized: bool, seed: int, rules: str) -> float:
    rng = np.random.default_rng(seed)
    q, k, v = (rng.standard_normal((n, WIDTH)).astype(BF16) for n in (QUERIES, KEYS, KEYS))
    o = np.zeros((QUERIES, WIDTH), BF16)
    types = tuple(zip("qkvo", (bf16_type(128, WIDTH), bf16_type(64, WIDTH), bf16_type(64, WIDTH),
                               bf16_type(128, WIDTH)), strict=True))  # fmt: skip
    code = compiled(
        "attention", arch, (*types, ("keys", "i32"), ("scale", "fp32")),
        (("BM", 128), ("BN", 64), ("D", WIDTH), ("SPECIALIZED", specialized)),
    )  # fmt: skip
    maps = zip((q, k, v, o), code.blocks, strict=True)
    arguments = [x for array, block in maps for x in described(array, block)]
    scale = WIDTH**-0.5
    arguments += [np.uint32(KEYS), np.float32(scale * np.log2(np.e))]
    launch(code, arch, (QUERIES // 128,), arguments, seed, rules)
    scores = q.astype(np.float32) @ k.astype(np.float32).T * scale
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    expected = p / p.sum(axis=1, keepdims=True) @ v.astype(np.float32)
    return float(np.abs(o.astype(np.float32) - expected).max())


PRODUCTS = [
    *((kernel, arch) for kernel in ("plain", "mapped", "self_mapped") for arch in ARCHES),
    ("specialized", "sm_100a"),
]
ATTENTIONS = [("sm_90a", False), ("sm_100a", False), ("sm_100a", True)]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("kernel", "arch"), PRODUCTS)
def test_triton_products_are_right_under_every_timing(kernel, arch, seed):
    assert run_product(kernel, arch, seed, "hardware") < 0.26  # half an ulp of bf16 near 64


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("arch", "specialized"), ATTENTIONS)
def test_triton_attention_is_right_under_every_timing(arch, specialized, seed):
    assert run_attention(arch, specialized, seed, "hardware") < 4e-3


# What the text of the ISA asks for and Triton's output leaves to the hardware, by kernel.
ALARMS = {
    "MissingProxyFence": "no fence.proxy.async behind mbarrier.init or before a copy overwrites "
    "what threads wrote or read",
    "MissingTcgen05Wait": "the compiler reads registers of tcgen05.ld before tcgen05.wait::ld",
    "MissingTcgen05Fence": "barriers hand tensor memory over with no tcgen05.fence",
    "DataRace": "all warps store one value to one place",
}


@pytest.mark.parametrize(("kernel", "arch"), PRODUCTS)
def test_every_alarm_about_a_product_under_the_isas_rules_is_explained(kernel, arch):
    try:
        run_product(kernel, arch, 0, "isa")
    except EmulationError as error:
        assert type(error).__name__ in ALARMS


@pytest.mark.parametrize(("arch", "specialized"), ATTENTIONS)
def test_every_alarm_about_attention_under_the_isas_rules_is_explained(arch, specialized):
    try:
        run_attention(arch, specialized, 0, "isa")
    except EmulationError as error:
        assert type(error).__name__ in ALARMS
