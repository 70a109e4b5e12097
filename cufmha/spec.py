# SPDX-License-Identifier: Apache-2.0
"""What is to be computed: `AttentionSpec`, `ProblemShape`, and every rule on operands' shapes."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, Self

from .array.dtype import DType
from .array.overlap import overlaps_itself
from .array.view import TensorView, as_view
from .errors import ArgumentError, DTypeError
from .kernels.catalog import STRATEGIES

Causal = bool | Literal["top_left"]
Layout = Literal["bshd", "bhsd"]
Strategy = Literal["offset", "replace", "mask", "ragged", "split"]

LAYOUTS: tuple[str, ...] = ("bshd", "bhsd")
PACKED: Literal["thd"] = "thd"
DEFAULT_STRATEGY: Strategy = "split"
MAX_HEAD_DIM = 192
MAX_HEAD_DIM_V = 128
_ALIGNMENT = 16
_STRIDE_LIMIT = 1 << 40


class Mask(Enum):
    """Which keys a query sees; the value is what `causal=` says."""

    NONE = False
    CAUSAL = True
    CAUSAL_TOP_LEFT = "top_left"

    @classmethod
    def of(cls, causal: Any) -> Mask:
        """From `causal=`: False, True (the diagonal ends at the last key) or "top_left"."""
        if causal is True or causal is False or (isinstance(causal, str) and causal == "top_left"):
            return cls(causal)
        if isinstance(causal, Mask):
            return causal
        raise ArgumentError(f'causal: must be False, True or "top_left", got {causal!r}')


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionSpec:
    """A kind of attention problem, whatever its batch and lengths.

    Parameters
    ----------
    num_heads_q, num_heads_kv : int
        Query heads must be a multiple of key/value heads.
    head_dim : int
        Of q and k: a multiple of 8, 8 to 192.
    head_dim_v : int, optional
        Of v and out: a multiple of 8, 8 to 128; head_dim if left out.
    dtype : DType
        Of q, k, v and out: BF16 or F16.
    mask : Mask
    softmax_scale : float, optional
        1/sqrt(head_dim) if left out. Any finite value.
    layout : "bshd", "bhsd" or "thd"
        The order of q's, k's, v's and out's axes: batch, sequence, heads, head_dim, or batch,
        heads, sequence, head_dim; or packed sequences, all tokens, heads, head_dim.
    lse : bool
        Whether the log-sum-exp is wanted.
    strategy : str, optional
        Of "thd" alone: how a sequence's rows are reached, "offset", "replace", "mask", "ragged" or
        "split" (docs/varlen.md); "split" if left out.
    """

    num_heads_q: int
    num_heads_kv: int
    head_dim: int
    head_dim_v: int | None = None
    dtype: DType = DType.BF16
    mask: Mask = Mask.NONE
    softmax_scale: float | None = None
    layout: Layout | Literal["thd"] = "bshd"
    lse: bool = False
    strategy: Strategy | None = None

    def __post_init__(self) -> None:
        check_dtype("dtype", self.dtype)
        for name in ("num_heads_q", "num_heads_kv", "head_dim"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name)))
        check_head_dim("head_dim", self.head_dim)
        dim_v = self.head_dim if self.head_dim_v is None else self.head_dim_v
        object.__setattr__(self, "head_dim_v", whole_number("head_dim_v", dim_v))
        check_head_dim("head_dim_v", self.head_dim_v, MAX_HEAD_DIM_V)
        for name in ("num_heads_q", "num_heads_kv"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"{name}: must be at least 1, got {getattr(self, name)}")
        check_heads(self.num_heads_q, self.num_heads_kv, "num_heads_q", "num_heads_kv")
        if self.layout == PACKED:
            object.__setattr__(self, "strategy", check_strategy(self.strategy))
        else:
            check_layout(self.layout, PACKED)
            if self.strategy is not None:
                raise ArgumentError(
                    f'strategy: only packed sequences (layout "thd") have one, got '
                    f"{self.strategy!r} with layout {self.layout!r}"
                )
        if not isinstance(self.mask, Mask):
            raise ArgumentError(f"mask: must be a Mask, got {self.mask!r}")
        check_scale(self.softmax_scale)

    @classmethod
    def of(
        cls,
        q: Any,
        k: Any,
        v: Any,
        *,
        causal: Causal = False,
        softmax_scale: float | None = None,
        layout: Layout = "bshd",
        lse: bool = False,
    ) -> Self:
        """The spec of these operands, which are held to every rule on shapes."""
        views = operand_views(q, k, v)
        return cls._of_views(views, causal, softmax_scale, layout, lse)

    @classmethod
    def _of_views(
        cls,
        views: tuple[TensorView, TensorView, TensorView],
        causal: Causal,
        softmax_scale: float | None,
        layout: Layout,
        lse: bool,
    ) -> Self:
        check_layout(layout)
        mask = Mask.of(causal)
        scale = check_scale(softmax_scale)
        check_operands(*views, layout=layout)
        q, k, v = views
        heads = layout.index("h")
        assert isinstance(q.dtype, DType)  # check_operands has seen to it
        return cls(
            num_heads_q=q.shape[heads],
            num_heads_kv=k.shape[heads],
            head_dim=q.shape[-1],
            head_dim_v=v.shape[-1],
            dtype=q.dtype,
            mask=mask,
            softmax_scale=scale,
            layout=layout,
            lse=lse,
        )

    @property
    def scale(self) -> float:
        """`softmax_scale`, or its default."""
        if self.softmax_scale is None:
            return 1 / math.sqrt(self.head_dim)
        return self.softmax_scale

    @property
    def causal(self) -> Causal:
        """As `causal=` of `attention`."""
        return self.mask.value  # type: ignore[no-any-return]


@dataclass(frozen=True, kw_only=True, slots=True)
class ProblemShape:
    """Batch and lengths of a problem; each may be 0."""

    batch: int
    seqlen_q: int
    seqlen_k: int

    def __post_init__(self) -> None:
        for name in ("batch", "seqlen_q", "seqlen_k"):
            object.__setattr__(self, name, check_count(name, getattr(self, name)))

    @classmethod
    def of(cls, q: Any, k: Any, v: Any, *, layout: Layout = "bshd") -> Self:
        """The shape of these operands, which are held to every rule on shapes."""
        views = operand_views(q, k, v)
        return cls._of_views(views, layout)

    @classmethod
    def _of_views(cls, views: tuple[TensorView, TensorView, TensorView], layout: Layout) -> Self:
        check_layout(layout)
        check_operands(*views, layout=layout)
        rows = layout.index("s")
        q, k, _ = views
        return cls(batch=q.shape[0], seqlen_q=q.shape[rows], seqlen_k=k.shape[rows])


# ---- the rules, most basic first


def operand_views(
    q: Any, k: Any, v: Any, *, stream: int = 0
) -> tuple[TensorView, TensorView, TensorView]:
    """q, k and v as views."""
    return (
        as_view(q, "q", stream=stream),
        as_view(k, "k", stream=stream),
        as_view(v, "v", stream=stream),
    )


def whole_number(name: str, value: Any) -> int:
    """As an int: NumPy's integers wrap around where Python's do not."""
    if type(value) is int:
        return value
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise DTypeError(f"{name}: must be a whole number, got {type(value).__name__}")
    return number


def check_count(name: str, value: Any) -> int:
    """A number of sequences or rows, as an int."""
    number = whole_number(name, value)
    if not 0 <= number < 1 << 31:
        raise ArgumentError(f"{name}: must be 0 to 2^31 - 1, got {number}")
    return number


def check_layout(layout: Any, *others: str) -> None:
    if not isinstance(layout, str) or layout not in (*LAYOUTS, *others):
        known = " or ".join(f'"{name}"' for name in (*LAYOUTS, *others))
        raise ArgumentError(f"layout: must be {known}, got {layout!r}")


def check_strategy(strategy: Any) -> Strategy:
    """One of `STRATEGIES`; None is the default."""
    if strategy is None:
        return DEFAULT_STRATEGY
    if not isinstance(strategy, str) or strategy not in STRATEGIES:
        raise ArgumentError(f"strategy: must be one of {', '.join(STRATEGIES)}, got {strategy!r}")
    return strategy  # type: ignore[return-value]


def check_scale(scale: Any) -> float | None:
    """None, or a finite number as a float."""
    if scale is None:
        return None
    try:
        value = None if isinstance(scale, bool | str | bytes) else float(scale)
    except OverflowError:
        value = math.inf
    except (TypeError, ValueError):
        value = None
    if value is None:
        raise DTypeError(f"softmax_scale: must be a number or None, got {type(scale).__name__}")
    if not math.isfinite(value):
        raise ArgumentError(f"softmax_scale: must be finite, got {value}")
    if abs(value) > _LARGEST_SCALE:
        raise ArgumentError(
            f"softmax_scale: must be at most {_LARGEST_SCALE:.6g} in size, so that it is a "
            f"float32 times log2(e), got {value:g}"
        )
    return value


_LARGEST_SCALE = 3.4028234e38 * math.log(2)


def check_dtype(name: str, dtype: Any) -> None:
    if dtype is not DType.BF16 and dtype is not DType.F16:
        shown = dtype.long_name if isinstance(dtype, DType) else dtype
        raise DTypeError(f"{name}: dtype must be bfloat16 or float16, got {shown}")


def check_head_dim(name: str, head_dim: int | None, most: int = MAX_HEAD_DIM) -> None:
    if head_dim is None or not 8 <= head_dim <= most or head_dim % 8:
        raise ArgumentError(
            f"{name}: head_dim must be a multiple of 8 from 8 to {most}, got {head_dim}"
        )


def check_heads(heads_q: int, heads_kv: int, name_q: str, name_kv: str) -> None:
    if heads_q % heads_kv:
        raise ArgumentError(
            f"{name_q}: the number of query heads must be a multiple of that of {name_kv}, "
            f"{heads_kv}, got {heads_q}"
        )


def check_operands(q: TensorView, k: TensorView, v: TensorView, *, layout: str) -> None:
    """Rank, dtype, head_dim, then shapes against one another."""
    named = (("q", q), ("k", k), ("v", v))
    for name, view in named:
        if len(view.shape) != len(layout):
            raise ArgumentError(
                f"{name}: must have {len(layout)} axes ({layout}), got {len(view.shape)}: "
                f"{tuple(view.shape)}"
            )
    for name, view in named:
        check_dtype(name, view.dtype)
    for name, view in named[1:]:
        if view.dtype is not q.dtype:
            raise DTypeError(
                f"{name}: dtype must be that of q, {dtype_name(q.dtype)}, "
                f"got {dtype_name(view.dtype)}"
            )
    for name, view in named:
        check_head_dim(name, view.shape[-1], MAX_HEAD_DIM_V if name == "v" else MAX_HEAD_DIM)
    heads, rows = layout.index("h"), layout.index("t" if layout == PACKED else "s")
    like_q = [("k", k, -1, "head_dim")]
    if layout != PACKED:
        like_q += [("k", k, 0, "batch"), ("v", v, 0, "batch")]
    for name, view, axis, what in like_q:
        if view.shape[axis] != q.shape[axis]:
            raise ArgumentError(
                f"{name}: {what} must be that of q, {q.shape[axis]}, got {view.shape[axis]}"
            )
    for axis, what in ((heads, "number of heads"), (rows, "sequence length")):
        if v.shape[axis] != k.shape[axis]:
            if layout == PACKED and axis == rows:
                what = "number of tokens"
            raise ArgumentError(
                f"v: {what} must be that of k, {k.shape[axis]}, got {v.shape[axis]}"
            )
    for name, view in named[:2]:
        if view.shape[heads] < 1:
            raise ArgumentError(f"{name}: number of heads must be at least 1, got 0")
    check_heads(q.shape[heads], k.shape[heads], "q", "k")


def dtype_name(dtype: DType | str) -> str:
    """For messages."""
    return dtype.long_name if isinstance(dtype, DType) else dtype


def check_result(name: str, view: TensorView, shape: tuple[int, ...], dtype: DType) -> None:
    """`out` or `lse`: rank, dtype, shape, then whether it may be written."""
    if len(view.shape) != len(shape):
        raise ArgumentError(
            f"{name}: must have {len(shape)} axes, got {len(view.shape)}: {tuple(view.shape)}"
        )
    if view.dtype is not dtype:
        raise DTypeError(f"{name}: dtype must be {dtype.long_name}, got {dtype_name(view.dtype)}")
    if tuple(view.shape) != shape:
        raise ArgumentError(f"{name}: shape must be {shape}, got {tuple(view.shape)}")
    if view.framework == "jax":
        raise ArgumentError(f"{name}: must be writable, got a JAX array, which is immutable")
    if view.readonly:
        raise ArgumentError(f"{name}: must be writable, got a read-only array")


def check_distinct(name: str, view: TensorView) -> None:
    """No result is written over another."""
    if overlaps_itself(tuple(zip(view.shape, view.strides, strict=True))):
        raise ArgumentError(
            f"{name}: no two elements may share memory, got strides of {tuple(view.strides)} "
            f"elements for shape {tuple(view.shape)}"
        )


def check_memory(name: str, view: TensorView) -> None:
    """What tensor maps ask of q, k, v and out: dense last axis, 16-byte strides and base."""
    if 0 in view.shape:
        return
    if view.strides[-1] != 1:
        raise ArgumentError(
            f"{name}: the last axis must be dense (stride 1 element), got stride {view.strides[-1]}"
        )
    size = 2
    for axis in range(len(view.shape) - 1):
        if view.shape[axis] == 1:
            continue
        stride = view.strides[axis] * size
        if stride % _ALIGNMENT:
            raise ArgumentError(
                f"{name}: strides must be multiples of {_ALIGNMENT} bytes, "
                f"got {stride} bytes on axis {axis}"
            )
        if not 0 <= stride < _STRIDE_LIMIT:
            raise ArgumentError(
                f"{name}: strides must be from 0 to 2^40 - 1 bytes, "
                f"got {stride} bytes on axis {axis}"
            )
    if view.pointer % _ALIGNMENT:
        raise ArgumentError(
            f"{name}: must start at a multiple of {_ALIGNMENT} bytes, got address "
            f"{view.pointer:#x} ({view.pointer % _ALIGNMENT} bytes past one)"
        )


def check_lse_memory(view: TensorView) -> None:
    """The kernel takes lse's outer strides, and wants its last axis dense."""
    if 0 in view.shape:
        return
    if view.strides[-1] != 1 and view.shape[-1] > 1:
        raise ArgumentError(
            f"lse: the last axis must be dense (stride 1 element), got stride {view.strides[-1]}"
        )
    for axis in range(len(view.shape) - 1):
        if view.shape[axis] > 1 and view.strides[axis] < 0:
            raise ArgumentError(
                f"lse: strides must not be negative, got {4 * view.strides[axis]} bytes on "
                f"axis {axis}"
            )
    if view.pointer % 4:
        raise ArgumentError(f"lse: must start at a multiple of 4 bytes, got {view.pointer:#x}")
