# SPDX-License-Identifier: Apache-2.0
"""Plans for packed sequences: what they refuse and how, what a launch is given, what they keep."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest
from fake_device import FakeDevice

import cufmha
from cufmha import functional
from cufmha.array import dlpack
from cufmha.errors import ArgumentError, CufmhaError, DTypeError, PlanError
from cufmha.kernels.catalog import STRATEGIES
from cufmha.spec import PACKED

BF16 = np.dtype(ml_dtypes.bfloat16)


def operands(rows=300, keys=70, heads=4, heads_kv=2, dim=64):
    return (
        np.zeros((rows, heads, dim), BF16),
        np.zeros((keys, heads_kv, dim), BF16),
        np.zeros((keys, heads_kv, dim), BF16),
    )


def offsets(*values, dtype=np.int32):
    return np.array(values, dtype)


CU_Q, CU_K = offsets(0, 100, 300), offsets(0, 20, 70)


@pytest.fixture
def fake(monkeypatch):
    device = FakeDevice()
    monkeypatch.setattr(functional, "device_for", lambda view: device)
    monkeypatch.setattr(functional, "_varlen_plans", type(functional._varlen_plans)())
    return device


def call(cu_q=CU_Q, cu_k=CU_K, **options):
    q, k, v = operands()
    q, k, v = options.pop("q", q), options.pop("k", k), options.pop("v", v)
    return cufmha.attention_varlen(q, k, v, cu_q, cu_k, **options)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"cu_q": offsets(0, 1, dtype=np.int16)}, DTypeError, "cu_seqlens_q: .*int32 or int64"),
        ({"cu_q": offsets()}, ArgumentError, "cu_seqlens_q: .*at least 1, got 0"),
        ({"cu_q": np.zeros((2, 2), np.int32)}, ArgumentError, "cu_seqlens_q: must have 1 axis"),
        ({"cu_k": offsets(0, 70)}, ArgumentError, "cu_seqlens_k: must have 3 entries, got 2"),
        ({"cu_q": np.arange(6, dtype=np.int32)[::2]}, ArgumentError, "cu_seqlens_q: must be dense"),
        ({"seqused_k": offsets(1)}, ArgumentError, "seqused_k: must have 2 entries, got 1"),
        ({"strategy": "best"}, ArgumentError, "strategy: .*best"),
        ({"strategy": np.array(["split", "mask"])}, ArgumentError, "strategy: must be one of"),
        ({"max_seqlen_q": -1}, ArgumentError, "max_seqlen_q: must be 0 to .*got -1"),
        ({"max_seqlen_k": 1.5}, DTypeError, "max_seqlen_k: must be a whole number"),
        ({"q": np.zeros((300, 4), BF16)}, ArgumentError, "q: .*3 axes"),
        ({"q": np.zeros((300, 3, 64), BF16)}, ArgumentError, "heads"),
        ({"out": np.zeros((299, 4, 64), BF16)}, ArgumentError, "out: .*300"),
        ({"lse": np.zeros((300, 4), np.float32)}, ArgumentError, "lse: .*4, 300"),
        ({"causal": "bottom"}, ArgumentError, "causal"),
    ],
)
def test_bad_input_is_refused_by_name_and_nothing_runs(fake, given, error, message):
    with pytest.raises(error, match=message):
        call(**given)
    assert not fake.launches


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cu_q": offsets(-1, 100, 300)}, r"cu_seqlens_q\[0\]: must be at least 0, got -1"),
        ({"cu_q": offsets(0, 200, 100)}, r"cu_seqlens_q\[2\]: .*entry before, 200, got 100"),
        ({"cu_k": offsets(0, 20, 71)}, r"cu_seqlens_k\[2\]: must be at most 70, .*got 71"),
        ({"max_seqlen_q": 150}, r"cu_seqlens_q\[2\]: must be at most 250, .*150, got 300"),
        ({"seqused_k": offsets(3, 51)}, r"seqused_k\[1\]: must be 0 to 50, .*got 51"),
    ],
)
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_check_names_the_first_wrong_entry(fake, given, message, dtype):
    given = {k: x.astype(dtype) if isinstance(x, np.ndarray) else x for k, x in given.items()}
    with pytest.raises(ArgumentError, match=message):
        call(check=True, **given)
    assert not fake.launches
    call(**given)  # unchecked, they are clamped by the kernel
    assert len(fake.launches) == 2


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_launch_prepares_the_work_and_then_attends(fake, strategy):
    call(strategy=strategy)
    (schedule, blocks, given, _), (forward, grid, values, _) = fake.launches
    assert schedule.operation == "varlen_schedule" and blocks == 1
    assert forward.strategy == strategy and 1 <= grid <= fake.processors
    assert (given["batch"], given["total_q"], given["total_k"]) == (2, 300, 70)
    assert given["workspace"] == values["workspace"]
    assert (values["num_heads_q"], values["group_size"]) == (4, 2)


def test_calls_with_other_offsets_share_a_plan_and_its_launch(fake):
    q, k, v = operands()
    out = np.zeros_like(q)
    cu_q = CU_Q.copy()
    for end in (100, 50, 299):
        cu_q[1] = end
        cufmha.attention_varlen(q, k, v, cu_q, CU_K, out=out)
    encoded = len(fake.encoded)
    cufmha.attention_varlen(q, k, v, cu_q, CU_K, out=out)
    assert len(fake.encoded) == encoded and len(fake.workspaces) == 1
    assert len(functional._varlen_plans) == 1


def test_host_time_shapes_nearby_share_a_plan(fake):
    for rows in (290, 300, 310):
        q, k, v = operands(rows=rows)
        cufmha.attention_varlen(q, k, v, offsets(0, rows), offsets(0, 70))
    assert len(functional._varlen_plans) == 1


def test_host_time_the_longest_sequence_makes_no_other_plan(fake):
    for longest in (250, 260, None):
        call(max_seqlen_q=longest, max_seqlen_k=longest)
    assert len(functional._varlen_plans) == 1
    with pytest.raises(ArgumentError, match="max_seqlen_q is 150"):
        call(max_seqlen_q=150, check=True)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_workspace_is_small(strategy):
    spec = cufmha.AttentionSpec(
        num_heads_q=32, num_heads_kv=8, head_dim=128, layout=PACKED, strategy=strategy
    )
    shape = cufmha.PackedShape(batch=8192, total_q=1 << 20, total_k=1 << 20)
    plan = cufmha.plan(spec, shape, device=FakeDevice(processors=148))
    assert 0 < plan.workspace_bytes <= 1_000_000
    assert str(plan.workspace_bytes) in str(plan.explain())


def test_a_plan_refuses_what_is_beyond_it(fake):
    spec = cufmha.AttentionSpec(num_heads_q=4, num_heads_kv=2, head_dim=64, layout=PACKED)
    shape = cufmha.PackedShape(batch=2, total_q=300, total_k=70)
    plan = cufmha.plan(spec, shape, device=fake)
    q, k, v = operands(rows=301)
    with pytest.raises(ArgumentError, match=r"q: number of tokens: .*at most 300, got 301"):
        plan.run(q, k, v, offsets(0, 1, 301), CU_K)
    q, k, v = operands()
    with pytest.raises(ArgumentError, match=r"number of sequences: .*at most 2, got 3"):
        plan.run(q, k, v, offsets(0, 1, 2, 3), offsets(0, 1, 2, 3))
    with pytest.raises(PlanError, match="lse"):
        plan.run(q, k, v, CU_Q, CU_K, return_lse=True)
    with pytest.raises(PlanError, match="lse"):
        plan.bind(q, k, v, CU_Q, CU_K, np.zeros_like(q), np.zeros((4, 300), np.float32))
    plan.run(q[:9], k[:5], v[:5], offsets(0, 9), offsets(0, 5))  # less is within it
    assert len(fake.launches) == 2


def test_results_must_not_lie_over_themselves(fake):
    q, _, _ = operands()
    rows = np.lib.stride_tricks.as_strided(q.copy(), q.shape, (128, 128, 2))
    with pytest.raises(ArgumentError, match="out: no two elements may share memory"):
        call(out=rows)
    lse = np.lib.stride_tricks.as_strided(np.zeros(1200, np.float32), (4, 300), (4, 4))
    with pytest.raises(ArgumentError, match="lse: no two elements may share memory"):
        call(lse=lse)
    assert not fake.launches


def test_the_stride_of_a_single_head_is_never_taken(fake):
    q, k, v = operands(heads=1, heads_kv=1)
    lse = np.zeros((2, 300), np.float32)[::-1][:1]
    call(q=q, k=k, v=v, lse=lse)
    assert fake.launches[-1][2]["lse_stride_head"] == 0


def test_results_must_not_lie_over_operands(fake):
    q, k, v = operands()
    with pytest.raises(CufmhaError, match=r"out: .*q"):
        cufmha.attention_varlen(q, k, v, CU_Q, CU_K, out=q)
    assert not fake.launches


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_a_bound_launch_reads_its_offsets_anew(kind):
    """On the emulator: contents change between launches, nothing is bound again."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((40, 1, 64)).astype(BF16) for _ in "qkv")
    cu = np.array([0, 10, 40], kind)
    out = np.zeros_like(q)
    with cufmha.use_device("emulator", arch="sm_90a"):
        spec = cufmha.AttentionSpec(num_heads_q=1, num_heads_kv=1, head_dim=64, layout=PACKED)
        shape = cufmha.PackedShape(batch=2, total_q=40, total_k=40)
        launch = cufmha.plan(spec, shape).bind(q, k, v, cu, cu, out)
        for middle in (10, 33):
            cu[1] = middle
            launch()
            fresh = cufmha.attention_varlen(q, k, v, cu.copy(), cu.copy())
            assert (out.view(np.int16) == fresh.view(np.int16)).all()


def test_threads_may_run_a_plan_on_one_stream_at_once():
    """A launch is several steps in the stream, and the table of work is shared."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((150, 1, 64)).astype(BF16) for _ in "qkv")
    given = [offsets(0, 150, 150, 150), offsets(0, 10, 20, 150), offsets(0, 50, 100, 150)]
    spec = cufmha.AttentionSpec(num_heads_q=1, num_heads_kv=1, head_dim=64, layout=PACKED)
    shape = cufmha.PackedShape(batch=3, total_q=150, total_k=150)
    with cufmha.use_device("emulator", arch="sm_90a"):
        plan = cufmha.plan(spec, shape)
    alone = [plan.run(q, k, v, cu, cu) for cu in given]
    with ThreadPoolExecutor(len(given)) as pool:
        together = list(pool.map(lambda cu: plan.run(q, k, v, cu, cu), given))
    for ours, wanted in zip(together, alone, strict=True):
        assert (ours.view(np.int16) == wanted.view(np.int16)).all()


def test_a_stream_of_each_thread_has_a_workspace_in_each(fake):
    """Handle 2 names another stream in every thread, so nothing orders their launches."""
    call(stream=2)
    call(stream=2)
    assert len(fake.workspaces) == 1
    with ThreadPoolExecutor(1) as pool:
        pool.submit(call, stream=2).result()
    assert len(fake.workspaces) == 2


def on_card(array):
    """The array as a producer that says it is in the memory of card 0."""
    code, bits = cufmha.DType.BF16.dlpack
    return dlpack.Exporter(
        array, address=array.ctypes.data, shape=array.shape, strides=dlpack.dense(array.shape),
        type_code=code, bits=bits, device=(dlpack.CUDA, 0),
    )  # fmt: skip


def test_offsets_that_were_copied_to_a_card_are_not_kept(fake, monkeypatch):
    monkeypatch.setattr(fake, "kind", "cuda")
    q, k, v = operands()
    cu = CU_Q.copy()
    gone = weakref.ref(cu)
    cufmha.attention_varlen(*map(on_card, (q, k, v)), cu, CU_K, out=on_card(np.zeros_like(q)))
    assert len(fake.launches) == 2
    del cu
    gc.collect()
    assert gone() is None
