# SPDX-License-Identifier: Apache-2.0
"""What a launch is given, seen on a device that only records; plans, bound launches, caches."""

from __future__ import annotations

import gc
import math
import threading
import weakref

import ml_dtypes
import numpy as np
import pytest
from fake_device import FakeDevice

import cufmha
from cufmha import functional
from cufmha.array.dtype import DType
from cufmha.array.view import TensorView
from cufmha.emu.tensormap import decode
from cufmha.errors import ArgumentError, UnsupportedError
from cufmha.planning import tensor_map

BF16 = np.dtype(ml_dtypes.bfloat16)


def array(*shape, dtype=BF16):
    return np.zeros(shape, dtype)


def operands(*, batch=2, rows=300, keys=70, heads=4, heads_kv=2, dim=64, dtype=BF16):
    return (
        array(batch, rows, heads, dim, dtype=dtype),
        array(batch, keys, heads_kv, dim, dtype=dtype),
        array(batch, keys, heads_kv, dim, dtype=dtype),
    )


@pytest.fixture
def fake():
    device = FakeDevice()
    with cufmha.use_device(device):
        yield device


def launched(fake, *args, **options):
    """(variant, grid, parameters, stream) of the one launch that a call makes."""
    before = len(fake.launches)
    cufmha.attention(*args, **options)
    assert len(fake.launches) == before + 1
    return fake.launches[-1]


def address(x):
    return x.__array_interface__["data"][0]


def test_the_parameters_describe_the_problem(fake):
    q, k, v = operands()
    lse = array(2, 6, 310, dtype=np.float32)[:, 1:5, :300]
    variant, grid, values, _ = launched(fake, q, k, v, causal=True, softmax_scale=0.25, lse=lse)
    tiles = math.ceil(300 / variant.tile_q)
    assert (values["seqlen_q"], values["seqlen_k"]) == (300, 70)
    assert (values["num_heads_q"], values["group_size"]) == (4, 2)
    assert values["causal_offset"] == 70 - 300
    assert values["scale_log2"] == np.float32(0.25 / math.log(2))
    assert (values["num_tiles_q"], values["num_tiles"]) == (tiles, tiles * 8)
    assert values["lse"] == address(lse)
    assert (values["lse_stride_batch"], values["lse_stride_head"]) == (6 * 310, 310)
    assert grid == min(tiles * 8, fake.processors)


def test_the_default_scale_is_one_over_the_root_of_the_head_dim(fake):
    values = launched(fake, *operands(dim=72))[2]
    assert values["scale_log2"] == np.float32(1 / math.sqrt(72) / math.log(2))


def test_no_lse_is_address_zero(fake):
    assert launched(fake, *operands())[2]["lse"] == 0


def test_top_left_masks_have_offset_zero_and_the_causal_kernel(fake):
    variant, _, values, _ = launched(fake, *operands(), causal="top_left")
    assert variant.causal and values["causal_offset"] == 0
    assert not launched(fake, *operands())[0].causal


@pytest.mark.parametrize("dim, kernel", [(8, 64), (64, 64), (72, 128), (128, 128)])
@pytest.mark.parametrize("dtype, name", [(BF16, "bf16"), (np.float16, "f16")])
def test_the_smallest_kernel_that_fits_is_chosen(fake, dim, kernel, dtype, name):
    variant = launched(fake, *operands(dim=dim, dtype=dtype))[0]
    assert (variant.head_dim, variant.dtype, variant.arch) == (kernel, name, "sm_90a")


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_tensor_maps_follow_the_strides(fake, layout):
    """Innermost first: head_dim, rows, heads, batch, whatever the order of the axes."""
    q, k, v = operands()
    if layout == "bhsd":
        q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
    variant, _, values, _ = launched(fake, q, k, v, layout=layout)
    fields = decode(values["q_map"])
    assert fields.address == address(q)
    assert fields.dims[:4] == (64, 300, 4, 2)
    assert fields.strides[:3] == (4 * 128, 128, 300 * 4 * 128)
    assert fields.box[:4] == (64, variant.box_rows_q, 1, 1)
    assert decode(values["k_map"]).dims[:4] == (64, 70, 2, 2)
    assert decode(values["k_map"]).box[1] == variant.box_rows_kv
    assert decode(values["o_map"]).box[1] == variant.box_rows_o


def test_more_than_two_to_the_31_elements_are_separate_dimensions():
    view = TensorView(
        pointer=1 << 20, shape=(3, 1 << 20, 64, 64), strides=(1 << 38, 64 * 64, 64, 1),
        dtype=DType.BF16, device=("cuda", 0), framework="torch", readonly=False, owner=None,
    )  # fmt: skip
    spec = tensor_map(view, layout="bshd", box_rows=128)
    assert spec.dims == (64, 1 << 20, 64, 3)
    assert spec.strides == (8192, 128, 1 << 39)


def test_more_tiles_than_a_grid_holds_are_refused():
    spec = cufmha.AttentionSpec(num_heads_q=1 << 16, num_heads_kv=1, head_dim=64)
    shape = cufmha.ProblemShape(batch=1 << 15, seqlen_q=1, seqlen_k=1)
    with pytest.raises(UnsupportedError, match="at most 2147483647, got 2147483648"):
        cufmha.plan(spec, shape, device=FakeDevice())
    smaller = cufmha.ProblemShape(batch=(1 << 15) - 1, seqlen_q=1, seqlen_k=1)
    cufmha.plan(spec, smaller, device=FakeDevice())


@pytest.mark.parametrize("size", [{"batch": 0}, {"rows": 0}])
def test_an_empty_result_launches_nothing(fake, size):
    q, k, v = operands(**size)
    out, lse = cufmha.attention(q, k, v, return_lse=True)
    assert out.shape == q.shape and out.dtype == BF16
    assert lse.shape == (q.shape[0], 4, q.shape[1]) and lse.dtype == np.float32
    assert fake.launches == []
    spec = cufmha.AttentionSpec.of(q, k, v, lse=True)
    cufmha.plan(spec, cufmha.ProblemShape.of(q, k, v)).bind(q, k, v, out, lse)()
    assert fake.launches == []


def test_no_keys_are_launched_with_a_map_that_is_legal(fake):
    q, k, v = operands(keys=0)
    values = launched(fake, q, k, v)[2]
    assert values["seqlen_k"] == 0
    assert decode(values["k_map"]).spec().dims == (64, 1, 2, 2)


def test_results_are_dense_in_the_layout_and_aligned(fake):
    q, k, v = operands()
    out, lse = cufmha.attention(q, k, v, return_lse=True)
    assert out.flags.c_contiguous and out.shape == q.shape and address(out) % 16 == 0
    assert lse.shape == (2, 4, 300) and lse.dtype == np.float32
    assert isinstance(cufmha.attention(q, k, v, lse=lse), np.ndarray)


def test_out_and_lse_given_are_returned_themselves(fake):
    q, k, v = operands()
    out, lse = array(*q.shape), array(2, 4, 300, dtype=np.float32)
    got = cufmha.attention(q, k, v, out=out, lse=lse, return_lse=True)
    assert got[0] is out and got[1] is lse


def test_a_second_call_of_the_same_shapes_loads_and_encodes_nothing(fake):
    q, k, v = operands()
    out = array(*q.shape)
    cufmha.attention(q, k, v, out=out)
    encoded, loaded = len(fake.encoded), len(fake.loaded)
    first = fake.launches[-1]
    cufmha.attention(q, k, v, out=out)
    assert (len(fake.encoded), len(fake.loaded)) == (encoded, loaded)
    assert fake.launches[-1] == first and len(fake.launches) == 2


def test_fresh_arrays_of_the_same_shapes_are_read_where_they_are(fake):
    cufmha.attention(*operands())
    q, k, v = operands()
    out = array(*q.shape)
    lse = array(2, 4, 300, dtype=np.float32)
    values = launched(fake, q, k, v, out=out)[2]
    for name, x in (("q_map", q), ("k_map", k), ("v_map", v), ("o_map", out)):
        assert decode(values[name]).address == address(x)
    assert launched(fake, q, k, v, out=out, lse=lse)[2]["lse"] == address(lse)


def test_fresh_arrays_are_held_to_the_rules_too(fake):
    q, k, v = operands()
    cufmha.attention(q, k, v)
    raw = np.zeros(q.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 16 + 8
    moved = raw[start : start + q.nbytes].view(BF16).reshape(q.shape)
    with pytest.raises(ArgumentError, match="q: must start at a multiple of 16 bytes"):
        cufmha.attention(moved, k, v)
    with pytest.raises(ArgumentError, match="out: must share no element with q"):
        cufmha.attention(q, k, v, out=q)
    assert len(fake.launches) == 1


def test_options_that_compare_equal_do_not_share_a_plan(fake):
    q, k, v = operands()
    cufmha.attention(q, k, v, causal=True)
    with pytest.raises(ArgumentError, match="causal"):
        cufmha.attention(q, k, v, causal=1)
    assert launched(fake, q, k, v, softmax_scale=0)[2]["scale_log2"] == 0
    assert launched(fake, q, k, v, softmax_scale=-2.0)[2]["scale_log2"] < 0
    assert launched(fake, q, k, v)[2]["scale_log2"] > 0


def test_the_kept_plans_are_bounded(fake, monkeypatch):
    monkeypatch.setattr(functional, "_PLANS_KEPT", 8)
    for rows in range(1, 30):
        cufmha.attention(*operands(rows=rows, batch=1))
    assert len(functional._plans) <= 8


def test_the_stream_goes_with_the_launch(fake):
    class Protocol:
        def __cuda_stream__(self):
            return (0, 77)

    class Pointer:
        ptr = 78

    q, k, v = operands()
    assert launched(fake, q, k, v)[3] == 0
    assert launched(fake, q, k, v, stream=76)[3] == 76
    assert launched(fake, q, k, v, stream=Protocol())[3] == 77
    assert launched(fake, q, k, v, stream=Pointer())[3] == 78


def test_a_bound_launch_repeats_and_keeps_its_operands_alive(fake):
    class Kept(np.ndarray):
        pass

    q, k, v = operands()
    spec, shape = cufmha.AttentionSpec.of(q, k, v), cufmha.ProblemShape.of(q, k, v)
    out = array(*q.shape).view(Kept)
    alive = weakref.ref(out)
    bound = cufmha.plan(spec, shape).bind(q, k, v, out)
    del out
    gc.collect()
    assert alive() is not None
    bound()
    bound(stream=5)
    assert [launch[3] for launch in fake.launches] == [0, 5]
    assert fake.launches[0][2] == fake.launches[1][2]


def test_rebind_points_at_other_operands_and_fails_without_a_trace(fake):
    q, k, v = operands()
    spec, shape = cufmha.AttentionSpec.of(q, k, v), cufmha.ProblemShape.of(q, k, v)
    bound = cufmha.plan(spec, shape).bind(q, k, v, array(*q.shape))
    bound()
    other = array(*q.shape)
    bound.rebind(q=other)
    bound()
    with pytest.raises(ArgumentError, match="q: the plan is for shape"):
        bound.rebind(q=q[:1], k=k[:1], v=v[:1])
    with pytest.raises(ArgumentError, match="must share no element"):
        bound.rebind(out=other)
    bound()
    seen = [decode(launch[2]["q_map"]).address for launch in fake.launches]
    assert seen == [address(q), address(other), address(other)]


def test_a_plan_runs_from_many_threads(fake):
    q, k, v = operands(batch=1, rows=5)
    plan = cufmha.plan(cufmha.AttentionSpec.of(q, k, v), cufmha.ProblemShape.of(q, k, v))
    wanted, lock = set(), threading.Lock()

    def work():
        for _ in range(20):
            mine = array(*q.shape)
            with lock:
                wanted.add(address(mine))
                kept.append(mine)
            plan.run(mine, k, v)

    kept = []
    threads = [threading.Thread(target=work) for _ in range(4)]
    # A thread starts with no device chosen, but a plan brings its own.
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(fake.launches) == 80
    assert {decode(launch[2]["q_map"]).address for launch in fake.launches} == wanted


def test_a_plan_says_what_it_amounts_to(fake):
    spec = cufmha.AttentionSpec(num_heads_q=8, num_heads_kv=2, head_dim=128)
    plan = cufmha.plan(spec, cufmha.ProblemShape(batch=1, seqlen_q=1000, seqlen_k=1000))
    text = str(plan.explain())
    assert plan.workspace_bytes == 0
    for part in (plan.variant.name, f"{plan.grid} blocks", "0 bytes"):
        assert part in text


def test_specs_are_hashable_values():
    make = lambda: cufmha.AttentionSpec(num_heads_q=8, num_heads_kv=2, head_dim=128)  # noqa: E731
    assert make() == make() and hash(make()) == hash(make())
    with pytest.raises(AttributeError):
        make().head_dim = 64


def test_support_says_which_kernel_or_why_none():
    spec = cufmha.AttentionSpec(num_heads_q=8, num_heads_kv=2, head_dim=96)
    support = cufmha.is_supported(spec, arch="sm_90a")
    assert support and "sm_90a" in str(support.variant) and support.variant.head_dim == 128
    with pytest.raises(ArgumentError, match="arch"):
        cufmha.is_supported(spec, arch="sm_80")


def test_kernels_are_listed_for_chips_and_targets():
    every = cufmha.list_kernels()
    assert len({variant.name for variant in every}) == len(every) >= 8
    assert {variant.arch for variant in cufmha.list_kernels("sm_90a")} == {"sm_90a"}
    assert cufmha.list_kernels("sm_103a") == cufmha.list_kernels("sm_100f")
