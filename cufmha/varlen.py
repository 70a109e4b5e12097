# SPDX-License-Identifier: Apache-2.0
"""`VarlenPlan` and `VarlenBoundLaunch`: packed sequences with their kernel, and launches of it.

A launch is two kernels on one stream: varlen_schedule reads the offsets and writes the table of
work, fmha_fwd draws its work from there. So nothing waits for the card, and offsets may change
between the replays of a CUDA graph.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

from .array.alloc import allocate
from .array.dtype import DType
from .array.view import TensorView, as_view, framework_of
from .device.base import Region, outside
from .errors import ArgumentError, UnsupportedError
from .kernels.catalog import SORTED_SEQUENCES, KernelVariant, schedule_variant
from .memory.registry import guard_bytes
from .operands import (
    LARGEST_GRID,
    LOG2_E,
    check_apart,
    check_lse_planned,
    check_places,
    pitch,
    place_of,
    span,
    stream_for,
)
from .packed import (
    PackedShape,
    check_lengths_array,
    check_offsets,
    check_used,
    offset_bytes,
)
from .planning import Array, PlanReport, Stream
from .spec import (
    PACKED,
    AttentionSpec,
    Mask,
    check_distinct,
    check_lse_memory,
    check_memory,
    check_operands,
    check_result,
    dtype_name,
)
from .strategies import (
    MAP_SLOT_BYTES,
    Tensor,
    Values,
    check_limits,
    guard_in_use,
    scalars,
    tensor_maps,
)

if TYPE_CHECKING:
    from .device.base import Device, Launch, Memory
    from .spec import Strategy

_LAUNCHES_KEPT = 64
_WORKSPACES_KEPT = 16
_BOTTOM_RIGHT, _TOP_LEFT = -1, 0
_TICKET_WORDS = 4
_ON_HOST = ("cpu", 0)
_PER_THREAD = 2  # the driver's handle for a stream of which each thread has its own

_thread = threading.local()


class VarlenInputs(NamedTuple):
    """What a launch reads. Offsets and lengths may be in CPU memory; they are copied then."""

    q: TensorView
    k: TensorView
    v: TensorView
    cu_seqlens_q: TensorView
    cu_seqlens_k: TensorView
    seqused_k: TensorView | None

    @property
    def batch(self) -> int:
        return self.cu_seqlens_q.shape[0] - 1

    @property
    def lengths(self) -> tuple[tuple[str, TensorView | None], ...]:
        """The arrays of offsets and lengths by name."""
        return (
            ("cu_seqlens_q", self.cu_seqlens_q),
            ("cu_seqlens_k", self.cu_seqlens_k),
            ("seqused_k", self.seqused_k),
        )


class VarlenResults(NamedTuple):
    """What a launch writes."""

    out: TensorView
    lse: TensorView | None


class _Workspace:
    """Memory of launches that follow one another on a stream, and their lock.

    All that a launch consists of goes into the stream under the lock: another thread's launch in
    between would overwrite the table of work before it is read.
    """

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.address = memory.address
        self.lock = threading.Lock()


class _Upload(NamedTuple):
    """A copy from CPU memory; it does not keep the caller's array alive."""

    address: int
    source: int
    size: int


@dataclass(frozen=True, slots=True)
class _VarlenLaunch:
    """Copies of offsets that are in CPU memory, then both kernels. Keeps the workspace alive."""

    device: Device
    uploads: tuple[_Upload, ...]
    schedule: Launch
    attention: Launch
    workspace: _Workspace

    def __call__(self, stream: int) -> None:
        with self.workspace.lock:
            for upload in self.uploads:
                self.device.upload(*upload, stream)
            self.schedule(stream)
            self.attention(stream)


class VarlenPlan:
    """A kind of problem on packed sequences, with its kernels loaded. Any thread may run it.

    Attributes
    ----------
    spec : AttentionSpec
    shape : PackedShape
        The most that it takes.
    variant : KernelVariant
    device : Device
    workspace_bytes : int
        Device memory beyond out and lse for each stream that `run` is called on, and for each
        bound launch: the table of work, with strategy "replace" its tensor maps, and room for
        offsets that come in CPU memory.
    """

    def __init__(
        self, spec: AttentionSpec, shape: PackedShape, *, variant: KernelVariant, device: Device
    ) -> None:
        self.spec, self.shape, self.variant, self.device = spec, shape, variant, device
        assert (
            spec.strategy is not None and spec.head_dim_v is not None
        )  # AttentionSpec has set them
        self.strategy = spec.strategy
        self.grid = min(device.processors, max(self._most_items(shape.batch, shape.total_q), 1))
        if self._most_items(shape.batch, shape.total_q) > LARGEST_GRID:
            raise UnsupportedError(
                f"heads x (total_q / {variant.tile_q} + batch) must be at most {LARGEST_GRID}, "
                f"got {self._most_items(shape.batch, shape.total_q)}"
            )
        self._places = _Places.of(variant, shape.batch, self.grid)
        self.workspace_bytes = self._places.end
        self._launches: OrderedDict[tuple[Any, ...], _VarlenLaunch] = OrderedDict()
        self._workspaces: OrderedDict[tuple[Any, ...], _Workspace] = OrderedDict()
        self._lock = threading.Lock()
        self._kernel = device.kernel(variant)
        self._schedule = device.kernel(schedule_variant(variant.arch, shape.batch))

    def _most_items(self, batch: int, total_q: int) -> int:
        """Each sequence ends in one tile that may be partial."""
        tiles = total_q // self.variant.tile_q + min(batch, total_q)
        return tiles * self.spec.num_heads_q

    # ---- running

    @overload
    def run(
        self, q: Array, k: Array, v: Array, cu_seqlens_q: Array, cu_seqlens_k: Array, *,
        seqused_k: Array | None = None, check: bool = False, out: Array | None = None,
        lse: Array | None = None, return_lse: Literal[False] = False, stream: Stream | None = None,
    ) -> Array: ...  # fmt: skip
    @overload
    def run(
        self, q: Array, k: Array, v: Array, cu_seqlens_q: Array, cu_seqlens_k: Array, *,
        seqused_k: Array | None = None, check: bool = False, out: Array | None = None,
        lse: Array | None = None, return_lse: Literal[True], stream: Stream | None = None,
    ) -> tuple[Array, Array]: ...  # fmt: skip
    def run(
        self,
        q: Array,
        k: Array,
        v: Array,
        cu_seqlens_q: Array,
        cu_seqlens_k: Array,
        *,
        seqused_k: Array | None = None,
        check: bool = False,
        out: Array | None = None,
        lse: Array | None = None,
        return_lse: bool = False,
        stream: Stream | None = None,
    ) -> Array | tuple[Array, Array]:
        """Launch on operands within the plan; arguments and result are `attention_varlen`'s.

        Raises
        ------
        PlanError
            If the log-sum-exp is asked of a plan made without it.
        ArgumentError, DTypeError
            If an operand is not as planned.
        """
        check_lse_planned(self.spec, return_lse or lse is not None)
        handle = stream_for(self.device, stream, framework_of(q))
        inputs = input_views(q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_k, stream=handle)
        return self.execute(inputs, self.shape, check, out, lse, return_lse, handle)

    def execute(
        self,
        inputs: VarlenInputs,
        limits: PackedShape,
        check: bool,
        out: Array | None,
        lse: Array | None,
        return_lse: bool,
        stream: int,
    ) -> Array | tuple[Array, Array]:
        """`run`, on views; `limits` says how long a sequence may be with `check`."""
        self.check_inputs(inputs)
        q = inputs.q
        out_view = lse_view = None
        if out is not None:
            out_view = self.check_out(q, as_view(out, "out", stream=stream))
        if lse is not None:
            lse_view = self.check_lse(q, as_view(lse, "lse", stream=stream))
        if check:
            self._check_contents(inputs, limits, stream)
        finish_out: Callable[[], Any] = lambda: out  # noqa: E731
        finish_lse: Callable[[], Any] = lambda: lse  # noqa: E731
        if out_view is None:
            out_view, finish_out = allocate(
                q, self.shape_out(q), self.spec.dtype, device=self.device, stream=stream
            )
        if return_lse and lse_view is None:
            lse_view, finish_lse = allocate(
                q, self.shape_lse(q), DType.F32, device=self.device, stream=stream
            )
        launch = self._launch(inputs, VarlenResults(out_view, lse_view), stream)
        if launch is not None:
            launch(stream)
        return (finish_out(), finish_lse()) if return_lse else finish_out()

    def bind(
        self,
        q: Array,
        k: Array,
        v: Array,
        cu_seqlens_q: Array,
        cu_seqlens_k: Array,
        out: Array,
        lse: Array | None = None,
        *,
        seqused_k: Array | None = None,
    ) -> VarlenBoundLaunch:
        """Fix all operands, for launches that allocate and encode nothing.

        What the offsets hold may change from launch to launch, in a CUDA graph too.

        Raises
        ------
        PlanError
            For an lse, if the plan was made without it.
        """
        return VarlenBoundLaunch(self, (q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_k, out, lse))

    # ---- checks

    def shape_out(self, q: TensorView) -> tuple[int, int, int]:
        return (q.shape[0], q.shape[1], self.spec.head_dim_v or 0)

    def shape_lse(self, q: TensorView) -> tuple[int, int]:
        return (q.shape[1], q.shape[0])

    def check_out(self, q: TensorView, out: TensorView) -> TensorView:
        """The view, if it will do for q's results."""
        check_result("out", out, self.shape_out(q), self.spec.dtype)
        check_places(self.device, (("out", out),))
        return out

    def check_lse(self, q: TensorView, lse: TensorView) -> TensorView:
        check_result("lse", lse, self.shape_lse(q), DType.F32)
        check_places(self.device, (("lse", lse),))
        return lse

    def check_inputs(self, inputs: VarlenInputs) -> None:
        """Every rule on q, k, v and the offsets, what these hold aside."""
        q, k, v = inputs.q, inputs.k, inputs.v
        check_operands(q, k, v, layout=PACKED)
        check_lengths_array("cu_seqlens_q", inputs.cu_seqlens_q)
        check_lengths_array("cu_seqlens_k", inputs.cu_seqlens_k, inputs.batch + 1)
        if inputs.seqused_k is not None:
            check_lengths_array("seqused_k", inputs.seqused_k, inputs.batch)
        self._check_against_plan(inputs)
        named = (("q", q), ("k", k), ("v", v))
        check_places(self.device, named)
        for name, view in named:
            check_memory(name, view)
            check_limits(self.strategy, name, view)
        for name, lengths in inputs.lengths:
            if lengths is not None and lengths.device != _ON_HOST:
                check_places(self.device, ((name, lengths),))

    def _check_against_plan(self, inputs: VarlenInputs) -> None:
        q, k, v, *_ = inputs
        spec, shape = self.spec, self.shape
        for name, got, planned in (
            ("q: number of heads", q.shape[1], spec.num_heads_q),
            ("k: number of heads", k.shape[1], spec.num_heads_kv),
            ("q: head_dim", q.shape[2], spec.head_dim),
            ("v: head_dim", v.shape[2], spec.head_dim_v),
        ):
            if got != planned:
                raise ArgumentError(f"{name}: the plan is for {planned}, got {got}")
        if q.dtype is not spec.dtype:
            raise ArgumentError(
                f"q: the plan is for {spec.dtype.long_name}, got {dtype_name(q.dtype)}"
            )
        for name, got, most in (
            ("q: number of tokens", q.shape[0], shape.total_q),
            ("k: number of tokens", k.shape[0], shape.total_k),
            ("cu_seqlens_q: number of sequences", inputs.batch, shape.batch),
        ):
            if got > most:
                raise ArgumentError(f"{name}: the plan is for at most {most}, got {got}")

    def _check_contents(self, inputs: VarlenInputs, limits: PackedShape, stream: int) -> None:
        """`check=True`: reads the offsets, waiting for the stream where they are on the card."""
        q, k, _, offsets_q, offsets_k, used = inputs
        check_offsets(
            "cu_seqlens_q", self._read(offsets_q, stream), q.shape[0], limits.max_seqlen_q, "q"
        )
        lengths = check_offsets(
            "cu_seqlens_k", self._read(offsets_k, stream), k.shape[0], limits.max_seqlen_k, "k"
        )
        if used is not None:
            check_used(self._read(used, stream), lengths)

    def _read(self, view: TensorView, stream: int) -> Any:
        import numpy as np

        size = view.shape[0] * offset_bytes(view)
        on_host = view.device[0] == "cpu"
        raw = (
            _host_bytes(view.pointer, size)
            if on_host
            else self.device.download(view.pointer, size, stream)
        )
        return np.frombuffer(raw, f"i{offset_bytes(view)}")

    # ---- launches

    def _launch(
        self, inputs: VarlenInputs, results: VarlenResults, stream: int
    ) -> _VarlenLaunch | None:
        """The launch for these operands on a stream, from the latest ones if it is there."""
        if is_empty(inputs):
            self.check_results(inputs, results)
            return None
        queue = _queue(stream)
        key = (
            *queue,
            *((view.pointer, tuple(view.shape), tuple(view.strides), view.dtype)
              if view is not None else None for view in (*inputs, *results)),
            # The same address may have lost its guard since.
            *(self._guard(view.pointer) for view in (*inputs[:3], results.out)),
        )  # fmt: skip
        with self._lock:
            launch = self._launches.get(key)
            if launch is not None:
                self._launches.move_to_end(key)
                return launch
            workspace = self._workspaces.get(queue)
        if workspace is None:
            workspace = self.workspace()
        launch = self.prepare(inputs, results, workspace)
        with self._lock:
            self._workspaces[queue] = workspace
            self._launches[key] = launch
            if len(self._launches) > _LAUNCHES_KEPT:
                self._launches.popitem(last=False)
            if len(self._workspaces) > _WORKSPACES_KEPT:
                self._workspaces.popitem(last=False)
        return launch

    def workspace(self) -> _Workspace:
        """One of its own, for launches that follow one another."""
        return _Workspace(self.device.workspace(self.workspace_bytes))

    def check_results(self, inputs: VarlenInputs, results: VarlenResults) -> None:
        """Memory rules of the results, and that they share no element with anything else."""
        check_distinct("out", results.out)
        check_memory("out", results.out)
        check_limits(self.strategy, "out", results.out)
        if results.lse is not None:
            check_distinct("lse", results.lse)
            check_lse_memory(results.lse)
        others = list(zip(VarlenInputs._fields, inputs, strict=True))
        for name, result in zip(VarlenResults._fields, results, strict=True):
            for other, view in others:
                if result is not None and view is not None and result.device == view.device:
                    check_apart(name, result, span(result), other, view, span(view))
            others.append((name, result))

    def prepare(
        self, inputs: VarlenInputs, results: VarlenResults, workspace: _Workspace
    ) -> _VarlenLaunch:
        """Encode the tensor maps and fill in both kernels' parameters."""
        self.check_results(inputs, results)
        q, k, lse = inputs.q, inputs.k, results.lse
        places, base, home = self._places, workspace.address, place_of(self.device)
        uploads: list[_Upload] = []
        addresses, wide = [], 0
        for bit, ((_, view), at) in enumerate(zip(inputs.lengths, places.offsets, strict=True)):
            address = 0 if view is None else view.pointer
            if view is not None and view.device != home:
                address = base + at
                size = view.shape[0] * offset_bytes(view)
                uploads.append(_Upload(address, view.pointer, size))
            if view is not None and view.dtype == "int64":
                wide |= 1 << bit
            addresses.append(address)
        values: Values = {
            "cu_seqlens_q": addresses[0],
            "cu_seqlens_k": addresses[1],
            "seqused_k": addresses[2],
            "wide_offsets": wide,
            "batch": inputs.batch,
            "total_q": q.shape[0],
            "total_k": k.shape[0],
            "tile_q": self.variant.tile_q,
            "workspace": base,
            "maps": base + places.maps,
            "lse": 0 if lse is None else lse.pointer,
            "lse_stride_head": 0 if lse is None else pitch(lse, 0),
            "num_heads_q": self.spec.num_heads_q,
            "group_size": self.spec.num_heads_q // self.spec.num_heads_kv,
            "scale_log2": self.spec.scale * LOG2_E,
            "causal_offset": _BOTTOM_RIGHT if self.spec.mask is Mask.CAUSAL else _TOP_LEFT,
        }
        tensors = self._tensors(inputs, results)
        for tensor in tensors:
            values.update(scalars(self.strategy, tensor))
            for name, spec, address in tensor_maps(self.strategy, tensor):
                values[name] = self.device.encode(spec, address)
        regions = [
            *_regions(inputs, results),
            Region(base, self.workspace_bytes, True, "workspace"),
        ]
        regions += _guards(self.strategy, tensors, regions)
        grid = min(self.grid, self._most_items(inputs.batch, q.shape[0]))
        schedule, attention = (
            kernel.prepare(
                grid=blocks,
                params=bytes(
                    kernel.parameters.pack(
                        {name: values[name] for name in kernel.parameters.fields}
                    )
                ),
                regions=regions,
            )
            for kernel, blocks in ((self._schedule, 1), (self._kernel, grid))
        )
        return _VarlenLaunch(self.device, tuple(uploads), schedule, attention, workspace)

    def _tensors(self, inputs: VarlenInputs, results: VarlenResults) -> list[Tensor]:
        variant, shape = self.variant, self.shape
        q, k, v, *_ = inputs
        longest_q = q.shape[0] if shape.max_seqlen_q is None else shape.max_seqlen_q
        longest_k = k.shape[0] if shape.max_seqlen_k is None else shape.max_seqlen_k
        return [
            # An array without elements has no address; no kernel touches its maps' memory.
            Tensor(name, view, at, rows, longest, self._guard(at))
            for name, view, rows, longest in (
                ("q", q, variant.box_rows_q, longest_q),
                ("k", k, variant.box_rows_kv, longest_k),
                ("v", v, variant.box_rows_kv, longest_k),
                ("o", results.out, variant.box_rows_o, longest_q),
            )
            for at in (view.pointer if view.shape[0] else q.pointer,)
        ]

    def _guard(self, address: int) -> int:
        """Readable bytes in front of an address, for the strategy that has a use for them."""
        return guard_bytes(address) if self.strategy == "offset" else 0

    # ---- telling

    def explain(self) -> PlanReport:
        """What runs, on what, in how many blocks."""
        variant, device = self.variant, self.device
        return PlanReport(
            (
                ("kernel", variant.name),
                ("device", f"{device.name} ({device.arch}), {device.processors} processors"),
                ("strategy", self.strategy),
                ("tile", f"{variant.tile_q} queries x {variant.tile_k} keys"),
                ("block", f"{variant.threads} threads, {variant.smem_bytes} shared bytes"),
                ("registers", ", ".join(f"{r} x {t} threads" for r, t in variant.roles) or "even"),
                ("grid", f"at most {self.grid} blocks, which draw their tiles"),
                ("workspace", f"{self.workspace_bytes} bytes a stream"),
            )
        )

    def __repr__(self) -> str:
        return f"VarlenPlan({self.variant.name}, {self.shape}, {self.device.name})"


class VarlenBoundLaunch:
    """A plan with its operands fixed and kept alive, and a workspace of its own.

    It allocates and encodes nothing, so it may be captured in a CUDA graph; the offsets are read
    at each launch. Launches of one bound launch must not overlap: they share out and workspace.
    """

    def __init__(self, plan: VarlenPlan, arrays: tuple[Array | None, ...]) -> None:
        self.plan = plan
        self._arrays = arrays
        *given, out, lse = arrays
        check_lse_planned(plan.spec, lse is not None)
        inputs = input_views(*given, stream=0)
        plan.check_inputs(inputs)
        results = VarlenResults(
            plan.check_out(inputs.q, as_view(out, "out")),
            None if lse is None else plan.check_lse(inputs.q, as_view(lse, "lse")),
        )
        self._views, self._framework = (inputs, results), inputs.q.framework
        self._launch: _VarlenLaunch | None = None
        if is_empty(inputs):
            plan.check_results(inputs, results)
        else:
            self._launch = plan.prepare(inputs, results, plan.workspace())

    def __call__(self, stream: Stream | None = None) -> None:
        """Launch on a stream, the current one of q's framework if left out."""
        if self._launch is not None:
            self._launch(stream_for(self.plan.device, stream, self._framework))


def input_views(
    q: Array, k: Array, v: Array, cu_seqlens_q: Array, cu_seqlens_k: Array,
    seqused_k: Array | None, *, stream: int,
) -> VarlenInputs:  # fmt: skip
    """All inputs as views; only seqused_k may be None."""
    return VarlenInputs(
        as_view(q, "q", stream=stream),
        as_view(k, "k", stream=stream),
        as_view(v, "v", stream=stream),
        as_view(cu_seqlens_q, "cu_seqlens_q", stream=stream),
        as_view(cu_seqlens_k, "cu_seqlens_k", stream=stream),
        None if seqused_k is None else as_view(seqused_k, "seqused_k", stream=stream),
    )


def _queue(stream: int) -> tuple[Any, ...]:
    """What orders launches: a stream, by its handle and, if need be, the thread."""
    if stream != _PER_THREAD:
        return (stream, None)
    if not hasattr(_thread, "token"):
        _thread.token = object()  # unlike the thread's number it is never used again
    return (stream, _thread.token)


def is_empty(inputs: VarlenInputs) -> bool:
    """Without sequences or queries nothing is written."""
    return inputs.batch == 0 or inputs.q.shape[0] == 0


def rounded(shape: PackedShape, strategy: Strategy) -> PackedShape:
    """Sequences and tokens up to the next power of two, so that one plan serves many calls.

    The longest sequences, which are others at each call, are kept for the strategy that uses them.
    """

    def up(count: int) -> int:
        return min(1 << (count - 1).bit_length(), (1 << 31) - 1) if count else 0

    longest = (shape.max_seqlen_q, shape.max_seqlen_k) if strategy == "offset" else (None, None)
    return PackedShape(
        batch=up(shape.batch),
        total_q=up(shape.total_q),
        total_k=up(shape.total_k),
        max_seqlen_q=longest[0],
        max_seqlen_k=longest[1],
    )


@dataclass(frozen=True, slots=True)
class _Places:
    """Where things are in the workspace, whose table ptx/include/work.ptx describes."""

    maps: int
    offsets: tuple[int, int, int]
    end: int

    @classmethod
    def of(cls, variant: KernelVariant, batch: int, grid: int) -> _Places:
        words = _TICKET_WORDS + 3 * (batch + 1) + min(batch, SORTED_SEQUENCES)
        maps = _up(4 * words)
        at = maps + 2 * MAP_SLOT_BYTES * variant.maps * grid
        places = []
        for entries in (batch + 1, batch + 1, batch):
            places.append(at)
            at = _up(at + 8 * entries)
        return cls(maps, (places[0], places[1], places[2]), at)


def _up(size: int) -> int:
    return math.ceil(size / MAP_SLOT_BYTES) * MAP_SLOT_BYTES


def _host_bytes(address: int, size: int) -> bytes:
    import ctypes

    return ctypes.string_at(address, size) if size else b""


def _regions(inputs: VarlenInputs, results: VarlenResults) -> list[Region]:
    """What the kernels may touch."""
    named = [
        *zip(VarlenInputs._fields, inputs, (False,) * 6, strict=True),
        *zip(VarlenResults._fields, results, (True,) * 2, strict=True),
    ]
    return [
        Region(view.pointer, span(view), written, name)
        for name, view, written in named
        if view is not None and view.device == inputs.q.device
    ]


def _guards(strategy: Strategy, tensors: list[Tensor], regions: list[Region]) -> Iterator[Region]:
    """What the tensor maps reach in front of the arrays, for reading, where nothing else lies."""
    for tensor in tensors:
        size = guard_in_use(strategy, tensor)
        if size:
            guard = Region(tensor.address - size, size, False, f"guard of {tensor.name}")
            yield from outside(guard, regions)
