# SPDX-License-Identifier: Apache-2.0
"""tcgen05: products, loads and stores in every shape, copies, allocation, lanes and columns."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from tensor_snippets import Product, multiply, swizzled

from cufmha.errors import (
    DescriptorError,
    IllegalInstruction,
    TmemAccess,
    TmemAllocation,
    UnsupportedTarget,
)

BF16 = ml_dtypes.bfloat16
RNG = np.random.default_rng(11)
SEEDS = range(4)
IDESC = {"bf16": 0x490, "f16": 0x010, "tf32": 0x910, "e4m3": 0x010, "e5m2": 0x490}
DTYPES = {"bf16": BF16, "f16": np.float16, "tf32": np.float32, "e4m3": ml_dtypes.float8_e4m3fn,
          "e5m2": ml_dtypes.float8_e5m2}  # fmt: skip


def idesc(kind: str, n: int, m: int = 128, extra: int = 0) -> int:
    return IDESC[kind] | (n >> 3) << 17 | (m >> 4) << 24 | extra


def integers(kind: str, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of 128 bytes of small integers: (the operand's bytes, its values)."""
    dtype = np.dtype(DTYPES[kind])
    values = RNG.integers(-4, 5, (rows, 128 // dtype.itemsize)).astype(np.float32)
    return values.astype(dtype).view(np.uint8).reshape(rows, 128), values


def family(kind: str) -> str:
    return kind if kind == "tf32" else "f16" if kind in ("bf16", "f16") else "f8f6f4"


def product_of(
    kind: str, n: int, *, steps: int = 4, m: int = 128, extra: int = 0
) -> tuple[Product, np.ndarray]:
    a_bytes, a = integers(kind, 128)
    b_bytes, b = integers(kind, n)
    image = np.concatenate([swizzled(a_bytes), swizzled(b_bytes)])
    text = "".join(
        multiply(32 * s, 16384 + 32 * s, idesc(kind, n, m, extra), enable=s > 0, kind=family(kind))
        for s in range(steps)
    )
    width = steps * a.shape[1] // 4
    return Product(image, n, text), a[:, :width] @ b[:, :width].T


@pytest.mark.parametrize("seed", SEEDS)
def test_four_steps_of_a_product_add_up(seed):
    product, expected = product_of("bf16", 64)
    assert (product.run(seed=seed).view(np.float32) == expected).all()


@pytest.mark.parametrize("kind", list(IDESC))
@pytest.mark.parametrize("n", [16, 32, 128])
def test_every_operand_format_multiplies_exactly_on_small_integers(kind, n):
    product, expected = product_of(kind, n, steps=1)
    product.columns = 128
    assert (product.run().view(np.float32) == expected).all()


def test_f16_accumulators_lie_in_the_low_halves():
    product, expected = product_of("f16", 32, steps=1)
    product.instructions = product.instructions.replace(
        hex(idesc("f16", 32)), hex(idesc("f16", 32) & ~0x10)
    )
    assert (product.run().astype(np.uint16).view(np.float16) == expected).all()


def test_both_operands_can_be_negated_one_by_one():
    for extra, sign in ((1 << 13, -1), (1 << 14, -1), (3 << 13, 1)):
        product, expected = product_of("bf16", 16, steps=1, extra=extra)
        assert (product.run().view(np.float32) == sign * expected).all()


def test_scale_d_halves_the_accumulator():
    product, _ = product_of("bf16", 16, steps=1)
    once = product.run().view(np.float32)
    product.instructions += multiply(0, 16384, idesc("bf16", 16), enable=True, tail=", 2")
    assert (product.run().view(np.float32) == once / 4 + once).all()


def test_lanes_that_are_disabled_keep_what_they_had():
    product, _ = product_of("bf16", 16, steps=1)
    once = product.run().view(np.float32)
    product.instructions += multiply(0, 16384, idesc("bf16", 16), enable=True).replace(
        "%r3, %p;", "%r3, {%r4, %r5, %r5, %r5}, %p;"
    )
    product.instructions = "    mov.b32 %r4, 0xF0;\n    mov.b32 %r5, 0;\n" + product.instructions
    got = product.run().view(np.float32)
    kept = np.isin(np.arange(128), range(4, 8))
    assert (got[kept] == once[kept]).all()
    assert (got[~kept] == 2 * once[~kept]).all()


def test_mn_major_operands_are_transposed():
    """B as keys x columns: 16 keys of 64 columns, a row of 128 bytes per key."""
    a_bytes, a = integers("bf16", 128)
    keys = RNG.integers(-4, 5, (64, 64)).astype(np.float32)
    b_bytes = keys.astype(BF16).view(np.uint8).reshape(64, 128)
    image = np.concatenate([swizzled(a_bytes), swizzled(b_bytes)])
    code = idesc("bf16", 64, extra=1 << 16)
    text = "".join(multiply(32 * s, 16384 + 2048 * s, code, enable=s > 0) for s in range(4))
    got = Product(image, 64, text).run().view(np.float32)
    assert (got == a @ keys).all()


def test_accumulators_of_64_rows_lie_on_16_lanes_of_each_quarter():
    product, expected = product_of("bf16", 16, steps=1, m=64)
    product.changes["load"] = (
        "    tcgen05.ld.sync.aligned.16x64b.x8.b32 "
        "{%d0, %d1, %d2, %d3, %d4, %d5, %d6, %d7}, [%row];\n"
    )
    product.changes["store"] = "STORE"
    product.n = 8
    got = product.run().view(np.float32)
    thread = np.arange(128)
    rows = 16 * (thread // 32) + 8 * (thread & 1) + thread % 32 // 4
    for j in range(8):
        assert (got[:, j] == expected[rows, 2 * j + (thread >> 1 & 1)]).all()


def test_probabilities_in_tensor_memory_multiply_values_in_shared_memory():
    """A from TMEM: 16 bf16 of a row in 8 columns, the even one in the low half."""
    p = RNG.integers(0, 5, (128, 16)).astype(np.float32)
    keys = RNG.integers(-4, 5, (16, 64)).astype(np.float32)
    image = np.concatenate([
        p.astype(BF16).view(np.uint8).reshape(-1),
        np.zeros(16384 - 4096, np.uint8),
        swizzled(keys.astype(BF16).view(np.uint8).reshape(16, 128)),
    ])  # fmt: skip
    code = idesc("bf16", 64, extra=1 << 16)
    product = Product(image, 64, multiply(0, 16384, code, enable=False, a_tmem="[%tmem+64]"))
    words = ", ".join(f"%d{i}" for i in range(8))
    product.changes["before product"] = (
        "    mad.lo.u32 %r0, %t, 32, %base;\n"
        + "".join(f"    ld.shared.b32 %d{i}, [%r0+{4 * i}];\n" for i in range(8))
        + f"    tcgen05.st.sync.aligned.32x32b.x8.b32 [%row+64], {{{words}}};\n"
        "    tcgen05.wait::st.sync.aligned;\n    tcgen05.fence::before_thread_sync;\n"
        "    bar.sync 0;\n    tcgen05.fence::after_thread_sync;\n"
    )
    for seed in SEEDS:
        assert (product.run(seed=seed).view(np.float32) == p @ keys).all()


LOADS = {
    "32x32b": (1, lambda t, r: (t, r)),
    "16x64b": (1, lambda t, r: (8 * (t & 1) + t // 4, 2 * r + (t >> 1 & 1))),
    "16x128b": (2, lambda t, r: (t // 4 + 8 * (r & 1), 4 * (r >> 1) + t % 4)),
    "16x256b": (4, lambda t, r: (t // 4 + 8 * (r >> 1 & 1), 8 * (r >> 2) + 2 * (t % 4) + (r & 1))),
}


@pytest.mark.parametrize("shape", LOADS)
def test_loads_and_stores_place_registers_as_the_shape_says(shape):
    """The tile is stored as 32x32b, one row a thread, and read in the other shape."""
    per, place = LOADS[shape]
    product, _ = product_of("bf16", 32, steps=1)
    times = 8 // per
    many = ", ".join(f"%d{i}" for i in range(32))
    few = ", ".join(f"%d{i}" for i in range(8))
    product.n = 8
    product.changes |= {
        "product": "",
        "wait": "",
        "load": "".join(f"    mad.lo.u32 %d{i}, %t, 100, {i};\n" for i in range(32))
        + f"    tcgen05.st.sync.aligned.32x32b.x32.b32 [%row], {{{many}}};\n"
        "    tcgen05.wait::st.sync.aligned;\n"
        f"    tcgen05.ld.sync.aligned.{shape}.x{times}.b32 {{{few}}}, [%row];\n",
    }
    got = product.run()
    for thread in range(128):
        for r in range(8):
            lane, column = place(thread % 32, r)
            assert got[thread, r] == (32 * (thread // 32) + lane) * 100 + column


def test_pack_takes_the_low_halves_of_two_columns():
    product, _ = product_of("bf16", 32, steps=1)
    many = ", ".join(f"%d{i}" for i in range(16))
    product.n = 8
    product.changes |= {
        "product": "",
        "wait": "",
        "load": "".join(f"    mad.lo.u32 %d{i}, %t, 100, {i};\n" for i in range(16))
        + f"    tcgen05.st.sync.aligned.32x32b.x16.b32 [%row], {{{many}}};\n"
        "    tcgen05.wait::st.sync.aligned;\n"
        "    tcgen05.ld.sync.aligned.32x32b.x8.pack::16b.b32 "
        "{%d0, %d1, %d2, %d3, %d4, %d5, %d6, %d7}, [%row];\n",
    }
    got = product.run()
    thread = np.arange(128)[:, None]
    low = thread * 100 + 2 * np.arange(8)
    assert (got == (low | (low + 1) << 16)).all()


def test_a_copy_spreads_32_rows_over_all_quarters():
    image = np.zeros(16384 + 512, np.uint8)
    words = RNG.integers(0, 2**32, (32, 4), np.uint32)
    image[16384:] = words.view(np.uint8).reshape(-1)
    copy = (
        "    add.u32 %low, %base, 16384;\n    bfe.u32 %low, %low, 4, 14;\n"
        "    or.b32 %low, %low, 0x10000;\n    mov.b32 %high, 0x00004008;\n"
        "    mov.b64 %a, {%low, %high};\n"
        "    tcgen05.cp.cta_group::1.32x128b.warpx4 [%tmem], %a;\n"
    )
    got = Product(image, 4, copy).run()
    assert (got == np.tile(words, (4, 1))).all()


def test_row_maxima_come_with_the_load_on_sm_103():
    product, expected = product_of("bf16", 32, steps=1)
    registers = ", ".join(f"%d{i}" for i in range(32))
    product.changes["load"] = (
        f"    tcgen05.ld.red.sync.aligned.32x32b.x32.max.f32 {{{registers}}}, %d40, [%row];\n"
    )
    product.changes["store"] = "    mov.b32 %d0, %d40;\nSTORE"
    with pytest.raises(UnsupportedTarget):
        product.run(arch="sm_100a")
    product.target = "sm_103a"
    got = product.run(arch="sm_103a").view(np.float32)
    assert (got[:, 0] == expected.max(axis=1)).all()


# ---- what is refused


def wrong(error: type[Exception], match: str, product: Product, **changes: str) -> None:
    product.run()
    for name, value in changes.items():
        if name == "instructions":
            product.instructions = value
        else:
            product.changes[name.replace("_", " ")] = value
    with pytest.raises(error, match=match):
        product.run()


def test_a_warp_touches_its_own_quarter_only():
    product, _ = product_of("bf16", 16, steps=1)
    wrong(
        TmemAccess, "lane 0 of tensor memory by warp 1", product,
        load="    tcgen05.ld.sync.aligned.32x32b.xN.b32 {REGISTERS}, [%tmem];\n",
    )  # fmt: skip


def test_columns_beyond_the_allocation_are_refused():
    product, _ = product_of("bf16", 16, steps=1)
    wrong(
        TmemAccess, "not allocated", product,
        load="    add.u32 %row, %row, 120;\n"
        "    tcgen05.ld.sync.aligned.32x32b.xN.b32 {REGISTERS}, [%row];\n",
    )  # fmt: skip


def test_what_is_allocated_must_be_freed():
    product, _ = product_of("bf16", 16, steps=1)
    wrong(TmemAllocation, "still allocated", product, free="")


def test_dealloc_names_the_whole_allocation():
    product, _ = product_of("bf16", 16, steps=1)
    from tensor_snippets import PIECES

    wrong(TmemAllocation, "dealloc of 64", product, free=PIECES["free"].replace("COLUMNS", "64"))


def test_allocating_after_giving_up_the_permit_is_an_error():
    product, _ = product_of("bf16", 16, steps=1)
    from tensor_snippets import PIECES

    lines = PIECES["init"].splitlines()
    alloc = next(i for i, line in enumerate(lines) if "alloc.cta" in line)
    lines[alloc], lines[alloc + 1] = lines[alloc + 1], lines[alloc]
    wrong(TmemAllocation, "relinquish", product, init="\n".join(lines) + "\n")


@pytest.mark.parametrize("columns", [48, 16, 1024])
def test_column_counts_are_powers_of_two(columns):
    product, _ = product_of("bf16", 16, steps=1)
    product.columns = columns
    with pytest.raises(TmemAllocation, match="power of two"):
        product.run()


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ("0x40004040", "0x40000040", "bits 46-48"),
        ("0x40004040", "0x60004040", "swizzle code 3"),
        ("0x40004040", "0x40204040", "reserved"),
        ("0x40004040", "0x40024040", "base offset"),
    ],
)
def test_matrix_descriptors_the_hardware_would_misread(old, new, match):
    product, _ = product_of("bf16", 16, steps=1)
    wrong(DescriptorError, match, product, instructions=product.instructions.replace(old, new))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda i: i | 1, "sparsity"),
        (lambda i: i ^ 1 << 10, "one type"),
        (lambda i: i & ~0x30, "accumulator"),
        (lambda i: i ^ 1 << 17, "shape"),
        (lambda i: i ^ 3 << 27, "shape"),
        (lambda i: i | 1 << 23, "reserved"),
    ],
)
def test_instruction_descriptors_the_hardware_would_misread(change, match):
    product, _ = product_of("bf16", 16, steps=1)
    code = idesc("bf16", 16)
    text = product.instructions.replace(hex(code), hex(change(code)))
    wrong(DescriptorError, match, product, instructions=text)


def test_a_product_is_issued_by_one_thread():
    product, _ = product_of("bf16", 16, steps=1)
    product.changes["product"] = \
        "    setp.ge.u32 %on, %t, 2;\n    @%on bra issued;\nPRODUCT\nissued:\n" \
        "    @%leader COMMIT\n    setp.ne.u32 %on, %w, 0;\n"  # fmt: skip
    with pytest.raises(IllegalInstruction, match="2 threads"):
        product.run()


def test_blocks_of_a_pair_need_a_cluster():
    product, _ = product_of("bf16", 16, steps=1)
    text = product.instructions.replace("cta_group::1", "cta_group::2")
    wrong(IllegalInstruction, "cta_group::2", product, instructions=text)
