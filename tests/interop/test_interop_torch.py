# SPDX-License-Identifier: Apache-2.0
"""torch tensors in and out, on the emulator (CPU build) and, where asked for, on a card."""

from __future__ import annotations

import numpy as np
import pytest

import cufmha
from cufmha import testing
from cufmha.errors import ArgumentError, DTypeError
from cufmha.kernels.catalog import STRATEGIES

torch = pytest.importorskip("torch", reason="torch is not installed")


def operands(dtype=torch.bfloat16, rows=70, keys=90):
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, rows, 4, 64), (2, keys, 2, 64), (2, keys, 2, 64))
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def as_bhsd(x):
    """A "bshd" tensor as the tests' NumPy arrays."""
    kind = testing.numpy_dtype({torch.bfloat16: "bf16", torch.float16: "f16"}[x.dtype])
    return x.detach().float().cpu().numpy().astype(kind).transpose(0, 2, 1, 3)


@pytest.fixture
def emulated():
    with cufmha.use_device("emulator", arch="sm_90a"):
        yield


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_cpu_tensors_give_cpu_tensors(emulated, dtype):
    q, k, v = operands(dtype)
    out, lse = cufmha.attention(q, k, v, return_lse=True, causal=True)
    assert isinstance(out, torch.Tensor) and out.dtype is dtype and out.shape == q.shape
    assert isinstance(lse, torch.Tensor) and lse.dtype is torch.float32
    testing.assert_attention_close(
        as_bhsd(out), lse.numpy(), *(as_bhsd(x) for x in (q, k, v)), causal=True
    )


def test_out_may_be_a_strided_view(emulated):
    q, k, v = operands()
    buffer = torch.full((2, 70, 8, 64), 3.0, dtype=torch.bfloat16)
    out = cufmha.attention(q, k, v, out=buffer[:, :, ::2])
    testing.assert_attention_close(as_bhsd(out), None, *(as_bhsd(x) for x in (q, k, v)))
    assert (buffer[:, :, 1::2] == 3).all()


def test_a_gradient_is_never_dropped_silently(emulated):
    q, k, v = operands(rows=4, keys=4)
    k.requires_grad_()
    with pytest.raises(DTypeError, match="k: is a torch tensor that requires grad"):
        cufmha.attention(q, k, v)
    with torch.no_grad():
        cufmha.attention(q, k, v)
    cufmha.attention(q, k.detach(), v)


def test_tensors_without_memory_of_their_own_are_refused(emulated):
    q, k, v = operands(rows=4, keys=4)
    with pytest.raises(DTypeError, match="q: "):
        cufmha.attention(q.to_sparse(), k, v)
    with pytest.raises(ArgumentError, match="q: the emulator takes arrays in CPU memory"):
        cufmha.attention(*(x.to("meta") for x in (q, k, v)))
    with pytest.raises(DTypeError, match="q: dtype must be bfloat16 or float16, got float32"):
        cufmha.attention(q.float(), k, v)


def test_a_tensor_that_is_only_traced_is_refused(emulated):
    """It has no memory, though torch gives it an address."""
    from torch._subclasses import FakeTensorMode

    q, k, v = operands()
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = mode.from_tensor(k)
    with pytest.raises(DTypeError, match=r"k: is a FakeTensor, which has no memory"):
        cufmha.attention(q, fake, v)


def test_cpu_tensors_are_not_run_slowly_without_being_asked():
    with (
        cufmha.use_device("cuda"),
        pytest.raises(ArgumentError, match=r'use_device\("emulator"\)'),
    ):
        cufmha.attention(*operands(rows=4, keys=4))


def test_parameters_and_subclasses_are_tensors(emulated):
    class Mine(torch.Tensor):
        pass

    q, k, v = operands(rows=4, keys=4)
    expected = cufmha.attention(q, k, v)
    with torch.no_grad():
        got = cufmha.attention(torch.nn.Parameter(q), k.as_subclass(Mine), v)
    assert torch.equal(got, expected)


def test_torch_and_numpy_may_be_mixed(emulated):
    q, k, v = operands(torch.float16)
    got = cufmha.attention(q, k.numpy(), v.numpy())
    assert isinstance(got, torch.Tensor) and torch.equal(got, cufmha.attention(q, k, v))
    assert isinstance(cufmha.attention(q.numpy(), k, v), np.ndarray)


@pytest.mark.card
def test_the_current_stream_is_used_and_nothing_waits():
    """A long kernel is queued first; the result is right although the call returned before it."""
    with cufmha.use_device("cuda"):
        q, k, v = (x.cuda() for x in operands(rows=300, keys=300))
        expected = cufmha.attention(q, k, v)
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        late = torch.zeros_like(q)
        with torch.cuda.stream(stream):
            torch.cuda._sleep(200_000_000)
            late.copy_(q)
            got = cufmha.attention(late, k, v)
            assert not stream.query(), "the call waited for the card"
        stream.synchronize()
        assert torch.equal(got, expected)


@pytest.mark.card
@pytest.mark.parametrize("num_splits", [1, 3])
def test_a_bound_launch_can_be_captured_in_a_graph(num_splits):
    with cufmha.use_device("cuda"):
        q, k, v = (x.cuda() for x in operands())
        out = torch.empty_like(q)
        spec, shape = cufmha.AttentionSpec.of(q, k, v), cufmha.ProblemShape.of(q, k, v)
        bound = cufmha.plan(spec, shape, num_splits=num_splits).bind(q, k, v, out)
        expected = cufmha.attention(q, k, v, num_splits=num_splits)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            bound()
        out.zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, expected)


@pytest.mark.card
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_graph_of_packed_sequences_follows_offsets_that_change_between_replays(strategy):
    with cufmha.use_device("cuda"):
        q, k, v = (torch.randn(700, 4, 128, dtype=torch.bfloat16, device="cuda") for _ in "qkv")
        cu = torch.tensor([0, 300, 430, 700], dtype=torch.int32, device="cuda")
        out = torch.empty_like(q)
        spec = cufmha.AttentionSpec(
            num_heads_q=4, num_heads_kv=4, head_dim=128, layout="thd", strategy=strategy
        )
        shape = cufmha.PackedShape(batch=3, total_q=700, total_k=700)
        bound = cufmha.plan(spec, shape).bind(q, k, v, cu, cu, out)
        bound()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            bound()
        for ends in ([300, 430, 700], [0, 1, 700], [256, 512, 700], [700, 700, 700]):
            cu[1:] = torch.tensor(ends, dtype=torch.int32)
            out.zero_()
            graph.replay()
            torch.cuda.synchronize()
            fresh = cufmha.attention_varlen(q, k, v, cu.clone(), cu.clone(), strategy=strategy)
            assert torch.equal(out, fresh), ends


@pytest.mark.card
def test_nothing_but_out_and_lse_is_allocated():
    with cufmha.use_device("cuda"):
        q, k, v = (x.cuda() for x in operands(rows=1024, keys=1024))
        cufmha.attention(q, k, v)
        torch.cuda.synchronize()
        before, free = torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]
        out, lse = cufmha.attention(q, k, v, return_lse=True)
        grown = torch.cuda.memory_allocated() - before
        assert grown == sum(-(-x.nbytes // 512) * 512 for x in (out, lse))
        assert torch.cuda.mem_get_info()[0] >= free - (2 << 20)


@pytest.mark.card
def test_cuda_tensors_never_go_to_the_emulator():
    q, k, v = (x.cuda() for x in operands(rows=4, keys=4))
    with (
        cufmha.use_device("emulator", arch="sm_90a"),
        pytest.raises(ArgumentError, match=r'use_device\("cuda"\)'),
    ):
        cufmha.attention(q, k, v)
    with cufmha.use_device("cuda"), pytest.raises(ArgumentError, match="k: must be on card 0"):
        cufmha.attention(q, k.cpu(), v)


@pytest.mark.card
def test_the_card_is_that_of_q():
    if torch.cuda.device_count() < 2:
        pytest.skip("one card only")
    with cufmha.use_device("cuda"):
        on_0 = [x.cuda(0) for x in operands()]
        on_1 = [x.cuda(1) for x in operands()]
        expected = cufmha.attention(*on_0)
        got = cufmha.attention(*on_1)
        assert got.device.index == 1 and torch.cuda.current_device() == 0
        assert torch.equal(got.cpu(), expected.cpu())
        with pytest.raises(ArgumentError, match="k: must be on card 0"):
            cufmha.attention(on_0[0], *on_1[1:])
