# SPDX-License-Identifier: Apache-2.0
"""What tcgen05 and wgmma leave undefined: each mistake raises its own error, its twin runs."""

from __future__ import annotations

import pytest
from tensor_snippets import PIECES, Product, multiply
from test_matrix_tcgen05 import idesc, product_of
from warpgroup_snippets import Warpgroup

from cufmha.errors import (
    AsyncReuse,
    ConvergenceError,
    DataRace,
    Deadlock,
    DescriptorError,
    IllegalInstruction,
    MissingProxyFence,
    MissingTcgen05Fence,
    MissingTcgen05Wait,
    MissingWgmmaFence,
    MissingWgmmaWait,
    OutOfBounds,
    TmemAccess,
    Uninitialized,
)

SEEDS = range(3)


def tensor_product() -> Product:
    return product_of("bf16", 16, steps=1)[0]


def assert_wrong(error, product, *, rules="isa", **changes):
    """The product runs; with a piece changed it raises the error, whatever the timing."""
    product.run(rules=rules)
    for name, value in changes.items():
        product.changes[name.replace("_", " ")] = value
    for seed in SEEDS:
        with pytest.raises(error) as raised:
            product.run(seed=seed, rules=rules)
    return raised.value


# ---- tcgen05


def test_operands_written_by_threads_need_a_proxy_fence():
    error = assert_wrong(MissingProxyFence, tensor_product(), proxy="")
    assert "tcgen05.mma" in str(error)


def test_results_need_the_wait_for_the_product():
    error = assert_wrong(AsyncReuse, tensor_product(), wait="    bar.sync 0;\n")
    assert "tcgen05.mma" in str(error)


def test_results_need_the_fence_behind_the_wait():
    assert_wrong(MissingTcgen05Fence, tensor_product(), after_product="")


def test_hardware_rules_do_without_the_fences():
    product = tensor_product()
    product.changes["after product"] = ""
    product.run(rules="hardware")


def test_loaded_registers_need_wait_ld():
    error = assert_wrong(MissingTcgen05Wait, tensor_product(), wait_load="")
    assert "%d0" in str(error)


def test_cells_that_nothing_wrote_are_not_read():
    product = tensor_product()
    load = PIECES["load"].replace("%row]", "%row+32]")
    assert_wrong(Uninitialized, product, load=load)


def test_an_accumulator_that_nothing_wrote_is_not_added_to():
    product = tensor_product()
    product.run()
    product.instructions = multiply(0, 16384, idesc("bf16", 16), enable=True)
    with pytest.raises(Uninitialized):
        product.run()


SECOND = """
    bar.sync 0;
    @!%leader bra again;
AGAIN
again:
"""


def overwriting(before: str) -> dict[str, str]:
    """Each warp loads; then thread 0 issues a second product into the same columns."""
    again = multiply(0, 16384, idesc("bf16", 16), enable=False)
    done = """
    @%leader tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%bar];
wait2:
    mbarrier.try_wait.parity.shared::cta.b64 %p, [%bar], 1;
    @!%p bra wait2;
    """
    return {"wait load": before + SECOND.replace("AGAIN", again) + done}


READ = "    tcgen05.wait::ld.sync.aligned;\n"
BEFORE = "    tcgen05.fence::before_thread_sync;\n"
AFTER = "    bar.sync 0;\n    tcgen05.fence::after_thread_sync;\n"


def test_an_accumulator_is_overwritten_after_its_readers_are_through():
    good = tensor_product()
    good.changes = overwriting(READ + BEFORE + AFTER)
    for seed in SEEDS:
        good.run(seed=seed)
    for error, before in (
        (MissingTcgen05Fence, READ + AFTER),
        (MissingTcgen05Fence, READ + BEFORE),
        (MissingTcgen05Wait, BEFORE + AFTER),
    ):
        bad = tensor_product()
        bad.changes = overwriting(before)
        with pytest.raises(error):
            bad.run()


def test_a_store_needs_its_wait_before_the_product_reads_it():
    def product(wait: str) -> Product:
        found = tensor_product()
        code = idesc("bf16", 16)
        found.instructions = multiply(0, 16384, code, enable=False, a_tmem="[%tmem+64]")
        words = ", ".join(f"%d{i}" for i in range(8))
        found.changes["before product"] = (
            "".join(f"    mov.b32 %d{i}, 0;\n" for i in range(8))
            + f"    tcgen05.st.sync.aligned.32x32b.x8.b32 [%row+64], {{{words}}};\n"
            + wait + BEFORE + AFTER
        )  # fmt: skip
        return found

    product("    tcgen05.wait::st.sync.aligned;\n").run()
    with pytest.raises(MissingTcgen05Wait):
        product("").run()


def test_products_into_different_accumulators_are_not_in_order_by_the_isa():
    """The second product overwrites what the first one reads as A."""
    code = idesc("bf16", 16)

    def product() -> Product:
        found = tensor_product()
        words = ", ".join(f"%d{i}" for i in range(8))
        found.changes["before product"] = (
            "".join(f"    mov.b32 %d{i}, 0;\n" for i in range(8))
            + f"    tcgen05.st.sync.aligned.32x32b.x8.b32 [%row+64], {{{words}}};\n"
            + "    tcgen05.wait::st.sync.aligned;\n" + BEFORE + AFTER
        )  # fmt: skip
        found.instructions = (
            multiply(0, 16384, code, enable=False, a_tmem="[%tmem+64]")
            + "    add.u32 %r6, %tmem, 64;\n"
            + multiply(0, 16384, code, enable=False, d="%r6")
        )
        return found

    product().run(rules="hardware")
    with pytest.raises(AsyncReuse):
        product().run()


def test_operands_are_not_overwritten_while_a_product_reads_them():
    twin = "    setp.eq.u32 %p, %t, 64;\n    @%p st.shared.b32 [%base], 0;\n"
    good = tensor_product()
    good.changes["after product"] = PIECES["after product"] + twin
    good.run()
    bad = tensor_product()
    bad.changes["wait"] = "    bar.sync 0;\n" + twin + PIECES["wait"]
    with pytest.raises(AsyncReuse):
        bad.run(seed=1)


def test_columns_are_not_freed_while_others_read_them():
    assert_wrong((DataRace, MissingTcgen05Wait, TmemAccess), tensor_product(), before_free="")


def test_operands_lie_within_shared_memory():
    product = tensor_product()
    product.run()
    product.instructions = multiply(0, 64 * 1024, idesc("bf16", 16), enable=False)
    with pytest.raises(OutOfBounds):
        product.run()


# ---- wgmma


def test_wgmma_results_need_the_wait():
    for seed in SEEDS:
        Warpgroup().run(seed=seed)
        with pytest.raises(MissingWgmmaWait) as raised:
            Warpgroup(wait="").run(seed=seed)
        assert "%d0" in str(raised.value)


def test_waiting_for_all_but_one_group_leaves_the_last_one_running():
    twice = "PRODUCT\n    wgmma.commit_group.sync.aligned;\n"
    good = Warpgroup(before=twice, wait="    wgmma.wait_group.sync.aligned 0;\n")
    good.run()
    with pytest.raises(MissingWgmmaWait):
        Warpgroup(before=twice, wait="    wgmma.wait_group.sync.aligned 1;\n").run()


def test_a_product_that_was_not_committed_is_not_waited_for():
    with pytest.raises(MissingWgmmaWait):
        Warpgroup(commit="").run()


def test_registers_written_by_threads_need_the_fence():
    Warpgroup(accumulate=True).run()
    with pytest.raises(MissingWgmmaFence):
        Warpgroup(accumulate=True, fence="").run()


def test_results_that_were_touched_need_the_fence_again():
    again = "PRODUCT\n    wgmma.commit_group.sync.aligned;\n    wgmma.wait_group.sync.aligned 0;\n"
    touch = "    add.f32 %d0, %d0, 0f3F800000;\n"
    Warpgroup(before=again, accumulate=True).run()
    Warpgroup(before=again + touch + "    wgmma.fence.sync.aligned;\n", accumulate=True).run()
    with pytest.raises(MissingWgmmaFence):
        Warpgroup(before=again + touch, accumulate=True).run()


def test_wgmma_operands_written_by_threads_need_a_proxy_fence():
    with pytest.raises(MissingProxyFence):
        Warpgroup(proxy="").run()


def test_wgmma_operands_are_not_overwritten_meanwhile():
    twin = "    bar.sync 0;\n    st.shared.b32 [%mine], 0;\n"
    Warpgroup(after=twin).run()
    with pytest.raises(AsyncReuse):
        Warpgroup(wait=twin + "    wgmma.wait_group.sync.aligned 0;\n").run(seed=1)


def test_accumulators_in_flight_go_on_in_the_same_shape_only():
    Warpgroup(before="PRODUCT\n").run()
    with pytest.raises(MissingWgmmaWait):
        Warpgroup(before="    " + Warpgroup.form(8) + "\n").run()


def test_all_four_warps_issue_the_product():
    skip = "    setp.ge.u32 %p, %t, 96;\n    @%p bra out;\n"
    with pytest.raises((Deadlock, ConvergenceError)):
        Warpgroup(before=skip).run()


def test_all_four_warps_name_the_same_matrices():
    skew = "    setp.ge.u32 %p, %t, 96;\n    @%p add.u64 %b, %b, 2;\n"
    with pytest.raises(IllegalInstruction, match="differ"):
        Warpgroup(before=skew).run()


def test_wgmma_descriptors_have_no_reserved_bits():
    with pytest.raises(DescriptorError):
        Warpgroup(before="    or.b64 %b, %b, 0x400000000000;\n").run()
