# SPDX-License-Identifier: Apache-2.0
"""`attention` and `attention_varlen`: one call, over plans that are kept by the problem."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, Literal, overload

from .array.dtype import DType
from .array.stream import resolve_stream
from .array.view import as_view, framework_of
from .device import chosen, device_for
from .packed import PackedShape, check_lengths_array
from .planning import Array, Plan, Stream, plan
from .spec import (
    PACKED,
    AttentionSpec,
    Causal,
    Layout,
    Mask,
    ProblemShape,
    Strategy,
    check_layout,
    check_operands,
    check_scale,
    check_strategy,
)
from .split_kv import check_num_splits
from .varlen import VarlenPlan, input_views, rounded

_PLANS_KEPT = 256
_plans: OrderedDict[tuple[Any, ...], Plan] = OrderedDict()
_varlen_plans: OrderedDict[tuple[Any, ...], VarlenPlan] = OrderedDict()
_lock = threading.Lock()


@overload
def attention(
    q: Array, k: Array, v: Array, *, causal: Causal = False, softmax_scale: float | None = None,
    layout: Layout = "bshd", num_splits: int | None = None, out: Array | None = None,
    lse: Array | None = None, return_lse: Literal[False] = False, stream: Stream | None = None,
) -> Array: ...  # fmt: skip
@overload
def attention(
    q: Array, k: Array, v: Array, *, causal: Causal = False, softmax_scale: float | None = None,
    layout: Layout = "bshd", num_splits: int | None = None, out: Array | None = None,
    lse: Array | None = None, return_lse: Literal[True], stream: Stream | None = None,
) -> tuple[Array, Array]: ...  # fmt: skip
def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: Causal = False,
    softmax_scale: float | None = None,
    layout: Layout = "bshd",
    num_splits: int | None = None,
    out: Array | None = None,
    lse: Array | None = None,
    return_lse: bool = False,
    stream: Stream | None = None,
) -> Array | tuple[Array, Array]:
    """softmax(q·kᵀ·scale)·v; `causal=True` aligns the mask's diagonal bottom-right.

    Parameters
    ----------
    q : array (batch, seqlen_q, heads_q, head_dim), or as `layout` says
        bfloat16 or float16, of torch, NumPy, CuPy, JAX or anything with `__dlpack__`. head_dim is
        a multiple of 8 up to 192. Outer strides are any multiples of 16 bytes below 2^40.
    k : array (batch, seqlen_k, heads_kv, head_dim)
    v : array (batch, seqlen_k, heads_kv, head_dim_v)
        head_dim_v, which is out's too, is a multiple of 8 up to 128.
        heads_kv divides heads_q: query head h reads head h // (heads_q // heads_kv).
    causal : bool or "top_left"
        True: query i sees keys up to i + seqlen_k − seqlen_q. "top_left": keys up to i.
    softmax_scale : float, optional
        1/sqrt(head_dim) if left out; any finite value, 0 and below included.
    layout : "bshd" or "bhsd"
        The order of the axes of q, k, v and out.
    num_splits : int, optional
        Parts that the keys are split into, for problems with too few queries and heads to occupy
        the card: 1 to 256, where 1 never splits; chosen by the shape if left out, as `plan` tells.
    out : array like q, optional
        Written and returned. It may share no element with q, k or v.
    lse : float32 array (batch, heads_q, seqlen_q), optional
        Written, and returned with `return_lse`.
    return_lse : bool
        Return (out, lse): the natural log-sum-exp of the scaled scores of each query.
    stream : optional
        A handle, or an object with `__cuda_stream__`, `.cuda_stream` or `.ptr`; the current
        stream of q's framework if left out. Nothing here waits for the card.

    Returns
    -------
    out, or (out, lse)
        In q's framework. A query that sees no key gets 0, and −inf in lse.

    Raises
    ------
    ArgumentError, DTypeError
        For an operand that breaks a rule; nothing is written then. A torch tensor that requires
        grad (outside `torch.no_grad()`) and a JAX tracer are refused: no gradient is computed.
    UnsupportedError, DriverError, AssemblyError
        If there is no kernel, no card or driver, or a kernel does not load.
    """
    options = (causal, softmax_scale, layout, num_splits)
    return _attend((q, k, v), options, out, lse, return_lse, stream)


def _attend(
    operands: tuple[Array, Array, Array],
    options: tuple[Causal, float | None, Layout, int | None],
    out: Array | None,
    lse: Array | None,
    return_lse: bool,
    stream: Stream | None,
) -> Array | tuple[Array, Array]:
    """Finds or makes the plan for these operands and runs it."""
    q, k, v = operands
    causal, softmax_scale, layout, num_splits = options
    handle = _stream(q, stream)
    views = (
        as_view(q, "q", stream=handle),
        as_view(k, "k", stream=handle),
        as_view(v, "v", stream=handle),
    )
    wants_lse = return_lse or lse is not None
    shapes = tuple((view.shape, view.dtype) for view in views)
    where = (chosen(), views[0].device)
    softmax_scale = check_scale(softmax_scale)
    num_splits = check_num_splits(num_splits)
    key = (shapes, where, type(causal), causal, softmax_scale, layout, num_splits, wants_lse)
    try:
        found = _plans.get(key)
    except TypeError:  # an option that is not hashable is refused below, by name
        found = None
    if found is None:
        check_layout(layout)
        spec = AttentionSpec._of_views(views, causal, softmax_scale, layout, wants_lse)
        shape = ProblemShape._of_views(views, layout)
        found = plan(spec, shape, device=device_for(views[0]), num_splits=num_splits)
        _keep(_plans, key, found)
    return found.execute(views, out, lse, return_lse, handle)


def _stream(q: Array, stream: Stream | None) -> int:
    """The stream that the caller means, by q's framework."""
    framework = framework_of(q)
    ordinal = q.get_device() if framework == "torch" else 0
    if framework == "cupy":
        ordinal = q.data.device_id
    if framework == "cufmha":
        ordinal = q.device[1] if q.device[0] == "cuda" else -1
    return resolve_stream(stream, framework if ordinal >= 0 else "", ordinal)


def _keep(kept: OrderedDict[tuple[Any, ...], Any], key: tuple[Any, ...], value: Any) -> None:
    with _lock:
        kept[key] = value
        while len(kept) > _PLANS_KEPT:
            kept.popitem(last=False)


@overload
def attention_varlen(
    q: Array, k: Array, v: Array, cu_seqlens_q: Array, cu_seqlens_k: Array,
    max_seqlen_q: int | None = None, max_seqlen_k: int | None = None, *,
    seqused_k: Array | None = None, strategy: Strategy | None = None, check: bool = False,
    causal: Causal = False, softmax_scale: float | None = None, out: Array | None = None,
    lse: Array | None = None, return_lse: Literal[False] = False, stream: Stream | None = None,
) -> Array: ...  # fmt: skip
@overload
def attention_varlen(
    q: Array, k: Array, v: Array, cu_seqlens_q: Array, cu_seqlens_k: Array,
    max_seqlen_q: int | None = None, max_seqlen_k: int | None = None, *,
    seqused_k: Array | None = None, strategy: Strategy | None = None, check: bool = False,
    causal: Causal = False, softmax_scale: float | None = None, out: Array | None = None,
    lse: Array | None = None, return_lse: Literal[True], stream: Stream | None = None,
) -> tuple[Array, Array]: ...  # fmt: skip
def attention_varlen(
    q: Array,
    k: Array,
    v: Array,
    cu_seqlens_q: Array,
    cu_seqlens_k: Array,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    *,
    seqused_k: Array | None = None,
    strategy: Strategy | None = None,
    check: bool = False,
    causal: Causal = False,
    softmax_scale: float | None = None,
    out: Array | None = None,
    lse: Array | None = None,
    return_lse: bool = False,
    stream: Stream | None = None,
) -> Array | tuple[Array, Array]:
    """`attention` of packed sequences of different length; nothing is padded or copied.

    Sequence b has the query rows cu_seqlens_q[b] … cu_seqlens_q[b + 1] − 1 of q, and of k and v the
    rows from cu_seqlens_k[b] on.

    Parameters
    ----------
    q : array (total_q, heads_q, head_dim)
        As in `attention`: dtypes, strides, head counts and head_dims are the same.
    k : array (total_k, heads_kv, head_dim)
    v : array (total_k, heads_kv, head_dim_v)
        Rows of q, k and v outside any sequence may hold anything, NaN included. With strategy
        "mask" v must be finite there, and in other sequences for one's result to be exact.
    cu_seqlens_q, cu_seqlens_k : int32 or int64 array (batch + 1,)
        Where each sequence begins and the last one ends, where q is, or in CPU memory, which costs
        a copy a call. What they hold is read by the kernels alone: each offset counts as the
        greatest of 0 and of the offsets up to it, cut to the number of tokens, so that whatever
        they hold nothing outside the arrays is read or written.
    max_seqlen_q, max_seqlen_k : int, optional
        The longest sequence, for `check` and strategy "offset". Results do not depend on them.
    seqused_k : int32 or int64 array (batch,), optional
        Keys of each sequence that count, the first ones; cut to 0 … its length.
    strategy : str, optional
        How a sequence's rows are reached, "offset", "replace", "mask", "ragged" or "split";
        "split" if left out.
    check : bool
        Read the offsets first, which waits for the stream, and refuse those that decrease, leave
        the arrays or exceed max_seqlen.
    causal : bool or "top_left"
        By each sequence's own lengths, that of its keys being what seqused_k says. True: query i
        sees keys up to i + seqlen_k − seqlen_q.
    softmax_scale : float, optional
        1/sqrt(head_dim) if left out.
    out : array (total_q, heads_q, head_dim_v), optional
        Written and returned. Rows outside any sequence are left as they are; without an `out`
        they are uninitialized.
    lse : float32 array (heads_q, total_q), optional
        Likewise.
    return_lse : bool
        Return (out, lse).
    stream : optional
        As in `attention`.

    Returns
    -------
    out, or (out, lse)
        In q's framework. A query that sees no key gets 0, and −inf in lse.

    Raises
    ------
    ArgumentError, DTypeError
        For an operand that breaks a rule; nothing is written then.
    UnsupportedError, DriverError, AssemblyError
        If there is no kernel, no card or driver, or a kernel does not load.
    """
    handle = _stream(q, stream)
    views = input_views(q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_k, stream=handle)
    softmax_scale = check_scale(softmax_scale)
    strategy = check_strategy(strategy)
    check_operands(views.q, views.k, views.v, layout=PACKED)
    check_lengths_array("cu_seqlens_q", views.cu_seqlens_q)
    limits = PackedShape(
        batch=views.cu_seqlens_q.shape[0] - 1,
        total_q=views.q.shape[0],
        total_k=views.k.shape[0],
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
    )
    kinds = tuple((tuple(view.shape[1:]), view.dtype) for view in (views.q, views.k, views.v))
    shape = rounded(limits, strategy)
    wants_lse = return_lse or lse is not None
    where = (chosen(), views.q.device)
    mask = Mask.of(causal)
    key = (kinds, shape, where, mask, softmax_scale, strategy, wants_lse)
    found = _varlen_plans.get(key)
    if found is None:
        assert isinstance(views.q.dtype, DType)  # check_operands has seen to it
        spec = AttentionSpec(
            num_heads_q=views.q.shape[1],
            num_heads_kv=views.k.shape[1],
            head_dim=views.q.shape[2],
            head_dim_v=views.v.shape[2],
            dtype=views.q.dtype,
            mask=mask,
            softmax_scale=softmax_scale,
            layout=PACKED,
            lse=wants_lse,
            strategy=strategy,
        )
        found = plan(spec, shape, device=device_for(views.q))
        _keep(_varlen_plans, key, found)
    return found.execute(views, limits, check, out, lse, return_lse, handle)
