# SPDX-License-Identifier: Apache-2.0
"""`attention`: one call, over plans that are kept by the problem's shapes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, Literal, overload

from .array.stream import resolve_stream
from .array.view import as_view, framework_of
from .device import chosen, device_for
from .planning import Array, Plan, Stream, plan
from .spec import AttentionSpec, Causal, Layout, ProblemShape, check_scale

_PLANS_KEPT = 256
_plans: OrderedDict[tuple[Any, ...], Plan] = OrderedDict()
_lock = threading.Lock()


@overload
def attention(
    q: Array, k: Array, v: Array, *, causal: Causal = False, softmax_scale: float | None = None,
    layout: Layout = "bshd", out: Array | None = None, lse: Array | None = None,
    return_lse: Literal[False] = False, stream: Stream | None = None,
) -> Array: ...  # fmt: skip
@overload
def attention(
    q: Array, k: Array, v: Array, *, causal: Causal = False, softmax_scale: float | None = None,
    layout: Layout = "bshd", out: Array | None = None, lse: Array | None = None,
    return_lse: Literal[True], stream: Stream | None = None,
) -> tuple[Array, Array]: ...  # fmt: skip
def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: Causal = False,
    softmax_scale: float | None = None,
    layout: Layout = "bshd",
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
    options = (causal, softmax_scale, layout)
    return _attend((q, k, v), options, out, lse, return_lse, stream)


def _attend(
    operands: tuple[Array, Array, Array],
    options: tuple[Causal, float | None, Layout],
    out: Array | None,
    lse: Array | None,
    return_lse: bool,
    stream: Stream | None,
) -> Array | tuple[Array, Array]:
    """Finds or makes the plan for these operands and runs it."""
    q, k, v = operands
    causal, softmax_scale, layout = options
    framework = framework_of(q)
    ordinal = q.get_device() if framework == "torch" else 0
    if framework == "cupy":
        ordinal = q.data.device_id
    handle = resolve_stream(stream, framework if ordinal >= 0 else "", ordinal)
    views = (
        as_view(q, "q", stream=handle),
        as_view(k, "k", stream=handle),
        as_view(v, "v", stream=handle),
    )
    wants_lse = return_lse or lse is not None
    shapes = tuple((view.shape, view.dtype) for view in views)
    where = (chosen(), views[0].device)
    softmax_scale = check_scale(softmax_scale)
    key = (shapes, where, type(causal), causal, softmax_scale, layout, wants_lse)
    try:
        found = _plans.get(key)
    except TypeError:  # an option that is not hashable is refused below, by name
        found = None
    if found is None:
        spec = AttentionSpec._of_views(views, causal, softmax_scale, layout, wants_lse)
        shape = ProblemShape._of_views(views, layout)
        found = plan(spec, shape, device=device_for(views[0]))
        with _lock:
            _plans[key] = found
            while len(_plans) > _PLANS_KEPT:
                _plans.popitem(last=False)
    return found.execute(views, out, lse, return_lse, handle)
