# SPDX-License-Identifier: Apache-2.0
"""The descriptors of every product, bit by bit, against fields that are put together here.

Nothing here is decoded by the package: the constants are read off the rendered texts, and what the
products receive in a run on the emulator is recorded as bare numbers. PTX ISA 9.7.16.4 (tcgen05)
and 9.7.15.5.1.2 (wgmma).
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import forward
import numpy as np
import pytest
from kernel_sample import sampled

import cufmha
from cufmha.device.emulator import Emulator
from cufmha.emu.ops import tcgen05_mma, wgmma
from cufmha.kernels import catalog
from cufmha.kernels.render import render

HOPPER, BLACKWELL = (
    [v for v in sampled(chip) if v.operation == "fmha_fwd"] for chip in ("sm_90a", "sm_100a")
)
GROUP = 1024  # bytes of eight rows of 128: the pattern of the 128-byte swizzle repeats after them
STEP = 16  # of k in one product of 16-bit operands


def matrix(arch: str, *, start: int = 0, leading: int = 16, stride: int = GROUP) -> int:
    """A shared-memory descriptor for the 128-byte swizzle; offsets in bytes.

    Bits 0-13 start / 16, 16-29 leading offset / 16, 32-45 stride offset / 16. tcgen05 has the
    constant 0b001 in 46-48 and codes the swizzle as 2 in 61-63, wgmma as 1 in 62-63.
    """
    bits = start // 16 | leading // 16 << 16 | stride // 16 << 32
    return bits | (1 << 62 if arch == "sm_90a" else 1 << 46 | 2 << 61)


def instruction(dtype: str, *, m: int, n: int, mn_major_b: bool = False) -> int:
    """An instruction descriptor for accumulators of f32.

    Bits 4-5 accumulators (1: f32), 7-9 and 10-12 operands (0: f16, 1: bf16), 16 B's major,
    17-22 n / 8, 24-28 m / 16.
    """
    operand = {"f16": 0, "bf16": 1}[dtype]
    return 1 << 4 | operand * (1 << 7 | 1 << 10) | mn_major_b << 16 | n // 8 << 17 | m // 16 << 24


def numbers(text: str, pattern: str) -> set[int]:
    return {int(found, 16) for found in re.findall(pattern, text)}


def test_the_fields_give_the_words_that_are_known_to_be_right():
    assert matrix("sm_100a") == 0x40004040_00010000
    assert matrix("sm_90a") == 0x40000040_00010000
    assert matrix("sm_100a", leading=16384, start=0x2400) == 0x40004040_04000240
    assert matrix("sm_90a", leading=16384, start=0x2400) == 0x40000040_04000240
    assert instruction("bf16", m=128, n=128) == 0x08200490
    assert instruction("f16", m=128, n=128) == 0x08200010
    assert instruction("bf16", m=128, n=128, mn_major_b=True) == 0x08210490
    assert instruction("bf16", m=128, n=64) == 0x08100490
    assert instruction("bf16", m=256, n=128) == 0x10200490
    assert instruction("bf16", m=128, n=256) == 0x08400490


@pytest.mark.parametrize("variant", [*HOPPER, *BLACKWELL], ids=str)
def test_a_text_holds_one_descriptor_for_q_and_k_and_one_for_v(variant):
    text = render(variant).text
    pattern = r"add\.u64 %(q_rows|k_tiles|v_tiles), %\w+, 0x([0-9A-Fa-f]{16});"
    found = re.findall(pattern, text)
    # v's may come in two words, with the distance of its tiles from the front in the lower one
    lower = numbers(text, r"add\.u32 %v_tiles, %\w+, 0x([0-9A-Fa-f]{8});")
    upper = numbers(text, r"mov\.b64 %v_tile, \{%\w+, 0x([0-9A-Fa-f]{8})\};")
    found += [("v", f"{u << 32 | w & 0xFFFF0000:x}") for u in upper for w in lower]
    slab = variant.tile_k * 128  # from 64 columns of v to the next
    words = {"q": matrix(variant.arch), "k": matrix(variant.arch)}
    words["v"] = matrix(variant.arch, leading=slab)
    assert {"q", "v"} <= {name[0] for name, _ in found}
    assert [int(word, 16) for _, word in found] == [words[name[0]] for name, _ in found]


@pytest.mark.parametrize("variant", BLACKWELL, ids=str)
def test_the_instruction_descriptors_name_types_shape_and_the_major_of_v(variant):
    text = render(variant).text
    scores = instruction(variant.dtype, m=128, n=keys_a_product(variant))
    outputs = instruction(variant.dtype, m=128, n=variant.head_dim_v, mn_major_b=True)
    assert numbers(text, r"mov\.b32 %shape_s, 0x([0-9A-Fa-f]+);") == {scores}
    assert numbers(text, r"mov\.b32 %shape_o, 0x([0-9A-Fa-f]+);") == {outputs}


@pytest.mark.parametrize("variant", HOPPER, ids=str)
def test_wgmma_is_told_types_shape_and_the_major_of_v_by_its_name_and_operands(variant):
    text, kind = render(variant).text, f"{variant.dtype}.{variant.dtype}"
    found = re.findall(
        r"wgmma\.mma_async\.sync\.aligned\.(\S+) \{[^}]*\}, (%a|\{[^}]*\}), %b, %\w+, (.*);", text
    )
    assert len(found) == text.count("wgmma.mma_async")
    assert {(name, "regs" if a[0] == "{" else a, rest) for name, a, rest in found} == {
        (f"m64n{variant.tile_k}k16.f32.{kind}", "%a", "1, 1, 0, 0"),
        (f"m64n{variant.head_dim_v}k16.f32.{kind}", "regs", "1, 1, 1"),
    }


# ---- what the products receive in a run


@dataclass
class Recorded:
    """Bits of one product; `a` is None where A is no descriptor."""

    a: int | None
    b: int
    instruction: int = 0


class Recorder:
    """In the place of a descriptor class: remembers the bits that each decoded one came from."""

    def __init__(self, original: Any) -> None:
        self.original, self.known = original, {}

    def of(self, bits: int, *rest: Any) -> Any:
        found = self.original.of(bits, *rest)
        self.known[id(found)] = bits, found  # kept, so that the id stays its own
        return found

    def bits(self, decoded: Any) -> int:
        return self.known[id(decoded)][0]


def record(patch: pytest.MonkeyPatch, arch: str) -> dict[int, list[Recorded]]:
    """Products by who issues them, in order; filled while a launch runs."""
    products: dict[int, list[Recorded]] = defaultdict(list)
    module = wgmma if arch == "sm_90a" else tcgen05_mma
    matrices = Recorder(module.MatrixDescriptor)
    patch.setattr(module, "MatrixDescriptor", matrices)
    if arch == "sm_90a":
        issue = wgmma.WgmmaState.issue

        def issued(self: Any, request: Any, *rest: Any) -> Any:
            a = None if request.a is None else matrices.bits(request.a)
            products[id(self)].append(Recorded(a, matrices.bits(request.b)))
            return issue(self, request, *rest)

        patch.setattr(wgmma.WgmmaState, "issue", issued)
        return products
    shapes, product = Recorder(tcgen05_mma.InstructionDescriptor), tcgen05_mma.TensorProduct
    patch.setattr(tcgen05_mma, "InstructionDescriptor", shapes)

    def made(w: Any, lane: int, **given: Any) -> Any:
        a = None if isinstance(given["a"], int) else matrices.bits(given["a"])
        words = matrices.bits(given["b"]), shapes.bits(given["instruction"])
        products[id(w)].append(Recorded(a, *words))
        return product(w, lane, **given)

    patch.setattr(tcgen05_mma, "TensorProduct", made)
    return products


def chains(products: list[Recorded], length: int, *, scores: bool) -> list[list[Recorded]]:
    """The products of one kind, cut into the k-steps of one accumulator each."""
    kind = [p for p in products if (p.a is not None) == scores]
    assert kind and len(kind) % length == 0
    return [kind[at : at + length] for at in range(0, len(kind), length)]


def keys_a_product(variant: catalog.KernelVariant) -> int:
    """As many as have columns for scores that no probabilities of the tile before lie over."""
    return variant.tile_k if variant.arch == "sm_90a" or variant.head_dim_v == 64 else 64


def start(bits: int) -> int:
    return (bits & 0x3FFF) * 16


def swizzled(where: np.ndarray) -> np.ndarray:
    return where ^ (where >> 7 & 7) << 4


def stored(tile: int, rows: int, row: np.ndarray, column: np.ndarray) -> np.ndarray:
    """Address that TMA gives an element of boxes of 64 columns, one behind the other."""
    return swizzled(tile + column // 64 * rows * 128 + row * 128 + column % 64 * 2)


def read_k_major(bits: int, row: np.ndarray, k: np.ndarray) -> np.ndarray:
    stride = (bits >> 32 & 0x3FFF) * 16
    return swizzled(start(bits) + row % 8 * 128 + row // 8 * stride + k * 2)


def read_mn_major(bits: int, n: np.ndarray, k: np.ndarray) -> np.ndarray:
    leading, stride = (bits >> 16 & 0x3FFF) * 16, (bits >> 32 & 0x3FFF) * 16
    return swizzled(start(bits) + n % 64 * 2 + n // 64 * leading + k % 8 * 128 + k // 8 * stride)


def check_scores(variant: catalog.KernelVariant, chain: list[Recorded]) -> None:
    """Step after step reads 16 columns more of the same rows of q and k, as TMA has stored them."""
    wide = variant.arch == "sm_90a"
    for name, box, count in (
        ("a", variant.box_rows_q, 64 if wide else 128),
        ("b", variant.box_rows_kv, keys_a_product(variant)),
    ):
        words = [getattr(product, name) for product in chain]
        assert start(words[0]) % GROUP == 0
        row, k = np.ogrid[:count, :STEP]
        for step, bits in enumerate(words):
            assert bits == matrix(variant.arch, start=start(bits))
            wanted = stored(start(words[0]), box, row, k + STEP * step)
            np.testing.assert_array_equal(read_k_major(bits, row, k), wanted)


def check_outputs(variant: catalog.KernelVariant, chain: list[Recorded]) -> None:
    """Step after step reads 16 keys more of all columns of v."""
    assert start(chain[0].b) % GROUP == 0
    n, k = np.ogrid[: variant.head_dim_v, :STEP]
    for step, product in enumerate(chain):
        slab = variant.tile_k * 128
        assert product.b == matrix(variant.arch, start=start(product.b), leading=slab)
        wanted = stored(start(chain[0].b), variant.box_rows_kv, k + STEP * step, n)
        np.testing.assert_array_equal(read_mn_major(product.b, n, k), wanted)


@pytest.mark.parametrize("head_dims", catalog.HEAD_DIMS, ids=str)
@pytest.mark.archs("sm_90a", "sm_100a")
def test_products_of_a_run_read_q_k_and_v_where_tma_has_put_them(device, head_dims, monkeypatch):
    if device.name == "cuda":
        pytest.skip("a card does not tell what its products receive")
    variant = next(
        v for v in catalog.variants(device.arch)
        if (v.head_dim, v.head_dim_v) == head_dims and v.dtype == "bf16" and not v.causal
        and not v.strategy
    )  # fmt: skip
    products = record(monkeypatch, device.arch)
    case = forward.Case(
        seqlen_q=variant.tile_q, seqlen_k=2 * variant.tile_k, head_dim=head_dims[0],
        head_dim_v=head_dims[1],
    )  # fmt: skip
    # a chip of its own: on one that has run before, decoded descriptors are kept
    with cufmha.use_device(Emulator(device.arch, processors=4, seed=0)):
        cufmha.attention(*(x.swapaxes(1, 2) for x in case.arrays()))
    assert products
    for issued in products.values():
        for chain in chains(issued, variant.head_dim // STEP, scores=True):
            check_scores(variant, chain)
        for chain in chains(issued, variant.tile_k // STEP, scores=False):
            check_outputs(variant, chain)
    if device.arch != "sm_90a":
        seen = {(p.a is not None, p.instruction) for issued in products.values() for p in issued}
        n = variant.head_dim_v
        assert seen == {
            (True, instruction("bf16", m=128, n=keys_a_product(variant))),
            (False, instruction("bf16", m=128, n=n, mn_major_b=True)),
        }
