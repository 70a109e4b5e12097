# SPDX-License-Identifier: Apache-2.0
"""Every bad input is one sentence that names argument, rule and value; nothing is launched."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from fake_device import FakeDevice

import cufmha
from cufmha.array.overlap import overlaps_itself
from cufmha.errors import (
    ArgumentError,
    CufmhaError,
    DriverError,
    DTypeError,
    PlanError,
    UnsupportedError,
)

BF16 = np.dtype(ml_dtypes.bfloat16)


def array(*shape, dtype=BF16):
    return np.zeros(shape, dtype)


def operands(*, batch=2, rows=5, keys=7, heads=4, heads_kv=2, dim=64, dtype=BF16):
    return (
        array(batch, rows, heads, dim, dtype=dtype),
        array(batch, keys, heads_kv, dim, dtype=dtype),
        array(batch, keys, heads_kv, dim, dtype=dtype),
    )


def misaligned(shape, *, by):
    raw = np.zeros(int(np.prod(shape)) * 2 + 64, np.uint8)
    start = -raw.ctypes.data % 16 + by
    return raw[start : start + int(np.prod(shape)) * 2].view(BF16).reshape(shape)


def refusal(kind, *args, **options):
    """The text of the error; nothing may have been launched."""
    device = FakeDevice()
    with cufmha.use_device(device), pytest.raises(kind) as caught:
        cufmha.attention(*args, **options)
    assert isinstance(caught.value, CufmhaError)
    assert device.launches == []
    return str(caught.value)


@pytest.fixture
def fake():
    device = FakeDevice()
    with cufmha.use_device(device):
        yield device


Q, K, V = operands()


@pytest.mark.parametrize("position, name", list(enumerate("qkv")))
@pytest.mark.parametrize("thing", [[[1.0]], None, 3, "text", np.float32(1)])
def test_an_operand_that_is_no_array_is_refused_by_name(position, name, thing):
    given = [Q, K, V]
    given[position] = thing
    text = refusal(DTypeError, *given)
    assert text.startswith(f"{name}: must be an array")


def test_out_and_lse_that_are_no_arrays_are_refused_by_name():
    assert refusal(DTypeError, Q, K, V, out=[1]).startswith("out: must be an array")
    assert refusal(DTypeError, Q, K, V, lse=7).startswith("lse: must be an array")


def test_a_wrong_rank_names_the_shape():
    assert refusal(ArgumentError, Q[0], K, V) == "q: must have 4 axes (bshd), got 3: (5, 4, 64)"


@pytest.mark.parametrize("dtype", [np.float32, np.int16, ml_dtypes.float8_e4m3fn, ">f2"])
def test_an_unsupported_dtype_is_named(dtype):
    text = refusal(DTypeError, *(array(1, 2, 2, 64, dtype=dtype) for _ in range(3)))
    assert text.startswith("q: dtype must be bfloat16 or float16, got ")
    assert np.dtype(dtype).name in text


def test_mixed_dtypes_name_both():
    text = refusal(DTypeError, Q, K.astype(np.float16), V)
    assert text == "k: dtype must be that of q, bfloat16, got float16"


@pytest.mark.parametrize("dim", [0, 4, 12, 100, 200, 256])
def test_an_unsupported_head_dim_is_named(dim):
    text = refusal(ArgumentError, *operands(dim=dim))
    assert text == f"q: head_dim must be a multiple of 8 from 8 to 192, got {dim}"


@pytest.mark.parametrize("dim", [0, 60, 136, 192])
def test_an_unsupported_head_dim_of_v_is_named(dim):
    text = refusal(ArgumentError, Q, K, array(2, 7, 2, dim))
    assert text == f"v: head_dim must be a multiple of 8 from 8 to 128, got {dim}"


def test_a_head_dim_of_k_unlike_that_of_q_is_named():
    text = refusal(ArgumentError, Q, array(2, 7, 2, 32), V)
    assert text == "k: head_dim must be that of q, 64, got 32"


def test_head_counts_that_do_not_divide_are_named():
    text = refusal(ArgumentError, Q, array(2, 7, 3, 64), array(2, 7, 3, 64))
    assert "must be a multiple of that of k, 3, got 4" in text


def test_no_heads_at_all_are_refused():
    text = refusal(ArgumentError, Q, array(2, 7, 0, 64), array(2, 7, 0, 64))
    assert text == "k: number of heads must be at least 1, got 0"


def test_k_and_v_that_differ_are_named():
    assert "sequence length must be that of k, 7, got 6" in refusal(
        ArgumentError, Q, K, array(2, 6, 2, 64)
    )
    assert "batch must be that of q, 2, got 1" in refusal(ArgumentError, Q, K[:1], V)


def test_a_last_axis_that_is_not_dense_names_its_stride():
    text = refusal(ArgumentError, array(2, 5, 4, 128)[..., ::2], K, V)
    assert text == "q: the last axis must be dense (stride 1 element), got stride 2"


def test_a_misaligned_stride_names_its_bytes():
    k = array(2, 7, 2, 68)[..., :64]
    text = refusal(ArgumentError, Q, k, V)
    assert text == "k: strides must be multiples of 16 bytes, got 136 bytes on axis 2"


def test_a_negative_stride_is_refused():
    text = refusal(ArgumentError, Q, K[:, ::-1], V)
    assert "strides must be from 0 to 2^40 - 1 bytes, got -256 bytes on axis 1" in text


def test_a_stride_of_two_to_the_forty_is_refused():
    k = np.lib.stride_tricks.as_strided(K, (2, 7, 2, 64), (1 << 40, 256, 128, 2))
    assert "got 1099511627776 bytes on axis 0" in refusal(ArgumentError, Q, k, V)


def test_a_misaligned_base_names_the_bytes():
    text = refusal(ArgumentError, misaligned((2, 5, 4, 64), by=2), K, V)
    assert text.startswith("q: must start at a multiple of 16 bytes, got address 0x")
    assert text.endswith("(2 bytes past one)")


def test_strides_of_axes_of_extent_one_are_ignored():
    device = FakeDevice()
    q = np.lib.stride_tricks.as_strided(array(1, 5, 1, 64), (1, 5, 1, 64), (-2, 128, 3, 2))
    with cufmha.use_device(device):
        cufmha.attention(q, array(1, 7, 1, 64), array(1, 7, 1, 64))
    assert len(device.launches) == 1


def test_a_wrong_out_is_named():
    assert refusal(ArgumentError, Q, K, V, out=array(2, 5, 4, 32)) == (
        "out: shape must be (2, 5, 4, 64), got (2, 5, 4, 32)"
    )
    assert refusal(DTypeError, Q, K, V, out=array(2, 5, 4, 64, dtype=np.float16)) == (
        "out: dtype must be bfloat16, got float16"
    )
    assert "out: the last axis must be dense" in refusal(
        ArgumentError, Q, K, V, out=array(2, 5, 4, 128)[..., ::2]
    )


def test_a_wrong_lse_is_named():
    assert refusal(ArgumentError, Q, K, V, lse=array(2, 5, 4, dtype=np.float32)) == (
        "lse: shape must be (2, 4, 5), got (2, 5, 4)"
    )
    assert refusal(DTypeError, Q, K, V, lse=array(2, 4, 5, dtype=np.float64)) == (
        "lse: dtype must be float32, got float64"
    )
    assert "lse: the last axis must be dense" in refusal(
        ArgumentError, Q, K, V, lse=array(2, 4, 10, dtype=np.float32)[..., ::2]
    )


def test_a_read_only_out_is_refused():
    out = array(2, 5, 4, 64)
    out.flags.writeable = False
    assert refusal(ArgumentError, Q, K, V, out=out) == (
        "out: must be writable, got a read-only array"
    )


def overlapping(view, *strides):
    """The same shape over memory of its own, with other strides in bytes."""
    return np.lib.stride_tricks.as_strided(np.zeros_like(view), view.shape, strides)


@pytest.mark.parametrize("strides", [(0, 512, 128, 2), (128, 128, 128, 2), (2560, 512, 64, 2)])
def test_an_out_that_lies_over_itself_is_refused(strides):
    text = refusal(ArgumentError, Q, K, V, out=overlapping(Q, *strides))
    assert text.startswith("out: no two elements may share memory, got strides of (")


def test_an_lse_that_lies_over_itself_is_refused():
    lse = overlapping(array(2, 4, 5, dtype=np.float32), 80, 16, 4)
    assert refusal(ArgumentError, Q, K, V, lse=lse).startswith("lse: no two elements may share")


def test_whether_an_array_lies_over_itself_is_exact():
    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(400):
        axes = rng.integers((0, -9), (5, 10), (rng.integers(1, 5), 2)).tolist()
        grid = np.indices([n for n, _ in axes]).reshape(len(axes), -1)
        offsets = [step for _, step in axes] @ grid
        wanted = len(set(offsets.tolist())) < offsets.size
        assert overlaps_itself(axes) == wanted, axes
        seen.add(wanted)
    assert seen == {False, True}


def test_an_out_that_is_q_is_refused():
    assert refusal(ArgumentError, Q, K, V, out=Q) == (
        "out: must share no element with q, got one that does"
    )


def test_an_out_that_shares_a_row_with_v_is_refused_and_one_between_its_rows_is_not():
    buffer = array(2, 30, 4, 64)
    q, k, v = buffer[:, 0:5], array(2, 5, 4, 64), buffer[:, 10:20:2]
    assert "with v" in refusal(ArgumentError, q, k, v, out=buffer[:, 14:19])
    device = FakeDevice()
    with cufmha.use_device(device):
        cufmha.attention(q, k, v, out=buffer[:, 11:21:2])
    assert len(device.launches) == 1


def test_an_lse_inside_k_is_refused():
    k = array(2, 7, 2, 64)
    lse = k.reshape(-1).view(np.float32)[:40].reshape(2, 4, 5)
    assert "lse: must share no element with k" in refusal(ArgumentError, Q, k, V, lse=lse)


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), -float("inf"), 1e39, 10**400])
def test_a_scale_that_is_not_finite_is_refused(scale):
    assert refusal(ArgumentError, Q, K, V, softmax_scale=scale).startswith("softmax_scale: must be")


def test_other_options_are_refused_by_name():
    assert refusal(DTypeError, Q, K, V, softmax_scale="big").startswith("softmax_scale: ")
    assert refusal(DTypeError, Q, K, V, softmax_scale=[1]).startswith("softmax_scale: ")
    assert refusal(DTypeError, Q, K, V, softmax_scale="0.5").startswith("softmax_scale: ")
    assert refusal(DTypeError, Q, K, V, softmax_scale=True).startswith("softmax_scale: ")


def test_any_kind_of_number_is_a_scale(fake):
    for scale in (np.array(0.1), np.float32(0.1), 1):
        cufmha.attention(Q, K, V, softmax_scale=scale)


def test_what_only_equals_a_mask_is_none(fake):
    """0 == False, so a plan kept for False must not answer for 0."""
    cufmha.attention(Q, K, V, causal=False)
    with pytest.raises(ArgumentError, match=r"^causal: "):
        cufmha.attention(Q, K, V, causal=0)


def test_plans_of_other_things_are_refused_by_name(fake):
    spec, shape = cufmha.AttentionSpec.of(Q, K, V), cufmha.ProblemShape.of(Q, K, V)
    for call, name in (
        (lambda: cufmha.plan(None, shape), "spec"),
        (lambda: cufmha.plan(spec, None), "shape"),
        (lambda: cufmha.plan(spec, shape, device="x"), "device"),
        (lambda: cufmha.is_supported(None), "spec"),
    ):
        with pytest.raises(DTypeError, match=f"^{name}: must be"):
            call()
    assert refusal(ArgumentError, Q, K, V, causal="bottom").startswith("causal: ")
    assert refusal(ArgumentError, Q, K, V, causal=1).startswith("causal: ")
    assert refusal(ArgumentError, Q, K, V, layout="sbhd").startswith("layout: ")
    assert refusal(ArgumentError, Q, K, V, layout=np.array(["bshd"])).startswith("layout: ")
    assert refusal(DTypeError, Q, K, V, stream=object()).startswith("stream: ")
    assert refusal(DTypeError, Q, K, V, stream=True).startswith("stream: ")
    assert refusal(ArgumentError, Q, K, V, stream=-3).startswith("stream: ")


def test_the_most_basic_rule_comes_first():
    """Each operand breaks one more rule than the next error tells of."""
    wrong = array(2, 5, 4, 200, dtype=np.float32)[..., ::2]
    assert "4 axes" in refusal(ArgumentError, wrong, K[0], V)
    assert "dtype" in refusal(DTypeError, wrong, K, V)
    assert "head_dim" in refusal(ArgumentError, wrong.astype(BF16)[..., :96], K[..., :12], V)
    assert "multiple of that of k" in refusal(
        ArgumentError, array(2, 5, 4, 128)[..., ::2], array(2, 7, 3, 64), array(2, 7, 3, 64)
    )
    assert "shape must be" in refusal(
        ArgumentError, array(2, 5, 4, 128)[..., ::2], K, V, out=array(1, 5, 4, 64)
    )


def test_a_cpu_array_without_the_emulator_says_what_to_do(monkeypatch):
    monkeypatch.delenv("CUFMHA_DEVICE", raising=False)
    with pytest.raises(ArgumentError, match=r"q: must be in a card's memory.*use_device\("):
        cufmha.attention(Q, K, V)


def test_no_driver_or_no_bindings_is_one_sentence(monkeypatch):
    import sys

    from cufmha.device import cuda

    monkeypatch.setattr(cuda, "_driver", None)
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(DriverError, match=r"bindings are not installed.*CUFMHA_DEVICE=emulator"):
        cuda.driver()
    spec = cufmha.AttentionSpec(num_heads_q=1, num_heads_kv=1, head_dim=64)
    with cufmha.use_device("cuda"):
        support = cufmha.is_supported(spec)
    assert not support and "bindings" in support.reasons[0]


@pytest.mark.parametrize("wrong", ["4", 4.0, True, np.float64(4)])
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *((cufmha.AttentionSpec, x) for x in ("num_heads_q", "num_heads_kv", "head_dim")),
        *((cufmha.ProblemShape, x) for x in ("batch", "seqlen_q", "seqlen_k")),
        *((cufmha.PackedShape, x) for x in ("batch", "total_q", "total_k", "max_seqlen_q")),
    ],
)
def test_numbers_of_things_are_whole_numbers(kind, name, wrong):
    given = {
        cufmha.AttentionSpec: {"num_heads_q": 4, "num_heads_kv": 4, "head_dim": 64},
        cufmha.ProblemShape: {"batch": 1, "seqlen_q": 1, "seqlen_k": 1},
        cufmha.PackedShape: {"batch": 1, "total_q": 1, "total_k": 1},
    }[kind]
    with pytest.raises(DTypeError, match=f"^{name}: must be a whole number, got "):
        kind(**(given | {name: wrong}))


def test_a_plan_counts_beyond_numpys_integers(fake):
    """As an int32 the number of tiles would wrap around."""
    spec = cufmha.AttentionSpec(num_heads_q=np.int32(1 << 10), num_heads_kv=1, head_dim=64)
    shape = cufmha.ProblemShape(batch=np.int8(2), seqlen_q=np.int32(1 << 29), seqlen_k=1)
    tiles = -(-(1 << 29) // 192)
    with pytest.raises(UnsupportedError, match=f"at most 2147483647, got {2048 * tiles}"):
        cufmha.plan(spec, shape)


def test_use_device_refuses_what_there_is_not():
    for bad in ({"kind": "gpu"}, {"kind": "emulator", "arch": "sm_80"}):
        with pytest.raises(ArgumentError), cufmha.use_device(**bad):
            pass
    with pytest.raises(ArgumentError, match="arch"), cufmha.use_device("cuda", arch="sm_90a"):
        pass
    with (
        pytest.raises(ArgumentError, match="processors"),
        cufmha.use_device("emulator", processors=0),
    ):
        pass


def test_a_plan_refuses_other_operands_than_it_was_made_for():
    with cufmha.use_device(FakeDevice()):
        spec = cufmha.AttentionSpec.of(Q, K, V)
        plan = cufmha.plan(spec, cufmha.ProblemShape.of(Q, K, V))
        with pytest.raises(ArgumentError, match=r"k: the plan is for shape \(2, 7, 2, 64\)"):
            plan.run(Q, *operands(keys=8)[1:])
        with pytest.raises(ArgumentError, match="q: the plan is for bfloat16"):
            plan.run(*operands(dtype=np.float16))
        with pytest.raises(PlanError, match=r"lse=True"):
            plan.run(Q, K, V, return_lse=True)
        lse = array(2, 4, 5, dtype=np.float32)
        with pytest.raises(PlanError, match=r"lse=True"):
            plan.bind(Q, K, V, array(*Q.shape), lse)
        bound = plan.bind(Q, K, V, array(*Q.shape))
        with pytest.raises(PlanError, match=r"lse=True"):
            bound.rebind(lse=lse)
